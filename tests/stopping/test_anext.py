"""Taking results: contract 17 (cancelling loses nothing, each item goes to exactly one taker)."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import pytest
from witness import PATIENCE, entered, other_tasks, our_threads, silence, ticks

from spdl_async import Pipeline, PipelineBuilder, PipelineRun
from spdl_async._runtime.bridge import Handover
from spdl_async._runtime.ticket import Item

Loop = Literal["caller", "own"]
LOOPS: list[Loop] = ["caller", "own"]
both_loops = pytest.mark.parametrize("loop", LOOPS)
SINKS = [1, 2, 7]


def paced(count: int, sink: int, seed: int = 0) -> Pipeline[int]:
    """Return a pipeline whose results come in fits and starts."""
    rng = random.Random(seed)
    pauses = [rng.choice((0, 0, 1e-4, 1e-3)) for _ in range(97)]

    async def source() -> AsyncIterator[int]:
        for number in range(count):
            await asyncio.sleep(pauses[number % 97])
            yield number

    numbers = PipelineBuilder().add_source(source)
    return numbers.pipe(lambda x: x, concurrency=2).add_sink(sink).build()


@both_loops
@pytest.mark.parametrize("sink", SINKS)
async def test_thousands_of_timeouts_lose_nothing(loop: Loop, sink: int) -> None:
    """Contract 17 with asyncio.timeout around anext."""
    rng = random.Random(sink)
    got: list[int] = []
    expired = 0
    count = 500
    async with paced(count, sink).run(loop=loop) as run:
        while len(got) < count:
            try:
                async with asyncio.timeout(rng.choice((0, 0, 0, 1e-6, 1e-5, 1e-4))):
                    got.append(await anext(run))
            except TimeoutError:
                expired += 1
        with pytest.raises(StopAsyncIteration):
            await anext(run)
    assert got == list(range(count))
    assert expired > 100


@both_loops
@pytest.mark.parametrize("takers", [1, 3])
async def test_random_cancels_of_takers_lose_nothing(loop: Loop, takers: int) -> None:
    """Contract 17 with task.cancel() at random moments, alone and in company."""
    rng = random.Random(takers)
    got: list[int] = []
    cancelled = 0
    count = 600

    async def take(run: PipelineRun[int]) -> None:
        got.append(await anext(run))

    async with paced(count, 2, seed=takers).run(loop=loop) as run:
        while len(got) < count:
            tasks = [asyncio.create_task(take(run)) for _ in range(takers)]
            await ticks(rng.randrange(6))
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            cancelled += sum(isinstance(o, asyncio.CancelledError) for o in outcomes)
            if any(isinstance(o, StopAsyncIteration) for o in outcomes):
                break
    assert sorted(got) == list(range(count))
    assert cancelled > 100


@both_loops
async def test_a_wake_up_of_a_cancelled_taker_is_passed_on(loop: Loop) -> None:
    """Contract 17: cancelled in the very tick of its item's arrival, it does not keep it."""
    for offset in range(12):
        gate = threading.Event()

        async def source(gate: threading.Event = gate) -> AsyncIterator[int]:
            await entered(gate)
            yield 0
            await asyncio.Event().wait()  # no end of the data wakes whoever still waits

        async with PipelineBuilder().add_source(source).build().run(loop=loop) as run:
            first = asyncio.ensure_future(anext(run))
            second = asyncio.ensure_future(anext(run))
            await ticks(3)
            gate.set()
            await ticks(offset)
            first.cancel()
            await asyncio.wait([first])
            if first.cancelled():
                async with asyncio.timeout(PATIENCE):
                    assert await second == 0
            else:
                assert first.result() == 0
                second.cancel()
                await asyncio.wait([second])


@pytest.mark.parametrize("engine", ["this loop", "another"])
async def test_a_wake_up_and_a_cancellation_in_one_tick(engine: str) -> None:
    """Contract 17: the same without luck, on the hand-over itself; no end of the data helps."""
    handover = Handover(2)
    other = asyncio.new_event_loop()
    handover.attach(asyncio.get_running_loop() if engine == "this loop" else other, lambda: None)
    first = asyncio.ensure_future(handover.next_async())
    second = asyncio.ensure_future(handover.next_async())
    await ticks(2)
    handover.put([Item("it", 0, "it")])
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    await ticks(5)
    assert second.done(), "nobody has told it that there is something to take"
    assert second.result() == "it"
    other.close()


@both_loops
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("takers", [2, 5])
async def test_several_tasks_take(loop: Loop, sink: int, takers: int) -> None:
    """Contract 17: each item goes to exactly one, in order; the end comes to all."""
    shares: list[list[int]] = [[] for _ in range(takers)]

    async def take(run: PipelineRun[int], share: list[int]) -> None:
        async for item in run:
            share.append(item)
            if item % 7 == 0:
                await asyncio.sleep(0)

    async with paced(600, sink).run(loop=loop) as run:
        async with asyncio.timeout(PATIENCE * 2):
            await asyncio.gather(*(take(run, share) for share in shares))
    assert sorted(itertools.chain.from_iterable(shares)) == list(range(600))
    for share in shares:
        assert share == sorted(share)


@both_loops
async def test_a_failure_comes_to_all_that_wait(loop: Loop) -> None:
    """Contract 17 and 6: nobody waits for ever, nobody gets a clean end."""
    gate = threading.Event()
    mine = ValueError("op")

    def op(item: int) -> int:
        assert gate.wait(PATIENCE)
        raise mine

    async with PipelineBuilder().add_source(range(3)).pipe(op).build().run(loop=loop) as run:
        waiting = [asyncio.ensure_future(anext(run)) for _ in range(3)]
        await ticks(3)
        gate.set()
        async with asyncio.timeout(PATIENCE):
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert outcomes == [mine] * 3


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("takers", [2, 5])
@pytest.mark.parametrize("fails", [False, True])
def test_several_threads_take(sink: int, takers: int, fails: bool) -> None:
    """Contract 17 for ordinary code: each item to one thread, the end or the failure to all."""
    shares: list[list[int]] = [[] for _ in range(takers)]
    ends: list[type[BaseException]] = []
    mine = ValueError("source")

    def source() -> Iterator[int]:
        yield from range(2000)
        if fails:
            raise mine

    with (
        PipelineBuilder()
        .add_source(source)
        .pipe(lambda x: x, concurrency=2)
        .add_sink(sink)
        .build()
        .run_sync() as run
    ):

        def take(share: list[int]) -> None:
            try:
                while True:
                    share.append(next(run))
            except (StopIteration, ValueError) as error:
                ends.append(type(error))

        threads = [threading.Thread(target=take, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert ends == [ValueError if fails else StopIteration] * takers
    assert sorted(itertools.chain.from_iterable(shares)) == list(range(2000))
    for share in shares:
        assert share == sorted(share)
    assert not our_threads()


async def test_tasks_of_two_loops_take_from_a_run_of_its_own_loop() -> None:
    """Contract 17: where the engine has a loop of its own, the takers' loop does not matter."""
    pipeline = PipelineBuilder().add_source(range(300)).pipe(lambda x: x).build()
    async with pipeline.run(loop="own") as run:
        share: list[int] = []

        async def take() -> None:
            share.extend([item async for item in run])

        other = asyncio.create_task(asyncio.to_thread(asyncio.run, take()))
        mine = [item async for item in run]
        await other
    assert sorted(mine + share) == list(range(300))
    await asyncio.get_running_loop().shutdown_default_executor()


@both_loops
async def test_the_end_is_seen_again_and_again(loop: Loop) -> None:
    async with PipelineBuilder().add_source(range(2)).build().run(loop=loop) as run:
        assert [item async for item in run] == [0, 1]
        for _ in range(3):
            with pytest.raises(StopAsyncIteration):
                await anext(run)
            assert [item async for item in run] == []


async def test_the_short_form_is_cancel_safe_too() -> None:
    """Contract 17 for the iterator of ``aiter(pipeline)``."""
    iterator = aiter(paced(200, 2))
    got: list[int] = []
    expired = 0
    rng = random.Random(5)
    while len(got) < 200:
        try:
            async with asyncio.timeout(rng.choice((0, 1e-5, 1e-4))):
                got.append(await anext(iterator))
        except TimeoutError:
            expired += 1
    assert got == list(range(200))
    assert expired
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)
    assert not other_tasks()
    await silence()
