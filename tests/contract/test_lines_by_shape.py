"""The contract's lines, one by one, for what a pipeline can be shaped like; and for its epochs.

Each shape has an op somewhere inside and delivers the items 0 … n - 1: in order, or, where a seed or
the order of completion decides, in another.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
from faces import FACES, Crowd, Face, Gate, drive, notes_of, run_loop
from kinds import kind_id

from spdl_async import (
    DROP,
    BatchBy,
    BuildError,
    Merge,
    Pipeline,
    PipelineBuilder,
    Retry,
    TooManyFailures,
    Zip,
)

pytestmark = pytest.mark.timeout(60)
# Other files go through every loop; here the shapes are many.
EACH_FACE = pytest.mark.parametrize("face", [Face.CALLER, Face.SYNC, Face.INLINE], ids=kind_id)
EACH_ENGINE = pytest.mark.parametrize("face", [Face.CALLER, Face.OWN], ids=kind_id)

Builder = PipelineBuilder[Any]
Op = Callable[[Any], Any]
LONG = 60.0  # seconds that never pass
N = 40


def same(item: Any) -> Any:
    return item


@dataclass
class Sources:
    """Makes sources that count what is pulled, opened and closed; ``end=None``: endless ones."""

    end: int | None = N
    pulled: int = 0
    opened: int = 0
    closed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def every(self, step: int, start: int) -> Builder:
        """Return a builder over every so manieth number."""

        def numbers() -> Iterator[int]:
            with self.lock:
                self.opened += 1
            try:
                for n in itertools.count(start, step):
                    if self.end is not None and n >= self.end:
                        return
                    with self.lock:
                        self.pulled += 1
                    yield n
            finally:
                with self.lock:
                    self.closed += 1

        return PipelineBuilder().add_source(numbers)

    def all(self) -> Builder:
        """Return a builder over all numbers."""
        return self.every(1, 0)


Add = Callable[[Builder], Builder]


def merge(sources: Sources, add: Add) -> Builder:
    made: Any = Merge(add(sources.every(2, 0)), add(sources.every(2, 1)))
    return PipelineBuilder().add_source(made)


def weighted(sources: Sources, add: Add) -> Builder:
    made: Any = Merge(add(sources.every(2, 0)), add(sources.every(2, 1)), weights=[1, 2], seed=1)
    return PipelineBuilder().add_source(made)


def mixed(sources: Sources, add: Add) -> Builder:
    async def mix(branches: list[AsyncIterator[int]]) -> AsyncIterator[int]:
        live = list(branches)
        while live:
            for branch in live[:]:
                try:
                    yield await anext(branch)
                except StopAsyncIteration:
                    live.remove(branch)

    made: Any = Merge(add(sources.every(2, 0)), add(sources.every(2, 1)), mix=mix)
    return PipelineBuilder().add_source(made)


def zipped(sources: Sources, add: Add) -> Builder:
    made: Any = Zip(add(sources.all()), sources.all())
    return PipelineBuilder().add_source(made).pipe(lambda pair: pair[0], name="first")


def routed(sources: Sources, add: Add) -> Builder:
    return sources.all().route(lambda n: n % 2, add, add, name="router")


def routed_by_completion(sources: Sources, add: Add) -> Builder:
    ways = {"even": add, "odd": lambda b: add(b).aggregate(3).disaggregate()}
    by_key: Any = lambda n: "odd" if n % 2 else "even"  # noqa: E731
    return sources.all().route(by_key, ways, output_order="completion", name="router")


def nested(sources: Sources, add: Add) -> Builder:
    def inner(branch: Builder) -> Builder:
        return branch.route(lambda n: n // 2 % 2, add, add, name="inner")

    return sources.all().route(lambda n: n % 2, inner, add, name="router")


def lists(sources: Sources, add: Add) -> Builder:
    below = add(sources.all()).aggregate(4)
    split: Any = lambda batch: [n % 2 for n in batch]  # noqa: E731
    made = below.route(split, same, lambda b: b.pipe(list), batched=True, name="router")
    return made.disaggregate()


def shuffled(sources: Sources, add: Add) -> Builder:
    return add(sources.all().shuffle(8, seed=1))


def taken(sources: Sources, add: Add) -> Builder:
    """The source goes on for ever, unless it is to be endless for the test."""
    end, sources.end = sources.end, None
    built = add(sources.all())
    return built if end is None else built.take(end)


def within(sources: Sources, add: Add) -> Builder:
    return add(sources.all()).aggregate(4, within=LONG).disaggregate()


def by_cost(sources: Sources, add: Add) -> Builder:
    return add(sources.all()).aggregate(BatchBy(lambda n: 1, 4), within=LONG).disaggregate()


SHAPES = {
    shape.__name__: shape
    for shape in (
        merge, weighted, mixed, zipped, routed, routed_by_completion, nested, lists, shuffled, taken,
        within, by_cost,
    )
}  # fmt: skip
UNORDERED = {"weighted", "routed_by_completion", "shuffled"}
each_shape = pytest.mark.parametrize("name", SHAPES)


def shaped(name: str, face: Face, op: Op | None = None, **options: Any) -> tuple[Builder, Sources]:
    """Return a builder of a shape, with an op in it, and its sources."""
    if name == "mixed" and face is Face.INLINE:
        pytest.skip("a mix cannot run inline")
    sources = Sources(options.pop("end", N))
    given = same if op is None else op

    def add(builder: Builder) -> Builder:
        return builder.pipe(given, **{"name": None, "concurrency": 2, **options})

    return SHAPES[name](sources, add), sources


def in_order(name: str, results: list[int]) -> list[int]:
    return sorted(results) if name in UNORDERED else results


def bad(n: int) -> bool:
    """Tell whether an op is to fail on it: half of the items of each branch."""
    return n % 8 in (1, 3, 4, 6)


async def later(n: int) -> int:
    for _ in range(n * 7 % 4):
        await asyncio.sleep(0)
    return n


@each_shape
@EACH_FACE
@pytest.mark.parametrize("op", [same, later])
def test_contract_1_2_every_item_once_and_in_order(op: Op, face: Face, name: str) -> None:
    built, _ = shaped(name, face, op, concurrency=3)
    outcome = drive(built, face)
    assert in_order(name, outcome.result()) == list(range(N))
    assert outcome.statistics.in_flight == 0


@each_shape
@EACH_ENGINE
def test_contract_3_no_more_calls_than_concurrency(face: Face, name: str) -> None:
    """Of each stage: a shape that has the op in several places has as many stages."""
    crowd = Crowd()

    def op(n: int) -> int:
        with crowd:
            return n

    built, _ = shaped(name, face, op, end=300)
    drive(built, face).result()
    stages = sum(s.name.startswith("op") for s in drive(built, face).statistics.stages)
    assert stages == {"merge": 2, "weighted": 2, "mixed": 2, "routed": 2, "nested": 3}.get(
        name, 2 if name == "routed_by_completion" else 1
    )
    assert 0 < crowd.most <= 2 * stages


@each_shape
@EACH_ENGINE
def test_contract_4_no_more_in_flight_than_describe_says(face: Face, name: str) -> None:
    built, sources = shaped(name, face, end=None)
    pipeline = built.build()
    about = pipeline.describe()
    bound = about.source_items_bound
    if bound is None:  # below lists, or a mix: each edge has one, of lists of four at most
        bound = 4 * (1 + sum(edge.elements or 0 for edge in about.bounds))
    seen: list[int] = []
    worst = 0

    def took(_: int) -> None:
        nonlocal worst
        seen.append(1)
        read = 2 * len(seen) if name == "zipped" else len(seen)
        worst = max(worst, sources.pulled - read)

    outcome = drive(pipeline, face, take=200, on_output=took)
    assert len(outcome.result()) == 200
    assert outcome.statistics.peak_in_flight <= bound
    assert worst <= bound + sources.opened  # and one that each source has in its hand


@each_shape
@EACH_FACE
def test_contract_5_batches_below_are_filled_after_drops(face: Face, name: str) -> None:
    def op(n: int) -> Any:
        return n if n % 3 else DROP

    built, _ = shaped(name, face, op)
    batches = drive(built.aggregate(4), face).result()
    assert all(len(batch) == 4 for batch in batches[:-1])
    items = sorted(n for batch in batches for n in batch)
    count = items[-1] + 1 if name == "taken" else N
    assert items == [n for n in range(count) if n % 3]
    assert name != "taken" or len(items) == N


@each_shape
@EACH_FACE
def test_contract_6_what_came_before_the_failure_then_the_same_object(
    face: Face, name: str
) -> None:
    error = ValueError("item 13")

    def op(n: int) -> int:
        if n == 13:
            raise error
        return n

    built, _ = shaped(name, face, op)
    outcome = drive(built, face)
    assert outcome.error is error
    assert "in stage 'op" in notes_of(error)
    assert "(13)" in notes_of(error)
    assert [record.index >= 0 for record in outcome.failures] == [True]
    if name in ("within", "by_cost", "lists"):  # no partial batch is flushed
        assert outcome.outputs == list(range(12))
    elif name not in UNORDERED:
        assert outcome.outputs == list(range(13))
    else:
        assert not set(outcome.outputs) - set(range(N)) - {13}
        assert len(set(outcome.outputs)) == len(outcome.outputs)


@each_shape
@EACH_FACE
def test_contract_7_skipped_failures_are_counted_over_all_branches(face: Face, name: str) -> None:
    def op(n: int) -> int:
        if bad(n):
            raise ValueError(n)
        return n

    built, _ = shaped(name, face, op)
    outcome = drive(built.build(on_error="skip"), face)
    assert len(outcome.result()) == (N if name == "taken" else N // 2)
    if name not in ("zipped", "taken"):
        assert outcome.statistics.failures == N // 2
    outcome = drive(built.build(max_failures=5), face)
    assert isinstance(outcome.error, TooManyFailures)
    assert len(outcome.error.records) == 6
    if name != "taken":  # where no pass comes to its own end
        outcome = drive(built.build(max_failures=Fraction(1, 20)), face)
        assert isinstance(outcome.error, TooManyFailures)


@each_shape
@EACH_FACE
def test_contract_7_when_every_call_failed_the_pass_is_an_error(face: Face, name: str) -> None:
    def op(n: int) -> int:
        raise ValueError(n)

    built, sources = shaped(name, face, op)
    if name == "taken":
        sources.end = N  # else it would go on for ever
    error = drive(built.build(on_error="skip"), face).error
    assert isinstance(error, TooManyFailures)
    assert isinstance(error.__cause__, ValueError)


@each_shape
@EACH_FACE
def test_contract_8_what_fails_once_is_called_again(face: Face, name: str) -> None:
    calls: Counter[int] = Counter()

    def op(n: int) -> int:
        calls[n] += 1
        if n % 5 == 0 and calls[n] == 1:
            raise OSError(n)
        return n

    built, _ = shaped(name, face, op, retry=Retry(2, backoff=0.0))
    outcome = drive(built, face)
    assert in_order(name, outcome.result()) == list(range(N))
    assert sum(stage.retried for stage in outcome.statistics.stages) >= N // 5
    assert outcome.statistics.failures == 0


@each_shape
@EACH_ENGINE
def test_contract_8_what_takes_too_long_is_a_failure_of_its_item(face: Face, name: str) -> None:
    async def op(n: int) -> int:
        if n == 7:
            await asyncio.Event().wait()
        return n

    built, _ = shaped(name, face, op, timeout=0.3, on_error="skip")
    outcome = drive(built, face)
    expected = [n for n in range(N) if n != 7]
    if name == "taken":  # one more instead
        expected.append(N)
    results = outcome.result()
    turns_move = name in ("merge", "mixed")  # after the drop
    assert (sorted(results) if turns_move else in_order(name, results)) == expected
    assert [record.error for record in outcome.failures] == ["StageTimeout"]


@each_shape
@EACH_FACE
def test_contract_9_the_user_s_function_is_asked_once_for_each_failure(
    face: Face, name: str
) -> None:
    asked: list[tuple[str, str]] = []
    loops: set[Any] = set()

    async def on_error(failure: Any) -> None:
        loops.add(asyncio.get_running_loop())
        asked.append((failure.stage, str(failure.exception)))

    def op(n: int) -> int:
        if bad(n):
            raise ValueError(n)
        return n

    built, _ = shaped(name, face, op)
    drive(built.build(on_error=on_error), face).result()
    texts = Counter(text for _, text in asked)
    assert set(texts.values()) == {1}
    assert set(texts) >= {str(n) for n in range(N) if bad(n)}
    assert all(stage.startswith("op") for stage, _ in asked)
    assert len(loops) == 1


@each_shape
@EACH_FACE
@pytest.mark.parametrize("kind", [StopIteration, asyncio.CancelledError])
def test_contract_10_protocol_errors_of_an_op_are_failures(
    kind: type[BaseException], face: Face, name: str
) -> None:
    error = kind("item 3")

    def op(n: int) -> int:
        if n == 3:
            raise error
        return n

    built, _ = shaped(name, face, op)
    outcome = drive(built, face)
    assert type(outcome.error) is RuntimeError
    assert outcome.error.__cause__ is error


@each_shape
@EACH_FACE
@pytest.mark.parametrize("kind", [KeyboardInterrupt])
def test_contract_10_interrupts_of_an_op_reach_the_consumer(
    kind: type[BaseException], face: Face, name: str
) -> None:
    error = kind("item 3")

    def op(n: int) -> int:
        if n == 3:
            raise error
        return n

    built, _ = shaped(name, face, op, on_error="skip")
    assert drive(built, face).error is error


@each_shape
def test_contract_11_wrong_arity_is_an_error_at_build(name: str) -> None:
    def needs_two(one: Any, two: Any) -> Any:
        return one + two

    op: Any = needs_two
    with pytest.raises(BuildError, match="needs_two"):
        shaped(name, Face.SYNC, op)[0].build()


@each_shape
@EACH_FACE
def test_contract_12_a_failing_source_of_each_branch_has_its_policy(face: Face, name: str) -> None:
    class Bumpy:
        """Goes on after each failure."""

        def __init__(self, start: int, step: int) -> None:
            self.rest = itertools.count(start, step)

        def __iter__(self) -> Bumpy:
            return self

        def __next__(self) -> int:
            n = next(self.rest)
            if n >= N:
                raise StopIteration
            if n in (8, 9):
                raise OSError(n)
            return n

    class Bumps(Sources):
        def every(self, step: int, start: int) -> Builder:
            return PipelineBuilder().add_source(lambda: Bumpy(start, step), on_error="skip")

    if name == "mixed" and face is Face.INLINE:
        pytest.skip("a mix cannot run inline")
    built = SHAPES[name](Bumps(), lambda builder: builder.pipe(same))
    outcome = drive(built, face)
    assert in_order(name, outcome.result()) == [n for n in range(N) if n not in (8, 9)]
    counted = 4 if name == "zipped" else 2
    assert outcome.statistics.failures == counted


@each_shape
@EACH_FACE
def test_contract_13_leaving_closes_every_source_and_leaves_nothing(face: Face, name: str) -> None:
    crowd = Crowd()

    def op(n: int) -> int:
        with crowd:
            return n

    built, sources = shaped(name, face, op, end=None)
    for take in (0, 1, 25):
        drive(built, face, take=take)
        assert crowd.running == 0
        assert sources.opened == sources.closed
    with pytest.raises(ZeroDivisionError):
        drive(built, face, take=3, leave_with=ZeroDivisionError())
    assert sources.opened == sources.closed > 0
    started = crowd.started
    assert crowd.wait_settled(0.01) == started


@each_shape
def test_contract_14_break_ends_short_forms_in_silence(
    name: str, recwarn: pytest.WarningsRecorder
) -> None:
    built, sources = shaped(name, Face.CALLER, later, end=None)
    pipeline: Pipeline[Any] = built.build()
    for _ in pipeline:
        break
    gc.collect()

    async def main() -> None:
        async for _ in pipeline:
            break
        gc.collect()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    run_loop(main())
    patience = threading.Event()
    for _ in range(1000):
        if sources.opened == sources.closed:
            break
        patience.wait(0.005)
    assert sources.opened == sources.closed > 0
    assert not list(recwarn)


@each_shape
@EACH_ENGINE
def test_contract_15_a_full_sink_holds_up_no_stop(face: Face, name: str) -> None:
    """The consumer takes one and leaves when nothing moves any more: every buffer is full then."""
    crowd = Crowd()

    def op(n: int) -> int:
        with crowd:
            return n

    built, sources = shaped(name, face, op, end=None)

    def settle(_: int) -> None:
        crowd.wait_settled(0.02)

    drive(built.add_sink(1), face, take=1, on_output=settle)
    assert sources.opened == sources.closed
    assert crowd.running == 0


@each_shape
@pytest.mark.parametrize("where", ["caller", "own"])
def test_contract_17_anext_that_is_given_up_loses_nothing(where: Any, name: str) -> None:
    built, _ = shaped(name, Face.CALLER, later)
    results: list[int] = []

    async def main() -> None:
        async with built.build().run(loop=where) as run:
            for turns in itertools.cycle((0, 1, 2, 3, 5, 8)):
                asking = asyncio.ensure_future(anext(run))
                for _ in range(turns):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
                if not asking.cancelled():
                    if isinstance(asking.exception(), StopAsyncIteration):
                        return
                    results.append(asking.result())
                if turns == 8:
                    try:
                        results.append(await anext(run))
                    except StopAsyncIteration:
                        return

    run_loop(main())
    assert in_order(name, results) == list(range(N))


@each_shape
@EACH_FACE
@pytest.mark.parametrize("take", [1, 3, 10])
def test_contract_18_nothing_of_a_pass_that_was_left_is_in_the_next(
    take: int, face: Face, name: str
) -> None:
    built, _ = shaped(name, face)
    pipeline = built.build()
    drive(pipeline, face, take=take)
    outcome = drive(pipeline, face)
    assert in_order(name, outcome.result()) == list(range(N))
    assert outcome.statistics.delivered == N
    assert outcome.statistics.failures == 0


@each_shape
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("stop", [None, 0, 2])
def test_contract_1_13_18_epochs_of_each_shape(stop: int | None, overlap: bool, name: str) -> None:
    """Whole epochs, and a middle one that is left early: it ends alone."""
    built, sources = shaped(name, Face.SYNC, concurrency=3)
    pipeline = built.build()
    with pipeline.epochs(3, overlap=overlap) as epochs:
        for number, run in enumerate(epochs):
            if number == 1 and stop is not None:
                assert len(list(itertools.islice(run, stop))) == stop
            else:
                assert in_order(name, list(run)) == list(range(N))
    assert sources.opened == sources.closed


@each_shape
@EACH_ENGINE
def test_contract_20_every_thread_is_ours_by_name(face: Face, name: str) -> None:
    before = set(threading.enumerate())
    threads: set[str] = set()

    def note(_: int) -> None:
        threads.update(t.name for t in threading.enumerate() if t not in before)

    built, _ = shaped(name, face)
    drive(built, face, on_output=note).result()
    assert threads
    assert all(thread.startswith("spdl_async-") for thread in threads), threads


REQUEST: ContextVar[str] = ContextVar("REQUEST", default="unset")


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_21_user_code_of_shapes_sees_the_context_of_the_start(face: Face) -> None:
    seen: dict[str, set[str]] = {}

    def noted(where: str, value: Any) -> Any:
        seen.setdefault(where, set()).add(REQUEST.get())
        return value

    class Told:
        def set_epoch(self, epoch: int) -> None:
            noted("set_epoch", epoch)

        def __iter__(self) -> Iterator[int]:
            return iter(range(20))

    async def mix(branches: list[AsyncIterator[int]]) -> AsyncIterator[int]:
        async for n in branches[0]:
            yield noted("mix", n)

    async def ask(n: int) -> int:
        return int(noted("async router", n)) % 2

    def forgive(failure: Any) -> None:
        noted("on_error", failure)

    def fails(n: int) -> int:
        if n == 5:
            raise ValueError(n)
        return int(noted("op of a branch", n))

    branch = PipelineBuilder().add_source(Told())
    start: Any = branch
    if face is not Face.INLINE:
        start = PipelineBuilder().add_source(Merge(branch, mix=mix))
    built = (
        start.route(
            lambda n: noted("router", n) % 2, lambda b: b.pipe(fails), lambda b: b.pipe(fails)
        )
        .route(ask, lambda b: b, lambda b: b.filter(lambda n: noted("filter", n) is not None))
        .aggregate(BatchBy(lambda n: noted("cost", 1), 4), within=LONG)
        .route(
            lambda batch: [noted("lists", 0) for _ in batch], lambda b: b.pipe(list), batched=True
        )
        .build(on_error=forgive)
    )
    token = REQUEST.set("mine")
    try:
        assert len(drive(built, face).result()) == 5
    finally:
        REQUEST.reset(token)
    wanted = {
        "set_epoch", "async router", "on_error", "op of a branch", "router", "filter", "cost", "lists",
    }  # fmt: skip
    assert set(seen) == wanted | (set() if face is Face.INLINE else {"mix"})
    assert all(values == {"mine"} for values in seen.values()), seen


@pytest.mark.parametrize("face", [Face.CALLER, Face.OWN, Face.SYNC], ids=kind_id)
def test_contract_6_one_exception_object_raised_above_a_route_and_in_a_branch(face: Face) -> None:
    """As a client does that keeps the error which closed it. The branch hears of the other first."""
    error = ValueError("the client was closed")
    failed = Gate()

    async def above(n: int) -> int:
        if n == 5:
            failed.open()
            raise error
        return n

    async def inside(n: int) -> int:
        if n == 3:
            await failed.passed()
            for _ in range(50):
                await asyncio.sleep(0)
            raise error
        return n

    def add(branch: Builder) -> Builder:
        return branch.pipe(inside)

    built = PipelineBuilder().add_source(range(9)).pipe(above).route(lambda n: n % 2, add, add)
    outcome = drive(built, face)
    assert outcome.error is error
    assert outcome.outputs == [0, 1, 2]
