"""Ops that own something, of every kind, each with a stage for it: for the tests of lifespans."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import Any

import pytest
from faces import ENGINE_FACES, FACES

from spdl_async import Merge, PipelineBuilder, on

every_face = pytest.mark.parametrize("face", FACES, ids=lambda face: face.value)
every_engine = pytest.mark.parametrize("face", ENGINE_FACES, ids=lambda face: face.value)


class Owner:
    """Owns something; writes down what happens to it."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.is_open = False
        self.tasks: list[object] = []
        self.fails: dict[str, BaseException] = {}

    def note(self, what: str) -> None:
        self.events.append(what)
        if what in self.fails:
            raise self.fails[what]

    def used(self, item: Any) -> None:
        assert self.is_open, f"{item} came while the op was not entered"
        self.note(f"item {item}")

    def opened(self) -> None:
        assert not self.is_open
        self.note("enter")
        self.is_open = True

    def closed(self) -> None:
        assert self.is_open
        self.is_open = False
        self.note("leave")


class Managed(Owner):
    """An async context manager."""

    async def __aenter__(self) -> None:
        self.tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        self.opened()

    async def __aexit__(self, *of_block: object) -> None:
        assert of_block == (None, None, None)
        self.tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        self.closed()


class Spanning(Owner):
    """Has a lifespan() that makes an async context manager."""

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None, None]:
        self.tasks.append(asyncio.current_task())
        self.opened()
        # Cancel scopes and their like must be left in the task that has entered them.
        async with asyncio.timeout(60):
            yield
        self.tasks.append(asyncio.current_task())
        self.closed()


class Ordinary(Owner):
    """Has a lifespan() that makes a sync context manager."""

    @contextlib.contextmanager
    def lifespan(self) -> Iterator[None]:
        self.opened()
        try:
            yield
        finally:
            self.closed()


KINDS: list[type[Owner]] = [Managed, Spanning, Ordinary]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def sync_op(kind: type[Owner]) -> Any:
    class Op(kind):  # type: ignore[misc, valid-type]  # a mixin
        def __call__(self, item: Any) -> Any:
            self.used(item)
            return item

    return Op()


def async_op(kind: type[Owner]) -> Any:
    class Op(kind):  # type: ignore[misc, valid-type]  # a mixin
        async def __call__(self, item: Any) -> Any:
            await asyncio.sleep(0)
            self.used(item)
            return item

    return Op()


def generator_op(kind: type[Owner]) -> Any:
    class Op(kind):  # type: ignore[misc, valid-type]  # a mixin
        def __call__(self, item: Any) -> Generator[Any, None, None]:
            self.used(item)
            yield item

    return Op()


def async_generator_op(kind: type[Owner]) -> Any:
    class Op(kind):  # type: ignore[misc, valid-type]  # a mixin
        async def __call__(self, item: Any) -> AsyncGenerator[Any, None]:
            self.used(item)
            yield item

    return Op()


def list_op(kind: type[Owner]) -> Any:
    class Op(kind):  # type: ignore[misc, valid-type]  # a mixin
        def __call__(self, item: Any) -> list[Any]:
            self.used(item)
            return [item]

    return Op()


def predicate(kind: type[Owner]) -> Any:
    class Op(kind):  # type: ignore[misc, valid-type]  # a mixin
        def __call__(self, item: Any) -> bool:
            self.used(item)
            return True

    return Op()


Made = tuple[Owner, PipelineBuilder[int]]
COUNT = 5


def numbers() -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(COUNT))


def piped(make: Callable[[type[Owner]], Any], kind: type[Owner], **options: Any) -> Made:
    op = make(kind)
    return op, numbers().pipe(op, name="owner", **options)


def fused(kind: type[Owner]) -> Made:
    op = sync_op(kind)
    return op, (
        numbers()
        .pipe(lambda x: x, concurrency=2)
        .pipe(op, concurrency=2, name="owner")
        .pipe(lambda x: x, concurrency=2)
    )


def filtered(kind: type[Owner]) -> Made:
    op = predicate(kind)
    return op, numbers().filter(op, name="owner")


def expanded(kind: type[Owner]) -> Made:
    op = list_op(kind)
    return op, numbers().expand(op, name="owner", concurrency=2)


def on_field(kind: type[Owner]) -> Made:
    op = sync_op(kind)
    builder = numbers().pipe(lambda x: (x, x)).pipe(on(0, op), name="owner")
    return op, builder.pipe(lambda pair: pair[0])


def partially(kind: type[Owner]) -> Made:
    class Op(kind):  # type: ignore[misc, valid-type]  # a mixin
        def __call__(self, plus: int, item: int) -> int:
            self.used(item)
            return item + plus

    op = Op()
    return op, numbers().pipe(functools.partial(op, 0), name="owner")


def in_branch(kind: type[Owner]) -> Made:
    op = sync_op(kind)
    other: Callable[[int], int] = lambda item: item  # noqa: E731 -- one that owns nothing
    builder = numbers().route(
        lambda item: 0, lambda branch: branch.pipe(op, name="owner"), lambda b: b.pipe(other)
    )
    return op, builder


def routing(kind: type[Owner]) -> Made:
    class Op(kind):  # type: ignore[misc, valid-type]  # a mixin
        def __call__(self, item: int) -> int:
            self.used(item)
            return item % 2

    op = Op()
    same: Callable[[int], int] = lambda item: item  # noqa: E731 -- short
    return op, numbers().route(op, lambda b: b.pipe(same), lambda b: b.pipe(same), name="owner")


def merged(kind: type[Owner]) -> Made:
    op = async_op(kind)
    return op, PipelineBuilder().add_source(
        Merge(numbers().pipe(op, name="owner"), PipelineBuilder().add_source(list[int]()))
    )


STAGES: dict[str, Callable[[type[Owner]], Made]] = {
    "sync": functools.partial(piped, sync_op),
    "sync, concurrency 3": functools.partial(piped, sync_op, concurrency=3),
    "async": functools.partial(piped, async_op),
    "async, concurrency 3": functools.partial(piped, async_op, concurrency=3),
    "completion": functools.partial(piped, sync_op, concurrency=3, output_order="completion"),
    "generator": functools.partial(piped, generator_op),
    "async generator": functools.partial(piped, async_generator_op),
    "fused": fused,
    "filter": filtered,
    "expand": expanded,
    "on": on_field,
    "partial": partially,
    "in a branch": in_branch,
    "router": routing,
    "merged": merged,
}
every_stage = pytest.mark.parametrize("stage", STAGES)


def assert_enclosed(events: list[Any], calls: int) -> None:
    assert events[0] == "enter"
    assert events[-1] == "leave"
    assert events.count("enter") == events.count("leave") == 1
    assert len(events) == calls + 2
