"""Contract 2, 3, 4: windows, concurrency, and what is in flight. No time is asserted anywhere."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from faces import ENGINE_FACES, FACES, Crowd, Face, Gate, drive, run_loop
from kinds import EACH_ENGINE_CASE, ORDERS, Kind, Order, Work, kind_id, same

from spdl_async import BatchBy, BucketBy, BuildError, Merge, PipelineBuilder, Zip

pytestmark = pytest.mark.timeout(30)


class Counted:
    """An endless source that counts what was pulled from it."""

    def __init__(self) -> None:
        self.pulled = Crowd()

    def __iter__(self) -> Iterator[int]:
        n = 0
        while True:
            with self.pulled:
                pass
            yield n
            n += 1


class CountedAsync(Counted):
    """The same for a loop."""

    async def __aiter__(self) -> AsyncIterator[int]:
        for n in super().__iter__():
            yield n
            await asyncio.sleep(0)


SOURCES = pytest.mark.parametrize("source", [Counted, CountedAsync], ids=["sync", "async"])


@pytest.mark.parametrize("order", ORDERS)
@EACH_ENGINE_CASE
def test_contract_3_concurrency_is_reached_and_never_exceeded(
    kind: Kind, order: Order, face: Face
) -> None:
    """No call ends before ``concurrency`` of them run at once; at no instant are there more."""
    for concurrency in (1, 2, 5):
        crowd = Crowd(concurrency)
        work = Work(gate=crowd.full, crowd=crowd)
        builder = PipelineBuilder().add_source(range(60))
        built = kind.add(builder, work, concurrency=concurrency, output_order=order)
        assert sorted(drive(built, face).result()) == list(range(60))
        assert crowd.most == concurrency
        assert crowd.started == crowd.ended == 60


@pytest.mark.parametrize("order", ORDERS)
@EACH_ENGINE_CASE
def test_contract_3_after_leaving_no_further_call_starts(
    kind: Kind, order: Order, face: Face
) -> None:
    """Three calls are stuck when the block is left: their slots stay taken until they return."""
    gate, stuck, crowd = Gate(), Gate(), Crowd()

    class Stuck(Work):
        """Lets items 0 and 1 through; the others ignore cancellation until the gate is open."""

        def call(self, item: int) -> int:
            with self.crowd:
                self.arrived(item)
                if item > 1:
                    gate.wait()
                return self.finish(item)

        async def acall(self, item: int) -> int:
            with self.crowd:
                self.arrived(item)
                while item > 1 and not gate.is_open:
                    try:
                        await gate.passed()
                    except asyncio.CancelledError:
                        continue
                return self.finish(item)

        def arrived(self, item: int) -> None:
            if self.crowd.running == 3:
                stuck.open()

    def release() -> None:
        crowd.wait_settled()
        gate.open()

    work = Stuck(crowd=crowd)
    source = PipelineBuilder().add_source(Counted())
    built = kind.add(source, work, concurrency=3, output_order=order)
    opener = threading.Thread(target=release)
    with gate.opened_at_end():
        outcome = drive(built, face, take=1, hold=stuck, on_end=opener.start)
    opener.join()
    assert outcome.outputs[0] in (0, 1)
    assert crowd.most == 3
    assert crowd.running == 0  # left only when the stuck calls had returned
    assert crowd.started <= 5  # two that went through, three that were stuck, none after that


@EACH_ENGINE_CASE
def test_contract_2_behind_a_slow_head_a_stage_takes_its_window_and_no_more(
    kind: Kind, face: Face
) -> None:
    head, source = Gate(), Counted()
    work = Work(gates={0: head})
    pipeline = kind.add(PipelineBuilder().add_source(source), work, concurrency=3).build()
    bound = sum(b.elements or 0 for b in pipeline.describe().bounds)
    counts: list[int] = []

    def watch() -> None:
        work.crowd.wait_started(6)  # others overtake the head
        counts.append(source.pulled.wait_settled())
        counts.append(work.crowd.started)
        head.open()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with head.opened_at_end():
        outcome = drive(pipeline, face, take=50)
    watcher.join()
    assert outcome.outputs == list(range(50))
    pulled, started = counts
    assert started <= pulled <= bound + 1  # the source holds one that it cannot hand on


Stages = Callable[[PipelineBuilder[int]], PipelineBuilder[Any]]


async def on_loop(n: int) -> int:
    return n


def each(n: int) -> Generator[int, None, None]:
    yield n


async def each_async(n: int) -> AsyncGenerator[int, None]:
    yield n


class Held:
    """An aggregator that holds one item."""

    def accumulate(self, item: int) -> list[int]:
        return [item]

    def flush(self) -> list[int]:
        return []


def plain() -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(10**9))


def merged(branch: PipelineBuilder[int], **options: Any) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(Merge(branch, plain(), **options))


def parity(n: int) -> int:
    return n % 2


def evens(numbers: list[int]) -> list[int]:
    return numbers


def nothing(_: int) -> int:
    return 0


def third(n: int) -> int:
    return n % 3


def same_list(numbers: list[int]) -> list[int]:
    return numbers


CHAINS: dict[str, Stages] = {
    "thread": lambda b: b.pipe(same),
    "threads": lambda b: b.pipe(same, concurrency=8, output_order="completion"),
    "fused": lambda b: b.pipe(same, concurrency=4, name="a").pipe(same, concurrency=4, name="b"),
    "async": lambda b: b.pipe(on_loop, concurrency=16),
    "async-one": lambda b: b.pipe(on_loop),
    "generator": lambda b: b.pipe(each, concurrency=2),
    "async-generator": lambda b: b.pipe(each_async, concurrency=2),
    "batches": lambda b: b.aggregate(7).pipe(len),
    "batches-of-batches": lambda b: b.aggregate(3).aggregate(4),
    "mixed": lambda b: b.pipe(same).pipe(on_loop).pipe(each).aggregate(5).pipe(len),
    "filter": lambda b: b.filter(lambda n: n % 3 > 0, concurrency=2),
    "flattened": lambda b: b.aggregate(4).disaggregate().pipe(same),
    "source-into-large-batches": lambda b: b.aggregate(700),
    "aggregator": lambda b: b.pipe(same).aggregate(Held).pipe(on_loop),
    "nothing": lambda b: b,
    "merge": lambda b: merged(b.pipe(same)),
    "merge-weights": lambda b: merged(b, weights=[3, 1]).pipe(same),
    "zip": lambda b: PipelineBuilder().add_source(Zip(b.pipe(on_loop), plain())).pipe(len),
    "route": lambda b: b.route(parity, lambda r: r.pipe(same), lambda r: r.pipe(on_loop)),
    "route-completion": lambda b: b.route(
        parity, lambda r: r.pipe(same), lambda r: r, output_order="completion"
    ),
    "route-expand": lambda b: b.route(parity, lambda r: r.pipe(each), lambda r: r),
    "route-lists": lambda b: b.aggregate(4).route(
        lambda numbers: [n % 2 for n in numbers], lambda r: r, lambda r: r.pipe(evens), batched=True
    ),
    "shuffle": lambda b: b.shuffle(20).pipe(same),
    "shuffle-of-batches": lambda b: b.aggregate(3).shuffle(4).pipe(len),
    "shapes": lambda b: b.skip(2).take(10**9).enumerate().pipe(len),
    "batch-by": lambda b: b.aggregate(BatchBy(nothing, 1, max_items=7)).pipe(len),
    "batch-by-one": lambda b: b.aggregate(BatchBy(nothing, 1, max_items=1)).pipe(same_list),
    "batch-by-within": lambda b: b.aggregate(BatchBy(nothing, 1, max_items=90), within=1e-6),
    "buckets": lambda b: b.aggregate(BucketBy(third, [0, 1], batch_size=[90, 4, 2])).pipe(len),
    "timed-batches": lambda b: b.aggregate(7, within=3600).pipe(len),
    "timed-batches-now": lambda b: b.aggregate(7, within=1e-6).pipe(len),
}
WEIGHTS = {  # source items in one result
    "source-into-large-batches": 700,
    "zip": 2,
    "route-lists": 4,
    "shuffle-of-batches": 3,
    "shapes": 3,
    "timed-batches": 7,
    "timed-batches-now": 7,
    "batches": 7,
    "batches-of-batches": 12,
    "mixed": 5,
    "batch-by": 7,
    "batch-by-within": 90,
    "buckets": 90,
}


UNBOUNDED = {"flattened", "aggregator", "route-expand"}


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
@SOURCES
@pytest.mark.parametrize("name", CHAINS)
def test_contract_4_in_flight_stays_within_what_describe_says(
    name: str, source: type[Counted], face: Face
) -> None:
    """The consumer takes one result and no more: the chain fills up, and stops within its bound."""
    counted = source()
    pipeline = CHAINS[name](PipelineBuilder().add_source(counted)).add_sink(3).build()
    description = pipeline.describe()
    settled: list[int] = []
    rest = Gate()

    def watch() -> None:
        counted.pulled.wait_started(3)
        settled.append(counted.pulled.wait_settled())
        rest.open()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with rest.opened_at_end():
        outcome = drive(pipeline, face, take=1, hold=rest)
    watcher.join()
    assert len(outcome.outputs) == 1
    bound = description.source_items_bound
    assert bound is not None or name in UNBOUNDED
    statistics = outcome.statistics
    if bound is not None:
        taken = WEIGHTS.get(name, 1) + (2 if name == "filter" else 0)  # delivered or dropped
        if name == "filter":
            taken += statistics.stages[1].dropped
        # What a source has been asked for and holds in its hand, blocked, was not accepted yet.
        assert settled[0] <= bound + taken + 1
        assert statistics.peak_in_flight <= bound
    by_place = {b.place: b.elements for b in description.bounds}
    for stage in statistics.stages:
        limit = by_place.get(stage.name)
        if limit is not None:
            assert stage.peak_queue <= limit, stage.name


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_contract_4_a_generator_without_room_below_yields_within_its_bound(
    is_async: bool, face: Face
) -> None:
    """An endless 1→n op is parked when nobody takes its values."""
    yielded = Crowd()

    def endless(_: int) -> Generator[int, None, None]:
        n = 0
        while True:
            with yielded:
                pass
            yield n
            n += 1

    async def endless_async(_: int) -> AsyncGenerator[int, None]:
        for n in endless(0):
            yield n

    builder = PipelineBuilder().add_source([0])
    piped = builder.pipe(endless_async) if is_async else builder.pipe(endless)
    pipeline = piped.add_sink(2).build()
    settled: list[int] = []
    rest = Gate()

    def watch() -> None:
        yielded.wait_started(3)
        settled.append(yielded.wait_settled())
        rest.open()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with rest.opened_at_end():
        outcome = drive(pipeline, face, take=1, hold=rest)
    watcher.join()
    assert outcome.outputs == [0]
    bound = sum(b.elements or 0 for b in pipeline.describe().bounds)
    assert settled[0] <= bound + 2  # one taken, one in the generator's hand
    builder.build()


@pytest.mark.parametrize("face", [Face.CALLER, Face.CALLER_UVLOOP, Face.OWN], ids=kind_id)
def test_contract_4_nothing_is_pulled_beyond_the_sink_while_the_loop_is_blocked(face: Face) -> None:
    """A consumer that blocks the caller's loop stops what runs there; an own loop stays bounded."""
    counted = Counted()
    pipeline = PipelineBuilder().add_source(counted).pipe(same).add_sink(2).build()

    async def main() -> int:
        async with pipeline.run(loop="own" if face is Face.OWN else "caller") as run:
            await anext(run)
            return counted.pulled.wait_settled()  # blocks this loop

    bound = pipeline.describe().source_items_bound
    assert bound is not None
    assert run_loop(main(), face) <= bound + 2


@pytest.mark.parametrize("buffer_size", [0, 1, 5])
@pytest.mark.parametrize("kind", ["sync", "async", "executor"])
@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
def test_contract_4_buffer_size_is_what_waits_beside_the_calls(
    face: Face, kind: str, buffer_size: int
) -> None:
    """The head blocks while the others finish: the stage holds what its window allows, and no more."""
    hold, started = Gate(), itertools.count(1)
    seen = [0]

    def op(n: int) -> int:
        seen[0] = next(started)
        if n == 0:
            hold.wait()
        return n

    async def aop(n: int) -> int:
        seen[0] = next(started)
        if n == 0:
            await hold.passed()
        return n

    with ThreadPoolExecutor(2) as pool, hold.opened_at_end():
        options: Any = {"executor": pool} if kind == "executor" else {}
        built = PipelineBuilder().add_source(range(10_000))
        stage: Any = aop if kind == "async" else op
        pipeline = built.pipe(stage, concurrency=2, buffer_size=buffer_size, **options).build()
        bound = pipeline.describe().bounds[1].elements
        assert bound == 2 + buffer_size
        threading.Timer(0.1, hold.open).start()
        outcome = drive(pipeline, face)
    assert outcome.result() == list(range(10_000))
    assert outcome.statistics.stages[1].peak_queue <= bound


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_buffer_size_of_a_stage_that_makes_many_of_one(face: Face) -> None:
    built = PipelineBuilder().add_source(range(50)).expand(range, concurrency=2, buffer_size=8)
    pipeline = built.build()
    assert pipeline.describe().bounds[1].elements == 8
    assert drive(pipeline, face).result() == [x for n in range(50) for x in range(n)]


@pytest.mark.parametrize("size", [-1, True, 1.5, "2", 10**7])
def test_a_buffer_size_that_is_none_is_an_error(size: Any) -> None:
    with pytest.raises(BuildError, match="buffer_size must be an int"):
        PipelineBuilder().add_source([1]).pipe(abs, buffer_size=size)
