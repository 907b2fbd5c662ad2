"""Given executors: thread pools that are shared, process pools that fail. Scenario C1, contract 3, 6."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import operator
import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from faces import ENGINE_FACES, FACES, Crowd, Face, drive, notes_of
from kinds import ORDERS, Order, Work, kind_id, same

from spdl_async import DROP, BuildError, Drop, PipelineBuilder, Retry, TooManyFailures

pytestmark = pytest.mark.timeout(60)
PROCESS_FACES = (Face.CALLER, Face.SYNC, Face.INLINE)


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4, thread_name_prefix="mine") as pool:
        yield pool


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with spawned() as pool:
        yield pool


def spawned(workers: int = 1) -> ProcessPoolExecutor:
    """Return a pool that is up: its descriptors are there before a test is checked for leaks."""
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    pool.submit(os.getpid).result()
    return pool


# Thread pools


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
@pytest.mark.parametrize("order", ORDERS)
def test_a_given_thread_pool_is_used_and_left_alone(
    order: Order, face: Face, threads: ThreadPoolExecutor
) -> None:
    names: set[str] = set()

    def op(n: int) -> int:
        names.add(threading.current_thread().name)
        return n

    built = numbers(200).pipe(op, concurrency=3, output_order=order, executor=threads)
    assert sorted(drive(built, face).result()) == list(range(200))
    by_build = numbers(200).pipe(op, concurrency=3, output_order=order).build(executor=threads)
    assert sorted(drive(by_build, face).result()) == list(range(200))
    drive(by_build, face, take=1)
    assert names
    assert all(name.startswith("mine") for name in names)
    assert threads.submit(same, 5).result() == 5  # not shut down


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
def test_contract_3_two_pipelines_share_a_given_pool_of_one_thread(face: Face) -> None:
    """Each takes turns: neither waits for the other's endless work to end."""
    with ThreadPoolExecutor(1) as pool:

        def chain() -> PipelineBuilder[int]:
            return (
                numbers(300)
                .pipe(same, concurrency=2, executor=pool, name="a")
                .pipe(same, concurrency=3, executor=pool, name="b")
            )

        one, two = chain().build(), chain().build()
        if face.is_async:

            async def both() -> list[tuple[int, int]]:
                loop: Any = "own" if face is Face.OWN else "caller"
                async with one.run(loop=loop) as a, two.run(loop=loop) as b:
                    return [(x, await anext(b)) async for x in a]

            pairs = asyncio.run(both())
        else:
            with one.run_sync() as a, two.run_sync() as b:
                pairs = list(zip(a, b, strict=True))
        assert pairs == [(n, n) for n in range(300)]


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
@pytest.mark.parametrize("order", ORDERS)
def test_contract_3_concurrency_bounds_a_stage_on_a_larger_pool(order: Order, face: Face) -> None:
    crowd = Crowd(3)
    work = Work(gate=crowd.full, crowd=crowd)
    with ThreadPoolExecutor(8) as pool:
        built = numbers(100).pipe(work.call, concurrency=3, output_order=order, executor=pool)
        assert sorted(drive(built, face).result()) == list(range(100))
    assert crowd.most == 3


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_an_executor_that_was_shut_down_is_an_error_and_no_hang(policy: Any, face: Face) -> None:
    pool = ThreadPoolExecutor(2)
    pool.shutdown()
    outcome = drive(numbers(100).pipe(same, executor=pool, on_error=policy, name="work"), face)
    assert outcome.outputs == []
    assert outcome.error is not None
    assert "shutdown" in f"{outcome.error!r} {outcome.error.__cause__!r}"


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
def test_an_executor_that_is_shut_down_under_a_run(face: Face) -> None:
    pool = ThreadPoolExecutor(2)
    endless = PipelineBuilder().add_source(lambda: iter(int, 1))
    built = endless.pipe(same, concurrency=2, executor=pool, name="work")

    def shut(_: int) -> None:
        pool.shutdown(wait=False, cancel_futures=True)

    outcome = drive(built, face, on_output=shut)
    assert isinstance(outcome.error, RuntimeError)
    assert re.search("shutdown|executor", f"{outcome.error!r} {outcome.error.__cause__!r}")


class OddExecutor(Executor):
    """Runs what it is given at once, in the calling thread."""

    def __init__(self) -> None:
        self.submitted = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
@pytest.mark.parametrize("order", ORDERS)
def test_any_executor_will_do(order: Order, face: Face) -> None:
    odd = OddExecutor()
    built = numbers(50).pipe(same, concurrency=4, output_order=order, executor=odd)
    assert sorted(drive(built, face).result()) == list(range(50))
    assert odd.submitted > 0


def test_contract_11_wrong_uses_of_executor_are_errors_that_name_the_stage() -> None:
    async def on_loop(n: int) -> int:
        return n

    pool = ThreadPoolExecutor(1)
    with pytest.raises(BuildError, match=r"on_loop.*event loop"):
        numbers(3).pipe(on_loop, executor=pool).build()
    wrong: Any = "threads"
    with pytest.raises(BuildError, match="Executor"):
        numbers(3).pipe(same, executor=wrong)
    with pytest.raises(BuildError, match="Executor"):
        numbers(3).build(executor=wrong)
    with pytest.raises(BuildError, match="num_threads"):
        numbers(3).build(executor=pool, num_threads=2)


# Process pools: everything that travels is at module level


class KeywordOnlyError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


def square(n: int) -> int:
    return n * n


def evens(n: int) -> int | Drop:
    return DROP if n % 2 else n


def worker_pid(_: int) -> int:
    return os.getpid()


def fail_value(n: int) -> int:
    if n == 3:
        raise ValueError("three", n)
    return n


def fail_keyword_only(n: int) -> int:
    if n == 3:
        raise KeywordOnlyError(code=7)
    return n


def fail_stop(n: int) -> int:
    if n == 3:
        raise StopIteration
    return n


def fail_chained(n: int) -> int:
    if n == 3:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise FileNotFoundError(2, "no such file", "shard-3.tar") from inner
    return n


def return_lock(n: int) -> Any:
    return threading.Lock() if n == 3 else n


def die(n: int) -> int:
    if n == 3:
        os._exit(17)
    return n


class Unloadable:
    """Is pickled well and cannot be unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("cannot be unpickled")


def return_unloadable(n: int) -> Any:
    return Unloadable() if n == 3 else n


@pytest.mark.parametrize("face", PROCESS_FACES, ids=kind_id)
@pytest.mark.parametrize("order", ORDERS)
def test_b2_a_process_pool_between_other_stages(
    order: Order, face: Face, processes: ProcessPoolExecutor
) -> None:
    async def on_loop(n: int) -> int:
        return n

    built = (
        numbers(100)
        .pipe(on_loop, concurrency=2)
        .pipe(square, concurrency=3, output_order=order, executor=processes)
        .pipe(evens, concurrency=3, output_order=order, executor=processes)
        .pipe(same)
        .aggregate(7)
    )
    batches = drive(built, face).result()
    assert sorted(functools.reduce(operator.iadd, batches, [])) == [n * n for n in range(0, 100, 2)]
    assert [len(batch) for batch in batches[:-1]] == [7] * 7
    if face is not Face.INLINE:
        pids = drive(numbers(3).pipe(worker_pid, executor=processes), face).result()
        assert os.getpid() not in pids
    assert processes.submit(square, 4).result() == 16  # never shut down by us


@pytest.mark.parametrize("face", [Face.CALLER, Face.SYNC], ids=kind_id)
@pytest.mark.parametrize(
    ("op", "kind", "text"),
    [
        (fail_value, ValueError, "three"),
        (fail_keyword_only, KeywordOnlyError, "code 7"),
        (fail_chained, FileNotFoundError, "shard-3.tar"),
        (fail_stop, RuntimeError, "StopIteration"),
    ],
    ids=lambda value: getattr(value, "__name__", " "),
)
def test_c1_a_worker_s_exception_keeps_its_type_and_brings_its_traceback(
    op: Any, kind: type[Exception], text: str, face: Face, processes: ProcessPoolExecutor
) -> None:
    built = numbers(9).pipe(op, concurrency=2, executor=processes, name="work")
    outcome = drive(built, face)
    assert outcome.outputs == [0, 1, 2]
    assert type(outcome.error) is kind
    assert text in str(outcome.error)
    notes = notes_of(outcome.error)
    assert "'work'" in notes
    assert "item 3" in notes
    assert op.__name__ in notes  # the worker's traceback, as text
    if isinstance(outcome.error, KeywordOnlyError):
        assert outcome.error.code == 7
    if isinstance(outcome.error, OSError):
        assert outcome.error.filename == "shard-3.tar"
    skipped = drive(built.build(on_error="skip"), face)
    assert skipped.result() == [0, 1, 2, 4, 5, 6, 7, 8]
    assert [record.index for record in skipped.failures] == [3]


@pytest.mark.parametrize("face", [Face.CALLER, Face.SYNC], ids=kind_id)
def test_what_cannot_be_pickled_is_a_failure_of_that_item(
    face: Face, processes: ProcessPoolExecutor
) -> None:
    outcome = drive(numbers(9).pipe(return_lock, executor=processes, name="work"), face)
    assert outcome.outputs == [0, 1, 2]
    assert isinstance(outcome.error, TypeError)
    assert "pickle" in str(outcome.error)
    assert "'work'" in notes_of(outcome.error)
    values: list[Any] = [0, 1, threading.Lock(), 3]
    built: PipelineBuilder[Any] = PipelineBuilder().add_source(values)
    outcome = drive(built.pipe(same, executor=processes, on_error="skip"), face)
    assert outcome.result() == [0, 1, 3]
    assert processes.submit(square, 4).result() == 16


@pytest.mark.parametrize("face", [Face.CALLER, Face.SYNC], ids=kind_id)
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_an_op_that_cannot_be_pickled_is_an_error(
    policy: Any, face: Face, processes: ProcessPoolExecutor
) -> None:
    built = numbers(9).pipe(lambda n: n, executor=processes, on_error=policy, name="work")
    outcome = drive(built, face)
    assert outcome.outputs == []
    assert outcome.error is not None
    assert isinstance(outcome.error, TooManyFailures) == (policy == "skip")
    assert "pickle" in str(outcome.error) + str(outcome.error.__cause__)


def test_a_result_that_cannot_be_unpickled_is_a_failure_and_no_hang() -> None:
    """Python itself breaks the pool then, so the failure may be that."""
    with spawned() as pool:
        outcome = drive(numbers(9).pipe(return_unloadable, executor=pool), Face.SYNC)
    assert set(outcome.outputs) <= {0, 1, 2}
    assert isinstance(outcome.error, (BrokenProcessPool, ValueError))


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_dead_worker_is_a_failure_and_no_hang(policy: Any) -> None:
    with spawned() as pool:
        built = numbers(50).pipe(die, concurrency=2, executor=pool, on_error=policy, name="work")
        outcome = drive(built, Face.SYNC)
        assert set(outcome.outputs) <= {0, 1, 2}
        if policy == "raise":
            assert isinstance(outcome.error, BrokenProcessPool)
            assert "'work'" in notes_of(outcome.error)
        else:  # what it did before it died may have come out; nothing may hang
            assert outcome.failures


def test_contract_11_a_generator_cannot_run_on_a_process_pool(
    processes: ProcessPoolExecutor,
) -> None:
    def each(n: int) -> Iterator[int]:
        yield n

    with pytest.raises(BuildError, match=r"each.*ProcessPoolExecutor"):
        numbers(3).pipe(each, executor=processes).build()


@pytest.mark.parametrize("face", [face for face in FACES if face is not Face.OWN], ids=kind_id)
def test_leaving_while_a_process_works(face: Face, processes: ProcessPoolExecutor) -> None:
    endless = PipelineBuilder().add_source(lambda: iter(int, 1))
    outcome = drive(endless.pipe(square, concurrency=2, executor=processes), face, take=2)
    assert outcome.outputs == [0, 0]
    assert processes.submit(square, 4).result() == 16


def busy_first(path: str) -> int:
    """Fail as often as the file is too short, and make it longer."""
    with open(path, "a+") as calls:
        calls.write(".")
        number = calls.tell()
    if number < 3:
        raise OSError(f"call {number}")
    return number


def test_contract_8_a_process_is_asked_again_and_given_up(
    processes: ProcessPoolExecutor, tmp_path: Path
) -> None:
    paths = [str(tmp_path / name) for name in "abc"]
    retry = Retry(3, backoff=0.001, on=(OSError,))
    built = PipelineBuilder().add_source(paths).pipe(busy_first, executor=processes, retry=retry)
    with built.build().run_sync() as run:
        assert list(run) == [3, 3, 3]
    assert run.statistics().stage("busy_first").retried == 6
    late = PipelineBuilder().add_source([1.0, 0.0])
    pipeline = late.pipe(time.sleep, executor=processes, timeout=0.3, on_error="skip").build()
    # On the one worker the second call waits for the first, which goes on: both are late.
    with pipeline.run_sync() as slow, pytest.raises(TooManyFailures):
        list(slow)
    assert [record.error for record in slow.failures] == ["StageTimeout"] * 2
    assert slow.statistics().stage("sleep").abandoned >= 1


class Deaf(Executor):
    """Takes calls and never runs one."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return Future()


def test_an_error_of_ours_in_a_timer_comes_to_the_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise LookupError("a bug of ours")

    monkeypatch.setattr("spdl_async._runtime.foreign_step.time_over", broken)
    outcome = drive(numbers(3).pipe(same, executor=Deaf(), timeout=0.01), Face.SYNC)
    assert isinstance(outcome.error, LookupError)
    assert "error of the library itself" in notes_of(outcome.error)
