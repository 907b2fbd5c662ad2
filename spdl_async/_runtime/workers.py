"""The threads of a run, and whether they have work."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from spdl_async._runtime.source_step import SourceStep

if TYPE_CHECKING:
    from spdl_async._runtime.engine import Engine


def is_at_work(engine: Engine) -> bool:
    """Tell whether a thread of the run has work, as opposed to waiting for some."""
    pullers = [step.puller for step in engine.steps if isinstance(step, SourceStep)]
    return any(pool.busy for pool in (engine.pool, *engine.own_pools)) or any(
        puller.alive and not puller.starving for puller in pullers
    )


def threads_of(engine: Engine) -> list[threading.Thread]:
    """Return the threads of the run that have not ended."""
    found = [step.puller.thread for step in engine.steps if isinstance(step, SourceStep)]
    found += [engine.loop_thread, *(t for pool in engine.own_pools for t in pool.threads)]
    if engine.shared is None:  # else they outlive the pass: whoever shares them looks after them
        found += engine.pool.threads
    return [thread for thread in found if thread is not None and thread.is_alive()]
