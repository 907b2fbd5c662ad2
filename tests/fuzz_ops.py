"""Ops and sources of every kind for the fuzz tests: what they do depends on the value alone.

So a pipeline and plain loops over the same input must agree, failures included: an op that fails on
a value raises the same exception object each time.
"""

from __future__ import annotations

import asyncio
import functools
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from spdl_async import DROP, Failure


class BoomError(Exception):
    """The failure of an op on a value."""


def digest(*parts: object) -> int:
    """Return a number that depends on the parts alone, in every process."""
    return zlib.crc32(repr(parts).encode())


def mixed(key: int, value: Any) -> Any:
    """Return another number; of a list the list of those of its elements."""
    if isinstance(value, list):
        return [mixed(key, element) for element in value]
    return digest(key, value) % 1_000_003


@dataclass
class Op:
    """The behaviour that ops of all kinds share.

    Attributes:
        key: tells ops apart.
        fails: one value in so many fails, 0: none.
        drops: one value in so many is dropped, 0: none.
        recovers: after how many calls on a value that fails the op does not fail on it any more, for
            half of such values; 0: never.
        jitter: ``"none"``, ``"yield"`` or ``"wait"``: what a call does to shake the schedule.
        errors: the exceptions raised so far, by value.
    """

    key: int
    fails: int = 0
    drops: int = 0
    jitter: str = "none"
    errors: dict[str, BoomError] = field(default_factory=dict, repr=False)
    recovers: int = 0
    calls: Counter[str] = field(default_factory=Counter, repr=False)

    def check(self, value: Any, where: str = "") -> None:
        """Raise where this op fails on the value."""
        if self.fails and digest("fails", self.key, value, where) % self.fails == 0:
            text = f"{self.key}: {value!r} {where}".strip()
            if self.recovers and digest("recovers", text) % 2:
                self.calls[text] += 1
                if self.calls[text] > self.recovers:
                    return
            raise self.errors.setdefault(text, BoomError(text))

    def result(self, value: Any) -> Any:
        """Return what a 1→1 op makes of a value."""
        self.check(value)
        if self.drops and digest("drops", self.key, value) % self.drops == 0:
            return DROP
        return mixed(self.key, value)

    def results(self, value: Any) -> Iterator[Any]:
        """Yield what a 1→n op makes of a value: none to four; it may fail midway."""
        count = digest("count", self.key, value) % 5
        for number in range(count):
            self.check(value, f"after {number}")
            if self.drops and digest("drops", self.key, value, number) % self.drops == 0:
                yield DROP
            else:
                yield mixed(self.key + number, value)

    def shake(self, value: Any) -> None:
        """Spend a little time in a thread, or hand over to another one."""
        if self.jitter == "yield":
            time.sleep(0)
        elif self.jitter == "wait" and self.waits(value):
            time.sleep(0.0005)

    async def ashake(self, value: Any) -> None:
        """Spend a few turns of the loop, or a little time."""
        if self.jitter == "yield":
            for _ in range(digest("turns", self.key, value) % 4):
                await asyncio.sleep(0)
        elif self.jitter == "wait" and self.waits(value):
            await asyncio.sleep(0.0005)

    def waits(self, value: Any) -> bool:
        """Tell whether a call waits: one in eight, long enough for others to overtake it."""
        return digest("time", self.key, value) % 8 == 0


class Asked:
    """A policy: a function that lets most failures pass; what it does depends on the failure alone."""

    def __init__(self, key: int, raises: int) -> None:
        self.key = key
        self.raises = raises
        self.errors: dict[str, BoomError] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key}, raises={self.raises})"

    def decide(self, failure: Failure) -> None:
        text = str(failure.exception).partition(";")[0]  # the rest of a message is advice
        number = digest("asked", self.key, text)
        if self.raises and number % self.raises == 0:
            if number % 2:
                raise failure.exception
            raise self.errors.setdefault(text, BoomError(f"asked about {text}"))

    def __call__(self, failure: Failure) -> Any:
        self.decide(failure)


class AskedLater(Asked):
    """The same as a coroutine function."""

    async def __call__(self, failure: Failure) -> None:
        for _ in range(digest("turns", self.key, str(failure.exception)) % 4):
            await asyncio.sleep(0)
        self.decide(failure)


# 1→1


def sync(op: Op) -> Callable[[Any], Any]:
    def work(value: Any) -> Any:
        op.shake(value)
        return op.result(value)

    return work


def coroutine(op: Op) -> Callable[[Any], Awaitable[Any]]:
    async def work(value: Any) -> Any:
        await op.ashake(value)
        return op.result(value)

    return work


def awaitable(op: Op) -> Callable[[Any], Any]:
    """A plain function that returns a coroutine, for half of the values."""
    later = coroutine(op)

    def work(value: Any) -> Any:
        return later(value) if digest("later", op.key, value) % 2 else op.result(value)

    return work


class Lookup:
    """Indexed by the values; not callable."""

    def __init__(self, op: Op) -> None:
        self.op = op

    def __getitem__(self, value: Any) -> Any:
        return self.op.result(value)


class Callee:
    """An object whose ``__call__`` is a coroutine function."""

    def __init__(self, op: Op) -> None:
        self.work = coroutine(op)

    async def __call__(self, value: Any) -> Any:
        return await self.work(value)


def partial(op: Op) -> Callable[[Any], Any]:
    def work(own: Op, value: Any) -> Any:
        return own.result(value)

    return functools.partial(work, op)


PIPES: dict[str, Callable[[Op], Any]] = {
    "sync": sync,
    "coroutine": coroutine,
    "awaitable": awaitable,
    "lookup": Lookup,
    "callee": Callee,
    "partial": partial,
}

# 1→n


def generator(op: Op) -> Callable[[Any], Iterator[Any]]:
    def work(value: Any) -> Iterator[Any]:
        for result in op.results(value):
            op.shake(result)
            yield result

    return work


def async_generator(op: Op) -> Callable[[Any], AsyncIterator[Any]]:
    async def work(value: Any) -> AsyncIterator[Any]:
        for result in op.results(value):
            await op.ashake(result)
            yield result

    return work


def listed(op: Op) -> Callable[[Any], list[Any]]:
    def work(value: Any) -> list[Any]:
        op.shake(value)
        return list(op.results(value))

    return work


def iterated(op: Op) -> Callable[[Any], Iterator[Any]]:
    return lambda value: iter(op.results(value))


def listed_later(op: Op) -> Callable[[Any], Awaitable[list[Any]]]:
    async def work(value: Any) -> list[Any]:
        await op.ashake(value)
        return list(op.results(value))

    return work


def iterated_async(op: Op) -> Callable[[Any], AsyncIterator[Any]]:
    opened = async_generator(op)
    return lambda value: opened(value)


GENERATORS: dict[str, Callable[[Op], Any]] = {
    "generator": generator,
    "async generator": async_generator,
}
EXPANDS: dict[str, Callable[[Op], Any]] = {
    "list": listed,
    "iterator": iterated,
    "awaitable list": listed_later,
    "async iterator": iterated_async,
    **GENERATORS,
}

# Filters


def kept(op: Op, value: Any) -> bool:
    op.check(value)
    return digest("keep", op.key, value) % 3 > 0


def filter_sync(op: Op) -> Callable[[Any], bool]:
    def keep(value: Any) -> bool:
        op.shake(value)
        return kept(op, value)

    return keep


def filter_async(op: Op) -> Callable[[Any], Awaitable[bool]]:
    async def keep(value: Any) -> bool:
        await op.ashake(value)
        return kept(op, value)

    return keep


FILTERS: dict[str, Callable[[Op], Any]] = {"sync": filter_sync, "coroutine": filter_async}


class Gather:
    """An aggregator: emits what it holds at some values, and sometimes twice; the rest at the end."""

    def __init__(self, op: Op, *, flush_fails: bool) -> None:
        self.op = op
        self.flush_fails = flush_fails
        self.held: list[Any] = []

    def __deepcopy__(self, memo: object) -> Gather:
        return Gather(self.op, flush_fails=self.flush_fails)

    def accumulate(self, value: Any) -> list[Any]:
        self.op.shake(value)
        self.op.check(value)
        self.held.append(value)
        if digest("full", self.op.key, value) % 4:
            return []
        held, self.held = self.held, []
        return [held] if len(held) < 3 else [held[:2], held[2:]]

    def flush(self) -> Iterator[Any]:
        if self.flush_fails:
            self.op.check(self.held, "flush")
        if self.held:
            yield self.held


# Sources


class Sequence:
    """Read by index: it has ``__len__`` and ``__getitem__`` and no ``__iter__``."""

    def __init__(self, op: Op, values: range) -> None:
        self.op = op
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> int:
        value = self.values[index]
        self.op.check(value)
        return value


class Reader:
    """An iterable whose iterator goes on after a failure."""

    def __init__(self, op: Op, values: range) -> None:
        self.op = op
        self.values = values

    def __iter__(self) -> Iterator[int]:
        return map(self.read, self.values)

    def read(self, value: int) -> int:
        self.op.shake(value)
        self.op.check(value)
        return value


class AsyncReader(Reader):
    """An async iterable whose iterator goes on after a failure."""

    def __aiter__(self) -> AsyncIterator[int]:
        return AsyncReading(self)


class AsyncReading:
    def __init__(self, reader: AsyncReader) -> None:
        self.reader = reader
        self.rest = iter(reader.values)

    def __aiter__(self) -> AsyncReading:
        return self

    async def __anext__(self) -> int:
        for value in self.rest:
            await self.reader.op.ashake(value)
            self.reader.op.check(value)
            return value
        raise StopAsyncIteration


def generated(op: Op, values: range) -> Callable[[], Iterator[int]]:
    def opened() -> Iterator[int]:
        yield from map(Reader(op, values).read, values)

    return opened


def generated_async(op: Op, values: range) -> Callable[[], AsyncIterator[int]]:
    async def opened() -> AsyncIterator[int]:
        async for value in AsyncReading(AsyncReader(op, values)):
            yield value

    return opened


def opened_later(op: Op, values: range) -> Callable[[], Awaitable[Reader]]:
    async def opened() -> Reader:
        await op.ashake(0)
        return Reader(op, values)

    return opened


SOURCES: dict[str, Callable[[Op, range], Any]] = {
    "list": lambda op, values: list(values),
    "range": lambda op, values: values,
    "sequence": Sequence,
    "reader": Reader,
    "async reader": AsyncReader,
    "generator": generated,
    "async generator": generated_async,
    "opened later": opened_later,
    "returned list": lambda op, values: lambda: list(values),
}
LAZY = sorted(kind for kind in SOURCES if "list" not in kind)  # those that may be endless
