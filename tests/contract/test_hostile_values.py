"""Items and exceptions that answer badly to every question: contract 1, 6, 10 still hold."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
from faces import FACES, Face, drive
from kinds import EACH_CASE, GIVEN, Kind, Work, kind_id, same

from spdl_async import PipelineBuilder

pytestmark = pytest.mark.timeout(30)


class Hostile:
    """Cannot be compared, hashed, counted, shown, copied, or asked for an attribute."""

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError("asked a hostile item")

    __eq__ = __ne__ = __bool__ = __len__ = __repr__ = __str__ = _refuse
    __hash__ = __iter__ = __getitem__ = __copy__ = __deepcopy__ = __reduce__ = _refuse

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"asked a hostile item for {name}")


async def on_loop(item: Any) -> Any:
    return item


def each(item: Any) -> Generator[Any, None, None]:
    yield item


async def each_async(item: Any) -> AsyncGenerator[Any, None]:
    yield item


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_contract_1_nothing_is_asked_of_an_item(concurrency: int, face: Face) -> None:
    items = [Hostile() for _ in range(20)]
    built: PipelineBuilder[Any] = PipelineBuilder().add_source(items)
    for op in (same, lambda item: on_loop(item), on_loop, each, each_async):
        built = built.pipe(op, concurrency=concurrency)
    built = built.pipe(same, executor=GIVEN).filter(lambda _: True, concurrency=concurrency)
    built = built.aggregate(4).disaggregate().expand(lambda item: [item])
    outputs = drive(built, face).result()
    assert all(a is b for a, b in zip(outputs, items, strict=True))


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("op", [same, on_loop, each, each_async], ids=lambda op: op.__name__)
def test_contract_6_a_failure_on_an_item_that_cannot_be_shown(op: Any, face: Face) -> None:
    error = ValueError("here")

    def fails(item: Any) -> Any:
        raise error

    built: PipelineBuilder[Any] = PipelineBuilder().add_source([Hostile()]).pipe(op)
    outcome = drive(built.pipe(fails), face)
    assert outcome.error is error
    assert "Hostile" in outcome.failures[0].source


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """Refuses attributes, so notes cannot be added nor a traceback be set by ordinary means."""

    code: int


class MuteError(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NotelessError(Exception):
    """Has notes that are no list."""

    __notes__: Any = "a text"


class ComparingError(Exception):
    """Cannot be compared or hashed."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]  # as Python sets it beside __eq__


def errors() -> list[Exception]:
    """Return fresh ones: an exception keeps the frames that it has been raised through."""
    return [FrozenError(3), MuteError(), NotelessError("x"), ComparingError("y")]


@EACH_CASE
def test_contract_6_the_same_object_even_when_it_takes_no_note(kind: Kind, face: Face) -> None:
    for error in errors():
        builder = PipelineBuilder().add_source(range(9))
        built = kind.add(builder, Work(errors={2: error}), concurrency=2)
        outcome = drive(built, face)
        assert outcome.error is error, type(error)
        assert outcome.outputs == [0, 1]
        record = outcome.failures[0]
        assert (record.stage, record.index) == ("work", 2)
        assert record.error == type(error).__qualname__


@EACH_CASE
def test_contract_7_such_an_error_can_be_skipped(kind: Kind, face: Face) -> None:
    for error in errors():
        builder = PipelineBuilder().add_source(range(9))
        built = kind.add(builder, Work(errors={2: error}), concurrency=2, max_failures=1)
        outcome = drive(built, face)
        assert outcome.result() == [0, 1, 3, 4, 5, 6, 7, 8]
        assert [record.index for record in outcome.failures] == [2]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_6_a_source_s_error_that_takes_no_note(face: Face) -> None:
    for error in errors():

        def source(error: Exception = error) -> Generator[int, None, None]:
            yield 0
            raise error

        outcome = drive(PipelineBuilder().add_source(source).pipe(same), face)
        assert outcome.outputs == [0]
        assert outcome.error is error
