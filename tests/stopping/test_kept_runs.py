"""A run that is kept for its statistics keeps nothing of its data alive."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spdl_async import Merge, PipelineBuilder, Zip

pytestmark = pytest.mark.timeout(30)


class Picture:
    """Counts how many of its kind are alive."""

    alive = 0
    nbytes = 100

    def __init__(self, number: int) -> None:
        self.number = number
        Picture.alive += 1

    def __del__(self) -> None:
        Picture.alive -= 1


def again(picture: Picture) -> Picture:
    return Picture(picture.number)


async def later(picture: Picture) -> Picture:
    await asyncio.sleep(0)
    return Picture(picture.number)


def each(picture: Picture) -> Iterator[Picture]:
    yield Picture(picture.number)


def parity(picture: Picture) -> int:
    return picture.number % 2


Chain = PipelineBuilder[Any]
CHAINS: dict[str, Callable[[Chain], Chain]] = {
    "sync": lambda b: b.pipe(again),
    "two": lambda b: b.pipe(again, concurrency=2).pipe(again, concurrency=3),
    "async": lambda b: b.pipe(later, concurrency=3),
    "generator": lambda b: b.pipe(each),
    "timed": lambda b: b.pipe(again, timeout=60),
    "batches": lambda b: b.pipe(again).aggregate(7),
    "flattened": lambda b: b.aggregate(5).disaggregate(),
    "shuffled": lambda b: b.shuffle(50),
    "routed": lambda b: b.route(parity, lambda q: q.pipe(again), lambda q: q.pipe(later)),
    "spread": lambda b: b.route(parity, lambda q: q.pipe(each), lambda q: q.pipe(later)),
    "merged": lambda b: PipelineBuilder().add_source(Merge(b, b)),
    "joined": lambda b: PipelineBuilder().add_source(Zip(b, b.pipe(later))),
}


@pytest.mark.parametrize("max_bytes", [None, 20_000])
@pytest.mark.parametrize("kind", CHAINS)
def test_a_run_that_was_left_early_holds_no_item(kind: str, max_bytes: int | None) -> None:
    made = PipelineBuilder().add_source(range(3_000)).pipe(Picture)
    pipeline = CHAINS[kind](made).build(max_bytes=max_bytes)
    gc.collect()
    Picture.alive = 0
    with pipeline.run_sync() as run:
        for number, _ in enumerate(run):
            if number == 100:
                break
        del _
    gc.collect()
    assert run.statistics().delivered == 101
    assert Picture.alive == 0
    held = run.statistics().bytes
    assert held is None or (held.held, held.in_sink) == (0, 0)
    assert not any(stage.bytes_held for stage in run.statistics().stages)
