"""shuffle, take, skip, enumerate: contract 1, 2, 4, 6, 12, 18 with stages that choose and reorder."""

from __future__ import annotations

import asyncio
import itertools
import operator
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from faces import ENGINE_FACES, FACES, Face, Gate, drive
from kinds import kind_id, same

from spdl_async import BuildError, PipelineBuilder, TooManyFailures
from spdl_async.testing import Chain

pytestmark = pytest.mark.timeout(30)
EACH_FACE = pytest.mark.parametrize("face", FACES, ids=kind_id)
EACH_ENGINE_FACE = pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


class Failing:
    """Counts what is pulled from it; raises ``error`` in place of item ``at``, or never ends."""

    def __init__(self, at: int | None = None, error: BaseException | None = None) -> None:
        self.at = at
        self.error = error
        self.pulled = 0
        self.opened = 0
        self.closed = Gate()

    def __call__(self) -> Iterator[int]:
        self.opened += 1
        return self.read()

    def read(self) -> Iterator[int]:
        try:
            for n in itertools.count():
                if n == self.at and self.error is not None:
                    raise self.error
                self.pulled += 1
                yield n
        finally:
            self.closed.open()


class FailingAsync(Failing):
    """The same for a loop."""

    def __call__(self) -> AsyncIterator[int]:  # type: ignore[override]  # another kind of source
        self.opened += 1
        return self.read_async()

    async def read_async(self) -> AsyncIterator[int]:
        values = self.read()
        try:
            for n in values:
                yield n
                await asyncio.sleep(0)
        finally:
            values.close()  # type: ignore[attr-defined]  # it is a generator


SOURCES = pytest.mark.parametrize("source_type", [Failing, FailingAsync], ids=["sync", "async"])

# shuffle


@EACH_FACE
@pytest.mark.parametrize("size", [1, 2, 7, 49, 50, 1000])
def test_contract_1_a_shuffle_hands_on_every_item_once_in_the_order_of_its_seed(
    size: int, face: Face
) -> None:
    for count in (0, 1, 50):
        chain = Chain().shuffle(size, seed=5)
        outputs = drive(chain.builder(range(count)), face).result()
        assert outputs == chain.expected(range(count)).outputs
        assert sorted(outputs) == list(range(count))
        # An item moves forward by less than the buffer's size.
        assert all(item - at < size for at, item in enumerate(outputs))


def test_a_buffer_of_one_keeps_the_order_and_a_large_one_does_not() -> None:
    assert list(numbers(50).shuffle(1, seed=0).build()) == list(range(50))
    assert list(numbers(50).shuffle(50, seed=0).build()) != list(range(50))


def late(n: int) -> int:
    time.sleep(random.random() / 2000)
    return n


async def late_async(n: int) -> int:
    await asyncio.sleep(random.random() / 2000)
    return n


@EACH_FACE
@pytest.mark.parametrize("op", [late, late_async])
def test_contract_2_the_order_depends_on_nothing_but_seed_and_epoch(
    op: Callable[[int], Any], face: Face
) -> None:
    wanted = Chain().shuffle(16, seed=3).expected(range(100)).outputs
    for concurrency in (1, 8):
        piped = numbers(100).pipe(op, concurrency=concurrency).shuffle(16, seed=3)
        assert drive(piped.pipe(same, concurrency=concurrency), face).result() == wanted


@EACH_FACE
def test_contract_18_each_epoch_has_an_order_of_its_own_which_can_be_had_again(face: Face) -> None:
    pipeline = numbers(40).shuffle(40).build(seed=7)
    first, second = drive(pipeline, face).result(), drive(pipeline, face).result()
    assert first != second
    again = numbers(40).shuffle(40).build(seed=7)
    assert drive(again, face).result() == first
    with again.run_sync(epoch=1) as run:
        assert list(run) == second
    assert list(numbers(40).shuffle(40).build(seed=8)) != first


def test_stages_draw_different_numbers_unless_they_are_given_one_seed() -> None:
    def orders(**options: Any) -> tuple[list[int], list[int]]:
        one = numbers(40).shuffle(40, name="one", **options).build(seed=1)
        other = numbers(40).shuffle(40, name="other", **options).build(seed=1)
        return list(one), list(other)

    assert operator.ne(*orders())
    assert operator.eq(*orders(seed=9))
    with_build_seed = [list(numbers(40).shuffle(40, seed=9).build(seed=n)) for n in (1, 2)]
    assert with_build_seed[0] == with_build_seed[1]


def test_a_built_pipeline_keeps_its_seed_as_a_source() -> None:
    inner = numbers(40).shuffle(40).build(seed=3)
    outer = PipelineBuilder().add_source(inner).pipe(same).build(seed=4)
    assert list(outer) == list(inner)


@EACH_FACE
@SOURCES
def test_a_shuffle_fills_its_buffer_before_it_emits(source_type: type[Failing], face: Face) -> None:
    source = source_type()
    pulled: list[int] = []
    outcome = drive(
        PipelineBuilder().add_source(source).shuffle(20),
        face,
        take=1,
        on_output=lambda _: pulled.append(source.pulled),
    )
    assert outcome.result()[0] < 20
    assert pulled[0] >= 21
    if face is Face.INLINE:
        assert pulled[0] == 21


@EACH_FACE
@SOURCES
@pytest.mark.parametrize("at", [0, 3, 10, 25])
def test_contract_6_what_came_before_a_failure_is_handed_on_before_it(
    at: int, source_type: type[Failing], face: Face
) -> None:
    error = ValueError("bad")
    source = source_type(at, error)
    outcome = drive(PipelineBuilder().add_source(source).shuffle(10, seed=1), face)
    assert outcome.error is error
    assert outcome.outputs == Chain().shuffle(10, seed=1).expected(range(at)).outputs
    assert sorted(outcome.outputs) == list(range(at))


@EACH_FACE
def test_contract_6_a_failure_in_the_middle_of_the_chain(face: Face) -> None:
    error = ValueError("bad")

    def fails(n: int) -> int:
        if n == 17:
            raise error
        return n

    builder = numbers(60).pipe(fails, concurrency=4).shuffle(8, seed=2).aggregate(4)
    outcome = drive(builder, face)
    assert outcome.error is error
    whole = Chain().shuffle(8, seed=2).expected(range(17)).outputs
    assert outcome.outputs == [whole[a : a + 4] for a in range(0, 16, 4)]  # no short batch


@EACH_FACE
def test_contract_5_batches_below_a_shuffle_are_full(face: Face) -> None:
    builder = numbers(100).filter(lambda n: n % 3 > 0).shuffle(16).aggregate(8)
    batches = drive(builder, face).result()
    assert [len(batch) for batch in batches] == [8] * 8 + [2]
    assert sorted(n for batch in batches for n in batch) == [n for n in range(100) if n % 3]


@EACH_ENGINE_FACE
def test_contract_13_a_shuffle_that_still_fills_its_buffer_can_be_left(face: Face) -> None:
    source = Failing()
    outcome = drive(PipelineBuilder().add_source(source).shuffle(10**9), face, take=0)
    assert outcome.outputs == []


async def test_contract_22_a_large_buffer_is_filled_in_slices() -> None:
    turns, ended = 0, False
    loop = asyncio.get_running_loop()

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not ended:
            loop.call_soon(turn)

    loop.call_soon(turn)
    async with numbers(80_001).shuffle(80_000).build().run(loop="caller") as run:
        await anext(run)
        ended = True
    assert turns > 10  # some 50 ms of work, in slices of a millisecond


# take


@EACH_FACE
@SOURCES
@pytest.mark.parametrize("n", [1, 2, 10, 700])
def test_take_is_exact_and_closes_an_endless_source(
    n: int, source_type: type[Failing], face: Face
) -> None:
    source = source_type()
    outcome = drive(PipelineBuilder().add_source(source).take(n), face)
    assert outcome.result() == list(range(n))
    assert source.closed.is_open
    assert outcome.statistics.in_flight == 0
    taken = outcome.statistics.stage(f"take({n})")
    assert (taken.items_in, taken.items_out) == (n, n)
    if face is Face.INLINE:
        assert source.pulled == n


@EACH_FACE
@SOURCES
def test_take_closes_the_source_while_its_items_are_still_on_their_way(
    source_type: type[Failing], face: Face
) -> None:
    """The consumer, who has the first result only, waits for the source to be closed."""
    source = source_type()
    builder = PipelineBuilder().add_source(source).pipe(same).take(3).pipe(same)
    # Inline nothing runs ahead: the third item comes when it is asked for.
    hold = None if face is Face.INLINE else source.closed
    assert drive(builder.add_sink(8), face, hold=hold).result() == [0, 1, 2]
    assert source.closed.is_open


@EACH_FACE
@SOURCES
def test_take_nothing_does_not_open_the_source(source_type: type[Failing], face: Face) -> None:
    source = source_type()
    for builder in (
        PipelineBuilder().add_source(source).take(0),
        PipelineBuilder().add_source(source).pipe(same).take(0).aggregate(2),
    ):
        assert drive(builder, face).result() == []
    assert (source.opened, source.pulled) == (0, 0)
    assert drive(numbers(5).take(0), face).result() == []


@EACH_FACE
@SOURCES
def test_a_failure_after_the_last_item_that_take_wants_does_not_matter(
    source_type: type[Failing], face: Face
) -> None:
    error = ValueError("late")
    builder = PipelineBuilder().add_source(source_type(5, error)).take(5)
    assert drive(builder, face).result() == list(range(5))
    outcome = drive(PipelineBuilder().add_source(source_type(4, error)).take(5), face)
    assert outcome.error is error
    assert outcome.outputs == list(range(4))


@EACH_FACE
def test_failures_beyond_take_count_for_no_budget(face: Face) -> None:
    def fails(n: int) -> int:
        if n >= 5:
            raise ValueError(n)
        return n

    builder = numbers(40).pipe(fails, concurrency=8).take(5).pipe(same)
    assert drive(builder.build(), face).result() == list(range(5))
    own = numbers(40).pipe(fails, concurrency=8, max_failures=2).take(5).pipe(same)
    assert drive(own, face).result() == list(range(5))
    shared = numbers(40).pipe(fails, concurrency=8).take(5).build(max_failures=2)
    assert drive(shared, face).result() == list(range(5))
    outcome = drive(numbers(40).pipe(fails).take(6).build(max_failures=2), face)
    assert isinstance(outcome.error, TooManyFailures)


@EACH_FACE
def test_what_is_below_take_sees_an_ordinary_end(face: Face) -> None:
    builder = PipelineBuilder().add_source(itertools.count).take(5).aggregate(2)
    assert drive(builder, face).result() == [[0, 1], [2, 3], [4]]
    shuffled = PipelineBuilder().add_source(itertools.count).take(20).shuffle(30)
    assert sorted(drive(shuffled, face).result()) == list(range(20))
    assert drive(numbers(9).take(6).take(4).take(100), face).result() == [0, 1, 2, 3]


@EACH_FACE
def test_take_cuts_a_batch_and_a_generator(face: Face) -> None:
    def endless(n: int) -> Iterator[int]:
        try:
            while True:
                yield n
        finally:
            closed.append(n)

    closed: list[int] = []
    assert drive(numbers(3).expand(endless).take(4), face).result() == [0] * 4
    assert 0 in closed
    assert drive(numbers(100).aggregate(3).take(2), face).result() == [[0, 1, 2], [3, 4, 5]]


# skip and enumerate


@EACH_FACE
@pytest.mark.parametrize("n", [0, 1, 3, 1000])
def test_skip_drops_the_first_and_counts_them(n: int, face: Face) -> None:
    outcome = drive(numbers(300).pipe(same, concurrency=2).skip(n).pipe(same), face)
    assert outcome.result() == list(range(n, 300))
    stage = outcome.statistics.stage(f"skip({n})")
    assert (stage.items_in, stage.dropped) == (300, min(n, 300))
    assert outcome.statistics.in_flight == 0


@EACH_FACE
def test_enumerate_numbers_the_items_that_reach_it(face: Face) -> None:
    assert drive(numbers(3).enumerate(), face).result() == [(0, 0), (1, 1), (2, 2)]
    kept = numbers(600).filter(lambda n: n % 2).enumerate(-5)
    assert drive(kept, face).result() == [(k - 5, 2 * k + 1) for k in range(300)]


# At build time


@pytest.mark.parametrize("bad", [-1, True, 2.0, "3", None])
@pytest.mark.parametrize("verb", ["take", "skip", "shuffle", "enumerate", "seed"])
def test_numbers_are_checked_at_the_verb(verb: str, bad: Any) -> None:
    if (verb, bad) in (("enumerate", -1), ("seed", None)):
        return
    builder = numbers(3)
    with pytest.raises(BuildError, match=f"{verb}.*must be an int") as raised:
        if verb == "seed":
            builder.shuffle(2, seed=bad)
        else:
            getattr(builder, verb)(bad)
    assert repr(bad) in str(raised.value)
    builder.build()


def test_a_shuffle_needs_a_buffer() -> None:
    builder = numbers(3)
    with pytest.raises(
        BuildError, match="shuffle: buffer_size must be an int of at least 1, not 0"
    ):
        builder.shuffle(0)
    with pytest.raises(BuildError, match="there is a stage 'x' already"):
        builder.shuffle(2, name="x").shuffle(2, name="x").build()


@pytest.mark.parametrize("count", [0, 1, 5, 9, 30])
def test_len_is_exact_through_them(count: int) -> None:
    pipeline = numbers(count).shuffle(4).skip(2).take(7).enumerate().aggregate(3).build()
    assert len(pipeline) == operator.length_hint(pipeline) == len(list(pipeline))
    unsized = PipelineBuilder().add_source(itertools.count).take(3).build()
    with pytest.raises(TypeError, match="source"):
        len(unsized)


def test_describe_names_them_and_their_bounds() -> None:
    pipeline = numbers(9).shuffle(4).skip(2).take(7).enumerate(1).build(seed=3)
    description = pipeline.describe()
    text = str(description)
    for words in (
        "shuffle: random order within 4 items, on the loop, seed 3/shuffle",
        "skip(2)",
        "take(7)",
        "enumerate(1)",
    ):
        assert words in text
    held = {bound.place: bound.elements for bound in description.bounds}
    assert (held["shuffle"], held["take(7)"], held["skip(2)"], held["enumerate(1)"]) == (4, 0, 0, 0)
    assert description.source_items_bound == 4 + 2
    assert "take(7)" in description.mermaid
