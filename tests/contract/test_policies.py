"""Contract 7 and 12: skip policies, budgets, and whose they are. Scenarios C5, C6, C7, C11."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
from faces import FACES, Face, Outcome, drive, notes_of
from kinds import EACH_CASE, Kind, Work, kind_id, same

from spdl_async import BuildError, PipelineBuilder, TooManyFailures

pytestmark = pytest.mark.timeout(30)
HALF = Fraction(1, 2)


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


def failing_on(*bad: int) -> dict[int, BaseException]:
    return {n: ValueError(f"bad {n}") for n in bad}


def indices(outcome: Outcome) -> list[int]:
    return [record.index for record in outcome.failures]


@EACH_CASE
def test_contract_7_skip_drops_counts_and_lists(kind: Kind, face: Face) -> None:
    bad = range(0, 60, 7)
    for concurrency, order in ((1, "completion"), (4, "input"), (4, "completion")):
        work = Work(errors=failing_on(*bad))
        built = kind.add(
            numbers(60), work, concurrency=concurrency, output_order=order, on_error="skip"
        )
        outcome = drive(built, face)
        assert sorted(outcome.result()) == [n for n in range(60) if n not in bad]
        assert sorted(indices(outcome)) == list(bad)
        assert {record.stage for record in outcome.failures} == {"work"}
        stage = outcome.statistics.stage("work")
        assert (stage.items_in, stage.failed, stage.items_out) == (60, len(bad), 60 - len(bad))
        assert outcome.statistics.failures == len(bad)
        assert outcome.statistics.in_flight == 0


@EACH_CASE
def test_contract_7_an_int_budget_fails_at_failure_n_plus_1(kind: Kind, face: Face) -> None:
    bad = [5, 11, 12, 13, 40]
    for allowed, concurrency in ((0, 1), (0, 4), (3, 1), (3, 4)):
        work = Work(errors=failing_on(*bad))
        built = kind.add(numbers(60), work, concurrency=concurrency, max_failures=allowed)
        outcome = drive(built, face)
        assert outcome.outputs == [n for n in range(bad[allowed]) if n not in bad]
        assert isinstance(outcome.error, TooManyFailures)
        records = outcome.error.records
        assert [record.index for record in records] == bad[: allowed + 1]
        assert [record.message for record in records] == [f"bad {n}" for n in bad[: allowed + 1]]
        assert "'work'" in str(outcome.error)


@EACH_CASE
def test_contract_7_a_budget_that_is_just_enough(kind: Kind, face: Face) -> None:
    bad = [5, 11, 12]
    for limit in (3, Fraction(3, 60)):
        work = Work(errors=failing_on(*bad))
        built = kind.add(numbers(60), work, concurrency=4, max_failures=limit)
        assert drive(built, face).result() == [n for n in range(60) if n not in bad]


@EACH_CASE
def test_contract_7_a_fraction_is_looked_at_from_the_100th_call_on(kind: Kind, face: Face) -> None:
    """90 of the first 99 fail and nothing happens; at call 100 the share is above one half."""
    work = Work(errors=failing_on(*range(9, 99)))
    built = kind.add(numbers(400), work, concurrency=1, max_failures=HALF)
    outcome = drive(built, face)
    assert isinstance(outcome.error, TooManyFailures)
    assert set(range(9)) <= set(outcome.outputs) <= {*range(9), 99}
    assert len(outcome.error.records) == 90
    assert "100" in str(outcome.error)


@EACH_CASE
def test_contract_7_a_fraction_is_looked_at_once_more_at_the_end(kind: Kind, face: Face) -> None:
    """99 calls, 50 failures: above one half, seen at the end only, after all outputs."""
    work = Work(errors=failing_on(*range(50)))
    outcome = drive(kind.add(numbers(99), work, concurrency=4, max_failures=HALF), face)
    assert outcome.outputs == list(range(50, 99))
    assert isinstance(outcome.error, TooManyFailures)
    assert len(outcome.error.records) == 50


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_7_a_fraction_recovers_when_calls_succeed(face: Face) -> None:
    """After 100 calls 50 have failed, exactly one half, which is allowed; then all is well."""
    work = Work(errors=failing_on(*range(50)))
    outcome = drive(numbers(200).pipe(work.call, concurrency=4, max_failures=HALF), face)
    assert outcome.result() == list(range(50, 200))


@EACH_CASE
def test_contract_7_c7_when_every_call_failed_the_pass_is_an_error(kind: Kind, face: Face) -> None:
    for options in ({"on_error": "skip"}, {"max_failures": 1000}, {"max_failures": Fraction(1)}):
        for count in (1, 40):
            errors = failing_on(*range(count))
            built = kind.add(numbers(count), Work(errors=errors), concurrency=4, **options)
            outcome = drive(built.aggregate(8), face)
            assert outcome.outputs == []
            assert isinstance(outcome.error, TooManyFailures)
            assert ("every one" if count > 1 else "its only call") in str(outcome.error)
            assert outcome.error.__cause__ is errors[0]
            assert len(outcome.error.records) == count


@EACH_CASE
def test_contract_7_an_empty_pass_is_no_error(kind: Kind, face: Face) -> None:
    for options in ({"on_error": "skip"}, {"max_failures": 0}, {"max_failures": Fraction(0)}):
        assert drive(kind.add(numbers(0), Work(), concurrency=2, **options), face).result() == []


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_7_every_call_of_a_later_stage_failed(face: Face) -> None:
    """Also where most items never came that far, and where the stage is in a fused group."""
    errors = failing_on(*range(60))
    for concurrency in (1, 4):
        built = numbers(60).filter(lambda n: n % 20 == 0, concurrency=concurrency)
        failing = built.pipe(Work(errors=errors).call, concurrency=concurrency, name="late")
        outcome = drive(failing.build(on_error="skip"), face)
        assert outcome.outputs == []
        assert isinstance(outcome.error, TooManyFailures)
        assert "'late'" in str(outcome.error)
        assert "3" in str(outcome.error)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_contract_7_the_build_s_budget_counts_its_stages_together(
    concurrency: int, face: Face
) -> None:
    def chain() -> PipelineBuilder[int]:
        first, second = Work(errors=failing_on(3, 9)), Work(errors=failing_on(6, 12))
        own = Work(errors=failing_on(1, 2, 4, 5))
        return (
            numbers(30)
            .pipe(first.call, concurrency=concurrency, name="a")
            .pipe(own.call, concurrency=concurrency, name="own", on_error="skip")
            .pipe(second.acall, concurrency=concurrency, name="b")
        )

    fine = drive(chain().build(on_error="skip", max_failures=4), face)
    assert fine.result() == [n for n in range(30) if n not in {1, 2, 3, 4, 5, 6, 9, 12}]
    spent = drive(chain().build(max_failures=3), face)  # without on_error it implies "skip"
    assert isinstance(spent.error, TooManyFailures)
    assert {record.stage for record in spent.error.records} == {"a", "b"}
    assert sorted(record.index for record in spent.error.records) == [3, 6, 9, 12]
    assert set(spent.outputs) <= set(fine.outputs)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_7_c6_a_stage_s_own_policy_overrides_the_build_s(face: Face) -> None:
    """Tolerant downloads do not hide a failed assertion, nor the other way round."""
    download, check = Work(errors=failing_on(3, 4, 5)), Work(errors=failing_on(20))
    tolerant = numbers(30).pipe(download.call, name="download", on_error="skip")
    outcome = drive(tolerant.pipe(check.call, name="check"), face)
    assert outcome.error is check.errors[20]
    assert outcome.outputs == [n for n in range(20) if n not in {3, 4, 5}]
    strict = numbers(30).pipe(download.call, name="download")
    outcome = drive(strict.pipe(check.call, on_error="raise").build(on_error="skip"), face)
    assert outcome.error is check.errors[20]
    assert indices(outcome) == [3, 4, 5, 20]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_7_an_inlined_pipeline_keeps_its_own_budget(face: Face) -> None:
    inner = numbers(30).pipe(Work(errors=failing_on(3, 4)).call, name="inner").build(max_failures=2)
    outer = PipelineBuilder().add_source(inner).pipe(Work(errors=failing_on(8)).call, name="outer")
    assert len(drive(outer.build(max_failures=1), face).result()) == 27
    strict = drive(outer.build(max_failures=0), face)
    assert isinstance(strict.error, TooManyFailures)
    assert [record.stage for record in strict.error.records] == ["outer"]


def stuttering(bad: set[int], last: int) -> Callable[[], Iterator[int]]:
    """Return a source that fails on some calls of ``next`` and goes on."""

    class Stuttering:
        def __init__(self) -> None:
            self.calls = -1

        def __iter__(self) -> Stuttering:
            return self

        def __next__(self) -> int:
            self.calls += 1
            if self.calls in bad:
                raise ValueError(f"call {self.calls}")
            if self.calls >= last:
                raise StopIteration
            return self.calls

    return lambda: Stuttering()


def stuttering_async(bad: set[int], last: int) -> Callable[[], Any]:
    class Stuttering:
        def __init__(self) -> None:
            self.inner = stuttering(bad, last)()

        def __aiter__(self) -> Stuttering:
            return self

        async def __anext__(self) -> int:
            try:
                return next(self.inner)
            except StopIteration:
                raise StopAsyncIteration from None

    return lambda: Stuttering()


STUTTERING = pytest.mark.parametrize(
    "source", [stuttering, stuttering_async], ids=["sync", "async"]
)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@STUTTERING
def test_contract_12_after_a_skipped_source_error_next_is_called_again(
    source: Any, face: Face
) -> None:
    bad = {0, 3, 4, 9}
    built = PipelineBuilder().add_source(source(bad, 20), on_error="skip").pipe(same)
    outcome = drive(built, face)
    assert outcome.result() == [n for n in range(20) if n not in bad]
    assert [record.message for record in outcome.failures] == [f"call {n}" for n in sorted(bad)]
    assert outcome.statistics.stage("source").failed == 4


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@STUTTERING
def test_contract_12_a_source_that_ends_at_once_after_an_error(source: Any, face: Face) -> None:
    """As a generator does that has raised: what would have come is lost, so it is no clean end."""
    outcome = drive(PipelineBuilder().add_source(source({5}, 6), on_error="skip"), face)
    assert outcome.outputs == [0, 1, 2, 3, 4]
    assert isinstance(outcome.error, ValueError)
    assert str(outcome.error) == "call 5"
    assert "'source'" in notes_of(outcome.error)
    two = drive(PipelineBuilder().add_source(source({5, 6}, 7), on_error="skip"), face)
    assert str(two.error) == "call 5"  # the first of them


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@STUTTERING
def test_contract_12_a_source_that_fails_100_times_in_a_row(source: Any, face: Face) -> None:
    fine = PipelineBuilder().add_source(source(set(range(5, 104)), 110), on_error="skip")
    assert drive(fine, face).result() == [0, 1, 2, 3, 4, 104, 105, 106, 107, 108, 109]
    endless = PipelineBuilder().add_source(source(set(range(5, 10**6)), 10**6), on_error="skip")
    outcome = drive(endless, face)
    assert outcome.outputs == [0, 1, 2, 3, 4]
    assert isinstance(outcome.error, ValueError)
    assert str(outcome.error) == "call 5"
    assert outcome.statistics.stage("source").failed == 100
    assert outcome.error is not None
    assert "failed 100 times in a row" in notes_of(outcome.error)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@STUTTERING
def test_contract_7_12_a_source_s_budget(source: Any, face: Face) -> None:
    built = PipelineBuilder().add_source(source({2, 4, 6}, 9), max_failures=2)
    outcome = drive(built, face)
    assert outcome.outputs == [0, 1, 3, 5]
    assert isinstance(outcome.error, TooManyFailures)
    assert [record.message for record in outcome.error.records] == ["call 2", "call 4", "call 6"]
    by_build = PipelineBuilder().add_source(source({2, 4, 6}, 9)).pipe(same)
    assert drive(by_build.build(max_failures=3), face).result() == [0, 1, 3, 5, 7, 8]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_c5_the_report_of_many_failures_names_the_failing_stage_only(
    face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    def innermost(n: int) -> int:
        raise ValueError(f"bad {n}")

    def deeper(n: int) -> int:
        return innermost(n)

    def deep(n: int) -> int:
        return deeper(n)

    def op(n: int) -> int:
        return deep(n) if n % 2 else n

    built = (
        numbers(60)
        .pipe(same, name="above")
        .pipe(op, name="op", max_failures=2)
        .pipe(same, name="below")
    )
    with caplog.at_level(logging.DEBUG, "spdl_async"):
        outcome = drive(built, face)
    assert isinstance(outcome.error, TooManyFailures)
    assert {record.stage for record in outcome.error.records} == {"op"}
    assert {record.stage for record in outcome.failures} == {"op"}
    for function in ("in op", "in deep", "in deeper", "in innermost"):
        assert function in outcome.error.records[0].traceback
    assert "bad 5" in str(outcome.error)
    assert not [r for r in caplog.records if "above" in r.getMessage() or "below" in r.getMessage()]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_7_records_are_limited_but_counts_are_not(face: Face) -> None:
    work = Work(errors=failing_on(*range(1, 1500)))
    outcome = drive(numbers(1500).pipe(work.call, concurrency=4, on_error="skip"), face)
    assert outcome.result() == [0]
    assert len(outcome.failures) == 1000
    assert outcome.statistics.failures == 1499


WRONG: dict[str, dict[str, Any]] = {
    "word": {"on_error": "ignore"},
    "raise-with-budget": {"on_error": "raise", "max_failures": 3},
    "negative": {"max_failures": -1},
    "bool": {"max_failures": True},
    "float": {"max_failures": 0.05},
    "above-one": {"max_failures": Fraction(3, 2)},
    "negative-fraction": {"max_failures": Fraction(-1, 2)},
    "text": {"max_failures": "3"},
}


@pytest.mark.parametrize("verb", ["pipe", "filter", "expand", "add_source", "build"])
@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG.keys())
def test_contract_7_wrong_options_are_errors_that_name_the_place(
    options: dict[str, Any], verb: str
) -> None:
    word = "on_error" if "on_error" in options else "max_failures"
    with pytest.raises(BuildError, match=rf"{verb}.*{word}"):
        if verb == "add_source":
            PipelineBuilder().add_source(range(3), **options).build()
        elif verb == "build":
            numbers(3).build(**options)
        else:
            getattr(numbers(3), verb)(same, **options).build()
