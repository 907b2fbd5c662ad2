"""What a run is made of: the steps of a plan, as frozen values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Literal

from spdl_async._plan.shapes import ShapePlan
from spdl_async.spec.policy import FailurePolicy, Retry
from spdl_async.spec.sizes import SizeOf, estimate_bytes
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
AGGREGATE_WINDOW = 64
ABANDONED_FACTOR = 2


@dataclass(frozen=True, kw_only=True)
class Lifespan:
    """What a stage enters before its first item and leaves after its last.

    Attributes:
        owner: returns the object that is an async context manager or has a ``lifespan()``.
        makes_owner: ``owner`` runs code of the user's, which does not belong on the loop.
        use: takes the owner and what entering it gave; returns what is called from then on in place
            of the op's ``call``, ``None`` where that stays.
    """

    owner: Callable[[], Any]
    use: Callable[[Any, Any], Callable[..., Any] | None]
    makes_owner: bool = False


@dataclass(frozen=True, kw_only=True)
class OpPlan:
    """One user op. ``scope`` is the build whose failure budget it shares; ``None``: its own.

    Attributes:
        retry: how often it is tried.
        timeout: seconds of a call; of a 1→n op, until its next value.
        lifespan: what the op owns for the time of a run.
        per_run: makes the call for one run, and what lets go of its state, where ``call`` has any.
    """

    name: str
    kind: OpKind
    call: Callable[..., Any]
    policy: FailurePolicy
    scope: Scope | None
    retry: Retry | None = None
    timeout: float | None = None
    lifespan: Lifespan | None = None
    per_run: Callable[[], tuple[Callable[..., Any], Callable[[], None]]] | None = None


@dataclass(frozen=True, kw_only=True)
class SourcePlan:
    """Read items from a source.

    Attributes:
        op: name and policy; its call returns the iterable, async iterable, or an awaitable of one, for
            each pass.
        on_loop: that call is cheap and what it returns is read on the loop.
        single_use: the source is an iterator, which has one pass only.
        builtin: it is a list, tuple or range, reading which runs no user code.
        source: what the user gave.
        set_epoch: tells the source the number of the pass, before it is opened; ``None``: it has no
            such method.
    """

    op: OpPlan
    on_loop: bool
    single_use: bool
    builtin: bool
    source: Any
    set_epoch: Callable[[int], object] | None = None

    def open_for(self, epoch: int, call: Callable[[], Any] | None = None) -> Any:
        """Open the source, or what its lifespan gave, for one pass; where it is read."""
        if self.set_epoch is not None:
            self.set_epoch(epoch)
        return self.op.call() if call is None else call()


@dataclass(frozen=True, kw_only=True)
class MapPlan:
    """Run fused sync ops in threads (or in a foreign executor), or one async op on the loop."""

    ops: tuple[OpPlan, ...]
    concurrency: int
    ordered: bool
    executor: Executor | None
    on_loop: bool
    buffer_size: int | None = None

    @property
    def bound(self) -> int:
        """The largest number of items that the step holds."""
        return self.floor if self.buffer_size is not None else max(self.floor, MAX_WINDOW)

    @property
    def foreign_window(self) -> int:
        """The number of items that the step holds where its workers share no memory with us."""
        if self.buffer_size is not None:
            return self.concurrency + self.buffer_size
        return WINDOW_FACTOR * self.concurrency

    @property
    def floor(self) -> int:
        """The number of items that the step holds while its ops are slow."""
        if self.buffer_size is not None:
            return self.concurrency + self.buffer_size
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
    buffer_size: int | None = None

    @property
    def window(self) -> int:
        """The largest number of inputs that the step holds."""
        return self.concurrency if self.buffer_size is not None else FLOW_FACTOR * self.concurrency

    @property
    def max_flow(self) -> int:
        """The largest number of values of one input that wait for room."""
        if self.buffer_size is not None:
            return max(1, self.buffer_size // self.concurrency)
        return MAX_FLOW

    @property
    def bound(self) -> int:
        """The largest number of elements that the step holds: values, and inputs not started."""
        return self.window * self.max_flow


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Gather lists of ``size``, short ones where the first item has waited ``within`` seconds."""

    name: str
    size: int
    drop_last: bool
    within: float | None = None

    @property
    def bound(self) -> int:
        """The largest number of members that the step holds, in the open batch and in full ones."""
        return max(1, MAX_WINDOW // self.size) * self.size


@dataclass(frozen=True, kw_only=True)
class AggregatePlan:
    """Run a user's aggregator; its call returns a fresh one for each run.

    Attributes:
        most: of an aggregator of ours with a limit on its items, the most that its open lists hold
            together and the most in one list.
    """

    op: OpPlan
    drop_last: bool
    executor: Executor | None
    within: float | None = None
    most: tuple[int, int] | None = None

    @property
    def bound(self) -> int | None:
        """The most items that the step holds: those whose call is not settled, and the lists' own."""
        return None if self.most is None else AGGREGATE_WINDOW + self.most[0]


@dataclass(frozen=True, kw_only=True)
class FlattenPlan:
    """Emit the elements of lists and tuples.

    Attributes:
        opened: takes a list apart that is on a device, below a copy.
    """

    op: OpPlan
    opened: Callable[[Any], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class RoutePlan:
    """Send items into branches, as the step above has decided, and gather what comes back.

    Attributes:
        name: of the place where items come together.
        router: the router's op, whose policy a wrong answer of a branch falls under.
        branches: the steps of each.
        labels: what the router answers for each branch, for people.
        ordered: input order across the branches.
        batched: items are lists, whose elements are routed.
        opened: takes a list apart that is on a device, below a copy.
    """

    name: str
    router: OpPlan
    branches: tuple[tuple[StepPlan, ...], ...]
    labels: tuple[str, ...]
    ordered: bool
    batched: bool
    opened: Callable[[Any], Any] | None = None

    @property
    def in_place(self) -> bool:
        """Whether items keep their order, and nothing in the branches makes others of them."""
        return (
            self.ordered
            and not self.batched
            and all(
                isinstance(step, MapPlan) or (isinstance(step, RoutePlan) and not step.batched)
                for branch in self.branches
                for step in steps_of(branch)
            )
        )

    @property
    def by_ways(self) -> bool:
        """Whether it counts all that is in the branches, else what none of them has taken."""
        return self.ordered or self.batched

    @property
    def floor(self) -> int:
        """The number of items that go about in the branches while ops are slow."""
        steps = [step for branch in self.branches for step in branch]
        maps = sum(step.floor for step in steps if isinstance(step, MapPlan))
        flows = sum(step.window for step in steps if isinstance(step, FlowPlan))
        return maps + flows + 2 * len(self.branches)

    @property
    def bound(self) -> int:
        """The largest number of items that are in the branches, or wait there for an earlier one."""
        return max(self.floor, MAX_WINDOW * len(self.branches))


StepPlan = MapPlan | FlowPlan | BatchPlan | AggregatePlan | FlattenPlan | ShapePlan | RoutePlan


@dataclass(frozen=True, kw_only=True)
class ChainPlan:
    """A branch of a merge: a source and the steps below it."""

    source: SourcePlan | MergePlan
    steps: tuple[StepPlan, ...]


@dataclass(frozen=True, kw_only=True)
class MergePlan:
    """Bring the items of several chains together, as ``MergeSpec`` says; ``key`` is the draws' seed."""

    op: OpPlan
    how: Literal["turns", "mix", "zip"]
    branches: tuple[ChainPlan, ...]
    weights: tuple[float, ...] | None
    stop: Literal["all", "first"]
    key: str
    strict: bool

    def reads(self, branch: int) -> bool:
        """Whether a branch is read at all; one with a weight of zero is not."""
        return self.weights is None or self.weights[branch] > 0

    @property
    def bound(self) -> int:
        """The largest number of items taken from the branches and not handed on."""
        return max(4 * len(self.branches), MAX_WINDOW)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a run needs to know.

    Attributes:
        claim: what a result goes through in the consumer's thread; ``None``: nothing.
        peek: what a value goes through before the user's ``size_of`` is asked; ``None``: nothing.
    """

    source: SourcePlan | MergePlan
    steps: tuple[StepPlan, ...]
    sink_size: int
    name: str
    num_threads: int
    seed: int
    loop: Literal["caller", "own"]
    loop_reason: str
    max_bytes: int | None = None
    size_of: SizeOf = estimate_bytes
    claim: Callable[[Any], Any] | None = None
    peek: Callable[[Any], Any] | None = None


def sources_of(source: SourcePlan | MergePlan) -> Iterator[SourcePlan]:
    """Yield every source, those of merged chains in their order."""
    if isinstance(source, MergePlan):
        for branch in source.branches:
            yield from sources_of(branch.source)
    else:
        yield source


def steps_of(steps: Iterable[StepPlan]) -> Iterator[StepPlan]:
    """Yield every step, those of branches in their order."""
    for step in steps:
        yield step
        if isinstance(step, RoutePlan):
            for branch in step.branches:
                yield from steps_of(branch)


def all_steps(chain: ChainPlan | Plan) -> Iterator[StepPlan]:
    """Yield every step of a chain, and of the chains that are merged in its source."""
    if isinstance(chain.source, MergePlan):
        for branch in chain.source.branches:
            yield from all_steps(branch)
    yield from steps_of(chain.steps)


def ops_of(step: StepPlan) -> tuple[OpPlan, ...]:
    """Return the user ops that a step itself calls."""
    if isinstance(step, MapPlan):
        return step.ops
    return (step.op,) if isinstance(step, (FlowPlan, AggregatePlan, FlattenPlan)) else ()
