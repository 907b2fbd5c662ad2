"""The edge between two steps: one writer, one reader, one loop, no sentinels.

What the next step has no room for stays with the step that made it. The writer puts what it has
finished into the channel at once, where the reader finds it without a round trip; but it goes on
counting it as its own until the reader takes it (:attr:`Channel.on_taken`). So a channel has no
size: the bound of a stage bounds everything down to the next one.

The reader says how many it can take (:meth:`Channel.get_many`). The end of data is
:meth:`Channel.close`; a close that carries a failure tells the reader that what came before is
complete and correct, and that nothing must be made up from an open batch.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable
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
    """Where a step writes to: a channel, or the sink.

    Attributes:
        on_taken: told how many items the reader has taken; set by the writer.
        on_demand: told that the reader is about to wait; may push at once. Set by writers that
            make items only when they are asked for.
        on_close: asked before the data end; where it returns true it closes again when it is time.
        quorum: how many items the reader needs before it can do anything with them.
    """

    on_close: Callable[[BaseException | None], bool] | None
    on_taken: Callable[[int], None]
    on_demand: Callable[[], None] | None
    quorum: int

    def room(self) -> int:
        """Return how many items would be taken at once."""

    def push(self, items: list[Item]) -> None:
        """Add items."""

    def close(self, failure: BaseException | None = None) -> None:
        """End the data, after what is already in it."""


class Channel:
    """Items on their way from one step to the next."""

    __slots__ = (
        "_buffer",
        "_demand",
        "_reader",
        "closed",
        "failure",
        "on_close",
        "on_demand",
        "on_taken",
        "quorum",
    )

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._buffer: deque[Item] = deque()
        self._demand = 0
        self._reader = Signal(loop)
        self.closed = False
        self.failure: BaseException | None = None
        self.on_taken: Callable[[int], None] = nobody
        self.on_demand: Callable[[], None] | None = None
        self.on_close: Callable[[BaseException | None], bool] | None = None
        self.quorum = 1

    def __len__(self) -> int:
        return len(self._buffer)

    def room(self) -> int:
        return max(0, self._demand - len(self._buffer))

    def push(self, items: list[Item]) -> None:
        self._buffer.extend(items)
        self._reader.set()

    async def get_many(self, most: int) -> list[Item]:
        """Return between one and ``most`` items; an empty list means the end."""
        buffer = self._buffer
        while not buffer:
            if self.closed:
                return []
            self._demand = most
            try:
                if self.on_demand is not None:
                    self.on_demand()
                if not buffer and not self.closed:
                    await self._reader.wait()
            finally:
                self._demand = 0
        if len(buffer) <= most:
            items = list(buffer)
            buffer.clear()
        else:
            items = [buffer.popleft() for _ in range(most)]
        self.on_taken(len(items))
        return items

    def clear(self) -> None:
        """Let go of what nobody will take."""
        self._buffer.clear()
        self.failure = None

    def close(self, failure: BaseException | None = None) -> None:
        if self.on_close is not None and self.on_close(failure):
            return
        if not self.closed:
            self.closed = True
            self.failure = failure
            self._reader.set()


def nobody(count: int) -> None:
    """Stand in for a writer that does not count."""
