"""The pause between two epochs: from the last batch of one, when it is used, to the first of the next."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Literal

from benchmarks._peers import check
from spdl_async import Pipeline, PipelineBuilder

BATCH = 8
BATCHES = 6
MAKE = 0.004  # an op's time: with four threads a batch takes 8 ms
STEP = 0.012  # the consumer's: the pipeline is the faster side


def make(item: int) -> int:
    """Take some time without the GIL, as reading and decoding a picture do."""
    time.sleep(MAKE)
    return item


def pipeline() -> Pipeline[list[int]]:
    """Build a chain that keeps ahead of its consumer."""
    source = range(BATCH * BATCHES)
    return PipelineBuilder().add_source(source).pipe(make, concurrency=4).aggregate(BATCH).build()


class Gaps:
    """Measures how long the first batch of each epoch but the very first is waited for."""

    def __init__(self) -> None:
        self.ended = 0.0
        self.at = 0
        self.found: list[float] = []

    def came(self) -> None:
        """Note a batch."""
        if self.at % BATCHES == 0 and self.at:
            self.found.append((time.perf_counter() - self.ended) * 1e3)
        self.at += 1

    def used(self) -> None:
        """Note that a batch was used."""
        self.ended = time.perf_counter()

    def median(self, epochs: int) -> float:
        """Give the median in milliseconds."""
        check(self.at, epochs * BATCHES)
        return statistics.median(self.found)


def separate(epochs: int) -> float:
    """Loop over the pipeline again and again."""
    gaps, made = Gaps(), pipeline()
    for _ in range(epochs):
        for _batch in made:
            gaps.came()
            time.sleep(STEP)
            gaps.used()
    return gaps.median(epochs)


def together(epochs: int, *, overlap: bool) -> float:
    """Use `epochs()` in ordinary code."""
    gaps = Gaps()
    with pipeline().epochs(epochs, overlap=overlap) as runs:
        for run in runs:
            for _batch in run:
                gaps.came()
                time.sleep(STEP)
                gaps.used()
    return gaps.median(epochs)


async def together_async(epochs: int, loop: Literal["caller", "own"]) -> float:
    """Use `epochs()` in async code; on a loop of ours the step blocks the caller's."""
    gaps = Gaps()
    async with pipeline().epochs(epochs, loop=loop) as runs:
        async for run in runs:
            async for _batch in run:
                gaps.came()
                if loop == "own":
                    time.sleep(STEP)  # noqa: ASYNC251 -- a training step that blocks the loop
                else:
                    await asyncio.sleep(STEP)
                gaps.used()
    return gaps.median(epochs)
