"""What a branch of a route may hold."""

from __future__ import annotations

from collections.abc import Iterable

from spdl_async._plan.names import stage_name
from spdl_async._plan.shapes import EnumeratePlan, SkipPlan, TakePlan
from spdl_async._plan.steps import (
    FlattenPlan,
    FlowPlan,
    MapPlan,
    RoutePlan,
    StepPlan,
    steps_of,
)
from spdl_async.errors import BuildError


def check_branch(plan: RoutePlan, where: str, steps: Iterable[StepPlan]) -> None:
    """Refuse a stage that a branch cannot have: one that waits for items which order holds back."""
    spreads, mixed = None, None
    for step in steps_of(steps):
        if isinstance(step, TakePlan):
            raise BuildError(
                f"{where}: take ends everything above it, the other branches too; put it below the route"
            )
        one_to_one = isinstance(step, (MapPlan, RoutePlan, SkipPlan, EnumeratePlan))
        if plan.batched and not isinstance(step, (MapPlan, RoutePlan)):
            raise BuildError(
                f"{where}: with batched=True each list that goes in must come back, so a branch has "
                f"1→1 stages only; {stage_name(step)!r} is none"
            )
        if plan.ordered and not one_to_one and not isinstance(step, (FlowPlan, FlattenPlan)):
            raise BuildError(
                f"{where}: {stage_name(step)!r} gathers items, and an item that waits in it would hold "
                f'back every later one; write route(…, output_order="completion")'
            )
        if isinstance(step, (FlowPlan, FlattenPlan)):
            spreads = stage_name(step)
        if isinstance(step, (MapPlan, FlowPlan, RoutePlan)) and not step.ordered:
            mixed = stage_name(step)
    if plan.ordered and spreads is not None and mixed is not None:
        raise BuildError(
            f"{where}: {spreads!r} makes many items of one while {mixed!r} lets them leave as they are "
            f"done, so input order could not be restored within bounds; give {mixed!r} "
            f'output_order="input", or the route "completion"'
        )
