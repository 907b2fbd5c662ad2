"""Batches through ``to_device`` as badly as a device and a consumer may treat them; every element is checked.

Copies start late, the staging memory is too small for what is in flight, the consumer changes its stream with
each batch, keeps its streams busy, and drops a batch when it has queued its kernels. What a missing wait, a
staging buffer that is written too early or memory that is freed too early would do shows as wrong elements.
The same runs on a `FakeDevice`, where each of these mistakes shows every time.
"""

from __future__ import annotations

import asyncio
import mmap
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks._rigs import Rig
from spdl_async import Pipeline, PipelineBuilder
from spdl_async.statistics import RunStatistics

SCRIBBLE = 0x5A
SIZES = 6
AHEAD = 8  # batches that the consumer's kernels may be behind the consumer


@dataclass(frozen=True, kw_only=True)
class Torture:
    """What is done to how many batches.

    Attributes:
        batches: how many.
        most_bytes: of the largest batch; the smallest are a 64th of that.
        pin: of `to_device`, less than what is in flight.
        depth: of `to_device`.
        late: seconds by which each copy starts late.
        slow: seconds for which each fifth batch keeps the consumer's stream busy.
        streams: how many streams the consumer changes between; 0: it stays on the default one.
        foreign: batches lie in page-locked memory of others, that is overwritten when they are dropped.
        face: how the consumer reads.
    """

    batches: int = 2_000
    most_bytes: int = 8 << 20
    pin: bool | int | str = "16MB"
    depth: int = 2
    late: float = 0.001
    slow: float = 0.002
    streams: int = 3
    foreign: bool = False
    face: str = "for"

    def __str__(self) -> str:
        memory = "foreign page-locked memory" if self.foreign else f"pin={self.pin!r}"
        return (
            f"{self.batches:,} batches of up to {self.most_bytes / 1e6:.0f} MB, {memory}, "
            f"{self.streams or 'no other'} streams, {self.face}"
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of it."""

    delivered: int
    wrong: int
    seconds: float
    statistics: RunStatistics

    @property
    def notes(self) -> dict[str, Any]:
        """The counters of the copy stage."""
        return dict(next(s.notes for s in self.statistics.stages if "bytes_copied" in s.notes))


class Material:
    """Batches of which every element is known: random numbers, plus the batch's own."""

    def __init__(self, rig: Rig, plan: Torture, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        longest = plan.most_bytes // 4
        self.base = random.integers(-(2**31), 2**31, longest, np.int32)
        # Few sizes, so that an allocator soon gives out the memory of one batch to another.
        sizes = np.geomspace(max(1, longest // 64), longest, SIZES).astype(int)
        self.sizes = random.choice(sizes, plan.batches)
        self.here = rig.send(torch.from_numpy(self.base))
        self.foreign = ForeignMemory(rig, plan.most_bytes) if plan.foreign else None

    def make(self, number: int) -> dict[str, Any]:
        """Make a batch."""
        size = int(self.sizes[number])
        small = number % 100  # bfloat16 has it exactly
        large = self.foreign.take(size) if self.foreign else np.empty(size, np.int32)
        np.add(self.base[:size], np.int32(number), out=large)
        return {
            "number": number,
            "large": large,
            "a": np.full(3, small, np.uint8),
            "b": [torch.full((2, 5), float(small)), torch.tensor(number)],
            "c": torch.full((7, 2), small, dtype=torch.bfloat16).t(),
        }

    def check(self, rig: Rig, counter: torch.Tensor, number: int, batch: dict[str, Any]) -> None:
        """Queue the comparison of each element; the counter grows by those that are wrong."""
        if batch["number"] != number:
            raise AssertionError(f"batch {batch['number']} came in the place of {number}")
        tensors = batch["large"], batch["a"], *batch["b"], batch["c"]
        rig.launch(partial(count_wrong, number), counter, self.here, *tensors)


def count_wrong(
    number: int,
    counter: torch.Tensor,
    base: torch.Tensor,
    large: torch.Tensor,
    *small: torch.Tensor,
) -> None:
    """Add the number of wrong elements to a counter."""
    a, b, c, d = small
    counter += (large - base[: large.numel()] != number).sum()
    counter += (c != number).sum()
    for tensor in (a, b, d):
        counter += (tensor != number % 100).sum()


class ForeignMemory:
    """Page-locked memory of somebody who writes to it as soon as nobody refers to it any more."""

    def __init__(self, rig: Rig, size: int) -> None:
        self._rig = rig
        self._size = size
        self._blocks: list[np.ndarray[Any, Any]] = []
        self._free: deque[np.ndarray[Any, Any]] = deque()

    def take(self, size: int) -> np.ndarray[Any, Any]:
        """Return ``size`` numbers."""
        try:
            block = self._free.popleft()
        except IndexError:
            # Of whole pages: a page is registered once, and two arrays of numpy may share one.
            block = np.frombuffer(mmap.mmap(-1, self._size), np.uint8)
            self._blocks.append(block)
            self._rig.register(torch.from_numpy(block))
        return np.asarray(Lent(block, self._free)).view(np.int32)[:size]

    def close(self) -> None:
        """Unlock it."""
        self._rig.finish()
        for block in self._blocks:
            self._rig.unregister(torch.from_numpy(block))


class Lent:
    """What every array and tensor of a piece of foreign memory refers to."""

    def __init__(self, block: np.ndarray[Any, Any], free: deque[np.ndarray[Any, Any]]) -> None:
        self.__array_interface__ = dict(block.__array_interface__)
        self._block = block
        self._free = free

    def __del__(self) -> None:
        self._block.fill(SCRIBBLE)
        self._free.append(self._block)


def torture(rig: Rig, plan: Torture) -> Result:
    """Do it.

    Raises:
        AssertionError: a batch is missing, or comes twice, or in the wrong place.
    """
    material = Material(rig, plan)
    pipeline = (
        PipelineBuilder()
        .add_source(range(plan.batches))
        .pipe(material.make, concurrency=3)
        .to_device(rig.late(plan.late), depth=plan.depth, pin=plan.pin)
        .build(name="torture")
    )
    consumer = Consumer(rig, plan, material)
    started = time.perf_counter()
    read = {"for": _read, "async for": _read_async, "async for, own loop": _read_async_own}
    statistics = read[plan.face](pipeline, consumer)
    rig.finish()
    wrong = sum(int(rig.read(counter)) for counter in consumer.counters)
    seconds = time.perf_counter() - started
    if material.foreign:
        material.foreign.close()
    if consumer.seen != plan.batches:
        raise AssertionError(f"{consumer.seen} batches of {plan.batches} came")
    return Result(delivered=consumer.seen, wrong=wrong, seconds=seconds, statistics=statistics)


class Consumer:
    """Takes each batch on another stream, and lets go of it while its kernels wait."""

    def __init__(self, rig: Rig, plan: Torture, material: Material) -> None:
        self._rig = rig
        self._plan = plan
        self._material = material
        self._streams: list[Any] = [rig.new_stream() for _ in range(plan.streams)] or [None]
        self.counters = [rig.send(torch.zeros((), dtype=torch.int64)) for _ in self._streams]
        self._behind: deque[Any] = deque()
        self.seen = 0

    @contextmanager
    def on_next_stream(self) -> Iterator[None]:
        """Make the stream current on which the next batch is taken and used."""
        with self._rig.on(self._streams[self.seen % len(self._streams)]):
            yield

    def use(self, batch: dict[str, Any]) -> None:
        """Queue what is done with a batch, on the current stream."""
        number = self.seen
        if number % 5 == 0:
            self._rig.slow(self._plan.slow)
        counter = self.counters[number % len(self._streams)]
        self._material.check(self._rig, counter, number, batch)
        self._behind.append(self._rig.mark())
        self.seen += 1

    def hold_back(self) -> None:
        """Wait where the device is too far behind; now and then for all of it, as one who prints a loss."""
        most = 0 if self.seen % 7 == 0 else AHEAD
        while len(self._behind) > most:
            self._rig.wait(self._behind.popleft())


def _read(pipeline: Pipeline[Any], consumer: Consumer) -> RunStatistics:
    with pipeline.run_sync() as run:
        batches = iter(run)
        while True:
            with consumer.on_next_stream():
                batch = next(batches, None)
                if batch is None:
                    break
                consumer.use(batch)
                del batch
            consumer.hold_back()
        return run.statistics()


def _read_async(pipeline: Pipeline[Any], consumer: Consumer) -> RunStatistics:
    return asyncio.run(_consume(pipeline.run, consumer))


def _read_async_own(pipeline: Pipeline[Any], consumer: Consumer) -> RunStatistics:
    return asyncio.run(_consume(partial(pipeline.run, loop="own"), consumer))


async def _consume(start: Callable[[], Any], consumer: Consumer) -> RunStatistics:
    async with start() as run:
        batches: AsyncIterator[Any] = aiter(run)
        while True:
            # The current stream belongs to the thread: what else ran on this loop would see it too.
            with consumer.on_next_stream():
                batch = await anext(batches, None)
                if batch is None:
                    break
                consumer.use(batch)
                del batch
            consumer.hold_back()
        statistics: RunStatistics = run.statistics()
        return statistics
