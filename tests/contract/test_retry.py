"""Contract 8: ``retry=``: what is called again, when, and what counts."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest
from faces import ENGINE_FACES, FACES, Face, drive
from kinds import EACH_CASE, ORDERS, Kind, Order, Work, kind_id, same

from spdl_async import DROP, BuildError, PipelineBuilder, Retry, TooManyFailures
from spdl_async.testing import Gate, run_virtual

pytestmark = pytest.mark.timeout(60)
QUICK = Retry(3, backoff=0.001)
EACH_FACE = pytest.mark.parametrize("face", FACES, ids=kind_id)
EACH_ENGINE_FACE = pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
EACH_ORDER = pytest.mark.parametrize("order", ORDERS)


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


class Flaky(Work):
    """Fails on an item as often as told."""

    def __init__(self, fails: Mapping[int, int], **options: Any) -> None:
        super().__init__(**options)
        self.fails = fails
        self.calls: Counter[int] = Counter()
        self.raised: dict[tuple[int, int], BaseException] = {}
        self._lock = threading.Lock()

    def finish(self, item: int) -> int:
        with self._lock:
            self.calls[item] += 1
            number = self.calls[item]
        if number <= self.fails.get(item, 0):
            error = self.raised[item, number] = ValueError(f"call {number} on {item}")
            raise error
        return super().finish(item)


class Aside(Executor):
    """An executor that is no ``ThreadPoolExecutor``, so each call is one submit."""

    def __init__(self, threads: int = 4) -> None:
        self.pool = ThreadPoolExecutor(threads)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return self.pool.submit(fn, *args, **options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.pool.shutdown(wait, cancel_futures=cancel_futures)


@EACH_CASE
def test_contract_8_an_op_is_called_again_until_it_succeeds(kind: Kind, face: Face) -> None:
    fails = {n: 1 + n % 2 for n in range(0, 40, 3)}
    for concurrency, order in ((1, "completion"), (4, "input"), (4, "completion")):
        work = Flaky(fails)
        built = kind.add(
            numbers(40), work, concurrency=concurrency, output_order=order, retry=QUICK
        )
        outcome = drive(built, face)
        result = outcome.result()
        assert (result if order == "input" else sorted(result)) == list(range(40))
        assert work.calls == {n: 1 + fails.get(n, 0) for n in range(40)}
        assert outcome.failures == ()
        stage = outcome.statistics.stage("work")
        assert (stage.items_in, stage.failed, stage.items_out) == (40, 0, 40)
        assert stage.retried == sum(fails.values())
        assert work.crowd.most <= concurrency
        assert outcome.statistics.in_flight == 0


@EACH_CASE
def test_contract_8_only_the_last_failure_of_an_item_counts(kind: Kind, face: Face) -> None:
    """Two items fail for good, four others for a while: two invocations have failed, as allowed."""
    fails = {3: 9, 5: 2, 9: 1, 20: 9, 21: 2, 28: 1}
    for order in ORDERS:
        work = Flaky(fails)
        built = kind.add(
            numbers(30), work, concurrency=3, output_order=order, retry=QUICK, max_failures=2
        )
        outcome = drive(built, face)
        assert sorted(outcome.result()) == [n for n in range(30) if n not in (3, 20)]
        assert {(r.index, r.attempts, r.message) for r in outcome.failures} == {
            (3, 3, "call 3 on 3"),
            (20, 3, "call 3 on 20"),
        }
        assert outcome.statistics.stage("work").failed == 2
        assert outcome.statistics.stage("work").retried == 2 + 2 + 1 + 2 + 2 + 1


@EACH_CASE
def test_contract_8_the_last_failure_ends_the_run_behind_what_came_before(
    kind: Kind, face: Face
) -> None:
    """Item 4 succeeds at its third call, which is due only after item 6 has failed for good."""
    work = Flaky({4: 2, 6: 9})
    retry = Retry(3, backoff=0.02, factor=1.0, jitter=0.0)
    above = Retry(2, backoff=0.0, on=(KeyError,))  # of another stage: does not count here
    built = numbers(30).pipe(same, name="first", retry=above)
    outcome = drive(kind.add(built, work, concurrency=8, retry=retry), face)
    assert outcome.outputs == [0, 1, 2, 3, 4, 5]
    assert outcome.error is work.raised[6, 3]
    assert work.calls[6] == 3
    assert outcome.failures[0].attempts == 3


@EACH_FACE
@EACH_ORDER
def test_contract_8_a_failure_without_retry_lets_earlier_items_be_called_again(
    order: Order, face: Face
) -> None:
    """Item 3 waits for its second call while item 5 ends the run with an error that is not retried."""
    failed = threading.Event()

    def op(item: int) -> int:
        if item == 5:
            failed.set()
            raise KeyError(item)
        if item == 3 and not failed.is_set() and face is not Face.INLINE:
            raise ValueError(item)
        return item

    retry = Retry(1000, backoff=0.001, factor=1.0, on=(ValueError,))
    outcome = drive(numbers(30).pipe(op, concurrency=4, output_order=order, retry=retry), face)
    assert isinstance(outcome.error, KeyError)
    if order == "input":
        assert outcome.outputs == [0, 1, 2, 3, 4]


@EACH_FACE
def test_contract_8_only_the_types_in_on_are_retried(face: Face) -> None:
    calls: Counter[int] = Counter()

    def op(item: int) -> int:
        calls[item] += 1
        if item == 1:
            raise LookupError("never there")
        if item == 2 and calls[item] == 1:
            raise KeyError("a subclass of what is named")
        return item

    retry = Retry(5, backoff=0.0, on=(KeyError, OSError))
    outcome = drive(numbers(4).pipe(op, retry=retry, on_error="skip"), face)
    assert outcome.result() == [0, 2, 3]
    assert calls == {0: 1, 1: 1, 2: 2, 3: 1}
    assert outcome.failures[0].attempts == 1


@EACH_FACE
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_contract_8_10_an_interrupt_is_never_retried(
    error: type[BaseException], face: Face
) -> None:
    calls = []

    def op(item: int) -> int:
        calls.append(item)
        raise error

    outcome = drive(numbers(1).pipe(op, retry=QUICK), face)
    assert isinstance(outcome.error, error)
    assert calls == [0]


@EACH_FACE
def test_contract_8_a_fused_group_goes_on_at_the_op_that_failed(face: Face) -> None:
    calls: Counter[str] = Counter()
    lock = threading.Lock()

    def counted(name: str, fails: int, by: int) -> Callable[[int], int]:
        def op(item: int) -> int:
            with lock:
                calls[f"{name} {item}"] += 1
                number = calls[f"{name} {item}"]
            if item % by == 0 and number <= fails:
                raise ValueError(name)
            return item + 1

        return op

    built = (
        numbers(20)
        .pipe(counted("a", 0, 1), concurrency=3, name="a")
        .pipe(counted("b", 2, 3), concurrency=3, name="b", retry=QUICK)
        .pipe(counted("c", 1, 2), concurrency=3, name="c", retry=QUICK)
        .pipe(counted("d", 0, 1), concurrency=3, name="d")
    )
    for _ in range(2):  # nothing of a pass is left for the next
        calls.clear()
        outcome = drive(built, face)
        assert outcome.result() == [n + 4 for n in range(20)]
        assert all(calls[f"a {n}"] == calls[f"d {n + 3}"] == 1 for n in range(20))
        assert all(calls[f"b {n + 1}"] == (3 if (n + 1) % 3 == 0 else 1) for n in range(20))
        assert all(calls[f"c {n + 2}"] == (2 if (n + 2) % 2 == 0 else 1) for n in range(20))
        stages = outcome.statistics.stages[1:]
        assert [(s.items_in, s.items_out, s.failed) for s in stages] == [(20, 20, 0)] * 4
        assert [s.retried for s in stages] == [0, 2 * 6, 10, 0]


@EACH_FACE
@pytest.mark.parametrize("is_async", [False, True], ids=["generator", "async generator"])
def test_contract_8_a_generator_is_called_again_only_before_its_first_value(
    is_async: bool, face: Face
) -> None:
    calls: Counter[int] = Counter()

    def fail(item: int, made: int) -> None:
        if item == 1 and calls[item] < 3 and made == 0:
            raise ValueError("before the first value")
        if item == 2 and made == 1:
            raise ValueError("after the first value")
        if item == 3 and made == 1 and calls[item] == 1:
            raise ValueError("after a dropped value")

    def each(item: int) -> Generator[Any, None, None]:
        calls[item] += 1
        for made in range(2):
            fail(item, made)
            yield DROP if item == 3 else (item, made)

    async def aeach(item: int) -> Any:
        calls[item] += 1
        for made in range(2):
            await asyncio.sleep(0)
            fail(item, made)
            yield DROP if item == 3 else (item, made)

    op: Any = aeach if is_async else each
    outcome = drive(numbers(4).pipe(op, concurrency=2, retry=QUICK, on_error="skip"), face)
    assert outcome.result() == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert calls == {0: 1, 1: 3, 2: 1, 3: 1}
    assert {(r.index, r.attempts) for r in outcome.failures} == {(2, 1), (3, 1)}


@EACH_FACE
def test_contract_8_an_op_that_is_called_again_may_drop_or_return_an_awaitable(face: Face) -> None:
    calls: Counter[int] = Counter()

    async def later(item: int) -> Any:
        if item % 3 == 1 and calls[item] == 1:
            raise ValueError("awaited")
        return DROP if item % 4 == 3 else item

    def op(item: int) -> Any:
        calls[item] += 1
        if item % 3 == 0 and calls[item] == 1:
            raise ValueError("called")
        return later(item) if item % 2 else item

    above = numbers(24).pipe(same, concurrency=2)
    outcome = drive(above.pipe(op, concurrency=2, retry=QUICK).pipe(same, concurrency=2), face)
    assert outcome.result() == [n for n in range(24) if n % 4 != 3]
    assert outcome.failures == ()
    assert all(calls[n] == (2 if n % 3 == 0 or (n % 3 == 1 and n % 2) else 1) for n in range(24))


@EACH_FACE
@EACH_ORDER
def test_contract_8_a_retry_on_an_executor_of_another_kind(order: Order, face: Face) -> None:
    work = Flaky({3: 9, 5: 2, 9: 1})
    aside = Aside()
    options: Any = {"executor": aside, "concurrency": 3, "output_order": order}
    try:
        built = (
            numbers(20)
            .pipe(same, **options)
            .pipe(work.call, name="work", retry=QUICK, on_error="skip", **options)
            .pipe(same, name="below", **options)
        )
        outcome = drive(built, face)
    finally:
        aside.shutdown()
    assert sorted(outcome.result()) == [n for n in range(20) if n != 3]
    assert work.calls == {n: {3: 3, 5: 3, 9: 2}.get(n, 1) for n in range(20)}
    assert outcome.failures[0].attempts == 3
    assert outcome.statistics.stage("work").retried == 5


# Waiting


@pytest.mark.parametrize("kind", ["thread", "async", "generator", "async generator", "aside"])
def test_contract_8_a_wait_holds_no_slot_and_no_thread(kind: str) -> None:
    """One slot, one thread; the first item waits for an hour in all, all others pass it."""
    work = Flaky({0: 2})
    aside = Aside()

    def each(item: int) -> Generator[int, None, None]:
        yield work.call(item)

    async def aeach(item: int) -> Any:
        yield await work.acall(item)

    op: Any = {"thread": work.call, "aside": work.call, "async": work.acall}.get(kind)
    if op is None:
        op = each if kind == "generator" else aeach
    retry = Retry(3, backoff=1200.0, max_backoff=1e4, jitter=0.0)
    for order in ORDERS:
        work.calls.clear()
        options: Any = {"executor": aside} if kind == "aside" else {}
        built = numbers(3).pipe(op, retry=retry, output_order=order, **options)
        pipeline = built.build(num_threads=1)

        async def main(pipeline: Any = pipeline) -> tuple[list[int], float]:
            async with pipeline.run(loop="caller", stall_warning=None) as run:
                got = [item async for item in run]
            return got, asyncio.get_running_loop().time()

        got, seconds = run_virtual(main())
        assert got == ([0, 1, 2] if order == "input" else [1, 2, 0])
        assert seconds == pytest.approx(3600, abs=1)
    aside.shutdown()


def times_of_calls(retry: Retry, seed: int, count: int = 3) -> list[list[float]]:
    """Return when the calls on each item were made, on the virtual clock."""
    made: list[list[float]] = [[] for _ in range(count)]

    async def op(item: int) -> int:
        made[item].append(asyncio.get_running_loop().time())
        raise OSError(item)

    pipeline = (
        numbers(count).pipe(op, concurrency=count, retry=retry, on_error="skip").build(seed=seed)
    )

    async def main() -> None:
        with pytest.raises(TooManyFailures):
            async for _ in pipeline:
                pass

    run_virtual(main())
    return made


def test_contract_8_waits_grow_by_the_factor_up_to_the_longest() -> None:
    retry = Retry(6, backoff=10.0, factor=3.0, max_backoff=100.0, jitter=0.0)
    for times in times_of_calls(retry, 1):
        assert times == pytest.approx([0, 10, 40, 130, 230, 330], abs=0.01)


def test_contract_8_the_random_part_depends_on_the_seed_alone() -> None:
    retry = Retry(5, backoff=100.0, factor=1.0, max_backoff=100.0, jitter=0.5)
    first, again, other = (times_of_calls(retry, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    waits = [b - a for times in first for a, b in itertools.pairwise(times)]
    assert all(50 <= wait <= 100.01 for wait in waits)
    assert len({round(wait, 6) for wait in waits}) == len(waits)


@EACH_ENGINE_FACE
@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "async"])
def test_contract_8_13_a_stop_ends_a_wait_at_once(is_async: bool, face: Face) -> None:
    work = Flaky({2: 1})
    op: Any = work.acall if is_async else work.call
    retry = Retry(2, backoff=3600.0, max_backoff=3600.0)
    built = numbers(10).pipe(op, concurrency=2, retry=retry)
    outcome = drive(built, face, take=2)
    assert outcome.outputs == [0, 1]
    assert work.calls[2] == 1


@EACH_ENGINE_FACE
def test_contract_3_calls_made_again_count_as_concurrency(face: Face) -> None:
    gate: Gate[int] = Gate()
    work = Flaky(dict.fromkeys(range(12), 1))
    built = numbers(12).pipe(work.call, concurrency=3, retry=Retry(2, backoff=0.0)).pipe(gate)
    gate.open()
    assert drive(built, face).result() == list(range(12))
    assert work.crowd.most <= 3


# Values


def test_contract_8_wait_after_is_bounded_and_never_overflows() -> None:
    retry = Retry(1000, backoff=1.0, factor=10.0, max_backoff=60.0, jitter=1.0)
    assert [retry.wait_after(k, 0.0) for k in (1, 2, 3, 999)] == [1.0, 10.0, 60.0, 60.0]
    assert retry.wait_after(2, 0.75) == 2.5


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"attempts": 1}, "at least 2"),
        ({"attempts": 2.5}, "int"),
        ({"attempts": True}, "int"),
        ({"attempts": 5000}, "1000"),
        ({"attempts": 2, "backoff": -1.0}, "backoff"),
        ({"attempts": 2, "backoff": "1s"}, "backoff"),
        ({"attempts": 2, "backoff": 10.0, "max_backoff": 1.0}, "max_backoff"),
        ({"attempts": 2, "max_backoff": float("inf")}, "max_backoff"),
        ({"attempts": 2, "factor": 0.5}, "factor"),
        ({"attempts": 2, "factor": float("nan")}, "factor"),
        ({"attempts": 2, "jitter": 1.5}, "jitter"),
        ({"attempts": 2, "on": ()}, "tuple"),
        ({"attempts": 2, "on": OSError}, "tuple"),
        ({"attempts": 2, "on": (KeyboardInterrupt,)}, "Exception"),
    ],
)
def test_contract_8_a_wrong_retry_is_an_error_that_names_the_value(
    options: dict[str, Any], word: str
) -> None:
    with pytest.raises(BuildError, match=rf"Retry.*{word}"):
        Retry(**options)


@pytest.mark.parametrize("verb", ["pipe", "filter", "expand"])
def test_contract_8_retry_takes_a_retry(verb: str) -> None:
    with pytest.raises(BuildError, match=rf"{verb}.*Retry\(3\)"):
        getattr(numbers(1), verb)(same, retry=3)


def test_contract_8_describe_names_the_attempts() -> None:
    built = numbers(1).pipe(same, concurrency=2).pipe(abs, concurrency=2, retry=Retry(4))
    text = built.build().describe().text
    assert "same + abs" in text
    assert "abs called up to 4 times" in text
