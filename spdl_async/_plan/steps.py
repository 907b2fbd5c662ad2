"""What a run is made of: the steps of a plan, as frozen values."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Literal

from spdl_async.spec.policy import FailurePolicy
from spdl_async.spec.stages import Scope

OpKind = Literal["sync", "async", "generator", "async generator"]

WINDOW_FACTOR = 3
# Stages of several threads hold a few more: what lets those work while the loop comes round to
# refilling them. A stage of one call at a time, often one that makes batches, does without.
SPARE = 10
MAX_WINDOW = 256
MAX_CHUNK = 256
FLOW_FACTOR = 2
MAX_FLOW = 64
FLATTEN_CHUNK = 16


@dataclass(frozen=True, kw_only=True)
class Lifespan:
    """What a stage enters before its first item and leaves after its last.

    Attributes:
        owner: returns the object that is an async context manager or has a ``lifespan()``.
        use: takes the owner and what entering it gave; returns what is called from then on in place
            of the op's ``call``, ``None`` where that stays.
    """

    owner: Callable[[], Any]
    use: Callable[[Any, Any], Callable[..., Any] | None]


@dataclass(frozen=True, kw_only=True)
class OpPlan:
    """One user op. ``scope`` is the build whose failure budget it shares; ``None``: its own.

    Attributes:
        lifespan: what the op owns for the time of a run.
        per_run: makes the call for one run, and what lets go of its state, where ``call`` has any.
    """

    name: str
    kind: OpKind
    call: Callable[..., Any]
    policy: FailurePolicy
    scope: Scope | None
    lifespan: Lifespan | None = None
    per_run: Callable[[], tuple[Callable[..., Any], Callable[[], None]]] | None = None


@dataclass(frozen=True, kw_only=True)
class SourcePlan:
    """Read items from a source.

    Attributes:
        op: name and policy.
        open: returns the iterable, async iterable, or an awaitable of one, for each pass.
        on_loop: ``open`` is cheap and what it returns is read on the loop.
        single_use: the source is an iterator, which has one pass only.
        builtin: it is a list, tuple or range, reading which runs no user code.
        source: what the user gave.
    """

    op: OpPlan
    open: Callable[[], Any]
    on_loop: bool
    single_use: bool
    builtin: bool
    source: Any


@dataclass(frozen=True, kw_only=True)
class MapPlan:
    """Run fused sync ops in threads (or in a foreign executor), or one async op on the loop."""

    ops: tuple[OpPlan, ...]
    concurrency: int
    ordered: bool
    executor: Executor | None
    on_loop: bool

    @property
    def bound(self) -> int:
        """The largest number of items that the step holds."""
        return max(self.floor, MAX_WINDOW)

    @property
    def floor(self) -> int:
        """The number of items that the step holds while its ops are slow."""
        spare = 0 if self.on_loop or self.concurrency == 1 else SPARE
        return WINDOW_FACTOR * self.concurrency + spare


@dataclass(frozen=True, kw_only=True)
class FlowPlan:
    """Run a 1→n op: a generator function, or any op that returns an iterable (``expand``)."""

    op: OpPlan
    concurrency: int
    ordered: bool
    executor: Executor | None
    on_loop: bool

    @property
    def window(self) -> int:
        """The largest number of inputs that the step holds."""
        return FLOW_FACTOR * self.concurrency

    @property
    def bound(self) -> int:
        """The largest number of elements that the step holds: values, and inputs not started."""
        return self.window * MAX_FLOW


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Gather lists of ``size``."""

    name: str
    size: int
    drop_last: bool

    @property
    def bound(self) -> int:
        """The largest number of members that the step holds, in the open batch and in full ones."""
        return max(1, MAX_WINDOW // self.size) * self.size


@dataclass(frozen=True, kw_only=True)
class AggregatePlan:
    """Run a user's aggregator; ``make`` returns a fresh one for each run."""

    op: OpPlan
    make: Callable[[], Any]
    drop_last: bool
    executor: Executor | None


@dataclass(frozen=True, kw_only=True)
class FlattenPlan:
    """Emit the elements of lists and tuples."""

    op: OpPlan


StepPlan = MapPlan | FlowPlan | BatchPlan | AggregatePlan | FlattenPlan


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a run needs to know."""

    source: SourcePlan
    steps: tuple[StepPlan, ...]
    sink_size: int
    name: str
    num_threads: int
    seed: int
    loop: Literal["caller", "own"]
    loop_reason: str
