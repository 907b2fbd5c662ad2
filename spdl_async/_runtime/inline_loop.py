"""Async code in ordinary code, for ``run_sync(inline=True)``: a loop in the calling thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Generator
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

    def drive(self, values: AsyncIterable[Any]) -> Generator[Any, None, None]:
        """Iterate an async iterable in this thread."""
        iterator = aiter(values)
        try:
            while True:
                try:
                    value = self.wait_for(anext(iterator))
                except StopAsyncIteration:
                    return
                yield value
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                self.wait_for(close())

    def close(self) -> None:
        """End what is left on the loop, and close it."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
