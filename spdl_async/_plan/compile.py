"""From a chain's description to a plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any

from spdl_async._plan.classify import (
    check_arity,
    classify_aggregator,
    classify_op,
    classify_source,
    is_single_use,
)
from spdl_async._plan.filtering import as_filter
from spdl_async._plan.fuse import Placed, fuse
from spdl_async._plan.lifespan import (
    aggregator_lifespan,
    op_lifespan,
    peel,
    source_lifespan,
)
from spdl_async._plan.per_thread import PerThread
from spdl_async._plan.place import choose_loop, drains
from spdl_async._plan.steps import (
    AggregatePlan,
    BatchPlan,
    FlattenPlan,
    FlowPlan,
    MapPlan,
    OpPlan,
    Plan,
    SourcePlan,
    StepPlan,
)
from spdl_async.errors import BuildError
from spdl_async.spec.policy import FailurePolicy
from spdl_async.spec.stages import (
    AggregateSpec,
    ChainSpec,
    DisaggregateSpec,
    PipeSpec,
    Scope,
    SinkSpec,
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
    source = plan_source(chain.source, scope, names)
    steps = fuse([plan_stage(stage, scope, names) for stage in chain.stages])
    loop, reason = choose_loop(async_parts(source, steps))
    return Plan(
        source=source,
        steps=tuple(placed.step for placed in steps),
        sink_size=(chain.sink or SinkSpec()).buffer_size,
        name=name,
        num_threads=count_threads(scope, steps),
        seed=seed,
        loop=loop,
        loop_reason=reason,
    )


class Names:
    """Gives every stage a name of its own; explicit names first, so that defaults give way."""

    def __init__(self, explicit: Iterable[tuple[str, object]]) -> None:
        self.explicit: set[str] = set()
        self.taken: set[str] = set()
        for where, name in explicit:
            if not isinstance(name, str) or not name:
                raise BuildError(f"{where}: name must be a non-empty str, not {name!r}")
            if name in self.explicit:
                raise BuildError(f"{where}: there is a stage {name!r} already; names are unique")
            self.explicit.add(name)

    def give(self, wanted: str | None, default: str) -> str:
        """Return the explicit name, or the default made unique."""
        if wanted is not None:
            return wanted
        name, number = default, 2
        while name in self.taken or name in self.explicit:
            name, number = f"{default}_{number}", number + 1
        self.taken.add(name)
        return name


def explicit_names(chain: ChainSpec) -> Iterable[tuple[str, object]]:
    """Yield (where, name) of every name that the user gave."""
    if chain.source is not None and chain.source.name is not None:
        yield "add_source", chain.source.name
    for stage in chain.stages:
        if stage.name is not None:
            verb = stage.mode if isinstance(stage, PipeSpec) and stage.mode != "map" else "pipe"
            what = f"{verb}({op_name(stage.op)})" if isinstance(stage, PipeSpec) else "aggregate"
            yield what, stage.name


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
    op = OpPlan(
        name=names.give(spec.name, "source"),
        kind="async" if on_loop else "sync",
        call=open_source,
        policy=policy,
        scope=owner,
        lifespan=source_lifespan(spec.source),
    )
    return SourcePlan(
        op=op,
        open=open_source,
        on_loop=on_loop,
        single_use=is_single_use(spec.source),
        builtin=type(spec.source) in (list, tuple, range),
        source=spec.source,
    )


def plan_stage(spec: StageSpec, scope: Scope, names: Names) -> Placed:
    """Plan one stage, whether it may be fused with its neighbours, and which build it is of."""
    step = plan_step(spec, scope, names)
    fusable = (
        isinstance(spec, PipeSpec) and spec.fuse and isinstance(step, MapPlan) and not step.on_loop
    )
    return Placed(step, fusable, spec.scope)


def plan_step(spec: StageSpec, scope: Scope, names: Names) -> StepPlan:
    """Plan one stage's step."""
    policy, owner = resolve(spec.policy, spec.scope, scope)
    executor = (spec.scope or scope).executor
    if isinstance(spec, PipeSpec):
        return plan_pipe(spec, policy, owner, spec.executor or executor, names)
    if isinstance(spec, DisaggregateSpec):
        name = names.give(spec.name, "disaggregate")
        op = OpPlan(name=name, kind="sync", call=list, policy=policy, scope=owner)
        return FlattenPlan(op=op)
    name = names.give(spec.name, aggregate_name(spec))
    if spec.size is not None:
        return BatchPlan(name=name, size=spec.size, drop_last=spec.drop_last)
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
    return AggregatePlan(op=op, make=make, drop_last=spec.drop_last, executor=place)


def aggregate_name(spec: AggregateSpec) -> str:
    """Return the default name of an aggregate stage."""
    return f"aggregate({spec.size})" if spec.size is not None else op_name(spec.aggregator)


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
        lifespan=op_lifespan(inner, where, wrap),
        per_run=functools.partial(made_for_run, inner, wrap)
        if isinstance(inner, PerThread)
        else None,
    )
    refuse_in_processes(op, place, where)
    ordered = spec.output_order == "input"
    if spec.mode == "expand" or kind in ("generator", "async generator"):
        if place is not None and not drains(place):
            raise BuildError(
                f"{where}: a 1→n op runs step by step and cannot run on a {type(place).__name__}; give "
                f"the stage executor=ThreadPoolExecutor(…), or return a list and disaggregate()"
            )
        return FlowPlan(
            op=op, concurrency=spec.concurrency, ordered=ordered, executor=place, on_loop=on_loop
        )
    return MapPlan(
        ops=(op,),
        concurrency=spec.concurrency,
        ordered=ordered,
        executor=place,
        on_loop=on_loop,
    )


def made_for_run(
    inner: PerThread, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> tuple[Callable[..., Any], Callable[[], None]]:
    """Return the call of a run for a ``per_thread`` op, and what lets go of what it has made."""
    ops = inner.for_run()
    return wrap(ops), ops.drop


def refuse_in_processes(op: OpPlan, place: Executor | None, where: str) -> None:
    """Raise ``BuildError`` where an op's state would have to leave our memory."""
    if place is None or drains(place):
        return
    what = "per_thread" if op.per_run is not None else "an op with a lifespan"
    if op.per_run is not None or op.lifespan is not None:
        raise BuildError(
            f"{where}: {what} cannot run on a {type(place).__name__}, whose workers do not share our "
            f"memory; make the op's state in the executor's initializer, or leave executor= out"
        )


def async_parts(source: SourcePlan, steps: Iterable[Placed]) -> Iterable[str]:
    """Yield a text for each part that is visibly async."""
    if source.on_loop:
        yield f"the source {source.op.name!r} is async"
    if source.op.lifespan is not None:
        yield f"the source {source.op.name!r} has a lifespan"
    for placed in steps:
        step = placed.step
        if isinstance(step, (MapPlan, FlowPlan)) and step.on_loop:
            op = step.ops[0] if isinstance(step, MapPlan) else step.op
            yield f"stage {op.name!r} is async"
    for placed in steps:
        for op in ops_of(placed.step):
            if op.lifespan is not None:
                yield f"stage {op.name!r} has a lifespan"


def ops_of(step: StepPlan) -> tuple[OpPlan, ...]:
    """Return the user ops of a step."""
    if isinstance(step, MapPlan):
        return step.ops
    return () if isinstance(step, BatchPlan) else (step.op,)


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
    if isinstance(step, AggregatePlan):
        return 1 if step.executor is None else 0
    if isinstance(step, MapPlan):
        return 0 if step.on_loop or step.executor is not None else step.concurrency
    if isinstance(step, FlowPlan):
        return step.concurrency if step.executor is None else 0
    return 0
