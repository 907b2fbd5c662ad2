"""A cache in a plan: a lookup, and a route of one branch for what was not found.

The lookup is a step of threads. What it finds it loads there and then; what it does not find goes
through the stages above the cache, whose last step writes each output down as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spdl_async._plan.classify import check_arity, classify_op
from spdl_async._plan.fuse import Placed
from spdl_async._plan.names import stage_name
from spdl_async._plan.place import drains
from spdl_async._plan.routing import Routed
from spdl_async._plan.steps import (
    MapPlan,
    MergePlan,
    OpPlan,
    RoutePlan,
    SourcePlan,
    StepPlan,
)
from spdl_async.errors import BuildError
from spdl_async.spec.cache import CacheSpec
from spdl_async.spec.copies import CopySpec
from spdl_async.spec.policy import FailurePolicy
from spdl_async.spec.sizes import bytes_text
from spdl_async.spec.stages import PipeSpec, RouteSpec, Scope, StageSpec

if TYPE_CHECKING:
    from spdl_async._cache.codec import Blob
    from spdl_async._cache.entry import Loaded
    from spdl_async._cache.store import Store


class Numbered(Routed):
    """A source item with its position."""

    __slots__ = ()


class Found(Routed):
    """What an entry holds: ``value`` is the list of outputs, ``to`` that of their paths."""

    __slots__ = ()

    def __init__(self, outputs: Sequence[Loaded]) -> None:
        super().__init__([value for _, value in outputs], [path for path, _ in outputs])


class Missed(Routed):
    """A source item without an entry; ``to`` is the name that its entry will have."""

    __slots__ = ("damaged",)

    def __init__(self, value: Any, name: str, damaged: bool) -> None:
        super().__init__(value, name)
        self.damaged = damaged


class Encoded(Routed):
    """An output with its bytes, ``to``."""

    __slots__ = ()

    to: Blob

    @property
    def more_bytes(self) -> int:  # type: ignore[override]  # read only
        return self.to.size


@dataclass(frozen=True, kw_only=True)
class LookupPlan(MapPlan):
    """Look source items up; ``numbered``: their position is a part of the key."""

    numbered: bool


@dataclass(frozen=True, kw_only=True)
class CachePlan(RoutePlan):
    """Hand on what was found, make what was not, and keep that.

    Attributes:
        store: where entries are; the passes of a pipeline share it.
        spec: what the user said.
    """

    store: Store
    spec: CacheSpec

    @property
    def by_ways(self) -> bool:
        return True


class Lookup:
    """The op that looks a source item up."""

    def __init__(self, store: Store, namespace: bytes, key: Callable[[Any], Any] | None) -> None:
        from spdl_async._cache.keys import canonical, entry_name, indexed

        self.store = store
        self.namespace = namespace
        self.key = key
        self.canonical, self.entry_name, self.indexed = canonical, entry_name, indexed

    def __call__(self, item: Any) -> Found | Missed:
        if self.key is None:
            value = item.value
            key = self.indexed(item.to, value)
        else:
            value = item
            key = self.canonical(self.key(value))
        name = self.entry_name(self.namespace, key)
        read = self.store.read(name)
        if read.outputs is not None:
            return Found(read.outputs)
        return Missed(value, name, read.damaged)


def encoded(value: Any) -> Encoded:
    """Return an output with its bytes, before anybody below can change it."""
    from spdl_async._cache.codec import encode

    return Encoded(value, encode(value))


def split_at_cache(
    stages: Sequence[StageSpec],
) -> tuple[Sequence[StageSpec], CacheSpec | None, Sequence[StageSpec]]:
    """Return the stages above a chain's cache, the cache, and those below.

    Raises:
        BuildError: something above it does not work on one item at a time, or there are two.
    """
    for at, stage in enumerate(stages):
        if isinstance(stage, CacheSpec):
            above, below = stages[:at], stages[at + 1 :]
            if not above:
                raise BuildError(
                    f"{stage.text}: there is nothing above it but the source, which is read in each "
                    f"pass all the same; put it below the stages whose work it is to save"
                )
            check_above(stage, above)
            for other in below:
                if isinstance(other, CacheSpec):
                    raise BuildError(
                        f"{other.text}: there is a {stage.text} above it; one chain has one"
                    )
            return above, stage, below
    return stages, None, ()


def check_above(cache: CacheSpec, stages: Iterable[StageSpec]) -> None:
    """Refuse what makes outputs of more than one item, or whose outputs depend on others."""
    for stage in stages:
        if isinstance(stage, RouteSpec):
            for branch in stage.branches:
                check_above(cache, branch)
        elif isinstance(stage, CopySpec) and stage.to == "device":
            raise BuildError(
                f"{cache.text}: {stage.text} stands above it, and what is on a device cannot be kept; put "
                f".cache() above to_device"
            )
        elif not isinstance(stage, PipeSpec):
            text = getattr(stage, "text", None) or type(stage).__name__.removesuffix("Spec").lower()
            raise BuildError(
                f"{cache.text}: {text} stands above it, whose results are not those of one source item; "
                f"put .cache() above that stage, below the last one that works item by item"
            )


def check_source(cache: CacheSpec, source: SourcePlan | MergePlan) -> None:
    """Refuse a source whose items are not known by their position, where no key is given."""
    if cache.key is not None:
        return
    why = None
    if isinstance(source, MergePlan):
        why = f"{source.op.name!r} brings several sources together"
    elif source.set_epoch is not None:
        why = "the source has set_epoch(), so its order changes from pass to pass"
    elif source.single_use:
        why = "the source is an iterator, of which nobody knows whether the next one is the same"
    if why is not None:
        raise BuildError(
            f"{cache.text}: {why}, and the position of an item does not say which it is; give key=, a "
            f"function of what the source gives, such as key=str for paths"
        )


def ordered_above(stages: Iterable[StageSpec]) -> bool:
    """Tell whether the stages above keep the input order, which the cache then keeps too."""
    return all(
        stage.output_order == "input"
        for stage in stages
        if isinstance(stage, (PipeSpec, RouteSpec))
    )


class Caching:
    """Plans the steps of a cache."""

    def __init__(
        self,
        spec: CacheSpec,
        give_name: Callable[[str | None, str], str],
        policy: tuple[FailurePolicy, Scope | None],
        scope: Scope,
    ) -> None:
        self.spec = spec
        self.give_name = give_name
        self.name = give_name(spec.name, "cache")
        self.policy, self.owner = policy
        executor = (spec.scope or scope).executor
        # Entries are in our memory, or go through it, whatever the build's executor is.
        self.executor = executor if executor is not None and drains(executor) else None

    def op(self, what: str, call: Callable[[Any], Any]) -> OpPlan:
        """Return one of the ops of the cache."""
        name = self.give_name(None, f"{self.name} {what}")
        return OpPlan(name=name, kind="sync", call=call, policy=self.policy, scope=self.owner)

    def encode(self, above: Sequence[Placed]) -> Placed:
        """Return the last step of the branch, made such that it can share the hop of the one above."""
        last = above[-1].step
        concurrency, buffer_size = self.spec.concurrency, None
        if isinstance(last, MapPlan) and not last.on_loop and last.executor is self.executor:
            concurrency, buffer_size = last.concurrency, last.buffer_size
        step = MapPlan(
            ops=(self.op("encode", encoded),),
            concurrency=concurrency,
            ordered=not isinstance(last, MapPlan) or last.ordered,
            executor=self.executor,
            on_loop=False,
            buffer_size=buffer_size,
        )
        return Placed(step, True, above[-1].inner)

    def steps(self, branch: tuple[StepPlan, ...], ordered: bool) -> list[Placed]:
        """Return the lookup, and what brings together what it found and what the branch makes."""
        spec = self.spec
        store, namespace = kept(spec, self.name, branch)
        lookup = LookupPlan(
            ops=(self.op("lookup", Lookup(store, namespace, checked_key(spec))),),
            concurrency=spec.concurrency,
            ordered=ordered,
            executor=self.executor,
            on_loop=False,
            numbered=spec.key is None,
        )
        plan = CachePlan(
            name=self.name,
            router=lookup.ops[0],
            branches=(branch,),
            labels=("not found",),
            ordered=ordered,
            batched=False,
            store=store,
            spec=spec,
        )
        return [Placed(lookup, False, spec.scope), Placed(plan, False, spec.scope)]


def kept(spec: CacheSpec, name: str, branch: Sequence[StepPlan]) -> tuple[Store, bytes]:
    """Return a store, and what tells this cache's entries from those of others in it."""
    from spdl_async._cache.folder import FolderStore
    from spdl_async._cache.keys import namespace_of
    from spdl_async._cache.memory import MemoryStore

    namespace = namespace_of((name, spec.version, *names_of(branch)))
    if spec.folder is None:
        assert spec.max_bytes is not None
        return MemoryStore(spec.max_bytes), namespace
    return FolderStore(spec.folder, spec.max_bytes, spec.version), namespace


def names_of(steps: Sequence[StepPlan]) -> Iterable[str]:
    """Yield the names of the stages in a branch, in its order.

    Not those of steps: which stages share one depends on how many calls they may have, which changes
    nothing of what they make.
    """
    for step in steps:
        if isinstance(step, MapPlan):
            yield from (op.name for op in step.ops)
            continue
        if isinstance(step, RoutePlan):
            for branch in step.branches:
                yield from names_of(branch)
        yield stage_name(step)


def checked_key(spec: CacheSpec) -> Callable[[Any], Any] | None:
    """Return the function that gives a key.

    Raises:
        BuildError: it is none, or an async or generator function.
    """
    if spec.key is None:
        return None
    where = f"{spec.text}: key"
    kind, call = classify_op(spec.key, where)
    if kind != "sync":
        raise BuildError(
            f"{where} must be an ordinary function of a source item, not a {kind} function"
        )
    check_arity(call, 1, where)
    return call


def cache_text(plan: CachePlan) -> str:
    """Return one line for a cache."""
    spec = plan.spec
    most = "no limit" if spec.max_bytes is None else f"at most {bytes_text(spec.max_bytes)}"
    place = "in memory" if spec.folder is None else f"in {spec.folder}"
    key = "the position in the source" if spec.key is None else "a function of the source item"
    version = f", version {spec.version!r}" if spec.version else ""
    order = "input order" if plan.ordered else "completion order"
    return f"{plan.name}: kept {place}, {most}, key: {key}{version}, {order}"
