"""Contract for ``route``: branches, order, lists of elements, failures, bounds."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, assert_type, cast

import pytest
from faces import ENGINE_FACES, FACES, PATIENCE, Face, drive, notes_of, run_loop

from spdl_async import DROP, BuildError, Merge, Pipeline, PipelineBuilder, TooManyFailures, Zip

pytestmark = pytest.mark.timeout(60)

Builder = PipelineBuilder[Any]
Order = Literal["input", "completion"]
ORDERS: tuple[Order, ...] = ("input", "completion")


def numbers(n: int) -> Builder:
    return PipelineBuilder().add_source(range(n))


def same(branch: Builder) -> Builder:
    return branch


def negated(branch: Builder) -> Builder:
    return branch.pipe(lambda n: -n, concurrency=3)


def later(branch: Builder) -> Builder:
    async def op(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1000

    return branch.pipe(op, concurrency=4)


def twice(branch: Builder) -> Builder:
    return branch.expand(lambda n: [n, n], concurrency=2)


def none_of(branch: Builder) -> Builder:
    return branch.filter(lambda n: False)


def fan(branch: Builder) -> Builder:
    def values(n: int) -> Iterator[int]:
        for k in range(n % 5):
            yield n * 100 + k

    return branch.pipe(values, concurrency=3).pipe(lambda n: n, concurrency=2)


BRANCHES: tuple[Callable[[Builder], Builder], ...] = (same, negated, later, twice, none_of, fan)


def expected_of(n: int) -> list[int]:
    """What the branch of a number makes of it."""
    return [
        [n],
        [-n],
        [n + 1000],
        [n, n],
        [],
        [n * 100 + k for k in range(n % 5)],
    ][n % 6]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [0, 1, 5, 700])
def test_items_go_through_their_branches(count: int, order: Order, face: Face) -> None:
    built = numbers(count).route(lambda n: n % 6, *BRANCHES, output_order=order)
    outcome = drive(built, face)
    expected = [x for n in range(count) for x in expected_of(n)]
    if order == "input":
        assert outcome.result() == expected
    else:
        assert sorted(outcome.result()) == sorted(expected)
    assert outcome.statistics.in_flight == 0


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("order", ORDERS)
def test_routes_nest_and_follow_one_another(order: Order, face: Face) -> None:
    def inner(branch: Builder) -> Builder:
        return branch.route(lambda n: n % 3, negated, twice, none_of)

    built = numbers(300).route(lambda n: n % 2, inner, later, output_order=order)
    built = built.route(lambda n: {True: 1, False: 0}[n > 0], same, same)
    outcome = drive(built, face)
    expected: list[int] = []
    for n in range(300):
        expected += [n + 1000] if n % 2 else [[-n], [n, n], []][n % 3]
    result = outcome.result()
    assert (result if order == "input" else sorted(result)) == (
        expected if order == "input" else sorted(expected)
    )
    assert outcome.statistics.in_flight == 0


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", ["sync", "async", "awaitable", "keys"])
def test_kinds_of_routers(kind: str, face: Face) -> None:
    async def by_parity(n: int) -> int:
        return n % 2

    def awaitable(n: int) -> Awaitable[int]:
        return by_parity(n)

    if kind == "keys":
        built = numbers(20).route(lambda n: n % 2 == 0, {True: same, False: negated})
    else:
        router: Any = {"sync": lambda n: n % 2, "async": by_parity, "awaitable": awaitable}[kind]
        built = numbers(20).route(router, same, negated, concurrency=2)
    assert drive(built, face).result() == [-n if n % 2 else n for n in range(20)]


@pytest.mark.parametrize("face", FACES)
def test_a_router_may_drop(face: Face) -> None:
    outcome = drive(numbers(9).route(lambda n: DROP if n % 2 else 0, same, name="r"), face)
    assert outcome.result() == [0, 2, 4, 6, 8]
    assert outcome.statistics.stage("r").dropped == 4
    assert outcome.statistics.in_flight == 0


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("answer", "keys", "kind", "match"),
    [
        (2, False, LookupError, "there are 2 branches, 0 to 1"),
        (-1, False, LookupError, "there are 2 branches"),
        (True, False, TypeError, "as a mapping"),
        ("a", False, TypeError, "position of a branch"),
        ("c", True, LookupError, r"branches \['a', 'b'\]"),
        ([], True, TypeError, "unhashable"),
    ],
)
def test_an_answer_that_names_no_branch_is_an_item_failure(
    answer: Any, keys: bool, kind: type[BaseException], match: str, face: Face
) -> None:
    good: Any = "a" if keys else 0

    def router(n: int) -> Any:
        return answer if n == 3 else good

    def build(**options: Any) -> Builder:
        if keys:
            return numbers(6).route(router, {"a": same, "b": same}, **options)
        return numbers(6).route(router, same, same, **options)

    outcome = drive(build(), face)
    assert outcome.outputs == [0, 1, 2]
    assert isinstance(outcome.error, kind)
    with pytest.raises(kind, match=match):
        raise outcome.error
    assert "'router' on item 3" in notes_of(outcome.error)
    skipped = drive(build(on_error="skip"), face)
    assert skipped.result() == [0, 1, 2, 4, 5]
    assert [(f.stage, f.index) for f in skipped.failures] == [("router", 3)]
    few = drive(build(max_failures=0), face)
    assert isinstance(few.error, TooManyFailures)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("at", [0, 1, 50, 199])
def test_contract_6_a_failing_branch_is_preceded_by_all_before_it(
    at: int, order: Order, face: Face
) -> None:
    error = KeyError("bad")

    def fails(n: int) -> int:
        if n == at:
            raise error
        return n

    def bad(branch: Builder) -> Builder:
        return branch.pipe(fails, concurrency=3, name="bad")

    built = numbers(200).route(
        lambda n: n % 3 if n != at else 1, later, bad, twice, output_order=order
    )
    outcome = drive(built, face)
    assert outcome.error is error
    before = [x for n in range(at) for x in ([n + 1000], [n], [n, n])[n % 3]]
    if order == "input":
        assert outcome.outputs == before
    assert f"'bad' on item {at}" in notes_of(error)


@pytest.mark.parametrize("face", ENGINE_FACES)
def test_contract_6_an_earlier_item_of_a_slower_branch_comes_first(face: Face) -> None:
    failed, error = threading.Event(), KeyError(1)

    def slow(n: int) -> int:
        if not failed.wait(PATIENCE):
            raise AssertionError("the other branch did not fail")
        return n

    def fails(n: int) -> int:
        failed.set()
        raise error

    built = numbers(8).route(lambda n: n % 2, lambda b: b.pipe(slow), lambda b: b.pipe(fails))
    outcome = drive(built, face)
    assert (outcome.outputs, outcome.error) == ([0], error)


@pytest.mark.parametrize("face", FACES)
def test_a_failing_source_and_a_failing_stage_below(face: Face) -> None:
    error = KeyError("source")

    def source() -> Iterator[int]:
        yield from range(10)
        raise error

    routed = PipelineBuilder().add_source(source).route(lambda n: n % 2, later, twice)
    outcome = drive(routed, face)
    assert outcome.error is error
    assert outcome.outputs == [x for n in range(10) for x in ([n, n] if n % 2 else [n + 1000])]

    def below(n: int) -> int:
        if n == 4:
            raise error
        return n

    outcome = drive(numbers(1000).route(lambda n: n % 2, same, negated).pipe(below), face)
    assert (outcome.outputs, outcome.error) == ([0, -1, 2, -3], error)


@pytest.mark.parametrize("face", FACES)
def test_completion_order_may_gather_in_a_branch_and_flushes_no_open_batch(face: Face) -> None:
    def batches(branch: Builder) -> Builder:
        return branch.aggregate(3)

    built = numbers(20).route(lambda n: n % 2, batches, same, output_order="completion")
    outcome = drive(built, face)
    result = outcome.result()
    assert [x for x in result if isinstance(x, list)] == [
        [0, 2, 4], [6, 8, 10], [12, 14, 16], [18],
    ]  # fmt: skip
    assert sorted(x for x in result if not isinstance(x, list)) == list(range(1, 20, 2))
    assert outcome.statistics.in_flight == 0
    error = KeyError(9)

    def fails(n: int) -> int:
        if n == 9:
            raise error
        return n

    built = numbers(20).route(
        lambda n: n % 2, batches, lambda b: b.pipe(fails), output_order="completion"
    )
    outcome = drive(built, face)
    assert outcome.error is error
    assert all(len(x) == 3 for x in outcome.outputs if isinstance(x, list))
    source_ended = threading.Event()

    def ends() -> Iterator[int]:
        yield from range(10)
        source_ended.set()

    def fails_late(n: int) -> int:
        if n == 9:
            if face is not Face.INLINE and not source_ended.wait(PATIENCE):
                raise AssertionError("the source did not end")
            raise error
        return n

    late = PipelineBuilder().add_source(ends)
    late = late.route(
        lambda n: n % 2, batches, lambda b: b.pipe(fails_late), output_order="completion"
    )
    outcome = drive(late, face)
    assert outcome.error is error
    assert [x for x in outcome.outputs if isinstance(x, list)] == [[0, 2, 4]]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [1, 4, 7])
def test_elements_of_lists_come_back_in_their_places(size: int, order: Order, face: Face) -> None:
    calls: list[list[int]] = []

    def times(factor: int) -> Callable[[Builder], Builder]:
        def op(part: list[int]) -> list[int]:
            calls.append(part)
            return [n * factor for n in part]

        return lambda branch: branch.pipe(op)

    built = numbers(50).aggregate(size).route(
        lambda batch: [n % 3 for n in batch], times(1), times(10), times(100),
        batched=True, output_order=order,
    )  # fmt: skip
    outcome = drive(built.disaggregate(), face)
    expected = [n * 10 ** (n % 3) for n in range(50)]
    assert (outcome.result() if order == "input" else sorted(outcome.result())) == (
        expected if order == "input" else sorted(expected)
    )
    assert all(calls)
    assert outcome.statistics.in_flight == 0


@pytest.mark.parametrize("face", FACES)
def test_batched_answers_and_parts_are_checked(face: Face) -> None:
    def drops(part: list[int]) -> Any:
        return DROP

    def short(part: list[int]) -> list[int]:
        return part[1:]

    def routed(op: Any, **options: Any) -> Builder:
        batches = numbers(8).aggregate(4)
        return batches.route(
            lambda batch: [n % 2 for n in batch],
            same,
            lambda b: b.pipe(op),
            batched=True,
            **options,
        )

    assert drive(routed(drops), face).result() == [[0, 2], [4, 6]]
    outcome = drive(routed(short, name="r"), face)
    assert isinstance(outcome.error, ValueError)
    assert "branch 1 was given a list of 2 and returned a list of 1" in str(outcome.error)
    assert "'r' on items 0–3" in notes_of(outcome.error)
    every = drive(routed(short, on_error="skip"), face)
    assert every.outputs == []
    few = numbers(8).aggregate(4).route(lambda batch: [0], same, batched=True)
    with pytest.raises(ValueError, match="returned 1 answers for a list of 4"):
        raise cast("BaseException", drive(few, face).error)
    no_list = numbers(8).route(lambda n: [0], same, batched=True)
    with pytest.raises(TypeError, match="must be a list or tuple"):
        raise cast("BaseException", drive(no_list, face).error)
    empty = (
        PipelineBuilder().add_source([[], [1]]).route(lambda b: [0] * len(b), same, batched=True)
    )
    assert drive(empty, face).result() == [[], [1]]


@pytest.mark.parametrize("face", FACES)
def test_batches_keep_their_members_through_a_branch(face: Face) -> None:
    def fails(n: int) -> int:
        if n == 5:
            raise KeyError(n)
        return n

    built = numbers(8).aggregate(3).route(lambda b: 0, lambda b: b.pipe(list)).disaggregate()
    outcome = drive(built.pipe(fails, on_error="skip", name="late"), face)
    assert outcome.result() == [0, 1, 2, 3, 4, 6, 7]
    assert [(f.stage, f.index) for f in outcome.failures] == [("late", 5)]
    apart = numbers(8).aggregate(3).route(lambda b: 0, lambda b: b.disaggregate())
    outcome = drive(apart.pipe(fails, on_error="skip", name="late"), face)
    assert outcome.result() == [0, 1, 2, 3, 4, 6, 7]
    assert [(f.stage, f.index) for f in outcome.failures] == [("late", 5)]
    assert outcome.statistics.in_flight == 0


@pytest.mark.parametrize("face", ENGINE_FACES)
def test_contract_2_4_behind_a_slow_head_items_wait_within_the_bound(face: Face) -> None:
    go, started = threading.Event(), itertools.count(1)
    seen = [0]

    def op(n: int) -> int:
        seen[0] = next(started)
        if n == 0 and not go.wait(PATIENCE):
            raise AssertionError("nobody let it go")
        return n

    built = numbers(100_000).route(
        lambda n: 0 if n == 0 else 1, lambda b: b.pipe(op), lambda b: b.pipe(op, concurrency=2)
    )
    pipeline = built.build()
    bound = {b.place: b.elements for b in pipeline.describe().bounds}["lambda branches"]
    assert bound is not None

    def open_soon() -> None:
        threading.Timer(0.2, go.set).start()

    open_soon()
    outcome = drive(pipeline, face, take=5)
    assert outcome.result() == list(range(5))
    assert outcome.statistics.peak_in_flight <= (pipeline.describe().source_items_bound or 0)
    assert seen[0] <= bound + 5


@pytest.mark.parametrize("face", ENGINE_FACES)
def test_one_pool_thread_and_a_given_pool_are_enough(face: Face) -> None:
    def build() -> Builder:
        return numbers(200).route(lambda n: n % 3, negated, twice, fan)

    expected = drive(build(), Face.INLINE).result()
    assert drive(build().build(num_threads=1), face).result() == expected
    with ThreadPoolExecutor(1) as pool:
        assert drive(build().build(executor=pool), face).result() == expected


@pytest.mark.parametrize("face", ENGINE_FACES)
@pytest.mark.parametrize("order", ORDERS)
def test_contract_13_leaving_stops_every_branch(order: Order, face: Face) -> None:
    built = PipelineBuilder().add_source(lambda: itertools.count())
    for _ in range(10):
        outcome = drive(
            built.route(lambda n: n % 4, later, twice, negated, same, output_order=order),
            face,
            take=9,
        )
        assert len(outcome.result()) == 9


@pytest.mark.parametrize("face", FACES)
def test_a_merge_of_routes(face: Face) -> None:
    one = numbers(50).route(lambda n: n % 2, same, twice)
    two = PipelineBuilder().add_source(["a", "b"])
    result = drive(PipelineBuilder().add_source(Merge(one, two)), face).result()
    assert result[:4] == [0, "a", 1, "b"]
    assert [x for x in result if isinstance(x, int)] == [
        x for n in range(50) for x in [n] * (1 + n % 2)
    ]


def test_what_cannot_be_a_branch_is_an_error() -> None:
    def mixed(branch: Builder) -> Builder:
        return branch.pipe(abs, concurrency=2, output_order="completion").expand(lambda n: [n])

    def generator(n: int) -> Iterator[int]:
        yield 0

    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: numbers(1).route(abs), "at least one branch"),
        (lambda: numbers(1).route(abs, {}), "at least one branch"),
        (lambda: numbers(1).route(abs, cast("Any", 3)), "branch 0 must be a function"),
        (lambda: numbers(1).route(abs, cast("Any", lambda b: None)), "must return the builder"),
        (lambda: numbers(1).route(abs, lambda b: numbers(2)), "another builder"),
        (
            lambda: numbers(1).route(abs, {"k": lambda b: b.add_sink(3)}),
            "branch 'k': a branch has no",
        ),
        (lambda: numbers(1).route(abs, same, batched=cast("Any", 1)), "batched must be"),
        (lambda: numbers(1).route(abs, same, concurrency=0), "concurrency"),
        (lambda: numbers(1).route(abs, same, output_order=cast("Any", "x")), "output_order"),
        (lambda: numbers(1).route(generator, same).build(), "one answer an item"),
        (lambda: numbers(1).route(cast("Any", lambda: 0), same).build(), "one argument"),
        (lambda: numbers(1).route(abs, lambda b: b.aggregate(2)).build(), "gathers items"),
        (lambda: numbers(1).route(abs, mixed).build(), "makes many items of one"),
        (lambda: numbers(1).route(abs, twice, batched=True).build(), "1→1 stages only"),
        (
            lambda: numbers(1).route(abs, lambda b: b.add_source([1])),
            "has a source already",
        ),
    ]
    for make, match in cases:
        with pytest.raises(BuildError, match=match):
            make()


def test_lengths_types_and_description() -> None:
    ints: PipelineBuilder[int] = PipelineBuilder().add_source([1, 2])

    def as_text(branch: PipelineBuilder[int]) -> PipelineBuilder[str]:
        return branch.pipe(str)

    def as_float(branch: PipelineBuilder[int]) -> PipelineBuilder[float]:
        return branch.pipe(float)

    built = ints.route(lambda n: n % 2, as_text, as_float).build()
    assert_type(built, Pipeline[str | float])
    assert list(built) == [1.0, "2"]
    with pytest.raises(TypeError, match="branches of"):
        len(built)
    text = str(built.describe())
    assert "branch 1\n      float: in threads" in text
    assert "-->|1|" in built.describe().mermaid


@pytest.mark.parametrize("face", FACES)
def test_shapes_in_branches(face: Face) -> None:
    built = numbers(12).route(
        lambda n: n % 2, lambda b: b.skip(2), lambda b: b.enumerate(10).pipe(lambda pair: sum(pair))
    )
    expected = [n if n % 2 == 0 else n + 10 + n // 2 for n in range(12) if n % 2 or n >= 4]
    outcome = drive(built, face)
    assert outcome.result() == expected
    assert outcome.statistics.in_flight == 0
    mixed = numbers(40).route(
        lambda n: n % 2, lambda b: b.shuffle(8), lambda b: b.aggregate(3, within=60),
        output_order="completion",
    )  # fmt: skip
    result = drive(mixed, face).result()
    assert sorted(x for x in result if isinstance(x, int)) == list(range(0, 40, 2))
    assert [x for batch in result if isinstance(batch, list) for x in batch] == list(
        range(1, 40, 2)
    )


def test_take_and_shuffle_are_refused_where_they_would_end_or_hold_up_the_others() -> None:
    with pytest.raises(BuildError, match="put it below the route"):
        numbers(9).route(abs, lambda b: b.take(2), output_order="completion").build()
    with pytest.raises(BuildError, match="gathers items"):
        numbers(9).route(abs, lambda b: b.shuffle(2)).build()


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("slow_fails", [False, True])
def test_contract_6_of_lists_too_all_before_the_failed_one_comes_first(
    slow_fails: bool, face: Face
) -> None:
    failed, late, early = threading.Event(), KeyError("list 3"), KeyError("list 1")

    def fast(part: list[int]) -> list[int]:
        if 6 in part:
            failed.set()
            raise late
        return part

    def slow(part: list[int]) -> list[int]:
        if face is not Face.INLINE and not failed.wait(PATIENCE):
            raise AssertionError("the other branch did not fail")
        if slow_fails and 3 in part:
            raise early
        return part

    lists = numbers(12).aggregate(2)
    built = lists.route(
        lambda batch: [n % 2 for n in batch],
        lambda b: b.pipe(fast),
        lambda b: b.pipe(slow),
        batched=True,
    )
    outcome = drive(built, face)
    if slow_fails:
        assert (outcome.outputs, outcome.error) == ([[0, 1]], early)
    else:
        assert (outcome.outputs, outcome.error) == ([[0, 1], [2, 3], [4, 5]], late)


@pytest.mark.parametrize("face", ENGINE_FACES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("end", ["take", "zip", "failure"])
def test_contract_6_13_an_end_below_a_route_stops_its_branches(
    end: str, order: Order, face: Face
) -> None:
    """The pass is over by itself, although branches hold values that nobody will take."""

    def fails(n: int) -> int:
        if n >= 0:
            raise KeyError(n)
        return n

    routed = PipelineBuilder().add_source(lambda: itertools.count())
    routed = routed.route(lambda n: n % 2, fan, twice, output_order=order)
    if end == "take":
        built: Builder = routed.take(5)
    elif end == "zip":
        built = PipelineBuilder().add_source(Zip(routed, numbers(5)))
    else:
        built = routed.pipe(fails)
    pipeline = built.build()
    got: list[list[int]] = []
    seen: list[int] = []

    def expected() -> Any:
        return pytest.raises(KeyError) if end == "failure" else contextlib.nullcontext()

    async def main() -> None:
        where: Any = "own" if face is Face.OWN else "caller"
        async with pipeline.epochs(3, loop=where, shutdown_timeout=PATIENCE) as epochs:
            async for run in epochs:
                seen.append(run.epoch)
                with expected():
                    got.append([x async for x in run])

    if face is Face.SYNC:
        with pipeline.epochs(3, shutdown_timeout=PATIENCE) as epochs:
            for run in epochs:
                seen.append(run.epoch)
                with expected():
                    got.append(list(run))
    else:
        run_loop(main(), face)
    assert seen == [0, 1, 2]
    assert [len(results) for results in got] == ([] if end == "failure" else [5, 5, 5])


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("order", ORDERS)
def test_what_an_aggregator_makes_of_no_data_goes_through_a_route(order: Order, face: Face) -> None:
    class Told:
        def accumulate(self, item: int) -> list[str]:
            return []

        def flush(self) -> list[str]:
            return ["nothing came"]

    built = (
        numbers(0)
        .aggregate(Told)
        .route(lambda text: 0, lambda b: b.pipe(str.upper), output_order=order)
    )
    assert drive(built, face).result() == ["NOTHING CAME"]


@pytest.mark.parametrize("face", FACES)
def test_elements_of_routed_batches_are_those_of_their_own_source_item(face: Face) -> None:
    def fails(text: str) -> str:
        if text == "b1":
            raise KeyError(text)
        return text

    one, two = (PipelineBuilder().add_source([f"{c}{n}" for n in range(3)]) for c in "ab")
    batches = PipelineBuilder().add_source(Merge(one, two)).aggregate(4)
    built = batches.route(lambda batch: 0, lambda b: b.disaggregate())
    outcome = drive(built.pipe(fails, on_error="skip"), face)
    assert outcome.result() == ["a0", "b0", "a1", "a2", "b2"]
    assert [(f.index, f.source) for f in outcome.failures] == [(1, "'b1'")]
    assert outcome.statistics.in_flight == 0
