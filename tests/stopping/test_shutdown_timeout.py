"""ShutdownTimeout: contract 13 (names the stage, shows the stack) and 6 (notes, no replacement)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Literal

import pytest
from witness import PATIENCE, entered, our_threads, silence, wait_for_silence, wait_until

from spdl_async import Pipeline, PipelineBuilder, ShutdownTimeout

Loop = Literal["caller", "own"]
LOOPS: list[Loop] = ["caller", "own"]
both_loops = pytest.mark.parametrize("loop", LOOPS)


class Stuck:
    """User code that a stop finds in the middle of something, in every kind of stage."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def deep_inside(self) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE)

    def source(self) -> Iterator[int]:
        yield 0
        self.deep_inside()
        yield 1

    def op(self, item: int) -> int:
        if item:
            self.deep_inside()
        return item

    def generator(self, item: int) -> Generator[int, None, None]:
        yield item
        if item:
            self.deep_inside()

    async def stubborn(self, item: int) -> int:
        end = time.monotonic() + PATIENCE
        while item and not self.opened.is_set() and time.monotonic() < end:
            self.entered.set()
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
        return item

    def accumulate(self, item: int) -> Iterator[int]:
        if item:
            self.deep_inside()
        return iter([item])

    def flush(self) -> Iterator[int]:
        return iter(())


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    """Let everything out at the end, so that a failing test does not hold up the others."""
    made = Stuck()
    yield made
    made.opened.set()
    wait_until(lambda: not our_threads())


def stuck_source(stuck: Stuck) -> Pipeline[int]:
    return PipelineBuilder().add_source(stuck.source, name="culprit").build()


def stuck_op(stuck: Stuck) -> Pipeline[int]:
    return PipelineBuilder().add_source(range(9)).pipe(stuck.op, name="culprit").build()


def stuck_fused(stuck: Stuck) -> Pipeline[int]:
    return (
        PipelineBuilder()
        .add_source(range(9))
        .pipe(lambda x: x, concurrency=2, name="innocent")
        .pipe(stuck.op, concurrency=2, name="culprit")
        .build()
    )


def stuck_filter(stuck: Stuck) -> Pipeline[int]:
    def keep(item: int) -> bool:
        return stuck.op(item) >= 0

    return PipelineBuilder().add_source(range(9)).filter(keep, name="culprit").build()


def stuck_generator(stuck: Stuck) -> Pipeline[int]:
    return PipelineBuilder().add_source(range(9)).pipe(stuck.generator, name="culprit").build()


def stuck_aggregator(stuck: Stuck) -> Pipeline[int]:
    source = PipelineBuilder().add_source(range(9))
    return source.aggregate(lambda: stuck, name="culprit").build()


def stuck_on_the_loop(stuck: Stuck) -> Pipeline[int]:
    return PipelineBuilder().add_source(range(9)).pipe(stuck.stubborn, name="culprit").build()


KINDS: list[Callable[[Stuck], Pipeline[int]]] = [
    stuck_source,
    stuck_op,
    stuck_fused,
    stuck_filter,
    stuck_generator,
    stuck_aggregator,
    stuck_on_the_loop,
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def frame_name(kind: Callable[[Stuck], Pipeline[int]]) -> str:
    return "stubborn" if kind is stuck_on_the_loop else "deep_inside"


@every_kind
@both_loops
async def test_names_the_stage_and_shows_the_stack(
    kind: Callable[[Stuck], Pipeline[int]], loop: Loop, stuck: Stuck
) -> None:
    """Contract 13."""
    with pytest.raises(ShutdownTimeout) as caught:
        async with kind(stuck).run(loop=loop, shutdown_timeout=0.05) as run:
            assert await anext(run) == 0
            await entered(stuck.entered)
    text = str(caught.value)
    assert "culprit" in text
    assert "innocent" not in text
    assert frame_name(kind) in text
    stuck.opened.set()
    await silence()


@every_kind
def test_the_same_in_ordinary_code(kind: Callable[[Stuck], Pipeline[int]], stuck: Stuck) -> None:
    """Contract 13."""
    with (
        pytest.raises(ShutdownTimeout) as caught,
        kind(stuck).run_sync(shutdown_timeout=0.05) as run,
    ):
        assert next(run) == 0
        assert stuck.entered.wait(PATIENCE)
    assert "culprit" in str(caught.value)
    assert frame_name(kind) in str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    stuck.opened.set()
    wait_for_silence()


@both_loops
async def test_is_a_note_on_the_bodys_exception(loop: Loop, stuck: Stuck) -> None:
    """Contract 6: problems of the stop are notes on the body's own exception."""
    mine = ValueError("body")
    with pytest.raises(ValueError, match="body") as caught:
        async with stuck_op(stuck).run(loop=loop, shutdown_timeout=0.05) as run:
            await anext(run)
            await entered(stuck.entered)
            raise mine
    assert caught.value is mine
    assert mine.__context__ is None or isinstance(mine.__context__, ShutdownTimeout)
    (note,) = mine.__notes__
    assert "culprit" in note
    assert "deep_inside" in note
    stuck.opened.set()
    await silence()


def test_is_a_note_in_ordinary_code(stuck: Stuck) -> None:
    """Contract 6."""
    mine = KeyboardInterrupt()
    with (
        pytest.raises(KeyboardInterrupt) as caught,
        stuck_op(stuck).run_sync(shutdown_timeout=0.05) as run,
    ):
        next(run)
        assert stuck.entered.wait(PATIENCE)
        raise mine
    assert caught.value is mine
    (note,) = mine.__notes__
    assert "culprit" in note
    stuck.opened.set()
    wait_for_silence()


@both_loops
async def test_a_cancelled_body_stays_cancelled(loop: Loop, stuck: Stuck) -> None:
    """Contract 6 and 13: the cancellation comes out, not the ShutdownTimeout."""

    async def consume() -> None:
        async with stuck_op(stuck).run(loop=loop, shutdown_timeout=0.05) as run:
            async for _ in run:
                pass

    consumer = asyncio.create_task(consume())
    await entered(stuck.entered)
    consumer.cancel()
    await asyncio.wait([consumer], timeout=PATIENCE)
    assert consumer.cancelled()
    stuck.opened.set()
    await silence()


@both_loops
async def test_zero_seconds_wait_for_nothing(loop: Loop, stuck: Stuck) -> None:
    """Contract 13: what has ended already is no timeout; what runs is one at once."""
    with pytest.raises(ShutdownTimeout):
        async with stuck_op(stuck).run(loop=loop, shutdown_timeout=0) as run:
            await anext(run)
            await entered(stuck.entered)
    stuck.opened.set()
    await silence()


async def test_the_stop_goes_on_after_it(stuck: Stuck) -> None:
    """Contract 13: the run ends when the call returns, its late result goes nowhere."""

    async def source() -> AsyncIterator[int]:
        for number in range(9):
            yield number

    pipeline = PipelineBuilder().add_source(source).pipe(stuck.op, name="culprit").build()
    run = pipeline.run(shutdown_timeout=0.05)
    with pytest.raises(ShutdownTimeout):
        async with run:
            await anext(run)
            await entered(stuck.entered)
    assert our_threads()
    stuck.opened.set()
    await run.aclose()
    assert not our_threads()
    assert run.statistics().delivered == 1
