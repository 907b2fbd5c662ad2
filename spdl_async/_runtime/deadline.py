"""When the time of a call is over: cancelling it on the loop, and the failure that it becomes."""

from __future__ import annotations

import asyncio
import sys
import traceback
from asyncio import Task, TimerHandle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spdl_async._runtime.ticket import Item, OpFailure, where_is
from spdl_async.errors import StageTimeout

if TYPE_CHECKING:
    from spdl_async._runtime.step import Step

PACKAGE = str(Path(__file__).parent.parent)


class Deadline:
    """Cancels the current task when user code that it awaits takes longer than ``seconds``.

    Between :meth:`start` and :meth:`stop` the task must run nothing but that code. A stop of the run
    is told apart by :meth:`~spdl_async._runtime.step.Step.asked_to_stop`; a ``TimeoutError`` of the
    user's own is one that comes while :attr:`over` is false.
    """

    __slots__ = ("_seconds", "_step", "_task", "_timer", "over")

    def __init__(self, step: Step, seconds: float) -> None:
        self._step = step
        self._seconds = seconds
        self._task: Task[Any] | None = None
        self._timer: TimerHandle | None = None
        self.over = False

    def start(self, seconds: float | None = None) -> None:
        """Begin to count; ``seconds``: what is left, where a part is spent already."""
        self.over = False
        self._task = asyncio.current_task()
        left = self._seconds if seconds is None else max(0.0, seconds)
        self._timer = self._step.host.loop.call_later(left, self._expire)

    def stop(self) -> bool:
        """Count no longer; return whether the time was over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.over and self._task is not None:
            self._step.overdue.discard(self._task)
            self._task.uncancel()
        self._task = None
        return self.over

    def _expire(self) -> None:
        self._timer = None
        if self._task is not None:
            self.over = True
            self._step.overdue.add(self._task)
            self._task.cancel()


def time_over(stage: str, item: Item, seconds: float, stack: str = "") -> OpFailure:
    """Return the failure of a call whose time is over; ``stack``: where it was then."""
    error = StageTimeout(
        f"stage {stage!r}: a call on {where_is(item)} took longer than timeout={seconds:g} s",
        stage=stage,
        index=item.index,
        seconds=seconds,
    )
    if stack:
        error.add_note(f"spdl_async: when its time was over the call was here:\n{stack.rstrip()}")
    return OpFailure(error, "".join(traceback.format_exception_only(error)))


def stack_of_thread(ident: int) -> str:
    """Return where a thread is now, from the first frame below our own code on."""
    frame = sys._current_frames().get(ident)
    if frame is None:
        return ""
    frames = traceback.extract_stack(frame)
    ours = [k for k, entry in enumerate(frames) if entry.filename.startswith(PACKAGE)]
    below = frames[ours[-1] + 1 :] if ours else frames
    return "".join(traceback.format_list(below or frames[-1:]))


def stack_of_error(error: BaseException) -> str:
    """Return where a cancelled coroutine was, from the first frame below our own code on."""
    frames = traceback.extract_tb(error.__traceback__)
    below = [entry for entry in frames if not entry.filename.startswith(PACKAGE)]
    return "".join(traceback.format_list(below))
