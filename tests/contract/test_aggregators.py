"""BatchBy and BucketBy against plain loops, with their order, statistics, failures and identity."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("hypothesis")

from faces import ENGINE_FACES, FACES, Face, drive, notes_of
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import kind_id

from spdl_async import BatchBy, BucketBy, BuildError, PipelineBuilder

pytestmark = pytest.mark.timeout(60)
EACH_FACE = pytest.mark.parametrize("face", FACES, ids=kind_id)
COSTS = st.lists(st.integers(0, 30), max_size=60)


def same(n: int) -> int:
    return n


def run(aggregator: Any, items: list[Any]) -> list[list[Any]]:
    """Feed an aggregator as a pass does."""
    own = copy.deepcopy(aggregator)
    lists = [found for item in items for found in own.accumulate(item)]
    return [*lists, *own.flush()]


# BatchBy


@given(COSTS, st.integers(1, 40), st.none() | st.integers(1, 8))
def test_batches_by_cost_are_those_of_a_plain_loop(
    costs: list[int], max_cost: int, max_items: int | None
) -> None:
    wanted: list[list[int]] = []
    held: list[int] = []
    for cost in costs:
        if held and sum(held) + cost > max_cost:
            wanted.append(held)
            held = []
        held.append(cost)
        if sum(held) >= max_cost or len(held) == max_items:
            wanted.append(held)
            held = []
    wanted += [held] if held else []
    batches = run(BatchBy(same, max_cost, max_items=max_items), costs)
    assert batches == wanted
    assert [cost for batch in batches for cost in batch] == costs
    for batch in batches:
        assert sum(batch) <= max_cost or len(batch) == 1
        assert max_items is None or len(batch) <= max_items
    for one, other in pairwise(batches):
        # No batch could have had the next one's first item too.
        assert sum(one) + other[0] > max_cost or len(one) == max_items or sum(one) == max_cost


def test_statistics_of_batches_by_cost() -> None:
    by_cost = BatchBy(len, 4, max_items=3)
    assert by_cost.statistics() == {"batches": 0, "filled": 0.0, "oversized": 0}
    for text in ("aa", "bb", "longer", "c"):
        by_cost.accumulate(text)
    assert by_cost.statistics() == {"batches": 2, "filled": 10 / 8, "oversized": 1}
    assert by_cost.flush() == [["c"]]
    assert by_cost.flush() == []
    assert by_cost.statistics()["batches"] == 3


@EACH_FACE
def test_a_pass_by_cost(face: Face) -> None:
    random.seed(4)
    lengths = [min(5000, int(random.lognormvariate(5, 1))) for _ in range(400)] + [5000, 1]
    builder = PipelineBuilder().add_source(lengths).aggregate(BatchBy(same, 4096, max_items=64))
    outcome = drive(builder, face)
    assert [n for batch in outcome.result() for n in batch] == lengths
    assert outcome.outputs == run(BatchBy(same, 4096, max_items=64), lengths)
    assert all(type(batch) is list for batch in outcome.outputs)
    assert [5000] in outcome.outputs
    assert outcome.statistics.in_flight == 0
    notes = outcome.statistics.stage("BatchBy").notes
    assert notes["batches"] == len(outcome.outputs)
    assert notes["oversized"] == sum(n > 4096 for n in lengths)
    assert f"BatchBy: batches {len(outcome.outputs)}, filled 0." in str(outcome.statistics)


# BucketBy


def plain_buckets(
    lengths: list[int], boundaries: list[int], sizes: list[int | None], max_cost: int | None
) -> list[list[int]]:
    wanted: list[list[int]] = []
    open_lists: list[list[int]] = [[] for _ in range(len(boundaries) + 1)]
    for length in lengths:
        at = sum(length > boundary for boundary in boundaries)
        held = open_lists[at]
        if held and max_cost is not None and max([*held, length]) * (len(held) + 1) > max_cost:
            wanted.append(held)
            held = open_lists[at] = []
        held.append(length)
        is_full = max_cost is not None and max(held) * len(held) >= max_cost
        if is_full or len(held) == sizes[at]:
            wanted.append(held)
            open_lists[at] = []
    return wanted + [held for held in open_lists if held]


@given(
    lengths=COSTS,
    boundaries=st.sets(st.integers(0, 30), max_size=4).map(sorted),
    size=st.none() | st.integers(1, 6),
    max_cost=st.none() | st.integers(1, 80),
    shrinking=st.booleans(),
)
def test_buckets_are_those_of_a_plain_loop(
    lengths: list[int],
    boundaries: list[int],
    size: int | None,
    max_cost: int | None,
    shrinking: bool,
) -> None:
    if size is None and max_cost is None:
        return
    sizes: Any = size
    if size is not None and shrinking:
        sizes = [size + len(boundaries) - k for k in range(len(boundaries) + 1)]
    by_length = BucketBy(same, boundaries, batch_size=sizes, max_cost=max_cost)
    batches = run(by_length, lengths)
    each = sizes if isinstance(sizes, list) else [size] * (len(boundaries) + 1)
    assert batches == plain_buckets(lengths, boundaries, each, max_cost)
    assert sorted(n for batch in batches for n in batch) == sorted(lengths)
    for batch in batches:
        assert len({sum(n > b for b in boundaries) for n in batch}) == 1
        assert max_cost is None or max(batch) * len(batch) <= max_cost or len(batch) == 1


def test_the_tail_leaves_from_the_shortest_to_the_longest() -> None:
    by_length = BucketBy(same, [2, 4], batch_size=10)
    assert run(by_length, [5, 1, 3, 9, 2, 4]) == [[1, 2], [3, 4], [5, 9]]


def test_padding_is_the_share_of_what_is_padded() -> None:
    by_length = BucketBy(same, [10], batch_size=2)
    assert by_length.statistics() == {"batches": 0, "padding": 0.0}
    assert by_length.accumulate(1) == []
    assert by_length.accumulate(3) == [[1, 3]]
    assert by_length.statistics() == {"batches": 1, "padding": pytest.approx(2 / 6)}
    by_length.accumulate(20)
    by_length.flush()
    assert by_length.statistics() == {"batches": 2, "padding": pytest.approx(2 / 26)}


@EACH_FACE
def test_a_pass_by_length_pads_little_and_says_how_much(face: Face) -> None:
    random.seed(5)
    lengths = [int(random.lognormvariate(4, 1)) for _ in range(1000)]
    by_length = BucketBy(same, [25, 50, 100, 200, 400], batch_size=20)
    outcome = drive(PipelineBuilder().add_source(lengths).aggregate(by_length), face)
    batches = outcome.result()
    assert batches == run(by_length, lengths)
    elements = sum(max(batch) * len(batch) for batch in batches)
    padding = 1 - sum(lengths) / elements
    assert outcome.statistics.stage("BucketBy").notes["padding"] == pytest.approx(padding)
    plain = [lengths[a : a + 20] for a in range(0, 1000, 20)]
    assert elements < sum(max(batch) * len(batch) for batch in plain) / 1.5
    assert f"BucketBy: batches {len(batches)}, padding 0." in str(outcome.statistics)
    again = drive(PipelineBuilder().add_source(lengths).aggregate(by_length), face)
    assert again.outputs == batches  # nothing of the first pass is left in it
    assert by_length.statistics()["batches"] == 0


@EACH_FACE
def test_drop_last_drops_and_counts_the_tail(face: Face) -> None:
    builder = PipelineBuilder().add_source([1, 9, 1, 9, 9, 1])
    dropped = builder.aggregate(BucketBy(same, [5], batch_size=2), drop_last=True)
    outcome = drive(dropped, face)
    assert outcome.result() == [[1, 1], [9, 9]]
    assert outcome.statistics.stage("BucketBy").dropped == 2
    assert outcome.statistics.in_flight == 0


class Marked(BatchBy[int]):
    """One of the user's that adds to it."""

    mark = 0

    def statistics(self) -> dict[str, object]:
        return {**super().statistics(), "mark": self.mark}


def test_a_subclass_stays_one_in_a_pass() -> None:
    marked = Marked(same, 3)
    marked.mark = 7
    outcome = drive(PipelineBuilder().add_source([1, 1, 1, 1]).aggregate(marked), Face.SYNC)
    assert outcome.result() == [[1, 1, 1], [1]]
    assert outcome.statistics.stage("Marked").notes["mark"] == 7


# Failures


def make_batch(cost: Callable[[Any], float]) -> BatchBy[Any]:
    return BatchBy(cost, 4)


def make_bucket(cost: Callable[[Any], float]) -> BucketBy[Any]:
    return BucketBy(cost, [2], batch_size=2)


EACH_KIND = pytest.mark.parametrize("make", [make_batch, make_bucket])


@EACH_FACE
@EACH_KIND
@pytest.mark.parametrize(
    ("bad", "text"),
    [(-1, "-1; it must be a number of at least 0"), (math.nan, "nan"), ("x", "which is no number")],
)
def test_contract_12_a_bad_cost_is_a_failure_that_names_the_item(
    bad: Any, text: str, make: Any, face: Face
) -> None:
    costs = {"a": 1, "odd": bad, "b": 1}
    builder = PipelineBuilder().add_source(list(costs))
    outcome = drive(builder.aggregate(make(costs.get)), face)
    assert isinstance(outcome.error, (ValueError, TypeError))
    assert f"of 'odd' is {bad!r}"[:20] in str(outcome.error)
    assert text in str(outcome.error)
    assert "item 1 ('odd')" in notes_of(outcome.error)
    assert outcome.outputs == []
    skipped = drive(builder.aggregate(make(costs.get), on_error="skip"), face)
    assert skipped.result() == [["a", "b"]]
    assert [record.source for record in skipped.failures] == ["'odd'"]


@EACH_FACE
@EACH_KIND
def test_contract_12_an_exception_in_the_cost_is_a_failure_of_the_item(
    make: Any, face: Face
) -> None:
    error = KeyError("gone")

    def cost(item: int) -> int:
        if item == 3:
            raise error
        return 1

    builder = PipelineBuilder().add_source(range(6))
    outcome = drive(builder.aggregate(make(cost)), face)
    assert outcome.error is error
    assert all(len(batch) in (2, 4) for batch in outcome.outputs)
    kept = drive(builder.aggregate(make(cost), on_error="skip"), face).result()
    assert [n for batch in kept for n in batch] == [0, 1, 2, 4, 5]


# Identity: notes and disaggregate are about a batch's own items


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
def test_a_failure_below_names_the_items_of_its_own_batch(face: Face) -> None:
    def refuse(batch: list[str]) -> list[str]:
        if "bad" in batch:
            raise ValueError(batch)
        return batch

    words = ["longer", "a", "longest", "bad", "b", "longish"]
    by_length = BucketBy(len, [3], batch_size=2)
    outcome = drive(PipelineBuilder().add_source(words).aggregate(by_length).pipe(refuse), face)
    assert outcome.outputs == [["longer", "longest"]]
    assert outcome.error is not None
    assert "items 1–3 ('a' … 'bad')" in notes_of(outcome.error)


@EACH_FACE
def test_taken_apart_again_each_item_is_itself(face: Face) -> None:
    def refuse(word: str) -> str:
        if word == "b":
            raise ValueError(word)
        return word

    words = ["longer", "a", "b", "longest", "c"]
    builder = PipelineBuilder().add_source(words).aggregate(BucketBy(len, [3], batch_size=2))
    outcome = drive(builder.disaggregate().pipe(refuse, on_error="skip"), face)
    assert outcome.result() == ["a", "longer", "longest", "c"]
    assert [(record.index, record.source) for record in outcome.failures] == [(2, "'b'")]
    assert outcome.statistics.in_flight == 0


@settings(max_examples=25, deadline=None)
@given(COSTS, st.sampled_from((Face.SYNC, Face.INLINE, Face.CALLER)))
def test_contract_1_by_length_and_back(lengths: list[int], face: Face) -> None:
    by_length = BucketBy(same, [5, 12], max_cost=30)
    builder = PipelineBuilder().add_source(lengths).aggregate(by_length)
    outcome = drive(builder.disaggregate(), face)
    assert outcome.result() == [n for batch in run(by_length, lengths) for n in batch]
    assert outcome.statistics.in_flight == 0


# Statistics of a user's aggregator


class Told:
    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers
        self.seen = 0

    def accumulate(self, item: int) -> list[int]:
        self.seen += 1
        return [item]

    def flush(self) -> list[int]:
        return []

    def statistics(self) -> Any:
        return self.numbers(self.seen)


@EACH_FACE
def test_a_users_aggregator_has_notes_too(face: Face) -> None:
    def numbers(seen: int) -> dict[str, object]:
        return {"seen": seen, "share": 0.123456, "kind": "odd"}

    outcome = drive(PipelineBuilder().add_source(range(9)).aggregate(lambda: Told(numbers)), face)
    assert outcome.result() == list(range(9))
    assert outcome.statistics.stage("lambda").notes == numbers(9)
    assert "lambda: seen 9, share 0.123, kind odd" in str(outcome.statistics)


@EACH_FACE
def test_statistics_that_fail_are_shown_and_end_nothing(face: Face) -> None:
    def numbers(seen: int) -> Any:
        raise ZeroDivisionError("none")

    outcome = drive(PipelineBuilder().add_source(range(9)).aggregate(lambda: Told(numbers)), face)
    assert outcome.result() == list(range(9))
    assert "statistics() failed: ZeroDivisionError: none" in str(outcome.statistics)


# At build time


@pytest.mark.parametrize("bad", [0, -1, math.nan, True, "4", None])
def test_limits_are_checked(bad: Any) -> None:
    with pytest.raises(BuildError, match="BatchBy: max_cost must be a number above 0"):
        BatchBy(len, bad)
    if bad is not None:
        with pytest.raises(BuildError, match="BucketBy: max_cost must be a number above 0"):
            BucketBy(len, [1], max_cost=bad)
        with pytest.raises(BuildError, match="BatchBy: max_items must be an int of at least 1"):
            BatchBy(len, 4, max_items=bad)
        with pytest.raises(BuildError, match="BucketBy: batch_size must be an int of at least 1"):
            BucketBy(len, [1], batch_size=[3, bad])


def test_the_other_arguments_are_checked() -> None:
    for make in (
        lambda op: BatchBy(op, 4),
        lambda op: BucketBy(op, [1], batch_size=4),
    ):
        with pytest.raises(BuildError, match="must be a function of the item, not 'len'"):
            make("len")
    with pytest.raises(BuildError, match="give batch_size=, max_cost= or both"):
        BucketBy(len, [4])
    for boundaries in ([2, 2], [3, 1], [-1, 2], ["a"], [math.nan, 2], 4):
        with pytest.raises(BuildError, match="boundaries must be numbers of at least 0 that incr"):
            BucketBy(len, boundaries, batch_size=2)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(BuildError, match="2 boundaries make 3 buckets, but batch_size has 2 numb"):
        BucketBy(len, [2, 4], batch_size=[1, 2])
    assert run(BucketBy(len, [], batch_size=2), ["a", "b", "c"]) == [["a", "b"], ["c"]]


def test_costs_of_numpy_do_not_overflow() -> None:
    numpy = pytest.importorskip("numpy")
    batches = run(BatchBy(numpy.uint8, 600), [200] * 7)
    assert [len(batch) for batch in batches] == [3, 3, 1]
