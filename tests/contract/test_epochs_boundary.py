"""No gap between two epochs, shown on a clock that moves only when nothing can be done."""

from __future__ import annotations

import asyncio

from spdl_async import Pipeline, PipelineBuilder
from spdl_async.testing import run_virtual


async def work(item: int) -> int:
    await asyncio.sleep(10)
    return item


async def more_work(item: int) -> int:
    await asyncio.sleep(10)
    return item


async def arrivals(
    pipeline: Pipeline[int], n: int, *, overlap: bool, consume: float
) -> tuple[list[float], list[float]]:
    """Return when each result came, and how long each was waited for."""
    loop = asyncio.get_running_loop()
    came: list[float] = []
    waited: list[float] = []
    asked = loop.time()
    async for run in pipeline.epochs(n, overlap=overlap, loop="caller"):
        async for _ in run:
            came.append(loop.time())
            waited.append(loop.time() - asked)
            await asyncio.sleep(consume)
            asked = loop.time()
    return came, waited


def test_the_first_result_is_ready_when_the_last_of_the_epoch_before_is_taken() -> None:
    """A training step of 6 s, a stage that makes four results in 10 s."""
    pipeline = PipelineBuilder().add_source(range(8)).pipe(work, concurrency=4).build()
    _, waited = run_virtual(arrivals(pipeline, 3, overlap=True, consume=6))
    assert waited == [10.0] + [0.0] * 23
    _, waited = run_virtual(arrivals(pipeline, 3, overlap=False, consume=6))
    assert waited == ([10.0] + [0.0] * 7) * 3


def test_results_keep_their_beat_where_the_consumer_only_waits() -> None:
    """Two stages of 10 s, one call at a time: the chain is never emptied and filled again."""
    pipeline = PipelineBuilder().add_source(range(3)).pipe(work).pipe(more_work).build()
    came, _ = run_virtual(arrivals(pipeline, 3, overlap=True, consume=0))
    assert came == [20.0 + 10 * number for number in range(9)]
    came, _ = run_virtual(arrivals(pipeline, 3, overlap=False, consume=0))
    assert came == [20.0, 30.0, 40.0, 60.0, 70.0, 80.0, 100.0, 110.0, 120.0]


def test_slots_that_the_older_epoch_needs_no_more_work_for_the_next() -> None:
    """Six items and four slots: two slots are free while the last two items are made."""
    pipeline = PipelineBuilder().add_source(range(6)).pipe(work, concurrency=4).build()
    came, _ = run_virtual(arrivals(pipeline, 2, overlap=True, consume=0))
    assert came == [10.0] * 4 + [20.0] * 4 + [30.0] * 4


def test_a_straggler_holds_up_its_own_slot_only() -> None:
    """The last item of epoch 0 takes long; meanwhile three slots make epoch 1."""
    calls = iter(range(100))
    began: list[tuple[int, float]] = []

    async def op(item: int) -> int:
        number = next(calls)
        began.append((number, asyncio.get_running_loop().time()))
        await asyncio.sleep(100 if number == 7 else 10)
        return item

    pipeline = PipelineBuilder().add_source(range(8)).pipe(op, concurrency=4).build()
    came, _ = run_virtual(arrivals(pipeline, 2, overlap=True, consume=0))
    assert [when for number, when in began if number >= 8] == [20.0] * 3 + [30.0] * 3 + [40.0] * 2
    assert came == [10.0] * 4 + [20.0] * 3 + [110.0] * 9
