"""A clock that jumps: pipelines that wait for minutes run in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from spdl_async._runtime.live import threads_at_work

T = TypeVar("T")

LOOK_SECONDS: Final = 0.0005  # real time between two looks at threads that work
PREFIX: Final = "spdl_async-"


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while there is work, and jumps when there is none.

    ``time()`` begins at 0. When nothing is ready, no descriptor has news and no thread of a live
    pipeline is at work, the clock moves on to the next timer at once. So ``asyncio.sleep`` and
    ``asyncio.timeout`` keep their order and their durations on :meth:`time`, and take no real time.

    It knows about threads that ``spdl_async`` has started. Calls on a ``ThreadPoolExecutor`` of
    your own, or in ``asyncio.to_thread``, are not seen: the clock runs on beside them. A run must be
    on this loop (``loop="caller"``): runs with ``loop="own"`` live on real time.

    >>> import asyncio
    >>> from spdl_async import PipelineBuilder
    >>> from spdl_async.testing import VirtualClockLoop
    >>> async def slow(x):
    ...     await asyncio.sleep(60)
    ...     return x
    >>> async def main():
    ...     pipeline = PipelineBuilder().add_source(range(8)).pipe(slow, concurrency=4).build()
    ...     results = [x async for x in pipeline]
    ...     return results, round(asyncio.get_running_loop().time())
    >>> with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
    ...     runner.run(main())
    ([0, 1, 2, 3, 4, 5, 6, 7], 120)
    """

    def __init__(self) -> None:
        self._virtual_now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual_now

    def advance(self, seconds: float) -> None:
        """Move the clock; timers that have become due run in the next turn of the loop."""
        if seconds < 0:
            raise ValueError(f"advance: time does not run backwards, but got {seconds!r}")
        self._virtual_now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that, instead of waiting out a timeout, moves its loop's clock."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        # Looked at before the descriptors: a thread posts its news before it comes to rest.
        if threads_at_work():
            return super().select(LOOK_SECONDS)
        events = super().select(0)
        if not events and _threads_of_ours():
            # A thread may be between coming to rest and saying so.
            events = super().select(LOOK_SECONDS)
        if not events and not threads_at_work():
            self._loop.advance(timeout)
        return events


def _threads_of_ours() -> bool:
    return any(thread.name.startswith(PREFIX) for thread in threading.enumerate())


def run_virtual(main: Coroutine[Any, Any, T], /, *, debug: bool | None = None) -> T:
    """Run a coroutine on a :class:`VirtualClockLoop`, as ``asyncio.run`` does on a real one.

    Use it in an ordinary test function; what the coroutine returns is returned.

    >>> import asyncio
    >>> from spdl_async.testing import run_virtual
    >>> async def main():
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> run_virtual(main())
    3600.0
    """
    with asyncio.Runner(debug=debug, loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)
