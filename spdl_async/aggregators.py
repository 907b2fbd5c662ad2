"""Aggregators by cost and by length, for items that are not all alike.

A batch of 32 sentences takes as much memory as its longest one dictates. :class:`BatchBy` limits what
a batch costs instead of how many items it has; :class:`BucketBy` also puts items of like length
together, so that little of a padded batch is padding.
"""

from __future__ import annotations

import copy
import reprlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Generic, Self, TypeVar

from spdl_async.errors import BuildError
from spdl_async.spec.aggregator import Gathered
from spdl_async.spec.policy import check_int, is_number

T_contra = TypeVar("T_contra", contravariant=True)


class ListAggregator(Generic[T_contra]):
    """What the aggregators of this module share: they gather items into lists, unchanged.

    ``Any`` in the lists stands for the item type; the builder's ``aggregate`` puts it back.
    """

    tells_members = True  # what it returns is Gathered
    # The most items in the open lists together, and in one list; None where nothing limits them.
    _most_items: tuple[int, int] | None = None

    def __init__(self) -> None:
        self._begin()

    def __deepcopy__(self, memo: object) -> Self:
        """Return a fresh one: a run's own, which shares the function and the limits."""
        fresh = copy.copy(self)
        fresh._begin()
        return fresh

    def _begin(self) -> None:
        self._taken_in = 0

    def _put(self, item: object, into: Gathered) -> None:
        into.append(item)
        into.numbers.append(self._taken_in)
        self._taken_in += 1

    def accumulate(self, item: T_contra, /) -> list[list[Any]]:
        """Take one item; return the lists that are complete now."""
        raise NotImplementedError

    def flush(self) -> list[list[Any]]:
        """Return what is held, and hold nothing any more."""
        raise NotImplementedError

    def statistics(self) -> Mapping[str, object]:
        """Return numbers for the stage's statistics."""
        raise NotImplementedError


class BatchBy(ListAggregator[T_contra]):
    """Gather consecutive items into lists that cost at most ``max_cost``: tokens, pixels, bytes.

    A list is emitted before an item would take it over the limit, and as soon as it has reached
    the limit or ``max_items``. An item that costs more than the limit goes alone. The order of the
    items is kept. What is left at the end is emitted too, unless ``drop_last=True``.

    Its ``statistics()``, shown by ``run.statistics()``: ``batches``; ``filled``, the mean cost of a
    batch over ``max_cost``; ``oversized``, the number of items that cost more than ``max_cost``.

    Args:
        cost: returns what an item costs, a number of at least 0. An exception in it, or a negative
            cost or NaN, is a failure of that item, to which the stage's ``on_error`` applies.
        max_cost: the most that a list may cost; above 0.
        max_items: the most items in a list; default: any number, and then ``describe()`` has no
            bound for the stage.

    Raises:
        BuildError: ``cost`` cannot be called, or a limit is out of range.

    >>> from spdl_async import BatchBy, PipelineBuilder
    >>> words = PipelineBuilder().add_source(["to", "be", "or", "not", "incomprehensible", "to", "be"])
    >>> list(words.aggregate(BatchBy(len, 6)).build())
    [['to', 'be', 'or'], ['not'], ['incomprehensible'], ['to', 'be']]
    """

    def __init__(
        self,
        cost: Callable[[T_contra], float],
        max_cost: float,
        *,
        max_items: int | None = None,
    ) -> None:
        check_callable(cost, "BatchBy: cost")
        check_limit(max_cost, "BatchBy: max_cost")
        if max_items is not None:
            check_int(max_items, "BatchBy: max_items")
        self._cost = cost
        self._max_cost = max_cost
        self._max_items = max_items
        if max_items is not None:
            self._most_items = (max_items, max_items)
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self._held = Gathered()
        self._total: float = 0
        self._batches = 0
        self._sum: float = 0
        self._oversized = 0

    def accumulate(self, item: T_contra, /) -> list[list[Any]]:
        """Take one item; return the lists that are complete now."""
        cost = measured(self._cost, item, "BatchBy: the cost")
        full: list[list[Any]] = []
        if self._held and self._total + cost > self._max_cost:
            full.append(self._take())
        self._put(item, self._held)
        self._total += cost
        if cost > self._max_cost:
            self._oversized += 1
        if self._total >= self._max_cost or len(self._held) == self._max_items:
            full.append(self._take())
        return full

    def flush(self) -> list[list[Any]]:
        """Return what is held, and hold nothing any more."""
        return [self._take()] if self._held else []

    def statistics(self) -> Mapping[str, object]:
        """Return numbers for the stage's statistics."""
        filled = self._sum / (self._batches * self._max_cost) if self._batches else 0.0
        return {"batches": self._batches, "filled": filled, "oversized": self._oversized}

    def _take(self) -> list[Any]:
        held, self._held = self._held, Gathered()
        self._batches += 1
        self._sum += self._total
        self._total = 0
        return held


class Bucket:
    """The open list of one bucket, with what its items measure."""

    __slots__ = ("items", "longest", "size", "total")

    def __init__(self, size: int | None) -> None:
        self.size = size
        self.items = Gathered()
        self.longest: float = 0
        self.total: float = 0


class BucketBy(ListAggregator[T_contra]):
    """Gather items of like length into lists, so that little of a padded batch is padding.

    With ``boundaries=[64, 128]`` there are three buckets: lengths up to 64, above 64 and up to 128,
    and above 128. Each has a list of its own, which is emitted when it is full: when it has
    ``batch_size`` items, or when the next item would take its *padded* cost, the longest length ×
    the number of items, over ``max_cost``. An item that is longer than ``max_cost`` goes alone.

    *Order.* In a bucket the order of the items is kept. Lists leave in the order in which they become
    full, so an item of a rare length may come long after its neighbours. What is left at the end is
    emitted from the bucket of the shortest to that of the longest items, unless ``drop_last=True``.
    Shuffle above it, not below, where batches rather than items would be shuffled.

    Its ``statistics()``, shown by ``run.statistics()``: ``batches``; ``padding``, the share of the
    padded elements in all elements of the batches so far, 0 to 1.

    Args:
        length: returns an item's length, a number of at least 0. An exception in it, or a negative
            length or NaN, is a failure of that item, to which the stage's ``on_error`` applies.
        boundaries: the largest length of each bucket but the last; increasing.
        batch_size: items in a list; one number, or one for each of the ``len(boundaries) + 1``
            buckets.
        max_cost: the most elements of a padded list. Given beside ``batch_size`` a list is full at
            whichever comes first; given alone, ``describe()`` has no bound for the stage.

    Raises:
        BuildError: neither limit is given, one is out of range, or the boundaries do not increase.

    >>> from spdl_async import BucketBy, PipelineBuilder
    >>> words = PipelineBuilder().add_source(["a", "gigantic", "an", "enormous", "is", "of"])
    >>> list(words.aggregate(BucketBy(len, [4], batch_size=2)).build())
    [['a', 'an'], ['gigantic', 'enormous'], ['is', 'of']]
    >>> list(words.aggregate(BucketBy(len, [4], max_cost=6)).build())
    [['gigantic'], ['enormous'], ['a', 'an', 'is'], ['of']]
    """

    def __init__(
        self,
        length: Callable[[T_contra], float],
        boundaries: Sequence[float],
        *,
        batch_size: int | Sequence[int] | None = None,
        max_cost: float | None = None,
    ) -> None:
        check_callable(length, "BucketBy: length")
        self._length = length
        self._boundaries = checked_boundaries(boundaries)
        self._sizes = checked_sizes(batch_size, len(self._boundaries) + 1)
        if max_cost is not None:
            check_limit(max_cost, "BucketBy: max_cost")
        elif batch_size is None:
            raise BuildError(
                "BucketBy: give batch_size=, max_cost= or both, else no list is ever full"
            )
        self._max_cost = max_cost
        sizes = [size for size in self._sizes if size is not None]
        if sizes:
            self._most_items = (sum(sizes), max(sizes))
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self._buckets = [Bucket(size) for size in self._sizes]
        self._batches = 0
        self._real: float = 0
        self._padded: float = 0

    def accumulate(self, item: T_contra, /) -> list[list[Any]]:
        """Take one item; return the lists that are complete now."""
        length = measured(self._length, item, "BucketBy: the length")
        bucket = self._buckets[bisect_left(self._boundaries, length)]
        full: list[list[Any]] = []
        limit = self._max_cost
        if bucket.items and limit is not None:
            longest = max(bucket.longest, length)
            if longest * (len(bucket.items) + 1) > limit:
                full.append(self._take(bucket))
        self._put(item, bucket.items)
        bucket.longest = max(bucket.longest, length)
        bucket.total += length
        is_full = limit is not None and bucket.longest * len(bucket.items) >= limit
        if is_full or len(bucket.items) == bucket.size:
            full.append(self._take(bucket))
        return full

    def flush(self) -> list[list[Any]]:
        """Return what is held, from the shortest to the longest, and hold nothing any more."""
        return [self._take(bucket) for bucket in self._buckets if bucket.items]

    def statistics(self) -> Mapping[str, object]:
        """Return numbers for the stage's statistics."""
        padding = 1.0 - self._real / self._padded if self._padded else 0.0
        return {"batches": self._batches, "padding": padding}

    def _take(self, bucket: Bucket) -> list[Any]:
        items, bucket.items = bucket.items, Gathered()
        self._batches += 1
        self._real += bucket.total
        self._padded += bucket.longest * len(items)
        bucket.longest = bucket.total = 0
        return items


def measured(measure: Callable[[Any], float], item: Any, what: str) -> float:
    """Return what ``measure`` says of an item.

    Raises:
        ValueError: it is negative or NaN.
        TypeError: it is no number.
    """
    value = measure(item)
    try:
        is_good = bool(value >= 0)  # False for NaN
    except TypeError:
        raise TypeError(
            f"{what} of {reprlib.repr(item)} is {reprlib.repr(value)}, which is no number"
        ) from None
    if not is_good:
        raise ValueError(
            f"{what} of {reprlib.repr(item)} is {value!r}; it must be a number of at least 0"
        )
    # numpy's integers would overflow in a sum, and a tensor's arithmetic is slow.
    return value if type(value) in (int, float) else float(value)


def check_callable(value: object, what: str) -> None:
    """Raise ``BuildError`` unless ``value`` can be called."""
    if not callable(value):
        raise BuildError(f"{what} must be a function of the item, not {value!r}")


def check_limit(value: object, what: str) -> None:
    """Raise ``BuildError`` unless ``value`` is a number above 0."""
    if not is_number(value) or not value > 0:  # type: ignore[operator]  # a number by now
        raise BuildError(f"{what} must be a number above 0, not {value!r}")


def checked_boundaries(boundaries: Sequence[float]) -> list[float]:
    """Return the boundaries of buckets.

    Raises:
        BuildError: they are no numbers of at least 0 that increase.
    """
    try:
        found = list(boundaries)
        increase = all(low < high for low, high in pairwise(found))
        is_good = increase and all(bound >= 0 for bound in found)
    except TypeError:
        is_good = False
    if not is_good:
        raise BuildError(
            f"BucketBy: boundaries must be numbers of at least 0 that increase, such as [64, 128], not "
            f"{boundaries!r}"
        )
    return found


def checked_sizes(batch_size: int | Sequence[int] | None, buckets: int) -> list[int | None]:
    """Return the batch size of each bucket.

    Raises:
        BuildError: one is no int of at least 1, or there are more or fewer than buckets.
    """
    if batch_size is None:
        return [None] * buckets
    if not isinstance(batch_size, Sequence):
        check_int(batch_size, "BucketBy: batch_size")
        return [batch_size] * buckets
    for size in batch_size:
        check_int(size, "BucketBy: batch_size")
    if len(batch_size) != buckets:
        raise BuildError(
            f"BucketBy: {buckets - 1} boundaries make {buckets} buckets, but batch_size has "
            f"{len(batch_size)} numbers"
        )
    return list(batch_size)
