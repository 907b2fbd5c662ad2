"""Stops and failures at awkward moments: B1, B3, L3, L5; contract 3, 13, 15, 17."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
from witness import PATIENCE, Witness, entered, our_threads, silence, ticks

from spdl_async import PipelineBuilder, cancelled

Loop = Literal["caller", "own"]
LOOPS: list[Loop] = ["caller", "own"]
both_loops = pytest.mark.parametrize("loop", LOOPS)

# B1


@pytest.mark.parametrize("failing", range(4))
@pytest.mark.parametrize("sink", [1, 4])
@both_loops
async def test_a_failure_while_everything_above_is_full(
    failing: int, sink: int, loop: Loop
) -> None:
    """B1: in every position, the consumer gets the exception, and all above is stopped."""
    mine = ValueError("stage")

    def stage(number: int) -> Callable[[int], int]:
        def op(item: int) -> int:
            if number == failing and item == 10:
                raise mine
            return item

        return op

    builder = PipelineBuilder().add_source(range(100))
    for number in range(4):
        builder = builder.pipe(stage(number), concurrency=4, name=f"stage {number}", fuse=False)
    got: list[int] = []
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ValueError) as caught:
            async with builder.add_sink(sink).build().run(loop=loop) as run:
                async for item in run:
                    got.append(item)
    assert caught.value is mine
    assert got == list(range(10))
    assert not our_threads()


@pytest.mark.parametrize("failing", range(3))
@both_loops
async def test_a_failure_that_nobody_takes(failing: int, loop: Loop) -> None:
    """B1: the sink is full and there is no consumer; leaving is immediate and lists the failure."""
    failed = threading.Event()

    def stage(number: int) -> Callable[[int], int]:
        def op(item: int) -> int:
            if number == failing and item == 3:
                failed.set()
                raise ValueError(item)
            return item

        return op

    builder = PipelineBuilder().add_source(range(100))
    for number in range(3):
        builder = builder.pipe(stage(number), concurrency=2, fuse=False)
    async with asyncio.timeout(PATIENCE):
        async with builder.add_sink(1).build().run(loop=loop) as run:
            await entered(failed)
    assert [record.index for record in run.failures] == [3]
    assert not our_threads()


# B3


def collate(batch: list[int]) -> tuple[int, ...]:
    return tuple(batch)


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_blocking_source_beside_one_pool_thread(face: str) -> None:
    """B3: a source that blocks in queue.Queue.get() takes no thread of the pool."""
    numbers: queue.Queue[int | None] = queue.Queue()

    def source() -> Iterator[int]:
        while (number := numbers.get()) is not None:
            yield number

    pipeline = (
        PipelineBuilder()
        .add_source(source)
        .pipe(lambda x: x + 1)
        .pipe(lambda x: x - 1)
        .aggregate(4)
        .pipe(collate)
        .build(num_threads=1)
    )

    def expect(batch: tuple[int, ...], begin: int) -> None:
        assert batch == tuple(range(begin, begin + 4))

    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            async with pipeline.run() as run:
                for begin in range(0, 40, 4):
                    feed(begin)
                    expect(await anext(run), begin)
                numbers.put(None)
                with pytest.raises(StopAsyncIteration):
                    await anext(run)

    def feed(begin: int) -> None:
        for number in range(begin, begin + 4):
            numbers.put(number)

    if face == "async":
        asyncio.run(main())
        return
    with pipeline.run_sync() as run:
        for begin in range(0, 40, 4):
            feed(begin)
            expect(next(run), begin)
        numbers.put(None)
        assert list(run) == []


@pytest.mark.parametrize("concurrency", [1, 2])
def test_as_many_threads_as_concurrency_fifty_times(concurrency: int) -> None:
    """B3: at the boundary nothing is flaky."""
    pipeline = (
        PipelineBuilder()
        .add_source(range(200))
        .pipe(lambda x: x + 1, concurrency=concurrency)
        .pipe(lambda x: x - 1, concurrency=concurrency, fuse=False)
        .aggregate(32)
        .pipe(collate, concurrency=concurrency)
        .build(num_threads=3 * concurrency)
    )
    for _ in range(50):
        assert [number for batch in pipeline for number in batch] == list(range(200))


# L3

RUN: contextvars.ContextVar[int] = contextvars.ContextVar("RUN")


@both_loops
async def test_slots_stay_taken_until_calls_return(loop: Loop) -> None:
    """L3, contract 3: a cancelled consumer frees no slot of its run; the next one has its own."""
    limit = 4
    witnesses = [Witness() for _ in range(6)]
    full = [threading.Event() for _ in range(6)]
    opened = threading.Event()

    def op(item: int) -> int:
        witness = witnesses[RUN.get()]
        with witness.call():
            if witness.running == limit:
                full[RUN.get()].set()
            assert opened.wait(PATIENCE)
        return item

    async def consume() -> None:
        async with pipeline.run(loop=loop) as run:
            async for _ in run:
                raise AssertionError("a late result was delivered")

    pipeline = PipelineBuilder().add_source(range(1000)).pipe(op, concurrency=limit).build()
    tasks = []
    for number in range(6):
        RUN.set(number)
        tasks.append(asyncio.create_task(consume()))
        await entered(full[number])
        tasks[-1].cancel()  # and at once start the next one
        await ticks(3)
    assert [witness.running for witness in witnesses] == [limit] * 6
    opened.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    for witness in witnesses:
        assert witness.peak == limit
        assert witness.began == limit, "a stopped run began another call"
    assert not our_threads()


@both_loops
async def test_running_ops_see_that_they_are_cancelled(loop: Loop) -> None:
    """L3: cancelled() turns true in ops that run when their run stops, and only there."""
    inside = threading.Event()
    seen: list[bool] = []

    def op(item: int) -> int:
        seen.append(cancelled())
        inside.set()
        end = time.monotonic() + PATIENCE
        while not cancelled() and time.monotonic() < end:
            time.sleep(0.001)
        seen.append(cancelled())
        return item

    async with PipelineBuilder().add_source(range(9)).pipe(op).build().run(loop=loop):
        await entered(inside)
    assert seen == [False, True]


@both_loops
async def test_late_exceptions_disturb_nobody(loop: Loop) -> None:
    """L3: an op that raises after the stop makes no noise (the fixture listens)."""
    inside = threading.Event()

    def op(item: int) -> int:
        inside.set()
        while not cancelled():
            time.sleep(0.001)
        raise ValueError("too late")

    async with PipelineBuilder().add_source(range(9)).pipe(op).build().run(loop=loop) as run:
        await entered(inside)
    assert run.statistics().delivered == 0


# L5


@pytest.mark.parametrize("offset", range(21))
@both_loops
async def test_cancel_around_an_arrival(offset: int, loop: Loop) -> None:
    """L5, contract 17: the cancellation is never swallowed, the item never lost."""
    gate = threading.Event()

    def op(item: int) -> int:
        assert gate.wait(PATIENCE)
        return item

    got: list[int] = []
    pipeline = PipelineBuilder().add_source(range(3)).pipe(op).build()
    async with pipeline.run(loop=loop) as run:

        async def consume() -> None:
            async for item in run:
                got.append(item)
            await asyncio.sleep(60)  # a swallowed cancellation would stay here

        task = asyncio.create_task(consume())
        await ticks(3)
        gate.set()
        await ticks(offset)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=PATIENCE)
        assert done
        assert task.cancelled()
        got.extend([item async for item in run])
    assert got == [0, 1, 2]


@pytest.mark.parametrize("offset", range(21))
@both_loops
async def test_cancel_a_whole_run_at_each_tick(offset: int, loop: Loop) -> None:
    """L5: from before it is entered to behind its end."""

    async def consume() -> None:
        async with PipelineBuilder().add_source(range(3)).pipe(abs).build().run(loop=loop) as run:
            async for _ in run:
                pass
        await asyncio.sleep(60)

    task = asyncio.create_task(consume())
    await ticks(offset)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=PATIENCE)
    assert done
    assert task.cancelled()
    await silence()
