"""What the tests of copies share: batches, pipelines that copy them, and consumers of each kind.

Nothing here, and in the tests beside it, needs more than torch, numpy, aiofiles and pytest. Without the
plugins that the suite's own configuration asks for, run them, from the root of the repository, as

    python -m pytest -c /dev/null --rootdir . -p no:cacheprovider tests/device
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from spdl_async import Pipeline, PipelineBuilder, RunStatistics
from spdl_async.testing import FakeCall, FakeDevice

Take = Callable[[Any], None]
SIZE = 1 << 12


def batch_of(number: int, size: int = SIZE) -> dict[str, Any]:
    """Return a batch whose tensors are full of its number, modulo 251."""
    value = number % 251
    return {
        "image": np.full((4, size // 4), value, np.uint8),
        "label": torch.full((3,), value),
        "weight": torch.tensor(float(value)),
        "key": f"{number}",
    }


def copying(
    fake: FakeDevice, count: int, make: Callable[[int], Any] = batch_of, **options: Any
) -> PipelineBuilder[Any]:
    """Return a pipeline of so many batches that ends with their copy."""
    return PipelineBuilder().add_source(range(count)).pipe(make).to_device(fake, **options)


class Watch:
    """Launches a kernel on each batch, that reads its first numbers when the device comes to it."""

    def __init__(self, fake: FakeDevice, *fields: str) -> None:
        self.fake = fake
        self.fields = fields or ("image", "label", "weight")
        self.seen: list[list[float]] = []

    def __call__(self, batch: Any) -> None:
        self.tensors(*(batch[field] for field in self.fields))

    def tensors(self, *tensors: Any) -> None:
        """Launch the kernel on tensors."""
        self.fake.launch(self._note, *tensors)

    def _note(self, *tensors: Any) -> None:
        low = [float(tensor.min()) for tensor in tensors]
        high = [float(tensor.max()) for tensor in tensors]
        self.seen.append(low if low == high else [*low, *high, -1.0])

    def numbers(self) -> list[float]:
        """Let the device do all its work; return the number in each batch, -1 where it is torn."""
        self.fake.advance()
        return [values[0] if len(set(values)) == 1 else -1.0 for values in self.seen]


def sync_for(pipeline: Pipeline[Any], take: Take) -> None:
    with pipeline.run_sync() as run:
        for batch in run:
            take(batch)


def plain_for(pipeline: Pipeline[Any], take: Take) -> None:
    for batch in pipeline:
        take(batch)


def inline_for(pipeline: Pipeline[Any], take: Take) -> None:
    with pipeline.run_sync(inline=True) as run:
        for batch in run:
            take(batch)


def callers_loop(pipeline: Pipeline[Any], take: Take) -> None:
    asyncio.run(_async_for(pipeline, take, "caller"))


def own_loop(pipeline: Pipeline[Any], take: Take) -> None:
    asyncio.run(_async_for(pipeline, take, "own"))


async def _async_for(pipeline: Pipeline[Any], take: Take, loop: Any) -> None:
    async with pipeline.run(loop=loop) as run:
        async for batch in run:
            take(batch)


def two_tasks(pipeline: Pipeline[Any], take: Take) -> None:
    async def main() -> None:
        async with pipeline.run(loop="own") as run:

            async def consume() -> None:
                async for batch in run:
                    take(batch)
                    await asyncio.sleep(0)

            await asyncio.gather(consume(), consume())

    asyncio.run(main())


def epochs_sync(pipeline: Pipeline[Any], take: Take) -> None:
    with pipeline.epochs(1) as epochs:
        for epoch in epochs:
            for batch in epoch:
                take(batch)


def epochs_async(pipeline: Pipeline[Any], take: Take) -> None:
    async def main() -> None:
        async with pipeline.epochs(1) as epochs:
            async for epoch in epochs:
                async for batch in epoch:
                    take(batch)

    asyncio.run(main())


CONSUMERS = (
    plain_for, sync_for, inline_for, callers_loop, own_loop, two_tasks, epochs_sync, epochs_async,
)  # fmt: skip
ENGINE_CONSUMERS = tuple(one for one in CONSUMERS if one is not inline_for)


def notes(statistics: RunStatistics, stage: str = "to_device") -> dict[str, Any]:
    """Return what a copy tells about itself."""
    (one,) = [each for each in statistics.stages if each.name == stage]
    return dict(one.notes)


def calls(fake: FakeDevice, *methods: str) -> list[FakeCall]:
    """Return the calls of some methods."""
    return [call for call in fake.calls if call.method in methods]


def threads_of(fake: FakeDevice, *methods: str) -> set[str]:
    """Return the names of the threads in which methods were called."""
    return {call.thread for call in calls(fake, *methods)}


def is_ours(thread: str) -> bool:
    return thread.startswith("spdl_async-")


def values(fake: FakeDevice, tensors: Iterable[torch.Tensor]) -> list[Any]:
    """Read tensors of the device."""
    return [fake.read(tensor).tolist() for tensor in tensors]


def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something holds that another thread brings about."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.001)
