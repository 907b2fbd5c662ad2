"""Contract 5, 6, 12, 18 for aggregate and disaggregate."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from fractions import Fraction
from functools import partial
from typing import Any, Literal, NamedTuple

import pytest
from faces import ENGINE_FACES, FACES, Crowd, Face, drive, functions_in, notes_of
from kinds import kind_id, same

from spdl_async import DROP, Aggregator, BuildError, Drop, PipelineBuilder, TooManyFailures

pytestmark = pytest.mark.timeout(30)


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


class Single(NamedTuple):
    value: int


class Runs:
    """Gathers items until a multiple of ``stop``; fails on what it is told to."""

    def __init__(self, stop: int = 5, errors: dict[Any, BaseException] | None = None) -> None:
        self.stop = stop
        self.errors = errors or {}
        self.held: list[int] = []

    def accumulate(self, item: int) -> Iterable[list[int]]:
        if item in self.errors:
            raise self.errors[item]
        self.held.append(item)
        if item % self.stop == self.stop - 1:
            run, self.held = self.held, []
            return [run]
        return ()

    def flush(self) -> Iterable[list[int]]:
        if "flush" in self.errors:
            raise self.errors["flush"]
        return [self.held] if self.held else []


class LazyRuns(Runs):
    """The same by generators, which do nothing before they are advanced."""

    def accumulate(self, item: int) -> Generator[list[int], None, None]:
        yield from super().accumulate(item)

    def flush(self) -> Generator[list[int], None, None]:
        yield from super().flush()


MAKERS = [Runs, LazyRuns]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_contract_5_lists(size: int, face: Face) -> None:
    for count in (0, 1, size - 1, size, size + 1, 100):
        batches = drive(numbers(count).aggregate(size), face).result()
        assert batches == [list(range(a, min(count, a + size))) for a in range(0, count, size)]
        full = drive(numbers(count).aggregate(size, drop_last=True), face).result()
        assert full == [b for b in batches if len(b) == size]
        assert len({id(batch) for batch in batches}) == len(batches)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("make", MAKERS)
def test_contract_1_an_aggregator_sees_every_item_once_in_order(
    make: type[Runs], face: Face
) -> None:
    expected = [list(range(a, a + 5)) for a in range(0, 50, 5)]
    assert drive(numbers(50).aggregate(make()), face).result() == expected
    assert drive(numbers(53).aggregate(make), face).result() == [*expected, [50, 51, 52]]
    assert drive(numbers(53).aggregate(make(), drop_last=True), face).result() == expected
    assert drive(numbers(0).aggregate(make()), face).result() == []


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_18_an_instance_is_copied_for_each_run_and_a_factory_called(face: Face) -> None:
    given = Runs()
    given.held.append(-1)
    pipeline = numbers(7).aggregate(given).build()
    for _ in range(2):
        assert drive(pipeline, face).result() == [[-1, 0, 1, 2, 3, 4], [5, 6]]
        drive(pipeline, face, take=1)  # an aborted pass in between
    assert given.held == [-1]
    made: list[Runs] = []

    def factory() -> Runs:
        made.append(Runs())
        return made[-1]

    by_factory = numbers(7).aggregate(factory).build()
    assert made == []  # build() is pure
    for _ in range(2):
        assert drive(by_factory, face).result() == [[0, 1, 2, 3, 4], [5, 6]]
    assert len(made) == 2


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("make", MAKERS)
def test_contract_6_an_error_in_accumulate_concerns_that_item(make: type[Runs], face: Face) -> None:
    error = ValueError("not this one")
    outcome = drive(numbers(50).aggregate(make(5, {12: error})), face)
    assert outcome.outputs == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    if outcome.error is not error:  # the instance is deep-copied, its error too
        assert type(outcome.error) is ValueError
    by_factory = drive(numbers(50).aggregate(lambda: make(5, {12: error})), face)
    assert by_factory.error is error
    assert functions_in(error)[-1] == "accumulate"
    assert "item 12" in notes_of(error)
    assert [record.index for record in by_factory.failures] == [12]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("make", MAKERS)
def test_contract_12_an_error_in_accumulate_can_be_skipped(make: type[Runs], face: Face) -> None:
    error = ValueError("not this one")
    built = numbers(15).aggregate(lambda: make(5, {7: error}), on_error="skip", name="runs")
    outcome = drive(built, face)
    assert outcome.result() == [[0, 1, 2, 3, 4], [5, 6, 8, 9], [10, 11, 12, 13, 14]]
    assert [(r.stage, r.index) for r in outcome.failures] == [("runs", 7)]
    assert outcome.statistics.in_flight == 0


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("make", MAKERS)
def test_contract_6_12_an_error_in_flush_concerns_the_tail(make: type[Runs], face: Face) -> None:
    error = ValueError("no tail")
    full = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    raised = drive(numbers(12).aggregate(lambda: make(5, {"flush": error}), name="runs"), face)
    assert raised.outputs == full
    assert raised.error is error
    assert "'runs'" in notes_of(error)
    skipped = drive(numbers(12).aggregate(lambda: make(5, {"flush": error}), on_error="skip"), face)
    assert skipped.result() == full
    assert len(skipped.failures) == 1


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_10_protocol_errors_in_an_aggregator(face: Face) -> None:
    for place in (3, "flush"):
        error = StopIteration("mine")
        outcome = drive(numbers(7).aggregate(partial(Runs, 5, {place: error})), face)
        assert type(outcome.error) is RuntimeError
        assert outcome.error.__cause__ is error


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit], ids=lambda e: e.__name__)
def test_contract_10_interrupts_in_an_aggregator(error: type[BaseException], face: Face) -> None:
    for place in (3, "flush"):
        raised = error()
        outcome = drive(
            numbers(7).aggregate(partial(Runs, 5, {place: raised}), on_error="skip"), face
        )
        assert outcome.error is raised


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_12_a_factory_that_fails_or_returns_no_aggregator(face: Face) -> None:
    error = OSError("no memory map")

    def fails() -> Runs:
        raise error

    policies: list[Literal["raise", "skip"]] = ["raise", "skip"]
    for policy in policies:
        outcome = drive(numbers(7).aggregate(fails, on_error=policy, name="agg"), face)
        assert outcome.outputs == []
        assert outcome.error is not None
        assert error in (outcome.error, outcome.error.__cause__)
        assert "agg" in notes_of(outcome.error) + str(outcome.error)
    wrong: Any = list
    outcome = drive(numbers(7).aggregate(wrong, name="agg"), face)
    assert outcome.error is not None
    assert "accumulate" in str(outcome.error)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_1_an_aggregator_may_drop_and_may_make_several(face: Face) -> None:
    class Odd:
        def accumulate(self, item: int) -> list[int | Drop]:
            return [item, item] if item % 2 else [DROP]

        def flush(self) -> list[int | Drop]:
            return [99, DROP]

    outcome = drive(numbers(6).aggregate(Odd), face)
    assert outcome.result() == [1, 1, 3, 3, 5, 5, 99]
    assert outcome.statistics.stages[1].dropped == 4


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
def test_an_aggregator_runs_in_a_thread_one_call_at_a_time_in_order(face: Face) -> None:
    calls = Crowd()
    seen: list[int] = []
    main = threading.get_ident()

    class Watching:
        def accumulate(self, item: int) -> list[int]:
            with calls:
                assert threading.get_ident() != main
                seen.append(item)
                return [item]

        def flush(self) -> list[int]:
            with calls:
                assert threading.get_ident() != main
                return []

    built = numbers(300).pipe(same, concurrency=4).aggregate(Watching)
    assert drive(built, face).result() == list(range(300)) == seen
    assert calls.most == 1


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_disaggregate_flattens_lists_and_tuples_once(face: Face) -> None:
    items: list[Any] = [[1, 2], (3,), [], (), [[4], "ab", None], Single(5)]
    built = PipelineBuilder().add_source(items).disaggregate()
    assert drive(built, face).result() == [1, 2, 3, [4], "ab", None, 5]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("item", ["text", b"bytes", {"a": 1}, 7, None, {1, 2}], ids=repr)
def test_disaggregate_fails_on_what_is_no_list(item: Any, face: Face) -> None:
    built: PipelineBuilder[Any] = PipelineBuilder().add_source([[0], item, [1]])
    outcome = drive(built.disaggregate(), face)
    assert outcome.outputs == [0]
    assert isinstance(outcome.error, TypeError)
    assert "disaggregate" in notes_of(outcome.error)
    assert "item 1" in notes_of(outcome.error)
    assert type(item).__name__ in str(outcome.error)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_12_a_failure_of_disaggregate_can_be_skipped(face: Face) -> None:
    built: PipelineBuilder[Any] = PipelineBuilder().add_source([[0], "no", [1]])
    outcome = drive(built.disaggregate().build(on_error="skip"), face)
    assert outcome.result() == [0, 1]
    assert [record.index for record in outcome.failures] == [1]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_disaggregate_gives_the_members_of_a_batch_back(face: Face) -> None:
    """A failure below a batch of eight names the source item, not the batch's first or last."""
    error = ValueError()

    def op(n: int) -> int:
        if n == 13:
            raise error
        return n

    built = numbers(30).filter(lambda n: n % 2).aggregate(4).disaggregate().pipe(op)
    outcome = drive(built, face)
    assert outcome.outputs == [1, 3, 5, 7, 9, 11]
    assert [(r.index, r.source) for r in outcome.failures] == [(13, "13")]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_c11_an_op_after_aggregate_fails_for_its_batch(face: Face) -> None:
    def collate(batch: list[int]) -> list[int]:
        if 9 in batch:
            raise ValueError("ragged")
        return batch

    outcome = drive(numbers(16).aggregate(4).pipe(collate, on_error="skip"), face)
    assert outcome.result() == [[0, 1, 2, 3], [4, 5, 6, 7], [12, 13, 14, 15]]
    assert outcome.statistics.in_flight == 0
    record = outcome.failures[0]
    assert record.stage == "collate"
    assert record.index in (8, 9, 10, 11)


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "4", None])
def test_contract_11_a_wrong_batch_size_is_an_error_at_once_or_at_build(size: Any) -> None:
    with pytest.raises(BuildError, match="aggregate"):
        numbers(3).aggregate(size).build()


def test_a_batch_of_lists_cannot_fail_so_a_policy_is_an_error() -> None:
    with pytest.raises(BuildError, match="aggregate"):
        numbers(3).aggregate(2, on_error="skip")
    with pytest.raises(BuildError, match="drop_last"):
        numbers(3).aggregate(2, drop_last=1)  # type: ignore[call-overload]  # the error


def test_the_protocol_is_public() -> None:
    assert isinstance(Runs(), Aggregator)
    assert not isinstance([], Aggregator)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("size", [4_097, 5_000])
def test_contract_5_of_batches_that_keep_few_tickets_none_is_lost(size: int, face: Face) -> None:
    outcome = drive(numbers(2 * size + 120).aggregate(size), face)
    assert [len(batch) for batch in outcome.result()] == [size, size, 120]
    assert outcome.result()[2][0] == 2 * size
    assert outcome.statistics.in_flight == 0


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("tail", [[], ["the tail"]], ids=["silent", "tail"])
def test_contract_7_a_good_flush_does_not_outweigh_that_every_item_failed(
    tail: list[str], face: Face
) -> None:
    class Picky:
        def accumulate(self, item: int) -> Iterable[str]:
            raise KeyError(item)

        def flush(self) -> Iterable[str]:
            return tail

    outcome = drive(numbers(20).aggregate(Picky, on_error="skip"), face)
    assert isinstance(outcome.error, TooManyFailures)
    assert "every one of its 20 calls failed" in str(outcome.error)
    assert outcome.outputs == tail


@pytest.mark.parametrize("face", FACES)
def test_contract_6_7_a_spent_share_is_found_behind_the_result_that_was_good(face: Face) -> None:
    def fails_at_first(n: int) -> int:
        if n < 6:
            raise KeyError(n)
        return n

    built = numbers(200).pipe(fails_at_first, max_failures=Fraction(1, 20))
    outcome = drive(built, face)
    assert isinstance(outcome.error, TooManyFailures)
    assert outcome.outputs == list(range(6, 100))
