"""``tally``, ``note`` and ``native_threads``: what an op tells the statistics of its stage, and asks."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, Self

import pytest
from faces import ENGINE_FACES, FACES, Face, drive

from spdl_async import (
    BatchBy,
    Failure,
    Merge,
    PipelineBuilder,
    Retry,
    native_threads,
    note,
    per_thread,
    tally,
)
from spdl_async._runtime import native

every_face = pytest.mark.parametrize("face", FACES, ids=lambda face: face.value)
every_engine = pytest.mark.parametrize("face", ENGINE_FACES, ids=lambda face: face.value)
PERIOD = 7


def numbers(count: int = 50) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(count))


def told(item: int) -> int:
    tally("calls")
    if item % PERIOD == 0:
        tally("sevenths", 0.5)
    note("kind", "test")
    return item


async def told_async(item: int) -> int:
    await asyncio.sleep(0)
    return told(item)


async def told_in_a_thread(item: int) -> int:
    return await asyncio.to_thread(told, item)


def told_later(item: int) -> Any:
    return told_async(item)


def told_step_by_step(item: int) -> Iterator[int]:
    yield told(item)
    tally("ends")


async def told_step_by_step_async(item: int) -> AsyncIterator[int]:
    await asyncio.sleep(0)
    yield told(item)
    tally("ends")


def told_in_a_list(item: int) -> list[int]:
    return [told(item)]


class Told:
    """An op of a thread's own."""

    def __call__(self, item: int) -> int:
        return told(item)


SHAPES: dict[str, Callable[[], PipelineBuilder[Any]]] = {
    "sync": lambda: numbers().pipe(told, name="op"),
    "threads": lambda: numbers().pipe(told, name="op", concurrency=8, output_order="completion"),
    "timeout": lambda: numbers().pipe(told, name="op", concurrency=2, timeout=30),
    "retry": lambda: numbers().pipe(told, name="op", retry=Retry(2)),
    "per thread": lambda: numbers().pipe(per_thread(Told), name="op", concurrency=2),
    "async": lambda: numbers().pipe(told_async, name="op", concurrency=8),
    "async timeout": lambda: numbers().pipe(told_async, name="op", concurrency=2, timeout=30),
    "to_thread": lambda: numbers().pipe(told_in_a_thread, name="op", concurrency=4),
    "awaitable": lambda: numbers().pipe(told_later, name="op", concurrency=2),
    "filter": lambda: numbers().filter(lambda item: told(item) >= 0, name="op"),
    "generator": lambda: numbers().pipe(told_step_by_step, name="op", concurrency=2),
    "generator timeout": lambda: numbers().pipe(told_step_by_step, name="op", timeout=30),
    "async generator": lambda: numbers().pipe(told_step_by_step_async, name="op", concurrency=2),
    "list": lambda: numbers().expand(told_in_a_list, name="op", concurrency=2),
    "route": lambda: numbers().route(
        lambda item: told(item) % 2, lambda b: b, lambda b: b, name="op"
    ),
    "source": lambda: PipelineBuilder().add_source(map(told, range(50)), name="op"),
}


@pytest.mark.parametrize("shape", SHAPES)
@every_face
def test_what_an_op_tells_is_in_the_notes_of_its_stage(face: Face, shape: str) -> None:
    if face is Face.INLINE and shape in ("timeout", "generator timeout"):
        pytest.skip("nothing can interrupt the calling thread")
    outcome = drive(SHAPES[shape](), face)
    assert sorted(outcome.result()) == list(range(50))
    for stage in outcome.statistics.stages:
        if stage.name != "op":
            assert not stage.notes, stage
    notes = dict(outcome.statistics.stage("op").notes)
    if "generator" in shape:
        assert notes.pop("ends") == 50
    assert notes == {"calls": 50, "sevenths": 4.0, "kind": "test"}


async def async_numbers() -> AsyncIterator[int]:
    for item in range(50):
        yield await told_async(item)


@every_face
def test_an_async_source_tells_it_too(face: Face) -> None:
    outcome = drive(PipelineBuilder().add_source(async_numbers, name="op"), face)
    assert outcome.result() == list(range(50))
    assert outcome.statistics.stage("op").notes["calls"] == 50


async def first_things_first(branches: list[AsyncIterator[int]]) -> AsyncIterator[int]:
    for branch in branches:
        async for item in branch:
            tally("mixed")
            yield item


@every_engine
def test_a_function_that_mixes_tells_it_too(face: Face) -> None:
    merged = Merge(numbers(3), numbers(2), mix=first_things_first, name="both")
    outcome = drive(PipelineBuilder().add_source(merged), face)
    assert outcome.result() == [0, 1, 2, 0, 1]
    assert outcome.statistics.stage("both").notes["mixed"] == 5


def telling(name: str) -> Callable[[int], int]:
    def op(item: int) -> int:
        if item % 2:
            tally(name)
        return item

    return op


@every_face
def test_in_a_fused_group_each_op_speaks_for_its_own_stage(face: Face) -> None:
    chain = numbers()
    for name in "abc":
        chain = chain.pipe(telling(f"by {name}"), name=name, concurrency=2)
    statistics = drive(chain, face).statistics
    for name in "abc":
        assert dict(statistics.stage(name).notes) == {f"by {name}": 25}


def test_a_given_thread_pool_loses_nothing() -> None:
    with ThreadPoolExecutor(3) as pool:
        chain = numbers(500).pipe(told, name="op", executor=pool, concurrency=3)
        assert drive(chain, Face.SYNC).statistics.stage("op").notes["calls"] == 500


class SlowName(str):
    """A name on which another thread gets its turn whenever it is looked up."""

    __slots__ = ()

    def __hash__(self) -> int:
        time.sleep(0)
        return super().__hash__()


def test_no_count_is_lost_in_eight_threads() -> None:
    together = threading.Barrier(8)
    name = SlowName("calls")

    def op(item: int) -> int:
        together.wait(10)  # all eight are at it at once
        for _ in range(500):
            tally(name)
        return item

    outcome = drive(numbers(8).pipe(op, concurrency=8), Face.SYNC)
    assert outcome.statistics.stage("op").notes["calls"] == 4_000


def length(item: int) -> int:
    tally("measured")
    return item + 1


@every_face
def test_an_aggregator_has_its_own_notes_too(face: Face) -> None:
    plain = drive(numbers().aggregate(BatchBy(lambda item: item + 1, 100), name="op"), face)
    outcome = drive(numbers().aggregate(BatchBy(length, 100), name="op"), face)
    own = dict(plain.statistics.stage("op").notes)
    assert own
    assert dict(outcome.statistics.stage("op").notes) == {**own, "measured": 50}


@every_face
def test_each_pass_begins_at_nothing(face: Face) -> None:
    pipeline = numbers(5).pipe(told, name="op").build()
    for _ in range(2):
        assert drive(pipeline, face).statistics.stage("op").notes["calls"] == 5


class Whole:
    """A whole number that is no int, as numpy has them."""

    def __index__(self) -> int:
        return 3


def test_what_can_be_counted() -> None:
    def op(item: int) -> int:
        tally("odd", bool(item % 2))
        tally("whole", Whole())
        tally("down", -0.5)
        return item

    outcome = drive(numbers(4).pipe(op), Face.SYNC)
    assert dict(outcome.statistics.stage("op").notes) == {"odd": 2, "whole": 12, "down": -2.0}


def test_the_table_shows_it() -> None:
    assert "op: calls 50, sevenths 4, kind test" in str(
        drive(SHAPES["sync"](), Face.SYNC).statistics
    ).replace("kind test, sevenths 4", "sevenths 4, kind test")


def in_a_pipeline(item: int) -> int:
    tally("outer")
    inner = numbers(3).pipe(told, name="inner").build()
    with inner.run_sync() as run:
        assert list(run) == [0, 1, 2]
    assert run.statistics().stage("inner").notes["calls"] == 3
    with inner.run_sync(inline=True) as run:
        assert list(run) == [0, 1, 2]
    assert run.statistics().stage("inner").notes["calls"] == 3
    tally("outer")
    return item


async def in_a_pipeline_async(item: int) -> int:
    tally("outer")
    async with numbers(3).pipe(told, name="inner").build().run() as run:
        assert [made async for made in run] == [0, 1, 2]
    assert run.statistics().stage("inner").notes["calls"] == 3
    async with numbers(3).pipe(told_async, name="inner").build().run() as run:
        assert [made async for made in run] == [0, 1, 2]
    assert run.statistics().stage("inner").notes["calls"] == 3
    tally("outer")
    return item


@pytest.mark.parametrize("op", [in_a_pipeline, in_a_pipeline_async])
@every_face
def test_a_pipeline_within_an_op_speaks_for_itself(face: Face, op: Callable[[int], Any]) -> None:
    outcome = drive(numbers(2).pipe(op, name="op"), face)
    assert outcome.result() == [0, 1]
    assert dict(outcome.statistics.stage("op").notes) == {"outer": 4}


# Where nothing happens


def test_outside_of_a_pipeline_nothing_happens() -> None:
    assert tally("calls") is None  # type: ignore[func-returns-value]
    assert note("kind", "test") is None  # type: ignore[func-returns-value]


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(native_threads).result()
        yield pool


def test_in_processes_nothing_happens(processes: ProcessPoolExecutor) -> None:
    outcome = drive(numbers(5).pipe(told, name="op", executor=processes), Face.SYNC)
    assert outcome.result() == list(range(5))
    assert not outcome.statistics.stage("op").notes


class Owner:
    """An op whose lifespan has something to say."""

    async def __aenter__(self) -> Self:
        tally("entered")
        return self

    async def __aexit__(self, *_: object) -> None:
        tally("left")

    def __call__(self, item: int) -> int:
        tally("called")
        return item


class SyncOwner(Owner):
    def __enter__(self) -> Self:
        tally("entered")
        return self

    def __exit__(self, *_: object) -> None:
        tally("left")


@every_face
def test_in_a_lifespan_nothing_happens(face: Face) -> None:
    outcome = drive(numbers(3).pipe(Owner(), name="op"), face)
    assert dict(outcome.statistics.stage("op").notes) == {"called": 3}


class Span:
    """An op with a sync lifespan, which runs in a thread of ours."""

    def lifespan(self) -> Any:
        return SyncOwner()

    def __call__(self, item: int) -> int:
        tally("called")
        return item


@every_face
def test_in_a_lifespan_in_a_thread_nothing_happens(face: Face) -> None:
    outcome = drive(numbers(3).pipe(Span(), name="op"), face)
    assert dict(outcome.statistics.stage("op").notes) == {"called": 3}


def failing(item: int) -> int:
    tally("called")
    raise ValueError(item)


async def failing_async(item: int) -> int:
    return failing(item)


def answer(_: Failure) -> None:
    tally("answered")


async def answer_async(_: Failure) -> None:
    await asyncio.sleep(0)
    tally("answered")


@pytest.mark.parametrize("op", [failing, failing_async])
@pytest.mark.parametrize("handler", [answer, answer_async])
@every_face
def test_in_a_function_for_failures_nothing_happens(
    face: Face, handler: Callable[[Failure], Any], op: Callable[[int], Any]
) -> None:
    chain = numbers(3).pipe(op, name="op", on_error=handler, max_failures=9)
    outcome = drive(chain, face)
    assert dict(outcome.statistics.stage("op").notes) == {"called": 3}
    assert len(outcome.failures) == 3


def in_a_thread_of_its_own(item: int) -> int:
    thread = threading.Thread(target=told, args=(item,))
    thread.start()
    thread.join()
    return item


@every_face
def test_in_a_thread_that_an_op_starts_nothing_happens(face: Face) -> None:
    outcome = drive(numbers(3).pipe(in_a_thread_of_its_own, name="op"), face)
    assert not outcome.statistics.stage("op").notes


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tally(3), r"tally: the name must be a text, not 3"),  # type: ignore[arg-type]
        (lambda: note(None, 3), r"note: the name must be a text, not None"),  # type: ignore[arg-type]
        (lambda: tally("a", "b"), r"tally\('a'\): n must be a number, not 'b'"),  # type: ignore[arg-type]
        (lambda: tally("a", None), r"tally\('a'\): n must be a number, not None"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_errors_everywhere(call: Callable[[], None], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_a_name_is_a_counter_or_a_text() -> None:
    def op(item: int) -> int:
        note("name", "text")
        tally("name")
        return item

    outcome = drive(numbers(1).pipe(op), Face.SYNC)
    assert isinstance(outcome.error, TypeError)
    assert "note() has set this name to 'text'" in str(outcome.error)


# Native threads


@pytest.fixture
def twelve_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "cores_within", lambda _: 12)


def share(_: int) -> int:
    return native_threads()


async def share_async(_: int) -> int:
    return await asyncio.to_thread(native_threads)


@pytest.mark.usefixtures("twelve_cores")
@pytest.mark.parametrize("op", [share, share_async])
@every_engine
def test_the_calls_of_a_stage_share_the_cores(face: Face, op: Callable[[int], Any]) -> None:
    for concurrency, threads in ((1, 12), (5, 2), (12, 1), (40, 1)):
        chain = numbers(3).pipe(op, concurrency=concurrency)
        assert drive(chain, face).result() == [threads] * 3


@pytest.mark.usefixtures("twelve_cores")
def test_inline_and_outside_there_is_no_other_call() -> None:
    assert native_threads() == 12
    assert drive(numbers(1).pipe(share, concurrency=4), Face.INLINE).result() == [12]


def test_processes_share_the_cores_as_threads_do(processes: ProcessPoolExecutor) -> None:
    chain = numbers(2).pipe(share, executor=processes, concurrency=1000)
    assert drive(chain, Face.SYNC).result() == [1, 1]
