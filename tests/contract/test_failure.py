"""Contract 6 and 10: what a failure does. Scenarios B1, C1, C3, L16."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import urllib.error
from collections.abc import AsyncGenerator, Callable, Generator
from email.message import Message
from typing import Any

import pytest
from faces import ENGINE_FACES, FACES, Crowd, Face, Gate, drive, functions_in, notes_of
from kinds import (
    EACH_CASE,
    EACH_ENGINE_CASE,
    ONE_TO_ONE,
    ORDERS,
    Kind,
    Order,
    Work,
    kind_id,
    same,
)

from spdl_async import PipelineBuilder

pytestmark = pytest.mark.timeout(30)


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


def endless() -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(lambda: itertools.count())


@EACH_CASE
def test_contract_6_input_order_gives_exactly_what_came_before(kind: Kind, face: Face) -> None:
    for concurrency, at in [(1, 0), (4, 0), (1, 37), (4, 37), (16, 37)]:
        error = ValueError("bad item")
        work = Work(errors={at: error})
        outcome = drive(kind.add(endless(), work, concurrency=concurrency), face)
        assert outcome.outputs == list(range(at))
        assert outcome.error is error
        assert functions_in(error)[-1] == "finish"  # the op's own frame
        assert "'work'" in notes_of(error)
        assert f"item {at}" in notes_of(error)
        first = outcome.failures[0]
        assert (first.stage, first.index, first.error) == ("work", at, "ValueError")
        assert first.message == "bad item"
        assert first.where.rpartition(":")[0].endswith("kinds.py")
        assert "finish" in first.traceback
        assert first.source == str(at)


@EACH_CASE
def test_contract_6_completion_order_gives_what_had_finished(kind: Kind, face: Face) -> None:
    error = ValueError("bad item")
    work = Work(errors={37: error})
    built = kind.add(endless(), work, concurrency=4, output_order="completion")
    outcome = drive(built, face)
    assert outcome.error is error
    assert "item 37" in notes_of(error)
    assert len(set(outcome.outputs)) == len(outcome.outputs)
    assert set(outcome.outputs) <= set(work.done)
    assert 37 not in outcome.outputs


@EACH_CASE
def test_contract_6_no_partial_batch_is_flushed(kind: Kind, face: Face) -> None:
    class Lists:
        def __init__(self) -> None:
            self.held: list[Any] = []

        def accumulate(self, item: list[int]) -> Generator[list[Any], None, None]:
            self.held.append(item)
            if len(self.held) == 2:
                yield self.held
                self.held = []

        def flush(self) -> list[list[Any]]:
            raise AssertionError("flushed after a failure")

    def triples(within: float | None = None) -> PipelineBuilder[list[int]]:
        work = Work(errors={13: error})
        return kind.add(numbers(100), work, concurrency=4).aggregate(3, within=within)

    error = ValueError()
    whole = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    for built, expected in (
        (triples(), whole),
        (triples(within=600), whole),
        (triples().aggregate(Lists), [whole[:2], whole[2:]]),
    ):
        outcome = drive(built, face)
        assert outcome.error is error
        assert outcome.outputs == expected


def waiting_source(closed: Gate, *items: Any) -> PipelineBuilder[Any]:
    """Give some items, and then wait until it is cancelled, which it tells."""

    async def source() -> AsyncGenerator[Any, None]:
        for item in items:
            yield item
        try:
            await asyncio.Event().wait()
        finally:
            closed.open()

    return PipelineBuilder().add_source(source)


@EACH_ENGINE_CASE
def test_contract_6_upstream_is_cancelled_at_once(kind: Kind, face: Face) -> None:
    """Item 1 has failed; item 0, before it, goes on until the source has been cancelled."""
    closed, error = Gate(), ValueError("bad item")
    work = Work(errors={1: error}, gates={0: closed})
    outcome = drive(kind.add(waiting_source(closed, 0, 1), work, concurrency=2), face)
    assert outcome.outputs == [0]
    assert outcome.error is error


@pytest.mark.parametrize("face", [Face.SYNC, Face.OWN], ids=kind_id)
def test_contract_6_upstream_of_disaggregate_is_cancelled_at_once(face: Face) -> None:
    """Before the consumer, who has got the error, leaves."""
    closed = Gate()
    outcome = drive(waiting_source(closed, [1, 2], 3).disaggregate(), face, on_end=closed.wait)
    assert outcome.outputs == [1, 2]
    assert isinstance(outcome.error, TypeError)


@EACH_ENGINE_CASE
def test_contract_6_failures_after_the_first_are_listed(kind: Kind, face: Face) -> None:
    """Items 2 and 1 have both failed before item 0 is through: the consumer gets item 1's error."""
    together, both_failed = Crowd(3), Gate()
    errors = {1: ValueError("one"), 2: KeyError("two")}
    failing: set[int] = set()

    class Staged(Work):
        def finish(self, item: int) -> int:
            failing.add(item)
            if failing >= {1, 2}:
                both_failed.open()
            return super().finish(item)

        def call(self, item: int) -> int:
            with self.crowd:
                together.full.wait()
                if item == 0:
                    both_failed.wait()
                return self.finish(item)

        async def acall(self, item: int) -> int:
            with self.crowd:
                await together.full.passed()
                if item == 0:
                    await both_failed.passed()
                return self.finish(item)

    work = Staged(errors=errors, crowd=together)
    outcome = drive(kind.add(numbers(50), work, concurrency=3), face)
    assert outcome.outputs == [0]
    assert outcome.error is errors[1]
    listed = [(record.index, record.error) for record in outcome.failures]
    assert listed[0] == (1, "ValueError")
    assert (2, "KeyError") in listed


@EACH_ENGINE_CASE
def test_contract_6_a_failure_that_the_consumer_never_reached_is_listed(
    kind: Kind, face: Face
) -> None:
    failed = Gate()

    class Watched(Work):
        def finish(self, item: int) -> int:
            try:
                return super().finish(item)
            except ValueError:
                failed.open()
                raise

    work = Watched(errors={5: ValueError("late")})
    built = kind.add(numbers(50), work, concurrency=4).add_sink(8)
    outcome = drive(built, face, take=1, hold=failed)
    assert outcome.outputs == [0]
    assert outcome.error is None
    assert [(r.stage, r.index, r.message) for r in outcome.failures] == [("work", 5, "late")]


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
@pytest.mark.parametrize("position", range(4))
def test_b1_a_failure_in_any_stage_while_everything_above_is_full(
    position: int, face: Face
) -> None:
    """The source is endless and all stages above the failing one are blocked by the slow sink."""
    error = RuntimeError("here")
    pulled = Crowd()

    def source() -> Generator[int, None, None]:
        for n in itertools.count():
            with pulled:
                yield n

    async def on_loop(n: int) -> int:
        return fail(n, 1)

    def fail(n: int, stage: int) -> int:
        if stage == position and n == 200:
            raise error
        return n

    def each(n: int) -> Generator[int, None, None]:
        yield fail(n, 3)

    built = (
        PipelineBuilder()
        .add_source(source)
        .pipe(lambda n: fail(n, 0), concurrency=4, name="s0")
        .pipe(on_loop, concurrency=4, name="s1")
        .pipe(lambda n: fail(n, 2), name="s2")
        .pipe(each, concurrency=2, name="s3")
        .add_sink(1)
    )
    outcome = drive(built, face)
    assert outcome.outputs == list(range(200))
    assert outcome.error is error
    assert [record.stage for record in outcome.failures] == [f"s{position}"]
    assert pulled.ended <= 200 + 4 * 300  # upstream was stopped; it did not go on and on


@EACH_ENGINE_CASE
def test_b1_a_failure_with_a_full_sink_and_no_consumer(kind: Kind, face: Face) -> None:
    failed = Gate()

    class Watched(Work):
        def finish(self, item: int) -> int:
            if item in self.errors:
                failed.open()
            return super().finish(item)

    work = Watched(errors={4: ValueError("unread")})
    built = kind.add(endless(), work, concurrency=8).add_sink(1)
    outcome = drive(built, face, take=1, hold=failed)
    assert outcome.outputs == [0]  # and the block was left, without a hang


class KeywordOnlyError(Exception):
    def __init__(self, *, a: int, b: str) -> None:
        super().__init__(f"{a}{b}")
        self.a, self.b = a, b


class Bare(BaseException):
    """Not an Exception."""


def caused() -> Exception:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as outer:
        outer.add_note("the user's note")
        return outer


EXCEPTIONS: dict[str, Callable[[], BaseException]] = {
    "keyword-only": lambda: KeywordOnlyError(a=1, b="x"),
    "http": lambda: urllib.error.HTTPError("http://x", 404, "no", Message(), None),
    "process": lambda: subprocess.CalledProcessError(2, ["ls"]),
    "key": lambda: KeyError("x\ny"),
    "caused": caused,
    "group": lambda: ExceptionGroup("several", [ValueError(1), TypeError(2)]),
    "base": Bare,
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "timeout": TimeoutError,
    "index": lambda: IndexError(7),
}


@EACH_CASE
def test_c1_contract_10_the_same_object_whatever_its_type(kind: Kind, face: Face) -> None:
    for make in EXCEPTIONS.values():
        error = make()
        cause, context = error.__cause__, error.__context__
        work = Work(errors={2: error})
        outcome = drive(kind.add(numbers(9), work, concurrency=2), face)
        assert outcome.error is error, make
        assert outcome.outputs == [0, 1]
        assert (error.__cause__, error.__context__) == (cause, context)
        assert "finish" in functions_in(error)
        assert "'work'" in notes_of(error)
        if cause is not None:
            assert error.__notes__[0] == "the user's note"


PROTOCOL = (StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError)


@EACH_CASE
def test_contract_10_c3_a_protocol_error_of_user_code_is_a_failure(kind: Kind, face: Face) -> None:
    for order, protocol in itertools.product(ORDERS, PROTOCOL):
        error = protocol("mine")
        work = Work(errors={3: error})
        built = kind.add(numbers(9), work, concurrency=2, output_order=order)
        outcome = drive(built, face)
        assert type(outcome.error) is RuntimeError, (protocol, outcome.error)
        assert outcome.error.__cause__ is error
        assert "item 3" in notes_of(outcome.error)
        if order == "input":
            assert outcome.outputs == [0, 1, 2]


@EACH_CASE
def test_contract_10_a_protocol_error_can_be_skipped(kind: Kind, face: Face) -> None:
    for protocol in PROTOCOL:
        work = Work(errors={3: protocol("mine")})
        built = kind.add(numbers(9), work, concurrency=2, on_error="skip")
        outcome = drive(built, face)
        assert outcome.result() == [0, 1, 2, 4, 5, 6, 7, 8]
        assert [record.index for record in outcome.failures] == [3]


@pytest.mark.parametrize("order", ORDERS)
@EACH_CASE
def test_contract_10_an_interrupt_is_never_skipped(kind: Kind, order: Order, face: Face) -> None:
    for error in (KeyboardInterrupt(), SystemExit(1)):
        work = Work(errors={3: error})
        built = kind.add(numbers(9), work, concurrency=2, output_order=order, on_error="skip")
        outcome = drive(built, face)
        assert outcome.error is error


@pytest.mark.parametrize("face", [f for f in FACES if f.is_async], ids=kind_id)
def test_contract_10_an_op_that_cancels_its_own_task_does_not_hang(face: Face) -> None:
    async def op(n: int) -> int:
        if n == 3:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return n

    outcome = drive(numbers(20).pipe(op, concurrency=2), face)
    assert outcome.outputs == [0, 1, 2]
    assert isinstance(outcome.error, RuntimeError)
    assert isinstance(outcome.error.__cause__, asyncio.CancelledError)


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
def test_contract_10_a_task_that_an_op_has_cancelled_can_still_be_stopped(face: Face) -> None:
    """Its failure is skipped; a later item waits for ever, until the run is left."""
    waits, stopped = Gate(), Gate()

    async def op(n: int) -> int:
        if n == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        if n == 2:
            waits.open()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.open()
        return n

    outcome = drive(numbers(9).pipe(op, on_error="skip"), face, take=1, hold=waits)
    assert outcome.outputs == [0]
    assert stopped.is_open


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_10_awaiting_a_cancelled_task_is_a_failure(face: Face) -> None:
    async def op(n: int) -> int:
        task = asyncio.ensure_future(asyncio.sleep(60))
        if n == 3:
            task.cancel()
            await task
        task.cancel()
        await asyncio.wait([task])
        return n

    outcome = drive(numbers(20).pipe(op, concurrency=2), face)
    assert outcome.outputs == [0, 1, 2]
    assert isinstance(outcome.error, RuntimeError)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_l16_one_failure_is_the_bare_exception(face: Face) -> None:
    work = Work(errors={3: ValueError("bare")})
    built = numbers(9).pipe(work.acall, concurrency=4).pipe(same, concurrency=2)
    with pytest.raises(ValueError, match="bare"):  # no group
        raise drive(built, face).error or AssertionError


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_6_one_error_object_raised_for_several_items(face: Face) -> None:
    shared = ValueError("shared")
    work = Work(errors=dict.fromkeys(range(2, 9), shared))
    for _ in range(2):
        outcome = drive(numbers(9).pipe(work.call, concurrency=4), face)
        assert outcome.outputs == [0, 1]
        assert outcome.error is shared


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_6_the_note_shows_a_small_source_item_or_its_type(face: Face) -> None:
    def op(item: Any) -> Any:
        raise ValueError

    small = drive(PipelineBuilder().add_source([("a.jpg", 3)]).pipe(op), face)
    large = drive(PipelineBuilder().add_source([{"image": bytes(5000)}]).pipe(op), face)
    text = drive(PipelineBuilder().add_source(["x" * 100_000]).pipe(op), face)
    assert small.error is not None
    assert "a.jpg" in notes_of(small.error)
    assert large.error is not None
    assert "dict" in notes_of(large.error)
    assert len(notes_of(large.error)) < 500
    assert text.error is not None
    assert len(notes_of(text.error)) < 500


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
@pytest.mark.parametrize("kind", ONE_TO_ONE[:4], ids=kind_id)
def test_contract_6_trouble_in_the_stop_is_a_note_on_the_body_s_exception(
    kind: Kind, face: Face
) -> None:
    """A call still runs when ``shutdown_timeout`` is over; the body's own error stays the error."""
    stuck, crowd, mine = Gate(), Crowd(), LookupError("the body's")
    built = kind.add(numbers(2), Work(gates={1: stuck}, crowd=crowd))
    with stuck.opened_at_end(), pytest.raises(LookupError) as caught:
        drive(
            built,
            face,
            take=1,
            on_output=lambda _: crowd.wait_started(2),
            shutdown_timeout=0.0,
            leave_with=mine,
        )
    assert caught.value is mine
    assert "did not stop" in notes_of(mine)
    assert "'work'" in notes_of(mine)
    crowd.wait_ended(2)
