"""The virtual clock, gates, the recorder and the inline executor do what they say."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from spdl_async import PipelineBuilder
from spdl_async.testing import (
    AsyncGate,
    Gate,
    InlineExecutor,
    Recorder,
    VirtualClockLoop,
    check_leaks,
    run_virtual,
)


def identity(item: Any) -> Any:
    return item


# The virtual clock


async def minute(item: int) -> int:
    await asyncio.sleep(60)
    return item


def now() -> float:
    return asyncio.get_running_loop().time()


def test_minutes_pass_at_once_and_in_order() -> None:
    async def main() -> tuple[list[int], float]:
        pipeline = PipelineBuilder().add_source(range(12)).pipe(minute, concurrency=4).build()
        return [item async for item in pipeline], now()

    began = time.monotonic()
    items, ended = run_virtual(main())
    assert items == list(range(12))
    assert ended == pytest.approx(180, abs=0.1)
    assert time.monotonic() - began < 60


def test_timeouts_are_virtual() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return now()

    assert run_virtual(main()) == pytest.approx(3600)


def test_the_clock_stands_while_a_thread_of_a_run_works() -> None:
    async def main() -> float:
        gate: Gate[int] = Gate()
        pipeline = PipelineBuilder().add_source([1]).pipe(gate).build()
        async with pipeline.run(loop="caller") as run:
            ticks = asyncio.create_task(asyncio.sleep(1000))  # would be due at once
            result = asyncio.create_task(anext(run))
            await gate.wait_arrived(1)
            threading.Timer(0.05, gate.open).start()
            assert await result == 1
            stood = now()
            await ticks
            return stood

    assert run_virtual(main()) < 1


def test_the_clock_runs_while_the_threads_of_a_run_rest() -> None:
    async def main() -> float:
        pipeline = PipelineBuilder().add_source(map(int, "123")).pipe(identity).build()
        async with pipeline.run(loop="caller") as run:
            assert await anext(run) == 1
            await asyncio.sleep(1000)
            assert [item async for item in run] == [2, 3]
        return now()

    assert run_virtual(main()) == pytest.approx(1000, abs=0.1)


def test_a_descriptor_with_news_comes_before_time() -> None:
    async def main() -> float:
        reader, writer = os.pipe()
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(reader, ready.set)
        os.write(writer, b"x")
        try:
            async with asyncio.timeout(10):
                await ready.wait()
        finally:
            loop.remove_reader(reader)
            os.close(reader)
            os.close(writer)
        return now()

    assert run_virtual(main()) == 0


def test_advance_moves_the_clock_by_hand() -> None:
    loop = VirtualClockLoop()
    try:
        loop.advance(5)
        assert loop.time() == 5
        with pytest.raises(ValueError, match="backwards"):
            loop.advance(-1)
    finally:
        loop.close()


# Gates


async def test_a_gate_shows_and_holds_calls_in_threads() -> None:
    gate: Gate[int] = Gate()
    pipeline = PipelineBuilder().add_source(range(9)).pipe(gate, concurrency=3).build()
    async with pipeline.run() as run:
        with gate:
            assert sorted(await gate.wait_arrived(3)) == [0, 1, 2]
            assert gate.waiting == 3
            assert gate.passed == []
            gate.open(1)
            assert len(await gate.wait_arrived(4)) == 4
            assert len(gate.passed) == 1
        assert [item async for item in run] == list(range(9))
    assert gate.waiting == 0


def test_a_gate_in_ordinary_code() -> None:
    gate: Gate[int] = Gate()
    with PipelineBuilder().add_source(range(3)).pipe(gate).build().run_sync() as run, gate:
        assert gate.wait_arrived_sync(1) == [0]
        with pytest.raises(TimeoutError, match="1 of 2 calls"):
            gate.wait_arrived_sync(2, timeout=0.01)
        gate.open()
        assert list(run) == [0, 1, 2]
        assert gate.passed == gate.arrived == [0, 1, 2]


@pytest.mark.parametrize("where", ["caller", "own"])
async def test_an_async_gate_holds_calls_on_any_loop(where: Any) -> None:
    gate: AsyncGate[int] = AsyncGate()
    pipeline = PipelineBuilder().add_source(range(9)).pipe(gate, concurrency=3).build()
    async with pipeline.run(loop=where) as run:
        assert await gate.wait_arrived(3) == [0, 1, 2]
        gate.open(2)
        assert [await anext(run), await anext(run)] == [0, 1]
        await gate.wait_arrived(5)
        gate.open()
        assert [item async for item in run] == list(range(2, 9))
        assert sorted(gate.passed) == gate.arrived


async def test_a_shut_gate_holds_again() -> None:
    gate: AsyncGate[int] = AsyncGate(opened=True)
    assert await gate(1) == 1
    gate.shut()
    call = asyncio.create_task(gate(2))
    await gate.wait_arrived(2)
    assert repr(gate) == "<AsyncGate: shut, 2 arrived, 1 passed>"
    gate.open()
    assert await call == 2


async def test_a_cancelled_call_gives_its_permit_back() -> None:
    gate: AsyncGate[int] = AsyncGate()
    first = asyncio.create_task(gate(1))
    second = asyncio.create_task(gate(2))
    await gate.wait_arrived(2)
    gate.open(1)
    first.cancel()  # before its permit has reached it
    assert await second == 2
    with pytest.raises(asyncio.CancelledError):
        await first
    assert gate.waiting == 0


# The recorder


async def acopy(item: int) -> int:
    await asyncio.sleep(0)
    return item


def twice(item: int) -> Iterator[int]:
    yield item
    yield item


async def atwice(item: int) -> AsyncIterator[int]:
    yield item
    yield item


class Doubler:
    async def __call__(self, item: int) -> int:
        return 2 * item


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (str, ["1", "2"]),
        (acopy, [1, 2]),
        (twice, [1, 1, 2, 2]),
        (atwice, [1, 1, 2, 2]),
        (Doubler(), [2, 4]),
        (functools.partial(pow, 10), [10, 100]),
        (functools.partial(twice), [1, 1, 2, 2]),
    ],
    ids=["class", "async", "generator", "agenerator", "object", "partial", "partial-generator"],
)
def test_a_recorded_op_keeps_its_kind(op: Any, wanted: list[Any]) -> None:
    seen = Recorder()
    pipeline: Any = PipelineBuilder().add_source([1, 2]).pipe(seen.op(op)).build()
    assert list(pipeline) == wanted
    assert seen.started == seen.finished == [1, 2]
    assert (seen.failed, seen.running, seen.peak) == ([], 0, 1)
    assert len(seen.threads) == 1
    assert repr(seen) == "<Recorder: 2 started, 2 finished, 0 failed, peak 1>"


def test_a_recorder_sees_failures_and_the_peak() -> None:
    seen, gate = Recorder(), Gate[int]()

    def fail_on_odd(item: int) -> int:
        gate(item)
        if item % 2:
            raise ValueError(item)
        return item

    pipeline = (
        PipelineBuilder()
        .add_source(range(8))
        .pipe(seen.op(fail_on_odd), concurrency=4)
        .build(on_error="skip")
    )
    with pipeline.run_sync() as run, gate:
        gate.wait_arrived_sync(4)
        gate.open()
        assert list(run) == [0, 2, 4, 6]
    assert sorted(seen.failed) == [1, 3, 5, 7]
    assert sorted(seen.finished) == [0, 2, 4, 6]
    assert seen.peak == 4


def test_a_recorded_source_counts_passes_and_their_ends() -> None:
    seen = Recorder()
    pipeline = PipelineBuilder().add_source(seen.source(range(100))).build()
    for item in pipeline:
        assert item == 0
        break
    assert list(pipeline) == list(range(100))
    with check_leaks():  # waits for the end of the pass that was left
        pass
    assert seen.opened == 2
    assert seen.started[-100:] == list(range(100))


async def test_a_recorded_async_source_is_closed() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    seen = Recorder()
    async with PipelineBuilder().add_source(seen.source(numbers())).build().run() as run:
        assert await anext(run) == 1
    assert (seen.opened, seen.closed) == (1, 1)


# The inline executor


def test_the_inline_executor_calls_at_once_in_the_callers_thread() -> None:
    executor = InlineExecutor()
    assert executor.submit(threading.get_ident).result() == threading.get_ident()
    assert isinstance(executor.submit(lambda: {"here": 1}["missing"]).exception(), KeyError)
    assert list(executor.map(abs, [-1, 2])) == [1, 2]


def test_a_pipeline_on_the_inline_executor_uses_no_thread() -> None:
    names = Recorder()

    async def main() -> list[int]:
        builder = PipelineBuilder().add_source(range(20)).pipe(names.op(abs), concurrency=4)
        async with builder.build(executor=InlineExecutor()).run(loop="caller") as run:
            return [item async for item in run]

    assert run_virtual(main()) == list(range(20))
    assert names.threads == {threading.current_thread().name}
