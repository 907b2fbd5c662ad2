"""``cancelled()``: what a running sync op can ask."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spdl_async._runtime.meter import Meter


class Stoppable(Protocol):
    """What runs in a thread and may be told to stop."""

    @property
    def cancelled(self) -> bool:
        """Whether its result is not wanted any more."""

    @property
    def host(self) -> object:
        """The engine that it is a part of."""

    @property
    def meter(self) -> Meter | None:
        """The meter of the stage whose op runs; ``None`` where no op does."""


class _Current(threading.local):
    """The step whose code this thread runs."""

    step: Stoppable | None = None

    def swap(self, step: Stoppable | None) -> Stoppable | None:
        """Set the step of this thread; return the one before."""
        before, self.step = self.step, step
        return before


current = _Current()


def cancelled() -> bool:
    """Tell a sync op, from within, that its run stops, or that its ``timeout`` is over.

    A thread cannot be interrupted from outside, so an op that takes long should ask now and then
    and return early: what it returns is dropped. Outside an op the answer is ``False``.

    >>> from spdl_async import cancelled
    >>> cancelled()
    False
    """
    step = current.step
    return step is not None and step.cancelled
