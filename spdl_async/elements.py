"""``map_items``: an op on each element of batches that stay batches.

A fragment of the public verbs and nothing else, so that each element is an item of the engine's: its
failure is skipped, counted, retried and written down by itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor
from fractions import Fraction
from typing import Any, Final, TypeVar, Unpack, overload

from spdl_async.builder import Lookup, PipelineBuilder, StageOptions
from spdl_async.errors import BuildError
from spdl_async.spec.markers import Drop
from spdl_async.spec.policy import OnError, Retry
from spdl_async.spec.stages import op_name

T = TypeVar("T")
U = TypeVar("U")

Batches = PipelineBuilder[list[T] | tuple[T, ...]]
Fragment = Callable[[Batches[T]], PipelineBuilder[list[U]]]


class ElementOptions(StageOptions, total=False):
    """Options of ``map_items``: those of ``pipe`` but ``output_order`` and ``fuse``."""

    concurrency: int
    executor: Executor | None
    buffer_size: int | None
    retry: Retry | None
    timeout: float | None


class End(list[Any]):
    """The type of :data:`END`: what asks for its size, as a function of the user may, hears of nothing."""

    nbytes = 0


# Goes by the op, behind the last element of each batch: a batch whose last element is dropped must
# not wait for the next one to be known as whole. Known by its identity.
END: Final = End()


@overload
def map_items(
    op: Callable[[T], Awaitable[U | Drop]], /, **options: Unpack[ElementOptions]
) -> Fragment[T, U]: ...
@overload
def map_items(
    op: Callable[[T], AsyncGenerator[U | Drop, Any]], /, **options: Unpack[ElementOptions]
) -> Fragment[T, U]: ...
@overload
def map_items(
    op: Callable[[T], Generator[U | Drop, Any, Any]], /, **options: Unpack[ElementOptions]
) -> Fragment[T, U]: ...
@overload
def map_items(
    op: Callable[[T], U | Drop], /, **options: Unpack[ElementOptions]
) -> Fragment[T, U]: ...
@overload
def map_items(op: Lookup[T, U], /, **options: Unpack[ElementOptions]) -> Fragment[T, U]: ...
def map_items(
    op: Any,
    /,
    *,
    concurrency: int = 1,
    executor: Executor | None = None,
    name: str | None = None,
    on_error: OnError | None = None,
    max_failures: int | Fraction | None = None,
    buffer_size: int | None = None,
    retry: Retry | None = None,
    timeout: float | None = None,
) -> Any:
    """Apply an op to each element of batches, as a fragment for :meth:`PipelineBuilder.apply`.

    For items that come as lists or tuples and stay together: rows of one object, batches by cost. One
    bad element does not discard the others: with ``on_error="skip"`` it is left out of its batch,
    counted, and written down in ``run.failures`` by its own index and source item; of a batch that is one
    source item, by its place in it, the last number of ``path``. So is one for which the op returns
    ``DROP``, but for the record. With ``"raise"`` the note names the element in the same way. A batch
    of which nothing is left, or that was empty, is not emitted. Batches and their elements keep their order.

    Batches that may be filled up by elements of the next one need no such thing: put the op above
    ``aggregate``, where it costs less. An element goes through five small stages here, so an op of a few
    microseconds is better called in a loop, in an op on the whole batch.

    Args:
        op: takes an element; any op that :meth:`PipelineBuilder.pipe` takes. What a generator function
            yields takes the element's place.
        concurrency: how many elements are worked on at once at most, of one batch or of several.
        executor: as for ``pipe``.
        name: the name in tables and messages; default: the op's.
        on_error: as for ``pipe``; the item of a :class:`Failure` is the element.
        max_failures: failures that are allowed: an int, or a ``Fraction`` of the elements.
        buffer_size: as for ``pipe``.
        retry: a :class:`Retry`, for each element.
        timeout: seconds that a call may take.

    An item that is no list or tuple is a failure of it, in the fragment's stage ``disaggregate``, to
    which the policy of ``build()`` applies.

    Raises:
        BuildError: an option is out of range; or it was given to ``pipe`` instead of ``apply``.

    >>> from spdl_async import PipelineBuilder, map_items
    >>> batches = PipelineBuilder().add_source([["1", "2"], ["3", "x"], ["y"], ["6"]])
    >>> with batches.apply(map_items(int, on_error="skip")).build().run_sync() as run:
    ...     print(list(run))
    [[1, 2], [3], [6]]
    >>> for failure in run.failures:
    ...     print(failure.index, failure.path, failure.message)
    1 (0, 1) invalid literal for int() with base 10: 'x'
    2 (0, 0) invalid literal for int() with base 10: 'y'
    """

    def element(branch: PipelineBuilder[Any]) -> PipelineBuilder[Any]:
        mapped: PipelineBuilder[Any] = branch.pipe(
            op,
            concurrency=concurrency,
            executor=executor,
            name=name,
            on_error=on_error,
            max_failures=max_failures,
            buffer_size=buffer_size,
            retry=retry,
            timeout=timeout,
        )
        return mapped

    def fragment(builder: Any, /) -> PipelineBuilder[Any]:
        if not isinstance(builder, PipelineBuilder):
            call = f"map_items({op_name(op)})"
            raise BuildError(
                f"{call}: this is no op but a fragment of a chain; write .apply({call}), not "
                f".pipe({call})"
            )
        pieces: PipelineBuilder[Any] = builder.expand(with_end).disaggregate()
        return pieces.route(is_end, element, unchanged).aggregate(Regather)

    fragment.__name__ = f"map_items({op_name(op)})"
    return fragment


def with_end(batch: Iterable[Any]) -> Iterator[Any]:
    """Yield a batch, whose elements stay known by their items as it is alone, and then its end."""
    yield batch
    yield [END]


def is_end(item: object) -> int:
    """Return the branch of an item: 0 for an element."""
    return 1 if item is END else 0


def unchanged(branch: PipelineBuilder[Any]) -> PipelineBuilder[Any]:
    """Return the branch of the ends."""
    return branch


class Regather:
    """Gathers what comes between two ends into a list."""

    def __init__(self) -> None:
        self._held: list[Any] = []

    def accumulate(self, item: Any, /) -> list[list[Any]]:
        """Take an element or an end."""
        if item is not END:
            self._held.append(item)
            return []
        held, self._held = self._held, []
        return [held] if held else []

    def flush(self) -> list[list[Any]]:
        """Return nothing: the last batch has its end too."""
        return []
