"""Errors that user generators raise while they are closed: C2 for closing; contract 6, 13, 14."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Literal

import pytest
from witness import our_threads, silence

from spdl_async import Pipeline, PipelineBuilder

Loop = Literal["caller", "own"]
LOOPS: list[Loop] = ["caller", "own"]
both_loops = pytest.mark.parametrize("loop", LOOPS)
FAR = 10**9


class ClosingError(Exception):
    """Raised by user code while it is closed."""


def bad_generator(item: int = 0) -> Generator[int, None, None]:
    try:
        yield from range(FAR)
    finally:
        raise ClosingError(item)


async def bad_agenerator(item: int = 0) -> AsyncGenerator[int, None]:
    try:
        for number in range(FAR):
            await asyncio.sleep(0)
            yield number
    finally:
        raise ClosingError(item)


BAD: dict[str, Callable[[], Pipeline[int]]] = {
    "sync source": lambda: PipelineBuilder().add_source(bad_generator).pipe(int).build(),
    "async source": lambda: PipelineBuilder().add_source(bad_agenerator).pipe(int).build(),
    "sync op": lambda: PipelineBuilder().add_source(range(FAR)).pipe(bad_generator).build(),
    "async op": lambda: PipelineBuilder().add_source(range(FAR)).pipe(bad_agenerator).build(),
}


@pytest.mark.parametrize("bad", BAD)
@both_loops
async def test_errors_in_closing_are_recorded(bad: str, loop: Loop) -> None:
    """C2 and contract 6: the consumer left, so it finds them in run.failures; nothing hangs."""
    async with BAD[bad]().run(loop=loop) as run:
        assert await anext(run) == 0
    assert [record.error.rpartition(".")[2] for record in run.failures] == ["ClosingError"]
    assert not our_threads()
    mine = KeyError("body")
    with pytest.raises(KeyError) as caught:
        async with BAD[bad]().run(loop=loop) as run:
            await anext(run)
            raise mine
    assert caught.value is mine
    assert not isinstance(mine.__context__, ClosingError)


@pytest.mark.parametrize("bad", BAD)
async def test_errors_in_closing_after_a_break(bad: str) -> None:
    """C2, contract 14: the short form stops in silence all the same."""
    async for _ in BAD[bad]():
        break
    await silence()


def ending_badly(item: int = 0) -> Generator[int, None, None]:
    try:
        yield from range(3)
    finally:
        raise ClosingError(item)


async def ending_badly_async(item: int = 0) -> AsyncGenerator[int, None]:
    try:
        for number in range(3):
            yield number
    finally:
        raise ClosingError(item)


ENDING_BADLY: dict[str, Callable[[], Pipeline[int]]] = {
    "sync source": lambda: PipelineBuilder().add_source(ending_badly).build(),
    "async source": lambda: PipelineBuilder().add_source(ending_badly_async).build(),
    "sync op": lambda: PipelineBuilder().add_source([7]).pipe(ending_badly).build(),
    "async op": lambda: PipelineBuilder().add_source([7]).pipe(ending_badly_async).build(),
}


@pytest.mark.parametrize("bad", ENDING_BADLY)
@both_loops
async def test_errors_in_finally_at_the_end(bad: str, loop: Loop) -> None:
    """C2: never a clean end: the items, then the error."""
    got: list[Any] = []
    with pytest.raises(ClosingError):
        async with ENDING_BADLY[bad]().run(loop=loop) as run:
            async for item in run:
                got.append(item)
    assert got == [0, 1, 2]
