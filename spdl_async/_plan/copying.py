"""Copies to a device in a plan, and what the steps below one have to know.

A batch on a device is complete only when its copy is, so what travels below a copy stands for the batch
until it is claimed, by whoever uses it and in that one's thread: an op, or the consumer. Only plans with a
copy in them have anything of that in their ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from spdl_async._plan.caching import CachePlan
from spdl_async._plan.filtering import AsyncFilter, Filter
from spdl_async._plan.place import drains
from spdl_async._plan.routing import AsyncRouter, Router
from spdl_async._plan.steps import (
    AggregatePlan,
    ChainPlan,
    FlattenPlan,
    FlowPlan,
    Lifespan,
    MapPlan,
    MergePlan,
    OpPlan,
    Plan,
    RoutePlan,
    SourcePlan,
    StepPlan,
    all_steps,
)
from spdl_async.errors import BuildError
from spdl_async.spec.copies import CopySpec, Hands, Kit
from spdl_async.spec.policy import FailurePolicy
from spdl_async.spec.stages import Scope, SinkSpec


@dataclass(frozen=True, kw_only=True)
class CopyPlan(MapPlan):
    """Copy batches in a thread of its own.

    Attributes:
        depth: batches copied ahead; of the last step of a plan, the sink's size, and the step itself holds
            one.
    """

    kit: Kit
    to: Literal["device", "host"]
    depth: int


def plan_copy(spec: CopySpec, name: str, policy: FailurePolicy, owner: Scope | None) -> CopyPlan:
    """Plan a copy; its op's call is made when a run starts.

    Raises:
        BuildError: there is no such device here.
    """
    op = OpPlan(name=name, kind="sync", call=_no_run, policy=policy, scope=owner)
    return CopyPlan(
        ops=(op,),
        concurrency=1,
        ordered=True,
        executor=None,
        on_loop=False,
        buffer_size=spec.depth,
        kit=spec.kit(),
        to=spec.to,
        depth=spec.depth,
    )


def _no_run(batch: Any) -> Any:
    raise AssertionError(f"a copy of {type(batch).__name__} outside of a run")


def end_in_sink(
    steps: tuple[StepPlan, ...], sink: SinkSpec | None
) -> tuple[tuple[StepPlan, ...], int]:
    """Return the steps and the sink's size: where a copy to a device comes last, that is its depth.

    Raises:
        BuildError: ``add_sink`` says another one.
    """
    last = steps[-1] if steps else None
    if not isinstance(last, CopyPlan) or last.to != "device":
        return steps, (sink or SinkSpec()).buffer_size
    if sink is not None and (size := sink.buffer_size) != last.depth:
        raise BuildError(
            f"add_sink({size}): behind to_device the sink holds batches on the device, of which there may "
            f"be depth={last.depth}; write to_device(…, depth={size}) and leave add_sink out"
        )
    return (*steps[:-1], replace(last, buffer_size=0)), last.depth


def hand_on(chain: ChainPlan) -> tuple[ChainPlan, Hands | None]:
    """Have the ops below a copy claim what they take.

    Returns:
        The chain, and how its results change hands; ``None`` where nothing was copied to a device.

    Raises:
        BuildError: a stage cannot be below a copy.
    """
    source, hands = _of_source(chain.source)
    steps, hands = _of_steps(chain.steps, hands)
    return replace(chain, source=source, steps=steps), hands


def peeking(plan: Plan) -> Plan:
    """Return a plan by which sizes are those of batches, where something stands for them on their way."""
    copies = [step for step in all_steps(plan) if isinstance(step, CopyPlan)]
    return replace(plan, peek=copies[0].kit.hands.peek) if copies else plan


def _of_source(source: SourcePlan | MergePlan) -> tuple[SourcePlan | MergePlan, Hands | None]:
    if isinstance(source, SourcePlan):
        return source, None
    branches = [hand_on(branch) for branch in source.branches]
    hands = next((hands for _, hands in branches if hands is not None), None)
    if hands is not None and source.how == "mix":
        raise BuildError(
            f"{source.op.name!r}: Merge(mix=) gives your function the items of its branches, which are not "
            f"ready while they are copied; put to_device below the Merge"
        )
    return replace(source, branches=tuple(branch for branch, _ in branches)), hands


def _of_steps(
    steps: tuple[StepPlan, ...], hands: Hands | None
) -> tuple[tuple[StepPlan, ...], Hands | None]:
    done: list[StepPlan] = []
    for step in steps:
        if isinstance(step, CopyPlan):
            hands = step.kit.hands if step.kit.some_stay else None
        elif isinstance(step, RoutePlan):
            step, hands = _of_route(step, hands)
        elif hands is not None:
            step = _below(step, hands)
        done.append(step)
    return tuple(done), hands


def _of_route(route: RoutePlan, hands: Hands | None) -> tuple[StepPlan, Hands | None]:
    branches = [_of_steps(branch, hands) for branch in route.branches]
    known = [one for _, one in branches if one is not None]
    if isinstance(route, CachePlan) and (known or hands is not None):
        raise BuildError(
            f"{route.spec.text}: what is on a device cannot be kept; put the cache above to_device"
        )
    made = replace(route, branches=tuple(steps for steps, _ in branches))
    if not known:
        return made, None
    return replace(made, opened=known[0].opened), known[0]


def _below(step: StepPlan, hands: Hands) -> StepPlan:
    """Return a step below a copy."""
    if isinstance(step, MapPlan):
        if step.executor is not None and not drains(step.executor):
            raise BuildError(
                f"stage {step.ops[0].name!r}: what is on a device cannot be sent to the workers of a "
                f"{type(step.executor).__name__}; put the stage above to_device"
            )
        return replace(step, ops=tuple(_op(op, _wrapping(op.kind, hands)) for op in step.ops))
    if isinstance(step, FlowPlan):
        kind = step.op.kind
        return replace(step, op=_op(step.op, lambda call: hands.carry_many(kind, call)))
    if isinstance(step, AggregatePlan):
        return replace(step, op=_op(step.op, hands.carry_aggregator))
    if isinstance(step, FlattenPlan):
        return replace(step, opened=hands.opened)
    return step


def _wrapping(kind: str, hands: Hands) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        if isinstance(call, (Filter, AsyncFilter)):
            return type(call)(hands.claiming(kind, call.predicate))
        if isinstance(call, (Router, AsyncRouter)):
            routed = type(call)(hands.claiming(kind, call.router), call.table)
            if not call.table.batched:
                return routed
            return lambda item: routed(hands.opened(item))
        return hands.carry(kind, call)

    return wrap


def _op(op: OpPlan, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> OpPlan:
    """Wrap an op's call, and those that take its place in a run."""
    lifespan, per_run = op.lifespan, op.per_run
    if lifespan is not None:
        lifespan = replace(lifespan, use=_used(lifespan, wrap))
    if per_run is not None:
        per_run = _per_run(per_run, wrap)
    return replace(op, call=wrap(op.call), lifespan=lifespan, per_run=per_run)


def _used(
    lifespan: Lifespan, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[Any, Any], Callable[..., Any] | None]:
    use = lifespan.use

    def used(owner: Any, entered: Any) -> Callable[..., Any] | None:
        call = use(owner, entered)
        return None if call is None else wrap(call)

    return used


def _per_run(
    make: Callable[[], tuple[Callable[..., Any], Callable[[], None]]],
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Callable[[], tuple[Callable[..., Any], Callable[[], None]]]:
    def made() -> tuple[Callable[..., Any], Callable[[], None]]:
        call, let_go = make()
        return wrap(call), let_go

    return made


def devices_here(plan: Plan) -> dict[str, Any]:
    """Return, for each copy by its name, the device that is meant in the calling thread."""
    return {
        step.ops[0].name: step.kit.here() for step in all_steps(plan) if isinstance(step, CopyPlan)
    }


def copy_text(step: CopyPlan) -> str:
    """Return one line for a copy."""
    where = f"to {step.kit.target}" if step.to == "device" else "back to the host"
    ahead = f", {step.depth} ahead" if step.to == "device" else ""
    return f"{step.ops[0].name}: batches copied {where} in a thread of its own{ahead}"
