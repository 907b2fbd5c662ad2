"""What passes in a row have in common: threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

from spdl_async._plan.steps import Plan
from spdl_async._runtime.pool import ThreadPool


@dataclass(frozen=True)
class Shared:
    """What a pass has in common with the one before and the one after, in a series of epochs.

    Attributes:
        pool: the threads, which the series shuts down, not the pass.
        on_source_end: called on the loop when the pass has read its source to the end.
    """

    pool: ThreadPool
    on_source_end: Callable[[], None]


def new_pool(plan: Plan) -> ThreadPool:
    """Make the thread pool of a plan; it starts its threads when they are needed."""
    return ThreadPool(plan.num_threads, f"spdl_async-{plan.name}")


async def join_all(threads: list[threading.Thread], own: threading.Thread | None) -> None:
    """Join threads that are done or idle, so that it takes microseconds; not the loop's own."""
    for count, thread in enumerate(threads):
        if thread is not own:
            thread.join()
        if count % 16 == 15:
            await asyncio.sleep(0)
