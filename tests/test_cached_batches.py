"""``CachedBatches``: the first batches, again and again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

import pytest

from spdl_async import BuildError, PipelineBuilder
from spdl_async.sources import CachedBatches


class Source:
    """Numbers, and whether they were closed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.read = 0
        self.closed = 0

    def __iter__(self) -> Iterator[int]:
        try:
            for n in range(self.number):
                self.read += 1
                yield n
        finally:
            self.closed += 1


class AsyncSource(Source):
    __iter__ = None  # type: ignore[assignment]

    async def __aiter__(self) -> AsyncIterator[int]:
        try:
            for n in range(self.number):
                self.read += 1
                yield n
        finally:
            self.closed += 1


async def taken(batches: CachedBatches[int], number: int) -> list[int]:
    found: list[int] = []
    iterator = aiter(batches)
    async for batch in iterator:
        found.append(batch)
        if len(found) == number:
            break
    await iterator.aclose()  # type: ignore[attr-defined]  # it is a generator
    return found


def test_it_takes_n_and_replays_them_without_end() -> None:
    source = Source(100)
    batches = CachedBatches(source, 3)
    assert_type(batches, CachedBatches[int])
    assert list(itertools.islice(batches, 8)) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert (source.read, source.closed) == (3, 1)
    assert list(itertools.islice(batches, 4)) == [0, 1, 2, 0]
    assert source.read == 3


def test_the_same_for_async_code() -> None:
    source = AsyncSource(100)
    batches = CachedBatches(source, 3)
    assert asyncio.run(taken(batches, 8)) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert (source.read, source.closed) == (3, 1)
    assert list(itertools.islice(batches, 4)) == [0, 1, 2, 0]  # they are there now
    ordinary = CachedBatches(Source(9), 2)
    assert asyncio.run(taken(ordinary, 5)) == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(("n", "repeat"), [(1, 1), (1, 3), (4, 1), (4, 2), (9, 2)])
def test_repeat_says_how_often(n: int, repeat: int) -> None:
    batches = CachedBatches(Source(5), n, repeat=repeat)
    expected = list(range(min(n, 5))) * repeat
    assert list(batches) == expected
    assert list(batches) == expected
    assert asyncio.run(taken(batches, 1000)) == expected


def test_each_batch_is_handed_on_as_it_comes_and_an_early_end_begins_again() -> None:
    source = Source(100)
    batches = CachedBatches(source, 5)
    for batch in batches:
        if batch == 1:
            break
    assert source.read == 2
    assert list(itertools.islice(batches, 6)) == [0, 1, 2, 3, 4, 0]
    assert source.read == 7


def test_a_pipeline_is_run_once_and_its_run_is_closed() -> None:
    pipeline = PipelineBuilder().add_source(range(1000)).pipe(lambda n: n).build()
    batches = CachedBatches(pipeline, 2)
    assert list(itertools.islice(batches, 6)) == [0, 1] * 3
    assert asyncio.run(taken(CachedBatches(pipeline, 2), 5)) == [0, 1, 0, 1, 0]
    again = PipelineBuilder().add_source(CachedBatches(range(9), 3, repeat=2)).build()
    assert list(again) == [0, 1, 2, 0, 1, 2]


def test_no_batch_is_an_error_and_not_a_loop_without_end() -> None:
    with pytest.raises(ValueError, match="not one batch"):
        list(CachedBatches([], 3))
    with pytest.raises(ValueError, match="not one batch"):
        asyncio.run(taken(CachedBatches([], 3), 1))


def test_an_async_source_in_ordinary_code_says_what_to_write() -> None:
    batches = CachedBatches(AsyncSource(3), 2)
    with pytest.raises(TypeError, match="use `async for`"):
        list(batches)


@pytest.mark.parametrize("options", [{"n": 0}, {"n": True}, {"n": 2, "repeat": 0}, {"n": 1.5}])
def test_bad_numbers_are_errors(options: Any) -> None:
    with pytest.raises(BuildError, match="must be an int of at least 1"):
        CachedBatches([1], **options)
    with pytest.raises(BuildError, match="give a pipeline"):
        CachedBatches(3, 1)  # type: ignore[arg-type]  # that is the mistake
