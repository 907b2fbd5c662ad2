"""Interrupts of ``run_sync(inline=True)``, where async code runs in the calling thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any

import pytest

from spdl_async import PipelineBuilder, StageTimeout

pytestmark = pytest.mark.timeout(20)


def interrupt() -> None:
    raise KeyboardInterrupt


async def for_long(seen: list[str]) -> None:
    """Have the loop interrupted while this waits, as by Ctrl-C; tell if it is waited for."""
    asyncio.get_running_loop().call_soon(interrupt)
    await asyncio.sleep(1)
    seen.append("waited for")


Numbers = Callable[[], AsyncIterator[int]]


def interrupted(seen: list[str]) -> Numbers:
    async def numbers() -> AsyncIterator[int]:
        try:
            yield 0
            await for_long(seen)
            yield 1
        finally:
            await asyncio.sleep(0)
            seen.append("closed")

    return numbers


def holding_out(seen: list[str]) -> Numbers:
    """Yield once more although cancelled, as a client that tries again does."""

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 0
            try:
                await for_long(seen)
            except asyncio.CancelledError:
                seen.append("cancelled")
            yield 1
        finally:
            seen.append("closed")

    return numbers


@pytest.mark.parametrize("place", ["source", "stage"])
@pytest.mark.parametrize(
    ("make", "expected"), [(interrupted, ["closed"]), (holding_out, ["cancelled", "closed"])]
)
def test_an_interrupt_in_the_middle_of_an_item_does_not_wait_for_it(
    make: Callable[[list[str]], Numbers], expected: list[str], place: str
) -> None:
    """Contract 14: the generator is closed, in its task."""
    seen: list[str] = []
    numbers = make(seen)
    builder: PipelineBuilder[int] = (
        PipelineBuilder().add_source(numbers)
        if place == "source"
        else PipelineBuilder().add_source([0]).expand(lambda _: numbers())
    )
    got: list[int] = []
    with pytest.raises(KeyboardInterrupt), builder.build().run_sync(inline=True) as run:
        got.extend(run)
    assert seen == expected
    assert got == [0]


class Slow:
    """An op whose lifespan is interrupted in the entering or in the leaving."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.seen: list[str] = []

    async def __aenter__(self) -> None:
        await self.step("enter")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.step("leave")

    async def step(self, what: str) -> None:
        try:
            if self.where == what:
                await for_long(self.seen)
        finally:
            self.seen.append(what)

    async def __call__(self, item: int) -> int:
        return item


@pytest.mark.parametrize("where", ["enter", "leave"])
def test_an_interrupt_in_a_lifespan(where: str) -> None:
    op = Slow(where)
    built = PipelineBuilder().add_source(range(2)).pipe(op).build()
    with pytest.raises(KeyboardInterrupt), built.run_sync(inline=True) as run:
        list(run)
    assert op.seen == (["enter"] if where == "enter" else ["enter", "leave"])


def test_a_timeout_s_note_shows_the_user_s_line() -> None:
    async def the_op(item: int) -> int:
        await the_slow_call()
        return item

    async def the_slow_call() -> None:
        await asyncio.Event().wait()

    async def source() -> AsyncIterator[int]:
        await the_slow_call()
        yield 0

    numbers: Any = PipelineBuilder().add_source([0]).pipe(the_op, timeout=0.01)
    for builder in (numbers, PipelineBuilder().add_source(source, timeout=0.01)):
        with pytest.raises(StageTimeout) as caught, builder.build().run_sync(inline=True) as run:
            list(run)
        note = next(note for note in caught.value.__notes__ if "its time was over" in note)
        assert "in the_slow_call" in note
        assert "timeouts.py" not in note
