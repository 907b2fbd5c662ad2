"""Event loops of ours, each in a thread of its own, for runs that do not use the caller's loop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

LEFTOVER_SECONDS = 1.0


def new_loop() -> AbstractEventLoop:
    """Return a new event loop: uvloop's where it is installed, else asyncio's."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    loop: AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """Runs one coroutine on a loop in a daemon thread, then closes the loop."""

    def __init__(self, name: str) -> None:
        self.loop = new_loop()
        self.name = name
        self.thread: threading.Thread | None = None

    def start(
        self,
        main: Callable[[], Coroutine[Any, Any, None]],
        context: Context,
        on_end: Callable[[], None],
    ) -> threading.Thread:
        """Start the thread; ``on_end`` is called in it as the last thing."""
        self.thread = threading.Thread(
            target=context.copy().run, args=(self._run, main, on_end), name=self.name, daemon=True
        )
        self.thread.start()
        return self.thread

    def _run(
        self, main: Callable[[], Coroutine[Any, Any, None]], on_end: Callable[[], None]
    ) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(main())
            loop.run_until_complete(_end_leftovers())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
            on_end()


async def _end_leftovers() -> None:
    """Cancel tasks that user code has started and left, and give them a moment."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=LEFTOVER_SECONDS)
