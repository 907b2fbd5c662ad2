"""Ops that wait until a test lets them go on: schedules by decree instead of by sleeping."""

from __future__ import annotations

import asyncio
import threading
from asyncio import AbstractEventLoop, Future
from collections import deque
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


class _BaseGate(Generic[T]):
    """What both gates share: who has arrived, and who may pass."""

    def __init__(self, *, opened: bool = False) -> None:
        self._changed = threading.Condition()
        self._open = opened
        self._permits = 0
        self._arrived: list[T] = []
        self._passed: list[T] = []
        self._watchers: list[tuple[int, AbstractEventLoop, Future[None]]] = []

    def __repr__(self) -> str:
        state = "open" if self._open else "shut"
        return (
            f"<{type(self).__name__}: {state}, {len(self._arrived)} arrived, "
            f"{len(self._passed)} passed>"
        )

    def __enter__(self) -> Self:
        """Leave the gate as it is; the end of the block opens it, so that nothing stays stuck."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.open()

    # What a test sees

    @property
    def arrived(self) -> list[T]:
        """The items that have come to the gate, in the order of their coming."""
        with self._changed:
            return list(self._arrived)

    @property
    def passed(self) -> list[T]:
        """The items that have gone through, in the order of their going."""
        with self._changed:
            return list(self._passed)

    @property
    def waiting(self) -> int:
        """The number of calls that stand before the gate now."""
        raise NotImplementedError

    async def wait_arrived(self, count: int) -> list[T]:
        """Wait until ``count`` items have arrived, those that passed included; return them.

        On whatever loop the test runs; bound it with ``asyncio.timeout`` if need be.
        """
        loop = asyncio.get_running_loop()
        watcher: Future[None] = loop.create_future()
        with self._changed:
            if len(self._arrived) >= count:
                return list(self._arrived)
            self._watchers.append((count, loop, watcher))
        await watcher
        return self.arrived

    def wait_arrived_sync(self, count: int, timeout: float = 10.0) -> list[T]:
        """Do the same in an ordinary thread.

        Raises:
            TimeoutError: ``timeout`` seconds have gone by.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._arrived) >= count, timeout):
                raise TimeoutError(
                    f"{len(self._arrived)} of {count} calls came to the gate in {timeout:g} s"
                )
            return list(self._arrived)

    # What a test does

    def open(self, count: int | None = None) -> None:
        """Let ``count`` calls through, waiting ones first; ``None``: all, from now on. Any thread."""
        with self._changed:
            if count is None:
                self._open = True
            else:
                self._permits += count
            self._let_in()
            self._changed.notify_all()

    def shut(self) -> None:
        """Hold the calls that come from now on."""
        with self._changed:
            self._open = False
            self._permits = 0

    # Inside, with the lock held

    def _let_in(self) -> None:
        """Wake those who may pass."""

    def _may_pass(self) -> bool:
        if self._open:
            return True
        if self._permits:
            self._permits -= 1
            return True
        return False

    def _arrive(self, item: T) -> None:
        self._arrived.append(item)
        ready = [w for w in self._watchers if w[0] <= len(self._arrived)]
        for entry in ready:
            self._watchers.remove(entry)
            _post(entry[1], entry[2])
        self._changed.notify_all()


class Gate(_BaseGate[T]):
    """A sync op that holds its calls, in their threads, until the test opens it.

    ``pipe(gate)`` returns the items unchanged. Use the gate as a context manager *inside* the run's
    block: then it is open when the run stops, which waits for calls in threads.

    >>> from spdl_async import PipelineBuilder
    >>> from spdl_async.testing import Gate
    >>> gate = Gate()
    >>> pipeline = PipelineBuilder().add_source(range(5)).pipe(gate, concurrency=2).build()
    >>> with pipeline.run_sync() as run, gate:
    ...     _ = gate.wait_arrived_sync(2)
    ...     gate.waiting  # never more than the concurrency
    2
    """

    def __init__(self, *, opened: bool = False) -> None:
        super().__init__(opened=opened)
        self._waiting = 0

    def __call__(self, item: T, /) -> T:
        """Come to the gate and wait."""
        with self._changed:
            self._arrive(item)
            self._waiting += 1
            try:
                self._changed.wait_for(self._may_pass)
            finally:
                self._waiting -= 1
            self._passed.append(item)
        return item

    @property
    def waiting(self) -> int:
        return self._waiting


class AsyncGate(_BaseGate[T]):
    """An async op that holds its calls, on the run's loop, until the test opens it.

    >>> import asyncio
    >>> from spdl_async import PipelineBuilder
    >>> from spdl_async.testing import AsyncGate
    >>> async def main():
    ...     gate = AsyncGate()
    ...     pipeline = PipelineBuilder().add_source(range(9)).pipe(gate, concurrency=3).build()
    ...     async with pipeline.run() as run:
    ...         first = await gate.wait_arrived(3)
    ...         gate.open(1)
    ...         return first, await anext(run)
    >>> asyncio.run(main())
    ([0, 1, 2], 0)
    """

    def __init__(self, *, opened: bool = False) -> None:
        super().__init__(opened=opened)
        self._line: deque[tuple[AbstractEventLoop, Future[None]]] = deque()

    async def __call__(self, item: T, /) -> T:
        """Come to the gate and wait; a cancelled call gives its permit back."""
        with self._changed:
            self._arrive(item)
            if self._may_pass():
                self._passed.append(item)
                return item
            loop = asyncio.get_running_loop()
            entry = (loop, loop.create_future())
            self._line.append(entry)
        try:
            await entry[1]
        except asyncio.CancelledError:
            self._give_up(entry)
            raise
        with self._changed:
            self._passed.append(item)
        return item

    @property
    def waiting(self) -> int:
        return len(self._line)

    def _let_in(self) -> None:
        while self._line and self._may_pass():
            _post(*self._line.popleft())

    def _give_up(self, entry: tuple[AbstractEventLoop, Future[None]]) -> None:
        with self._changed:
            if entry in self._line:
                self._line.remove(entry)
            elif not self._open:
                self._permits += 1
                self._let_in()


def _post(loop: AbstractEventLoop, future: Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_resolve, future)
    except RuntimeError:  # that loop is closed: nobody waits there any more
        pass


def _resolve(future: Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
