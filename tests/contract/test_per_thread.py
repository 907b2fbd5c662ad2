"""``per_thread``: an op made once in each thread, anew for each run."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, assert_type

import pytest
from faces import ENGINE_FACES, FACES, Crowd, Face, drive

from spdl_async import BuildError, PipelineBuilder, on, per_thread

every_face = pytest.mark.parametrize("face", FACES, ids=lambda face: face.value)
every_engine = pytest.mark.parametrize("face", ENGINE_FACES, ids=lambda face: face.value)


class Decoder:
    """An op that must not leave the thread that made it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.calls = 0

    def __call__(self, item: int) -> int:
        assert threading.get_ident() == self.thread, "another thread calls"
        self.calls += 1
        return item + 1


class Workshop:
    """A factory that remembers what it has made, and fails as told."""

    def __init__(self, failures: int = 0) -> None:
        self.made: list[Decoder] = []
        self.failures = failures
        self.lock = threading.Lock()

    def __call__(self) -> Decoder:
        with self.lock:
            if self.failures:
                self.failures -= 1
                raise OSError("no decoder to be had")
            self.made.append(Decoder())
            return self.made[-1]


def numbers(count: int = 60) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(count))


SHAPES: dict[str, Callable[[Callable[[], Callable[[int], int]]], PipelineBuilder[int]]] = {
    "pipe": lambda make: numbers().pipe(per_thread(make)),
    "concurrency": lambda make: numbers().pipe(per_thread(make), concurrency=4),
    "completion": lambda make: numbers().pipe(
        per_thread(make), concurrency=4, output_order="completion"
    ),
    "fused": lambda make: (
        numbers()
        .pipe(lambda x: x, concurrency=4)
        .pipe(per_thread(make), concurrency=4)
        .pipe(lambda x: x, concurrency=4)
    ),
    "on": lambda make: (
        numbers()
        .pipe(lambda x: (x, x))
        .pipe(on(0, per_thread(make)), concurrency=4)
        .pipe(lambda pair: pair[0])
    ),
    "few threads": lambda make: numbers().pipe(per_thread(make), concurrency=8),
}
every_shape = pytest.mark.parametrize("shape", SHAPES)


@every_face
@every_shape
def test_each_thread_has_an_op_of_its_own(shape: str, face: Face) -> None:
    workshop = Workshop()
    threads = 2 if shape == "few threads" else None
    pipeline = SHAPES[shape](workshop).build(num_threads=threads)
    assert sorted(drive(pipeline, face).result()) == list(range(1, 61))
    assert len({decoder.thread for decoder in workshop.made}) == len(workshop.made)
    assert 1 <= len(workshop.made) <= pipeline.describe().num_threads
    assert sum(decoder.calls for decoder in workshop.made) == 60


@every_engine
def test_all_threads_work_at_once(face: Face) -> None:
    workshop, crowd = Workshop(), Crowd(3)

    def make() -> Callable[[int], int]:
        decode = workshop()

        def op(item: int) -> int:
            with crowd:
                crowd.full.wait()
                return decode(item)

        return op

    outcome = drive(numbers(9).pipe(per_thread(make), concurrency=3), face)
    assert outcome.result() == list(range(1, 10))
    assert len(workshop.made) == 3


@every_face
def test_each_run_makes_its_ops_anew_and_lets_go_of_them(face: Face) -> None:
    """Also those in threads that outlive the run: the pool here is the user's."""
    workshop = Workshop()
    with ThreadPoolExecutor(2) as pool:
        pipeline = numbers().pipe(per_thread(workshop), concurrency=2).build(executor=pool)
        for _ in range(3):
            outcome = drive(pipeline, face)
            assert outcome.result() == list(range(1, 61))
            made = [weakref.ref(decoder) for decoder in workshop.made]
            assert made
            workshop.made.clear()
            gc.collect()
            assert not [ref for ref in made if ref() is not None], "kept beyond the run's end"
            assert outcome.run is not None  # which does not keep them either


@every_face
def test_a_factory_that_raises_is_a_failure_of_the_item(face: Face) -> None:
    """The stage's policy applies, and it is tried again with the next item."""
    workshop = Workshop(failures=2)
    outcome = drive(numbers(6).pipe(per_thread(workshop), on_error="skip"), face)
    assert outcome.result() == [3, 4, 5, 6]
    assert [record.index for record in outcome.failures] == [0, 1]
    assert {record.error for record in outcome.failures} == {"OSError"}
    assert len(workshop.made) == 1

    outcome = drive(numbers(6).pipe(per_thread(Workshop(failures=1))), face)
    assert isinstance(outcome.error, OSError)
    assert outcome.error.__context__ is None
    assert "'Workshop' on item 0" in outcome.error.__notes__[0]


@every_face
def test_filter_and_expand(face: Face) -> None:
    def odd() -> Callable[[int], bool]:
        decoder = Decoder()
        return lambda item: decoder(item) % 2 == 0

    def twice() -> Callable[[int], list[int]]:
        decoder = Decoder()
        return lambda item: [decoder(item)] * 2

    builder = numbers(6).filter(per_thread(odd), concurrency=2).expand(per_thread(twice))
    assert drive(builder, face).result() == [2, 2, 4, 4, 6, 6]


@every_face
def test_a_lookup_and_an_awaited_result(face: Face) -> None:
    async def later(item: int) -> int:
        await asyncio.sleep(0)
        return -item

    table: Callable[[], Any] = lambda: [5, 6, 7]  # noqa: E731 -- the form that users write

    def hidden() -> Callable[[int], Any]:
        return lambda item: later(item)

    builder = numbers(3).pipe(per_thread(table)).pipe(per_thread(hidden))
    assert drive(builder, face).result() == [-5, -6, -7]


def test_outside_of_a_pipeline() -> None:
    """For tests of the op itself."""
    workshop = Workshop()
    op = per_thread(workshop)
    assert [op(1), op(2)] == [2, 3]
    assert len(workshop.made) == 1
    assert numbers(3).pipe(op).build().describe().text.count("Workshop") > 0


class AsyncDecoder:
    async def __call__(self, item: int) -> int:
        return item


class Splitter:
    def __call__(self, item: int) -> Generator[int, None, None]:
        yield item


class Session:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *of_block: object) -> None: ...

    def __call__(self, item: int) -> int:
        return item


async def coroutine_function() -> Callable[[int], int]:
    return abs


def takes_an_item(item: int) -> int:
    return item


def test_what_cannot_work_is_told_at_once() -> None:
    """Contract 11: at build, as far as can be seen without calling the factory."""
    make: Any = per_thread
    for bad, words in {
        takes_an_item: "called with no argument",
        AsyncDecoder: "event loop and not in threads",
        Splitter: "go on in another thread",
        Session: "belongs to a stage and not to a thread",
        coroutine_function: "async or a generator",
    }.items():
        with pytest.raises(BuildError, match=words):
            make(bad)
    with pytest.raises(BuildError, match="without arguments"):
        make(3)
    with ProcessPoolExecutor(1) as executor:
        builder = numbers().pipe(per_thread(Decoder), executor=executor)
        with pytest.raises(BuildError, match="do not share our memory"):
            builder.build()


@every_face
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (AsyncDecoder, "event loop and not in threads"),
        (Splitter, "go on in another thread"),
        (Session, "belongs to a stage and not to a thread"),
        (lambda: None, "must be a function"),
    ],
)
def test_what_is_only_seen_when_it_is_made(kind: Any, words: str, face: Face) -> None:
    made: Any = per_thread(lambda: kind())
    outcome = drive(numbers(3).pipe(made), face)
    assert isinstance(outcome.error, TypeError)
    assert words in str(outcome.error)


def test_types() -> None:
    def lengths() -> Callable[[int], str]:
        return str

    def pairs() -> Callable[[int], list[bytes]]:
        return lambda item: [bytes(item)] * 2

    assert_type(numbers().pipe(per_thread(lengths)), PipelineBuilder[str]).build()
    assert_type(numbers().pipe(per_thread(Decoder), concurrency=8), PipelineBuilder[int]).build()
    assert_type(numbers().expand(per_thread(pairs)), PipelineBuilder[bytes]).build()
    assert_type(numbers().filter(per_thread(lengths)), PipelineBuilder[int]).build()
