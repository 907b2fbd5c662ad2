"""A pass that delivers nothing says why, where there was something to deliver; and what is left is 0."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Self

import pytest
from faces import FACES, Face, drive
from kinds import kind_id

from spdl_async import DROP, Merge, PipelineBuilder, PipelineRun, SyncPipelineRun
from spdl_async._runtime.bridge import Handover
from spdl_async._runtime.ticket import Ledger
from spdl_async.statistics import RunStatistics

pytestmark = pytest.mark.timeout(30)
each_face = pytest.mark.parametrize("face", FACES, ids=kind_id)


def none_of(item: int) -> Iterator[int]:
    yield from ()


class Swallow:
    """An aggregator that gives nothing back."""

    def accumulate(self, item: int) -> Iterable[int]:
        return ()

    def flush(self) -> Iterable[int]:
        return ()


def fail_on_even(item: int) -> int:
    if item % 2:
        return item
    raise ValueError(item)


def gone(branch: PipelineBuilder[int]) -> PipelineBuilder[int]:
    return branch.pipe(lambda n: DROP, name="drop")


def of(count: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(count))


REASONS: dict[str, tuple[PipelineBuilder[Any], str]] = {
    "a short last batch": (
        of(5).aggregate(8, drop_last=True, name="batch"),
        "5 items were read, none was delivered: stage 'batch' dropped 5 (the last batch was not full).",
    ),
    "filtered": (
        of(1).filter(bool, name="keep"),
        "1 item was read, none was delivered: stage 'keep' dropped 1.",
    ),
    "the one that dropped most comes first": (
        of(50).filter(lambda n: n < 4, name="few").aggregate(8, drop_last=True, name="b"),
        (
            "50 items were read, none was delivered: stage 'few' dropped 46; stage 'b' dropped 4 "
            "(the last batch was not full)."
        ),
    ),
    "failed and dropped": (
        of(10)
        .pipe(fail_on_even, on_error="skip", name="odd")
        .filter(lambda n: n % 2 == 0, name="even"),
        "10 items were read, none was delivered: stage 'odd' failed on 5; stage 'even' dropped 5.",
    ),
    "fused": (
        of(6).filter(bool, name="a", concurrency=2).pipe(lambda n: DROP, concurrency=2, name="b"),
        "6 items were read, none was delivered: stage 'b' dropped 5; stage 'a' dropped 1.",
    ),
    "a generator of nothing": (
        of(3).pipe(none_of),
        "3 items were read, none was delivered: stage 'none_of' made nothing of the 3 that it got.",
    ),
    "an aggregator of nothing": (
        of(3).aggregate(Swallow, name="swallow"),
        "3 items were read, none was delivered: stage 'swallow' made nothing of the 3 that it got.",
    ),
    "a branch that drops": (
        of(4).route(lambda n: n % 2, lambda b: b.filter(lambda n: n > 9, name="few"), gone),
        "4 items were read, none was delivered: stage 'few' dropped 2; stage 'drop' dropped 2.",
    ),
    "behind a merge": (
        PipelineBuilder().add_source(Merge(of(2), of(1))).filter(lambda n: n > 9, name="few"),
        "3 items were read, none was delivered: stage 'few' dropped 3.",
    ),
    "a source of DROP": (
        PipelineBuilder().add_source(lambda: iter([DROP, DROP])),
        "2 items were read, none was delivered: stage 'source' dropped 2.",
    ),
}


@each_face
@pytest.mark.parametrize("reason", REASONS)
def test_what_became_of_the_items_is_said_and_logged_once(
    face: Face, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    builder, text = REASONS[reason]
    with caplog.at_level(logging.WARNING, "spdl_async"):
        outcome = drive(builder.build(name="p"), face)
    assert outcome.result() == []
    assert outcome.statistics.ended
    assert outcome.statistics.bottleneck() == text
    assert [record.message for record in caplog.records] == [f"pipeline 'p', epoch 0: {text}"]


@each_face
def test_an_empty_source_is_nothing_to_warn_of(
    face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = drive(of(0).aggregate(8, drop_last=True), face)
    assert outcome.result() == []
    assert outcome.statistics.bottleneck() == "The source had no items."
    assert not caplog.records


@each_face
def test_one_result_is_enough(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    outcome = drive(of(50).filter(lambda n: n == 49), face)
    assert outcome.result() == [49]
    assert outcome.statistics.ended
    assert not caplog.records


@each_face
def test_a_branch_without_results_is_no_pass_without(
    face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever branch stands last in the table."""
    for branches in ((gone, lambda b: b), (lambda b: b, gone)):
        outcome = drive(of(4).route(lambda n: n % 2, *branches), face)
        assert len(outcome.result()) == 2
    assert not caplog.records


@each_face
def test_a_pass_that_fails_or_is_left_has_not_ended(
    face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    failed = drive(of(3).pipe(fail_on_even), face)
    assert isinstance(failed.error, ValueError)
    left = drive(of(10).filter(bool), face, take=0)
    for outcome in (failed, left):
        assert not outcome.statistics.ended
        assert outcome.statistics.bottleneck().startswith("Nothing was delivered,")
    assert not caplog.records


class Owning:
    """An op that is entered and left by the run, and fails."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def __call__(self, item: int) -> int:
        raise ValueError(item)


@each_face
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_failure_of_an_op_with_a_lifespan_is_raised_and_not_logged_too(
    face: Face, concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its step ends the data a second time, when the op has been left; the pass has failed before."""
    failed = drive(of(3).pipe(Owning(), concurrency=concurrency), face)
    assert isinstance(failed.error, ValueError)
    assert not failed.statistics.ended
    assert not caplog.records


Runs = list[PipelineRun[Any] | SyncPipelineRun[Any]]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The runs that were started, for callbacks that are not given theirs."""
    started: Runs = []

    def watch(kind: Any) -> None:
        start = kind._start

        def note_and_start(self: Any) -> Any:
            started.append(self)
            return start(self)

        monkeypatch.setattr(kind, "_start", note_and_start)

    watch(PipelineRun)
    watch(SyncPipelineRun)
    return started


def at_its_end(builder: PipelineBuilder[Any], face: Face, runs: Runs) -> RunStatistics:
    """Return the statistics as a consumer sees them that has seen the end, still in the run's block."""
    seen: list[RunStatistics] = []
    drive(builder, face, on_end=lambda: seen.append(runs[-1].statistics()))
    return seen[0]


@each_face
def test_nothing_is_in_flight_once_the_end_was_seen(face: Face, runs: Runs) -> None:
    for _ in range(10):
        statistics = at_its_end(of(98).aggregate(16).pipe(len), face, runs)
        assert statistics.ended
        assert (statistics.delivered, statistics.in_flight) == (7, 0)
        assert [stage.queue for stage in statistics.stages] == [0, 0, 0]


@pytest.mark.parametrize("face", [Face.OWN, Face.SYNC], ids=kind_id)
def test_nothing_is_in_flight_before_the_loop_has_come_round(
    face: Face, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the loop, which alone may account for results before its end, had not yet done so."""
    settle = Handover.settle

    def settle_elsewhere(self: Handover, ledger: Ledger) -> None:
        if threading.get_ident() != self._engine_thread:
            settle(self, ledger)

    monkeypatch.setattr(Handover, "settle", settle_elsewhere)
    assert at_its_end(of(3), face, runs).in_flight == 0
