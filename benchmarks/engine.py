"""What the engine costs: `python -m benchmarks.engine [--quick] [--rounds N] [--only KEYS]`.

The rows are those of the speed targets in the design notes. Ops do nothing, so that the numbers are
the engine's own. Every row runs on the private loop of a run (uvloop where installed) and, where it
applies, on the caller's loop under asyncio and uvloop.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

from benchmarks import _epochs, _ours, _peers
from benchmarks._growth import FULL, QUICK, Sizes, growth, memory
from benchmarks._measure import (
    Contestant,
    Race,
    Target,
    machine,
    missed,
    run_race,
    table,
)
from benchmarks._shapes import shapes

MAP = "ThreadPoolExecutor(4).map"
SPDL = "SPDL"
AIOSTREAM = "aiostream map(task_limit=4)"
GATHER = "hand-written gather + Semaphore(4)"
QUEUE = "queue.Queue between two threads"


Async = Callable[[Literal["caller", "own"]], Coroutine[Any, Any, float]]


def _uvloop_run(main: Coroutine[Any, Any, float]) -> float:
    import uvloop

    result: float = uvloop.run(main)
    return result


def _variants(run: Async, label: str, targets: tuple[Target, ...]) -> list[Contestant]:
    """Give the contestants of one async workload: own loop, and the caller's under both loops."""
    uv = find_spec("uvloop") is not None
    return [
        Contestant(
            name=f"spdl_async{label}, async for, loop='own'",
            run=lambda: asyncio.run(run("own")),
            targets=targets,
        ),
        Contestant(
            name=f"spdl_async{label}, async for, asyncio.run",
            run=lambda: asyncio.run(run("caller")),
            targets=targets,
        ),
        Contestant(
            name=f"spdl_async{label}, async for, uvloop.run",
            run=(lambda: _uvloop_run(run("caller"))) if uv else None,
            targets=targets,
        ),
    ]


def _stages(
    sizes: Sizes, *, stages: int, fuse: bool, targets: tuple[Target, ...]
) -> list[Contestant]:
    """Give the contestants of a chain of no-op thread stages."""
    items = sizes.items
    label = "" if stages == 1 else ", fused" if fuse else ", not fused"

    async def run(loop: Literal["caller", "own"]) -> float:
        pipeline = _ours.thread_stages(items, stages=stages, fuse=fuse)
        return await _ours.async_rate(pipeline, items, loop)

    def run_sync() -> float:
        return _ours.sync_rate(_ours.thread_stages(items, stages=stages, fuse=fuse), items)

    sync = Contestant(name=f"spdl_async{label}, for", run=run_sync, targets=targets)
    return [sync, *_variants(run, label, targets)]


def one_thread_stage(sizes: Sizes) -> Race:
    """Row 1."""
    items = sizes.items
    targets = (Target(bound=8, reference=MAP), Target(bound=100, reference=SPDL))

    def pulled() -> float:
        pipeline = _ours.thread_stages(items, stages=1, fuse=True, iterator=True)
        return _ours.sync_rate(pipeline, items)

    return Race(
        key="thread",
        title="one no-op thread stage, concurrency 4, batches of 32",
        unit="items/s",
        baseline=MAP,
        contestants=[
            Contestant(name=MAP, run=partial(_peers.executor_map, items)),
            *_stages(sizes, stages=1, fuse=True, targets=targets),
            Contestant(name="spdl_async, for, a generator as source", run=pulled, targets=targets),
            Contestant(name=SPDL, run=_peers.spdl_batches(max(items // 25, 320))),
            Contestant(name="torchdata, 4 threads", run=_peers.torchdata_threads(items // 5)),
            Contestant(
                name="torch DataLoader, 2 processes",
                run=_peers.dataloader(items, processes=2) if sizes.warm_up else None,
                absent="not with --quick, or torch is not installed",
            ),
        ],
    )


def three_thread_stages(sizes: Sizes) -> Race:
    """Rows 2 and 2b."""
    fused = (Target(bound=5, reference=MAP),)
    apart = (Target(bound=3, reference=MAP),)
    return Race(
        key="three",
        title="three no-op thread stages (the baseline has one), concurrency 4, batches of 32",
        unit="items/s",
        baseline=MAP,
        contestants=[
            Contestant(name=MAP, run=partial(_peers.executor_map, sizes.items)),
            *_stages(sizes, stages=3, fuse=True, targets=fused),
            *_stages(sizes, stages=3, fuse=False, targets=apart),
            Contestant(name=SPDL, run=_peers.spdl_batches(max(sizes.items // 50, 320), stages=3)),
        ],
    )


def one_async_stage(sizes: Sizes) -> Race:
    """Row 3."""
    items = sizes.items
    targets = (Target(bound=10, reference=AIOSTREAM),)

    async def single(loop: Literal["caller", "own"]) -> float:
        return await _ours.async_rate_single(_ours.async_stage(items), items, loop)

    async def roomy(loop: Literal["caller", "own"]) -> float:
        return await _ours.async_rate_single(_ours.async_stage(items, sink=64), items, loop)

    async def grouped(loop: Literal["caller", "own"]) -> float:
        return await _ours.async_rate(_ours.async_batches(items), items, loop)

    return Race(
        key="async",
        title="one no-op async stage, concurrency 4, item by item",
        unit="items/s",
        baseline=GATHER,
        contestants=[
            Contestant(name=GATHER, run=partial(_peers.semaphore_gather, items)),
            Contestant(name=AIOSTREAM, run=_peers.aiostream_map(max(items // 5, 320))),
            *_variants(single, "", targets),
            *_variants(roomy, ", add_sink(64)", targets),
            *_variants(grouped, ", batches of 32", targets),
        ],
    )


def importing(sizes: Sizes) -> Race:
    """Contract 23."""
    repeats = max(1, sizes.starts // 4)
    return Race(
        key="import",
        title="a fresh interpreter imports the package",
        unit="ms",
        lower_wins=True,
        baseline="asyncio",
        contestants=[
            Contestant(name="asyncio", run=partial(_ours.import_time, "asyncio", repeats)),
            Contestant(
                name="spdl_async",
                run=partial(_ours.import_time, "spdl_async", repeats),
                targets=(Target(bound=150, at_most=True),),
            ),
        ],
    )


def start_stop(sizes: Sizes) -> Race:
    """Row 4."""
    targets = (Target(bound=5, at_most=True),)
    repeats = sizes.starts
    return Race(
        key="start",
        title="start an idle run, take five items, stop",
        unit="ms",
        lower_wins=True,
        baseline=SPDL,
        contestants=[
            Contestant(
                name="spdl_async, for",
                run=partial(_ours.start_stop_sync, repeats),
                targets=targets,
            ),
            *_variants(partial(_ours.start_stop, repeats), "", targets),
            Contestant(name=SPDL, run=_peers.spdl_start_stop()),
        ],
    )


PAUSE = 0.002


def ready(sizes: Sizes) -> Race:
    """Row 5, items wait."""
    calls, targets = sizes.calls, (Target(bound=20, at_most=True),)
    return Race(
        key="ready",
        title="hand-over, items wait in the sink: p50 of next() by a consumer that rests 2 ms",
        unit="us",
        lower_wins=True,
        baseline=QUEUE,
        contestants=[
            Contestant(name=QUEUE, run=partial(_peers.queue_ready, calls, PAUSE)),
            Contestant(
                name="spdl_async, for",
                run=partial(_ours.ready_sync, calls, PAUSE),
                targets=targets,
            ),
            *_variants(partial(_ours.ready_async, calls, PAUSE), "", targets),
            Contestant(name=SPDL, run=_peers.spdl_ready(calls, PAUSE, thread_queue=False)),
            Contestant(
                name="SPDL, thread output queue",
                run=_peers.spdl_ready(calls, PAUSE, thread_queue=True),
            ),
        ],
    )


def waiting(sizes: Sizes) -> Race:
    """Row 5, the consumer waits."""
    calls = sizes.calls
    return Race(
        key="waiting",
        title="hand-over, the consumer waits: p50 from the last stage to the consumer",
        unit="us",
        lower_wins=True,
        baseline=QUEUE,
        note="no target: most of it is the system waking a thread, see the first line",
        contestants=[
            Contestant(name=QUEUE, run=partial(_peers.queue_waiting, calls, PAUSE)),
            Contestant(name="spdl_async, for", run=partial(_ours.waiting_sync, calls, PAUSE)),
            *_variants(partial(_ours.waiting_async, calls, PAUSE), "", ()),
            Contestant(name=SPDL, run=_peers.spdl_waiting(calls, PAUSE, thread_queue=False)),
            Contestant(
                name="SPDL, thread output queue",
                run=_peers.spdl_waiting(calls, PAUSE, thread_queue=True),
            ),
        ],
    )


def fairness(sizes: Sizes) -> Race:
    """Row 6."""
    requests, targets = sizes.requests, (Target(bound=10, at_most=True),)
    uv = find_spec("uvloop") is not None
    return Race(
        key="fairness",
        title="one thread: a 2 ms stage that never runs dry, a request every 20 ms: p99 wait",
        unit="ms",
        lower_wins=True,
        contestants=[
            Contestant(
                name="ThreadPoolExecutor(1), two jobs queued",
                run=partial(_peers.fair_executor, requests),
            ),
            Contestant(
                name="spdl_async, two stages on our pool",
                run=partial(_ours.fair_inside, requests),
                targets=targets,
            ),
            Contestant(
                name="spdl_async, two pipelines on a given executor, asyncio.run",
                run=lambda: asyncio.run(_ours.fair_between(requests)),
                targets=targets,
            ),
            Contestant(
                name="spdl_async, two pipelines on a given executor, uvloop.run",
                run=(lambda: _uvloop_run(_ours.fair_between(requests))) if uv else None,
                targets=targets,
            ),
        ],
    )


SEPARATE = "spdl_async, a new loop over the pipeline"


def epochs(sizes: Sizes) -> Race:
    """The boundary of two epochs."""
    count = 20 if sizes.warm_up else 3
    return Race(
        key="epochs",
        title="from the end of an epoch's last step to the first batch of the next",
        unit="ms",
        lower_wins=True,
        baseline=SEPARATE,
        note="a batch takes 8 ms to make on 4 threads, a step 12 ms; no target",
        contestants=[
            Contestant(name=SEPARATE, run=partial(_epochs.separate, count)),
            Contestant(
                name="spdl_async, epochs(overlap=False), for",
                run=partial(_epochs.together, count, overlap=False),
            ),
            Contestant(
                name="spdl_async, epochs(), for",
                run=partial(_epochs.together, count, overlap=True),
            ),
            *_variants(partial(_epochs.together_async, count), ", epochs()", ()),
        ],
    )


RACES = {
    "thread": one_thread_stage,
    "three": three_thread_stages,
    "async": one_async_stage,
    "import": importing,
    "start": start_stop,
    "ready": ready,
    "waiting": waiting,
    "fairness": fairness,
    "epochs": epochs,
    "shapes": shapes,
}


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    keys = [*RACES, "growth", "memory"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--rounds", type=int, help="rounds of each race (default 5)")
    parser.add_argument("--items", type=int, help="items of each pass (default 50,000)")
    parser.add_argument("--only", default=",".join(keys), help=f"rows, of {','.join(keys)}")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows that were asked for; the exit code is 0 whatever they show."""
    options = _arguments(argv)
    chosen: list[str] = options.only.split(",")
    sizes = QUICK if options.quick else FULL
    changes = {"items": options.items or sizes.items, "rounds": options.rounds or sizes.rounds}
    sizes = Sizes(**{**vars(sizes), **changes})
    print(machine(("uvloop", "spdl_core", "aiostream", "torchdata", "torch")), flush=True)
    if options.quick:
        print("--quick: shows that everything runs; its sizes are too small for any verdict")
    started, bad = time.perf_counter(), []
    for key, make in RACES.items():
        if key in chosen:
            slow = key == "fairness"  # its 3 s a contestant are mostly waiting
            rounds = min(sizes.rounds, 3) if slow else sizes.rounds
            outcome = run_race(make(sizes), rounds=rounds, warm_up=sizes.warm_up and not slow)
            print("\n" + table(outcome), flush=True)
            bad += missed(outcome)
    parts: list[tuple[str, list[str]]] = []
    if "growth" in chosen:
        parts += [growth(sizes, "thread"), growth(sizes, "async")]
    if "memory" in chosen:
        parts.append(memory(sizes))
    for text, misses in parts:
        print("\n" + text, flush=True)
        bad += misses
    print(f"\n{time.perf_counter() - started:.0f} s; missed: {', '.join(bad) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
