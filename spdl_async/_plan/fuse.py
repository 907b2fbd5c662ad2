"""Fusing: adjacent sync 1→1 stages share one hop, so an item crosses threads once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from spdl_async._plan.steps import MapPlan, StepPlan
from spdl_async.spec.stages import Scope


@dataclass(frozen=True)
class Placed:
    """A planned step, whether it may be fused, and the inner build that it comes from."""

    step: StepPlan
    fusable: bool
    inner: Scope | None


def fuse(steps: Iterable[Placed]) -> list[Placed]:
    """Join neighbours that may share a hop."""
    joined: list[Placed] = []
    for placed in steps:
        if joined and alike(joined[-1], placed):
            above, step = joined[-1].step, placed.step
            assert isinstance(above, MapPlan)
            assert isinstance(step, MapPlan)
            joined[-1] = replace(joined[-1], step=replace(above, ops=above.ops + step.ops))
        else:
            joined.append(placed)
    return joined


def alike(one: Placed, other: Placed) -> bool:
    """Tell whether two sync stages may share a hop.

    At a concurrency of one fusing would take away the overlap between the two.
    """
    above, step = one.step, other.step
    if not (isinstance(above, MapPlan) and isinstance(step, MapPlan)):
        return False
    first, second = above.ops[-1], step.ops[0]
    return (
        one.fusable
        and other.fusable
        and one.inner is other.inner
        and above.concurrency == step.concurrency >= 2
        and above.ordered == step.ordered
        and above.executor is step.executor
        and above.buffer_size == step.buffer_size
        and first.policy == second.policy
        and first.scope is second.scope
    )
