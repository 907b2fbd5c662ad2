"""What still runs of a pass, for the message about a stop that takes long."""

from __future__ import annotations

import logging
import sys
import traceback
from asyncio import Task
from collections.abc import Iterable

from spdl_async._runtime.stall import suspended_frames
from spdl_async._runtime.step import Step
from spdl_async._runtime.ticket import where_is

logger = logging.getLogger("spdl_async")


def report_of(steps: Iterable[Step], tasks: Iterable[Task[None]]) -> str:
    """Say what still runs: stage, item, and the stack of the thread or task."""
    frames = sys._current_frames()
    parts = []
    for step in steps:
        in_span = step.span.running() if step.span is not None else []
        for stage, ident, item in (*step.running(), *in_span):
            on = "" if item is None else f" on {where_is(item)}"
            frame = frames.get(ident)
            stack = "" if frame is None else "".join(traceback.format_stack(frame))
            parts.append(f"stage {stage!r}{on} still runs:\n{stack}")
    for task in list(tasks):
        stack = "".join(
            line
            for frame in suspended_frames(task.get_coro())
            for line in traceback.format_stack(frame, limit=1)
        )
        parts.append(f"task {task.get_name()!r} has not ended:\n{stack}")
    return "\n".join(parts) or "nothing of it runs any more"


def warn_of_abandoned(name: str, steps: Iterable[Step]) -> None:
    """Name in one warning the calls that go on beside the end of a run."""
    calls = [call for step in steps for call in step.left_behind()]
    if calls:
        logger.warning(
            "pipeline %r has ended beside %d calls that were abandoned when their timeout was over and "
            "still run: %s",
            name,
            len(calls),
            "; ".join(calls),
        )
