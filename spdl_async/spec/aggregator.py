"""The interface of an aggregator: many items in, some out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar, runtime_checkable

T_contra = TypeVar("T_contra", contravariant=True)
U_co = TypeVar("U_co", covariant=True)


@runtime_checkable
class Aggregator(Protocol[T_contra, U_co]):
    """Gather items into bigger ones.

    Both methods run in a thread, one call at a time and in order, so an aggregator may keep plain
    state. Every pass of a pipeline works on its own copy: an instance is deep-copied at the start
    of each run, a factory is called. A method ``statistics()``, where there is one, returns a mapping
    that ``run.statistics()`` shows with the stage; it is called in the same thread, between the others.

    >>> from spdl_async import PipelineBuilder
    >>> class Pairs:
    ...     def __init__(self):
    ...         self.held = []
    ...     def accumulate(self, item):
    ...         self.held.append(item)
    ...         if len(self.held) == 2:
    ...             pair, self.held = tuple(self.held), []
    ...             yield pair
    ...     def flush(self):
    ...         rest, self.held = self.held, []
    ...         if rest:
    ...             yield tuple(rest)
    >>> list(PipelineBuilder().add_source(range(5)).aggregate(Pairs).build())
    [(0, 1), (2, 3), (4,)]
    """

    def accumulate(self, item: T_contra, /) -> Iterable[U_co]:
        """Take one item; return what is complete now, often nothing."""

    def flush(self) -> Iterable[U_co]:
        """Return what is still held, and hold nothing any more.

        Called after the last item of a pass that did not fail; with ``aggregate(within=)`` also before,
        and then perhaps when nothing is held.
        """


class Gathered(list[Any]):
    """A list of items that knows their numbers, counted from 0 in the order of ``accumulate``.

    What is said about a batch, in notes and when it is taken apart again, is then about its own items
    and not about those that came before it. Calls that failed are not counted.
    """

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []
