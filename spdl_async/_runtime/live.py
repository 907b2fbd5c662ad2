"""Runs that have not ended: they are kept alive here, and stopped at the end of the interpreter.

This is the one piece of module-level state, but for memory that a device which has failed may still read
(``device/_copier.py``). An event loop refers to its tasks only weakly, so
somebody has to hold a run whose handle was dropped until it has stopped.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from time import monotonic
from typing import Protocol

EXIT_SECONDS = 5.0

logger = logging.getLogger("spdl_async")


class Live(Protocol):
    """A run as the end of the interpreter sees it."""

    def post_exit(self) -> None:
        """Ask the run to stop because the interpreter ends."""

    def at_work(self) -> bool:
        """Tell whether one of its threads has work, as opposed to waiting for some."""

    def threads(self) -> list[threading.Thread]:
        """Return its threads that have not ended."""

    def report(self) -> str:
        """Say what still runs: stage, item, stack."""

    def leave_in_fork(self, parent: int) -> None:
        """Take no further part in a child process of ``parent``."""


class Registry:
    """The live runs of this process."""

    def __init__(self) -> None:
        self._runs: set[Live] = set()
        self._inherited: list[Live] = []
        self._hooked = False
        self._pid = 0

    def add(self, run: Live) -> None:
        """Hold a run that starts."""
        if not self._hooked:
            self._hooked = True
            self._pid = os.getpid()
            atexit.register(self.stop_all)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self.after_fork)
        for held in list(self._runs):  # those that let go of a stuck thread which has ended since
            if getattr(held, "let_go", False) and not held.threads():
                self._runs.discard(held)
        self._runs.add(run)

    def after_fork(self) -> None:
        """Let go of the parent's runs, in a child process.

        They are kept all the same: to free them would close generators and sessions of the parent.
        """
        parent, self._pid = self._pid, os.getpid()
        for run in self._runs:
            run.leave_in_fork(parent)
        self._inherited += self._runs
        self._runs.clear()

    def discard(self, run: Live) -> None:
        """Let go of a run that has ended."""
        self._runs.discard(run)

    def threads_at_work(self) -> bool:
        """Tell whether a thread of any live run has work; for a clock that must not run ahead."""
        return any(run.at_work() for run in list(self._runs))

    def stop_all(self) -> None:
        """Stop every run, wait a bounded time for all of them together, then let go."""
        runs = list(self._runs)
        for run in runs:
            run.post_exit()
        deadline = monotonic() + EXIT_SECONDS
        for run in runs:
            for thread in run.threads():
                thread.join(max(0.0, deadline - monotonic()))
            if run.threads():
                logger.warning(
                    "the interpreter ends while a pipeline's code still runs (waited %.0f s):\n%s",
                    EXIT_SECONDS,
                    run.report(),
                )


registry = Registry()


def threads_at_work() -> bool:
    """Tell whether a thread of any live run has work; for a clock that must not run ahead."""
    return registry.threads_at_work()
