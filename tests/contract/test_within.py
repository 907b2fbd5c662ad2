"""aggregate(within=): a batch leaves when its first item has waited so long. Time is virtual."""

from __future__ import annotations

import asyncio
import operator
import time
from asyncio import TimerHandle
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextvars import Context
from typing import Any

import pytest
from faces import ENGINE_FACES, FACES, Face, Gate, drive
from kinds import kind_id

from spdl_async import BatchBy, BucketBy, BuildError, Pipeline, PipelineBuilder
from spdl_async.testing import VirtualClockLoop, run_virtual

pytestmark = pytest.mark.timeout(30)


def at_times(*events: tuple[float, Any]) -> Callable[[], AsyncIterator[Any]]:
    """Return a source that gives each value at its time; an exception is raised then."""

    async def read() -> AsyncIterator[Any]:
        loop = asyncio.get_running_loop()
        for when, value in events:
            await asyncio.sleep(when - loop.time())
            if isinstance(value, Exception):
                raise value
            if value is not None:
                yield value

    return read


def timed(builder: PipelineBuilder[Any]) -> list[tuple[float, Any]]:
    """Run it on a virtual clock; return the time and value of each output."""

    async def main() -> list[tuple[float, Any]]:
        loop = asyncio.get_running_loop()
        async with builder.build().run(loop="caller") as run:
            return [(round(loop.time(), 6), value) async for value in run]

    return run_virtual(main())


def source(*events: tuple[float, Any]) -> PipelineBuilder[Any]:
    return PipelineBuilder().add_source(at_times(*events))


SLOW = ((1, "a"), (2, "b"), (3, "c"), (20, "d"), (21, "e"), (50, None))


def test_a_batch_leaves_when_its_first_item_has_waited() -> None:
    assert timed(source(*SLOW).aggregate(10, within=5)) == [(6, ["a", "b", "c"]), (25, ["d", "e"])]


def test_a_full_batch_does_not_wait_and_the_time_of_the_next_begins_with_its_own_first_item() -> (
    None
):
    assert timed(source(*SLOW).aggregate(2, within=5)) == [
        (2, ["a", "b"]),
        (8, ["c"]),
        (21, ["d", "e"]),
    ]


def test_the_last_batch_leaves_with_the_end() -> None:
    assert timed(source((1, "a"), (2, "b")).aggregate(10, within=5)) == [(2, ["a", "b"])]


def test_drop_last_drops_the_last_batch_only() -> None:
    builder = source((1, "a"), (20, "b"), (21, "c"), (22, "d"), (23, None))
    assert timed(builder.aggregate(2, within=5, drop_last=True)) == [(6, ["a"]), (21, ["b", "c"])]


def test_a_batch_that_is_due_while_there_is_no_room_leaves_when_there_is() -> None:
    async def main() -> list[list[int]]:
        events = [(float(n), n) for n in range(1, 9)]
        builder = PipelineBuilder().add_source(at_times(*events, (100.0, None)))
        pipeline = builder.aggregate(300, within=1.5).add_sink(1).build()
        got = []
        async with pipeline.run(loop="caller", stall_warning=None) as run:
            async for batch in run:
                got.append(batch)
                await asyncio.sleep(60 if len(got) == 1 else 0)
            bound = {b.place: b.elements for b in pipeline.describe().bounds}["aggregate(300)"]
            assert bound is not None
            assert run.statistics().stage("aggregate(300)").peak_queue <= bound
        return got

    batches = run_virtual(main())
    assert [n for batch in batches for n in batch] == list(range(1, 9))
    # One waits in the sink, one beside it, and the third was due long before there was room.
    assert batches[:4] == [[1, 2], [3, 4], [5, 6], [7]]


def test_a_failure_above_leaves_the_open_batch_unfinished() -> None:
    error = ValueError("bad")
    builder = source((1, "a"), (10, "b"), (11, error)).aggregate(10, within=5)
    outputs: list[tuple[float, Any]] = []

    async def main() -> None:
        async with builder.build().run(loop="caller") as run:
            async for batch in run:
                outputs.append((round(asyncio.get_running_loop().time(), 6), batch))

    with pytest.raises(ValueError) as raised:
        run_virtual(main())
    assert raised.value is error
    assert outputs == [(6, ["a"])]


class CountingLoop(VirtualClockLoop):
    """Writes down when timers are armed for."""

    def __init__(self) -> None:
        super().__init__()
        self.armed: list[float] = []

    def call_at(  # type: ignore[override]  # a narrower signature is enough here
        self, when: float, callback: Any, *arguments: Any, context: Context | None = None
    ) -> TimerHandle:
        self.armed.append(when)
        return super().call_at(when, callback, *arguments, context=context)


def timers(pipeline: Pipeline[Any]) -> list[float]:
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)

        async def main() -> None:
            async with pipeline.run(loop="caller", stall_warning=None) as run:
                async for _ in run:
                    pass
                armed.extend(loop.armed)  # leaving the block arms one for its own time limit

        armed: list[float] = []
        runner.run(main())
        return armed


def test_no_timer_is_armed_without_within_and_few_with_it() -> None:
    async def quick() -> AsyncIterator[int]:
        for n in range(1000):
            yield n

    builder = PipelineBuilder().add_source(quick)
    assert timers(builder.aggregate(7).build()) == []
    assert len(timers(builder.aggregate(7, within=60).build())) == 1  # one, not one a batch


class Runs:
    """Gathers until a value ends with a dot; counts its flushes."""

    def __init__(self) -> None:
        self.held: list[str] = []

    def accumulate(self, item: str) -> Iterable[list[str]]:
        if item == "bad":
            raise ValueError(item)
        self.held.append(item)
        return self.flush() if item.endswith(".") else ()

    def flush(self) -> Iterator[list[str]]:
        held, self.held = self.held, []
        if held:
            yield held


def test_an_aggregator_is_flushed_when_an_item_has_waited() -> None:
    events = ((1, "a"), (2, "b."), (3, "c"), (20, "d"), (21, "e."), (40, None))
    assert timed(source(*events).aggregate(Runs, within=5)) == [
        (2, ["a", "b."]),
        (7, ["c"]),
        (21, ["d", "e."]),
    ]
    assert timed(source(*SLOW).aggregate(Runs(), within=5)) == [
        (6, ["a", "b", "c"]),
        (25, ["d", "e"]),
    ]


def test_an_aggregators_last_flush_is_left_out_with_drop_last_but_not_those_by_time() -> None:
    events = ((1, "a"), (20, "b"), (21, None))
    assert timed(source(*events).aggregate(Runs, within=5)) == [(6, ["a"]), (21, ["b"])]
    assert timed(source(*events).aggregate(Runs, within=5, drop_last=True)) == [(6, ["a"])]


class Holder(Runs):
    """Emits what it holds when the next item comes, and holds that."""

    def accumulate(self, item: str) -> Iterable[list[str]]:
        out = list(self.flush())
        self.held.append(item)
        return out


def test_what_an_aggregator_holds_back_at_an_output_leaves_in_time() -> None:
    assert timed(source((1, "a"), (2, "b"), (30, None)).aggregate(Holder, within=5)) == [
        (2, ["a"]),
        (7, ["b"]),
    ]


def test_a_skipped_failure_of_an_aggregator_leaves_the_time_of_the_others_alone() -> None:
    events = ((1, "a"), (3, "bad"), (30, None))
    assert timed(source(*events).aggregate(Runs, within=5, on_error="skip")) == [(6, ["a"])]
    assert timed(source((1, "bad"), (2, "a"), (9, None)).aggregate(
        Runs, within=5, on_error="skip"
    )) == [(7, ["a"])]  # fmt: skip


def test_batches_by_cost_leave_in_time() -> None:
    events = ((1, "aaa"), (2, "bbb"), (3, "c"), (30, None))
    assert timed(source(*events).aggregate(BatchBy(len, 5), within=4)) == [
        (2, ["aaa"]),
        (6, ["bbb", "c"]),
    ]


def test_a_rare_bucket_is_not_forgotten_while_others_fill() -> None:
    events = [(1.0, "long one")] + [(2.0 + n, "s") for n in range(10)]
    by_length = BucketBy(len, [4], batch_size=2)
    got = timed(source(*events, (40.0, None)).aggregate(by_length, within=6.5))
    assert (7.5, ["long one"]) in got
    assert [batch for when, batch in got if when < 7.5] == [["s", "s"]] * 3


# On real clocks


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
@pytest.mark.parametrize("gather", [10, Runs], ids=["list", "aggregator"])
def test_a_short_batch_comes_although_the_source_gives_no_more(gather: Any, face: Face) -> None:
    """The source goes on when the first batch has arrived, so the test hangs where none comes."""
    arrived = Gate()

    def read() -> Iterator[str]:
        yield "a"
        yield "b"
        arrived.wait()
        yield "c"

    builder = PipelineBuilder().add_source(read).aggregate(gather, within=0.02)
    with arrived.opened_at_end():
        batches = drive(builder, face, on_output=lambda _: arrived.open()).result()
    assert [item for batch in batches for item in batch] == ["a", "b", "c"]
    assert len(batches) >= 2


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("gather", [4, Runs, BatchBy(len, 3)], ids=["list", "runs", "cost"])
def test_contract_1_with_a_long_time_within_changes_nothing(gather: Any, face: Face) -> None:
    builder = PipelineBuilder().add_source([f"{n % 7}." if n % 5 else "x" for n in range(100)])
    plain = drive(builder.aggregate(gather), face).result()
    outcome = drive(builder.aggregate(gather, within=3600), face)
    assert outcome.result() == plain
    assert outcome.statistics.in_flight == 0
    last = drive(builder.aggregate(gather, within=3600, drop_last=True), face).result()
    assert last == drive(builder.aggregate(gather, drop_last=True), face).result()


def hurried(words: list[str], error: Exception | None = None) -> Callable[[], Iterator[str]]:
    """Return a source that waits for a moment now and then, and may fail at its end."""

    def read() -> Iterator[str]:
        for number, word in enumerate(words):
            if number % 17 == 5:
                time.sleep(0.001)
            yield word
        if error is not None:
            raise error

    return read


WORDS = [f"{n}." if n % 5 == 0 else "x" * (n % 4 + 1) for n in range(200)]
GATHERERS: dict[str, Any] = {
    "list": 3,
    "long-list": 300,
    "runs": Runs,
    "holder": Holder,
    "cost": BatchBy(len, 7),
    "length": BucketBy(len, [1, 2], batch_size=4),
}


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("within", [1e-7, 0.0005])
@pytest.mark.parametrize("name", GATHERERS)
def test_contract_1_batches_in_a_hurry_lose_and_double_nothing(
    name: str, within: float, face: Face
) -> None:
    def gathered(source: Any) -> PipelineBuilder[Any]:
        builder: PipelineBuilder[Any] = PipelineBuilder().add_source(source)
        return builder.aggregate(GATHERERS[name], within=within)

    outcome = drive(gathered(hurried(WORDS)).pipe(list, concurrency=2), face)
    items = [word for batch in outcome.result() for word in batch]
    assert items == WORDS if name != "length" else sorted(items) == sorted(WORDS)
    assert all(outcome.outputs)
    assert outcome.statistics.in_flight == 0
    error = ValueError("bad")
    failed = drive(gathered(hurried(WORDS, error)), face)
    assert failed.error is error
    some = [word for batch in failed.outputs for word in batch]
    if name == "length":
        assert not Counter(some) - Counter(WORDS)
    else:
        assert some == WORDS[: len(some)]


@pytest.mark.parametrize("gather", [10, Runs], ids=["list", "aggregator"])
def test_inline_a_batch_that_is_due_leaves_when_the_next_item_comes(
    gather: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("spdl_async._runtime.inline_shapes.monotonic", lambda: now)

    def read() -> Iterator[str]:
        nonlocal now
        for when, value in SLOW:
            now = when
            if value is not None:
                yield value

    builder = PipelineBuilder().add_source(read).aggregate(gather, within=5)
    assert drive(builder, Face.INLINE).result() == [["a", "b", "c"], ["d", "e"]]


# At build time


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), True, "1"])
@pytest.mark.parametrize("gather", [4, Runs], ids=["list", "aggregator"])
def test_within_is_checked_at_the_verb(gather: Any, bad: Any) -> None:
    builder = PipelineBuilder().add_source(range(3))
    with pytest.raises(BuildError, match="within is in seconds, a finite number above 0"):
        builder.aggregate(gather, within=bad)
    builder.build()


def test_len_is_unknown_with_within_and_describe_says_it() -> None:
    pipeline = PipelineBuilder().add_source(range(9)).aggregate(4, within=1.5).build()
    with pytest.raises(TypeError, match=r"short batches after 1\.5 s"):
        len(pipeline)
    assert operator.length_hint(pipeline, 7) == 7
    assert "short ones after 1.5 s" in str(pipeline.describe())
    with_aggregator = PipelineBuilder().add_source(["a"]).aggregate(Runs, within=2).build()
    assert "short ones after 2 s" in str(with_aggregator.describe())
