"""How many items a plan can have in flight, and how many it makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spdl_async._plan.filtering import AsyncFilter, Filter
from spdl_async._plan.place import drains
from spdl_async._plan.shapes import SHAPE_PLANS, shape_bound, shape_length
from spdl_async._plan.steps import (
    FLATTEN_CHUNK,
    MAX_CHUNK,
    WINDOW_FACTOR,
    AggregatePlan,
    BatchPlan,
    FlattenPlan,
    FlowPlan,
    MapPlan,
    Plan,
)
from spdl_async.spec.policy import FailurePolicy


@dataclass(frozen=True)
class Bound:
    """The largest number of elements that one place holds, in that place's own elements."""

    place: str
    elements: int | None
    what: str


def bounds(plan: Plan) -> tuple[Bound, ...]:
    """Return the bound of every place that can hold items, from the source to the sink."""
    found = [Bound(plan.source.op.name, 0 if plan.source.builtin else MAX_CHUNK, "source chunk")]
    for step in plan.steps:
        if isinstance(step, MapPlan):
            found.append(Bound(" + ".join(op.name for op in step.ops), held_by(step), "window"))
        elif isinstance(step, FlowPlan):
            found.append(Bound(step.op.name, step.bound, "window of inputs and their values"))
        elif isinstance(step, BatchPlan):
            found.append(Bound(step.name, step.bound, "open batch and small ones ahead"))
        elif isinstance(step, AggregatePlan):
            found.append(Bound(step.op.name, None, "whatever the aggregator holds"))
        elif isinstance(step, SHAPE_PLANS):
            found.append(Bound(step.name, *shape_bound(step)))
        else:
            found.append(Bound(step.op.name, FLATTEN_CHUNK, "lists taken apart"))
    found.append(Bound("sink", plan.sink_size, "sink"))
    return tuple(found)


def held_by(step: MapPlan | FlowPlan) -> int:
    """Return the most elements that a step holds."""
    if isinstance(step, MapPlan) and step.executor is not None and not drains(step.executor):
        return WINDOW_FACTOR * step.concurrency
    return step.bound


def source_items_bound(plan: Plan) -> int | None:
    """Return the most source items that can be in flight; ``None`` where it cannot be computed."""
    total, each = 0 if plan.source.builtin else MAX_CHUNK, 1
    for step in plan.steps:
        if isinstance(step, (MapPlan, FlowPlan)):
            total += held_by(step) * each
        elif isinstance(step, BatchPlan):
            total += step.bound * each
            each *= step.size
        elif isinstance(step, SHAPE_PLANS):
            total += shape_bound(step)[0] * each
        else:
            return None
    return total + plan.sink_size * each


def source_length(source: Any) -> int | None:
    """Return a source's length where it tells one, else ``None``."""
    try:
        return len(source)
    except TypeError:
        return None


class LengthUnknownError(TypeError):
    """The number of results cannot be known; the message says which stage makes it so."""


def length(plan: Plan) -> int:
    """Return the exact number of results of a pass.

    Raises:
        LengthUnknownError: it cannot be known.
    """
    known = hint(plan)
    filters = filters_in(plan)
    if filters:
        raise LengthUnknownError(
            f"filter {filters[0]!r} drops items, so the number of results is not known"
        )
    policies = [(plan.source.op.name, plan.source.op.policy)]
    for step in plan.steps:
        if isinstance(step, MapPlan):
            policies += [(op.name, op.policy) for op in step.ops]
    for name, policy in policies:
        if policy != FailurePolicy():
            raise LengthUnknownError(
                f"stage {name!r} skips failures, so the number of results is not known"
            )
    return known


def hint(plan: Plan) -> int:
    """Return the number of results if nothing is dropped or skipped.

    Raises:
        LengthUnknownError: the source has no length, or a stage changes the number freely.
    """
    count = source_length(plan.source.source)
    if count is None:
        raise LengthUnknownError("the source has no len()")
    for step in plan.steps:
        if isinstance(step, SHAPE_PLANS):
            count = shape_length(step, count)
        elif isinstance(step, BatchPlan) and step.within is not None:
            raise LengthUnknownError(
                f"stage {step.name!r} emits short batches after {step.within:g} s, so their number "
                f"is not known"
            )
        elif isinstance(step, BatchPlan):
            count = count // step.size if step.drop_last else -(-count // step.size)
        elif isinstance(step, FlowPlan):
            raise LengthUnknownError(f"stage {step.op.name!r} makes any number of items of one")
        elif isinstance(step, AggregatePlan):
            raise LengthUnknownError(f"aggregator {step.op.name!r} makes any number of items")
        elif isinstance(step, FlattenPlan):
            raise LengthUnknownError("disaggregate makes any number of items of one")
    return count


def filters_in(plan: Plan) -> list[str]:
    """Return the names of the stages that are filters."""
    return [
        op.name
        for step in plan.steps
        if isinstance(step, MapPlan)
        for op in step.ops
        if isinstance(op.call, (Filter, AsyncFilter))
    ]
