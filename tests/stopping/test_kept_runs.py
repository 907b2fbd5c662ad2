"""A run that is kept for its statistics keeps nothing of its data alive."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
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


def break_off(pipeline: Any) -> None:
    for _, _ in zip(range(10), pipeline, strict=False):
        pass


def break_off_later(pipeline: Any) -> None:
    async def consume() -> None:
        left = 10
        async for _ in pipeline:
            left -= 1
            if not left:
                break

    asyncio.run(consume())


@pytest.mark.parametrize("leave", [break_off, break_off_later], ids=lambda leave: leave.__name__)
def test_a_short_form_that_is_left_keeps_nothing_until_the_collector_comes(
    leave: Callable[[Any], None],
) -> None:
    """Contract 14: what a loop leaves behind may be large, as batches on a device, and is gone at once."""
    gc.collect()
    before = Picture.alive
    gc.disable()
    try:
        for _ in range(30):  # what a step had taken when it was stopped differs
            builder = (
                PipelineBuilder().add_source(range(60)).pipe(Picture).pipe(again, concurrency=4)
            )
            leave(builder.pipe(later, concurrency=2).pipe(again, fuse=False).build())
            for thread in threading.enumerate():
                if thread.name.startswith("spdl_async-"):
                    thread.join(10)
            assert Picture.alive == before
    finally:
        gc.enable()


class Broken(Exception):  # noqa: N818 -- a signal
    """Raised by an op; not built in, so that it can be referred to weakly."""


def breaks_down(picture: Picture) -> Picture:
    if picture.number == 3:
        raise Broken
    return picture


@pytest.mark.parametrize("below", [0, 1])
def test_a_failure_is_let_go_with_the_run(below: int) -> None:
    """Its traceback holds the frames of the op, with the item in them."""
    builder = PipelineBuilder().add_source(range(10)).pipe(Picture).pipe(breaks_down, fuse=False)
    pipeline = (builder.pipe(later) if below else builder).build()
    gc.collect()
    gc.disable()
    try:
        failure: weakref.ref[Broken] | None = None
        try:
            with pipeline.run_sync() as run:
                for _ in run:
                    pass
        except Broken as error:
            failure = weakref.ref(error)
        assert failure is not None
        assert failure() is None
    finally:
        gc.enable()
