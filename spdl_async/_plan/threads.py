"""How many threads a plan can use."""

from __future__ import annotations

from collections.abc import Iterable

from spdl_async._plan.copying import CopyPlan
from spdl_async._plan.fuse import Placed
from spdl_async._plan.steps import AggregatePlan, FlowPlan, MapPlan, StepPlan
from spdl_async.spec.stages import Scope


def count_threads(scope: Scope, steps: Iterable[Placed]) -> int:
    """Return the size of our pool: as given, else the concurrency of the thread stages in sum.

    An inlined pipeline that was built with a ``num_threads`` brings that many.
    """
    if scope.num_threads is not None:
        return scope.num_threads
    inner = {id(p.inner): p.inner.num_threads for p in steps if p.inner is not None}
    threads = sum(number for number in inner.values() if number is not None)
    for placed in steps:
        if placed.inner is None or placed.inner.num_threads is None:
            threads += threads_of(placed.step)
    return max(1, threads)


def threads_of(step: StepPlan) -> int:
    """Return how many threads of our pool a step can use at once."""
    if isinstance(step, CopyPlan):  # it has a thread of its own
        return 0
    if isinstance(step, AggregatePlan):
        return 1 if step.executor is None else 0
    if isinstance(step, MapPlan):
        return 0 if step.on_loop or step.executor is not None else step.concurrency
    if isinstance(step, FlowPlan):
        return step.concurrency if step.executor is None else 0
    return 0
