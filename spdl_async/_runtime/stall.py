"""The stall watchdog: one log record where nothing comes although the consumer waits.

One timer on the engine's loop, armed when a consumer begins to wait and none is; where nobody waits
when it is due it is not armed again until somebody does. So a run whose consumer never waits arms it
never, and one whose consumer waits for every result arms it once in ``stall_warning`` seconds.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from asyncio import Task, TimerHandle
from collections.abc import Iterator
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from spdl_async._runtime.source_step import SourceStep
from spdl_async._runtime.ticket import Item, where_is

if TYPE_CHECKING:
    from spdl_async._runtime.engine import Engine
    from spdl_async._runtime.step import Step

MOST_SHOWN: Final = 4  # of many calls that are held up the first ones tell enough

RUNTIME: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
THREADING: Final = threading.__file__

logger = logging.getLogger("spdl_async")

Held = tuple[str, Item | None, str]  # stage, item, stack


class StallWatch:
    """Tells once, until the next delivery, that nothing was delivered for ``seconds``."""

    __slots__ = ("_armed", "_engine", "_now", "_seen", "_since", "_timer", "_told", "seconds")

    def __init__(self, engine: Engine, seconds: float, *, own_loop: bool) -> None:
        self.seconds = seconds
        self._engine = engine
        # A loop's own time, which a test may hold still; asked from another thread it may be stale.
        self._now = monotonic if own_loop else engine.loop.time
        self._armed = False
        self._told = False
        self._seen = -1
        self._since = 0.0
        self._timer: TimerHandle | None = None

    def wait_begins(self) -> None:
        """Hear from the consumer, in any thread, that it begins to wait."""
        delivered = self._engine.handover.delivered
        if delivered != self._seen:
            self._seen = delivered
            self._since = self._now()
            self._told = False
        if not self._armed and not self._told:
            self._since = self._now()
            self._armed = True
            self._engine.call_on_loop(self._arm)

    def end(self) -> None:
        """Let go of the timer: the run is over."""
        self._told = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is None and not self._told:
            left = self._since + self.seconds - self._now()
            self._timer = self._engine.loop.call_later(max(0.0, left), self._look)

    def _look(self) -> None:
        self._timer = None
        self._armed = False  # before looking: who begins to wait after that arms it
        handover = self._engine.handover
        if handover.ended or handover.closed or not handover.consumer_waits():
            return
        quiet = self._now() - self._since
        if quiet < self.seconds:
            self._armed = True
            self._arm()
            return
        self._told = True
        logger.warning(
            "pipeline %r: nothing was delivered for %.1f s while its consumer waits. %s",
            self._engine.plan.name,
            quiet,
            describe(self._engine),
        )


def describe(engine: Engine) -> str:
    """Say who holds up the results: stage, item, and the stack of the thread or coroutine."""
    held = [entry for step in reversed(engine.steps) for entry in held_by(step)]
    if not held:
        return f"No user code of it runs now:\n{engine.report()}"
    parts = ["It waits for:"]
    for stage, item, stack in held[:MOST_SHOWN]:
        on = "" if item is None else f" on {where_is(item)}"
        parts.append(f"stage {stage!r}{on}\n{stack.rstrip()}")
    if len(held) > MOST_SHOWN:
        parts.append(f"and {len(held) - MOST_SHOWN} other calls")
    return "\n".join(parts)


def held_by(step: Step) -> list[Held]:
    """Return the calls of user code that a step waits for, that of the foremost item first."""
    frames = sys._current_frames()
    held: list[Held] = []
    span = step.span
    is_source = isinstance(step, SourceStep)
    if not (isinstance(step, SourceStep) and step.puller.starving):  # that one waits for us
        for stage, ident, item in step.running():
            if item is not None or is_source:
                held.append((stage, item, thread_stack(frames.get(ident))))
    tasks = list(step.tasks)
    if span is not None:
        held += [(stage, None, thread_stack(frames.get(i))) for stage, i, _ in span.running()]
        if span.task is not None:
            tasks.append(span.task)
    for task in tasks:
        ours, theirs = parted(task)
        if theirs:
            stack = "".join(line for f in theirs for line in traceback.format_stack(f, limit=1))
            held.append((*stage_and_item(step, ours), stack))
    held.sort(key=lambda entry: -1 if entry[1] is None else entry[1].index)
    return held


def thread_stack(frame: FrameType | None) -> str:
    """Return a thread's stack, from the user's code on where there is some."""
    if frame is None:
        return "  (in the executor)"
    stack = traceback.extract_stack(frame)
    theirs = [f for f in stack if not f.filename.startswith(RUNTIME) and f.filename != THREADING]
    return "".join(traceback.format_list(theirs or stack))


def parted(task: Task[None]) -> tuple[FrameType | None, list[FrameType]]:
    """Return our frame that awaits user code in a task of a step, and the frames of that code."""
    if task.done():
        return None, []
    ours = None
    frames = list(suspended_frames(task.get_coro()))
    for at, frame in enumerate(frames):
        if not frame.f_code.co_filename.startswith(RUNTIME):
            return ours, frames[at:]
        ours = frame
    # The awaitable of an async generator's ``anext`` does not tell whose it is.
    iterator = None if ours is None else local(ours, "iterator")
    if getattr(iterator, "ag_running", False):
        return ours, list(suspended_frames(iterator))
    return ours, []


def stage_and_item(step: Step, ours: FrameType | None) -> tuple[str, Item | None]:
    """Return the stage and the item that one of our suspended frames is about."""
    name = step.span.name if step.span is not None and not step.tasks else step.meters[0].name
    if ours is None:
        return name, None
    item = local(ours, "item") or getattr(local(ours, "flow"), "item", None)
    at = local(ours, "at")
    if isinstance(at, int) and at < len(step.meters):
        name = step.meters[at].name
    return name, item if isinstance(item, Item) and not isinstance(step, SourceStep) else None


def local(frame: FrameType, name: str) -> Any:
    """Return a local variable of a suspended frame, without having the frame keep a copy of all."""
    variables = frame.f_locals
    value = variables.get(name)
    if isinstance(variables, dict):  # before Python 3.13 a snapshot, which the frame would keep
        variables.clear()
    return value


def suspended_frames(awaited: Any) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine, down to what it waits for."""
    while awaited is not None:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                yield frame
                inner = {"cr": "cr_await", "gi": "gi_yieldfrom", "ag": "ag_await"}[kind]
                awaited = getattr(awaited, inner, None)
                break
        else:
            awaited = None
