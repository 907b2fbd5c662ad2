"""Contract 6, 10, 11, 12, 18, 21 for sources of every kind. Scenario C2, C3."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from faces import ENGINE_FACES, FACES, Face, drive, notes_of
from kinds import kind_id, same

from spdl_async import BuildError, PipelineBuilder, RunStateError

pytestmark = pytest.mark.timeout(30)


def built(source: Any, **options: Any) -> PipelineBuilder[Any]:
    return PipelineBuilder().add_source(source, **options).pipe(same)


class Reiterable:
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class AsyncReiterable:
    async def __aiter__(self) -> AsyncIterator[int]:
        for n in range(5):
            yield n


class Both(Reiterable):
    """Sync and async: counts as async."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the sync protocol was used")

    async def __aiter__(self) -> AsyncIterator[int]:
        for n in range(5):
            yield n


class CallableIterable(Reiterable):
    def __call__(self) -> Iterator[int]:
        raise AssertionError("it was called")


class MapStyle:
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return index


class NextOnly:
    """An iterator by hand."""

    def __init__(self) -> None:
        self.at = -1

    def __iter__(self) -> NextOnly:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at == 5:
            raise StopIteration
        return self.at


def generator() -> Iterator[int]:
    yield from range(5)


async def async_generator() -> AsyncIterator[int]:
    for n in range(5):
        await asyncio.sleep(0)
        yield n


async def coroutine_of_iterable() -> list[int]:
    return [0, 1, 2, 3, 4]


async def coroutine_of_async_iterable() -> AsyncIterator[int]:
    return async_generator()


def opened_async() -> AsyncIterator[int]:
    return async_generator()


SOURCES: dict[str, Any] = {
    "list": [0, 1, 2, 3, 4],
    "range": range(5),
    "dict": dict.fromkeys(range(5)),
    "reiterable": Reiterable(),
    "async-reiterable": AsyncReiterable(),
    "both": Both(),
    "callable-iterable": CallableIterable(),
    "map-style": MapStyle(),
    "generator-function": generator,
    "async-generator-function": async_generator,
    "coroutine-of-iterable": coroutine_of_iterable,
    "coroutine-of-async-iterable": coroutine_of_async_iterable,
    "callable-of-async": opened_async,
    "callable-of-list": lambda: [0, 1, 2, 3, 4],
    "callable-of-map-style": lambda: MapStyle(),
}


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_contract_1_18_every_kind_of_source_is_read_afresh_each_pass(
    source: Any, face: Face
) -> None:
    pipeline = built(source).build()
    for _ in range(3):
        assert drive(pipeline, face).result() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("make", [generator, NextOnly, async_generator], ids=lambda f: f.__name__)
def test_contract_18_a_one_shot_iterator_has_one_pass(make: Callable[[], Any], face: Face) -> None:
    pipeline = built(make()).build()
    assert drive(pipeline, face).result() == [0, 1, 2, 3, 4]
    with pytest.raises(RunStateError, match="an earlier pass"):
        drive(pipeline, face)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("make", [generator, async_generator], ids=lambda f: f.__name__)
def test_contract_18_a_factory_that_returns_a_used_iterator(
    make: Callable[[], Any], face: Face
) -> None:
    """It is not fresh: silence would be an epoch of nothing; the second pass is at least empty."""
    used = make()
    pipeline = built(lambda: used).build()
    assert drive(pipeline, face).result() == [0, 1, 2, 3, 4]
    again = drive(pipeline, face)
    assert again.outputs == []


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize(
    "returned", [None, 7, "text", b"bytes"], ids=["none", "int", "str", "bytes"]
)
def test_contract_11_a_factory_that_returns_no_iterable(returned: Any, face: Face) -> None:
    outcome = drive(built(lambda: returned), face)
    assert outcome.outputs == []
    assert isinstance(outcome.error, (TypeError, BuildError))
    assert "source" in str(outcome.error) + notes_of(outcome.error)


@pytest.mark.parametrize(
    "source",
    [None, 7, object(), "text", b"x", bytearray(b"x")],
    ids=lambda source: type(source).__name__,
)
def test_contract_11_what_is_no_source_is_an_error_that_names_the_fix(source: Any) -> None:
    with pytest.raises(BuildError, match="add_source"):
        PipelineBuilder().add_source(source).build()


def test_contract_11_a_source_factory_takes_no_argument() -> None:
    def needs(path: str) -> list[str]:
        return [path]

    with pytest.raises(BuildError, match=r"add_source.*no argument.*path"):
        PipelineBuilder().add_source(needs).build()  # type: ignore[arg-type]  # the error


def test_contract_11_a_coroutine_or_generator_object_given_by_mistake() -> None:
    coroutine = coroutine_of_iterable()
    with pytest.raises(BuildError, match="without calling it"):
        PipelineBuilder().add_source(coroutine).build()  # type: ignore[call-overload]  # the error
    del coroutine  # no warning that it was never awaited: warnings are errors here


@pytest.mark.parametrize(
    ("source", "pieces", "shown"),
    [
        ("one.jpg", "character by character", "['one.jpg']"),
        (b"one", "byte by byte", "[b'one']"),
        ("x" * 40, "character by character", "[…]"),
    ],
)
def test_contract_11_text_is_refused_with_the_list_that_is_meant(
    source: Any, pieces: str, shown: str
) -> None:
    with pytest.raises(BuildError) as caught:
        PipelineBuilder().add_source(source).build()
    assert pieces in str(caught.value)
    assert f"put it into a list, {shown}," in str(caught.value)


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_21_sources_see_the_context_of_the_run_s_start(face: Face) -> None:
    def source() -> Iterator[str]:
        for _ in range(3):
            yield VARIABLE.get()
            VARIABLE.set("set by the source")

    async def async_source() -> AsyncIterator[str]:
        yield VARIABLE.get()
        VARIABLE.set("set by the source")

    token = VARIABLE.set("request-1")
    try:
        assert drive(built(source), face).result()[0] == "request-1"
        assert drive(built(async_source), face).result() == ["request-1"]
        assert VARIABLE.get() == "request-1"
    finally:
        VARIABLE.reset(token)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("make", [generator, async_generator], ids=lambda f: f.__name__)
def test_contract_18_two_passes_at_once_have_an_iterator_each(
    make: Callable[[], Any], face: Face
) -> None:
    pipeline = built(make).build()
    inner: list[Any] = []
    if face.is_async:

        async def both() -> list[tuple[int, int]]:
            loop: Any = "own" if face is Face.OWN else "caller"
            async with pipeline.run(loop=loop) as one, pipeline.run(loop=loop) as two:
                return [(a, await anext(two)) async for a in one]

        inner = asyncio.run(both())
    else:
        inline = face is Face.INLINE
        with pipeline.run_sync(inline=inline) as one, pipeline.run_sync(inline=inline) as two:
            inner = list(zip(one, two, strict=True))
    assert inner == [(n, n) for n in range(5)]


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
def test_contract_18_a_pass_after_an_aborted_one_begins_at_the_start(face: Face) -> None:
    pipeline = (
        PipelineBuilder()
        .add_source(lambda: itertools.count())
        .pipe(same, concurrency=4)
        .aggregate(3)
        .build()
    )
    for epoch in range(4):
        outcome = drive(pipeline, face, take=2)
        assert outcome.outputs == [[0, 1, 2], [3, 4, 5]]
        assert outcome.run is not None
        assert outcome.run.epoch == epoch
        assert outcome.statistics.delivered == 2
