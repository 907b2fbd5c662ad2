"""User generators are closed once and where they ran: contract 13, L1, A1; C2 for closing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Literal

import pytest
from witness import our_threads, silence, ticks, until, wait_until

from spdl_async import Pipeline, PipelineBuilder, PipelineRun
from spdl_async._runtime.live import threads_at_work

Loop = Literal["caller", "own"]
LOOPS: list[Loop] = ["caller", "own"]
both_loops = pytest.mark.parametrize("loop", LOOPS)
FAR = 10**9


class Book:
    """Writes down where generators began, and where and how often they were closed."""

    def __init__(self) -> None:
        self.loop_threads: set[int] = set()
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.strangers: list[str] = []
        self.yielded = 0

    def generator(self, item: int = 0) -> Generator[int, None, None]:
        """Yield without an end, in threads."""
        self.opened.append(f"sync {item}")
        try:
            for number in range(FAR):
                self.yielded += 1
                yield number
        finally:
            self.closed.append(f"sync {item}")
            if threading.get_ident() in self.loop_threads:
                self.strangers.append(f"sync {item} was closed on a loop's thread")

    async def agenerator(self, item: int = 0) -> AsyncGenerator[int, None]:
        """Yield without an end, on the loop, in one task."""
        self.loop_threads.add(threading.get_ident())
        self.opened.append(f"async {item}")
        mine = asyncio.current_task()
        try:
            for number in range(FAR):
                await asyncio.sleep(0)
                self.yielded += 1
                yield number
        finally:
            await asyncio.sleep(0)  # closing may take turns of the loop
            self.closed.append(f"async {item}")
            if asyncio.current_task() is not mine:
                self.strangers.append(f"async {item} was closed by another task")

    async def mark_loop(self, item: int) -> int:
        """Remember the thread of the loop, as an async op."""
        self.loop_threads.add(threading.get_ident())
        return item

    def settled(self) -> bool:
        """Tell whether each generator that began was closed, once and at home."""
        assert len(set(self.opened)) == len(self.opened)
        assert not self.strangers, self.strangers
        assert len(self.closed) == len(set(self.closed)), "closed twice"
        return sorted(self.closed) == sorted(self.opened)


def sync_source(book: Book) -> Pipeline[int]:
    return PipelineBuilder().add_source(book.generator).pipe(book.mark_loop).build()


def sync_source_alone(book: Book) -> Pipeline[int]:
    return PipelineBuilder().add_source(book.generator).build()


def sync_source_object(book: Book) -> Pipeline[int]:
    return PipelineBuilder().add_source(book.generator()).pipe(book.mark_loop).build()


def async_source(book: Book) -> Pipeline[int]:
    return PipelineBuilder().add_source(book.agenerator).pipe(lambda x: x).build()


def async_source_object(book: Book) -> Pipeline[int]:
    return PipelineBuilder().add_source(book.agenerator()).pipe(lambda x: x).build()


def sync_op(book: Book) -> Pipeline[int]:
    numbers = PipelineBuilder().add_source(range(FAR)).pipe(book.mark_loop)
    return numbers.pipe(book.generator, concurrency=3).build()


def sync_op_completion(book: Book) -> Pipeline[int]:
    numbers = PipelineBuilder().add_source(range(FAR)).pipe(book.mark_loop)
    return numbers.pipe(book.generator, concurrency=3, output_order="completion").build()


def async_op(book: Book) -> Pipeline[int]:
    return PipelineBuilder().add_source(range(FAR)).pipe(book.agenerator, concurrency=3).build()


def async_op_completion(book: Book) -> Pipeline[int]:
    numbers = PipelineBuilder().add_source(range(FAR))
    return numbers.pipe(book.agenerator, concurrency=3, output_order="completion").build()


def expanded(book: Book) -> Pipeline[int]:
    def op(item: int) -> Generator[int, None, None]:
        return book.generator(item)

    return PipelineBuilder().add_source(range(FAR)).pipe(book.mark_loop).expand(op).build()


def expanded_on_the_loop(book: Book) -> Pipeline[int]:
    async def op(item: int) -> AsyncGenerator[int, None]:
        return book.agenerator(item)

    return PipelineBuilder().add_source(range(FAR)).expand(op).build()


def expanded_awaitable_of_sync(book: Book) -> Pipeline[int]:
    async def op(item: int) -> Generator[int, None, None]:
        await book.mark_loop(item)
        return book.generator(item)

    return PipelineBuilder().add_source(range(FAR)).expand(op).build()


def nested(book: Book) -> Pipeline[int]:
    inner = PipelineBuilder().add_source(book.generator).pipe(book.mark_loop).build()
    return PipelineBuilder().add_source(inner).pipe(book.agenerator).build()


def nested_by_hand(book: Book) -> Pipeline[int]:
    inner = PipelineBuilder().add_source(book.generator).pipe(lambda x: x).build()

    def outer() -> Generator[int, None, None]:
        yield from inner

    return PipelineBuilder().add_source(outer).pipe(book.mark_loop).build()


def nested_by_hand_async(book: Book) -> Pipeline[int]:
    inner = PipelineBuilder().add_source(book.agenerator).pipe(book.generator).build()

    async def outer() -> AsyncGenerator[int, None]:
        async for item in inner:
            yield item

    return PipelineBuilder().add_source(outer).build()


CHAINS: list[Callable[[Book], Pipeline[int]]] = [
    sync_source,
    sync_source_alone,
    sync_source_object,
    async_source,
    async_source_object,
    sync_op,
    sync_op_completion,
    async_op,
    async_op_completion,
    expanded,
    expanded_on_the_loop,
    expanded_awaitable_of_sync,
    nested,
    nested_by_hand,
    nested_by_hand_async,
]
every_chain = pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.__name__)

# Ways to leave


async def until_nothing_moves(run: PipelineRun[int]) -> None:
    """Wait until no thread has work, and nothing has been read or made in several looks."""
    calm, before = 0, -1

    def is_calm() -> bool:
        nonlocal calm, before
        stages = run.statistics().stages
        now = sum(stage.items_in + stage.items_out + stage.queue for stage in stages)
        calm = calm + 1 if now == before and now and not threads_at_work() else 0
        before = now
        return calm >= 10

    await until(is_calm)


async def leave_normally(run: PipelineRun[int]) -> None:
    async with run:
        await anext(run)


async def leave_at_once(run: PipelineRun[int]) -> None:
    async with run:
        pass


async def leave_by_exception(run: PipelineRun[int]) -> None:
    with pytest.raises(ZeroDivisionError):
        async with run:
            async for _ in run:
                raise ZeroDivisionError


async def leave_by_cancel(run: PipelineRun[int]) -> None:
    first = asyncio.Event()

    async def consume() -> None:
        async with run:
            async for _ in run:
                first.set()

    task = asyncio.create_task(consume())
    await first.wait()
    await ticks(20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_by_aclose(run: PipelineRun[int]) -> None:
    await run.__aenter__()
    await anext(run)
    await asyncio.gather(run.aclose(), run.aclose())


async def leave_while_all_is_full(run: PipelineRun[int]) -> None:
    async with run:
        await until_nothing_moves(run)
        assert run.statistics().in_flight > 0


WAYS: list[Callable[[PipelineRun[int]], Awaitable[None]]] = [
    leave_normally,
    leave_at_once,
    leave_by_exception,
    leave_by_cancel,
    leave_by_aclose,
    leave_while_all_is_full,
]


@every_chain
@both_loops
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_closed_once_and_at_home(
    chain: Callable[[Book], Pipeline[int]],
    loop: Loop,
    way: Callable[[PipelineRun[int]], Awaitable[None]],
) -> None:
    """Contract 13: when leaving has returned; async ones in their task, sync ones off the loop."""
    book = Book()
    await way(chain(book).run(loop=loop))
    if chain in (nested_by_hand, nested_by_hand_async):
        await until(book.settled)  # the inner iterator was dropped, nobody waits for its run
        await silence()
    assert book.opened or way is leave_at_once
    assert book.settled()
    assert not our_threads()


@every_chain
async def test_break_closes_soon(chain: Callable[[Book], Pipeline[int]]) -> None:
    """L1, A1: after a break the same happens by itself."""
    book = Book()
    async for _ in chain(book):
        break
    await silence()
    assert book.settled()
    moved = book.yielded
    await ticks(5)
    assert book.yielded == moved


@every_chain
@pytest.mark.parametrize("inline", [False, True])
def test_closed_in_ordinary_code(chain: Callable[[Book], Pipeline[int]], inline: bool) -> None:
    """Contract 13 for the other face."""
    book = Book()
    with chain(book).run_sync(inline=inline) as run:
        next(run)
        if inline:
            book.loop_threads.clear()  # one thread does everything there
    wait_until(book.settled)
    wait_until(lambda: not our_threads())


@every_chain
def test_break_closes_soon_in_ordinary_code(chain: Callable[[Book], Pipeline[int]]) -> None:
    """A1: fifty rounds, nothing is left over."""
    for _ in range(5):
        book = Book()
        for _ in chain(book):
            break
        wait_until(lambda book=book: book.settled() and not our_threads())  # type: ignore[misc]  # a default binds it


@both_loops
async def test_parked_generators_are_closed(loop: Loop) -> None:
    """Contract 13: generators that wait for room, without a thread, off the loop's thread."""
    book = Book()
    numbers = PipelineBuilder().add_source(range(FAR)).pipe(book.mark_loop)
    pipeline = numbers.pipe(book.generator, concurrency=4).add_sink(1).build(num_threads=1)
    async with pipeline.run(loop=loop) as run:
        await until(lambda: len(book.opened) == 4)
        await until_nothing_moves(run)
        assert not book.closed
    assert len(book.opened) == 4
    assert book.settled()


@both_loops
async def test_a_failure_closes_the_others(loop: Loop) -> None:
    """Contract 13: when a stage fails, generators above are closed, those below end."""
    book = Book()
    mine = ValueError("stage")

    def op(item: int) -> int:
        if item == 5:
            raise mine
        return item

    def finite(item: int) -> Generator[int, None, None]:
        book.opened.append(f"finite {item}")
        try:
            yield from range(40)
        finally:
            book.closed.append(f"finite {item}")

    source = PipelineBuilder().add_source(book.agenerator).pipe(op)
    pipeline = source.pipe(finite, concurrency=2, output_order="completion").build()
    with pytest.raises(ValueError) as caught:
        async with pipeline.run(loop=loop) as run:
            async for _ in run:
                pass
    assert caught.value is mine
    assert book.settled()
    assert not our_threads()
