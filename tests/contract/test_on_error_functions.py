"""Contract 9, and 12 with it: ``on_error`` as a function of the user's. Scenario C11."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from fractions import Fraction
from typing import Any, Literal

import pytest
from faces import ENGINE_FACES, FACES, Face, Gate, drive, functions_in, notes_of
from kinds import EACH_CASE, ORDERS, Kind, Order, Work, kind_id, same

from spdl_async import BatchBy, BuildError, Failure, PipelineBuilder, Retry, TooManyFailures

pytestmark = pytest.mark.timeout(60)
EACH_FACE = pytest.mark.parametrize("face", FACES, ids=kind_id)
EACH_ENGINE_FACE = pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
EACH_ORDER = pytest.mark.parametrize("order", ORDERS)
HOW: tuple[Literal["sync", "async"], ...] = ("sync", "async")
EACH_HOW = pytest.mark.parametrize("how", HOW)


class HandlerError(Exception):
    """Raised by the functions under test."""


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


def failing_on(*bad: int) -> dict[int, BaseException]:
    return {n: ValueError(f"bad {n}") for n in bad}


class Handler:
    """Takes failures; raises as told, when it has noted where it runs."""

    def __init__(self, raises: dict[int, BaseException | type[BaseException]] | None = None):
        self.raises = raises or {}
        self.failures: list[Failure] = []
        self.threads: set[str] = set()
        self.loops: set[int] = set()

    def call(self, failure: Failure) -> None:
        self.failures.append(failure)
        self.threads.add(threading.current_thread().name)
        if failure.index in self.raises:
            raise self.raises[failure.index]

    async def acall(self, failure: Failure) -> None:
        self.loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0)
        self.call(failure)

    def of(self, how: str) -> Callable[[Failure], Any]:
        return self.acall if how == "async" else self.call

    @property
    def indices(self) -> list[int]:
        return [failure.index for failure in self.failures]


@EACH_CASE
def test_contract_9_returning_means_skip(kind: Kind, face: Face) -> None:
    bad = range(0, 40, 7)
    for how in HOW:
        for concurrency, order in ((1, "input"), (4, "input"), (4, "completion")):
            errors = failing_on(*bad)
            handler = Handler()
            built = kind.add(
                numbers(40),
                Work(errors=errors),
                concurrency=concurrency,
                output_order=order,
                on_error=handler.of(how),
            )
            outcome = drive(built, face)
            result = outcome.result()
            kept = [n for n in range(40) if n not in bad]
            assert (result if order == "input" else sorted(result)) == kept
            if order == "input":
                assert handler.indices == list(bad)
            assert sorted(handler.indices) == list(bad)
            for failure in handler.failures:
                assert (failure.stage, failure.path, failure.attempts) == ("work", (), 1)
                assert failure.source == failure.index
                assert failure.exception is errors[failure.index]
                assert f"stage 'work' on item {failure.index}" in notes_of(failure.exception)
            stage = outcome.statistics.stage("work")
            assert (stage.failed, stage.items_out) == (len(bad), len(kept))
            assert [r.index for r in outcome.failures] == handler.indices
            assert outcome.statistics.in_flight == 0


@EACH_CASE
def test_contract_9_c11_what_it_raises_ends_the_run(kind: Kind, face: Face) -> None:
    for how in HOW:
        errors = failing_on(3, 9, 15)
        raised = HandlerError("no more")
        handler = Handler({9: raised})
        built = kind.add(numbers(40), Work(errors=errors), concurrency=4, on_error=handler.of(how))
        outcome = drive(built, face)
        assert outcome.outputs == [0, 1, 2, 4, 5, 6, 7, 8]
        assert outcome.error is raised
        assert raised.__context__ is errors[9]
        assert "on_error function of stage 'work' for item 9" in notes_of(raised)
        assert handler.indices == [3, 9]
        assert [r.index for r in outcome.failures][:2] == [3, 9]


@EACH_CASE
def test_contract_9_raising_the_failure_itself_equals_raise(kind: Kind, face: Face) -> None:
    plain = failing_on(5)
    expected = drive(kind.add(numbers(20), Work(errors=plain), concurrency=2), face)
    for how in HOW:
        errors = failing_on(5)

        def again(failure: Failure) -> None:
            raise failure.exception

        async def again_later(failure: Failure) -> None:
            await asyncio.sleep(0)
            raise failure.exception

        built = kind.add(
            numbers(20),
            Work(errors=errors),
            concurrency=2,
            on_error=again if how == "sync" else again_later,
        )
        outcome = drive(built, face)
        assert outcome.outputs == expected.outputs == [0, 1, 2, 3, 4]
        assert outcome.error is errors[5]
        assert expected.error is not None
        assert functions_in(outcome.error) == functions_in(expected.error)
        assert notes_of(outcome.error) == notes_of(expected.error)
        assert outcome.error.__context__ is None


@EACH_FACE
@EACH_HOW
def test_contract_9_a_context_of_its_own_is_kept_before_the_item_s_error(
    how: str, face: Face
) -> None:
    def report(failure: Failure) -> None:
        try:
            raise KeyError("no such key")
        except KeyError as error:
            raise HandlerError from error

    async def areport(failure: Failure) -> None:
        report(failure)

    errors = failing_on(0)
    chosen: Any = report if how == "sync" else areport
    outcome = drive(numbers(1).pipe(Work(errors=errors).call, on_error=chosen), face)
    assert isinstance(outcome.error, HandlerError)
    assert isinstance(outcome.error.__context__, KeyError)
    assert outcome.error.__context__.__context__ is errors[0]


@EACH_FACE
def test_contract_9_the_cause_of_the_item_s_error_may_be_raised(face: Face) -> None:
    cause = KeyError("the cause")

    def op(item: int) -> int:
        raise ValueError(item) from cause

    def unwrap(failure: Failure) -> None:
        assert failure.exception.__cause__ is not None
        raise failure.exception.__cause__

    outcome = drive(numbers(1).pipe(op, on_error=unwrap), face)
    assert outcome.error is cause


@EACH_FACE
@EACH_HOW
@pytest.mark.parametrize(
    "error", [StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError]
)
def test_contract_9_10_protocol_errors_of_the_function_are_wrapped(
    error: type[BaseException], how: str, face: Face
) -> None:
    handler = Handler({1: error})
    errors = failing_on(1)
    built = numbers(9).pipe(Work(errors=errors).call, concurrency=2, on_error=handler.of(how))
    outcome = drive(built, face)
    assert outcome.outputs == [0]
    assert isinstance(outcome.error, RuntimeError)


@EACH_FACE
@EACH_HOW
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_contract_9_10_interrupts_pass_the_function_by(
    error: type[BaseException], how: str, face: Face
) -> None:
    handler = Handler()
    work = Work(errors={2: error()})
    outcome = drive(numbers(9).pipe(work.call, on_error=handler.of(how)), face)
    assert isinstance(outcome.error, error)
    assert handler.failures == []


@EACH_FACE
@EACH_HOW
def test_contract_9_7_max_failures_counts_what_the_function_lets_pass(how: str, face: Face) -> None:
    for limit in (2, Fraction(2, 9)):
        handler = Handler()
        work = Work(errors=failing_on(1, 3, 5))
        built = numbers(9).pipe(work.call, on_error=handler.of(how), max_failures=limit)
        outcome = drive(built, face)
        assert isinstance(outcome.error, TooManyFailures)
        assert handler.indices == [1, 3, 5]
        assert len(outcome.error.records) == 3


@EACH_FACE
@EACH_HOW
def test_contract_9_when_every_call_failed_the_pass_is_an_error(how: str, face: Face) -> None:
    handler = Handler()
    work = Work(errors=failing_on(0, 1, 2))
    outcome = drive(numbers(3).pipe(work.call, on_error=handler.of(how)), face)
    assert isinstance(outcome.error, TooManyFailures)
    assert handler.indices == [0, 1, 2]


@EACH_FACE
@EACH_HOW
def test_contract_9_8_it_is_asked_about_the_last_attempt_only(how: str, face: Face) -> None:
    handler = Handler()
    calls: list[int] = []

    def op(item: int) -> int:
        calls.append(item)
        if item == 1 or (item == 2 and calls.count(2) == 1):
            raise ValueError(item)
        return item

    retry = Retry(3, backoff=0.0)
    outcome = drive(numbers(4).pipe(op, retry=retry, on_error=handler.of(how)), face)
    assert outcome.result() == [0, 2, 3]
    assert [(f.index, f.attempts) for f in handler.failures] == [(1, 3)]


# Where it runs


class Callee:
    """An object whose ``__call__`` is a coroutine function."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    async def __call__(self, failure: Failure) -> None:
        await self.handler.acall(failure)


@EACH_FACE
def test_contract_9_any_kind_of_function_will_do(face: Face) -> None:
    handler = Handler()

    async def two(label: str, failure: Failure) -> None:
        await handler.acall(failure)

    kinds: list[Any] = [
        handler.call,
        handler.acall,
        lambda failure: handler.acall(failure),
        functools.partial(two, "label"),
        Callee(handler),
        handler.failures.append,
    ]
    for number, function in enumerate(kinds, start=1):
        work = Work(errors=failing_on(1))
        assert drive(numbers(3).pipe(work.call, on_error=function), face).result() == [0, 2]
        assert handler.indices == [1] * number


@pytest.mark.parametrize("order", ORDERS)
def test_contract_9_it_runs_on_the_run_s_loop(order: Order) -> None:
    async def main() -> None:
        for how in HOW:
            handler = Handler()
            work = Work(errors=failing_on(1, 4))
            built = numbers(9).pipe(
                work.call, concurrency=2, output_order=order, on_error=handler.of(how)
            )
            async with built.build().run(loop="caller") as run:
                async for _ in run:
                    pass
            assert handler.threads == {threading.current_thread().name}
            assert handler.loops <= {id(asyncio.get_running_loop())}

    asyncio.run(main())
    handler = Handler()
    work = Work(errors=failing_on(1, 4))
    list(numbers(9).pipe(work.call, concurrency=2, on_error=handler.call).build(name="mine"))
    assert handler.threads == {"spdl_async-mine-loop"}


# Waiting for it


class Patient:
    """A coroutine function that waits at a gate before it lets an item pass."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.asked = Gate()
        self.cancelled: list[int] = []

    async def __call__(self, failure: Failure) -> None:
        self.asked.open()
        try:
            await self.gate.passed()
        except asyncio.CancelledError:
            self.cancelled.append(failure.index)
            raise


@EACH_ENGINE_FACE
@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "async"])
def test_contract_9_others_pass_while_it_waits(is_async: bool, face: Face) -> None:
    """With completion order everything else is delivered; with input order what comes before."""
    for order in ORDERS:
        patient = Patient()
        work = Work(errors=failing_on(3))
        op: Any = work.acall if is_async else work.call
        seen: list[int] = []
        wanted = 9 if order == "completion" else 3

        def on_output(
            value: int,
            seen: list[int] = seen,
            wanted: int = wanted,
            patient: Patient = patient,
        ) -> None:
            seen.append(value)
            if len(seen) == wanted:
                patient.gate.open()

        built = numbers(10).pipe(op, concurrency=2, output_order=order, on_error=patient)
        with patient.gate.opened_at_end():
            outcome = drive(built, face, on_output=on_output)
        assert sorted(outcome.result()) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        if order == "input":
            assert outcome.outputs == sorted(outcome.outputs)
            assert len(work.done) == 9  # the op went on beside it


@EACH_ENGINE_FACE
@EACH_ORDER
@pytest.mark.parametrize("kind", ["thread", "async", "generator", "source", "aggregator"])
def test_contract_9_13_a_stop_cancels_it(kind: str, order: Order, face: Face) -> None:
    patient = Patient()
    work = Work(errors=failing_on(2))

    def each(item: int) -> Iterator[int]:
        yield work.call(item)

    if kind == "source":
        built = PipelineBuilder().add_source(Reader({2}), on_error=patient)
    elif kind == "aggregator":
        built = numbers(9).aggregate(Singles({2}), on_error=patient)
    else:
        ops: dict[str, Any] = {"thread": work.call, "async": work.acall, "generator": each}
        built = numbers(9).pipe(ops[kind], output_order=order, on_error=patient)

    def wait_asked() -> None:
        if face is not Face.CALLER and face is not Face.CALLER_UVLOOP:
            patient.asked.wait()

    outcome = drive(built, face, take=2, on_end=wait_asked)
    assert outcome.outputs == [0, 1]
    assert patient.cancelled in ([2], [])
    if face in (Face.OWN, Face.SYNC):
        assert patient.cancelled == [2]


# Everywhere


class Reader:
    """A source whose iterator goes on after a failure."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad

    def __iter__(self) -> Iterator[int]:
        return map(self.read, range(9))

    def read(self, number: int) -> int:
        if number in self.bad:
            raise ValueError(f"bad {number}")
        return number


class AsyncReader(Reader):
    def __aiter__(self) -> AsyncIterator[int]:
        reader, numbers = self, iter(range(9))

        class Each:
            def __aiter__(self) -> Any:
                return self

            async def __anext__(self) -> int:
                for number in numbers:
                    return reader.read(number)
                raise StopAsyncIteration

        return Each()


class Singles:
    """An aggregator that fails on some items, and at the end where told."""

    def __init__(self, bad: set[int], *, flush_fails: bool = False) -> None:
        self.bad = bad
        self.flush_fails = flush_fails

    def accumulate(self, item: int) -> list[int]:
        if item in self.bad:
            raise ValueError(f"bad {item}")
        return [item]

    def flush(self) -> list[int]:
        if self.flush_fails:
            raise ValueError("flush")
        return []


@EACH_FACE
@EACH_HOW
@pytest.mark.parametrize("reader", [Reader, AsyncReader])
def test_contract_9_12_sources(reader: type[Reader], how: str, face: Face) -> None:
    handler = Handler()
    built = PipelineBuilder().add_source(reader({2, 3, 6}), on_error=handler.of(how))
    outcome = drive(built, face)
    assert outcome.result() == [0, 1, 4, 5, 7, 8]
    assert [(f.stage, f.index, f.source) for f in handler.failures] == [
        ("source", n, None) for n in (2, 3, 6)
    ]
    raised = HandlerError()
    handler = Handler({3: raised})
    built = PipelineBuilder().add_source(reader({2, 3, 6}), on_error=handler.of(how))
    outcome = drive(built, face)
    assert outcome.outputs == [0, 1]
    assert outcome.error is raised
    assert isinstance(raised.__context__, ValueError)
    assert handler.indices == [2, 3]


@EACH_FACE
@EACH_HOW
def test_contract_9_12_aggregators(how: str, face: Face) -> None:
    handler = Handler()
    aggregator = Singles({2, 6}, flush_fails=True)
    built = numbers(9).aggregate(aggregator, name="agg", on_error=handler.of(how))
    outcome = drive(built, face)
    assert outcome.result() == [0, 1, 3, 4, 5, 7, 8]
    assert handler.indices == [2, 6, -1]
    raised = HandlerError()
    handler = Handler({6: raised})
    outcome = drive(numbers(9).aggregate(Singles({2, 6}), on_error=handler.of(how)), face)
    assert outcome.outputs == [0, 1, 3, 4, 5]
    assert outcome.error is raised


class NoEnd(BatchBy[int]):
    """Batches of four whose last one cannot be made."""

    def __init__(self) -> None:
        super().__init__(lambda _: 1, 4)

    def flush(self) -> list[list[int]]:
        raise ValueError("flush")


@EACH_FACE
@EACH_HOW
def test_contract_9_12_a_failed_flush_concerns_the_items_that_are_held(
    how: str, face: Face
) -> None:
    handler = Handler()
    outcome = drive(numbers(10).aggregate(NoEnd(), on_error=handler.of(how)), face)
    assert outcome.result() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [(f.index, f.source) for f in handler.failures] == [(8, 8)]


@EACH_FACE
@EACH_HOW
def test_contract_9_12_c11_the_build_s_function_holds_for_every_stage(how: str, face: Face) -> None:
    """Also for built-in stages: disaggregate meets something that is no list."""
    handler = Handler()
    own = Handler()
    values: list[Any] = [[0], [1], 2, [3], [4], [5]]
    built = (
        PipelineBuilder()
        .add_source(values)
        .disaggregate()
        .pipe(Work(errors=failing_on(1, 3)).call, name="first", concurrency=2)
        .pipe(Work(errors=failing_on(5)).call, name="second", on_error=own.call)
    )
    outcome = drive(built.build(on_error=handler.of(how)), face)
    assert outcome.result() == [0, 4]
    assert {(f.stage, f.index) for f in handler.failures} == {
        ("disaggregate", 2),
        ("first", 1),
        ("first", 3),
    }
    assert own.indices == [5]
    assert [f.source for f in handler.failures if f.stage == "disaggregate"] == [2]


@EACH_FACE
def test_contract_9_the_record_shows_small_source_items_and_names_big_ones(face: Face) -> None:
    class Big:
        pass

    big = Big()
    ref = weakref.ref(big)
    handler = Handler()

    def fail(item: Any) -> None:
        raise ValueError

    sources: list[Any] = [("shard.tar", 3), big, "x" * 5000, b"key"]
    built = PipelineBuilder().add_source(lambda: iter(sources)).pipe(fail, on_error=handler.call)
    outcome = drive(built, face)
    assert isinstance(outcome.error, TooManyFailures)
    assert [f.source for f in handler.failures] == [("shard.tar", 3), "<Big>", "<str>", b"key"]
    sources.clear()
    for failure in handler.failures:
        failure.exception.__traceback__ = None
    del big, built, outcome
    handler.failures.clear()
    gc.collect()
    assert ref() is None


# Wrong ones


def generator(failure: Failure) -> Iterator[int]:
    yield 1


def no_argument() -> None: ...


def two_arguments(failure: Failure, other: int) -> None: ...


@pytest.mark.parametrize("verb", ["pipe", "filter", "expand", "aggregate", "add_source", "build"])
@pytest.mark.parametrize(
    ("value", "word"),
    [
        (generator, "generator function"),
        (no_argument, "one argument, the failure"),
        (two_arguments, "one argument, the failure"),
        (ValueError, "on_error must be"),
        (3, "on_error must be"),
        ("ignore", "on_error must be"),
    ],
)
def test_contract_9_a_wrong_function_is_an_error_at_the_verb(
    verb: str, value: Any, word: str
) -> None:
    with pytest.raises(BuildError, match=rf"{verb}.*{word}"):
        if verb == "build":
            numbers(1).build(on_error=value)
        elif verb == "add_source":
            PipelineBuilder().add_source([1], on_error=value)
        else:
            op: Any = Singles if verb == "aggregate" else same
            getattr(numbers(1), verb)(op, on_error=value)
