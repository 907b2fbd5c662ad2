"""How many items a plan can have in flight, and how many it makes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from spdl_async._plan.caching import CachePlan
from spdl_async._plan.filtering import AsyncFilter, Filter
from spdl_async._plan.place import drains
from spdl_async._plan.shapes import SHAPE_PLANS, shape_bound, shape_length
from spdl_async._plan.steps import (
    ABANDONED_FACTOR,
    FLATTEN_CHUNK,
    MAX_CHUNK,
    AggregatePlan,
    BatchPlan,
    ChainPlan,
    FlowPlan,
    MapPlan,
    MergePlan,
    Plan,
    RoutePlan,
    SourcePlan,
    StepPlan,
    all_steps,
    sources_of,
    steps_of,
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
    return (*_bounds_of(plan), Bound("sink", plan.sink_size, "sink"))


def _bounds_of(chain: Plan | ChainPlan) -> list[Bound]:
    source = chain.source
    if isinstance(source, MergePlan):
        found = [bound for branch in source.branches for bound in _bounds_of(branch)]
        found.append(Bound(source.op.name, source.bound, "taken from the branches"))
    else:
        found = [Bound(source.op.name, 0 if source.builtin else MAX_CHUNK, "source chunk")]
    for step in steps_of(chain.steps):
        found.append(_bound_of(step))
        if isinstance(step, (MapPlan, FlowPlan)):
            found += abandoned(step)
    return found


def _bound_of(step: StepPlan) -> Bound:
    if isinstance(step, MapPlan):
        return Bound(" + ".join(op.name for op in step.ops), held_by(step), "window")
    if isinstance(step, FlowPlan):
        return Bound(step.op.name, step.bound, "window of inputs and their values")
    if isinstance(step, BatchPlan):
        return Bound(step.name, step.bound, "open batch and small ones ahead")
    if isinstance(step, AggregatePlan):
        held = (
            "whatever the aggregator holds" if step.bound is None else "open lists, and what waits"
        )
        return Bound(step.op.name, step.bound, held)
    if isinstance(step, RoutePlan):
        what = (
            "not found, or waiting for"
            if isinstance(step, CachePlan)
            else "in the branches, or waiting for"
        )
        return Bound(step.name, step.bound, f"{what} an earlier one")
    if isinstance(step, SHAPE_PLANS):
        return Bound(step.name, *shape_bound(step))
    return Bound(step.op.name, FLATTEN_CHUNK, "lists taken apart")


def abandoned(step: MapPlan | FlowPlan) -> list[Bound]:
    """Return the bound of the items that calls hold after their time was over."""
    op = step.op if isinstance(step, FlowPlan) else step.ops[0]
    if op.timeout is None or step.on_loop:
        return []
    most = ABANDONED_FACTOR * step.concurrency
    return [Bound(op.name, most, "calls abandoned after their timeout")]


def held_by(step: MapPlan | FlowPlan) -> int:
    """Return the most elements that a step holds."""
    if isinstance(step, MapPlan) and step.executor is not None and not drains(step.executor):
        return step.foreign_window
    return step.bound


def source_items_bound(plan: Plan) -> int | None:
    """Return the most source items that can be in flight; ``None`` where it cannot be computed."""
    found = _items_bound(plan)
    return None if found is None else found[0] + plan.sink_size * found[1]


def _items_bound(chain: Plan | ChainPlan) -> tuple[int, int] | None:
    """Return how many source items a chain holds at most, and how many may make one that leaves it."""
    source = chain.source
    if isinstance(source, MergePlan):
        parts = [_items_bound(branch) for branch in source.branches]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or source.how == "mix":
            return None
        each = max(part[1] for part in known)
        total = sum(part[0] for part in known) + source.bound * each
        if source.how == "zip":
            each = sum(part[1] for part in known)
    else:
        total, each = 0 if source.builtin else MAX_CHUNK, 1
    for step in chain.steps:
        if isinstance(step, (MapPlan, FlowPlan)):
            total += held_by(step) * each
        elif isinstance(step, BatchPlan):
            total += step.bound * each
            each *= step.size
        elif isinstance(step, AggregatePlan) and step.bound is not None and step.most is not None:
            total += step.bound * each
            each *= step.most[1]
        elif isinstance(step, RoutePlan) and all(
            isinstance(inner, (MapPlan, RoutePlan)) for inner in steps_of([step])
        ):
            inner = () if step.by_ways else steps_of([step])
            held = sum(held_by(s) for s in inner if isinstance(s, MapPlan))
            held += sum(s.bound for s in steps_of([step]) if isinstance(s, RoutePlan))
            total += held * each
        elif isinstance(step, SHAPE_PLANS):
            total += shape_bound(step)[0] * each
        else:
            return None
    return total, each


def epochs_bound(plan: Plan) -> int | None:
    """Return the same for ``epochs()``, which may have two passes in flight."""
    one = source_items_bound(plan)
    return None if one is None else 2 * one


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
    policies = [(source.op.name, source.op.policy) for source in sources_of(plan.source)]
    for step in all_steps(plan):
        if isinstance(step, MapPlan):
            policies += [(op.name, op.policy) for op in step.ops]
        elif isinstance(step, RoutePlan) and not isinstance(step, CachePlan):
            raise LengthUnknownError(
                f"the branches of {step.router.name!r} may drop items, so the number of results is not "
                f"known"
            )
    for name, policy in policies:
        if policy != FailurePolicy():
            raise LengthUnknownError(
                f"stage {name!r} skips failures, so the number of results is not known"
            )
    return known


def hint(plan: Plan | ChainPlan) -> int:
    """Return the number of results if nothing is dropped or skipped.

    Raises:
        LengthUnknownError: the source has no length, or a stage changes the number freely.
    """
    return _count_made(_count_read(plan.source), plan.steps)


def _count_made(count: int, steps: Iterable[StepPlan]) -> int:
    for step in steps:
        if isinstance(step, SHAPE_PLANS):
            count = shape_length(step, count)
        elif isinstance(step, BatchPlan) and step.within is not None:
            raise LengthUnknownError(
                f"stage {step.name!r} emits short batches after {step.within:g} s, so their number "
                f"is not known"
            )
        elif isinstance(step, BatchPlan):
            count = count // step.size if step.drop_last else -(-count // step.size)
        elif isinstance(step, CachePlan):
            count = _count_made(count, step.branches[0])
        elif not isinstance(step, MapPlan):
            raise LengthUnknownError(_why_any(step))
    return count


def _count_read(source: SourcePlan | MergePlan) -> int:
    if isinstance(source, SourcePlan):
        count = source_length(source.source)
        if count is None:
            raise LengthUnknownError("the source has no len()")
        return count
    if source.how == "mix":
        raise LengthUnknownError(f"{source.op.name!r} makes any number of items of its branches")
    counts = [hint(branch) for at, branch in enumerate(source.branches) if source.reads(at)]
    if source.how == "zip":
        return min(counts)
    if source.stop == "first":
        raise LengthUnknownError(f"{source.op.name!r} ends with its first branch")
    return sum(counts)


def _why_any(step: StepPlan) -> str:
    if isinstance(step, FlowPlan):
        return f"stage {step.op.name!r} makes any number of items of one"
    if isinstance(step, AggregatePlan):
        return f"aggregator {step.op.name!r} makes any number of items"
    if isinstance(step, RoutePlan):
        return f"the branches of {step.router.name!r} make any number of items of one"
    return "disaggregate makes any number of items of one"


def filters_in(plan: Plan) -> list[str]:
    """Return the names of the stages that are filters."""
    return [
        op.name
        for step in all_steps(plan)
        if isinstance(step, MapPlan)
        for op in step.ops
        if isinstance(op.call, (Filter, AsyncFilter))
    ]
