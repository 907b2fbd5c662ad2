"""The steps that choose, number and reorder items; what a plan has to know of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spdl_async.spec.shapes import EnumerateSpec, ShapeSpec, ShuffleSpec, SkipSpec, TakeSpec
from spdl_async.spec.stages import Scope


@dataclass(frozen=True, kw_only=True)
class ShufflePlan:
    """Reorder within a buffer. ``key`` and the epoch's number determine the order."""

    name: str
    size: int
    key: str


@dataclass(frozen=True, kw_only=True)
class TakePlan:
    """Hand on the first ``count`` items, then end what is above."""

    name: str
    count: int


@dataclass(frozen=True, kw_only=True)
class SkipPlan:
    """Drop the first ``count`` items."""

    name: str
    count: int


@dataclass(frozen=True, kw_only=True)
class EnumeratePlan:
    """Make (number, item) of each item."""

    name: str
    start: int


SHAPE_PLANS = (ShufflePlan, TakePlan, SkipPlan, EnumeratePlan)
ShapePlan = ShufflePlan | TakePlan | SkipPlan | EnumeratePlan


def plan_shape(
    spec: ShapeSpec, scope: Scope, give_name: Callable[[str | None, str], str]
) -> ShapePlan:
    """Plan one of these stages."""
    if isinstance(spec, ShuffleSpec):
        name = give_name(spec.name, "shuffle")
        root = (spec.scope or scope).seed
        key = f"{root}/{name}" if spec.seed is None else f"{spec.seed}"
        return ShufflePlan(name=name, size=spec.buffer_size, key=key)
    name = give_name(spec.name, spec.text.removesuffix("()"))
    if isinstance(spec, TakeSpec):
        return TakePlan(name=name, count=spec.count)
    if isinstance(spec, SkipSpec):
        return SkipPlan(name=name, count=spec.count)
    assert isinstance(spec, EnumerateSpec)
    return EnumeratePlan(name=name, start=spec.start)


def shape_text(step: ShapePlan) -> str:
    """Return one line for a step."""
    if isinstance(step, ShufflePlan):
        return f"{step.name}: random order within {step.size} items, on the loop, seed {step.key}"
    if isinstance(step, TakePlan):
        return f"{step.name}: the first {step.count} items, then the source is closed"
    if isinstance(step, SkipPlan):
        return f"{step.name}: all but the first {step.count} items"
    return f"{step.name}: (number, item), from {step.start} on"


def shape_bound(step: ShapePlan) -> tuple[int, str]:
    """Return how many items a step holds at most, and where."""
    if isinstance(step, ShufflePlan):
        return step.size, "shuffle buffer"
    return 0, "nothing: it asks for what the next stage waits for"


def shape_length(step: ShapePlan, count: int) -> int:
    """Return how many items a step makes of ``count``."""
    if isinstance(step, TakePlan):
        return min(count, step.count)
    if isinstance(step, SkipPlan):
        return max(0, count - step.count)
    return count
