"""Contract 1, 2, 5: every item once, in order, batches full. Scenarios B2, B8, C7, E2, K1."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any, Literal

import pytest
from faces import ENGINE_FACES, FACES, PATIENCE, Crowd, Face, Gate, drive
from kinds import (
    EACH_CASE,
    EACH_ENGINE_CASE,
    GIVEN,
    ORDERS,
    Kind,
    Order,
    Work,
    kind_id,
    same,
)

from spdl_async import DROP, Drop, PipelineBuilder

pytestmark = pytest.mark.timeout(30)


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


@EACH_CASE
def test_contract_1_every_item_reaches_the_consumer_once(kind: Kind, face: Face) -> None:
    sizes = [(0, 4), (1, 1), (2, 4), (33, 1), (100, 4), (100, 64)]
    for order, (count, concurrency) in itertools.product(ORDERS, sizes):
        work = Work()
        built = kind.add(numbers(count), work, concurrency=concurrency, output_order=order)
        outcome = drive(built, face)
        outputs = outcome.result()
        if order == "completion":
            outputs = sorted(outputs)
        assert outputs == list(range(count))
        assert Counter(work.done) == Counter(range(count))  # and each op ran once
        assert outcome.statistics.delivered == count
        assert outcome.statistics.in_flight == 0
        assert outcome.failures == ()


@EACH_CASE
def test_contract_2_input_order_is_exact_through_two_stages_of_a_kind(
    kind: Kind, face: Face
) -> None:
    built = kind.add(numbers(200), Work(), concurrency=8).pipe(
        lambda item: (item, 2 * item), concurrency=8, name="pair"
    )
    assert drive(built, face).result() == [(n, 2 * n) for n in range(200)]


@EACH_ENGINE_CASE
def test_contract_2_what_finishes_first_waits_for_the_head(kind: Kind, face: Face) -> None:
    """The head's gate opens only when the other slots' items are done: they overtook, in vain."""
    head = Gate()
    overtaken = 3

    class Watched(Work):
        def finish(self, item: int) -> int:
            result = super().finish(item)
            if len(self.done) >= overtaken:
                head.open()
            return result

    work = Watched(gates={0: head})
    outcome = drive(kind.add(numbers(50), work, concurrency=4), face)
    assert outcome.result() == list(range(50))
    assert work.done.index(0) >= overtaken


@EACH_ENGINE_CASE
def test_k1_completion_order_delivers_while_the_head_is_slow(kind: Kind, face: Face) -> None:
    """The head's gate opens only when the consumer has far more than a window of the others."""
    head = Gate()
    work = Work(gates={0: head})
    seen: list[int] = []

    def took(value: int) -> None:
        seen.append(value)
        if len(seen) == 300:
            head.open()

    built = kind.add(numbers(350), work, concurrency=4, output_order="completion")
    outputs = drive(built, face, on_output=took).result()
    assert sorted(outputs) == list(range(350))
    assert outputs.index(0) >= 300


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_1_generators_expand_exactly_and_in_order(face: Face) -> None:
    def several(n: int) -> Generator[int, None, None]:
        for k in range(n % 4):
            yield 10 * n + k

    async def several_async(n: int) -> AsyncGenerator[int, None]:
        for k in range(n % 3):
            await asyncio.sleep(0)
            yield 10 * n + k

    expected = [10 * n + k for n in range(100) for k in range(n % 4)]
    expected = [10 * n + k for n in expected for k in range(n % 3)]
    for concurrency in (1, 5):
        built = (
            numbers(100)
            .pipe(several, concurrency=concurrency)
            .pipe(several_async, concurrency=concurrency)
        )
        assert drive(built, face).result() == expected


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("order", ORDERS)
def test_e2_one_shared_source_is_read_once_whatever_the_concurrency(
    order: Order, face: Face
) -> None:
    pulled: list[int] = []
    threads: set[int] = set()

    def source() -> Iterator[int]:
        for n in range(300):
            pulled.append(n)
            threads.add(threading.get_ident())
            yield n

    built = (
        PipelineBuilder()
        .add_source(source)
        .pipe(same, concurrency=8, output_order=order, name="a")
        .pipe(same, concurrency=8, output_order=order, name="b", fuse=False)
    )
    assert sorted(drive(built, face).result()) == list(range(300))
    assert pulled == list(range(300))
    assert len(threads) == 1


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_b8_more_workers_than_items(order: Order, drop_last: bool, face: Face) -> None:
    async def on_loop(item: int) -> int:
        return item

    def each(item: int) -> Generator[int, None, None]:
        yield item

    for count in (0, 1, 2, 5):
        built = (
            numbers(count)
            .pipe(same, concurrency=16, output_order=order, name="thread")
            .pipe(on_loop, concurrency=16, output_order=order)
            .pipe(each, concurrency=16, output_order=order)
            .filter(lambda _: True, concurrency=16, output_order=order, name="keep")
            .aggregate(4, drop_last=drop_last)
        )
        batches = drive(built, face).result()
        full = count - count % 4 if drop_last else count
        assert [len(batch) for batch in batches] == [min(4, full - at) for at in range(0, full, 4)]
        if full == count:
            assert sorted(itertools.chain.from_iterable(batches)) == list(range(count))


def dropping_filter(b: PipelineBuilder[int]) -> PipelineBuilder[int]:
    return b.filter(lambda n: n % 10 != 3, concurrency=4)


def dropping_op(b: PipelineBuilder[int]) -> PipelineBuilder[int]:
    return b.pipe(lambda n: DROP if n % 10 == 3 else n, concurrency=4)


def dropping_async_op(b: PipelineBuilder[int]) -> PipelineBuilder[int]:
    async def maybe(n: int) -> int | Drop:
        return DROP if n % 10 == 3 else n

    return b.pipe(maybe, concurrency=4)


def dropping_generator(b: PipelineBuilder[int]) -> PipelineBuilder[int]:
    def maybe(n: int) -> Generator[int | Drop, None, None]:
        yield DROP if n % 10 == 3 else n

    return b.pipe(maybe, concurrency=4)


def failing_op(b: PipelineBuilder[int]) -> PipelineBuilder[int]:
    def maybe(n: int) -> int:
        if n % 10 == 3:
            raise ValueError(n)
        return n

    return b.pipe(maybe, concurrency=4, on_error="skip")


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize(
    "dropping",
    [dropping_filter, dropping_op, dropping_async_op, dropping_generator, failing_op],
    ids=lambda f: f.__name__,
)
def test_contract_5_c7_only_the_last_batch_is_short(dropping: Any, face: Face) -> None:
    outcome = drive(numbers(1000).apply(dropping).aggregate(32), face)
    batches = outcome.result()
    assert [len(batch) for batch in batches] == [32] * 28 + [4]
    assert list(itertools.chain.from_iterable(batches)) == [n for n in range(1000) if n % 10 != 3]
    counted = outcome.statistics.stages[1]
    assert counted.dropped + counted.failed == 100
    assert outcome.statistics.failures == (100 if dropping is failing_op else 0)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_5_drop_last_drops_only_the_short_one(face: Face) -> None:
    built = numbers(100).filter(lambda n: n % 2 == 0).aggregate(8, drop_last=True)
    batches = drive(built, face).result()
    assert batches == [list(range(16 * k, 16 * k + 16, 2)) for k in range(6)]


@pytest.mark.parametrize("face", FACES, ids=kind_id)
@pytest.mark.parametrize("count", [0, 10_000])
def test_b2_alternating_kinds_with_the_smallest_sink(count: int, face: Face) -> None:
    """Async, thread, async generator, aggregate, sync generator, given executor, async."""

    async def plus_one(n: int) -> int:
        return n + 1

    async def twice(n: int) -> AsyncGenerator[int, None]:
        yield n
        yield -n

    def apart(batch: list[int]) -> Generator[int, None, None]:
        yield from batch

    if face is not Face.CALLER_UVLOOP:  # asyncio's debug mode costs ten times as much
        count //= 20
    built = (
        numbers(count)
        .pipe(plus_one)
        .pipe(same)
        .pipe(twice)
        .aggregate(3)
        .pipe(apart)
        .pipe(same, executor=GIVEN)
        .pipe(plus_one, name="again")
        .add_sink(1)
    )
    expected = [x + 1 for n in range(count) for x in (n + 1, -(n + 1))]
    assert drive(built, face).result() == expected


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
def test_contract_1_one_pool_thread_is_enough(face: Face) -> None:
    def apart(n: int) -> Generator[int, None, None]:
        for k in range(50):
            yield 50 * n + k

    pipeline = (
        numbers(20)
        .pipe(apart)
        .pipe(same, concurrency=3, name="a")
        .filter(lambda n: n % 10 == 0)
        .pipe(same, concurrency=2, name="b")
        .add_sink(1)
        .build(num_threads=1)
    )
    assert drive(pipeline, face).result() == list(range(0, 1000, 10))


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_1_an_endless_source_is_taken_from_and_left(face: Face) -> None:
    built = (
        PipelineBuilder()
        .add_source(lambda: itertools.count())
        .filter(lambda n: n % 10 == 0)
        .pipe(same, concurrency=4)
        .aggregate(2)
    )
    assert drive(built, face, take=3).outputs == [[0, 10], [20, 30], [40, 50]]


@pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
def test_k2_the_first_batch_needs_the_items_of_one_batch_only(face: Face) -> None:
    """Items are worked on side by side: eight calls run at once before the first is done."""
    crowd = Crowd(8)
    work = Work(gate=crowd.full, crowd=crowd)
    endless = PipelineBuilder().add_source(lambda: itertools.count())
    built = endless.pipe(work.call, concurrency=8).aggregate(16)
    outcome = drive(built, face, take=1)
    assert outcome.outputs == [list(range(16))]
    assert crowd.most == 8


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_contract_1_a_nested_async_source_and_stage_chain_of_twenty(face: Face) -> None:
    async def source() -> AsyncIterator[int]:
        for n in range(50):
            yield n

    built: PipelineBuilder[int] = PipelineBuilder().add_source(source)
    for k in range(20):
        built = built.pipe(lambda n: n + 1, name=f"s{k}", concurrency=1 + k % 3)
    assert drive(built, face).result() == [n + 20 for n in range(50)]


@pytest.mark.parametrize("order", ["input", "completion"])
@pytest.mark.parametrize("face", ENGINE_FACES)
@pytest.mark.parametrize("quick", [400, 3_000])
def test_contract_3_concurrency_is_reached_when_quick_ops_begin_to_block(
    quick: int, face: Face, order: Literal["input", "completion"]
) -> None:
    meeting = threading.Barrier(8)

    def op(n: int) -> int:
        if n >= quick and n % 3 == 0 and n < quick + 24:
            meeting.wait(PATIENCE)  # BrokenBarrierError where fewer than 8 are let in
        return n

    built = PipelineBuilder().add_source(range(quick + 300))
    outcome = drive(built.pipe(op, concurrency=8, output_order=order), face)
    assert sorted(outcome.result()) == list(range(quick + 300))
