"""The edge between two steps: bounded, on one loop, without sentinels.

A channel holds at most ``capacity`` items beyond what the reader has asked for. With the default of
zero it is a rendezvous: what the next step has no room for stays with the step that made it, so
the bound of a stage is the bound of everything between two stages. The reader names how many it
can take (:meth:`Channel.get_many`), and while it waits the writer may fill that demand in one go.

The end of data is :meth:`Channel.close`; a close that carries a failure tells the reader that
what came before is complete and correct, and that nothing must be made up from an open batch.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections import deque
from typing import Protocol

from spdl_async._runtime.ticket import Item


class Signal:
    """A level for one waiting coroutine; ``set`` before ``wait`` is remembered."""

    __slots__ = ("_is_set", "_loop", "_waiter")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._is_set = False
        self._waiter: Future[None] | None = None

    def set(self) -> None:
        """Wake the waiting coroutine, or the next one that waits."""
        waiter = self._waiter
        if waiter is None:
            self._is_set = True
        elif not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Return when the signal is set, and clear it."""
        if self._is_set:
            self._is_set = False
            return
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Outlet(Protocol):
    """Where a step writes to: a channel, or the sink."""

    def room(self) -> int:
        """Return how many items can be put now."""

    def put_nowait(self, items: list[Item], start: int = 0) -> int:
        """Put what fits of ``items[start:]``; return how many that were."""

    async def wait_room(self) -> None:
        """Return when there is room for at least one item."""

    def close(self, failure: BaseException | None = None) -> None:
        """End the data, after what is already in it."""


class Channel:
    """A bounded hand-over of items from one writer to one reader on the same loop."""

    __slots__ = (
        "_buffer",
        "_capacity",
        "_demand",
        "_reader",
        "_writer",
        "closed",
        "failure",
        "peak",
    )

    def __init__(self, loop: AbstractEventLoop, capacity: int = 0) -> None:
        self._buffer: deque[Item] = deque()
        self._capacity = capacity
        self._demand = 0
        self._reader = Signal(loop)
        self._writer = Signal(loop)
        self.closed = False
        self.failure: BaseException | None = None
        self.peak = 0

    def __len__(self) -> int:
        return len(self._buffer)

    def room(self) -> int:
        """Return how many items can be put now."""
        return self._capacity + self._demand - len(self._buffer)

    def put_nowait(self, items: list[Item], start: int = 0) -> int:
        """Put what fits of ``items[start:]``; return how many that were."""
        count = min(self.room(), len(items) - start)
        if count <= 0:
            return 0
        self._buffer.extend(items if count == len(items) else items[start : start + count])
        self._reader.set()
        return count

    async def wait_room(self) -> None:
        """Return when there is room for at least one item."""
        while self.room() <= 0:
            await self._writer.wait()

    async def get_many(self, most: int) -> list[Item]:
        """Return between one and ``most`` items; an empty list means the end."""
        buffer = self._buffer
        while not buffer:
            if self.closed:
                return []
            self._demand = most
            self._writer.set()
            try:
                await self._reader.wait()
            finally:
                self._demand = 0
        if len(buffer) <= most:
            items = list(buffer)
            buffer.clear()
        else:
            items = [buffer.popleft() for _ in range(most)]
        if self._capacity:
            self._writer.set()
        return items

    def close(self, failure: BaseException | None = None) -> None:
        """End the data, after what is already in the channel."""
        if not self.closed:
            self.closed = True
            self.failure = failure
            self._reader.set()
