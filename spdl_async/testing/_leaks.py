"""Finding what a piece of code has left behind: tasks, threads of ours, file descriptors."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import importlib.util
import os
import sys
import threading
import traceback
from asyncio import AbstractEventLoop, Task
from collections.abc import Iterable
from time import monotonic
from types import TracebackType
from typing import Any, Self

THREAD_PREFIX = "spdl_async-"
FD_FOLDER = "/proc/self/fd"
RETRY_SECONDS = 0.01


class LeakError(AssertionError):
    """Something outlived the block that was checked; the message lists it with stacks."""


def check_leaks(*, timeout: float = 2.0, loop: AbstractEventLoop | None = None) -> LeakCheck:
    """Return a context manager that fails if the block leaves something behind.

    Looked at are threads whose name begins with ``spdl_async-``, open file descriptors (on Linux)
    and, under ``async with``, the tasks of the running loop. What is about to end anyway is given
    ``timeout`` seconds. A run that was neither closed nor dropped shows up by its threads or tasks.
    Nothing is checked when the block raises: its own error matters more.

    Args:
        timeout: seconds that things may take to settle. The block that leaks nothing waits for none.
        loop: for ``with``: a loop that is not running, whose tasks are checked too; a test's fixture
            uses this. It is run for as long as its tasks take to end, at most ``timeout``.

    Raises:
        LeakError: at the end of the block, listing what is left.

    >>> from spdl_async import PipelineBuilder
    >>> from spdl_async.testing import check_leaks
    >>> pipeline = PipelineBuilder().add_source(range(100)).pipe(str).build()
    >>> with check_leaks():
    ...     for text in pipeline:
    ...         break
    """
    return LeakCheck(timeout=timeout, loop=loop)


class LeakCheck:
    """What :func:`check_leaks` returns: a context manager, sync and async."""

    def __init__(self, *, timeout: float, loop: AbstractEventLoop | None) -> None:
        self._timeout = timeout
        self._loop = loop
        self._threads: set[threading.Thread] = set()
        self._descriptors: dict[int, str] = {}
        self._tasks: set[Task[Any]] = set()
        self._deadline = 0.0

    # In ordinary code

    def __enter__(self) -> Self:
        """Note what is there already.

        Raises:
            RuntimeError: a loop is running in this thread: waiting here would hold it up.
        """
        if _loop_is_running():
            raise RuntimeError("check_leaks: in async code write `async with check_leaks()`")
        self._look(self._loop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            return
        self._begin_wait()
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.run_until_complete(self._let_tasks_end())
        self._join(self._new_threads())
        while self._new_descriptors() and self._left() > 0:
            threading.Event().wait(RETRY_SECONDS)  # a descriptor tells nobody when it is closed
            gc.collect()
        self._verdict([] if loop is None or loop.is_closed() else self._new_tasks(loop))

    # In async code

    async def __aenter__(self) -> Self:
        """Note what is there already."""
        self._look(asyncio.get_running_loop())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            return
        self._begin_wait()
        await self._let_tasks_end()
        loop = asyncio.get_running_loop()
        threads = self._new_threads()
        if threads:
            await self._join_aside(threads, loop)
        while self._new_descriptors() and self._left() > 0:
            await asyncio.sleep(RETRY_SECONDS)
            gc.collect()
        self._verdict(self._new_tasks(loop))

    async def _join_aside(self, threads: list[threading.Thread], loop: AbstractEventLoop) -> None:
        """Join threads without holding up the loop, which they may need to end."""
        joined = asyncio.Event()

        def join() -> None:
            try:
                self._join(threads)
            finally:
                loop.call_soon_threadsafe(joined.set)

        threading.Thread(target=join, name="check_leaks", daemon=True).start()
        await joined.wait()

    # Both

    def _look(self, loop: AbstractEventLoop | None) -> None:
        _open_what_stays_open()
        self._threads = set(_our_threads())
        self._descriptors = _open_descriptors()
        self._tasks = set() if loop is None else set(asyncio.all_tasks(loop))

    def _begin_wait(self) -> None:
        self._deadline = monotonic() + self._timeout
        gc.collect()

    def _left(self) -> float:
        return max(0.0, self._deadline - monotonic())

    async def _let_tasks_end(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)  # what threads have posted runs first
        while (tasks := self._new_tasks(loop)) and self._left() > 0:
            await asyncio.wait(tasks, timeout=self._left())

    def _join(self, threads: Iterable[threading.Thread]) -> None:
        for thread in threads:
            # One that is just being started is in the list already, and cannot be joined yet.
            while not thread.is_alive() and thread.ident is None and self._left() > 0:
                threading.Event().wait(RETRY_SECONDS)
            if thread.is_alive():
                thread.join(self._left())

    def _new_threads(self) -> list[threading.Thread]:
        return [thread for thread in _our_threads() if thread not in self._threads]

    def _new_descriptors(self) -> list[str]:
        before = self._descriptors
        return [
            f"{number} ({target})"
            for number, target in _open_descriptors().items()
            if before.get(number) != target and not target.startswith("/dev/")
        ]

    def _new_tasks(self, loop: AbstractEventLoop) -> list[Task[Any]]:
        current = asyncio.current_task(loop) if _loop_is_running() else None
        tasks = asyncio.all_tasks(loop) - self._tasks
        return [task for task in tasks if task is not current]

    def _verdict(self, tasks: list[Task[Any]]) -> None:
        lines = [f"task {task!r}" for task in tasks]
        lines += [f"thread {_with_stack(thread)}" for thread in self._new_threads()]
        lines += [f"file descriptor {text}" for text in self._new_descriptors()]
        if lines:
            raise LeakError("left behind:\n" + "\n".join(lines))


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@functools.cache
def _open_what_stays_open() -> None:
    """Have libuv open its pipe for signals, and obstore start its threads, once for the process.

    The latter only where obstore is imported already: a test module of object stores imports it.
    """
    if importlib.util.find_spec("uvloop") is not None:
        importlib.import_module("uvloop").new_event_loop().close()
    obstore = sys.modules.get("obstore")
    if obstore is not None:
        obstore.put(importlib.import_module("obstore.store").MemoryStore(), "key", b"")


def _our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_PREFIX)]


def _open_descriptors() -> dict[int, str]:
    """Return what each open descriptor refers to; nothing where the system does not tell."""
    found: dict[int, str] = {}
    try:
        names = os.listdir(FD_FOLDER)
    except OSError:
        return found
    for name in names:
        try:
            found[int(name)] = os.readlink(f"{FD_FOLDER}/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
    return found


def _with_stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    stack = "" if frame is None else "".join(traceback.format_stack(frame))
    return f"{thread.name}:\n{stack}".rstrip()
