"""The first batches of something, again and again."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Generic, TypeVar

from spdl_async import BuildError

T = TypeVar("T")


class CachedBatches(Generic[T]):
    """Replay the first ``n`` batches of a pipeline (or of any iterable), so that loading costs nothing.

    Train with it in place of the pipeline: the steps per second that you see then are the most that
    any faster loading could give. Where they are hardly more than with the pipeline itself, the training
    step is the limit, and a faster pipeline gains nothing.

    The first iteration takes the batches, hands each on as it comes, and closes what it took them
    from; whatever comes after that, and every later iteration, replays. The batches are kept as they
    are and handed out without a copy: do not change them in place. For a ``for`` loop and for ``async
    for``, for one iteration at a time until all are taken.

    Args:
        batches: a pipeline, an iterable or an async iterable. An ordinary iterable is read on the loop
            in ``async for``.
        n: how many batches to keep; all of them, where there are fewer.
        repeat: how often they are given in one iteration; default: without end.

    Raises:
        BuildError: ``n`` or ``repeat`` is no int of at least 1.

    >>> from spdl_async import PipelineBuilder
    >>> from spdl_async.sources import CachedBatches
    >>> pipeline = PipelineBuilder().add_source(range(100)).aggregate(2).build()
    >>> list(CachedBatches(pipeline, 2, repeat=2))
    [[0, 1], [2, 3], [0, 1], [2, 3]]
    """

    def __init__(
        self, batches: Iterable[T] | AsyncIterable[T], n: int, *, repeat: int | None = None
    ) -> None:
        for name, value in (("n", n), ("repeat", repeat)):
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not is_count and (name == "n" or value is not None):
                raise BuildError(
                    f"CachedBatches: {name} must be an int of at least 1, not {value!r}"
                )
        if not isinstance(batches, (Iterable, AsyncIterable)):
            raise BuildError(
                f"CachedBatches: give a pipeline, an iterable or an async iterable of batches, not "
                f"{type(batches).__name__}"
            )
        self._batches: Iterable[T] | AsyncIterable[T] | None = batches
        self._n = n
        self._repeat = repeat
        self._kept: list[T] = []

    def __iter__(self) -> Iterator[T]:
        rounds = 0
        if self._batches is not None:
            yield from self._first()
            rounds = 1
        while self._repeat is None or rounds < self._repeat:
            yield from self._kept
            rounds += 1

    async def __aiter__(self) -> AsyncIterator[T]:
        rounds = 0
        if self._batches is not None:
            async with contextlib.aclosing(self._first_async()) as first:
                async for batch in first:
                    yield batch
            rounds = 1
        while self._repeat is None or rounds < self._repeat:
            for batch in self._kept:
                yield batch
            rounds += 1

    def _first(self) -> Iterator[T]:
        if not isinstance(self._batches, Iterable):
            raise TypeError(
                "CachedBatches: these batches come from an async iterable; use `async for`"
            )
        self._kept = kept = []
        iterator = iter(self._batches)
        try:
            for batch in iterator:
                kept.append(batch)
                if len(kept) == self._n:
                    break
                yield batch
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
        yield from self._taken()

    async def _first_async(self) -> AsyncGenerator[T, None]:
        if not isinstance(self._batches, AsyncIterable):
            for batch in self._first():
                yield batch
            return
        self._kept = kept = []
        iterator = aiter(self._batches)
        try:
            async for batch in iterator:
                kept.append(batch)
                if len(kept) == self._n:
                    break
                yield batch
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()
        for batch in self._taken():
            yield batch

    def _taken(self) -> Iterator[T]:
        """Yield the batch that was not handed on yet, as the one before it was the last but one."""
        if not self._kept:
            raise ValueError("CachedBatches: there is not one batch to replay")
        self._batches = None
        if len(self._kept) == self._n:
            yield self._kept[-1]
