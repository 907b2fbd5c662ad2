"""Several pipelines as one source: ``Merge`` and ``Zip``."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from spdl_async.errors import BuildError
from spdl_async.spec.policy import check_int
from spdl_async.spec.stages import ChainSpec, MergeSpec

if TYPE_CHECKING:
    from spdl_async.builder import PipelineBuilder
    from spdl_async.pipeline import Pipeline

T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
U = TypeVar("U")

Stop = Literal["all", "first"]


class MergeOptions(TypedDict, total=False):
    """Options of ``Merge``, but for ``mix``, which stands alone."""

    weights: Sequence[float] | None
    stop: Stop
    seed: int | None
    name: str | None


class ZipOptions(TypedDict, total=False):
    """Options of ``Zip``."""

    strict: bool
    name: str | None


class Merge(Generic[T_co]):
    """Mix the items of several pipelines: a source for ``add_source``.

    Args:
        builders: the branches: builders with a source, or built pipelines, which keep the options
            that they were built with. A branch can itself begin with a ``Merge``.
        weights: draw the next branch with these weights, one for each, at least 0 and not all 0;
            a branch with a weight of 0 is never read. Without weights the branches take turns.
            Draws depend on the seed and the epoch only, not on the speed of branches.
        stop: ``"all"`` goes on until every branch has ended (a branch that has is passed over);
            ``"first"`` ends when the turn comes to a branch that has no more.
        seed: of the draws; without one they follow the seed of ``build()``.
        mix: an async generator function instead of turns: it is given a list of the branches' async
            iterators and yields the items, which it may also drop, repeat or combine. It runs on the
            loop. A failure of a branch is raised where it asks that branch for an item.
        name: the name in tables and messages; default ``"merge"``.

    Raises:
        BuildError: no branch, a branch without a source, or an option that makes no sense.

    >>> from spdl_async import Merge, PipelineBuilder
    >>> letters = PipelineBuilder().add_source("a b c".split())
    >>> numbers = PipelineBuilder().add_source([1])
    >>> list(PipelineBuilder().add_source(Merge(letters, numbers)).build())
    ['a', 1, 'b', 'c']
    """

    __slots__ = ("_spec",)

    @overload
    def __init__(
        self,
        *builders: PipelineBuilder[Any] | Pipeline[Any],
        mix: Callable[[list[AsyncIterator[Any]]], AsyncIterator[T_co]],
        name: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Merge[A],
        a: PipelineBuilder[A] | Pipeline[A],
        /,
        **options: Unpack[MergeOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Merge[A | B],
        a: PipelineBuilder[A] | Pipeline[A],
        b: PipelineBuilder[B] | Pipeline[B],
        /,
        **options: Unpack[MergeOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Merge[A | B | C],
        a: PipelineBuilder[A] | Pipeline[A],
        b: PipelineBuilder[B] | Pipeline[B],
        c: PipelineBuilder[C] | Pipeline[C],
        /,
        **options: Unpack[MergeOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Merge[A | B | C | D],
        a: PipelineBuilder[A] | Pipeline[A],
        b: PipelineBuilder[B] | Pipeline[B],
        c: PipelineBuilder[C] | Pipeline[C],
        d: PipelineBuilder[D] | Pipeline[D],
        /,
        **options: Unpack[MergeOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        *builders: PipelineBuilder[T_co] | Pipeline[T_co],
        **options: Unpack[MergeOptions],
    ) -> None: ...
    def __init__(
        self,
        *builders: Any,
        weights: Sequence[float] | None = None,
        stop: Stop = "all",
        seed: int | None = None,
        mix: Any = None,
        name: str | None = None,
    ) -> None:
        branches = chains_of(builders, "Merge")
        if mix is not None and (weights is not None or stop != "all" or seed is not None):
            raise BuildError("Merge: mix= decides everything; leave weights, stop and seed out")
        if stop not in ("all", "first"):
            raise BuildError(
                f'Merge: stop must be "all" (the end of the last branch) or "first" (of the first), not '
                f"{stop!r}"
            )
        if seed is not None:
            check_int(seed, "Merge: seed", least=0)
        if seed is not None and weights is None:
            raise BuildError("Merge: branches take turns, which needs no seed; give weights too")
        self._spec = MergeSpec(
            how="turns" if mix is None else "mix",
            branches=branches,
            weights=None if weights is None else checked_weights(weights, len(branches)),
            stop=stop,
            seed=seed,
            mix=mix,
            name=name,
        )


class Zip(Generic[T_co]):
    """Join pipelines item by item into tuples: a source for ``add_source``.

    Args:
        builders: the branches, as for :class:`Merge`.
        strict: a branch that is longer than another is an error; otherwise the shortest ends all.
        name: the name in tables and messages; default ``"zip"``.

    Raises:
        BuildError: no branch, or a branch without a source.

    >>> from spdl_async import PipelineBuilder, Zip
    >>> pictures = PipelineBuilder().add_source(["p0", "p1", "p2"])
    >>> labels = PipelineBuilder().add_source([7, 8, 9])
    >>> list(PipelineBuilder().add_source(Zip(pictures, labels)).build())
    [('p0', 7), ('p1', 8), ('p2', 9)]
    """

    __slots__ = ("_spec",)

    @overload
    def __init__(
        self: Zip[tuple[A, B]],
        a: PipelineBuilder[A] | Pipeline[A],
        b: PipelineBuilder[B] | Pipeline[B],
        /,
        **options: Unpack[ZipOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Zip[tuple[A, B, C]],
        a: PipelineBuilder[A] | Pipeline[A],
        b: PipelineBuilder[B] | Pipeline[B],
        c: PipelineBuilder[C] | Pipeline[C],
        /,
        **options: Unpack[ZipOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Zip[tuple[A, B, C, D]],
        a: PipelineBuilder[A] | Pipeline[A],
        b: PipelineBuilder[B] | Pipeline[B],
        c: PipelineBuilder[C] | Pipeline[C],
        d: PipelineBuilder[D] | Pipeline[D],
        /,
        **options: Unpack[ZipOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Zip[tuple[U, ...]],
        *builders: PipelineBuilder[U] | Pipeline[U],
        **options: Unpack[ZipOptions],
    ) -> None: ...
    def __init__(self, *builders: Any, strict: bool = False, name: str | None = None) -> None:
        if not isinstance(strict, bool):
            raise BuildError(f"Zip: strict must be True or False, not {strict!r}")
        branches = chains_of(builders, "Zip")
        self._spec = MergeSpec(how="zip", branches=branches, strict=strict, name=name)


def chains_of(builders: Sequence[Any], what: str) -> tuple[ChainSpec, ...]:
    """Return the chains of the branches.

    Raises:
        BuildError: there is none, or one of them is no pipeline with a source.
    """
    if not builders:
        raise BuildError(f"{what}: give at least one builder or pipeline")
    chains = []
    for at, builder in enumerate(builders):
        to_inline = getattr(builder, "_inlined", None)
        if to_inline is None or isinstance(builder, type):
            raise BuildError(
                f"{what}: branch {at} is a {type(builder).__name__}; give builders or pipelines, as in "
                f"{what}(PipelineBuilder().add_source(…), …)"
            )
        chains.append(to_inline(f"{what}: branch {at}"))
    return tuple(chains)


def checked_weights(weights: Sequence[float], branches: int) -> tuple[float, ...]:
    """Return weights as floats.

    Raises:
        BuildError: not one for each branch, or not finite numbers of at least 0 with one above it.
    """
    try:
        found = tuple(float(weight) for weight in weights)
    except (TypeError, ValueError):
        raise BuildError(f"Merge: weights must be numbers, not {weights!r}") from None
    if len(found) != branches:
        raise BuildError(f"Merge: {len(found)} weights for {branches} branches; give one for each")
    if not all(math.isfinite(w) and w >= 0 for w in found) or not any(found):
        raise BuildError(
            f"Merge: weights must be finite, at least 0, and not all 0, not {list(found)}"
        )
    return found
