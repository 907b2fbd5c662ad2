"""What a step may ask of its engine."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Task
from collections.abc import Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

from spdl_async._runtime.channel import Signal
from spdl_async._runtime.failures import FailureLog
from spdl_async._runtime.pool import ThreadPool
from spdl_async._runtime.ticket import Ledger

if TYPE_CHECKING:
    from spdl_async._runtime.step import Step


class Host(Protocol):
    """What a step may ask of its engine."""

    loop: AbstractEventLoop
    context: Context
    pool: ThreadPool
    ledger: Ledger
    log: FailureLog
    watchers: list[Signal]

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Task[None]:
        """Start a task in the engine's group."""

    @property
    def torn_down(self) -> bool:
        """Whether the loop is being closed, which cancels every task."""

    def cancel_above(self, step: Step) -> None:
        """Stop every step above ``step``."""

    def note_peak(self) -> None:
        """Remember the largest number of source items seen in flight."""

    def became_quiet(self) -> None:
        """Hear that a step's last call in a thread has returned."""

    def crashed(self, error: BaseException) -> None:
        """Hear of an error that is ours, from any thread."""

    def saw_drop(self) -> None:
        """Hear that an op returned DROP."""

    def source_ended(self) -> None:
        """Hear that a source was read to its end and is closed."""
