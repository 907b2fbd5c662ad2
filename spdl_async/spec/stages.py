"""The stages of a chain as frozen values; the builder's verbs make them, the plan reads them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from spdl_async.errors import BuildError
from spdl_async.spec.cache import CacheSpec
from spdl_async.spec.copies import CopySpec
from spdl_async.spec.policy import FailurePolicy, Retry, check_int, check_seconds
from spdl_async.spec.shapes import ShapeSpec, check_within

OutputOrder = Literal["input", "completion"]
PipeMode = Literal["map", "filter", "expand"]

MAX_CONCURRENCY = 65_536
MAX_BUFFER = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Options of one ``build()``; the stages of an inlined pipeline keep those they were built with.

    Compared by identity of the object, so that a shared failure budget belongs to one build.
    """

    policy: FailurePolicy = field(default_factory=FailurePolicy)
    executor: Executor | None = None
    num_threads: int | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """Where items come from."""

    source: Any
    name: str | None = None
    policy: FailurePolicy | None = None
    scope: Scope | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None:
            check_seconds(self.timeout, "add_source: timeout")


@dataclass(frozen=True, kw_only=True)
class PipeSpec:
    """One user op: ``map`` (1→1, or 1→n for generator functions), ``filter`` or ``expand`` (1→n)."""

    op: Any
    mode: PipeMode = "map"
    concurrency: int = 1
    output_order: OutputOrder = "input"
    executor: Executor | None = None
    name: str | None = None
    policy: FailurePolicy | None = None
    fuse: bool = True
    scope: Scope | None = None
    where: str = ""
    buffer_size: int | None = None
    retry: Retry | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        verb = f"{'pipe' if self.mode == 'map' else self.mode}({op_name(self.op)})"
        check_int(self.concurrency, f"{verb}: concurrency", most=MAX_CONCURRENCY)
        if self.output_order not in ("input", "completion"):
            raise BuildError(
                f'{verb}: output_order must be "input" (the order of the items) or "completion" '
                f"(as they finish), not {self.output_order!r}"
            )
        if self.executor is not None and not isinstance(self.executor, Executor):
            raise BuildError(
                f"{verb}: executor must be a concurrent.futures.Executor, not {self.executor!r}"
            )
        if not isinstance(self.fuse, bool):
            raise BuildError(f"{verb}: fuse must be True or False, not {self.fuse!r}")
        if self.buffer_size is not None and (
            isinstance(self.buffer_size, bool)
            or not isinstance(self.buffer_size, int)
            or not 0 <= self.buffer_size <= MAX_BUFFER
        ):
            raise BuildError(
                f"{verb}: buffer_size must be an int of 0 to {MAX_BUFFER:,}, the items that the stage may "
                f"hold beside those that are worked on, not {self.buffer_size!r}"
            )
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise BuildError(
                f"{verb}: retry must be a spdl_async.Retry, such as Retry(3), not {self.retry!r}"
            )
        if self.timeout is not None:
            check_seconds(self.timeout, f"{verb}: timeout")


@dataclass(frozen=True, kw_only=True)
class AggregateSpec:
    """Lists of ``size`` items, or the work of an ``Aggregator`` instance or factory."""

    size: int | None = None
    aggregator: Any = None
    drop_last: bool = False
    within: float | None = None
    name: str | None = None
    policy: FailurePolicy | None = None
    scope: Scope | None = None

    def __post_init__(self) -> None:
        check_within(self.within)


@dataclass(frozen=True, kw_only=True)
class DisaggregateSpec:
    """Lists and tuples become their elements."""

    name: str | None = None
    policy: FailurePolicy | None = None
    scope: Scope | None = None


@dataclass(frozen=True, kw_only=True)
class SinkSpec:
    """How many results may wait for the consumer."""

    buffer_size: int = 2

    def __post_init__(self) -> None:
        check_int(self.buffer_size, "add_sink: buffer_size", most=1_000_000)


@dataclass(frozen=True, kw_only=True)
class RouteSpec:
    """A router, which says where each item goes, and the branches from which items come back.

    Attributes:
        router: the router's op with its options.
        branches: the stages of each branch.
        keys: what the router answers for each branch; ``None``: its position.
        output_order: ``"input"`` restores the order of items across the branches.
        batched: items are lists, whose elements are routed one by one.
    """

    router: PipeSpec
    branches: tuple[tuple[StageSpec, ...], ...]
    keys: tuple[Any, ...] | None
    output_order: OutputOrder = "input"
    batched: bool = False
    scope: Scope | None = None

    @property
    def name(self) -> str | None:
        """The name that the user gave."""
        return self.router.name


StageSpec = (
    PipeSpec | AggregateSpec | DisaggregateSpec | ShapeSpec | RouteSpec | CacheSpec | CopySpec
)


@dataclass(frozen=True, kw_only=True)
class MergeSpec:
    """Several chains whose items come together: in turns, by a function of the user's, or as tuples.

    Attributes:
        how: ``"turns"``, ``"mix"`` or ``"zip"``.
        branches: the chains.
        weights: of the draws; ``None``: round-robin.
        stop: end with the last branch (``"all"``) or with the first (``"first"``).
        seed: of the draws; ``None``: the build's.
        mix: an async generator function over the branches' async iterators.
        strict: a zip of branches of different length is an error.
    """

    how: Literal["turns", "mix", "zip"]
    branches: tuple[ChainSpec, ...]
    weights: tuple[float, ...] | None = None
    stop: Literal["all", "first"] = "all"
    seed: int | None = None
    mix: Any = None
    strict: bool = False
    name: str | None = None
    scope: Scope | None = None


@dataclass(frozen=True, kw_only=True)
class ChainSpec:
    """A source, the stages below it and a sink, as far as they are described yet."""

    source: SourceSpec | MergeSpec | None = None
    stages: tuple[StageSpec, ...] = ()
    sink: SinkSpec | None = None


def scoped(chain: ChainSpec, scope: Scope) -> ChainSpec:
    """Return a built chain without its sink, whose stages keep the options that it was built with."""
    source = chain.source
    if isinstance(source, MergeSpec):
        branches = tuple(scoped(branch, scope) for branch in source.branches)
        source = replace(source, branches=branches, scope=source.scope or scope)
    elif source is not None:
        source = replace(source, scope=source.scope or scope)
    return ChainSpec(source=source, stages=_scoped_stages(chain.stages, scope))


def _scoped_stages(stages: tuple[StageSpec, ...], scope: Scope) -> tuple[StageSpec, ...]:
    done: list[StageSpec] = []
    for stage in stages:
        if isinstance(stage, RouteSpec):
            stage = replace(
                stage,
                branches=tuple(_scoped_stages(branch, scope) for branch in stage.branches),
                router=replace(stage.router, scope=stage.router.scope or scope),
            )
        done.append(replace(stage, scope=stage.scope or scope))
    return tuple(done)


def op_name(op: Callable[..., Any] | Any) -> str:
    """Return the name by which an op is known in tables and messages when none was given."""
    seen = 0
    while seen < 16:
        inner = getattr(op, "func", None) or getattr(op, "__wrapped_op__", None)
        if inner is None or not callable(inner):
            break
        op, seen = inner, seen + 1
    name = getattr(op, "__name__", None)
    if isinstance(name, str) and name:
        return "lambda" if name == "<lambda>" else name
    return type(op).__name__
