"""Contract for ``PushSource``: back-pressure, ends, and that nobody waits for a reader that is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Self

import pytest

from spdl_async import BuildError, Merge, Pipeline, PipelineBuilder, RunStateError
from spdl_async.sources import PushSource

pytestmark = pytest.mark.timeout(20)


async def ticks(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_items_come_in_the_order_in_which_they_were_put() -> None:
    push: PushSource[int] = PushSource(3)
    pipeline = PipelineBuilder().add_source(push).pipe(lambda x: -x, concurrency=3).build()

    async def feed() -> None:
        async with push:
            for number in range(500):
                await push.put(number)

    feeding = asyncio.create_task(feed())
    assert [x async for x in pipeline] == [-x for x in range(500)]
    await feeding
    assert push.closed


async def test_a_put_waits_for_room() -> None:
    push: PushSource[int] = PushSource(2)
    await push.put(0)
    await push.put(1)
    third = asyncio.create_task(push.put(2))
    await ticks()
    assert not third.done()
    reader = aiter(push)
    assert await anext(reader) == 0
    await third
    push.close()
    assert [x async for x in reader] == [1, 2]


async def test_waiting_puts_are_served_in_their_order_and_a_cancelled_one_adds_nothing() -> None:
    push: PushSource[int] = PushSource(1)
    await push.put(0)
    waiting = [asyncio.create_task(push.put(n)) for n in (1, 2, 3)]
    await ticks()
    waiting[0].cancel()
    await ticks()
    reader = aiter(push)
    assert [await anext(reader) for _ in range(3)] == [0, 2, 3]
    push.close()
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


async def test_a_put_that_is_cancelled_just_as_it_has_room_passes_it_on() -> None:
    push: PushSource[int] = PushSource(1)
    await push.put(0)
    first, second = (asyncio.create_task(push.put(n)) for n in (1, 2))
    await ticks()
    reader = aiter(push)
    assert await anext(reader) == 0  # wakes the first
    first.cancel()
    await second
    push.close()
    assert [x async for x in reader] == [2]


def test_ordinary_threads_put_too() -> None:
    push: PushSource[int] = PushSource(2)
    pipeline = PipelineBuilder().add_source(push).build()

    def feed(start: int) -> None:
        for number in range(start, start + 100):
            push.put_sync(number)

    threads = [threading.Thread(target=feed, args=(start,)) for start in (0, 100, 200)]

    def feed_all() -> None:
        with push:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    feeding = threading.Thread(target=feed_all)
    feeding.start()
    assert sorted(pipeline) == list(range(300))
    feeding.join()


def test_a_put_of_ordinary_code_has_a_timeout() -> None:
    push: PushSource[int] = PushSource(1)
    push.put_sync(1)
    with pytest.raises(TimeoutError, match="no room"):
        push.put_sync(2, timeout=0.01)
    push.close()
    assert list(PipelineBuilder().add_source(push).build()) == [1]


def leave(run: Any) -> None:
    next(iter(run))


@pytest.mark.parametrize("end", ["break", "failure"])
def test_a_run_that_ends_early_lets_nobody_wait(end: str) -> None:
    push: PushSource[int] = PushSource(1)

    def op(number: int) -> int:
        if end == "failure":
            raise KeyError(number)
        return number

    errors: list[BaseException] = []

    def feed() -> None:
        try:
            while True:
                push.put_sync(1)
        except RunStateError as error:
            errors.append(error)

    feeding = threading.Thread(target=feed)
    feeding.start()
    pipeline = PipelineBuilder().add_source(push).pipe(op).build()
    if end == "break":
        for _ in pipeline:
            break
    else:
        with pytest.raises(KeyError):
            list(pipeline)
    feeding.join()
    assert "has ended" in str(errors[0])
    with pytest.raises(RunStateError, match="has ended"):
        push.put_sync(1)


async def test_a_run_that_is_left_while_it_waits_for_items_lets_nobody_wait() -> None:
    push: PushSource[int] = PushSource(1)
    async with PipelineBuilder().add_source(push).build().run():
        await ticks()
    with pytest.raises(RunStateError):
        await push.put(1)
        await push.put(2)


async def test_closing_with_an_error_fails_the_run_behind_what_was_put() -> None:
    push: PushSource[int] = PushSource(4)
    pipeline = PipelineBuilder().add_source(push).build()
    await push.put(1)
    push.close(LookupError("no more shards"))
    push.close()
    seen = []
    with pytest.raises(LookupError, match="no more shards"):
        async for item in pipeline:
            seen.append(item)
    assert seen == [1]


async def test_an_exception_in_the_block_of_the_source_fails_the_run() -> None:
    push: PushSource[int] = PushSource(4)
    with pytest.raises(LookupError):
        async with push:
            raise LookupError("listing failed")
    with pytest.raises(LookupError, match="listing failed"):
        _ = [x async for x in PipelineBuilder().add_source(push).build()]


async def test_after_close_a_put_is_an_error() -> None:
    push: PushSource[int] = PushSource()
    push.close()
    with pytest.raises(RunStateError, match="closed"):
        await push.put(1)
    assert [x async for x in PipelineBuilder().add_source(push).build()] == []


async def test_it_is_read_once() -> None:
    push: PushSource[int] = PushSource()
    push.close()
    pipeline = PipelineBuilder().add_source(push).build()
    assert [x async for x in pipeline] == []
    with pytest.raises(RunStateError, match="one pass"):
        _ = [x async for x in pipeline]


@pytest.mark.parametrize("size", [0, -1, True, 1.5])
def test_sizes_that_make_no_sense(size: Any) -> None:
    with pytest.raises(BuildError, match="buffer_size"):
        PushSource(size)


def test_f9_sources_are_put_into_a_running_pipeline() -> None:
    push: PushSource[Callable[[], Iterator[int]]] = PushSource(1)

    def shard(number: int) -> Callable[[], Iterator[int]]:
        return lambda: iter(range(number * 10, number * 10 + 3))

    pipeline = PipelineBuilder().add_source(push).expand(lambda make: make(), concurrency=2).build()
    results: list[int] = []
    with pipeline.run_sync() as run:
        push.put_sync(shard(1))
        results.append(next(iter(run)))
        push.put_sync(shard(2))
        push.close()
        results += list(run)
    assert results == [10, 11, 12, 20, 21, 22]


class FailsToOpen:
    """An op whose lifespan fails, so that the source is never opened."""

    async def __aenter__(self) -> Self:
        raise OSError("no session")

    async def __aexit__(self, *_: object) -> None:
        """Never called."""

    async def __call__(self, item: int) -> int:
        return item


async def leave_at_once(pipeline: Pipeline[int]) -> None:
    async with pipeline.run(loop="caller"):
        pass


async def leave_inline(pipeline: Pipeline[int]) -> None:
    with pipeline.run_sync(inline=True):
        pass


async def read_all(pipeline: Pipeline[int]) -> None:
    with suppress(OSError):
        async with pipeline.run(loop="caller") as run:
            async for _ in run:
                pass


Source = PipelineBuilder[int]


@pytest.mark.parametrize(
    ("chain", "use"),
    [
        (lambda source: source.pipe(lambda x: x), leave_at_once),
        (lambda source: source.pipe(lambda x: x), leave_inline),
        (lambda source: source.take(0), read_all),
        (lambda source: source.pipe(FailsToOpen()), read_all),
    ],
    ids=["left at once", "left inline", "nothing wanted", "lifespan failed"],
)
async def test_a_run_that_never_began_to_read_lets_nobody_wait(
    chain: Callable[[Source], Source], use: Callable[[Pipeline[int]], Awaitable[None]]
) -> None:
    push: PushSource[int] = PushSource(1)
    await push.put(0)
    waiting = asyncio.create_task(push.put(1))
    await ticks()
    pipeline = chain(PipelineBuilder().add_source(push)).build()
    await use(pipeline)
    with pytest.raises(RunStateError, match="nothing will read"):
        await asyncio.wait_for(waiting, 5)
    assert push.closed
    with pytest.raises(RunStateError, match="read by one pass"):
        async for _ in PipelineBuilder().add_source(push).build():
            pass


async def test_a_run_that_ends_unread_leaves_the_reader_of_another_run_alone() -> None:
    push: PushSource[int] = PushSource(1)
    pipeline = PipelineBuilder().add_source(push).build()
    async with pipeline.run(loop="caller") as run:
        await push.put(0)
        assert await anext(run) == 0
        async with pipeline.run(loop="caller"):
            pass
        await push.put(1)
        assert await anext(run) == 1


async def test_a_put_whose_coroutine_is_closed_passes_its_room_on() -> None:
    push: PushSource[int] = PushSource(1)
    await push.put(0)
    first = push.put(1)
    first.send(None)
    second = asyncio.create_task(push.put(2))
    await ticks()
    reader = aiter(push)
    first.close()
    assert await anext(reader) == 0
    await asyncio.wait_for(second, 5)
    push.close()
    assert [x async for x in reader] == [2]


@pytest.mark.parametrize("inline", [False, True])
def test_a_branch_that_is_never_read_lets_nobody_wait(inline: bool) -> None:
    read: PushSource[int] = PushSource(1)
    unread: PushSource[int] = PushSource(1)
    inner = PipelineBuilder().add_source(Merge(PipelineBuilder().add_source(unread)))
    source = Merge(PipelineBuilder().add_source(read), inner, weights=[1, 0])
    failures: list[BaseException] = []

    def feed() -> None:  # the end of one comes only behind what is put into the other
        try:
            read.put_sync(1)
            for number in range(3):
                unread.put_sync(number)
        except RunStateError as error:
            failures.append(error)
        read.close()

    feeding = threading.Thread(target=feed)
    feeding.start()
    with PipelineBuilder().add_source(source).build().run_sync(inline=inline) as run:
        assert list(run) == [1]
    feeding.join()
    (failure,) = failures
    assert "never reads it (as a branch with a weight of 0)" in str(failure)
    assert unread.closed


def test_a_putter_whose_loop_is_stopped_takes_nobodys_room() -> None:
    push: PushSource[int] = PushSource(1)
    push.put_sync(0)
    stopped = asyncio.new_event_loop()
    first = stopped.create_task(push.put(1))
    stopped.run_until_complete(ticks())

    async def second() -> None:
        putting = asyncio.create_task(push.put(2))
        await ticks()
        reader = aiter(push)
        assert await anext(reader) == 0  # wakes the first, which cannot go on
        await asyncio.wait_for(putting, 5)
        assert await anext(reader) == 2
        await asyncio.to_thread(stopped.run_until_complete, first)  # nothing was lost
        assert await anext(reader) == 1

    try:
        asyncio.run(second())
    finally:
        stopped.close()
