"""Contract 21, L14: context variables of the run's start are seen in all user code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Literal

import pytest

from spdl_async import Pipeline, PipelineBuilder

Loop = Literal["caller", "own"]
LOOPS: list[Loop] = ["caller", "own"]
both_loops = pytest.mark.parametrize("loop", LOOPS)

REQUEST: ContextVar[str] = ContextVar("REQUEST", default="unset")


class Listener:
    """Ops of every kind that write down the request that they see."""

    def __init__(self) -> None:
        self.seen: dict[str, set[str]] = {}

    def note(self, where: str) -> None:
        self.seen.setdefault(where, set()).add(REQUEST.get())

    def source(self) -> Iterator[int]:
        for number in range(30):
            self.note("source")
            yield number

    async def async_source(self) -> AsyncIterator[int]:
        for number in range(30):
            self.note("async source")
            await asyncio.sleep(0)
            yield number

    def op(self, item: int) -> int:
        self.note("op")
        return item

    async def async_op(self, item: int) -> int:
        self.note("async op")
        await asyncio.sleep(0)
        return item

    def awaitable_op(self, item: int) -> Any:
        self.note("op that returns an awaitable")
        return self.async_op(item)

    def generator(self, item: int) -> Generator[int, None, None]:
        self.note("generator")
        try:
            yield item
        finally:
            self.note("generator's end")

    async def async_generator(self, item: int) -> AsyncGenerator[int, None]:
        self.note("async generator")
        await asyncio.sleep(0)
        yield item

    def predicate(self, item: int) -> bool:
        self.note("predicate")
        return True

    def expanded(self, item: int) -> list[int]:
        self.note("expand")
        return [item]

    # As an aggregator

    def accumulate(self, item: int) -> list[int]:
        self.note("accumulate")
        return [item]

    def flush(self) -> list[int]:
        self.note("flush")
        return []

    def make_aggregator(self) -> Listener:
        self.note("factory")
        return self


SYNC = {
    "source",
    "op",
    "async op",
    "op that returns an awaitable",
    "generator",
    "generator's end",
    "async generator",
    "predicate",
    "expand",
    "accumulate",
    "flush",
    "factory",
}


def chain(listener: Listener, source: Callable[[], Any], **options: Any) -> Pipeline[int]:
    start: PipelineBuilder[int] = PipelineBuilder().add_source(source)
    return (
        start.pipe(listener.op, concurrency=2)
        .pipe(listener.op, concurrency=2)
        .pipe(listener.async_op, concurrency=2)
        .pipe(listener.awaitable_op)
        .pipe(listener.generator, concurrency=2)
        .pipe(listener.async_generator, concurrency=2)
        .filter(listener.predicate)
        .expand(listener.expanded)
        .aggregate(listener.make_aggregator)
        .build(**options)
    )


@both_loops
@pytest.mark.parametrize("source", ["source", "async_source"])
async def test_the_context_of_the_start_is_seen(loop: Loop, source: str) -> None:
    """Contract 21: set before the start, changed by the consumer afterwards."""
    listener = Listener()
    pipeline = chain(listener, getattr(listener, source))
    REQUEST.set("at build and run()")
    run = pipeline.run(loop=loop)
    REQUEST.set("at the start")
    async with run:
        REQUEST.set("changed later")
        assert [item async for item in run] == list(range(30))
    where = (SYNC - {"source"}) | {source.replace("_", " ")}
    assert listener.seen == {place: {"at the start"} for place in where}
    assert REQUEST.get() == "changed later"


@pytest.mark.parametrize("face", ["with", "for", "inline"])
def test_the_context_in_ordinary_code(face: str) -> None:
    listener = Listener()
    pipeline = chain(listener, listener.source)
    token = REQUEST.set("at the start")
    try:
        if face == "for":
            assert list(pipeline) == list(range(30))
        else:
            with pipeline.run_sync(inline=face == "inline") as run:
                assert list(run) == list(range(30))
    finally:
        REQUEST.reset(token)
    assert listener.seen == {place: {"at the start"} for place in SYNC}


async def test_the_short_form() -> None:
    """L14: the first anext is the start."""
    listener = Listener()
    iterator = aiter(chain(listener, listener.async_source))
    REQUEST.set("at the first anext")
    assert [item async for item in iterator] == list(range(30))
    assert {value for seen in listener.seen.values() for value in seen} == {"at the first anext"}


@both_loops
async def test_on_a_given_executor(loop: Loop) -> None:
    """Contract 21 on a thread pool that is not ours."""
    listener = Listener()
    with ThreadPoolExecutor(2) as executor:
        REQUEST.set("at the start")
        async with chain(listener, listener.source, executor=executor).run(loop=loop) as run:
            assert [item async for item in run] == list(range(30))
    assert listener.seen == {place: {"at the start"} for place in SYNC}


@both_loops
async def test_runs_at_once_have_their_own(loop: Loop) -> None:
    """L14: two requests at once on one pipeline do not see each other's."""
    listeners = [Listener() for _ in range(4)]

    async def serve(number: int) -> None:
        REQUEST.set(f"request {number}")
        pipeline = chain(listeners[number], listeners[number].source)
        async with pipeline.run(loop=loop) as run:
            assert [item async for item in run] == list(range(30))

    await asyncio.gather(*(serve(number) for number in range(4)))
    for number, listener in enumerate(listeners):
        assert listener.seen == {place: {f"request {number}"} for place in SYNC}


@both_loops
async def test_what_ops_set_does_not_reach_the_consumer(loop: Loop) -> None:
    """Contract 21: each hop and each task runs in its own copy."""

    def op(item: int) -> int:
        REQUEST.set("by an op")
        return item

    async def async_op(item: int) -> int:
        REQUEST.set("by an async op")
        return item

    def source() -> Iterator[int]:
        REQUEST.set("by the source")
        yield from range(9)

    REQUEST.set("mine")
    pipeline = PipelineBuilder().add_source(source).pipe(op).pipe(async_op).build()
    async with pipeline.run(loop=loop) as run:
        async for _ in run:
            assert REQUEST.get() == "mine"
    assert REQUEST.get() == "mine"
    assert len(list(pipeline)) == 9
    assert REQUEST.get() == "mine"
