"""From a chain's description to a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from spdl_async._plan.branches import check_branch
from spdl_async._plan.caching import Caching, check_source, ordered_above, split_at_cache
from spdl_async._plan.classify import (
    check_arity,
    classify_aggregator,
    classify_op,
    classify_source,
    find_set_epoch,
    is_opened_at_run,
    is_single_use,
)
from spdl_async._plan.copying import end_in_sink, hand_on, peeking, plan_copy
from spdl_async._plan.filtering import as_filter
from spdl_async._plan.fuse import Placed, fuse
from spdl_async._plan.lifespan import aggregator_lifespan, source_lifespan
from spdl_async._plan.names import Names, aggregate_name, explicit_names
from spdl_async._plan.owning import owned, peel
from spdl_async._plan.place import choose_loop, drains
from spdl_async._plan.routing import Table, as_router
from spdl_async._plan.shapes import plan_shape
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
    ops_of,
    sources_of,
)
from spdl_async._plan.threads import count_threads
from spdl_async.errors import BuildError
from spdl_async.spec.cache import CacheSpec
from spdl_async.spec.copies import CopySpec
from spdl_async.spec.policy import FailurePolicy
from spdl_async.spec.shapes import SHAPE_SPECS, ShapeSpec
from spdl_async.spec.stages import (
    AggregateSpec,
    ChainSpec,
    DisaggregateSpec,
    MergeSpec,
    PipeSpec,
    RouteSpec,
    Scope,
    SourceSpec,
    StageSpec,
    op_name,
)


def compile_chain(chain: ChainSpec, scope: Scope, *, name: str, seed: int) -> Plan:
    """Return the plan of a chain.

    Raises:
        BuildError: something in it cannot work; the message names the stage and the fix.
    """
    if chain.source is None:
        raise BuildError(
            "build: the pipeline has no source; begin with PipelineBuilder().add_source(…)"
        )
    names = Names(explicit_names(chain))
    placed: list[Placed] = []
    planned = plan_chain(chain, scope, names, placed)
    loop, reason = choose_loop(async_parts(planned, placed))
    planned, hands = hand_on(planned)
    steps, sink_size = end_in_sink(planned.steps, chain.sink)
    plan = Plan(
        source=planned.source,
        steps=steps,
        sink_size=sink_size,
        name=name,
        num_threads=count_threads(scope, placed),
        seed=seed,
        loop=loop,
        loop_reason=reason,
        claim=None if hands is None else hands.claim,
    )
    return peeking(plan)


def plan_chain(chain: ChainSpec, scope: Scope, names: Names, placed: list[Placed]) -> ChainPlan:
    """Plan a source and the steps below it; ``placed`` collects every step, those of branches too."""
    spec = chain.source
    if spec is None:
        raise BuildError("build: a merged pipeline has no source; begin it with add_source(…)")
    source: SourcePlan | MergePlan
    if isinstance(spec, MergeSpec):
        source = plan_merge(spec, scope, names, placed)
    else:
        source = plan_source(spec, scope, names)
    above, cache, below = split_at_cache(chain.stages)
    if cache is None:
        return ChainPlan(source=source, steps=plan_stages(above, scope, names, placed))
    check_source(cache, source)
    caching = Caching(cache, names.give, resolve(cache.policy, cache.scope, scope), scope)
    branch = plan_stages(above, scope, names, placed, last=caching.encode)
    cached = caching.steps(branch, ordered_above(above))
    placed += cached
    steps = (*(one.step for one in cached), *plan_stages(below, scope, names, placed))
    return ChainPlan(source=source, steps=steps)


def plan_stages(
    stages: Iterable[StageSpec],
    scope: Scope,
    names: Names,
    placed: list[Placed],
    *,
    last: Callable[[list[Placed]], Placed] | None = None,
) -> tuple[StepPlan, ...]:
    """Plan the stages of a chain or of a branch; ``last`` makes one more step below them."""
    found: list[Placed] = []
    for stage in stages:
        if isinstance(stage, CacheSpec):
            raise BuildError(
                f"{stage.text}: a branch of a route has no cache; put it below the route"
            )
        if isinstance(stage, RouteSpec):
            found += plan_route(stage, scope, names, placed)
        else:
            found.append(plan_stage(stage, scope, names))
    if last is not None:
        found.append(last(found))
    steps = fuse(found)
    placed += steps
    return tuple(one.step for one in steps)


def plan_merge(spec: MergeSpec, scope: Scope, names: Names, placed: list[Placed]) -> MergePlan:
    """Plan the coming together of several chains."""
    name = names.give(spec.name, "zip" if spec.how == "zip" else "merge")
    branches = tuple(plan_chain(branch, scope, names, placed) for branch in spec.branches)
    policy, owner = resolve(None, spec.scope, scope)
    call = spec.mix
    if spec.how == "mix":
        where = f"{name!r} (Merge)"
        kind, call = classify_op(spec.mix, where)
        check_arity(call, 1, where)
        if kind != "async generator":
            raise BuildError(
                f"{where}: mix must be an async generator function, async def mix(branches): … yield "
                f"…, not a {kind} function"
            )
    op = OpPlan(name=name, kind="async generator", call=call, policy=policy, scope=owner)
    return MergePlan(
        op=op,
        how=spec.how,
        branches=branches,
        weights=spec.weights,
        stop=spec.stop,
        key=f"{(spec.scope or scope).seed}/{name}" if spec.seed is None else f"{spec.seed}",
        strict=spec.strict,
    )


def plan_route(spec: RouteSpec, scope: Scope, names: Names, placed: list[Placed]) -> list[Placed]:
    """Plan a router and what its items go through: two steps, of which the first is an ordinary one."""
    pipe = spec.router
    policy, owner = resolve(pipe.policy, pipe.scope, scope)
    name = names.give(pipe.name, op_name(pipe.op))
    where = f"stage {name!r} (route)"
    kind, call = classify_op(pipe.op, where)
    check_arity(call, 1, where)
    inner, rewrap = peel(pipe.op)
    table = Table(spec.keys, len(spec.branches), batched=spec.batched)

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        """Make the stage's call of one that takes the place of the user's object."""
        return as_router(kind, rewrap(call), table, where)

    on_loop = kind == "async"
    place = None if on_loop else (pipe.scope or scope).executor
    op = OpPlan(
        name=name,
        kind=kind,
        call=as_router(kind, call, table, where),
        policy=policy,
        scope=owner,
        retry=pipe.retry,
        timeout=pipe.timeout,
    )
    op = owned(op, inner, place, where, wrap)
    router = MapPlan(
        ops=(op,),
        concurrency=pipe.concurrency,
        ordered=True,
        executor=place,
        on_loop=on_loop,
    )
    plan = RoutePlan(
        name=names.give(None, f"{name} branches"),
        router=op,
        branches=tuple(plan_stages(b, scope, names, placed) for b in spec.branches),
        labels=tuple(map(repr, spec.keys or range(len(spec.branches)))),
        ordered=spec.output_order == "input",
        batched=spec.batched,
    )
    for label, branch in zip(plan.labels, plan.branches, strict=True):
        check_branch(plan, f"{where}: branch {label}", branch)
    fusable = not on_loop and may_fuse(pipe, router)
    return [Placed(router, fusable, spec.scope), Placed(plan, False, spec.scope)]


def resolve(
    policy: FailurePolicy | None, own_scope: Scope | None, scope: Scope
) -> tuple[FailurePolicy, Scope | None]:
    """Return a stage's policy, and the build whose budget it shares when it has none of its own."""
    if policy is not None:
        return policy, None
    owner = own_scope or scope
    return owner.policy, owner


def plan_source(spec: SourceSpec, scope: Scope, names: Names) -> SourcePlan:
    """Plan the source."""
    policy, owner = resolve(spec.policy, spec.scope, scope)
    open_source, on_loop = classify_source(spec.source)
    if spec.timeout is not None and not on_loop and not is_opened_at_run(spec.source):
        raise BuildError(
            f"add_source: timeout={spec.timeout!r} is for async sources; a sync one is pulled in a thread, "
            f"which nothing can interrupt: give the read itself a timeout, or yield names and let a "
            f"stage with timeout= read"
        )
    op = OpPlan(
        name=names.give(spec.name, "source"),
        kind="async" if on_loop else "sync",
        call=open_source,
        policy=policy,
        scope=owner,
        timeout=spec.timeout,
        lifespan=source_lifespan(spec.source),
    )
    return SourcePlan(
        op=op,
        on_loop=on_loop,
        single_use=is_single_use(spec.source),
        builtin=type(spec.source) in (list, tuple, range),
        source=spec.source,
        set_epoch=find_set_epoch(spec.source),
    )


def plan_stage(
    spec: PipeSpec | AggregateSpec | DisaggregateSpec | ShapeSpec | CopySpec,
    scope: Scope,
    names: Names,
) -> Placed:
    """Plan one stage, whether it may be fused with its neighbours, and which build it is of."""
    step = plan_step(spec, scope, names)
    fusable = (
        isinstance(spec, PipeSpec)
        and spec.fuse
        and isinstance(step, MapPlan)
        and not step.on_loop
        and may_fuse(spec, step)
    )
    return Placed(step, fusable, spec.scope)


def may_fuse(spec: PipeSpec, step: MapPlan) -> bool:
    """Tell whether a stage's options let it share a hop."""
    if spec.timeout is not None:  # a call that is abandoned must be no other op's
        return False
    # The value between two ops stays in a foreign worker, so there a retry could not begin with it.
    return spec.retry is None or step.executor is None or drains(step.executor)


def plan_step(
    spec: PipeSpec | AggregateSpec | DisaggregateSpec | ShapeSpec | CopySpec,
    scope: Scope,
    names: Names,
) -> StepPlan:
    """Plan one stage's step."""
    if isinstance(spec, SHAPE_SPECS):
        return plan_shape(spec, scope, names.give)
    policy, owner = resolve(spec.policy, spec.scope, scope)
    if isinstance(spec, CopySpec):
        return plan_copy(spec, names.give(spec.name, f"to_{spec.to}"), policy, owner)
    executor = (spec.scope or scope).executor
    if isinstance(spec, PipeSpec):
        return plan_pipe(spec, policy, owner, spec.executor or executor, names)
    if isinstance(spec, DisaggregateSpec):
        name = names.give(spec.name, "disaggregate")
        op = OpPlan(name=name, kind="sync", call=list, policy=policy, scope=owner)
        return FlattenPlan(op=op)
    name = names.give(spec.name, aggregate_name(spec))
    if spec.size is not None:
        return BatchPlan(name=name, size=spec.size, drop_last=spec.drop_last, within=spec.within)
    make = classify_aggregator(spec.aggregator)
    op = OpPlan(
        name=name,
        kind="sync",
        call=make,
        policy=policy,
        scope=owner,
        lifespan=aggregator_lifespan(spec.aggregator, make),
    )
    # An aggregator's state cannot leave our memory, whatever the build's executor is.
    place = executor if executor is not None and drains(executor) else None
    return AggregatePlan(
        op=op,
        drop_last=spec.drop_last,
        executor=place,
        within=spec.within,
        most=getattr(spec.aggregator, "_most_items", None),
    )


def plan_pipe(
    spec: PipeSpec,
    policy: FailurePolicy,
    owner: Scope | None,
    executor: Executor | None,
    names: Names,
) -> StepPlan:
    """Plan a pipe, filter or expand."""
    verb = "pipe" if spec.mode == "map" else spec.mode
    name = names.give(spec.name, op_name(spec.op))
    where = f"stage {name!r} ({verb})"
    kind, call = classify_op(spec.op, where)
    check_arity(call, 1, where)
    inner, rewrap = peel(spec.op)

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        """Make the stage's call of one that takes the place of the user's object."""
        call = rewrap(call)
        return as_filter(kind, call, where) if spec.mode == "filter" else call

    if spec.mode == "filter":
        call = as_filter(kind, call, where)
    on_loop = kind in ("async", "async generator")
    if on_loop and spec.executor is not None:
        raise BuildError(
            f"{where}: executor= is for sync ops; an async op runs on the event loop, where "
            f"concurrency= bounds it"
        )
    place = None if on_loop else executor
    op = OpPlan(
        name=name,
        kind=kind,
        call=call,
        policy=policy,
        scope=owner,
        retry=spec.retry,
        timeout=spec.timeout,
    )
    op = owned(op, inner, place, where, wrap)
    ordered = spec.output_order == "input"
    if spec.mode == "expand" or kind in ("generator", "async generator"):
        if place is not None and not drains(place):
            raise BuildError(
                f"{where}: a 1→n op runs step by step and cannot run on a {type(place).__name__}; give "
                f"the stage executor=ThreadPoolExecutor(…), or return a list and disaggregate()"
            )
        flow = FlowPlan(
            op=op, concurrency=spec.concurrency, ordered=ordered, executor=place, on_loop=on_loop
        )
        return replace(flow, buffer_size=spec.buffer_size)
    return MapPlan(
        ops=(op,),
        concurrency=spec.concurrency,
        ordered=ordered,
        executor=place,
        on_loop=on_loop,
        buffer_size=spec.buffer_size,
    )


def async_parts(planned: ChainPlan, steps: Iterable[Placed]) -> Iterable[str]:
    """Yield a text for each part that is visibly async, or may own what is."""
    for source in sources_of(planned.source):
        if source.on_loop:
            yield f"the source {source.op.name!r} is async"
        if source.op.lifespan is not None:
            yield f"the source {source.op.name!r} has a lifespan"
    ops = [(placed.step, op) for placed in steps for op in ops_of(placed.step)]
    for step, op in ops:
        if isinstance(step, (MapPlan, FlowPlan)) and step.on_loop:
            yield f"stage {op.name!r} is async"
    for _, op in ops:
        if op.lifespan is not None:
            yield f"stage {op.name!r} has a lifespan"
