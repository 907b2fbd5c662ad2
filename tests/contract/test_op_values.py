"""``on``, ``DROP``, None and context variables in ops. Contract 1, 10, 21. Scenarios C7, L14."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import pickle
import threading
from collections.abc import AsyncGenerator, Awaitable, Generator, Iterator
from typing import Any, NamedTuple

import pytest
from faces import ENGINE_FACES, FACES, PATIENCE, Face, drive, notes_of
from kinds import EACH_CASE, Kind, Work, kind_id, same

from spdl_async import DROP, BuildError, Drop, PipelineBuilder, cancelled, on

pytestmark = pytest.mark.timeout(30)


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


def twice(n: int) -> Generator[int, None, None]:
    yield n
    yield n


class Pair(NamedTuple):
    left: int
    right: int


@dataclasses.dataclass(frozen=True)
class Sample:
    left: int
    right: int


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_on_one_field(is_async: bool, face: Face) -> None:
    async def ten_async(n: int) -> int:
        return n * 10

    op: Any = ten_async if is_async else lambda n: n * 10
    rows: list[tuple[Any, Any, Any]] = [
        (1, (1, 2), (1, 20)),
        (-1, (1, 2), (1, 20)),
        (0, [1, 2], [10, 2]),
        ("left", {"left": 1, "right": 2}, {"left": 10, "right": 2}),
        ("left", Pair(1, 2), Pair(10, 2)),
        (1, Pair(1, 2), Pair(1, 20)),
        ("right", Sample(1, 2), Sample(1, 20)),
    ]
    for key, item, expected in rows:
        before = repr(item)
        outputs = drive(PipelineBuilder().add_source([item]).pipe(on(key, op)), face).result()
        assert outputs == [expected]
        assert type(outputs[0]) is type(item)
        assert repr(item) == before  # copied, not changed
    dropped = numbers(4).pipe(lambda n: (n, n)).pipe(on(0, lambda n: DROP if n % 2 else n))
    assert drive(dropped, face).result() == [(0, 0), (2, 2)]
    looked_up = PipelineBuilder().add_source([("x", 1)]).pipe(on(0, {"x": 5}))
    assert drive(looked_up, face).result() == [(5, 1)]


@pytest.mark.parametrize("key", [0, "left"])
def test_on_an_item_without_such_a_field_is_an_item_failure(key: Any) -> None:
    outcome = drive(numbers(3).pipe(on(key, same), name="field"), Face.SYNC)
    assert isinstance(outcome.error, (TypeError, AttributeError))
    assert "'field'" in notes_of(outcome.error)


def test_on_needs_a_one_to_one_op() -> None:
    with pytest.raises(BuildError, match="generator"):
        on(0, twice)
    with pytest.raises(BuildError):
        on(0, 7)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_1_drop_is_counted_from_any_user_code_and_only_at_the_top(face: Face) -> None:
    async def maybe(n: int) -> int | Drop:
        return DROP if n % 3 == 0 else n

    def few(n: int) -> Generator[int | Drop, None, None]:
        yield n
        yield DROP
        yield n

    async def few_async(n: int) -> AsyncGenerator[int | Drop, None]:
        yield DROP
        yield n

    def source() -> Iterator[int | Drop]:
        yield 0
        yield DROP
        yield 1

    pickled: Drop = pickle.loads(pickle.dumps(DROP))
    assert pickled is DROP
    built: PipelineBuilder[Any] = numbers(12).pipe(maybe, name="m").pipe(few, name="f")
    outcome = drive(built.pipe(few_async, name="fa"), face)
    assert outcome.result() == [n for n in range(12) if n % 3 for _ in range(2)]
    assert [outcome.statistics.stage(name).dropped for name in ("m", "f", "fa")] == [4, 8, 16]
    assert drive(numbers(2).expand(lambda n: [n, DROP, pickled, n]), face).result() == [0, 0, 1, 1]
    assert drive(numbers(1).pipe(lambda n: [DROP, n]), face).result() == [[DROP, 0]]
    from_source = drive(PipelineBuilder().add_source(source), face)
    assert from_source.result() == [0, 1]
    assert from_source.statistics.stage("source").dropped == 1
    dropped_first: list[int | Drop] = [*[DROP] * 1000, 1, DROP, 2]
    from_list = drive(PipelineBuilder().add_source(dropped_first), face)
    assert from_list.result() == [1, 2]
    assert from_list.statistics.stage("source").dropped == 1001


@EACH_CASE
def test_c7_none_is_data(kind: Kind, face: Face) -> None:
    built: PipelineBuilder[Any] = kind.add(numbers(4), Work(), concurrency=2)
    assert drive(built.pipe(lambda _: None), face).result() == [None] * 4
    nothing: PipelineBuilder[Any] = PipelineBuilder().add_source([None, None, None])
    assert drive(nothing.aggregate(2), face).result() == [[None, None], [None]]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_c7_an_op_that_fails_on_none_says_where_none_came_from(
    concurrency: int, face: Face
) -> None:
    def forgets_to_return(n: int) -> Any:
        n + 1

    async def plus(n: int) -> int:
        return n + 1

    def yields(n: int) -> Generator[int, None, None]:
        yield n + 1

    for op in (lambda n: n + 1, plus, yields):
        built: PipelineBuilder[Any] = numbers(3).pipe(forgets_to_return, concurrency=concurrency)
        outcome = drive(built.pipe(op, concurrency=concurrency), face)
        assert isinstance(outcome.error, TypeError)
        assert "None" in notes_of(outcome.error)
    fine: PipelineBuilder[Any] = numbers(3).pipe(lambda n: 1 // n)
    error = drive(fine, face).error
    assert error is not None
    assert "None" not in notes_of(error)


REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST", default="unset")


@EACH_CASE
def test_contract_21_ops_see_the_context_of_the_run_s_start(kind: Kind, face: Face) -> None:
    seen: set[str] = set()

    class Looking(Work):
        def finish(self, item: int) -> int:
            if item == 0:
                seen.add(REQUEST.get())
            REQUEST.set(f"set for {item}")
            return super().finish(item)

    pipeline = kind.add(numbers(5), Looking(), concurrency=2).build()
    for request in ("one", "two"):
        seen.clear()
        token = REQUEST.set(request)
        try:
            drive(pipeline, face).result()
            assert REQUEST.get() == request
        finally:
            REQUEST.reset(token)
        assert seen == {request}


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_cancelled_is_false_in_an_op_of_a_run_that_goes_on(face: Face) -> None:
    assert drive(numbers(3).pipe(lambda _: cancelled()), face).result() == [False] * 3
    assert not cancelled()


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
def test_an_op_s_own_timeout_on_the_loop_is_its_own_affair(face: Face) -> None:
    async def impatient(n: int) -> int:
        try:
            async with asyncio.timeout(0):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            return n
        raise AssertionError("it did not time out")

    async def fails(n: int) -> int:
        async with asyncio.timeout(0):
            await asyncio.get_running_loop().create_future()
        return n

    assert drive(numbers(9).pipe(impatient, concurrency=2), face).result() == list(range(9))
    error = drive(numbers(9).pipe(fails, concurrency=2), face).error
    assert isinstance(error, TimeoutError)


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
def test_awaitables_are_awaited_on_the_stages_loop(face: Face) -> None:
    async def where() -> int:
        return id(asyncio.get_running_loop())

    def op(n: int) -> Awaitable[int]:
        return where()

    built = numbers(4).pipe(op, name="a")
    assert len(set(drive(built, face).result())) == 1


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
def test_results_are_not_held_back_after_others_were_awaited(face: Face) -> None:
    hold, waited_in_vain = threading.Event(), []

    async def same_later(n: int) -> int:
        return n

    def op(n: int) -> Any:
        if n < 60:
            return same_later(n)
        if n > 60 and not hold.wait(PATIENCE):
            waited_in_vain.append(n)
        return n

    outcome = drive(numbers(100).pipe(op, concurrency=2), face, take=61, on_end=hold.set)
    assert outcome.result() == list(range(61))
    assert not waited_in_vain
