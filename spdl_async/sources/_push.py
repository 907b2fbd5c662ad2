"""A source that is given its items while a pipeline runs."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from time import monotonic
from types import TracebackType
from typing import Generic, Self, TypeVar

from spdl_async.errors import BuildError, RunStateError

T = TypeVar("T")

CLOSED = "put: this PushSource is closed, so nothing would ever read the item"
LEFT = (
    "put: the run of this PushSource has ended (it was left, or it failed), or never reads it (as a branch "
    "with a weight of 0), so nothing will read the item; stop putting when the run is over"
)
READ_TWICE = (
    "a PushSource is read by one pass, once: what was put is gone then. Make another one for another "
    "pass; several passes cannot share one"
)


class _Waiter:
    """Somebody who waits: a task on some loop, or a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop
        self.woken = False
        if loop is None:
            self.lock = threading.Lock()
            self.lock.acquire()
        else:
            self.future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> bool:
        """Wake it; ``False`` where nobody is there to go on. Called once, with the source's lock held."""
        self.woken = True
        if self.loop is None:
            self.lock.release()
            return True
        try:
            self.loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:  # its loop is closed
            return False
        return self.loop.is_running()  # where it is stopped, it is woken if that ever runs again

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class PushSource(Generic[T]):
    """A source whose items are put into it while the pipeline runs, from tasks or threads.

    At most ``buffer_size`` items wait in it; a further :meth:`put` waits until the pipeline has read
    one. :meth:`close` ends the data, and so does leaving it as a context manager; an exception that
    leaves the block fails the run. A run that ends early makes waiting and later puts raise, so nobody
    waits for a reader that is gone. Items are read in the order in which they were put.

    To add whole *sources* while a pipeline runs, put them and take them apart::

        PipelineBuilder().add_source(push).expand(open_shard, concurrency=4)

    which reads up to four of them at a time.

    Args:
        buffer_size: how many items may wait to be read, at least 1.

    Raises:
        BuildError: ``buffer_size`` is no int of at least 1.

    >>> import asyncio
    >>> from spdl_async import PipelineBuilder
    >>> from spdl_async.sources import PushSource
    >>> async def main():
    ...     push = PushSource()
    ...     pipeline = PipelineBuilder().add_source(push).pipe(lambda x: x * x).build()
    ...     async def feed():
    ...         async with push:
    ...             for number in range(4):
    ...                 await push.put(number)
    ...     feeding = asyncio.create_task(feed())
    ...     print([square async for square in pipeline])
    ...     await feeding
    >>> asyncio.run(main())
    [0, 1, 4, 9]
    """

    def __init__(self, buffer_size: int = 2) -> None:
        if isinstance(buffer_size, bool) or not isinstance(buffer_size, int) or buffer_size < 1:
            raise BuildError(
                f"PushSource: buffer_size must be an int of at least 1, not {buffer_size!r}"
            )
        self._size = buffer_size
        self._lock = threading.Lock()  # held for a moment only, never while anybody waits
        self._items: deque[T] = deque()
        self._putters: deque[_Waiter] = deque()
        self._reader: _Waiter | None = None
        self._is_read = False
        self._closed = False
        self._left = False
        self._error: BaseException | None = None

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called, or the run that read it has ended."""
        return self._closed or self._left

    async def put(self, item: T, /) -> None:
        """Add an item, waiting for room; a cancelled put has added nothing.

        Raises:
            RunStateError: the source is closed, or its run has ended or never reads it.
        """
        while True:
            with self._lock:
                if self._add(item):
                    return
                waiter = _Waiter(asyncio.get_running_loop())
                self._putters.append(waiter)
            try:
                await waiter.future
            except BaseException:  # a cancellation; or the coroutine was closed
                self._give_up(waiter)
                raise

    def put_sync(self, item: T, /, timeout: float | None = None) -> None:
        """Add an item from ordinary code, in any thread but the loop's, waiting for room.

        Args:
            item: the item.
            timeout: seconds to wait at most; ``None`` waits as long as it takes.

        Raises:
            RunStateError: the source is closed, or its run has ended or never reads it.
            TimeoutError: there was no room in time; nothing was added.
        """
        until = None if timeout is None else monotonic() + timeout
        while True:
            with self._lock:
                if self._add(item):
                    return
                waiter = _Waiter(None)
                self._putters.append(waiter)
            got = False
            try:
                got = waiter.lock.acquire(
                    timeout=-1 if until is None else max(0.0, until - monotonic())
                )
            finally:
                if not got:
                    self._give_up(waiter)
            if not got:
                raise TimeoutError(f"put_sync: no room within {timeout:g} s")

    def close(self, error: BaseException | None = None) -> None:
        """End the data behind what was put; from any thread, and more than once.

        Args:
            error: fails the run instead, as an exception of the source.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._error = error
            self._wake_all()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)

    def __aiter__(self) -> AsyncIterator[T]:
        with self._lock:
            if self._is_read:
                raise RunStateError(READ_TWICE)
            self._is_read = True
        return _Reader(self)

    def left_unread(self) -> None:
        """Hear that a run of a pipeline with this source has ended, perhaps before it began to read.

        Called by the run; at its beginning where it will not read, as a branch with a weight of 0. Where
        nobody reads, puts raise from now on; another pass cannot read it.
        """
        with self._lock:
            if self._is_read:
                return
            self._is_read = True
        self._leave()

    async def _next(self) -> T:
        while True:
            with self._lock:
                if self._items:
                    item = self._items.popleft()
                    self._wake_putter()
                    return item
                if self._closed or self._left:
                    break
                waiter = self._reader = _Waiter(asyncio.get_running_loop())
            await waiter.future
        if self._error is not None and not self._left:
            error, self._error = self._error, None
            raise error
        raise StopAsyncIteration

    def _leave(self) -> None:
        with self._lock:
            self._left = True
            self._items.clear()
            self._wake_all()

    # With the lock held

    def _add(self, item: T) -> bool:
        if self._closed:
            raise RunStateError(CLOSED)
        if self._left:
            raise RunStateError(LEFT)
        if len(self._items) >= self._size:
            return False
        self._items.append(item)
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.wake()
        return True

    def _wake_putter(self) -> None:
        while self._putters and not self._putters.popleft().wake():
            pass

    def _wake_all(self) -> None:
        while self._putters:
            self._putters.popleft().wake()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.wake()

    def _give_up(self, waiter: _Waiter) -> None:
        """Let another one have the room that was meant for a putter which does not want it any more."""
        with self._lock:
            if waiter.woken:
                self._wake_putter()
            elif waiter in self._putters:
                self._putters.remove(waiter)


class _Reader(Generic[T]):
    """Takes the items out; closing it tells those who put that nobody reads any more."""

    def __init__(self, source: PushSource[T]) -> None:
        self._source = source

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await self._source._next()

    async def aclose(self) -> None:
        self._source._leave()
