"""Names of stages: unique, explicit ones first; and walks over a description that need them."""

from __future__ import annotations

from collections.abc import Iterable

from spdl_async._plan.shapes import SHAPE_PLANS
from spdl_async._plan.steps import BatchPlan, MapPlan, RoutePlan, StepPlan
from spdl_async.errors import BuildError
from spdl_async.spec.cache import CacheSpec
from spdl_async.spec.copies import CopySpec
from spdl_async.spec.shapes import SHAPE_SPECS
from spdl_async.spec.stages import (
    AggregateSpec,
    ChainSpec,
    MergeSpec,
    PipeSpec,
    RouteSpec,
    StageSpec,
    op_name,
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
    if isinstance(chain.source, MergeSpec):
        for branch in chain.source.branches:
            yield from explicit_names(branch)
    if chain.source is not None and chain.source.name is not None:
        yield "add_source", chain.source.name
    for stage in chain.stages:
        if isinstance(stage, RouteSpec):
            if stage.name is not None:
                yield f"route({op_name(stage.router.op)})", stage.name
            for stages in stage.branches:
                yield from explicit_names(ChainSpec(stages=stages))
            continue
        if stage.name is not None:
            verb = stage.mode if isinstance(stage, PipeSpec) and stage.mode != "map" else "pipe"
            what = f"{verb}({op_name(stage.op)})" if isinstance(stage, PipeSpec) else "aggregate"
            what = stage.text if isinstance(stage, (CacheSpec, *SHAPE_SPECS)) else what
            what = f"to_{stage.to}" if isinstance(stage, CopySpec) else what
            yield what, stage.name


def specs_of(chain: ChainSpec) -> Iterable[StageSpec]:
    """Yield the stages of a chain, of what is merged into it and of its branches."""
    if isinstance(chain.source, MergeSpec):
        for merged in chain.source.branches:
            yield from specs_of(merged)
    for stage in chain.stages:
        if isinstance(stage, RouteSpec):
            yield stage.router
            for branch in stage.branches:
                yield from specs_of(ChainSpec(stages=branch))
        else:
            yield stage


def stage_name(step: StepPlan) -> str:
    """Return the name of a step, that of its last op."""
    if isinstance(step, MapPlan):
        return step.ops[-1].name
    return step.name if isinstance(step, (BatchPlan, RoutePlan, *SHAPE_PLANS)) else step.op.name


def aggregate_name(spec: AggregateSpec) -> str:
    """Return the default name of an aggregate stage."""
    return f"aggregate({spec.size})" if spec.size is not None else op_name(spec.aggregator)
