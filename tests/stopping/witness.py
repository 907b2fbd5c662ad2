"""What the tests of stopping look with: counted calls, gates, and a wait for the end of things."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

PATIENCE = 10.0


class Witness:
    """Counts calls that began, ended and run now, under a lock.

    Attributes:
        began: calls that have begun.
        ended: calls that have ended, however they did.
        peak: the most calls that ran at once.
        threads: names of the threads in which they ran.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.began = 0
        self.ended = 0
        self.peak = 0
        self.threads: set[str] = set()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count one call."""
        with self._lock:
            self.began += 1
            self.peak = max(self.peak, self.began - self.ended)
            self.threads.add(threading.current_thread().name)
        try:
            yield
        finally:
            with self._lock:
                self.ended += 1

    @property
    def running(self) -> int:
        """Calls that run now."""
        with self._lock:
            return self.began - self.ended


class Gate:
    """A sync op that shows that it is in, and stays until it is let out."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.witness = Witness()

    def pass_through(self, item: int) -> int:
        """Wait in a frame whose name tests look for in stacks."""
        with self.witness.call():
            self.entered.set()
            assert self.opened.wait(PATIENCE), "nobody opened the gate"
            return item


def our_threads() -> list[str]:
    """Return the names of the library's threads that are alive."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("spdl_async"))


def other_tasks() -> list[asyncio.Task[object]]:
    """Return the tasks of the running loop except the current one."""
    return [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait in an ordinary thread for what no event announces, such as the end of a thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.002)


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait in a task for what no event announces; the loop goes on."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.002)


def wait_for_silence() -> None:
    """Wait until no thread of the library is left."""
    gc.collect()
    wait_until(lambda: not our_threads())


async def silence() -> None:
    """Wait until no thread of the library and no other task of this loop is left."""
    gc.collect()
    await until(lambda: not our_threads() and not other_tasks())


async def ticks(count: int) -> None:
    """Let the loop go round a number of times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def entered(event: threading.Event) -> None:
    """Wait in a task for an event that a thread sets."""
    await until(event.is_set)


async def forever(item: int) -> int:
    """Wait for ever, as a request to a dead server does."""
    await asyncio.Event().wait()
    return item


async def slowly(count: int) -> AsyncIterator[int]:
    """Yield numbers, giving the loop a turn before each."""
    for number in range(count):
        await asyncio.sleep(0)
        yield number
