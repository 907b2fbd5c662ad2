"""The builder: each verb describes one more stage and returns a new builder."""

from __future__ import annotations

import functools
import os
import secrets
import sys
import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
)
from concurrent.futures import Executor
from dataclasses import replace
from fractions import Fraction
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from spdl_async._plan.classify import check_fragment, check_handler, check_size_of
from spdl_async._plan.compile import compile_chain
from spdl_async.aggregators import ListAggregator
from spdl_async.errors import BuildError, UnusedBuilderWarning
from spdl_async.merging import Merge, Zip
from spdl_async.pipeline import Pipeline
from spdl_async.spec.aggregator import Aggregator
from spdl_async.spec.cache import CacheSpec, where_kept
from spdl_async.spec.copies import CopySpec, Kit
from spdl_async.spec.markers import Drop
from spdl_async.spec.policy import FailurePolicy, OnError, Retry, check_int, parse_policy
from spdl_async.spec.shapes import SHAPE_SPECS, EnumerateSpec, ShuffleSpec, SkipSpec, TakeSpec
from spdl_async.spec.sizes import SizeOf, estimate_bytes, parse_bytes
from spdl_async.spec.stages import (
    AggregateSpec,
    ChainSpec,
    DisaggregateSpec,
    OutputOrder,
    PipeMode,
    PipeSpec,
    RouteSpec,
    Scope,
    SinkSpec,
    SourceSpec,
    StageSpec,
    op_name,
)

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
U = TypeVar("U")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
K = TypeVar("K")
K_contra = TypeVar("K_contra", contravariant=True)
V_co = TypeVar("V_co", covariant=True)

# ``Any``: a router of a batched route takes the list and returns a list.
Router = Callable[[T], Any] | Callable[[T], Awaitable[Any]]
Branch = Callable[["PipelineBuilder[T]"], "PipelineBuilder[U]"]

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class NoSource:
    """Stands for the item type of a builder that has no source yet, in static types only."""


class Lookup(Protocol[K_contra, V_co]):
    """Anything that is indexed by items, such as a dict or an array."""

    def __getitem__(self, key: K_contra, /) -> V_co: ...


class SizedLookup(Protocol[V_co]):
    """A map-style data set: ``len()`` and an index from 0."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> V_co: ...


class StageOptions(TypedDict, total=False):
    """Options of every verb that calls user code."""

    name: str | None
    on_error: OnError | None
    max_failures: int | Fraction | None


class SourceOptions(StageOptions, total=False):
    """Options of ``add_source``."""

    timeout: float | None


class CopyOptions(StageOptions, total=False):
    """Options of ``to_device``."""

    depth: int
    only: Iterable[Any] | Callable[[tuple[Any, ...], Any], bool] | None
    pin: bool | int | str


class ExpandOptions(StageOptions, total=False):
    """Options of ``expand``: those of ``pipe`` but ``fuse``."""

    concurrency: int
    output_order: OutputOrder
    executor: Executor | None
    buffer_size: int | None
    retry: Retry | None
    timeout: float | None


class FilterOptions(ExpandOptions, total=False):
    """Options of ``filter``: those of ``pipe``."""

    fuse: bool


class AggregateOptions(StageOptions, total=False):
    """Options of ``aggregate``."""

    drop_last: bool
    within: float | None


class RouteOptions(StageOptions, total=False):
    """Options of ``route``."""

    retry: Retry | None
    timeout: float | None
    output_order: OutputOrder
    batched: bool
    concurrency: int


# Stands for the source in the builders that branches are given.
BRANCH: Final = SourceSpec(source=())


class _Unknown:
    """Nothing is one; only ``Any`` fits."""


class PipelineBuilder(Generic[T_co]):
    """Describe a pipeline: an immutable value to which each verb adds a stage.

    Every verb returns a *new* builder, so a prefix can be shared by two pipelines. The item type
    moves along: ``mypy --strict`` infers it through the chain. A builder that is dropped without
    having been extended or built warns (:class:`UnusedBuilderWarning`).

    >>> from spdl_async import PipelineBuilder
    >>> numbers = PipelineBuilder().add_source(range(10))
    >>> list(numbers.pipe(lambda x: x * x, concurrency=4).aggregate(4).build())
    [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]
    >>> list(numbers.filter(lambda x: x % 3 == 0).build())
    [0, 3, 6, 9]
    """

    __slots__ = ("__weakref__", "_chain", "_made_by", "_used")

    def __init__(self: PipelineBuilder[NoSource]) -> None:
        self._chain = ChainSpec()
        self._used = True  # an empty builder has nothing to lose
        self._made_by: tuple[str, str, int] | None = None

    def __del__(self) -> None:
        if getattr(self, "_used", True) or self._made_by is None:
            return
        verb, file, line = self._made_by
        warnings.warn_explicit(
            f"the result of .{verb} at {file}:{line} was never used; "
            f"write builder = builder.{verb.partition('(')[0]}(…)",
            UnusedBuilderWarning,
            file,
            line,
        )

    if not TYPE_CHECKING:  # to type checkers a builder has what it has, and nothing else

        def __getattribute__(self, name: str) -> Any:
            # Whoever asks for a verb has used the builder, also where Python refuses the call.
            if name[0] != "_":
                object.__setattr__(self, "_used", True)
            return object.__getattribute__(self, name)

        def __getattr__(self, name: str) -> Any:
            text = f"'PipelineBuilder' object has no attribute {name!r}"
            if name[0] != "_" and hasattr(Pipeline, name):
                text += f"; a pipeline has: write builder.build().{name}"
            raise AttributeError(text, name=name, obj=self)

    def __repr__(self) -> str:
        stages = [stage_text(stage) for stage in self._chain.stages]
        source = "no source" if self._chain.source is None else "source"
        return f"<PipelineBuilder: {' → '.join([source, *stages])}>"

    # Source

    @overload
    def add_source(
        self: PipelineBuilder[NoSource],
        source: PipelineBuilder[U] | Pipeline[U] | Merge[U] | Zip[U],
        /,
        **options: Unpack[SourceOptions],
    ) -> PipelineBuilder[U]: ...
    @overload
    def add_source(
        self: PipelineBuilder[NoSource],
        source: AsyncIterable[U],
        /,
        **options: Unpack[SourceOptions],
    ) -> PipelineBuilder[U]: ...
    @overload
    def add_source(
        self: PipelineBuilder[NoSource],
        source: Iterable[U],
        /,
        **options: Unpack[SourceOptions],
    ) -> PipelineBuilder[U]: ...
    @overload
    def add_source(
        self: PipelineBuilder[NoSource],
        source: SizedLookup[U],
        /,
        **options: Unpack[SourceOptions],
    ) -> PipelineBuilder[U]: ...
    @overload
    def add_source(
        self: PipelineBuilder[NoSource],
        source: Callable[[], AsyncIterable[U]],
        /,
        **options: Unpack[SourceOptions],
    ) -> PipelineBuilder[U]: ...
    @overload
    def add_source(
        self: PipelineBuilder[NoSource],
        source: Callable[[], Iterable[U]],
        /,
        **options: Unpack[SourceOptions],
    ) -> PipelineBuilder[U]: ...
    @overload
    def add_source(
        self: PipelineBuilder[NoSource],
        source: Callable[[], Awaitable[AsyncIterable[U] | Iterable[U]]],
        /,
        **options: Unpack[SourceOptions],
    ) -> PipelineBuilder[U]: ...
    def add_source(
        self,
        source: Any,
        /,
        *,
        name: str | None = None,
        on_error: OnError | None = None,
        max_failures: int | Fraction | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Say where items come from; every chain begins with this.

        Args:
            source: a sync or async iterable; a callable without arguments that returns one (fresh
                for each pass); an object with ``__len__`` and ``__getitem__``, read by index; or
                another builder or pipeline, whose stages become the first ones of this chain; or a
                :class:`Merge` or :class:`Zip` of several. An object that is both iterable and callable
                is an iterable, one with both ``__iter__`` and ``__aiter__`` is async. Lists, tuples and
                ranges are read on the loop, any other sync source in a thread of its own.
            name: the name in tables and messages; default ``"source"``.
            on_error: ``"raise"``, ``"skip"`` or a function, as for :meth:`pipe`; after a skipped
                failure the next item is asked for. Where the source then ends at once (as a
                generator does that has raised), or fails 100 times in a row, the first failure is
                raised all the same.
            max_failures: failures that are allowed: an int, or a ``Fraction`` of the calls.
            timeout: seconds that an *async* source may take for each item; then the wait is
                cancelled, and the failure is a :class:`StageTimeout`. There is no ``retry``: a
                generator that has raised is over, so only the source itself can try again.

        Raises:
            BuildError: there is a source already, or this is none.

        >>> from spdl_async import PipelineBuilder
        >>> async def numbers():
        ...     yield 1
        ...     yield 2
        >>> list(PipelineBuilder().add_source(numbers).build())
        [1, 2]
        """
        self._used = True
        if self._chain.source is not None:
            raise BuildError("add_source: this builder has a source already; a chain has one")
        policy = checked_policy(on_error, max_failures, "add_source")
        if isinstance(source, (PipelineBuilder, Pipeline)):
            if name is not None or policy is not None or timeout is not None:
                raise BuildError(
                    "add_source: name, on_error, max_failures and timeout belong to the add_source "
                    "of the inner pipeline, which is inlined here"
                )
            return self._extended(source._inlined("add_source"), "add_source(…)")
        if isinstance(source, (Merge, Zip)):
            if name is not None or policy is not None or timeout is not None:
                raise BuildError(
                    "add_source: the name belongs to the Merge or Zip itself, on_error, max_failures "
                    "and timeout to the add_source of its branches"
                )
            return self._extended(replace(self._chain, source=source._spec), "add_source(…)")
        spec = SourceSpec(source=source, name=name, policy=policy, timeout=timeout)
        return self._extended(replace(self._chain, source=spec), "add_source(…)")

    # Stages

    @overload
    def pipe(
        self, op: Callable[[T_co], Awaitable[U | Drop]], /, **options: Unpack[FilterOptions]
    ) -> PipelineBuilder[U]: ...
    @overload
    def pipe(
        self,
        op: Callable[[T_co], AsyncGenerator[U | Drop, Any]],
        /,
        **options: Unpack[FilterOptions],
    ) -> PipelineBuilder[U]: ...
    @overload
    def pipe(
        self,
        op: Callable[[T_co], Generator[U | Drop, Any, Any]],
        /,
        **options: Unpack[FilterOptions],
    ) -> PipelineBuilder[U]: ...
    @overload
    def pipe(
        self, op: Callable[[T_co], U | Drop], /, **options: Unpack[FilterOptions]
    ) -> PipelineBuilder[U]: ...
    @overload
    def pipe(
        self, op: Lookup[T_co, U], /, **options: Unpack[FilterOptions]
    ) -> PipelineBuilder[U]: ...
    def pipe(
        self,
        op: Any,
        /,
        *,
        concurrency: int = 1,
        output_order: OutputOrder = "input",
        executor: Executor | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
        max_failures: int | Fraction | None = None,
        buffer_size: int | None = None,
        retry: Retry | None = None,
        timeout: float | None = None,
        fuse: bool = True,
    ) -> Any:
        """Apply an op to each item.

        A coroutine function stays on the event loop; a plain function runs in threads; what a plain
        function returns is awaited on the loop if it is awaitable. A generator or async generator
        *function* makes any number of items of one, which flow before it has ended; whatever
        else is returned, iterators included, is data. An object with ``__getitem__`` that cannot be
        called is looked up in.

        Args:
            op: takes the item; may return or yield ``DROP`` to drop it. An object that is an async
                context manager, or has a ``lifespan()`` that makes one, is entered by each run. For a
                type checker the annotation decides: ``Generator`` and ``AsyncGenerator`` make many
                items of one, an ``Iterator`` is one item, as data is.
            concurrency: how many calls run at once at most. For I/O tens to hundreds; for work on
                the CPU that releases the GIL about the number of cores.
            output_order: ``"input"``, the order of the items; or ``"completion"``, as they finish.
            executor: any ``concurrent.futures.Executor`` to run a sync op on, such as a
                ``ProcessPoolExecutor``; never shut down by us.
            name: the name in tables and messages; default: the op's.
            on_error: ``"raise"`` ends the run, ``"skip"`` drops the item; default: as ``build()`` says.
                Or a function or coroutine function, called on the run's loop with the
                :class:`Failure`: when it returns, the item is skipped; what it raises ends the run.
            max_failures: failures that are allowed: an int, or a ``Fraction`` of the calls. An item
                that is called again (``retry``) is one call.
            buffer_size: how many items the stage may hold beside the ``concurrency`` ones that are worked
                on: waiting for a call, or finished and waiting for room or for an earlier one; of a
                1→n op, values that wait for room. Default: few while items are slow, up to 256 in
                all while they are quick.
            retry: a :class:`Retry`: call the op again on an item that it has failed on. A 1→n op is
                called again only while it has made no value of the item.
            timeout: seconds that a call may take; of a 1→n op, the longest wait for its next value.
                Then an async op is cancelled; a call in a thread is left to itself and its thread
                replaced, :func:`cancelled` tells it, and what it returns is dropped. The failure is
                a :class:`StageTimeout`. More than 2 × ``concurrency`` such calls that still run end
                the pass. On an executor of yours no thread can be replaced, and the time on a
                process pool includes the wait for a worker.
            fuse: whether the op may share a thread's turn with an adjacent sync op of the same
                concurrency (at least 2), order, executor, ``buffer_size`` and policy. One with a
                ``timeout`` never does.

        Raises:
            BuildError: an option is out of range.

        >>> from spdl_async import PipelineBuilder
        >>> list(PipelineBuilder().add_source(["b", "a"]).pipe({"a": 1, "b": 2}).build())
        [2, 1]
        """
        options = (concurrency, output_order, executor, name, on_error, max_failures)
        return self._piped("map", op, *options, buffer_size, retry, timeout, fuse)

    @overload
    def expand(
        self,
        op: Callable[[T_co], Awaitable[AsyncIterable[U | Drop] | Iterable[U | Drop]]],
        /,
        **options: Unpack[ExpandOptions],
    ) -> PipelineBuilder[U]: ...
    @overload
    def expand(
        self, op: Callable[[T_co], AsyncIterable[U | Drop]], /, **options: Unpack[ExpandOptions]
    ) -> PipelineBuilder[U]: ...
    @overload
    def expand(
        self, op: Callable[[T_co], Iterable[U | Drop]], /, **options: Unpack[ExpandOptions]
    ) -> PipelineBuilder[U]: ...
    def expand(
        self,
        op: Any,
        /,
        *,
        concurrency: int = 1,
        output_order: OutputOrder = "input",
        executor: Executor | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
        max_failures: int | Fraction | None = None,
        buffer_size: int | None = None,
        retry: Retry | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Make any number of items of one: emit each element of the iterable that the op returns.

        As :meth:`pipe`, for any op that returns an iterable, an async iterable, or an awaitable of
        one. A sync iterator is advanced in a thread, and waits without one while its values have
        no room.

        >>> from spdl_async import PipelineBuilder
        >>> list(PipelineBuilder().add_source([2, 3]).expand(range).build())
        [0, 1, 0, 1, 2]
        """
        options = (concurrency, output_order, executor, name, on_error, max_failures)
        return self._piped("expand", op, *options, buffer_size, retry, timeout, False)

    def filter(
        self,
        predicate: Callable[[T_co], object],
        /,
        *,
        concurrency: int = 1,
        output_order: OutputOrder = "input",
        executor: Executor | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
        max_failures: int | Fraction | None = None,
        buffer_size: int | None = None,
        retry: Retry | None = None,
        timeout: float | None = None,
        fuse: bool = True,
    ) -> PipelineBuilder[T_co]:
        """Keep the items for which ``predicate``, sync or async, is true. Options as for :meth:`pipe`.

        >>> from spdl_async import PipelineBuilder
        >>> list(PipelineBuilder().add_source(range(5)).filter(lambda x: x % 2).build())
        [1, 3]
        """
        kept: PipelineBuilder[T_co] = self._piped(
            "filter",
            predicate,
            concurrency,
            output_order,
            executor,
            name,
            on_error,
            max_failures,
            buffer_size,
            retry,
            timeout,
            fuse,
        )
        return kept

    @overload
    def aggregate(
        self, size: int, /, **options: Unpack[AggregateOptions]
    ) -> PipelineBuilder[list[T_co]]: ...
    @overload
    def aggregate(
        self, aggregator: ListAggregator[T_co], /, **options: Unpack[AggregateOptions]
    ) -> PipelineBuilder[list[T_co]]: ...
    @overload
    def aggregate(
        self, aggregator: Aggregator[T_co, U | Drop], /, **options: Unpack[AggregateOptions]
    ) -> PipelineBuilder[U]: ...
    @overload
    def aggregate(
        self,
        factory: Callable[[], Aggregator[T_co, U | Drop]],
        /,
        **options: Unpack[AggregateOptions],
    ) -> PipelineBuilder[U]: ...
    def aggregate(
        self,
        aggregator: Any,
        /,
        *,
        drop_last: bool = False,
        within: float | None = None,
        name: str | None = None,
        on_error: OnError | None = None,
        max_failures: int | Fraction | None = None,
    ) -> Any:
        """Gather items: lists of ``n``, or whatever an :class:`Aggregator` makes of them.

        Args:
            aggregator: a batch size; an ``Aggregator``, copied for each run; or a factory of one.
            drop_last: drop a last batch that is not full (of an aggregator: do not flush it at the
                end).
            within: seconds after which a batch is emitted although it is not full, counted from when
                its first item came here (where there is no room below, as soon as there is); an
                aggregator is flushed then. Such batches are not dropped by ``drop_last``. For
                sources that pause, where a late result is worse than a small batch. With
                ``run_sync(inline=True)`` it is looked at when the next item comes.
            name: the name in tables and messages.
            on_error: what a failure of an aggregator's call does, as for :meth:`pipe`; one in
                ``accumulate`` concerns that item, one in ``flush`` the tail.
            max_failures: failures that are allowed.

        Raises:
            BuildError: the size is below 1, ``within`` is no finite number above 0, or this is no
                aggregator.

        >>> from spdl_async import PipelineBuilder
        >>> list(PipelineBuilder().add_source(range(5)).aggregate(2, drop_last=True).build())
        [[0, 1], [2, 3]]
        """
        self._used = True
        policy = checked_policy(on_error, max_failures, "aggregate")
        if not isinstance(drop_last, bool):
            raise BuildError(f"aggregate: drop_last must be True or False, not {drop_last!r}")
        if isinstance(aggregator, (int, float)):
            check_int(aggregator, "aggregate: the batch size")
            if policy is not None:
                raise BuildError(
                    "aggregate: making lists cannot fail; on_error is for an Aggregator"
                )
            stage = AggregateSpec(
                size=int(aggregator), drop_last=drop_last, within=within, name=name
            )
        else:
            stage = AggregateSpec(
                aggregator=aggregator, drop_last=drop_last, within=within, name=name, policy=policy
            )
        return self._with_stage(stage)

    @overload
    def disaggregate(self: PipelineBuilder[list[U]]) -> PipelineBuilder[U]: ...
    @overload
    def disaggregate(self: PipelineBuilder[tuple[U, ...]]) -> PipelineBuilder[U]: ...
    def disaggregate(self) -> Any:
        """Emit the elements of lists and tuples; anything else, ``str`` included, is a failure.

        >>> from spdl_async import PipelineBuilder
        >>> list(PipelineBuilder().add_source([[1, 2], [3]]).disaggregate().build())
        [1, 2, 3]
        """
        return self._with_stage(DisaggregateSpec())

    @overload
    def route(
        self, router: Router[T_co], a: Branch[T_co, A], /, **options: Unpack[RouteOptions]
    ) -> PipelineBuilder[A]: ...
    @overload
    def route(
        self,
        router: Router[T_co],
        a: Branch[T_co, A],
        b: Branch[T_co, B],
        /,
        **options: Unpack[RouteOptions],
    ) -> PipelineBuilder[A | B]: ...
    @overload
    def route(
        self,
        router: Router[T_co],
        a: Branch[T_co, A],
        b: Branch[T_co, B],
        c: Branch[T_co, C],
        /,
        **options: Unpack[RouteOptions],
    ) -> PipelineBuilder[A | B | C]: ...
    @overload
    def route(
        self,
        router: Router[T_co],
        a: Branch[T_co, A],
        b: Branch[T_co, B],
        c: Branch[T_co, C],
        d: Branch[T_co, D],
        /,
        **options: Unpack[RouteOptions],
    ) -> PipelineBuilder[A | B | C | D]: ...
    @overload
    def route(
        self, router: Router[T_co], /, *branches: Branch[T_co, U], **options: Unpack[RouteOptions]
    ) -> PipelineBuilder[U]: ...
    @overload
    def route(
        self,
        router: Router[T_co],
        branches: Mapping[Any, Branch[T_co, U]],
        /,
        **options: Unpack[RouteOptions],
    ) -> PipelineBuilder[U]: ...
    def route(
        self,
        router: Any,
        /,
        *branches: Any,
        output_order: OutputOrder = "input",
        batched: bool = False,
        concurrency: int = 1,
        name: str | None = None,
        on_error: OnError | None = None,
        max_failures: int | Fraction | None = None,
        retry: Retry | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Send each item through one of several branches.

        Args:
            router: sync or async, takes the item; returns the position of its branch, a key of the
                mapping, or ``DROP``.
            branches: functions that add stages to the builder they are given, as for :meth:`apply`; or
                one mapping from what the router returns to such functions. One that returns its
                builder as it is does nothing to its items. ``take`` is refused in a branch: it would
                end the others too. ``shuffle``, ``skip`` and ``enumerate`` know its own items only.
            output_order: ``"input"`` restores the order of items across the branches; ``"completion"``
                lets them leave as they come. A branch that gathers items (``aggregate``, ``shuffle``)
                needs the latter: an item that waits in it would hold back every later one.
            batched: items are lists. The router takes a list and returns one answer for each element;
                a branch is given the list of its elements, is not called for none, and returns as
                many; elements come back in their original places. Elements of a list that a branch
                drops are missing. Branches have 1→1 stages only.
            concurrency: how many calls of the router run at once at most.
            name: the router's name in tables and messages; default: the router's.
            on_error: as for :meth:`pipe`, for the router and for answers that name no branch.
            max_failures: failures that are allowed.
            retry: a :class:`Retry`: call the router again on an item that it has failed on.
            timeout: seconds that a call of the router may take, as for :meth:`pipe`.

        Raises:
            BuildError: no branch, a branch that does not return its builder, or cannot be a branch.

        >>> from spdl_async import PipelineBuilder
        >>> numbers = PipelineBuilder().add_source(range(6))
        >>> def halved(branch):
        ...     return branch.pipe(lambda x: x // 2)
        >>> def negated(branch):
        ...     return branch.pipe(lambda x: -x)
        >>> list(numbers.route(lambda x: x % 2, halved, negated).build())
        [0, -1, 1, -3, 2, -5]
        """
        self._used = True
        where = f"route({op_name(router)})"
        if not isinstance(batched, bool):
            raise BuildError(f"{where}: batched must be True or False, not {batched!r}")
        keys = None
        if len(branches) == 1 and isinstance(branches[0], Mapping):
            keys, branches = tuple(branches[0]), tuple(branches[0].values())
        if not branches:
            raise BuildError(f"{where}: give at least one branch")
        spec = RouteSpec(
            router=PipeSpec(
                op=router,
                concurrency=concurrency,
                output_order=output_order,
                name=name,
                policy=checked_policy(on_error, max_failures, where),
                retry=retry,
                timeout=timeout,
            ),
            branches=tuple(
                branch_stages(branch, f"{where}: branch {at if keys is None else repr(keys[at])}")
                for at, branch in enumerate(branches)
            ),
            keys=keys,
            output_order=output_order,
            batched=batched,
        )
        return self._with_stage(spec)

    def shuffle(
        self, buffer_size: int, /, *, seed: int | None = None, name: str | None = None
    ) -> PipelineBuilder[T_co]:
        """Put items into a random order, within a window.

        The buffer fills up before anything is emitted; then each item that comes takes the place of
        a random one, which is emitted; at the end the rest comes in random order. So an item moves
        forward by fewer than ``buffer_size`` places, and any way back: a buffer as large as the
        data gives a uniform order, a small one leaves neighbours near each other. Shuffle a list of
        shards or paths in the source too, where it can be had.

        The order depends on the seed, the epoch's number, and the order of the stage above alone,
        not on speed or concurrency. Put it where items are small: before the decoding, not after.
        When the stages above fail, what the buffer holds is emitted first, then the failure:
        every item before the failed one reaches you.

        Args:
            buffer_size: items that the buffer holds; 1 keeps the order.
            seed: an int of at least 0; default: drawn from ``build(seed=)`` and the stage's name.
                Stages with the same explicit seed draw the same numbers.
            name: the name in tables and messages; default ``"shuffle"``.

        Raises:
            BuildError: the buffer's size is below 1, or the seed is no int of at least 0.

        >>> from spdl_async import PipelineBuilder
        >>> pipeline = PipelineBuilder().add_source(range(8)).shuffle(4, seed=0).build()
        >>> list(pipeline), list(pipeline)  # two epochs
        ([2, 1, 0, 6, 5, 4, 7, 3], [1, 4, 0, 3, 6, 7, 5, 2])
        """
        return self._typed(ShuffleSpec(buffer_size=buffer_size, seed=seed, name=name))

    def take(self, n: int, /) -> PipelineBuilder[T_co]:
        """Keep the first ``n`` items, and end everything above as soon as the last of them is here.

        The source is closed at once, so it may be infinite; a failure above that comes after the
        last item does not matter, though ``run.failures`` may list it, since stages run ahead, and a
        budget of ``build(max_failures=)``, which stages below share, counts it. With ``n=0`` the
        source is not even opened.

        Raises:
            BuildError: ``n`` is no int of at least 0.

        >>> import itertools
        >>> from spdl_async import PipelineBuilder
        >>> list(PipelineBuilder().add_source(itertools.count()).take(3).build())
        [0, 1, 2]
        """
        return self._typed(TakeSpec(count=n))

    def skip(self, n: int, /) -> PipelineBuilder[T_co]:
        """Drop the first ``n`` items; they are made by the stages above, and counted as dropped.

        Raises:
            BuildError: ``n`` is no int of at least 0.

        >>> from spdl_async import PipelineBuilder
        >>> list(PipelineBuilder().add_source(range(5)).skip(3).build())
        [3, 4]
        """
        return self._typed(SkipSpec(count=n))

    def enumerate(self, start: int = 0) -> PipelineBuilder[tuple[int, T_co]]:
        """Make ``(number, item)`` of each item, numbered in the order in which they come here.

        Raises:
            BuildError: ``start`` is no int.

        >>> from spdl_async import PipelineBuilder
        >>> list(PipelineBuilder().add_source(["a", "b"]).enumerate(1).build())
        [(1, 'a'), (2, 'b')]
        """
        numbered: PipelineBuilder[tuple[int, T_co]] = self._with_stage(EnumerateSpec(start=start))
        return numbered

    def cache(
        self,
        folder: str | os.PathLike[str] | None = None,
        /,
        *,
        memory: int | str | None = None,
        max_bytes: int | str | None = None,
        key: Callable[[Any], Any] | None = None,
        version: str = "",
        concurrency: int = 4,
        name: str | None = None,
        on_error: OnError | None = None,
        max_failures: int | Fraction | None = None,
    ) -> PipelineBuilder[T_co]:
        """Keep what the stages above make of each source item; later passes load it in their place.

        The first pass makes and keeps; from the second on the items that are kept skip every stage
        between the source and here. The source itself is read in each pass. So put the
        cache below the last stage that always makes the same of the same item (reading, decoding,
        resizing) and above random augmentation.

        Kept are numpy arrays, torch tensors on the CPU, bytes, str, numbers, ``None``, paths, and lists,
        tuples and dicts of them, as bytes and without pickle; anything else is a failure of the item.
        What is loaded is a fresh copy, whose arrays may be written to. An item of which something was
        skipped after a failure is not kept; one that was filtered out is, as nothing.

        A folder can be used by several processes at once, and by later ones. Entries are checked
        when they are read; one that is damaged is deleted and made again. Statistics count under the
        stage's ``notes``.

        Args:
            folder: where entries are files; made where it is not there. Its pipelines need
                different ``name`` or ``version`` where they make different things of the same keys.
            memory: in place of a folder, how many bytes to keep in this process, as a number or as
                text such as ``"2GB"``; each ``build()`` makes a cache of its own, which its passes share.
            max_bytes: how much the folder keeps, whatever is in it; what was used least recently goes.
                Default: no limit.
            key: a function of the source item that returns what identifies it: a str, int, bytes, path,
                or a tuple of these. Default: its position in the source, and the item itself where it is
                one of these. Needed where positions change: a source with ``set_epoch``,
                ``Merge``, ``Zip``, an iterator.
            version: change it when an op above changes what it does; older entries are not found then.
            concurrency: how many entries are looked up and loaded at once, in threads.
            name: the name in tables and messages, and a part of what entries are found by; default
                ``"cache"``.
            on_error: as for :meth:`pipe`, for the key function and for what cannot be kept.
            max_failures: failures that are allowed.

        Raises:
            BuildError: no place, or two; or, from ``build()``, a stage above that does not work on
                one source item at a time, or positions that identify nothing.

        >>> from spdl_async import PipelineBuilder
        >>> def slow_square(n):
        ...     print("made", n)
        ...     return n * n
        >>> squares = PipelineBuilder().add_source([1, 2]).pipe(slow_square).cache(memory="1MB").build()
        >>> list(squares), list(squares)
        made 1
        made 2
        ([1, 4], [1, 4])
        """
        self._used = True
        place, limit = where_kept(folder, memory, max_bytes)
        spec = CacheSpec(
            folder=place,
            max_bytes=limit,
            key=key,
            version=version,
            concurrency=concurrency,
            name=name,
            policy=checked_policy(on_error, max_failures, "cache"),
        )
        return self._typed(spec)

    # The first ones are for what a type checker knows nothing of: else it would take that for an array.
    @overload
    def to_device(
        self: PipelineBuilder[_Unknown], device: Any = ..., **options: Unpack[CopyOptions]
    ) -> PipelineBuilder[Any]: ...
    @overload
    def to_device(
        self: PipelineBuilder[list[_Unknown]], device: Any = ..., **options: Unpack[CopyOptions]
    ) -> PipelineBuilder[list[Any]]: ...
    @overload
    def to_device(
        self: PipelineBuilder[dict[K, _Unknown]], device: Any = ..., **options: Unpack[CopyOptions]
    ) -> PipelineBuilder[dict[K, Any]]: ...
    @overload
    def to_device(
        self: PipelineBuilder[NDArray[Any]], device: Any = ..., **options: Unpack[CopyOptions]
    ) -> PipelineBuilder[torch.Tensor]: ...
    @overload
    def to_device(
        self: PipelineBuilder[list[NDArray[Any]]],
        device: Any = ...,
        **options: Unpack[CopyOptions],
    ) -> PipelineBuilder[list[torch.Tensor]]: ...
    @overload
    def to_device(
        self: PipelineBuilder[tuple[NDArray[Any], NDArray[Any]]],
        device: Any = ...,
        **options: Unpack[CopyOptions],
    ) -> PipelineBuilder[tuple[torch.Tensor, torch.Tensor]]: ...
    @overload
    def to_device(
        self: PipelineBuilder[dict[K, NDArray[Any]]],
        device: Any = ...,
        **options: Unpack[CopyOptions],
    ) -> PipelineBuilder[dict[K, torch.Tensor]]: ...
    @overload
    def to_device(
        self, device: Any = ..., **options: Unpack[CopyOptions]
    ) -> PipelineBuilder[T_co]: ...
    def to_device(
        self,
        device: Any = "cuda",
        *,
        depth: int = 2,
        only: Iterable[Any] | Callable[[tuple[Any, ...], Any], bool] | None = None,
        pin: bool | int | str = True,
        name: str | None = None,
        on_error: OnError | None = None,
        max_failures: int | Fraction | None = None,
    ) -> Any:
        """Copy batches to a device ahead of their use, through page-locked memory and on a side stream.

        Tensors and numpy arrays, which become tensors, are found in any tree of lists, tuples, named
        tuples, dicts and dataclasses, whose types are kept; objects with a ``to()`` of their own use
        that; all else stays as it is. A tensor that is there already is not copied, one that appears
        twice is copied once. The consumer, and each op below, gets batches that are safe to use on
        its thread's current stream; nothing waits on the host.

        Where this is the last stage, at most ``depth`` batches wait on the device, one more is being copied,
        and the consumer holds what it took. Else the windows of the stages below come on top of that.

        Args:
            device: ``"cuda"``, which is the current device of the thread that starts the run;
                ``"cuda:1"``, ``"mps"``, ``"cpu"``, where arrays become tensors that share their memory;
                a ``torch.device``, or a :class:`~spdl_async.device.DeviceBackend`.
            depth: batches copied ahead; of the last stage the size of the sink.
            only: the fields to copy, by key, attribute or position, as in ``("image", "mask")``; or a
                function of a field's path and value. Others stay as they are, arrays too.
            pin: stage in page-locked memory of at most 1 GB, or of that many bytes, such as ``"4GB"``; a
                larger batch gets memory for itself, for once. ``False``: copy from where batches lie,
                which the copying thread has to wait for. What is page-locked already is not staged.
            name: the name in tables and messages.
            on_error: as for :meth:`pipe`.
            max_failures: failures that are allowed.

        Raises:
            BuildError: an option has no meaning; or, from ``build()``, there is no torch, or no such
                device here.
            DeviceError: for the item: no memory for a batch, or a field that cannot be a tensor.

        >>> import numpy as np
        >>> from spdl_async import PipelineBuilder
        >>> batches = PipelineBuilder().add_source([{"image": np.zeros((2, 3)), "key": "a"}])
        >>> for batch in batches.to_device("cpu").build():
        ...     print(type(batch["image"]).__name__, batch["key"])
        Tensor a
        """
        self._used = True
        staging = (2**30 if pin else None) if isinstance(pin, bool) else None
        if not isinstance(pin, bool):
            staging = parse_bytes(pin, "to_device: pin")

        kit = functools.partial(_device_kit, device, only=only, depth=depth, staging_bytes=staging)
        policy = checked_policy(on_error, max_failures, "to_device")
        return self._typed(
            CopySpec(kit=kit, target=device, to="device", depth=depth, name=name, policy=policy)
        )

    def to_host(
        self,
        *,
        only: Iterable[Any] | Callable[[tuple[Any, ...], Any], bool] | None = None,
        pin: bool = True,
        name: str | None = None,
        on_error: OnError | None = None,
        max_failures: int | Fraction | None = None,
    ) -> PipelineBuilder[T_co]:
        """Copy what a model has made back to the host, on a side stream; handed on when it is complete.

        Objects with a ``to()`` of their own come back by ``to("cpu")``.

        Args:
            only: as for :meth:`to_device`.
            pin: into page-locked memory, from which nothing has to wait; else the copying thread does.
            name: the name in tables and messages.
            on_error: as for :meth:`pipe`.
            max_failures: failures that are allowed.

        Raises:
            BuildError: an option has no meaning; or, from ``build()``, there is no torch.
            DeviceError: for the item: an object that holds tensors of the device has no ``to()``.

        >>> import torch
        >>> from spdl_async import PipelineBuilder
        >>> batches = PipelineBuilder().add_source([torch.ones(2)]).to_device("cpu")
        >>> list(batches.pipe(lambda batch: batch + 1).to_host().build())
        [tensor([2., 2.])]
        """
        self._used = True
        if not isinstance(pin, bool):
            raise BuildError(f"to_host: pin must be True or False, not {pin!r}")

        kit = functools.partial(_host_kit, only=only, pin=pin)
        policy = checked_policy(on_error, max_failures, "to_host")
        return self._typed(
            CopySpec(kit=kit, target="host", to="host", depth=1, name=name, policy=policy)
        )

    def _typed(self, stage: StageSpec) -> PipelineBuilder[T_co]:
        made: PipelineBuilder[T_co] = self._with_stage(stage)
        return made

    def apply(
        self, fragment: Callable[[PipelineBuilder[T_co]], PipelineBuilder[U]], /
    ) -> PipelineBuilder[U]:
        """Put the builder through a function that adds stages, to reuse a part of a chain.

        >>> from spdl_async import PipelineBuilder
        >>> def pairs_of_squares(builder):
        ...     return builder.pipe(lambda x: x * x).aggregate(2)
        >>> list(PipelineBuilder().add_source(range(4)).apply(pairs_of_squares).build())
        [[0, 1], [4, 9]]
        """
        self._used = True
        check_fragment(fragment)
        result = fragment(self)
        if not isinstance(result, PipelineBuilder):
            raise BuildError(
                f"apply: {op_name(fragment)} must return the builder that its last verb returned, "
                f"not {type(result).__name__}"
            )
        return result

    def add_sink(self, buffer_size: int = 2) -> PipelineBuilder[T_co]:
        """Say how many results may wait for the consumer; optional, the last thing before ``build()``.

        >>> from spdl_async import PipelineBuilder
        >>> list(PipelineBuilder().add_source(range(3)).add_sink(8).build())
        [0, 1, 2]
        """
        self._used = True
        if self._chain.sink is not None:
            raise BuildError("add_sink: this builder has a sink already")
        chain = replace(self._chain, sink=SinkSpec(buffer_size=buffer_size))
        made: PipelineBuilder[T_co] = self._extended(chain, f"add_sink({buffer_size})")
        return made

    def build(
        self,
        *,
        num_threads: int | None = None,
        executor: Executor | None = None,
        on_error: OnError | None = None,
        max_failures: int | Fraction | None = None,
        seed: int | None = None,
        name: str | None = None,
        max_bytes: int | str | None = None,
        size_of: SizeOf | None = None,
    ) -> Pipeline[T_co]:
        """Return the pipeline. Pure: starts no loop, no thread, no CUDA.

        Args:
            num_threads: size of the thread pool; default: the concurrency of the thread stages in
                sum. Any number of at least 1 works for any pipeline.
            executor: run all sync stages on this executor instead; never shut down by us.
            on_error: policy of the stages that have none of their own, as for :meth:`pipe`; default
                ``"raise"``.
            max_failures: their budget together; implies ``"skip"``.
            seed: root of all randomness of ``shuffle`` and of ``Merge``'s draws; ``None`` draws one,
                which ``describe()`` shows. A pipeline that is built and then used as a source keeps its
                own.
            name: the pipeline's name in tables, messages and thread names.
            max_bytes: the most bytes that all values in flight may take together, as a number or as
                text such as ``"2GB"`` or ``"512MiB"``; see the page on back-pressure. Not looked at by
                ``run_sync(inline=True)``, which has one item at a time.
            size_of: returns the bytes of a value (of a list: of each element), cheaply, as it is called on
                the loop; default: :func:`~spdl_async.estimate_bytes`.

        Raises:
            BuildError: something in the chain cannot work; says which stage and what to do.
        """
        self._used = True
        if num_threads is not None:
            check_int(num_threads, "build: num_threads")
            if executor is not None:
                raise BuildError(
                    "build: num_threads sizes our own pool; with executor= leave it out"
                )
        if executor is not None and not isinstance(executor, Executor):
            raise BuildError(
                f"build: executor must be a concurrent.futures.Executor, not {executor!r}"
            )
        if name is not None and (not isinstance(name, str) or not name):
            raise BuildError(f"build: name must be a non-empty str, not {name!r}")
        if seed is not None:
            check_int(seed, "build: seed", least=0)
        limit = None if max_bytes is None else parse_bytes(max_bytes, "build: max_bytes")
        check_size_of(size_of, limit)
        policy = checked_policy(on_error, max_failures, "build") or FailurePolicy()
        if self._chain.source is BRANCH:
            raise BuildError("build: this is the builder of a branch; return it instead")
        root = secrets.randbits(63) if seed is None else seed
        scope = Scope(policy=policy, executor=executor, num_threads=num_threads, seed=root)
        plan = compile_chain(self._chain, scope, name=name or "pipeline", seed=root)
        plan = replace(plan, max_bytes=limit, size_of=size_of or estimate_bytes)
        return Pipeline(plan, self._chain, scope)

    # Making builders

    def _inlined(self, where: str) -> ChainSpec:
        """Return the chain as the beginning of another one."""
        self._used = True
        if self._chain.source is None or self._chain.source is BRANCH:
            raise BuildError(f"{where}: the inner builder has no source itself")
        return replace(self._chain, sink=None)

    def _piped(
        self,
        mode: PipeMode,
        op: Any,
        concurrency: int,
        output_order: OutputOrder,
        executor: Executor | None,
        name: str | None,
        on_error: OnError | None,
        max_failures: int | Fraction | None,
        buffer_size: int | None,
        retry: Retry | None,
        timeout: float | None,
        fuse: bool,
    ) -> Any:
        self._used = True
        verb = "pipe" if mode == "map" else mode
        stage = PipeSpec(
            op=op,
            mode=mode,
            concurrency=concurrency,
            output_order=output_order,
            executor=executor,
            name=name,
            policy=checked_policy(on_error, max_failures, f"{verb}({op_name(op)})"),
            buffer_size=buffer_size,
            retry=retry,
            timeout=timeout,
            fuse=fuse,
        )
        return self._with_stage(stage)

    def _with_stage(self, stage: StageSpec) -> Any:
        self._used = True
        text = stage_text(stage)
        if self._chain.sink is not None:
            raise BuildError(
                f".{text}: a stage after add_sink; the sink comes last, before build()"
            )
        return self._extended(replace(self._chain, stages=(*self._chain.stages, stage)), text)

    def _extended(self, chain: ChainSpec, verb: str) -> Any:
        self._used = True
        made = PipelineBuilder()
        made._chain = chain
        made._made_by = (verb, *_calling_line())
        made._used = False
        return made


def _device_kit(device: Any, **options: Any) -> Kit:
    made: Kit = _device_package("to_device").device_kit(device, **options)
    return made


def _host_kit(**options: Any) -> Kit:
    made: Kit = _device_package("to_host").host_kit(**options)
    return made


def _device_package(verb: str) -> Any:
    """Return what makes copies, which needs torch."""
    try:
        from spdl_async.device import _kit
    except ImportError as error:
        raise BuildError(
            f'{verb}: this needs PyTorch ({error}); install it, with pip install "torch"'
        ) from error
    return _kit


def checked_policy(
    on_error: OnError | None, max_failures: int | Fraction | None, where: str
) -> FailurePolicy | None:
    """Return the policy that two options of a verb describe; an ``on_error`` function is looked at."""
    policy = parse_policy(on_error, max_failures, where)
    if policy is not None:
        check_handler(policy.handler, where)
    return policy


def branch_stages(branch: Any, where: str) -> tuple[StageSpec, ...]:
    """Return the stages that a branch's function adds.

    Raises:
        BuildError: it is no function, or does not return what the verbs on its builder returned.
    """
    if not callable(branch):
        raise BuildError(
            f"{where} must be a function that takes a builder and returns it with more stages, as in "
            f"lambda branch: branch.pipe(…), not {branch!r}"
        )
    start: PipelineBuilder[Any] = PipelineBuilder()
    start._chain = ChainSpec(source=BRANCH)
    made = branch(start)
    if isinstance(made, PipelineBuilder):
        made._used = True
    if not isinstance(made, PipelineBuilder) or made._chain.source is not BRANCH:
        got = "another builder" if isinstance(made, PipelineBuilder) else type(made).__name__
        raise BuildError(f"{where} must return the builder that its last verb returned, not {got}")
    if made._chain.sink is not None:
        raise BuildError(f"{where}: a branch has no sink; its items go on below the route")
    return made._chain.stages


def stage_text(stage: StageSpec) -> str:
    """Return a stage as it was written, shortened."""
    if isinstance(stage, RouteSpec):
        return f"route({op_name(stage.router.op)})"
    if isinstance(stage, PipeSpec):
        verb = "pipe" if stage.mode == "map" else stage.mode
        return f"{verb}({op_name(stage.op)})"
    if isinstance(stage, AggregateSpec):
        inner = stage.size if stage.size is not None else op_name(stage.aggregator)
        return f"aggregate({inner})"
    return (
        stage.text if isinstance(stage, (CacheSpec, CopySpec, *SHAPE_SPECS)) else "disaggregate()"
    )


def _calling_line() -> tuple[str, int]:
    """Return file and line of the code outside this package that called a verb."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
