"""``build(max_bytes=, size_of=)``: contract 4 in bytes; scenarios J3 and B6."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from faces import ENGINE_FACES, FACES, Crowd, Face, drive, run_loop
from kinds import EACH_ENGINE_CASE, ORDERS, Kind, Order, Work

from spdl_async import (
    BatchBy,
    BudgetError,
    BuildError,
    Merge,
    Pipeline,
    PipelineBuilder,
    Retry,
    Zip,
    estimate_bytes,
    map_items,
)

pytestmark = pytest.mark.timeout(60)

EACH_FACE = pytest.mark.parametrize("face", ENGINE_FACES, ids=lambda face: face.value)


class Blobs:
    """Makes values of a size, and counts the bytes of those that are alive."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a finalizer may run while it is held
        self.alive = 0
        self.most = 0
        self.made = 0

    def make(self, size: int) -> Blob:
        return Blob(self, size)

    def count(self, size: int) -> None:
        with self.lock:
            self.alive += size
            self.made += size > 0
            self.most = max(self.most, self.alive)


class Blob:
    """A value of some bytes."""

    def __init__(self, blobs: Blobs, size: int) -> None:
        self.blobs = blobs
        self.size = size
        blobs.count(size)

    def __del__(self) -> None:
        self.blobs.count(-self.size)


def size_of(value: Any) -> int:
    return value.size if isinstance(value, Blob) else 1


def remade(blob: Blob) -> Blob:
    return blob.blobs.make(blob.size)


async def remade_async(blob: Blob) -> Blob:
    await asyncio.sleep(0)
    return blob.blobs.make(blob.size)


def twice(blob: Blob) -> Iterator[Blob]:
    for _ in range(2):
        yield blob.blobs.make(blob.size)


async def twice_async(blob: Blob) -> AsyncIterator[Blob]:
    for _ in range(2):
        await asyncio.sleep(0)
        yield blob.blobs.make(blob.size)


Part = Callable[[PipelineBuilder[Any], Order], PipelineBuilder[Any]]

# What may stand between a stage that makes large values and the consumer.
PARTS: dict[str, Part] = {
    "sync": lambda b, order: b.pipe(remade, concurrency=3, output_order=order),
    "async": lambda b, order: b.pipe(remade_async, concurrency=3, output_order=order),
    "generator": lambda b, order: b.pipe(twice, concurrency=3, output_order=order),
    "async generator": lambda b, order: b.pipe(twice_async, concurrency=3, output_order=order),
    "shuffle": lambda b, order: b.shuffle(3, seed=1).pipe(remade, output_order=order),
    "lists": lambda b, order: b.aggregate(3).disaggregate().pipe(remade, output_order=order),
    "route": lambda b, order: b.route(
        lambda blob: blob.size % 2,
        lambda branch: branch.pipe(remade, concurrency=2),
        lambda branch: branch.pipe(remade_async, concurrency=2),
        output_order=order,
    ),
}
EACH_PART = pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())


@pytest.mark.parametrize("order", ORDERS)
@EACH_PART
@EACH_FACE
def test_contract_4_values_of_one_size_never_exceed_the_budget(
    part: Part, order: Order, face: Face
) -> None:
    """J3: the bytes of all values that are alive, in the pipeline and with its consumer."""
    blobs, size, limit = Blobs(), 100, 1000
    built = part(
        PipelineBuilder().add_source(range(60)).pipe(lambda _: blobs.make(size), concurrency=4),
        order,
    ).build(max_bytes=limit, size_of=size_of)
    outcome = drive(built, face, on_output=lambda _: None)
    outputs = len(outcome.result())
    outcome.outputs.clear()
    assert outputs in (60, 120)
    bytes_ = outcome.statistics.bytes
    assert bytes_ is not None
    assert bytes_.limit == limit
    assert 2 * size < bytes_.peak <= limit + 60  # the source items count one byte each
    assert bytes_.held == bytes_.in_sink == 0


@pytest.mark.parametrize("order", ORDERS)
@EACH_FACE
def test_contract_4_what_is_alive_stays_within_the_budget(order: Order, face: Face) -> None:
    """J3: not what the library thinks is alive, but what is; the consumer drops what it takes."""
    blobs, limit = Blobs(), 2000
    alive: list[int] = []

    def look(blob: Blob) -> int:
        alive.append(blob.blobs.alive)
        return blob.size

    built = (
        PipelineBuilder()
        .add_source(range(100))
        .pipe(lambda _: blobs.make(100), concurrency=4, output_order=order)
        .pipe(remade, concurrency=4, output_order=order)
        .pipe(look)
        .build(max_bytes=limit, size_of=size_of)
    )
    assert drive(built, face).result() == [100] * 100
    assert blobs.made == 200
    # A value that was just replaced may still lie in the frame of the call that made the next.
    assert blobs.most <= limit + 4 * 100
    assert max(alive) > 500  # and the budget is made use of


def consume_slowly(built: Pipeline[Any], full: Callable[[Any], bool]) -> list[Any]:
    """Look at a run whose consumer has taken nothing, once it has come to rest."""

    async def run() -> list[Any]:
        seen: list[Any] = []
        async with built.run(loop="caller") as run:
            for _ in range(2000):
                await asyncio.sleep(0.001)
                if full(run.statistics()):
                    break
            await asyncio.sleep(0.05)
            seen.append(run.statistics())
            async for output in run:
                seen.append(output)
                del output
            seen.append(run.statistics())
        return seen

    return run_loop(run(), Face.CALLER)


def test_contract_4_statistics_say_where_the_bytes_are() -> None:
    """J3: a consumer that takes nothing: what the stages hold is what is alive."""
    blobs = Blobs()
    built = (
        PipelineBuilder()
        .add_source(range(40))
        .pipe(lambda _: blobs.make(100), concurrency=2, name="make")
        .pipe(remade, concurrency=2, name="again")
        .add_sink(3)
        .build(max_bytes=1000, size_of=size_of)
    )
    first, *outputs, last = consume_slowly(built, lambda s: s.bytes.held >= 1000)
    assert first.bytes.held == first.bytes.in_sink + sum(s.bytes_held for s in first.stages)
    assert first.bytes.in_sink >= 300
    assert 700 <= first.bytes.held <= 1000
    assert first.bytes.overdrawn == 0
    assert "bytes held:" in str(first)
    assert "bytes_held" in str(first)
    assert len(outputs) == 40
    assert last.bytes.held == 0
    assert last.stage("make").peak_bytes >= 100


def test_contract_4_statistics_match_the_memory_that_is_really_held() -> None:
    """J3: arrays of 0.1 to 2 MB; the bytes of those that are alive, by NumPy's own count."""
    rng = random.Random(0)
    sizes = [rng.randrange(100_000, 2_000_000) for _ in range(60)]
    alive: dict[int, int] = {}

    class Counted(np.ndarray[Any, Any]):
        def __del__(self) -> None:
            alive.pop(id(self), None)

    def make(size: int) -> Counted:
        array = np.ones(size, np.uint8).view(Counted)
        alive[id(array)] = array.nbytes
        return array

    built = (
        PipelineBuilder()
        .add_source(sizes)
        .pipe(make, concurrency=3)
        .aggregate(2)
        .build(max_bytes="12MB")
    )
    first, *outputs, _ = consume_slowly(built, lambda s: s.bytes.held > 9e6)
    assert [len(batch) for batch in outputs] == [2] * 30
    assert first.bytes.peak <= 12_000_000
    assert first.bytes.held > 8_000_000
    del outputs


@pytest.mark.parametrize("seed", range(20))
def test_contract_4_sizes_of_every_magnitude_keep_to_the_budget(seed: int) -> None:
    """J3: from 1 KB to 200 MB under 500 MB (in units of 1 KB), eight calls at once.

    One of the largest comes first: what no stage has seen yet it cannot know.
    """
    rng = random.Random(seed)
    sizes = [200_000, *(int(10 ** rng.uniform(0, 5.3)) for _ in range(200))]
    built = (
        PipelineBuilder()
        .add_source(sizes)
        .pipe(Blobs().make, concurrency=8)
        .build(max_bytes=500_000, size_of=size_of)
    )
    with built.run_sync() as run:
        assert [blob.size for blob in run] == sizes
        bytes_ = run.statistics().bytes
    assert bytes_ is not None
    assert 200_000 < bytes_.peak <= 500_000 + 100


@EACH_FACE
def test_b6_an_item_larger_than_the_budget_passes_alone(face: Face) -> None:
    """B6: nothing waits for room that can never be; nothing else is begun beside it."""
    sizes = [10, 10, 10, 5000, 10, 10]
    blobs = Blobs()
    beside: list[int] = []

    def watch(blob: Blob) -> int:
        if blob.size == 5000:
            beside.append(blobs.alive - 5000)
        return blob.size

    built = (
        PipelineBuilder()
        .add_source(sizes)
        .pipe(blobs.make, concurrency=4, fuse=False)  # inside a fused call nothing is counted
        .pipe(watch, concurrency=4)
        .build(max_bytes=1000, size_of=size_of)
    )
    outcome = drive(built, face)
    assert outcome.result() == sizes
    bytes_ = outcome.statistics.bytes
    assert bytes_ is not None
    assert 5000 <= bytes_.peak < 5100
    assert bytes_.overdrawn >= 1
    assert all(size <= 1000 for size in beside)


@EACH_FACE
@pytest.mark.parametrize("gather", ["aggregate", "shuffle", "aggregator"])
def test_b6_what_can_never_fit_is_an_error_with_both_numbers(face: Face, gather: str) -> None:
    """B6: a batch of 64 whose first ten items spend the budget."""
    builder = PipelineBuilder().add_source(range(100)).pipe(lambda _: Blobs().make(1000))
    built: PipelineBuilder[Any]
    if gather == "shuffle":
        built = builder.shuffle(64)
    elif gather == "aggregate":
        built = builder.aggregate(64)
    else:
        built = builder.aggregate(BatchBy(lambda _: 1, 64))
    outcome = drive(built.build(max_bytes="10KB", size_of=size_of), face)
    assert isinstance(outcome.error, BudgetError)
    assert not outcome.outputs
    assert "10 KB (10,000 bytes)" in str(outcome.error)
    assert "max_bytes" in str(outcome.error)


@EACH_FACE
def test_b6_a_batch_is_filled_beyond_the_budget_where_nothing_else_could_go_on(face: Face) -> None:
    """A shuffle buffer and an open batch each fit, together they do not: overdrawn, and counted."""
    built = (
        PipelineBuilder()
        .add_source(range(24))
        .pipe(lambda _: Blobs().make(100))
        .shuffle(6, seed=0)
        .aggregate(6)
        .build(max_bytes=900, size_of=size_of)
    )
    outcome = drive(built, face)
    assert [len(batch) for batch in outcome.result()] == [6] * 4
    bytes_ = outcome.statistics.bytes
    assert bytes_ is not None
    assert bytes_.overdrawn >= 1
    assert 1000 < bytes_.peak <= 1400


@pytest.mark.parametrize("order", ORDERS)
@EACH_ENGINE_CASE
def test_a_budget_of_one_byte_makes_every_kind_of_stage_slow_but_stops_none(
    kind: Kind, order: Order, face: Face
) -> None:
    work = Work()
    builder = PipelineBuilder().add_source(range(20))
    built = kind.add(builder, work, concurrency=3, output_order=order).build(max_bytes=1)
    outputs = drive(built, face).result()
    assert (outputs if order == "input" else sorted(outputs)) == list(range(20))


def even(x: int) -> int:
    return x % 2


def doubled(x: int) -> int:
    return 2 * x


def test_shapes_go_on_with_hardly_any_budget() -> None:
    """Merges, zips, routes of both orders and of lists, 1→n below each other, retries, timeouts."""
    flaky = {"left": 3}

    def fails_at_first(x: int) -> int:
        if x == 5 and flaky["left"]:
            flaky["left"] -= 1
            raise OSError
        return x

    def numbers() -> PipelineBuilder[int]:
        return PipelineBuilder().add_source(range(12))

    both = Merge(numbers().pipe(doubled), numbers().expand(lambda x: [x, x], concurrency=2))
    rows = Zip(numbers(), numbers().pipe(doubled, concurrency=2))
    retried = numbers().pipe(fails_at_first, retry=Retry(5, backoff=0.001), timeout=20.0)
    split = numbers().aggregate(4).disaggregate().skip(1).take(9).enumerate()
    cases: list[tuple[PipelineBuilder[Any], list[Any]]] = [
        (
            PipelineBuilder().add_source(both),
            sorted([2 * x for x in range(12)] + [x for x in range(12) for _ in "ab"]),
        ),
        (PipelineBuilder().add_source(rows), [(x, 2 * x) for x in range(12)]),
        (retried, list(range(12))),
        (split, list(enumerate(range(1, 10)))),
    ]

    def alone(x: int) -> list[int]:
        return [x]

    for order in ORDERS:
        routed = numbers().route(
            even, lambda b: b.pipe(doubled), lambda b: b.expand(alone), output_order=order
        )
        cases.append((routed, sorted(2 * x if x % 2 == 0 else x for x in range(12))))
    for builder, expected in cases:
        for face in ENGINE_FACES:
            flaky["left"] = 3
            assert sorted(drive(builder.build(max_bytes=150), face).result()) == expected


def test_lists_through_a_route_go_on_with_a_small_budget() -> None:
    built = (
        PipelineBuilder()
        .add_source(range(12))
        .aggregate(3)
        .route(
            lambda xs: [x % 2 for x in xs],
            lambda b: b.pipe(lambda xs: [2 * x for x in xs]),
            lambda b: b,
            batched=True,
        )
        .build(max_bytes=200)
    )
    expected = [2 * x if x % 2 == 0 else x for x in range(12)]
    assert [x for xs in drive(built, Face.SYNC).result() for x in xs] == expected


def test_other_executors_keep_to_the_budget() -> None:
    with ThreadPoolExecutor(2) as pool:
        blobs = Blobs()
        built = (
            PipelineBuilder()
            .add_source(range(30))
            .pipe(lambda _: blobs.make(100), concurrency=2, executor=pool)
            .build(max_bytes=500, size_of=size_of)
        )
        outcome = drive(built, Face.SYNC)
        assert len(outcome.result()) == 30
        bytes_ = outcome.statistics.bytes
        assert bytes_ is not None
        assert bytes_.peak <= 530


@pytest.mark.parametrize("seconds", [0.0, 0.003])
def test_epochs_that_overlap_share_one_budget(seconds: float) -> None:
    """The younger pass sees what the older one holds, in its sink too; both come to their end.

    A consumer that is slow lets the older one end with results in its sink, and the younger run ahead.
    """
    blobs = Blobs()
    built = (
        PipelineBuilder()
        .add_source(range(30))
        .pipe(lambda _: blobs.make(100), concurrency=3)
        .add_sink(8)
        .build(max_bytes=1000, size_of=size_of)
    )
    held: list[int] = []
    with built.epochs(4) as epochs:
        for run in epochs:
            count = 0
            for blob in run:
                time.sleep(seconds)
                held.append(blobs.alive)
                count += 1
                del blob
            assert count == 30
    assert max(held) <= 1000 + 2 * 100  # the consumer's, and one that is just being replaced


def test_contract_3_calls_that_wait_for_the_budget_keep_their_slots_from_the_next_epoch() -> None:
    crowd = Crowd()

    def op(number: int) -> int:
        with crowd:
            time.sleep(0.002)  # long enough for the other epoch's call to begin beside it
            return number

    # In completion order as many calls are let go as there are slots: the others wait at the gate.
    chain = PipelineBuilder().add_source(range(20)).pipe(op, output_order="completion")
    built = chain.add_sink(40).build(max_bytes=5000, num_threads=4)
    with built.epochs(5) as epochs:
        for run in epochs:
            assert list(run) == list(range(20))
    assert crowd.most == 1


@EACH_FACE
def test_what_size_of_raises_ends_the_run(face: Face) -> None:
    def broken(value: Any) -> int:
        raise LookupError("no size")

    outcome = drive(
        PipelineBuilder().add_source(range(3)).pipe(doubled).build(max_bytes=10, size_of=broken),
        face,
    )
    assert isinstance(outcome.error, LookupError)
    assert "size_of" in "".join(outcome.error.__notes__)
    assert "library itself" not in "".join(outcome.error.__notes__)


@pytest.mark.parametrize("answer", [-1, 1.5, None, True])
def test_what_size_of_returns_must_be_a_number_of_bytes(answer: Any) -> None:
    built = PipelineBuilder().add_source(range(3)).build(max_bytes=10, size_of=lambda _: answer)
    outcome = drive(built, Face.SYNC)
    assert isinstance(outcome.error, TypeError)
    assert repr(answer) in str(outcome.error)


def test_only_what_stages_hand_on_is_measured() -> None:
    """Not what the library makes for itself on the way: routed values, ends of batches."""
    asked: set[type] = set()

    def size(value: Any) -> int:
        asked.add(type(value))
        return 1

    built = (
        PipelineBuilder()
        .add_source(range(8))
        .route(even, lambda branch: branch.pipe(doubled), lambda branch: branch)
        .aggregate(4)
        .apply(map_items(doubled))
        .build(max_bytes=100, size_of=size)
    )
    assert drive(built, Face.SYNC).result() == [[0, 2, 8, 6], [16, 10, 24, 14]]
    assert asked == {int}


def test_lists_are_measured_by_their_elements() -> None:
    asked: list[Any] = []

    def size(value: Any) -> int:
        asked.append(value)
        return 1

    built = PipelineBuilder().add_source([[1, 2], [3]]).build(max_bytes=10, size_of=size)
    assert drive(built, Face.SYNC).result() == [[1, 2], [3]]
    assert asked == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "number"),
    [("500MB", 500_000_000), ("1.5 kb", 1500), ("2GiB", 2 << 30), ("7B", 7), (12, 12)],
)
def test_sizes_can_be_written_with_units(text: str | int, number: int) -> None:
    built = PipelineBuilder().add_source([1]).build(max_bytes=text)
    with built.run_sync() as run:
        assert list(run) == [1]
        bytes_ = run.statistics().bytes
    assert bytes_ is not None
    assert bytes_.limit == number


@pytest.mark.parametrize("wrong", ["500", "5 XB", "", "-1MB", 0, -5, True, 1.5, "0B"])
def test_wrong_sizes_are_errors_of_build(wrong: Any) -> None:
    with pytest.raises(BuildError, match="max_bytes"):
        PipelineBuilder().add_source([1]).build(max_bytes=wrong)


async def coroutine_size(value: Any) -> int:
    return 1


@pytest.mark.parametrize("wrong", [5, coroutine_size])
def test_wrong_size_functions_are_errors_of_build(wrong: Any) -> None:
    with pytest.raises(BuildError, match="size_of"):
        PipelineBuilder().add_source([1]).build(max_bytes=5, size_of=wrong)


def test_size_of_without_a_budget_is_an_error() -> None:
    with pytest.raises(BuildError, match="max_bytes"):
        PipelineBuilder().add_source([1]).build(size_of=size_of)


def test_a_description_names_the_budget() -> None:
    described = PipelineBuilder().add_source([1]).build(max_bytes="2GB", size_of=size_of).describe()
    assert "at most 2 GB" in described.text
    assert "size_of" in described.text


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.value)
def test_without_a_budget_nothing_is_measured(face: Face) -> None:
    outcome = drive(PipelineBuilder().add_source(range(3)).pipe(doubled).build(), face)
    assert outcome.result() == [0, 2, 4]
    assert outcome.statistics.bytes is None
    assert all(stage.bytes_held == 0 for stage in outcome.statistics.stages)


def test_estimates() -> None:
    array = np.zeros((100, 10), np.float32)
    assert estimate_bytes(array) == 4000
    assert estimate_bytes(b"x" * 500) == 500
    assert 8000 <= estimate_bytes({"a": array, "b": [array + 1]}) < 9000
    assert 4000 <= estimate_bytes([array, array]) - 4000 < 5000
    many = [bytes(1000) for _ in range(5000)]
    assert 5_000_000 * 0.9 < estimate_bytes(many) < 5_000_000 * 1.1
    own: dict[str, Any] = {}
    own["own"] = own
    assert estimate_bytes(own) < 1000
