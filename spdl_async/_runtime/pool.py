"""Our thread pool: first in, first out, daemon threads, and a count of the jobs that wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


LEAVE: Final = object()
"""What a job returns whose thread was abandoned and is to end."""


class ThreadPool(Executor):
    """A ``concurrent.futures.Executor`` whose threads never hold up the end of the interpreter.

    Threads are started when a job finds none idle, up to ``max_workers``. :attr:`waiting` tells
    whoever holds a thread that others wait for one, so that it can go to the end of the line. Each
    thread calls ``at_exit`` when it ends.
    """

    def __init__(
        self,
        max_workers: int,
        name: str = "spdl_async",
        at_exit: Callable[[], object] | None = None,
    ) -> None:
        self._at_exit = at_exit
        self._max_workers = max_workers
        self._name = name
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self.threads: list[threading.Thread] = []
        self._idle = 0
        self._started = 0
        self._closed = False
        self.waiting = 0
        self.leaving: int | None = None  # the thread that is in at_exit now

    @property
    def busy(self) -> bool:
        """Whether a job waits or runs."""
        return self.waiting > 0 or self._idle < len(self.threads)

    def put(self, job: Callable[[], object]) -> None:
        """Queue a job that handles its own errors.

        Raises:
            RuntimeError: the pool is shut down.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the thread pool is shut down")
            self.waiting += 1
            if self.waiting > self._idle and len(self.threads) < self._max_workers:
                self._start_thread()
        self._jobs.put(job)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Queue a call and return its future, as any executor does."""
        future: Future[R] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 -- it belongs to the future
                future.set_exception(error)
            else:
                future.set_result(result)

        self.put(job)
        return future

    def abandon(self, ident: int) -> None:
        """Count a thread no more that is stuck in a job, so that another may be started.

        The thread ends itself when that job returns :data:`LEAVE`.
        """
        with self._lock:
            self.threads[:] = [thread for thread in self.threads if thread.ident != ident]
            if self.waiting > self._idle and not self._closed:
                self._start_thread()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end after the jobs that are queued; ``wait`` joins them."""
        del cancel_futures  # a queued job always runs: hops must give their slots back
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in self.threads:
                    self._jobs.put(None)
        if wait:
            for thread in self.threads:
                thread.join()

    def _start_thread(self) -> None:
        thread = threading.Thread(
            target=self._work, name=f"{self._name}-{self._started}", daemon=True
        )
        self._started += 1
        self.threads.append(thread)
        self._idle += 1
        thread.start()

    def _work(self) -> None:
        job: Any
        while True:
            job = self._jobs.get()
            if job is None:
                if self._at_exit is not None:
                    self.leaving = threading.get_ident()
                    try:
                        self._at_exit()
                    finally:
                        self.leaving = None
                return
            with self._lock:
                self._idle -= 1
                self.waiting -= 1
            if job() is LEAVE:
                return
            # An idle thread must not keep the last job's items alive.
            job = None
            with self._lock:
                self._idle += 1
