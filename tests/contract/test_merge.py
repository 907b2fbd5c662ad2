"""Contract for ``Merge`` and ``Zip``: shapes of issue "the engine, whole"."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, assert_type, cast

import pytest
from faces import ENGINE_FACES, FACES, Face, drive, notes_of

from spdl_async import DROP, BuildError, Merge, Pipeline, PipelineBuilder, RunStateError, Zip

pytestmark = pytest.mark.timeout(60)


def source(items: Any, **options: Any) -> PipelineBuilder[Any]:
    return PipelineBuilder().add_source(items, **options)


def merged(*builders: Any, **options: Any) -> PipelineBuilder[Any]:
    return PipelineBuilder().add_source(Merge(*builders, **options))


def round_robin(*lists: list[Any], first: bool = False) -> list[Any]:
    """The same in plain Python."""
    queues = [iter(one) for one in lists]
    found: list[Any] = []
    while queues:
        for queue in list(queues):
            try:
                found.append(next(queue))
            except StopIteration:
                if first:
                    return found
                queues.remove(queue)
    return found


LENGTHS = [(3, 3), (0, 4), (5, 1, 3), (1000, 3, 700), (0, 0), (1,)]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("first", [False, True])
def test_branches_take_turns(lengths: tuple[int, ...], first: bool, face: Face) -> None:
    lists = [[(branch, k) for k in range(n)] for branch, n in enumerate(lengths)]
    built = merged(*map(source, lists), stop="first" if first else "all")
    outcome = drive(built, face)
    assert outcome.result() == round_robin(*lists, first=first)
    if not first:
        assert outcome.statistics.in_flight == 0
        assert outcome.statistics.stage("merge").items_out == sum(lengths)


@pytest.mark.parametrize("face", FACES)
def test_each_branch_has_stages_sources_and_counts_of_its_own(face: Face) -> None:
    async def numbers() -> AsyncIterator[int]:
        for n in range(50):
            yield n

    def letters() -> Iterator[str]:
        yield from "abc" * 10

    branch = source(numbers).pipe(lambda n: -n, concurrency=4, name="minus")
    built = merged(branch, source(letters, name="letters").filter(lambda c: c != "b"))
    outcome = drive(built.aggregate(7), face)
    expected = round_robin([-n for n in range(50)], list("ac" * 10))
    assert [x for batch in outcome.result() for x in batch] == expected
    shots = {stage.name: stage for stage in outcome.statistics.stages}
    assert shots["minus"].items_out == 50
    assert shots["letters"].items_out == 30
    assert shots["merge"].items_in == 70
    assert outcome.statistics.in_flight == 0


@pytest.mark.parametrize("face", FACES)
def test_merges_nest_and_are_shared_by_builders(face: Face) -> None:
    inner = Merge(source([]), source([1, 2]))
    prefix = PipelineBuilder().add_source(inner)
    outer = merged(prefix.pipe(lambda n: n * 10), prefix, source([7]))
    assert drive(outer, face).result() == round_robin([10, 20], [1, 2], [7])
    built: Pipeline[Any] = source([1, 2], on_error="skip").pipe(lambda n: 1 // (n - 1)).build()
    kept = merged(built, source([5])).build(on_error="raise")
    error = drive(kept, face).error
    assert isinstance(error, ZeroDivisionError)  # the stage keeps the policy of its own build


def test_weighted_draws_depend_on_seed_and_epoch_only() -> None:
    def slow(n: int) -> int:
        return n

    def order(seed: int | None, build_seed: int, *, wide: int) -> list[list[str]]:
        a = source(["a"] * 300).pipe(slow, concurrency=wide)
        b = source(["b"] * 300).pipe(slow, concurrency=1)
        made = merged(a, b, source(["c"] * 9), weights=[3, 1, 0], stop="first", seed=seed)
        pipeline = made.build(seed=build_seed)
        return [list(pipeline), list(pipeline)]

    assert order(5, 1, wide=1) == order(5, 2, wide=8)
    assert order(None, 1, wide=1) == order(None, 1, wide=3)
    assert order(None, 1, wide=1) != order(None, 2, wide=1)
    one, two = order(5, 1, wide=1)
    assert one != two
    assert "c" not in one
    assert 2 < Counter(one)["a"] / Counter(one)["b"] < 4


@pytest.mark.parametrize("face", FACES)
def test_weights_go_on_with_what_is_left(face: Face) -> None:
    built = merged(source(range(5)), source(["x"] * 200), weights=[9, 1]).build(seed=3)
    result = drive(built, face).result()
    assert [x for x in result if x != "x"] == list(range(5))
    assert len(result) == 205


def test_a_weight_of_zero_is_never_read() -> None:
    opened = threading.Event()

    def never() -> Iterator[int]:
        opened.set()
        yield 1

    assert list(merged(source([1, 2]), source(never), weights=[1, 0]).build()) == [1, 2]
    assert not opened.is_set()


@pytest.mark.parametrize("face", ENGINE_FACES)
def test_endless_branches_stop_with_the_run(face: Face) -> None:
    closed = []

    def endless() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            closed.append(1)

    built = merged(source(endless), source(endless), source([1]))
    assert drive(built, face, take=7).result() == [0, 0, 1, 1, 1, 2, 2]
    assert closed == [1, 1]
    short = merged(source(endless), source([5, 6]), stop="first")
    assert drive(short, face).result() == [0, 5, 1, 6, 2]
    assert closed == [1, 1, 1]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("at", [0, 1, 40])
def test_contract_6_a_failing_branch_ends_the_merge_where_its_turn_comes(
    at: int, face: Face
) -> None:
    error = KeyError("bad")

    def fails(n: int) -> int:
        if n == at:
            raise error
        return n

    good, bad = list(range(100)), source(range(100)).pipe(fails, concurrency=3, name="bad")
    outcome = drive(merged(source(good), bad), face)
    assert outcome.error is error
    assert outcome.outputs == round_robin(good[: at + 1], list(range(at)))
    assert f"'bad' on item {at}" in notes_of(error)


@pytest.mark.parametrize("face", ENGINE_FACES)
def test_a_mix_of_ones_own(face: Face) -> None:
    async def by_twos(branches: list[AsyncIterator[Any]]) -> AsyncIterator[Any]:
        left, right = branches
        async for item in left:
            yield item
            yield (item, await anext(right))
            yield DROP

    outcome = drive(
        merged(source(range(3)), source("abcd"[k] for k in range(4)), mix=by_twos), face
    )
    assert outcome.result() == [0, (0, "a"), 1, (1, "b"), 2, (2, "c")]


@pytest.mark.parametrize("face", ENGINE_FACES)
def test_a_mix_hears_of_failures_and_its_own_are_raised(face: Face) -> None:
    error, own = KeyError("bad"), ValueError("own")
    closed = []

    def fails(n: int) -> int:
        raise error

    async def tolerant(branches: list[AsyncIterator[Any]]) -> AsyncIterator[Any]:
        try:
            await anext(branches[0])
        except KeyError as found:
            if found is not error:
                raise
        async for item in branches[1]:
            yield item

    async def faulty(branches: list[AsyncIterator[Any]]) -> AsyncIterator[Any]:
        try:
            yield await anext(branches[1])
            raise own
        finally:
            closed.append(1)

    async def strict(branches: list[AsyncIterator[Any]]) -> AsyncIterator[Any]:
        async for item in branches[0]:
            yield item

    def branches() -> list[PipelineBuilder[Any]]:
        return [source([1]).pipe(fails, name="bad"), source([5, 6])]

    assert drive(merged(*branches(), mix=tolerant), face).result() == [5, 6]
    outcome = drive(merged(*branches(), mix=faulty), face)
    assert (outcome.outputs, outcome.error, closed) == ([5], own, [1])
    assert "'merge'" in notes_of(own)
    assert drive(merged(*branches(), mix=strict), face).error is error
    assert "'merge'" not in notes_of(error)


def test_a_mix_is_closed_in_its_task_when_the_consumer_leaves() -> None:
    tasks = []

    async def mix(branches: list[AsyncIterator[Any]]) -> AsyncIterator[Any]:
        tasks.append(asyncio.current_task())
        try:
            async for item in branches[0]:
                yield item
        finally:
            tasks.append(asyncio.current_task())

    async def main() -> None:
        async with merged(source(itertools.count()), mix=mix).build().run() as run:
            assert await anext(run) == 0

    asyncio.run(main())
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


def test_a_mix_cannot_run_inline() -> None:
    async def mix(branches: list[AsyncIterator[Any]]) -> AsyncIterator[Any]:
        yield 1

    with pytest.raises(RunStateError, match="leave inline out"):
        merged(source([1]), mix=mix).build().run_sync(inline=True).__enter__()


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("lengths", [(3, 3), (500, 700), (2, 5, 3), (0, 2)], ids=str)
def test_zip(lengths: tuple[int, ...], face: Face) -> None:
    lists = [[(branch, k) for k in range(n)] for branch, n in enumerate(lengths)]
    outcome = drive(PipelineBuilder().add_source(Zip(*map(source, lists))).aggregate(4), face)
    assert [x for b in outcome.result() for x in b] == list(zip(*lists, strict=False))
    strict = drive(PipelineBuilder().add_source(Zip(*map(source, lists), strict=True)), face)
    assert strict.outputs == list(zip(*lists, strict=False))
    if len(set(lengths)) > 1:
        shortest, longer = lengths.index(min(lengths)), lengths.index(max(lengths[:2]))
        assert isinstance(strict.error, ValueError)
        assert f"branch {shortest} ended after {min(lengths)} items" in str(strict.error)
        assert f"branch {longer} has more" in str(strict.error) or len(lengths) > 2
    else:
        assert strict.error is None


@pytest.mark.parametrize("face", FACES)
def test_contract_6_zip_of_a_failing_branch(face: Face) -> None:
    error = KeyError(3)

    def fails(n: int) -> int:
        if n == 3:
            raise error
        return n

    made = Zip(source(range(9)), source(range(9)).pipe(fails, concurrency=2))
    outcome = drive(PipelineBuilder().add_source(made), face)
    assert (outcome.outputs, outcome.error) == ([(0, 0), (1, 1), (2, 2)], error)


def test_lengths() -> None:
    a, b = source(range(5)), source(range(8)).aggregate(2)
    assert len(merged(a, b).build()) == 9
    assert len(merged(a, b, weights=[1, 0]).build()) == 5
    assert len(PipelineBuilder().add_source(Zip(a, b)).build()) == 4
    with pytest.raises(TypeError, match="first branch"):
        len(merged(a, b, stop="first").build())


def test_what_makes_no_sense_is_an_error() -> None:
    a, b = source([1]), source([2])

    async def mix(branches: list[AsyncIterator[Any]]) -> AsyncIterator[Any]:
        yield 1

    def no_generator(branches: list[Any]) -> list[Any]:
        return branches

    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: Merge(), "at least one"),
        (lambda: Merge(a, cast("Any", [1])), "branch 1 is a list"),
        (lambda: Merge(PipelineBuilder()), "has no source"),
        (lambda: Merge(a, b, weights=[1]), "1 weights for 2 branches"),
        (lambda: Merge(a, b, weights=[0, 0]), "not all 0"),
        (lambda: Merge(a, b, weights=[-1, 2]), "at least 0"),
        (lambda: Merge(a, b, weights=[float("nan"), 2]), "finite"),
        (lambda: Merge(a, b, weights=cast("Any", "ab")), "numbers"),
        (lambda: Merge(a, b, stop=cast("Any", "last")), "stop must be"),
        (lambda: Merge(a, b, seed=1), "needs no seed"),
        (lambda: Merge(a, b, weights=[1, 1], seed=True), "seed must be"),
        (lambda: Merge(a, b, weights=[1, 1], seed=-3), "seed must be an int of at least 0"),
        (lambda: Merge(a, b, mix=mix, **cast("Any", {"seed": 1})), "decides everything"),
        (lambda: Zip(), "at least one"),
        (lambda: Zip(a, strict=cast("Any", 1)), "strict must be"),
        (lambda: PipelineBuilder().add_source(Merge(a), name="x"), "belongs to the Merge"),
        (lambda: merged(a, mix=cast("Any", no_generator)).build(), "async generator function"),
        (lambda: merged(source([1], name="s"), source([2], name="s")).build(), "unique"),
    ]
    for make, match in cases:
        with pytest.raises(BuildError, match=match):
            make()


def test_a_used_up_iterator_in_a_branch_is_found() -> None:
    pipeline = merged(source(iter([1])), source([2])).build()
    assert list(pipeline) == [1, 2]
    with pytest.raises(RunStateError, match="used up"):
        list(pipeline)


def test_types() -> None:
    ints: PipelineBuilder[int] = PipelineBuilder().add_source([1])
    texts: PipelineBuilder[str] = PipelineBuilder().add_source(["a"])
    flags: PipelineBuilder[bytes] = PipelineBuilder().add_source([b""])
    two = PipelineBuilder().add_source(Merge(ints, texts)).build()
    three = PipelineBuilder().add_source(Merge(ints, texts, flags)).build()
    tuples = PipelineBuilder().add_source(Zip(ints, texts)).build()
    assert_type(two, Pipeline[int | str])
    assert_type(three, Pipeline[int | str | bytes])
    assert_type(tuples, Pipeline[tuple[int, str]])
    assert (list(two), list(three), list(tuples)) == ([1, "a"], [1, "a", b""], [(1, "a")])


def test_describe_shows_the_branches() -> None:
    made = merged(source([1]).pipe(abs), source([2]), weights=[1, 0]).build()
    text = str(made.describe())
    assert "merge: drawn with weights [1.0, 0.0], to the end of the last branch" in text
    assert "branch 1, never read (weight 0)" in text
    assert made.describe().source_items_bound is not None
    mermaid = made.describe().mermaid
    assert mermaid.count("-->") == 4


@pytest.mark.parametrize("face", FACES)
def test_take_in_a_branch_ends_that_branch_only(face: Face) -> None:
    built = merged(
        source(range(4)).pipe(lambda n: n),
        source(lambda: itertools.count(100)).take(2),
        source([7]),
    )
    outcome = drive(built, face)
    assert outcome.result() == [0, 100, 7, 1, 101, 2, 3]
    both = merged(source(lambda: itertools.count()), source([5, 6])).take(5)
    assert drive(both, face).result() == [0, 5, 1, 6, 2]


def test_a_merge_in_a_built_pipeline_keeps_its_seed() -> None:
    drawn = merged(source(["a"] * 50), source(["b"] * 50), weights=[1, 1])
    inner = drawn.build(seed=1)
    one = list(PipelineBuilder().add_source(inner).build(seed=2))
    other = list(PipelineBuilder().add_source(inner).build(seed=3))
    assert one == other == list(drawn.build(seed=1))


@pytest.mark.parametrize("face", ENGINE_FACES)
@pytest.mark.parametrize("shape", ["turns", "weights", "zip"])
def test_contract_4_what_is_taken_from_branches_stays_within_the_bound(
    shape: str, face: Face
) -> None:
    one = source(range(5_000)).pipe(lambda n: n, concurrency=2)
    two = source(range(5_000))
    if shape == "zip":
        built = PipelineBuilder().add_source(Zip(one, two))
    else:
        built = merged(one, two, weights=None if shape == "turns" else [1, 3])
    pipeline = built.build()
    outcome = drive(pipeline, face)
    assert len(outcome.result()) == (5_000 if shape == "zip" else 10_000)
    bound = pipeline.describe().source_items_bound
    assert bound is not None
    assert outcome.statistics.peak_in_flight <= bound
