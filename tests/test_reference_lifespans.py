"""Lifespans and ``per_thread`` in ``reference_run``: as the pipeline has them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator

import pytest

from spdl_async import per_thread
from spdl_async.testing import Chain, reference_run


class Session:
    """An op that works only while it is entered; fails as told."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.error = OSError(fails)
        self.events: list[str] = []

    def note(self, what: str) -> None:
        self.events.append(what)
        if what == self.fails:
            raise self.error

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[Callable[[int], int], None]:
        self.note("enter")
        try:
            async with asyncio.timeout(60):
                yield self.use
        finally:
            self.note("leave")

    def use(self, item: int) -> int:
        self.note(f"item {item}")
        return -item

    def __call__(self, item: int) -> int:
        raise AssertionError("what the lifespan gives is called")


class Plain:
    """An op with a sync lifespan that gives nothing."""

    @contextlib.contextmanager
    def lifespan(self) -> Iterator[None]:
        yield

    def __call__(self, item: int) -> int:
        return item


@pytest.mark.parametrize("fails", ["", "enter", "item 1", "leave"])
def test_as_the_pipeline_does(fails: str) -> None:
    session = Session(fails)
    chain = Chain().pipe(lambda x: x).pipe(session, concurrency=2).pipe(Plain())
    expected = chain.expected(range(3))
    events = session.events.copy()
    assert events[0] == "enter"
    assert events.count("leave") == (fails != "enter")
    assert expected.error is (session.error if fails else None)
    with contextlib.ExitStack() as stack:
        if fails:
            stack.enter_context(pytest.raises(OSError, match=fails))
        outputs = []
        for output in chain.builder(range(3)).build():
            outputs.append(output)
    assert outputs == expected.outputs


def test_per_thread() -> None:
    chain = Chain().pipe(per_thread(lambda: str), concurrency=2).expand(per_thread(lambda: list))
    assert reference_run([12, 3], chain).result() == ["1", "2", "3"]
