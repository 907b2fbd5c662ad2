"""The rows of `benchmarks.gpu`: what each contestant does, once, and the number that comes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks._measure import Contestant, Race, Target, percentile
from benchmarks._rigs import Rig, model_of
from spdl_async import Pipeline, PipelineBuilder

WARM = 4  # batches of each run before its time starts


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is copied.

    Attributes:
        copies: bytes of the batches whose rate is measured.
        batch: bytes of the batches of the step times.
        steps: per run, for the long model and the short one.
        small: tensors of a batch of small ones.
        seconds: for which the heartbeat is listened to.
    """

    copies: tuple[int, ...] = (1 << 20, 16 << 20, 128 << 20)
    moved: int = 2 << 30
    batch: int = 64 << 20
    steps: tuple[tuple[str, float, int], ...] = (("20 ms", 0.020, 40), ("1 ms", 0.001, 200))
    small: int = 2_000
    seconds: float = 4.0


QUICK = Sizes(
    copies=(1 << 14,),
    moved=1 << 17,
    batch=1 << 16,
    steps=(("20 ms", 0.020, 6), ("1 ms", 0.001, 6)),
    small=20,
    seconds=0.1,
)


def hosts(size: int, count: int = 4) -> list[torch.Tensor]:
    """Make batches in pageable memory, each page of which was written to."""
    return [torch.from_numpy(np.full(size, k + 1, np.uint8)) for k in range(count)]


def repeated(batches: list[Any], times: int) -> Iterator[Any]:
    """Give the batches again and again."""
    for k in range(times):
        yield batches[k % len(batches)]


def loading(rig: Rig, batches: list[Any], times: int, **options: Any) -> Pipeline[Any]:
    """Describe a pipeline that has nothing to do but to copy."""
    source = partial(repeated, batches, times)
    return PipelineBuilder().add_source(source).to_device(rig.backend, **options).build()


# Rates


def bare_rate(rig: Rig, batches: list[torch.Tensor], times: int) -> float:
    """Copy page-locked batches into memory that is there, one after the other; GB/s."""
    stream = rig.new_stream()
    backend = rig.backend
    with rig.on(stream):
        targets = [backend.empty(batch) for batch in batches]
        start = rig.mark()
        for k in range(times):
            backend.copy(targets[k % len(targets)], batches[k % len(batches)])
        end = rig.mark()
        rig.wait(end)
    return times * batches[0].nbytes / max(1e-9, rig.seconds(start, end)) / 1e9


def pipeline_rate(rig: Rig, batches: list[torch.Tensor], times: int, pin: bool | str) -> float:
    """Copy batches by to_device, to a consumer that does nothing; GB/s."""
    with loading(rig, batches, times + WARM, pin=pin).run_sync() as run:
        for number, _ in enumerate(run):
            if number == WARM - 1:
                rig.wait(rig.mark())
                started = time.perf_counter()
        rig.wait(rig.mark())  # on this stream, which waits for every copy
        seconds = time.perf_counter() - started
    return times * batches[0].nbytes / seconds / 1e9


def rate_races(rig: Rig, sizes: Sizes) -> Iterator[Race]:
    """Compare rates of copies."""
    for size in sizes.copies:
        times = max(8, sizes.moved // size)
        pageable = hosts(size)
        pinned = [rig.pinned(batch) for batch in pageable]
        bare = "bare copies, page-locked, into memory that is there"
        near = Target(bound=0.9, reference=bare)
        yield Race(
            key=f"rate-{size >> 10}k",
            title=f"batches of {size / 1e6:.3g} MB, one tensor",
            unit="GB/s",
            baseline=bare,
            contestants=[
                Contestant(name=bare, run=partial(bare_rate, rig, pinned, times)),
                Contestant(
                    name="to_device, page-locked batches",
                    run=partial(pipeline_rate, rig, pinned, times, True),
                    targets=(near,) if size >= 16 << 20 else (),
                ),
                Contestant(
                    name="to_device, pageable batches, staged",
                    run=partial(pipeline_rate, rig, pageable, times, "2GB"),
                ),
                Contestant(
                    name="to_device, pageable batches, pin=False",
                    run=partial(pipeline_rate, rig, pageable, times, False),
                ),
            ],
            note="staged: one thread copies each batch into page-locked memory, which limits the rate",
        )


# Steps


Model = Callable[[torch.Tensor], None]


def step_time(rig: Rig, batches: Iterator[torch.Tensor], model: Model, steps: int) -> float:
    """Return the milliseconds of a step, on the device's own clock, behind those that warm up."""
    start = end = None
    for number, batch in enumerate(batches, 1):
        model(batch)
        del batch
        if number == WARM:
            start = rig.mark()
        elif number == WARM + steps:
            end = rig.mark()
    rig.wait(end)
    return rig.seconds(start, end) / steps * 1e3


def without_copy(rig: Rig, batches: list[torch.Tensor], model: Model, steps: int) -> float:
    """Train on batches that are there."""
    there = [rig.send(batch) for batch in batches]
    return step_time(rig, repeated(there, WARM + steps), model, steps)


def synchronous(rig: Rig, batches: list[torch.Tensor], model: Model, steps: int) -> float:
    """Copy each batch when it is needed."""
    backend = rig.backend

    def copied() -> Iterator[torch.Tensor]:
        for batch in repeated(batches, WARM + steps):
            if rig.real:
                yield batch.to(backend.device)  # type: ignore[attr-defined]  # a GPU's
            else:
                yield rig.send(batch)

    return step_time(rig, copied(), model, steps)


def prefetched(rig: Rig, batches: list[torch.Tensor], model: Model, steps: int) -> float:
    """Let to_device copy ahead."""
    with loading(rig, batches, WARM + steps).run_sync() as run:
        return step_time(rig, iter(run), model, steps)


def step_races(rig: Rig, sizes: Sizes) -> Iterator[Race]:
    """Compare the time of a step."""
    pageable = hosts(sizes.batch)
    locked = [rig.pinned(batch) for batch in pageable]
    for name, seconds, steps in sizes.steps:
        model = model_of(rig, seconds)
        for kind, batches in (("pageable", pageable), ("page-locked", locked)):
            reference = f"batch.to(device), {kind}"
            yield Race(
                key=f"step-{name.replace(' ', '')}-{kind}",
                title=f"model of {name}, {kind} batches of {sizes.batch / 1e6:.3g} MB",
                unit="ms/step",
                baseline=reference,
                lower_wins=True,
                contestants=[
                    Contestant(
                        name=reference, run=partial(synchronous, rig, batches, model, steps)
                    ),
                    Contestant(
                        name="to_device",
                        run=partial(prefetched, rig, batches, model, steps),
                        targets=(Target(bound=0.98, reference=reference),),
                    ),
                    Contestant(name=NO_COPY, run=partial(without_copy, rig, batches, model, steps)),
                ],
            )


NO_COPY = "no copy: batches that are there"


def overlap(values: dict[str, list[float]], copy_ms: float) -> float | None:
    """Return which share of the time that can be hidden to_device hides; None where there is none.

    The ideal step takes as long as the longer of model and bare copy.
    """
    one_round = zip(*values.values(), strict=True)  # in the order of the race: sync, ours, no copy
    shares: list[float] = []
    for synchronous_ms, ours_ms, model_ms in one_round:
        most = synchronous_ms - max(model_ms, copy_ms)
        if most > 0.02 * synchronous_ms:
            shares.append((synchronous_ms - ours_ms) / most)
    return percentile(shares, 0.5) if shares else None


# Small tensors


def small_race(rig: Rig, sizes: Sizes) -> Race:
    """Compare batches of many small tensors."""
    batches = [[torch.full((64,), float(k + j)) for j in range(sizes.small)] for k in range(3)]
    locked = [[rig.pinned(tensor) for tensor in batch] for batch in batches]
    times = 30 if sizes.small > 100 else 3

    def one_by_one(of: list[list[torch.Tensor]]) -> float:
        backend = rig.backend
        started = time.perf_counter()
        for batch in repeated(of, times):
            for tensor in batch:
                target = backend.empty(tensor)
                backend.copy(target, tensor)
        rig.finish()
        return (time.perf_counter() - started) / times * 1e3

    def packed() -> float:
        rig.finish()
        with loading(rig, batches, times + WARM).run_sync() as run:
            for number, batch in enumerate(run):
                if number == WARM - 1:
                    started = time.perf_counter()
                del batch
            rig.finish()
            return (time.perf_counter() - started) / times * 1e3

    reference = "one by one, page-locked, not waited for"
    return Race(
        key="small",
        title=f"batches of {sizes.small:,} tensors of 256 bytes",
        unit="ms/batch",
        baseline=reference,
        lower_wins=True,
        contestants=[
            Contestant(name=reference, run=partial(one_by_one, locked)),
            Contestant(name="one by one, pageable", run=partial(one_by_one, batches)),
            Contestant(
                name="to_device, packed",
                run=packed,
                targets=(Target(bound=1.0, reference=reference),),
            ),
        ],
    )


# The GIL


def heartbeat_gap(rig: Rig, batches: list[Any], per_second: float, seconds: float) -> list[float]:
    """Return how many milliseconds late a loop of 1 ms in this thread is, while batches are copied.

    They are produced at a given rate, and taken by another thread.
    """
    over = threading.Event()

    def paced() -> Iterator[Any]:
        due = time.perf_counter()
        number = 0
        while not over.is_set():
            due += 1 / per_second
            over.wait(max(0.0, due - time.perf_counter()))
            yield batches[number % len(batches)]
            number += 1

    def consume() -> None:
        for batch in PipelineBuilder().add_source(paced).to_device(rig.backend).build():
            del batch

    late: list[float] = []
    thread = threading.Thread(target=consume, name="consumer")
    thread.start()
    try:
        stop = time.perf_counter() + seconds
        while (began := time.perf_counter()) < stop:
            time.sleep(0.001)
            late.append((time.perf_counter() - began - 0.001) * 1e3)
    finally:
        over.set()
        thread.join()
    return late
