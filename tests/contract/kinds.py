"""Every kind of stage as a row of a table: each passes its items on unchanged, after doing ``Work``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from faces import Crowd, Face, Gate

from spdl_async import PipelineBuilder

Order = Literal["input", "completion"]
ORDERS: tuple[Order, ...] = ("input", "completion")


class Work:
    """What the op of each kind does to an item: wait at its gate, fail as told, or return it.

    ``crowd`` counts the calls that run at once. ``gate`` holds all items that have none of their
    own in ``gates``. What ``errors`` maps an item to is raised, after its gate.
    """

    def __init__(
        self,
        *,
        errors: Mapping[int, BaseException] | None = None,
        gates: Mapping[int, Gate] | None = None,
        gate: Gate | None = None,
        crowd: Crowd | None = None,
    ) -> None:
        self.errors = errors or {}
        self.gates = gates or {}
        self.gate = gate
        self.crowd = crowd or Crowd()
        self.done: list[int] = []

    def call(self, item: int) -> int:
        """Do it in a thread."""
        with self.crowd:
            gate = self.gates.get(item, self.gate)
            if gate is not None:
                gate.wait()
            return self.finish(item)

    async def acall(self, item: int) -> int:
        """Do it on a loop."""
        with self.crowd:
            gate = self.gates.get(item, self.gate)
            if gate is not None:
                await gate.passed()
            return self.finish(item)

    def finish(self, item: int) -> int:
        """Raise the item's error or return it."""
        if item in self.errors:
            raise self.errors[item]
        self.done.append(item)
        return item


class AsyncCallable:
    """A callable object whose ``__call__`` is a coroutine function."""

    def __init__(self, work: Work) -> None:
        self.work = work

    async def __call__(self, item: int) -> int:
        return await self.work.acall(item)


class Table:
    """A lookup: indexed, not callable."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __getitem__(self, item: int) -> int:
        return self.work.call(item)


def same(item: int) -> int:
    """Return the item."""
    return item


GIVEN = ThreadPoolExecutor(16, thread_name_prefix="given")
for _future in [GIVEN.submit(same, 1) for _ in range(16)]:
    _future.result()

Add = Callable[..., PipelineBuilder[int]]


@dataclass(frozen=True)
class Kind:
    """One kind of stage: ``add(builder, work, **options)``. ``Work`` is done in the stage "work"."""

    id: str
    add: Add


def _thread(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    return b.pipe(work.call, name="work", **options)


def _fused(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    """Fuse with a stage above and one below (at a concurrency of 2 or more)."""
    return (
        b.pipe(same, name="above", **options)
        .pipe(work.call, name="work", **options)
        .pipe(same, name="below", **options)
    )


def _unfused(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    return b.pipe(same, name="above", **options).pipe(work.call, name="work", fuse=False, **options)


def _given(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    return b.pipe(work.call, name="work", executor=GIVEN, **options)


def _async(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    return b.pipe(work.acall, name="work", **options)


def _async_object(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    return b.pipe(AsyncCallable(work), name="work", **options)


def _awaitable(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    return b.pipe(lambda item: work.acall(item), name="work", **options)


def _awaitable_fused(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    return (
        b.pipe(same, name="above", **options)
        .pipe(lambda item: work.acall(item), name="work", **options)
        .pipe(same, name="below", **options)
    )


def _lookup(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    return b.pipe(Table(work), name="work", **options)


def _filter(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    return b.filter(lambda item: work.call(item) >= 0, name="work", **options)


def _filter_async(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    async def keep(item: int) -> bool:
        return await work.acall(item) >= 0

    return b.filter(keep, name="work", **options)


def _generator(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    def each(item: int) -> Generator[int, None, None]:
        yield work.call(item)

    return b.pipe(each, name="work", **options)


def _async_generator(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    async def each(item: int) -> AsyncGenerator[int, None]:
        yield await work.acall(item)

    return b.pipe(each, name="work", **options)


def _expand(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    return b.expand(lambda item: [work.call(item)], name="work", **options)


def _expand_awaitable(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    async def listed(item: int) -> list[int]:
        return [await work.acall(item)]

    return b.expand(listed, name="work", **options)


def _expand_async(b: PipelineBuilder[int], work: Work, **options: Any) -> PipelineBuilder[int]:
    async def each(item: int) -> AsyncIterator[int]:
        yield await work.acall(item)

    def opened(item: int) -> AsyncIterator[int]:
        return each(item)

    return b.expand(opened, name="work", **options)


ONE_TO_ONE = (
    Kind("thread", _thread),
    Kind("fused", _fused),
    Kind("unfused", _unfused),
    Kind("given", _given),
    Kind("async", _async),
    Kind("async-object", _async_object),
    Kind("awaitable", _awaitable),
    Kind("awaitable-fused", _awaitable_fused),
    Kind("lookup", _lookup),
    Kind("filter", _filter),
    Kind("filter-async", _filter_async),
)
ONE_TO_MANY = (
    Kind("generator", _generator),
    Kind("async-generator", _async_generator),
    Kind("expand", _expand),
    Kind("expand-awaitable", _expand_awaitable),
    Kind("expand-async", _expand_async),
)
KINDS = ONE_TO_ONE + ONE_TO_MANY


# Every kind on one async face, the sync face and inline; the kinds whose paths through the engine differ
# most also on asyncio's loop in debug mode and on a loop of our own.
_SEVERAL = ("thread", "fused", "async", "awaitable-fused", "generator", "async-generator")
_ENGINE = [(kind, face) for kind in KINDS for face in (Face.CALLER_UVLOOP, Face.SYNC)] + [
    (kind, face) for kind in KINDS if kind.id in _SEVERAL for face in (Face.CALLER, Face.OWN)
]
_INLINE = [(kind, Face.INLINE) for kind in KINDS]


def kind_id(kind: object) -> str:
    """Return the id of a row in pytest's words."""
    if isinstance(kind, Kind):
        return kind.id
    return str(getattr(kind, "value", kind))


def _cases(rows: list[tuple[Kind, Face]]) -> pytest.MarkDecorator:
    ids = [f"{kind.id}-{face.value}" for kind, face in rows]
    return pytest.mark.parametrize(("kind", "face"), rows, ids=ids)


EACH_CASE = _cases(_ENGINE + _INLINE)
EACH_ENGINE_CASE = _cases(_ENGINE)
