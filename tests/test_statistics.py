"""The sentence on the bottleneck, from made-up numbers; what a run counts is in tests/contract."""

from __future__ import annotations

import pytest

from spdl_async import statistics
from spdl_async.statistics import RunStatistics, StageStatistics


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_cores", lambda: 8)


def stage(name: str, kind: str, *, concurrency: int = 1, busy: float = 0.0) -> StageStatistics:
    return StageStatistics(
        name=name,
        kind=kind,
        concurrency=concurrency,
        items_in=100,
        items_out=100,
        dropped=0,
        failed=0,
        busy=busy,
        waiting_input=0.0,
        waiting_room=0.0,
        queue=0,
        peak_queue=1,
    )


def run(
    *stages: StageStatistics, elapsed: float = 10.0, waiting: float = 9.0, threads: int = 8
) -> RunStatistics:
    return RunStatistics(
        name="train",
        epoch=0,
        elapsed=elapsed,
        stages=(stage("source", "source"), *stages),
        delivered=100,
        consumer_waiting=waiting,
        in_flight=0,
        peak_in_flight=10,
        failures=0,
        threads=threads,
    )


def test_a_stage_that_uses_all_its_calls_may_want_more() -> None:
    said = run(stage("decode", "thread", concurrency=2, busy=19.0)).bottleneck()
    assert said == (
        "Stage 'decode' is the bottleneck: 1.9 of 2 calls running; a higher concurrency helps where "
        "there are idle cores or it waits for I/O."
    )


def test_a_stage_with_idle_calls_is_not_told_to_take_more() -> None:
    said = run(stage("decode", "thread", concurrency=2, busy=11.0)).bottleneck()
    assert said.startswith("Stage 'decode' is the bottleneck: 1.1 of 2 calls running; it does not")
    assert "higher" not in said


def test_a_busy_consumer_is_no_slow_pipeline() -> None:
    said = run(stage("decode", "thread"), waiting=0.5).bottleneck()
    assert said == (
        "The consumer (your loop) is the bottleneck: results wait for it; it waits 5.00 ms for one, "
        "on average."
    )


def test_a_short_run_says_little() -> None:
    decode = stage("decode", "thread", concurrency=2, busy=0.19)
    assert "too short" in run(decode, elapsed=0.1, waiting=0.09).bottleneck()
    assert "too short" not in run(decode, elapsed=0.2, waiting=0.19).bottleneck()
