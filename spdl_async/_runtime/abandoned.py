"""Calls that were abandoned when their timeout was over: what is said about them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spdl_async._plan.steps import ABANDONED_FACTOR
from spdl_async.errors import TooManyFailures

if TYPE_CHECKING:
    from spdl_async._runtime.foreign_step import ForeignStep
    from spdl_async._runtime.timed_step import TimedStep

logger = logging.getLogger("spdl_async")


def log_late(stage: str, error: BaseException) -> None:
    """Log what an abandoned call has raised; nobody else will hear of it."""
    logger.debug(
        "stage %r: a call that was abandoned when its timeout was over has failed since",
        stage,
        exc_info=error,
    )


def too_many_abandoned(step: TimedStep | ForeignStep, still_run: int) -> TooManyFailures:
    """Return the error of a stage with more stuck calls than it may have."""
    name = step.meters[0].name
    return TooManyFailures(
        f"stage {name!r}: {still_run} calls that were abandoned after timeout={step.timeout:g} s "
        f"still run, more than {ABANDONED_FACTOR} × concurrency ({step.concurrency}). Have the op ask "
        f"spdl_async.cancelled() and return, give what it waits for a timeout of its own, or raise "
        f"timeout=",
        [r for r in step.judges[0].log.records if r.stage == name],
    )
