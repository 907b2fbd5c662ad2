"""Contract 6, 10, 12 for sources of every kind that fail. Scenarios C2, C3."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from faces import FACES, Face, drive, notes_of
from kinds import kind_id, same

from spdl_async import PipelineBuilder

pytestmark = pytest.mark.timeout(30)


def built(source: Any, **options: Any) -> PipelineBuilder[Any]:
    return PipelineBuilder().add_source(source, **options).pipe(same)


def failing_generator(at: int, error: BaseException) -> Callable[[], Iterator[int]]:
    def source() -> Iterator[int]:
        yield from range(at)
        raise error

    return source


def failing_async_generator(at: int, error: BaseException) -> Callable[[], AsyncIterator[int]]:
    async def source() -> AsyncIterator[int]:
        for n in range(at):
            yield n
        raise error

    return source


def failing_iterator(at: int, error: BaseException) -> Callable[[], Any]:
    class Failing:
        n = -1

        def __iter__(self) -> Failing:
            return self

        def __next__(self) -> int:
            self.n += 1
            if self.n == at:
                raise error
            if self.n > at:
                raise StopIteration
            return self.n

    return lambda: Failing()


def failing_async_iterator(at: int, error: BaseException) -> Callable[[], Any]:
    class Failing:
        n = -1

        def __aiter__(self) -> Failing:
            return self

        async def __anext__(self) -> int:
            self.n += 1
            if self.n == at:
                raise error
            if self.n > at:
                raise StopAsyncIteration
            return self.n

    return lambda: Failing()


def failing_finally(at: int, error: BaseException) -> Callable[[], Iterator[int]]:
    def source() -> Iterator[int]:
        try:
            yield from range(at)
        finally:
            raise error

    return source


def failing_map_style(at: int, error: BaseException) -> Callable[[], Any]:
    class Failing:
        def __len__(self) -> int:
            return at + 5

        def __getitem__(self, index: int) -> int:
            if index == at:
                raise error
            return index

    return lambda: Failing()


def failing_async_finally(at: int, error: BaseException) -> Callable[[], AsyncIterator[int]]:
    async def source() -> AsyncIterator[int]:
        try:
            for n in range(at):
                yield n
        finally:
            raise error

    return source


FAILING = [
    failing_generator,
    failing_async_generator,
    failing_iterator,
    failing_async_iterator,
    failing_finally,
    failing_async_finally,
    failing_map_style,
]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("failing", FAILING, ids=lambda f: f.__name__)
def test_contract_6_c2_a_source_s_failure_comes_after_its_items(failing: Any, face: Face) -> None:
    for at in (0, 3, 300):
        error = IndexError("the source's own")
        outcome = drive(built(failing(at, error)), face)
        assert outcome.outputs == list(range(at))
        assert outcome.error is error
        assert "'source'" in notes_of(error)
        assert [record.stage for record in outcome.failures] == ["source"]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit], ids=lambda e: e.__name__)
@pytest.mark.parametrize("failing", FAILING, ids=lambda f: f.__name__)
def test_contract_10_an_interrupt_in_a_source(
    failing: Any, error: type[BaseException], face: Face
) -> None:
    raised = error()
    outcome = drive(built(failing(2, raised), on_error="skip"), face)
    assert outcome.outputs == [0, 1]
    assert outcome.error is raised


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (failing_iterator, StopAsyncIteration),
        (failing_iterator, GeneratorExit),
        (failing_iterator, asyncio.CancelledError),
        (failing_async_iterator, StopIteration),
        (failing_async_iterator, GeneratorExit),
        (failing_async_iterator, asyncio.CancelledError),
        (failing_map_style, StopIteration),
        (failing_map_style, StopAsyncIteration),
        (failing_generator, asyncio.CancelledError),
        (failing_async_generator, asyncio.CancelledError),
    ],
    ids=lambda v: v.__name__,
)
def test_contract_10_c3_only_a_source_s_own_protocol_ends_it(
    failing: Any, error: type[BaseException], face: Face
) -> None:
    raised = error("mine")
    outcome = drive(built(failing(3, raised)), face)
    assert outcome.outputs == [0, 1, 2]
    assert type(outcome.error) is RuntimeError
    assert outcome.error.__cause__ is raised


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_contract_12_a_source_that_cannot_be_opened(policy: Any, face: Face) -> None:
    error = FileNotFoundError("no such shard")

    def source() -> list[int]:
        raise error

    async def async_source() -> list[int]:
        raise error

    class Unopened:
        def __iter__(self) -> Iterator[int]:
            raise error

    for broken in (source, async_source, Unopened()):
        outcome = drive(built(broken, on_error=policy), face)
        assert outcome.outputs == []
        assert outcome.error is error or (
            outcome.error is not None and outcome.error.__cause__ is error
        )


ENDED_AFTER = "ended right after it had failed"


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("failing", [f for f in FAILING if f is not failing_map_style])
def test_contract_12_a_source_that_ends_right_after_a_skipped_failure(
    failing: Any, face: Face
) -> None:
    """It may have had more data: that it has not fails the pass, however much else came of it."""
    for at in (0, 3):
        error = OSError("no more of the shard")
        outcome = drive(built(failing(at, error), on_error="skip"), face)
        assert outcome.outputs == list(range(at))
        assert outcome.error is error
        assert ENDED_AFTER in notes_of(error)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_12_a_source_that_could_not_be_opened_has_not_ended(face: Face) -> None:
    class Unset(list[int]):
        def set_epoch(self, epoch: int) -> None:
            raise LookupError(epoch)

    class Unopened:
        def __iter__(self) -> Iterator[int]:
            raise LookupError

    for source in (Unset([1, 2]), Unopened()):
        outcome = drive(built(source, on_error="skip"), face)
        assert isinstance(outcome.error, LookupError)
        assert ENDED_AFTER not in notes_of(outcome.error)


class FailsAtFirst:
    """Fails a number of times, then gives three items; for both kinds of code."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.first = ValueError("the first")
        self.good = iter(range(3))
        self.asked = 0

    def give(self) -> int:
        self.asked += 1
        if self.asked == 1:
            raise self.first
        if self.asked <= self.left:
            raise ValueError("a later one")
        return next(self.good)


class FailsSync(FailsAtFirst):
    def __iter__(self) -> FailsSync:
        return self

    def __next__(self) -> int:
        return self.give()


class FailsAsync(FailsAtFirst):
    def __aiter__(self) -> FailsAsync:
        return self

    async def __anext__(self) -> int:
        try:
            return self.give()
        except StopIteration:
            raise StopAsyncIteration from None


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("kind", [FailsSync, FailsAsync])
def test_contract_12_the_hundredth_failure_in_a_row_is_one_too_many(
    kind: type[FailsAtFirst], face: Face
) -> None:
    enough = kind(99)
    outcome = drive(built(lambda: enough, on_error="skip"), face)
    assert outcome.result() == [0, 1, 2]
    assert len(outcome.failures) == 99
    too_many = kind(100)
    outcome = drive(built(lambda: too_many, on_error="skip"), face)
    assert outcome.outputs == []
    assert outcome.error is too_many.first
    assert "failed 100 times in a row" in notes_of(too_many.first)
    assert len(outcome.failures) == 100


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("failing", [failing_finally, failing_async_finally])
def test_c2_a_source_that_fails_while_it_is_closed_early(failing: Any, face: Face) -> None:
    """The consumer has left and misses nothing: no exception for it, no hang; the failure is listed."""
    error = OSError("cannot close the shard")
    outcome = drive(built(failing(10_000, error)), face, take=2)
    assert outcome.outputs == [0, 1]
    assert outcome.error is None
    assert [(r.stage, r.message) for r in outcome.failures] == [("source", str(error))]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_c2_a_generator_stage_that_fails_while_it_is_closed_early(face: Face) -> None:
    def op(n: int) -> Iterator[int]:
        try:
            while True:
                yield n
        finally:
            raise OSError("cannot close")

    async def async_op(n: int) -> AsyncIterator[int]:
        try:
            while True:
                yield n
        finally:
            raise OSError("cannot close")

    for endless in (op, async_op):
        stage: Any = endless
        outcome = drive(PipelineBuilder().add_source([7]).pipe(stage, name="work"), face, take=2)
        assert outcome.outputs == [7, 7]
        assert outcome.error is None
        assert [(r.stage, r.message) for r in outcome.failures] == [("work", "cannot close")]
