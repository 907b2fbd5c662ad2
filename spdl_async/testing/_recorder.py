"""What was called, when, and how many at once."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import contextmanager
from typing import Any, TypeVar, cast, overload

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Recorder:
    """Watches an op or a source: what started, what finished, and the most that ran at once.

    Wrap with :meth:`op` or :meth:`source`; what is wrapped keeps its kind (a coroutine function
    stays one), so the pipeline treats it the same. One recorder may watch several ops; it counts
    them together. All numbers are taken under a lock, from any thread.

    >>> from spdl_async import PipelineBuilder
    >>> from spdl_async.testing import Recorder
    >>> calls = Recorder()
    >>> pipeline = PipelineBuilder().add_source([3, 1, 2]).pipe(calls.op(str), concurrency=2).build()
    >>> list(pipeline), sorted(calls.started), calls.running, calls.peak <= 2
    (['3', '1', '2'], [1, 2, 3], 0, True)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: list[Any] = []
        self._finished: list[Any] = []
        self._failed: list[Any] = []
        self._threads: set[str] = set()
        self._running = 0
        self._peak = 0
        self._opened = 0
        self._closed = 0

    def __repr__(self) -> str:
        return (
            f"<Recorder: {len(self._started)} started, {len(self._finished)} finished, "
            f"{len(self._failed)} failed, peak {self._peak}>"
        )

    # Numbers

    @property
    def started(self) -> list[Any]:
        """Items whose call has started, in that order; of a source: the items that it gave."""
        with self._lock:
            return list(self._started)

    @property
    def finished(self) -> list[Any]:
        """Items whose call has returned, or whose generator has ended, in that order."""
        with self._lock:
            return list(self._finished)

    @property
    def failed(self) -> list[Any]:
        """Items whose call has raised, a cancellation and the closing of a generator included."""
        with self._lock:
            return list(self._failed)

    @property
    def running(self) -> int:
        """Calls that run now; a generator runs until it ends or is closed."""
        return self._running

    @property
    def peak(self) -> int:
        """The most calls that ran at once."""
        return self._peak

    @property
    def opened(self) -> int:
        """How many times a watched source was opened: one each pass."""
        return self._opened

    @property
    def closed(self) -> int:
        """How many of these passes have ended, by themselves or by being closed."""
        return self._closed

    @property
    def threads(self) -> set[str]:
        """Names of the threads in which calls have started."""
        with self._lock:
            return set(self._threads)

    # Wrapping

    def op(self, op: F, /) -> F:
        """Return ``op``, watched: a function, coroutine function or (async) generator function."""
        target: Any = op
        while isinstance(target, functools.partial):
            target = target.func
        if not inspect.isroutine(target) and not isinstance(target, type):
            target = type(target).__call__
        if inspect.isasyncgenfunction(target):
            watched: Callable[..., Any] = self._async_generator(op)
        elif inspect.isgeneratorfunction(target):
            watched = self._generator(op)
        elif inspect.iscoroutinefunction(target):
            watched = self._coroutine(op)
        else:
            watched = self._function(op)
        watched.__name__ = getattr(op, "__name__", type(op).__name__)
        return cast("F", watched)

    @overload
    def source(self, source: AsyncIterable[T], /) -> AsyncIterable[T]: ...
    @overload
    def source(self, source: Iterable[T], /) -> Iterable[T]: ...
    def source(self, source: Any, /) -> Any:
        """Return ``source``, watched: an iterable or async iterable, opened once each pass."""
        if isinstance(source, AsyncIterable):
            return _AsyncSource(self, source)
        return _Source(self, source)

    # Inside

    def _function(self, op: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def watched(item: Any) -> Any:
            with self._call(item):
                return op(item)

        return watched

    def _coroutine(self, op: Callable[[Any], Any]) -> Callable[[Any], Any]:
        async def watched(item: Any) -> Any:
            with self._call(item):
                return await op(item)

        return watched

    def _generator(self, op: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def watched(item: Any) -> Generator[Any, None, None]:
            with self._call(item):
                yield from op(item)

        return watched

    def _async_generator(self, op: Callable[[Any], Any]) -> Callable[[Any], Any]:
        async def watched(item: Any) -> AsyncGenerator[Any, None]:
            with self._call(item):
                inner = op(item)
                try:
                    async for value in inner:
                        yield value
                finally:
                    await inner.aclose()

        return watched

    @contextmanager
    def _call(self, item: Any) -> Iterator[None]:
        with self._lock:
            self._started.append(item)
            self._threads.add(threading.current_thread().name)
            self._running += 1
            self._peak = max(self._peak, self._running)
        ended = self._failed
        try:
            yield
            ended = self._finished
        finally:
            with self._lock:
                self._running -= 1
                ended.append(item)

    def _given(self, item: Any) -> None:
        with self._lock:
            self._started.append(item)
            self._threads.add(threading.current_thread().name)

    @contextmanager
    def _pass(self) -> Iterator[None]:
        with self._lock:
            self._opened += 1
        try:
            yield
        finally:
            with self._lock:
                self._closed += 1


class _Source:
    """A watched iterable."""

    def __init__(self, recorder: Recorder, source: Iterable[Any]) -> None:
        self._recorder = recorder
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        with self._recorder._pass():
            for item in self._source:
                self._recorder._given(item)
                yield item


class _AsyncSource:
    """A watched async iterable."""

    def __init__(self, recorder: Recorder, source: AsyncIterable[Any]) -> None:
        self._recorder = recorder
        self._source = source

    async def __aiter__(self) -> AsyncIterator[Any]:
        with self._recorder._pass():
            iterator = aiter(self._source)
            try:
                async for item in iterator:
                    self._recorder._given(item)
                    yield item
            finally:
                closing = getattr(iterator, "aclose", None)
                if closing is not None:
                    await closing()
