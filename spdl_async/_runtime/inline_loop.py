"""Async code in ordinary code, for ``run_sync(inline=True)``: a loop in the calling thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable
from typing import Any

from spdl_async.errors import RunStateError


class InlineLoop:
    """A loop that runs only while something is awaited; made when first needed."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """Run an awaitable on a loop of our own in this thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            close = getattr(awaitable, "close", None)
            if close is not None:
                close()
            raise RunStateError(
                "run_sync(inline=True) runs async ops in the calling thread, where a loop is running "
                "already; use it from ordinary code, or pipeline.run() here"
            )
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
        return self.loop.run_until_complete(_awaited(awaitable))

    def drive(self, values: AsyncIterable[Any]) -> AsyncInOrdinary:
        """Return an iterator over an async iterable."""
        return AsyncInOrdinary(self, values)

    def close(self) -> None:
        """End what is left on the loop, and close it."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class AsyncInOrdinary:
    """Iterates an async iterable in this thread; an item that fails does not end it."""

    def __init__(self, loop: InlineLoop, values: AsyncIterable[Any]) -> None:
        self._loop = loop
        self._iterator = aiter(values)

    def __iter__(self) -> AsyncInOrdinary:
        return self

    def __next__(self) -> Any:
        try:
            return self._loop.wait_for(anext(self._iterator))
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Close the async iterator, where it can be."""
        closing = getattr(self._iterator, "aclose", None)
        if closing is not None:
            self._loop.wait_for(closing())
