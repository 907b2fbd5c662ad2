"""Leaving a run: contract 13 (returns when nothing runs any more), 17 (waiting anext), 19."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import pytest
from witness import Gate, entered, other_tasks, our_threads, ticks, until, wait_until

from spdl_async import Pipeline, PipelineBuilder, PipelineRun, RunStateError

Loop = Literal["caller", "own"]
LOOPS: list[Loop] = ["caller", "own"]
both_loops = pytest.mark.parametrize("loop", LOOPS)


def gated(gate: Gate, before: int = 1) -> Pipeline[int]:
    """Return an endless pipeline that lets ``before`` items pass and stays in the next."""

    def op(item: int) -> int:
        return item if item < before else gate.pass_through(item)

    return PipelineBuilder().add_source(range(10**9)).pipe(op).build()


def assert_nothing_is_left() -> None:
    assert not other_tasks()
    assert not our_threads()


@both_loops
async def test_leaving_waits_for_the_call_that_runs(loop: Loop) -> None:
    """Contract 13, normally."""
    gate = Gate()
    async with gated(gate).run(loop=loop) as run:
        assert await anext(run) == 0
        await entered(gate.entered)
        leaving = asyncio.create_task(run.aclose())
        await ticks(50)
        assert not leaving.done()
        assert gate.witness.running == 1
        gate.opened.set()
        await leaving
        assert gate.witness.running == 0
    assert_nothing_is_left()
    assert gate.witness.began == 1, "a stopped stage began another call"


@both_loops
async def test_leaving_by_exception(loop: Loop) -> None:
    """Contract 13 and 6: the body's own exception comes out, as it is."""
    gate = Gate()
    mine = ValueError("the training step failed")
    with pytest.raises(ValueError, match="training step") as caught:
        async with gated(gate).run(loop=loop) as run:
            await anext(run)
            await entered(gate.entered)
            asyncio.get_running_loop().call_later(0.01, gate.opened.set)
            raise mine
    assert caught.value is mine
    assert not hasattr(mine, "__notes__")
    assert gate.witness.running == 0
    assert_nothing_is_left()


@both_loops
async def test_leaving_by_cancellation(loop: Loop) -> None:
    """Contract 13: a cancelled consumer ends when the calls of its run have ended."""
    gate = Gate()

    async def consume() -> None:
        async with gated(gate).run(loop=loop) as run:
            async for _ in run:
                pass

    consumer = asyncio.create_task(consume())
    await entered(gate.entered)
    consumer.cancel()
    await ticks(50)
    assert not consumer.done(), "it left while a call was running"
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert gate.witness.running == 0
    assert_nothing_is_left()


@both_loops
async def test_leaving_cancels_what_waits_on_the_loop(loop: Loop) -> None:
    """Contract 13: async ops and sources are cancelled, and their clean-up is waited for."""
    cleaned: list[str] = []
    begun: list[int] = []

    async def source() -> AsyncIterator[int]:
        try:
            for number in range(10**6):
                await asyncio.sleep(0)
                yield number
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("source")

    async def op(item: int) -> int:
        if item == 0:
            return item
        begun.append(item)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("op")
        return item

    pipeline = PipelineBuilder().add_source(source).pipe(op, concurrency=4).build()
    async with pipeline.run(loop=loop) as run:
        assert await anext(run) == 0
        await until(lambda: bool(begun))
    assert cleaned.count("source") == 1
    assert 1 <= cleaned.count("op") == len(begun) <= 4
    left = list(cleaned)
    assert_nothing_is_left()
    await ticks(10)
    assert cleaned == left


@both_loops
async def test_leaving_a_run_nobody_takes_from(loop: Loop) -> None:
    """Contract 15: a full sink and full channels hold up no stop."""
    pipeline = (
        PipelineBuilder()
        .add_source(range(10**9))
        .pipe(lambda x: x, concurrency=4)
        .aggregate(2)
        .disaggregate()
        .pipe(lambda x: x, concurrency=3, output_order="completion")
        .add_sink(1)
        .build()
    )
    async with pipeline.run(loop=loop) as run:
        await until(lambda: run.statistics().in_flight > 0)
    assert_nothing_is_left()
    async with pipeline.run(loop=loop):
        pass
    assert_nothing_is_left()


@both_loops
async def test_aclose_twice_and_by_several_tasks(loop: Loop) -> None:
    """Contract 13: each aclose() returns at the end, and later ones return at once."""
    gate = Gate()
    run = gated(gate).run(loop=loop)
    async with run:
        await anext(run)
        await entered(gate.entered)
        closing = [asyncio.create_task(run.aclose()) for _ in range(5)]
        await ticks(20)
        assert not any(task.done() for task in closing)
        gate.opened.set()
        await asyncio.gather(*closing)
        await run.aclose()
        assert_nothing_is_left()
    await run.aclose()


@both_loops
async def test_aclose_after_the_end_by_itself(loop: Loop) -> None:
    run = PipelineBuilder().add_source(range(3)).pipe(str).build().run(loop=loop)
    async with run:
        assert [value async for value in run] == ["0", "1", "2"]
        await run.aclose()
        await run.aclose()
    assert_nothing_is_left()
    assert run.statistics().delivered == 3
    assert run.failures == ()


@both_loops
async def test_aclose_while_anext_waits(loop: Loop) -> None:
    """Contract 17: the one that waits gets RunStateError, never a clean end."""
    gate = Gate()
    async with gated(gate).run(loop=loop) as run:
        await anext(run)
        await entered(gate.entered)
        waiting = [asyncio.ensure_future(anext(run)) for _ in range(3)]
        await ticks(5)
        closing = asyncio.create_task(run.aclose())
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [RunStateError] * 3
        assert not closing.done(), "those who wait hear of it before the calls have ended"
        gate.opened.set()
        await closing


def test_close_while_next_waits() -> None:
    """Contract 17 for ordinary code: threads that wait in next()."""
    gate = Gate()
    outcomes: list[object] = []
    with gated(gate).run_sync() as run:

        def take() -> None:
            try:
                outcomes.append(next(run))
            except BaseException as error:
                outcomes.append(type(error))

        assert next(run) == 0
        assert gate.entered.wait(20)
        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        closer = threading.Thread(target=run.close)
        closer.start()
        for thread in threads:
            thread.join(20)
        assert outcomes == [RunStateError] * 2
        assert closer.is_alive()
        gate.opened.set()
        closer.join(20)
        assert not closer.is_alive()
    assert not our_threads()


@both_loops
async def test_second_cancellation_ends_the_waiting(loop: Loop) -> None:
    """Contract 13: it ends the waiting at once, though the call still runs."""
    gate = Gate()

    async def consume() -> None:
        async with gated(gate).run(loop=loop) as run:
            async for _ in run:
                pass

    consumer = asyncio.create_task(consume())
    await entered(gate.entered)
    consumer.cancel()
    await ticks(50)
    assert not consumer.done()
    consumer.cancel()
    done, _ = await asyncio.wait([consumer], timeout=20)
    assert done
    assert consumer.cancelled()
    assert gate.witness.running == 1, "the call was still running, and nobody waited for it"
    gate.opened.set()
    await until(lambda: not our_threads())


Enter = Callable[[Pipeline[int], Loop], Any]
BLOCKS: dict[str, Enter] = {
    "run": lambda pipeline, loop: pipeline.run(loop=loop),
    "epochs": lambda pipeline, loop: pipeline.epochs(3, loop=loop),
}


@both_loops
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("way", ["normally", "by an exception"])
async def test_one_cancellation_while_the_block_is_left_waits(
    way: str, block: str, loop: Loop
) -> None:
    """Contract 13: a block that was left otherwise than by a cancellation waits through the first."""
    for cancellations in (1, 2):
        gate = Gate()
        leaving = asyncio.Event()

        async def consume(gate: Gate = gate, leaving: asyncio.Event = leaving) -> None:
            async with BLOCKS[block](gated(gate), loop) as inside:
                iterator = aiter(inside)
                first = await anext(iterator)  # a run of epochs that is dropped ends
                assert first is not None
                await entered(gate.entered)
                leaving.set()
                if way == "by an exception":
                    raise LookupError

        consumer = asyncio.create_task(consume())
        await until(leaving.is_set)
        consumer.cancel()
        await ticks(50)
        assert not consumer.done(), "it left while a call was running"
        if cancellations == 2:
            consumer.cancel()
            await asyncio.wait([consumer], timeout=20)
            assert gate.witness.running == 1, "it waited for the call"
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        await until(lambda: not our_threads())
    assert_nothing_is_left()


@both_loops
async def test_a_cancelled_leaving_that_takes_too_long_stays_cancelled(loop: Loop) -> None:
    """Contract 6 and 13: what holds up the stop is a note on the cancellation."""
    gate = Gate()
    leaving = asyncio.Event()

    async def consume() -> None:
        async with gated(gate).run(loop=loop, shutdown_timeout=0.05) as run:
            await anext(run)
            await entered(gate.entered)
            leaving.set()

    consumer = asyncio.create_task(consume())
    await until(leaving.is_set)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await consumer
    assert "did not stop within 0.05 s" in caught.value.__notes__[0]
    gate.opened.set()
    await until(lambda: not our_threads())


@both_loops
async def test_aclose_after_a_cancelled_aclose_waits_again(loop: Loop) -> None:
    """Contract 13: a later aclose() does not claim that all has ended while a call runs."""
    gate = Gate()
    run = gated(gate).run(loop=loop)
    await run.__aenter__()
    await anext(run)
    await entered(gate.entered)
    first = asyncio.create_task(run.aclose())
    await ticks(10)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(run.aclose())
    await ticks(50)
    assert not second.done()
    gate.opened.set()
    await second
    assert gate.witness.running == 0
    assert_nothing_is_left()


async def test_misuse_is_told() -> None:
    """Contract 19: not entered (both forms are shown), twice, after close."""
    pipeline = PipelineBuilder().add_source(range(3)).build()
    run = pipeline.run()
    with pytest.raises(RunStateError, match=r"(?s)async with .*async for .* in pipeline"):
        async for _ in run:
            pass
    with pytest.raises(RunStateError, match="not entered"):
        await anext(run)
    async with run:
        assert await anext(run) == 0
        with pytest.raises(RunStateError, match="entered"):
            await run.__aenter__()
        assert await anext(run) == 1
    with pytest.raises(RunStateError, match="closed"):
        await anext(run)
    with pytest.raises(RunStateError):
        await run.__aenter__()


def test_misuse_is_told_in_ordinary_code() -> None:
    """Contract 19 for the other face."""
    pipeline = PipelineBuilder().add_source(range(3)).build()
    run = pipeline.run_sync()
    with pytest.raises(RunStateError, match=r"(?s)with .*for .* in pipeline"):
        iter(run)
    with pytest.raises(RunStateError, match="not entered"):
        next(run)
    with run:
        assert next(run) == 0
        with pytest.raises(RunStateError, match="entered"):
            run.__enter__()
        assert next(run) == 1
    with pytest.raises(RunStateError, match="closed"):
        next(run)
    with pytest.raises(RunStateError):
        run.__enter__()


async def test_aclose_of_a_run_that_was_not_entered() -> None:
    """Contract 19: nothing to stop, and nothing can be started afterwards."""
    calls: list[int] = []

    def source() -> Iterator[int]:
        calls.append(1)
        yield 1

    run: PipelineRun[int] = PipelineBuilder().add_source(source).build().run()
    await run.aclose()
    with pytest.raises(RunStateError):
        await run.__aenter__()
    assert not calls


@pytest.mark.parametrize("inline", [False, True])
def test_leaving_in_ordinary_code(inline: bool) -> None:
    """Contract 13 for the other face: normally and by exception."""
    ended = threading.Event()

    def source() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            ended.set()

    pipeline = PipelineBuilder().add_source(source).pipe(lambda x: x, concurrency=2).build()
    with pipeline.run_sync(inline=inline) as run:
        assert next(run) == 0
    assert ended.is_set()
    assert not our_threads()
    ended.clear()
    mine = KeyError("body")
    with pytest.raises(KeyError) as caught, pipeline.run_sync(inline=inline) as run:
        assert next(run) == 0
        raise mine
    assert caught.value is mine
    assert ended.is_set()
    wait_until(lambda: not our_threads())
