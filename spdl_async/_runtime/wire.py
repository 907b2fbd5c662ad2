"""From the steps of a plan to running steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from spdl_async._plan.caching import CachePlan, LookupPlan
from spdl_async._plan.copying import CopyPlan
from spdl_async._plan.place import drains
from spdl_async._plan.shapes import EnumeratePlan, ShufflePlan, SkipPlan, TakePlan
from spdl_async._plan.steps import (
    AggregatePlan,
    BatchPlan,
    ChainPlan,
    FlattenPlan,
    FlowPlan,
    MapPlan,
    MergePlan,
    OpPlan,
    Plan,
    RoutePlan,
    SourcePlan,
    StepPlan,
    steps_of,
)
from spdl_async._runtime.aggregate_step import AggregateStep
from spdl_async._runtime.batch_step import BatchStep, FlattenStep
from spdl_async._runtime.cache_step import CacheStep, LookupStep
from spdl_async._runtime.careful_loop_step import CarefulLoopStep
from spdl_async._runtime.channel import Channel, Outlet
from spdl_async._runtime.copy_step import CopyStep
from spdl_async._runtime.foreign_step import ForeignStep
from spdl_async._runtime.generator_step import ThreadFlowStep
from spdl_async._runtime.in_place_route_step import InPlaceRouteStep
from spdl_async._runtime.lifespan import in_lifespan
from spdl_async._runtime.loop_step import LoopStep
from spdl_async._runtime.merge_step import make_merge
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.pool import ThreadPool
from spdl_async._runtime.route_step import RouteStep
from spdl_async._runtime.shape_step import EnumerateStep, ShuffleStep, SkipStep, TakeStep
from spdl_async._runtime.source_step import SourceStep, left_unread, tell_unread
from spdl_async._runtime.step import Step
from spdl_async._runtime.thread_step import ThreadStep
from spdl_async._runtime.timed_step import TimedFlowStep, TimedThreadStep
from spdl_async._runtime.within_step import TimedAggregateStep, TimedBatchStep

if TYPE_CHECKING:
    from spdl_async._runtime.engine import Engine


def lay_chain(engine: Engine, chain: Plan | ChainPlan, out: Outlet) -> Step:
    """Make the steps of a chain, which ends in ``out``; return the last."""
    edges = [engine.new_channel() for _ in chain.steps]
    first: Outlet = edges[0] if edges else out
    if isinstance(chain.source, MergePlan):
        step = lay_merge(engine, chain.source, first)
    else:
        step = make_source(engine, chain.source, first)
    engine.steps.append(step)
    return lay_steps(engine, chain.steps, edges, out, (step,))


def lay_merge(engine: Engine, plan: MergePlan, out: Outlet) -> Step:
    """Make the chains of a merge, and the step that brings them together.

    A branch with a weight of zero is not read, so nothing of it is started.
    """
    inputs, last = [engine.new_channel() for _ in plan.branches], []
    for at, branch in enumerate(plan.branches):
        if plan.reads(at):
            last.append(lay_chain(engine, branch, inputs[at]))
        else:
            tell_unread(branch.source)
    step = make_merge(engine, plan, inputs, out)
    step.above = tuple(last)
    return step


def lay_steps(
    engine: Engine,
    plans: Sequence[StepPlan],
    edges: Sequence[Channel],
    out: Outlet,
    above: tuple[Step, ...],
) -> Step:
    """Make steps, each of which reads from its edge and writes to the next, the last to ``out``."""
    below: list[Outlet] = [*edges, out][1:]
    for plan, edge, outlet in zip(plans, edges, below, strict=True):
        step = make_step(plan, engine, edge, outlet)
        step.above = above
        above = (step,)
        engine.steps.append(step)
        if isinstance(step, RouteStep) and isinstance(plan, RoutePlan):
            lay_branches(engine, plan, step)
    return above[0]


def lay_branches(engine: Engine, plan: RoutePlan, route: RouteStep) -> None:
    """Make the steps of a route's branches."""
    inlets: list[Outlet] = []
    for branch, end in zip(plan.branches, route.ends, strict=True):
        edges = [engine.new_channel() for _ in branch]
        inlets.append(edges[0] if edges else end)
        known = len(engine.steps)
        if branch:
            lay_steps(engine, branch, edges, end, (route,))
        route.inner += engine.steps[known:]
    for step in route.inner:
        if step.around is None:  # those of a route in a branch know that one
            step.around = route
    route.attach(inlets)


def make_source(engine: Engine, source: SourcePlan, out: Outlet) -> Step:
    """Make the step that reads the source."""
    step = SourceStep(
        engine,
        out,
        functools.partial(source.open_for, engine.epoch),
        on_loop=source.on_loop,
        builtin=source.source if source.builtin else None,
        judge=engine.judges.of(source.op),
        meter=Meter(source.op.name, "source", 1),
        timeout=source.op.timeout,
        thread_name=f"spdl_async-{engine.plan.name}-{source.op.name}",
    )
    if (tell := left_unread(source)) is not None:
        engine.at_end.append(tell)
    return in_lifespan(step, (source.op,))


def call_of(op: OpPlan, engine: Engine) -> Callable[..., Any]:
    """Return an op's call for this run."""
    if op.per_run is None:
        return op.call
    call, let_go = op.per_run()
    engine.at_end.append(let_go)
    return call


@functools.singledispatch
def make_step(plan: StepPlan, engine: Engine, above: Channel, below: Outlet) -> Step:  # noqa: ARG001 -- the form of all
    """Make the running form of a planned step."""
    raise AssertionError(f"no step for {plan!r}")


@make_step.register(MapPlan)
def _(plan: MapPlan, engine: Engine, above: Channel, below: Outlet) -> Step:
    judges = [engine.judges.of(op) for op in plan.ops]
    kind = "async" if plan.on_loop else "thread"
    meters = [Meter(op.name, kind, plan.concurrency) for op in plan.ops]
    calls = [call_of(op, engine) for op in plan.ops]
    timeout = plan.ops[0].timeout
    if plan.on_loop:
        make: Callable[..., Step] = LoopStep
        if timeout is not None or judges[0].retries is not None:
            make = functools.partial(CarefulLoopStep, timeout=timeout)
        step = make(
            engine,
            above,
            below,
            calls[0],
            concurrency=plan.concurrency,
            ordered=plan.ordered,
            floor=plan.floor,
            ceiling=plan.bound,
            judge=judges[0],
            meter=meters[0],
        )
        return in_lifespan(step, plan.ops)
    if plan.executor is not None and not drains(plan.executor):
        for meter in meters:
            meter.kind = "executor"
        return ForeignStep(
            engine,
            above,
            below,
            calls,
            executor=plan.executor,
            concurrency=plan.concurrency,
            window=plan.foreign_window,
            ordered=plan.ordered,
            judges=judges,
            meters=meters,
            timeout=timeout,
        )
    kind_of_step: type[ThreadStep] = ThreadStep if timeout is None else TimedThreadStep
    if isinstance(plan, LookupPlan) and plan.numbered:
        kind_of_step = LookupStep
    step = kind_of_step(
        engine,
        above,
        below,
        calls,
        concurrency=plan.concurrency,
        executor=plan.executor,
        ordered=plan.ordered,
        floor=plan.floor,
        ceiling=plan.bound,
        judges=judges,
        meters=meters,
        timeout=timeout,
    )
    return in_lifespan(step, plan.ops)


@make_step.register(CopyPlan)
def _(plan: CopyPlan, engine: Engine, above: Channel, below: Outlet) -> Step:
    op = plan.ops[0]
    copying = plan.kit.open(engine.devices[op.name], in_own_thread=True)
    pool = ThreadPool(1, f"spdl_async-{engine.plan.name}-{op.name}", at_exit=copying.close)
    engine.own_pools.append(pool)
    return CopyStep(engine, above, below, plan, copying, engine.judges.of(op), pool)


@make_step.register(FlowPlan)
def _(plan: FlowPlan, engine: Engine, above: Channel, below: Outlet) -> Step:
    timeout = plan.op.timeout
    step = (ThreadFlowStep if timeout is None else TimedFlowStep)(
        engine,
        above,
        below,
        call_of(plan.op, engine),
        is_generator=plan.op.kind == "generator",
        starts_on_loop=plan.on_loop,
        concurrency=plan.concurrency,
        executor=plan.executor,
        ordered=plan.ordered,
        window=plan.window,
        max_flow=plan.max_flow if engine.budget is None else 1,
        judge=engine.judges.of(plan.op),
        meter=Meter(plan.op.name, "async" if plan.on_loop else "generator", plan.concurrency),
        timeout=timeout,
    )
    return in_lifespan(step, (plan.op,))


@make_step.register(BatchPlan)
def _(plan: BatchPlan, engine: Engine, above: Channel, below: Outlet) -> Step:
    make: Callable[..., Step] = BatchStep
    if plan.within is not None:
        make = functools.partial(TimedBatchStep, within=plan.within)
    return make(
        engine,
        above,
        below,
        size=plan.size,
        bound=plan.bound,
        drop_last=plan.drop_last,
        meter=Meter(plan.name, "batch", 1),
    )


@make_step.register(AggregatePlan)
def _(plan: AggregatePlan, engine: Engine, above: Channel, below: Outlet) -> Step:
    make: Callable[..., Step] = AggregateStep
    if plan.within is not None:
        make = functools.partial(TimedAggregateStep, within=plan.within)
    step = make(
        engine,
        above,
        below,
        plan.op.call,
        drop_last=plan.drop_last,
        executor=plan.executor,
        judge=engine.judges.of(plan.op),
        meter=Meter(plan.op.name, "aggregator", 1),
    )
    return in_lifespan(step, (plan.op,))


@make_step.register(RoutePlan)
def _(plan: RoutePlan, engine: Engine, above: Channel, below: Outlet) -> Step:
    make = InPlaceRouteStep if plan.in_place else RouteStep
    step = make(
        engine,
        above,
        below,
        branches=len(plan.branches),
        ordered=plan.ordered,
        batched=plan.batched,
        streams=tuple(
            any(isinstance(s, (FlowPlan, FlattenPlan)) for s in steps_of(b)) for b in plan.branches
        ),
        gathers=tuple(
            any(isinstance(s, (BatchPlan, AggregatePlan)) for s in steps_of(b))
            for b in plan.branches
        ),
        labels=plan.labels,
        floor=plan.floor,
        ceiling=plan.bound,
        judge=engine.judges.of(plan.router),
        meter=Meter(plan.name, "route", 1),
    )
    step.opened = plan.opened
    return step


@make_step.register(CachePlan)
def _(plan: CachePlan, engine: Engine, above: Channel, below: Outlet) -> Step:
    return CacheStep(
        engine,
        above,
        below,
        ordered=plan.ordered,
        store=plan.store,
        streams=any(isinstance(s, FlowPlan) for s in steps_of(plan.branches[0])),
        floor=plan.floor,
        ceiling=plan.bound,
        judge=engine.judges.of(plan.router),
        meter=Meter(plan.name, "cache", 1),
    )


@make_step.register(FlattenPlan)
def _(plan: FlattenPlan, engine: Engine, above: Channel, below: Outlet) -> Step:
    return FlattenStep(
        engine,
        above,
        below,
        opened=plan.opened,
        judge=engine.judges.of(plan.op),
        meter=Meter(plan.op.name, "flatten", 1),
    )


@make_step.register(ShufflePlan)
def _(plan: ShufflePlan, engine: Engine, above: Channel, below: Outlet) -> Step:
    meter = Meter(plan.name, "shuffle", 1)
    return ShuffleStep(
        engine, above, below, size=plan.size, key=plan.key, epoch=engine.epoch, meter=meter
    )


@make_step.register(TakePlan)
def _(plan: TakePlan, engine: Engine, above: Channel, below: Outlet) -> Step:
    return TakeStep(engine, above, below, count=plan.count, meter=Meter(plan.name, "take", 1))


@make_step.register(SkipPlan)
def _(plan: SkipPlan, engine: Engine, above: Channel, below: Outlet) -> Step:
    return SkipStep(engine, above, below, count=plan.count, meter=Meter(plan.name, "skip", 1))


@make_step.register(EnumeratePlan)
def _(plan: EnumeratePlan, engine: Engine, above: Channel, below: Outlet) -> Step:
    meter = Meter(plan.name, "enumerate", 1)
    return EnumerateStep(engine, above, below, start=plan.start, meter=meter)
