"""A GPU: `python -m benchmarks.gpu [--quick] [--fake] [--rounds N] [--batches N] [--only KEY]`.

First the torture: 2,000 batches, of which every element is checked; the exit code is 1 where one is wrong.
Then rates, step times, many small tensors, host synchronisations, memory, and how late another thread is. It
takes less than four minutes and needs torch and numpy alone; where there is no GPU it says so in one line.
``--fake`` runs all of it on a fake device, which shows that the script works, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks._gpu_rows import (
    NO_COPY,
    QUICK,
    WARM,
    Sizes,
    bare_rate,
    heartbeat_gap,
    hosts,
    loading,
    overlap,
    rate_races,
    small_race,
    step_races,
)
from benchmarks._measure import machine, missed, number, percentile, run_race, table
from benchmarks._rigs import CudaRig, FakeRig, Rig, missing, model_of
from benchmarks._torture import Torture, torture

SYNCHRONISATIONS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
ALLOCATIONS = ("cudaHostAlloc", "cudaMallocHost", "cudaHostRegister")
WORK = "spdl_async benchmark: what is counted"
CHECK = "spdl_async benchmark: a synchronisation on purpose"


@dataclass
class Verdicts:
    """What was judged: lines for people, and the names of what missed."""

    bad: list[str]

    def say(self, key: str, met: bool | None, text: str) -> None:
        """Print a line; None where there is nothing to judge."""
        judged = "" if met is None else "ok" if met else "MISSED"
        print(f"[{key}] {judged:6} {text}", flush=True)
        if met is False:
            self.bad.append(f"[{key}]")


# The torture


def tortures(quick: bool, batches: int) -> list[Torture]:
    """Return what the batches go through."""
    if quick:
        small = Torture(batches=30, most_bytes=1 << 19, pin="1MB")
        return [small, Torture(batches=20, most_bytes=1 << 19, pin="1MB", foreign=True)]
    return [
        Torture(batches=batches, most_bytes=64 << 20, pin="128MB"),
        Torture(batches=batches),
        Torture(batches=batches, foreign=True, face="async for"),
    ]


def run_tortures(rig: Rig, plans: Sequence[Torture], verdicts: Verdicts) -> bool:
    """Run them; tell whether all elements of all batches were right."""
    right = True
    for plan in plans:
        result = torture(rig, plan)
        right = right and result.wrong == 0
        notes = result.notes
        verdicts.say(
            "torture",
            result.wrong == 0,
            f"{plan}: {result.wrong:,} wrong elements in {notes['bytes_copied'] / 1e9:.1f} GB, "
            f"{notes['slot_waits']:,} waits for staging memory, {result.seconds:.1f} s",
        )
    return right


# Host synchronisations


def traced(rig: Rig, work: Callable[[], None]) -> tuple[dict[str, int], dict[str, int]] | None:
    """Count the calls of CUDA's runtime in this thread, and in all others, while some work is done.

    None where the profiler does not tell threads apart, as a synchronisation on purpose in this one shows.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with record_function(WORK):
            work()
        with record_function(CHECK):
            rig.finish()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    return counted(events)


def counted(events: list[dict[str, Any]]) -> tuple[dict[str, int], dict[str, int]] | None:
    """Take a trace apart."""
    marks = {e["name"]: e for e in events if e.get("cat") == "user_annotation"}
    work, check = marks.get(WORK), marks.get(CHECK)
    if work is None or check is None:
        return None
    ours: dict[str, int] = {}
    others: dict[str, int] = {}
    seen = 0
    for event in events:
        name = str(event.get("name", ""))
        kind = next((one for one in SYNCHRONISATIONS + ALLOCATIONS if name.startswith(one)), None)
        if kind is None or event.get("cat") != "cuda_runtime":
            continue
        mine = event.get("tid") == work["tid"]
        if _within(event, check):
            seen += mine
        elif _within(event, work):
            found = ours if mine else others
            found[kind] = found.get(kind, 0) + 1
    return (ours, others) if seen else None


def _within(event: dict[str, Any], span: dict[str, Any]) -> bool:
    return bool(span["ts"] <= event["ts"] <= span["ts"] + span["dur"])


def synchronisations(rig: Rig, sizes: Sizes, verdicts: Verdicts, steps: int) -> None:
    """Count what the consumer's thread waits for, and page-locking behind the first batches."""
    model = model_of(rig, 0.001)
    batches = hosts(sizes.batch)
    found: tuple[dict[str, int], dict[str, int]] | None
    with loading(rig, batches, WARM * 4 + steps).run_sync() as run:
        taken = iter(run)

        def train(times: int) -> None:
            for _ in range(times):
                model(next(taken))

        train(WARM * 4)
        rig.finish()
        locked = rig.pinned_allocations()
        if isinstance(rig, FakeRig):
            found = faked(rig, partial(train, steps))
        else:
            found = traced(rig, partial(train, steps))
        more = rig.pinned_allocations()
    if found is None:
        text = "the profiler did not show this thread's own synchronisation: not measured"
        verdicts.say("synchronisations", None, text)
    else:
        ours, others = (
            {name: n for name, n in counts.items() if name in SYNCHRONISATIONS} for counts in found
        )
        verdicts.say(
            "synchronisations",
            not ours,
            f"in the consumer's thread, {steps} steps: {ours or 'none'}; in others: {others or 'none'}",
        )
        calls = sum(n for counts in found for name, n in counts.items() if name in ALLOCATIONS)
        verdicts.say("page-locking", calls == 0, f"calls behind the first batches: {calls}")
    if locked is not None and more is not None:
        text = f"by the count of torch's allocator: {more - locked}"
        verdicts.say("page-locking", more == locked, text)


def faked(rig: FakeRig, work: Callable[[], None]) -> tuple[dict[str, int], dict[str, int]]:
    """Count the same on the fake device."""
    begin = len(rig.fake.calls)
    work()
    here = threading.current_thread().name
    ours: dict[str, int] = {}
    others: dict[str, int] = {}
    names = {"synchronize": "cudaEventSynchronize", "pinned": "cudaHostAlloc"}
    for call in rig.fake.calls[begin:]:
        if call.method in names:
            found = ours if call.thread == here else others
            found[names[call.method]] = found.get(names[call.method], 0) + 1
    return ours, others


# Memory


def memory(rig: Rig, sizes: Sizes, verdicts: Verdicts, depth: int = 2) -> None:
    """Compare the peak on device and host to what depth allows."""
    size = sizes.batch
    rig = rig if rig.real else FakeRig()  # whose peak is that of its life
    model = model_of(rig, 0.001)
    rig.finish()
    before = rig.bytes_on_device()
    rig.start_peak()
    notes: Any = {}
    with loading(rig, hosts(size), 60, depth=depth).run_sync() as run:
        taken = 0
        for batch in run:
            model(batch)
            del batch
            taken += 1  # noqa: SIM113 -- enumerate() would keep the last batch
            if taken == 50:
                notes = next(s.notes for s in run.statistics().stages if "staging_bytes" in s.notes)
    peak = (rig.peak() - before) / size
    text = (
        f"peak {peak:.2f} batches; depth {depth}, one being copied, one the consumer's: {depth + 2}"
    )
    verdicts.say("device memory", peak <= depth + 2.25, text)
    staged = notes["staging_bytes"] / size
    text = f"{staged:.2f} batches in {notes['staging_allocations']} allocations; bound {depth + 1}"
    verdicts.say("page-locked memory", staged <= depth + 1, text)


# The GIL


def gil(rig: Rig, sizes: Sizes, verdicts: Verdicts) -> None:
    """Say how late a loop of 1 ms is while a gigabyte is copied in each second."""
    size = sizes.batch
    per_second = 1e9 / size if rig.real else 200.0
    quiet = idle(sizes.seconds / 2)
    small = [
        [torch.full((size // sizes.small,), k, dtype=torch.uint8) for _ in range(sizes.small)]
        for k in range(2)
    ]
    rows: list[tuple[str, list[Any], bool]] = [
        (f"one tensor of {size / 1e6:.3g} MB", hosts(size), True),
        (f"{sizes.small:,} tensors of {size // sizes.small:,} bytes", small, False),
    ]
    print(
        f"[gil] a loop of 1 ms, {per_second * size / 1e9:.2g} GB/s; idle: p99 {quiet:.2f} ms late"
    )
    for what, batches, judged in rows:
        late = heartbeat_gap(rig, batches, per_second, sizes.seconds)
        p99 = percentile(late, 0.99)
        text = (
            f"{what}: p50 {percentile(late, 0.5):.2f}, p99 {p99:.2f}, max {max(late):.2f} ms late"
        )
        verdicts.say("gil", p99 < 5.0 if judged else None, text)


def idle(seconds: float) -> float:
    """Return how late the loop is with nothing beside it."""
    late: list[float] = []
    stop = time.perf_counter() + seconds
    while (began := time.perf_counter()) < stop:
        time.sleep(0.001)
        late.append((time.perf_counter() - began - 0.001) * 1e3)
    return percentile(late, 0.99)


# All of it


def race_rows(rig: Rig, sizes: Sizes, rounds: int, verdicts: Verdicts, only: str | None) -> None:
    """Run the races."""
    races: list[Callable[[], Iterator[Any]]] = [
        partial(rate_races, rig, sizes),
        partial(step_races, rig, sizes),
        lambda: iter([small_race(rig, sizes)]),
    ]
    copy_ms: float | None = None
    for make in races:
        for race in make():
            if only is not None and not race.key.startswith(only):
                continue
            outcome = run_race(race, rounds=rounds, warm_up=rig.real)
            print("\n" + table(outcome), flush=True)
            verdicts.bad += missed(outcome)
            if NO_COPY not in outcome.values:
                continue
            if copy_ms is None:
                locked = [rig.pinned(batch) for batch in hosts(sizes.batch)]
                copy_ms = sizes.batch / bare_rate(rig, locked, 20) / 1e6
            share = overlap(outcome.values, copy_ms)
            long = race.key.startswith("step-20ms")
            if share is None:
                text = "of the copy nothing can be hidden"
                verdicts.say(race.key, None, text)
            else:
                text = f"hides {share:.0%} of the ideal (bare copy: {number(copy_ms)} ms)"
                verdicts.say(race.key, share >= 0.9 if long else None, text)


def run_all(rig: Rig, options: argparse.Namespace) -> int:
    """Run what was asked for; return the exit code."""
    quick = options.quick or options.fake
    sizes = QUICK if quick else Sizes()
    verdicts = Verdicts([])
    started = time.perf_counter()
    only: str | None = options.only
    right = True
    if only in (None, "torture"):
        right = run_tortures(rig, tortures(quick, options.batches), verdicts)
    if only != "torture":
        rounds = options.rounds or (1 if quick else 3)
        race_rows(rig, sizes, rounds, verdicts, only)
    print()
    for key, row in (
        ("synchronisations", partial(synchronisations, steps=10 if quick else 100)),
        ("memory", memory),
        ("gil", gil),
    ):
        if only in (None, key):
            row(rig, sizes, verdicts)
    seconds = time.perf_counter() - started
    print(f"\n{seconds:.0f} s; missed: {', '.join(verdicts.bad) or 'nothing'}")
    return 0 if right else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the torture, then every row; the exit code is that of the torture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--fake", action="store_true", help="on a fake device, with tiny sizes")
    parser.add_argument("--rounds", type=int, help="rounds of each race (default 3)")
    parser.add_argument("--batches", type=int, default=2_000, help="batches of each torture")
    parser.add_argument(
        "--only", help="torture, rate, step, small, synchronisations, memory or gil"
    )
    options = parser.parse_args(argv)
    if not options.fake and (why := missing()):
        print(f"benchmarks.gpu needs a GPU that torch can use: {why}; --fake shows that it runs")
        return 0
    print(machine(("torch", "numpy")), flush=True)
    if options.fake:
        torch.set_num_threads(1)  # its kernels are small, and a busy machine is slow to wake a team
    rig: Rig = FakeRig() if options.fake else CudaRig()
    print(f"device: {rig.name}", flush=True)
    return run_all(rig, options)


if __name__ == "__main__":
    sys.exit(main())
