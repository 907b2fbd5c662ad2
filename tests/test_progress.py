"""The progress bar of the demo, on a clock and a stream of the test's own."""

from __future__ import annotations

import io

import pytest

from spdl_async._demo.progress import (
    ProgressBar,
    Snapshot,
    format_bar,
    format_duration,
    format_line,
    format_speed,
)


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class LatinStream(io.StringIO):
    """A stream that cannot show block characters."""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property in the base at run time too
        return "latin-1"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")


def snapshot(**changes: object) -> Snapshot:
    values: dict[str, object] = {
        "label": "epoch 1/2",
        "batches": 4,
        "total": 16,
        "items": 128,
        "unit": None,
        "items_per_s": 64.0,
        "seconds_left": 6.0,
    }
    return Snapshot(**(values | changes))  # type: ignore[arg-type]  # built by name


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599.6, "1:00:00"), (90061, "25:01:01")],
)
def test_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("speed", "text"),
    [(None, "? items/s"), (0.04, "0.0 items/s"), (9.96, "10.0 items/s"), (12345, "12,345 items/s")],
)
def test_speed(speed: float | None, text: str) -> None:
    assert format_speed(speed) == text


@pytest.mark.parametrize(
    ("fraction", "bar"), [(0, "░░░░"), (0.5, "██░░"), (0.99, "███░"), (1, "████"), (1.3, "████")]
)
def test_bar_is_full_only_at_the_end_and_never_longer(fraction: float, bar: str) -> None:
    assert format_bar(fraction, 4) == bar


def test_line_says_batches_items_speed_and_time_left() -> None:
    line = format_line(snapshot(), width=120)

    assert (
        line
        == "epoch 1/2  ██████░░░░░░░░░░░░░░░░░░  4/16 batches  128 items  64 items/s  0:06 left"
    )


def test_line_of_a_pipeline_without_a_length_has_no_bar_and_no_time_left() -> None:
    line = format_line(snapshot(total=None, seconds_left=None), width=120)

    assert line == "epoch 1/2  4 batches  128 items  64 items/s"


def test_line_of_what_does_not_come_in_batches() -> None:
    line = format_line(snapshot(unit="photos", total=None, seconds_left=None), width=120)

    assert line == "epoch 1/2  4 photos  64 photos/s"


def test_narrow_line_loses_the_bar_first_and_is_cut_then() -> None:
    assert format_line(snapshot(), width=60) == (
        "epoch 1/2  4/16 batches  128 items  64 items/s  0:06 left"
    )
    assert format_line(snapshot(), width=10) == "epoch 1/2 "


@pytest.mark.usefixtures("wide_terminal")
def test_terminal_line_is_rewritten_and_ends_with_the_summary(clock: Clock) -> None:
    stream = Terminal()
    with ProgressBar("epoch 1/1", total=2, stream=stream, clock=clock) as bar:
        clock.now += 1.0
        bar.update(32)
        clock.now += 1.0
        bar.update(8)
        bar.finish("loss 1.0")

    text = stream.getvalue()
    assert text.count("\n") == 1
    first, second, third, last = [part for part in text.split("\r\x1b[K") if part]
    assert "0/2 batches  0 items  ? items/s" in first
    assert "1/2 batches  32 items  32 items/s  0:01 left" in second
    assert "2/2 batches  40 items  20 items/s  0:00 left" in third
    assert last == "epoch 1/1  2 batches  40 items  20 items/s  in 2.0 s  loss 1.0\n"


@pytest.mark.usefixtures("wide_terminal")
def test_terminal_line_is_not_rewritten_for_every_batch(clock: Clock) -> None:
    stream = Terminal()
    with ProgressBar("x", total=1000, stream=stream, clock=clock) as bar:
        for _ in range(1000):
            clock.now += 0.001
            bar.update(1)

    assert 10 <= stream.getvalue().count("\r") <= 13


def test_a_log_gets_a_line_now_and_then(clock: Clock) -> None:
    stream = io.StringIO()
    with ProgressBar("x", total=10, stream=stream, clock=clock) as bar:
        for _ in range(10):
            clock.now += 0.5
            bar.update(1)

    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines[:-1]] == [
        "█████████░░░░░░░░░░░░░░░",
        "█" * 19 + "░" * 5,
    ]
    assert lines[-1] == "x  10 batches  10 items  2.0 items/s  in 5.0 s"
    assert "\x1b" not in stream.getvalue()


def test_a_dumb_terminal_is_written_as_a_log(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with ProgressBar("x", total=1, stream=stream, clock=clock) as bar:
        bar.update(1)

    assert stream.getvalue() == "x  1 batch  1 item  ? items/s  in 0.0 s\n"


def test_speed_is_that_of_the_last_seconds(clock: Clock) -> None:
    bar = ProgressBar("x", total=1000, stream=io.StringIO(), clock=clock)
    for _ in range(100):
        clock.now += 0.1
        bar.update(10)
    fast = bar.snapshot()
    for _ in range(10):
        clock.now += 1.0
        bar.update(10)
    slow = bar.snapshot()

    assert fast.items_per_s == pytest.approx(100)
    assert fast.seconds_left == pytest.approx(90)
    assert slow.items_per_s == pytest.approx(10)
    assert slow.seconds_left == pytest.approx(890)


def test_more_batches_than_expected_leave_no_negative_time(clock: Clock) -> None:
    bar = ProgressBar("x", total=1, stream=io.StringIO(), clock=clock)
    for _ in range(3):
        clock.now += 1.0
        bar.update(1)

    assert bar.snapshot().seconds_left == 0


@pytest.mark.usefixtures("wide_terminal")
def test_an_error_ends_the_line_without_a_summary(clock: Clock) -> None:
    stream = Terminal()
    with (
        pytest.raises(KeyboardInterrupt),
        ProgressBar("x", total=2, stream=stream, clock=clock) as bar,
    ):
        bar.update(1)
        raise KeyboardInterrupt

    assert stream.getvalue().endswith("? items/s\n")


def test_finish_twice_writes_one_line(clock: Clock) -> None:
    stream = io.StringIO()
    with ProgressBar("x", total=2, stream=stream, clock=clock) as bar:
        bar.finish()

    assert stream.getvalue().count("\n") == 1


def test_summary_of_what_does_not_come_in_batches(clock: Clock) -> None:
    stream = io.StringIO()
    with ProgressBar("making", total=2, unit="photos", stream=stream, clock=clock) as bar:
        clock.now += 1.0
        bar.update(1)

    assert stream.getvalue() == "making  1 photos  1.0 photos/s  in 1.0 s\n"


def test_a_stream_without_block_characters_gets_plain_ones(clock: Clock) -> None:
    stream = LatinStream()
    bar = ProgressBar("x", total=2, stream=stream, live=False, clock=clock)
    clock.now += 3.0
    bar.update(1)

    assert stream.getvalue().startswith("x  ############............  1/2 batches")
