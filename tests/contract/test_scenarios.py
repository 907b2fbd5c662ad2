"""Scenarios F1, F3, F4, F5, F7, F9 and K4 from end to end."""

from __future__ import annotations

import asyncio
import math
import operator
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

import pytest
from faces import ENGINE_FACES, FACES, Crowd, Face, drive, notes_of
from kinds import kind_id

from spdl_async import BatchBy, BucketBy, CollateError, Merge, PipelineBuilder
from spdl_async.sources import PushSource

pytestmark = pytest.mark.timeout(60)
EACH_FACE = pytest.mark.parametrize("face", FACES, ids=kind_id)
EACH_ENGINE = pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)


def source(items: Any) -> PipelineBuilder[Any]:
    return PipelineBuilder().add_source(items)


def merged(*branches: PipelineBuilder[Any], **options: Any) -> PipelineBuilder[Any]:
    made: Any = Merge(*branches, **options)
    return PipelineBuilder().add_source(made)


# F1: what a shuffle leaves of the old order


def correlation(order: list[int]) -> float:
    """Return the correlation of old and new positions: that of ranks, since these are ranks."""
    mean = (len(order) - 1) / 2
    covariance = sum((at - mean) * (n - mean) for at, n in enumerate(order))
    return covariance / sum((at - mean) ** 2 for at in range(len(order)))


def between_neighbours(order: list[int]) -> float:
    return sum(abs(one - other) for one, other in pairwise(order)) / (len(order) - 1)


@pytest.mark.parametrize("size", [100, 1_000, 20_000])
def test_f1_a_shuffle_mixes_as_well_as_its_buffer_can(size: int) -> None:
    """The ideal distance of neighbours: of waits that last as many draws as the buffer has places,
    on average, that number; of random positions in the whole a third of it."""
    count = 20_000
    order = list(source(range(count)).shuffle(size, seed=4).build())
    assert sorted(order) == list(range(count))
    # Nothing comes before the buffer was full: a result is at most so far ahead of its place.
    assert all(n < at + size + 1 for at, n in enumerate(order))
    ideal = count / 3 if size == count else float(size)
    assert between_neighbours(order) > 0.9 * ideal
    if size == count:
        assert abs(correlation(order)) < 3 / math.sqrt(count)


def test_f1_shuffled_shards_and_a_buffer_together_leave_no_neighbours() -> None:
    """Shards of a hundred: with their order and a buffer shuffled, few neighbours are of one shard."""
    shards = [range(at, at + 100) for at in range(0, 20_000, 100)]
    built = source(shards).shuffle(200, seed=1).expand(lambda shard: shard)
    order = list(built.shuffle(2_000, seed=2).build())
    same = sum(one // 100 == other // 100 for one, other in pairwise(order)) / len(order)
    assert same < 0.05
    assert abs(correlation(order)) < 0.2


# F3: several datasets with weights


SIZES = {"small": 10, "middle": 100, "large": 1_000}
WEIGHTS = [0.5, 0.3, 0.2]


def datasets() -> list[PipelineBuilder[Any]]:
    return [source([name] * size) for name, size in SIZES.items()]


@EACH_FACE
def test_f3_all_goes_on_until_every_dataset_has_ended(face: Face) -> None:
    built = merged(*datasets(), weights=WEIGHTS, seed=7)
    result = drive(built, face).result()
    assert Counter(result) == SIZES
    assert drive(built, face).result() == result
    last = max(at for at, name in enumerate(result) if name == "middle")
    assert result[last + 1 :] == ["large"] * (len(result) - last - 1)  # nobody else is left


@EACH_FACE
def test_f3_first_ends_where_the_turn_comes_to_a_dataset_that_has_ended(face: Face) -> None:
    built = merged(*datasets(), weights=WEIGHTS, seed=7, stop="first")
    result = drive(built, face).result()
    whole = drive(merged(*datasets(), weights=WEIGHTS, seed=7), face).result()
    assert result == whole[: len(result)]
    assert Counter(result)["small"] == SIZES["small"]
    assert len(result) < sum(SIZES.values())


@EACH_FACE
def test_f3_shares_are_those_of_the_weights_within_three_sigma(face: Face) -> None:
    names = list(SIZES)
    built = merged(*(source([name] * 3_000) for name in names), weights=WEIGHTS, seed=11)
    drawn = drive(built.take(3_000), face).result()
    for name, weight in zip(names, WEIGHTS, strict=True):
        sigma = math.sqrt(3_000 * weight * (1 - weight))
        assert abs(Counter(drawn)[name] - 3_000 * weight) < 3 * sigma


@EACH_FACE
@pytest.mark.parametrize("stop", ["all", "first"])
def test_f3_a_dataset_that_is_empty_and_one_that_is_excluded(stop: Any, face: Face) -> None:
    with_empty = merged(*datasets(), source([]), weights=[*WEIGHTS, 0.1], seed=3, stop=stop)
    counts = Counter(drive(with_empty, face).result())
    if stop == "all":
        assert counts == SIZES
    else:
        assert sum(counts.values()) < 100
    excluded = merged(*datasets(), source([]), weights=[*WEIGHTS, 0], seed=7, stop=stop)
    alone = merged(*datasets(), weights=WEIGHTS, seed=7, stop=stop)
    assert drive(excluded, face).result() == drive(alone, face).result()


# F4: batches by cost and by length


@EACH_FACE
def test_f4_no_batch_costs_too_much_unless_one_item_does(face: Face) -> None:
    random.seed(8)
    lengths = [min(4_000, 1 + int(random.lognormvariate(5, 1))) for _ in range(600)]
    lengths.insert(300, 5_000)
    by_cost = source(lengths).aggregate(BatchBy(int, 4_096, max_items=64))
    batches = drive(by_cost, face).result()
    assert [n for batch in batches for n in batch] == lengths  # in order, and the tail with them
    assert [batch for batch in batches if sum(batch) > 4_096] == [[5_000]]
    assert max(map(len, batches)) <= 64

    by_length = source(lengths).aggregate(BucketBy(int, [64, 256, 1024], batch_size=16))
    outcome = drive(by_length, face)
    batches = outcome.result()
    assert sorted(n for batch in batches for n in batch) == sorted(lengths)
    bucket = [{sum(n > edge for edge in (64, 256, 1024)) for n in batch} for batch in batches]
    assert all(len(numbers) == 1 for numbers in bucket)
    elements = sum(max(batch) * len(batch) for batch in batches)
    waste = outcome.statistics.stage("BucketBy").notes["padding"]
    assert waste == pytest.approx(1 - sum(lengths) / elements)


# F5: what does not fit into one batch


PICTURES = {"rgb": (3, 64, 64), "grey": (1, 64, 64), "cmyk": (4, 64, 64), "wide": (3, 64, 65)}


@EACH_FACE
@pytest.mark.parametrize("odd", ["grey", "cmyk", "wide"])
def test_f5_the_error_names_the_keys_the_shapes_and_what_to_do(odd: str, face: Face) -> None:
    """Also where items before them were dropped, so that places in the batch say nothing."""
    np = pytest.importorskip("numpy")
    pytest.importorskip("torch")
    from spdl_async.collate import collate

    def decode(name: str) -> Any:
        return np.zeros(PICTURES[name.partition("-")[0]], "u1")

    names = [f"rgb-{n}" for n in range(9)]
    names[6] = f"{odd}-6"
    names.insert(2, "broken")
    built = source(names).pipe(decode, on_error="skip").aggregate(4).pipe(collate)
    outcome = drive(built, face)
    assert len(outcome.outputs) == 1
    error = outcome.error
    assert isinstance(error, CollateError)
    assert error.samples == (0, 2)
    assert str(PICTURES["rgb"]) in str(error)
    assert str(PICTURES[odd]) in str(error)
    assert "resize" in str(error)
    assert "pad" in str(error)
    assert "sample 0 from item 5 ('rgb-4'), sample 2 from item 7" in notes_of(error)
    assert f"('{odd}-6')" in notes_of(error)


def test_f5_samples_that_were_put_together_again_are_not_named() -> None:
    """An op below may have made another list of them: no name is better than a wrong one."""
    pytest.importorskip("torch")
    from spdl_async.collate import collate

    built = source([1, 2]).aggregate(2).pipe(lambda batch: [*batch, 3, "x"]).pipe(collate)
    error = drive(built, Face.SYNC).error
    assert isinstance(error, CollateError)
    assert error.samples == (0, 3)
    assert "items 0–1" in notes_of(error)
    assert "gathered with" not in notes_of(error)


# F7: lengths, as progress bars ask for them


def total_of(iterable: Any) -> int | None:
    """Return what a progress bar shows as the total: as tqdm asks."""
    try:
        return len(iterable)
    except (TypeError, AttributeError):
        return None


F7 = {
    "batches": (source(range(70)).aggregate(32), 3),
    "full batches": (source(range(70)).aggregate(32, drop_last=True), 2),
    "shuffle, take, skip": (source(range(70)).shuffle(9, seed=1).skip(5).take(40), 40),
    "merge": (merged(source(range(5)), source(range(9))).aggregate(4), 4),
    "disaggregate": (source([[1, 2], [3]]).disaggregate(), None),
    "filter": (source(range(9)).filter(lambda n: n > 3), None),
    "skip policy": (source(range(9)).pipe(lambda n: n, on_error="skip"), None),
    "within": (source(range(9)).aggregate(4, within=9.0), None),
    "unsized": (source(iter(range(9))), None),
    "by cost": (source(range(9)).aggregate(BatchBy(int, 9)), None),
    "route": (source(range(9)).route(lambda n: 0, lambda b: b.filter(bool)), None),
}


@pytest.mark.parametrize("name", F7)
def test_f7_a_total_is_exact_or_unknown(name: str) -> None:
    builder, expected = F7[name]
    pipeline = builder.build()
    assert total_of(pipeline) == expected
    if expected is None:
        assert operator.length_hint(pipeline, -1) in (-1, 9)  # "if nothing is dropped"
    else:
        assert len(list(pipeline)) == expected


# F9: sources that come while it runs


async def test_f9_a_feed_beside_other_branches_has_backpressure_and_an_end() -> None:
    feed: PushSource[int] = PushSource(2)
    pipeline = merged(source(["a", "b"]), source(feed)).add_sink(1).build()
    put = 0

    async def produce() -> None:
        nonlocal put
        for n in range(200):
            await feed.put(n)
            put += 1
        feed.close()

    producer = asyncio.create_task(produce())
    bound = pipeline.describe().source_items_bound
    assert bound is not None
    results = []
    async with pipeline.run(loop="caller") as run:
        async for item in run:
            results.append(item)
            for _ in range(5):  # whatever can move has moved
                await asyncio.sleep(0)
            assert put <= len(results) + bound + 2
    await producer
    assert [item for item in results if item not in ("a", "b")] == list(range(200))
    assert len(results) == 202


@pytest.mark.parametrize("face", [face for face in ENGINE_FACES if face is not Face.SYNC])
def test_f9_sources_are_added_to_a_running_merge(face: Face) -> None:
    """The mix is the user's own: it takes turns with what comes, until there is nothing left."""
    added: list[str] = []

    async def shard(name: str) -> AsyncIterator[str]:
        for n in range(3):
            await asyncio.sleep(0)
            yield f"{name}{n}"

    async def mix(branches: list[AsyncIterator[str]]) -> AsyncIterator[str]:
        live = list(branches)
        while live:
            live += [shard(added.pop()) for _ in added[:]]
            for branch in live[:]:
                try:
                    yield await anext(branch)
                except StopAsyncIteration:
                    live.remove(branch)

    def took(value: str) -> None:
        if value == "a1":
            added.append("late ")

    built = merged(source([f"a{n}" for n in range(300)]), mix=mix).add_sink(1)
    result = drive(built, face, on_output=took).result()
    assert [item for item in result if item.startswith("late")] == ["late 0", "late 1", "late 2"]
    assert [item for item in result if item.startswith("a")] == [f"a{n}" for n in range(300)]


# K4: which stage is slow


def slept(milliseconds: float) -> Any:
    def work(item: int) -> int:
        time.sleep(milliseconds / 1e3)
        return item

    return work


def four_stages(count: int) -> PipelineBuilder[Any]:
    return (
        source(range(count))
        .pipe(slept(1), name="fetch")
        .pipe(slept(20), name="decode")
        .pipe(slept(3), name="augment")
        .pipe(slept(2), name="pack")
    )


@EACH_ENGINE
def test_k4_the_slow_stage_is_named(face: Face) -> None:
    """20 ms against 3: a busy machine makes all of them slower."""
    outcome = drive(four_stages(25), face, on_output=lambda _: time.sleep(0.005))
    outcome.result()
    said = outcome.statistics.bottleneck()
    assert said.startswith("Stage 'decode' is the bottleneck: "), said
    assert said in str(outcome.statistics)
    decode = outcome.statistics.stage("decode")
    assert decode.busy >= 25 * 0.02
    assert decode.items_in == decode.items_out == 25


@pytest.mark.parametrize("face", [Face.OWN, Face.SYNC], ids=kind_id)
def test_k4_a_slow_consumer_is_named(face: Face) -> None:
    outcome = drive(four_stages(10), face, on_output=lambda _: time.sleep(0.08))
    outcome.result()
    said = outcome.statistics.bottleneck()
    assert said.startswith("The consumer"), said


@EACH_ENGINE
def test_k4_the_counts_behind_it_are_exact(face: Face) -> None:
    """In, out, dropped and failed of each stage; they cost no more than numbers."""
    crowd = Crowd()

    def fails(n: int) -> int:
        with crowd:
            if n % 5 == 4:
                raise ValueError(n)
            return n

    built = (
        source(range(50))
        .pipe(fails, on_error="skip", name="fails")
        .filter(lambda n: n % 2 == 0, name="even")
    )
    numbers = drive(built.aggregate(4), face).statistics
    fails_, even = numbers.stage("fails"), numbers.stage("even")
    assert (fails_.items_in, fails_.items_out, fails_.failed) == (50, 40, 10)
    assert (even.items_in, even.items_out, even.dropped) == (40, 20, 20)
    assert numbers.failures == 10
    assert numbers.delivered == 5
    assert crowd.started == 50


def test_k4_a_table_can_be_taken_at_any_time() -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)

    with source(numbers).pipe(slept(0), name="op").build().run_sync() as run:
        tables = [str(run.statistics()), *(str(run.statistics()) for _ in run)]
    assert all("op" in table for table in tables)
