"""Contract 8: ``timeout=``: what is cancelled, what is abandoned, and what a stop waits for. B5."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from faces import ENGINE_FACES, FACES, PATIENCE, Crowd, Face, Gate, drive, notes_of
from kinds import EACH_ENGINE_CASE, ORDERS, Kind, Order, Work, kind_id, same
from test_retry import Aside

from spdl_async import (
    BuildError,
    PipelineBuilder,
    Retry,
    StageTimeout,
    TooManyFailures,
    cancelled,
)
from spdl_async.testing import run_virtual

pytestmark = pytest.mark.timeout(60)
# Long enough for the calls that are in time, on a machine that is busy with other tests.
SHORT = 0.25
EACH_FACE = pytest.mark.parametrize("face", FACES, ids=kind_id)
EACH_ENGINE_FACE = pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
EACH_ORDER = pytest.mark.parametrize("order", ORDERS)
ON_LOOP = ("async", "async-object", "filter-async", "async-generator", "expand-awaitable")
AWAITED = ("awaitable", "awaitable-fused", "expand-async")


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


def in_thread(kind: Kind) -> bool:
    return kind.id not in (*ON_LOOP, *AWAITED)


class Stuck:
    """A sync op of which the calls on some items wait until the test lets them go."""

    def __init__(self, *stuck: int) -> None:
        self.stuck = stuck
        self.gate = Gate()
        self.crowd = Crowd()

    def __call__(self, item: int) -> int:
        if item in self.stuck:
            with self.crowd:
                self.gate.wait()
        return item


@EACH_ENGINE_CASE
def test_contract_8_b5_a_call_that_takes_too_long_is_a_failure_of_its_item(
    kind: Kind, face: Face
) -> None:
    """One slot in one thread: all others come through although item 5 never returns."""
    gate = Gate()
    work = Work(gates={5: gate})
    options: Any = {"concurrency": 1, "timeout": SHORT, "on_error": "skip"}
    with gate.opened_at_end():
        built = kind.add(numbers(12), work, **options)
        outcome = drive(built.build(num_threads=3), face)
    assert outcome.result() == [n for n in range(12) if n != 5]
    [record] = outcome.failures
    assert (record.stage, record.index, record.error) == ("work", 5, "StageTimeout")
    assert "'work'" in record.message
    assert "item 5" in record.message
    assert f"{SHORT:g} s" in record.message
    stage = outcome.statistics.stage("work")
    assert (stage.items_in, stage.items_out, stage.failed) == (12, 11, 1)
    assert stage.abandoned == in_thread(kind)
    assert work.crowd.most == (2 if in_thread(kind) else 1)
    assert outcome.statistics.in_flight == 0


@EACH_ENGINE_CASE
def test_contract_8_6_a_timeout_ends_the_run_behind_what_came_before(
    kind: Kind, face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    work = Work(gates={6: gate})
    with gate.opened_at_end(), caplog.at_level(logging.WARNING, "spdl_async"):
        built = kind.add(numbers(40), work, concurrency=3, timeout=SHORT)
        outcome = drive(built, face)
        warned = [r.getMessage() for r in caplog.records if "abandoned" in r.getMessage()]
        assert len(warned) == in_thread(kind)
        if warned:
            assert "stage 'work' on item 6" in warned[0]
    assert outcome.outputs == [0, 1, 2, 3, 4, 5]
    error = outcome.error
    assert isinstance(error, StageTimeout)
    assert isinstance(error, TimeoutError)
    assert (error.stage, error.index, error.seconds) == ("work", 6, SHORT)
    assert "stage 'work' on item 6" in notes_of(error)
    assert "faces.py" in notes_of(error)  # where the call was: at its gate
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.index) == (str(error), 6)


@EACH_ENGINE_CASE
def test_contract_8_a_call_that_timed_out_is_made_again(kind: Kind, face: Face) -> None:
    gate = Gate()
    work = Work()
    seen: set[int] = set()

    class Once(dict[int, Gate]):
        """Holds the first call on items 3 and 7."""

        def get(self, item: int, default: Any = None) -> Any:
            if item in (3, 7) and item not in seen:
                seen.add(item)
                return gate
            return None

    work.gates = Once()
    with gate.opened_at_end():
        retry = Retry(2, backoff=0.0, on=(StageTimeout,))
        for order in ORDERS:
            seen.clear()
            built = kind.add(
                numbers(12),
                work,
                concurrency=2,
                output_order=order,
                timeout=SHORT,
                retry=retry,
            )
            outcome = drive(built, face)
            assert sorted(outcome.result()) == list(range(12))
            stage = outcome.statistics.stage("work")
            assert (stage.retried, stage.abandoned) == (2, 2 * in_thread(kind))
            assert outcome.failures == ()


# Calls in threads


@EACH_ENGINE_FACE
@EACH_ORDER
def test_contract_8_more_than_twice_the_concurrency_abandoned_ends_the_run(
    order: Order, face: Face
) -> None:
    op = Stuck(*range(1, 100))
    with op.gate.opened_at_end():
        built = numbers(100).pipe(
            op, name="stuck", concurrency=2, output_order=order, timeout=0.05, on_error="skip"
        )
        outcome = drive(built.build(num_threads=2), face)
        assert isinstance(outcome.error, TooManyFailures)
        assert "'stuck'" in str(outcome.error)
        assert "2 × concurrency" in str(outcome.error)
        assert outcome.outputs == [0]
        assert 5 <= outcome.statistics.stage("stuck").abandoned <= 8
        assert op.crowd.started <= 8


@EACH_ENGINE_FACE
def test_contract_8_calls_that_have_returned_since_are_not_counted(face: Face) -> None:
    """Ten calls take too long, one after the other, but each ends before the next one begins."""
    release: list[threading.Event] = [threading.Event() for _ in range(10)]
    ended = [threading.Event() for _ in range(10)]

    def op(item: int) -> int:
        if item % 2:
            assert release[item // 2].wait(PATIENCE)
            ended[item // 2].set()
        elif item:
            release[item // 2 - 1].set()
            assert ended[item // 2 - 1].wait(PATIENCE)
        return item

    built = numbers(20).pipe(op, timeout=SHORT / 2, on_error="skip")
    try:
        outcome = drive(built, face)
    finally:
        release[-1].set()
    assert outcome.result() == list(range(0, 20, 2))
    assert outcome.statistics.stage("op").abandoned == 10


@EACH_ENGINE_FACE
def test_contract_8_an_abandoned_call_is_told(face: Face) -> None:
    """It asks ``cancelled()``, then returns; its late result and its thread are gone."""
    told = threading.Event()
    inside = threading.Event()

    def op(item: int) -> int:
        inside.set()
        while item == 1:
            if cancelled():
                told.set()
                return -1
            threading.Event().wait(0.001)
        assert not cancelled()
        return item

    outcome = drive(numbers(4).pipe(op, timeout=SHORT, on_error="skip"), face)
    assert outcome.result() == [0, 2, 3]
    assert told.wait(PATIENCE)


@EACH_ENGINE_FACE
def test_contract_8_a_late_exception_is_logged_once_for_debugging(
    face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    done = threading.Event()

    records: list[logging.LogRecord] = []

    class Watching(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)
            if "failed since" in record.getMessage():
                done.set()

    def op(item: int) -> int:
        if item == 1:
            gate.wait()
            raise ValueError("late")
        return item

    handler = Watching()
    logger = logging.getLogger("spdl_async")
    with caplog.at_level(logging.DEBUG, "spdl_async"):
        logger.addHandler(handler)
        try:
            with gate.opened_at_end():
                outcome = drive(numbers(4).pipe(op, timeout=SHORT, on_error="skip"), face)
            assert done.wait(PATIENCE)
        finally:
            logger.removeHandler(handler)
    assert outcome.result() == [0, 2, 3]
    late = [r for r in records if r.exc_info and isinstance(r.exc_info[1], ValueError)]
    assert [r.levelno for r in late] == [logging.DEBUG]
    assert len(outcome.failures) == 1


@EACH_ENGINE_FACE
def test_contract_8_a_late_coroutine_is_closed(face: Face) -> None:
    gate = Gate()

    async def later(item: int) -> int:
        return item

    def op(item: int) -> Any:
        if item == 1:
            gate.wait()
        return later(item)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "was never awaited" would be an unraisable error
        with gate.opened_at_end():
            outcome = drive(numbers(4).pipe(op, timeout=SHORT, on_error="skip"), face)
    assert outcome.result() == [0, 2, 3]


@EACH_ENGINE_FACE
def test_contract_8_13_b5_a_stop_lets_the_time_of_running_calls_run_out(face: Face) -> None:
    """The consumer leaves while a call is stuck whose time is not over yet: that ends the waiting."""
    op = Stuck(3)
    with op.gate.opened_at_end():
        built = numbers(10).pipe(op, concurrency=2, timeout=SHORT)
        outcome = drive(built, face, take=1, on_end=lambda: op.crowd.wait_started(1))
        assert outcome.outputs == [0]
        assert outcome.statistics.stage("Stuck").abandoned == 1


@EACH_ENGINE_FACE
def test_contract_8_the_time_is_for_each_value_of_a_generator(face: Face) -> None:
    """Item 1 makes two values and then nothing: those count, its failure comes behind them."""
    gate = Gate()
    closed = threading.Event()

    def each(item: int) -> Generator[tuple[int, int], None, None]:
        try:
            yield item, 0
            yield item, 1
            if item == 1:
                gate.wait()
            yield item, 2
        finally:
            if item == 1:
                closed.set()

    with gate.opened_at_end():
        built = numbers(3).pipe(each, concurrency=2, timeout=SHORT, on_error="skip")
        outcome = drive(built, face)
    expected = [(n, k) for n in range(3) for k in range(3) if (n, k) != (1, 2)]
    assert outcome.result() == expected
    assert outcome.failures[0].index == 1
    assert closed.wait(PATIENCE)  # by the thread that the loop has given up


@EACH_ENGINE_FACE
def test_contract_8_a_generator_without_room_is_not_late(face: Face) -> None:
    """The consumer takes its time; the generator waits for room, which is no call."""

    def each(item: int) -> Generator[int, None, None]:
        yield from range(100)

    hold = Gate()
    timer = threading.Timer(3 * SHORT, hold.open)
    timer.start()
    outcome = drive(numbers(2).pipe(each, timeout=SHORT), face, hold=hold)
    timer.join()
    assert outcome.result() == [*range(100)] * 2


@EACH_ENGINE_FACE
@EACH_ORDER
@pytest.mark.parametrize("where", ["thread pool", "another executor"])
def test_contract_8_on_a_given_executor(where: str, order: Order, face: Face) -> None:
    op = Stuck(3)
    executor: Any = ThreadPoolExecutor(2) if where == "thread pool" else Aside(2)
    try:
        with op.gate.opened_at_end():
            built = numbers(9).pipe(
                op, executor=executor, output_order=order, timeout=SHORT, on_error="skip"
            )
            outcome = drive(built, face)
            assert sorted(outcome.result()) == [n for n in range(9) if n != 3]
            assert outcome.statistics.stage("Stuck").abandoned == 1
    finally:
        executor.shutdown()


def test_contract_8_another_executor_gets_no_more_than_twice_the_concurrency() -> None:
    op = Stuck(*range(1, 100))
    aside = Aside(16)
    try:
        with op.gate.opened_at_end():
            built = numbers(100).pipe(op, executor=aside, timeout=0.05, on_error="skip")
            outcome = drive(built, Face.SYNC)
            assert isinstance(outcome.error, TooManyFailures)
            assert "2 × concurrency" in str(outcome.error)
            assert outcome.outputs == [0]
    finally:
        aside.shutdown()


def test_contract_8_a_call_that_no_worker_has_begun_is_taken_back() -> None:
    """On one worker a stuck call holds up the others; those were never begun, so not abandoned."""
    op = Stuck(0)
    aside = Aside(1)
    try:
        with op.gate.opened_at_end():
            built = numbers(3).pipe(
                op, executor=aside, concurrency=3, timeout=SHORT, on_error="skip"
            )
            outcome = drive(built, Face.SYNC)
            assert isinstance(outcome.error, TooManyFailures)  # every one of its calls failed
            assert outcome.statistics.stage("Stuck").abandoned == 1
            assert len(outcome.failures) == 3
    finally:
        aside.shutdown()


# Calls on the loop


@EACH_FACE
def test_contract_8_an_async_op_is_cancelled(face: Face) -> None:
    ended: list[int] = []

    async def op(item: int) -> int:
        try:
            if item == 2:
                await asyncio.Event().wait()
        finally:
            ended.append(item)
        return item

    outcome = drive(numbers(4).pipe(op, timeout=SHORT, on_error="skip"), face)
    assert outcome.result() == [0, 1, 3]
    assert ended == [0, 1, 2, 3]


@EACH_FACE
def test_contract_8_a_timeout_of_the_user_s_own_is_not_ours(face: Face) -> None:
    async def op(item: int) -> int:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
        return item

    def sync_op(item: int) -> int:
        raise TimeoutError("mine")

    outcome = drive(numbers(4).pipe(op, timeout=60), face)
    assert type(outcome.error) is TimeoutError
    if face is not Face.INLINE:
        outcome = drive(numbers(4).pipe(sync_op, timeout=60), face)
        assert type(outcome.error) is TimeoutError


@EACH_FACE
@pytest.mark.parametrize("how", ["returns", "raises"])
def test_contract_8_an_op_that_holds_out_is_late_all_the_same(how: str, face: Face) -> None:
    async def op(item: int) -> int:
        try:
            if item == 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            if how == "raises":
                raise KeyError(item) from None
        return item

    outcome = drive(numbers(4).pipe(op, timeout=SHORT, on_error="skip"), face)
    assert outcome.result() == [0, 2, 3]
    assert outcome.failures[0].error == "StageTimeout"


def test_contract_8_times_on_the_virtual_clock() -> None:
    """Each call of an async op, each value of an async generator, has the whole time."""

    async def slow(item: int) -> int:
        await asyncio.sleep(60 * item)
        return item

    async def each(item: int) -> AsyncGenerator[int, None]:
        for _ in range(3):
            await asyncio.sleep(200)
            yield item

    chain = numbers(6).pipe(slow, concurrency=6, timeout=250, on_error="skip")
    pipeline = chain.pipe(each, timeout=250).build()

    async def main() -> tuple[list[int], float]:
        got = [item async for item in pipeline]
        return got, asyncio.get_running_loop().time()

    got, seconds = run_virtual(main())
    assert got == [n for n in range(5) for _ in range(3)]
    assert seconds == pytest.approx(3000, abs=1)


# Sources


class Slow:
    """An async source whose iterator goes on after an item that took too long."""

    def __init__(self, late: set[int]) -> None:
        self.late = late

    def __aiter__(self) -> AsyncIterator[int]:
        self.next = 0
        slow = self

        class Each:
            def __aiter__(self) -> Any:
                return self

            async def __anext__(self) -> int:
                number, slow.next = slow.next, slow.next + 1
                if number == 8:
                    raise StopAsyncIteration
                if number in slow.late:
                    await asyncio.Event().wait()
                return number

        return Each()


@EACH_FACE
def test_contract_8_12_an_async_source_has_a_time_for_each_item(face: Face) -> None:
    built = PipelineBuilder().add_source(Slow({2, 5}), timeout=SHORT, on_error="skip")
    outcome = drive(built, face)
    assert outcome.result() == [0, 1, 3, 4, 6, 7]
    assert {(r.stage, r.error) for r in outcome.failures} == {("source", "StageTimeout")}
    outcome = drive(PipelineBuilder().add_source(Slow({2}), timeout=SHORT), face)
    assert outcome.outputs == [0, 1]
    assert isinstance(outcome.error, StageTimeout)


@EACH_FACE
def test_contract_8_a_generator_that_was_late_is_over(face: Face) -> None:
    async def source() -> AsyncIterator[int]:
        yield 0
        await asyncio.Event().wait()
        yield 1

    built = PipelineBuilder().add_source(source, timeout=SHORT, on_error="skip")
    outcome = drive(built, face)
    assert outcome.outputs == [0]
    assert isinstance(outcome.error, StageTimeout)
    assert "ended right after" in notes_of(outcome.error)


@pytest.mark.parametrize("source", [[1], range(3), {1: 2}, (n for n in range(3))])
def test_contract_8_a_sync_source_has_no_timeout(source: Any) -> None:
    with pytest.raises(BuildError, match=r"timeout=1 is for async sources.*thread"):
        PipelineBuilder().add_source(source, timeout=1).build()


@EACH_FACE
@pytest.mark.parametrize("is_async", [False, True])
def test_contract_8_a_callable_that_opens_a_sync_source_has_none(
    is_async: bool, face: Face
) -> None:
    def opened() -> Iterator[int]:
        return iter([1])

    async def aopened() -> Iterator[int]:
        return iter([1])

    source: Any = aopened if is_async else opened
    outcome = drive(PipelineBuilder().add_source(source, timeout=1), face)
    assert isinstance(outcome.error, TypeError)
    assert "no async iterable" in str(outcome.error)


# Descriptions


@pytest.mark.parametrize("verb", ["pipe", "filter", "expand", "add_source"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "1", True])
def test_contract_8_a_wrong_timeout_is_an_error_that_names_the_verb(verb: str, value: Any) -> None:
    with pytest.raises(BuildError, match=rf"{verb}.*timeout is a finite number of seconds"):
        if verb == "add_source":
            PipelineBuilder().add_source(Slow(set()), timeout=value)
        else:
            getattr(numbers(1), verb)(same, timeout=value)


def test_contract_8_a_stage_with_a_timeout_is_not_fused() -> None:
    built = numbers(1).pipe(same, concurrency=2).pipe(abs, concurrency=2, timeout=2.5)
    description = built.pipe(str, concurrency=2).build().describe()
    assert "+" not in description.text
    assert "abs: in threads, concurrency 2, input order, 2.5 s a call" in description.text
    abandoned = [bound for bound in description.bounds if "abandoned" in bound.what]
    assert [(bound.place, bound.elements) for bound in abandoned] == [("abs", 4)]


def test_contract_8_inline_cannot_enforce_the_time_of_a_sync_op() -> None:
    def each(item: int) -> Iterator[int]:
        yield item

    async def op(item: int) -> int:
        return item

    for stage in (same, each):
        built: Any = numbers(3).pipe(stage, timeout=1, name="late")
        with pytest.raises(BuildError, match=r"inline=True.*'late' has timeout=1"):
            built.build().run_sync(inline=True)
    with numbers(3).pipe(op, timeout=1).build().run_sync(inline=True) as run:
        assert list(run) == [0, 1, 2]
