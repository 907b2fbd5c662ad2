"""A3: thousands of stops at random points, in random ways, of random pipelines; contract 15."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Generator
from contextlib import suppress
from typing import Any, Literal

import pytest
from witness import PATIENCE, silence, ticks, wait_for_silence

from spdl_async import Pipeline, PipelineBuilder

Loop = Literal["caller", "own"]
LOOPS: list[Loop] = ["caller", "own"]


def random_pipeline(rng: random.Random, length: int) -> Pipeline[int]:
    """Return a chain of one to three stages of random kinds that keeps the numbers as they are."""

    async def asource() -> AsyncIterator[int]:
        for number in range(length):
            if rng.random() < 0.2:
                await asyncio.sleep(0)
            yield number

    async def aop(item: int) -> int:
        await asyncio.sleep(0)
        return item

    def op(item: int) -> int:
        if item % 11 == 5:
            time.sleep(0.0003)
        return item

    def generator(item: int) -> Generator[int, None, None]:
        yield item

    builder = (
        PipelineBuilder().add_source(asource)
        if rng.random() < 0.3
        else PipelineBuilder().add_source(range(length))
    )
    for _ in range(rng.randint(1, 3)):
        concurrency = rng.randint(1, 8)
        kind = rng.randrange(5)
        if kind == 0:
            builder = builder.pipe(aop, concurrency=concurrency)
        elif kind == 1:
            builder = builder.pipe(generator, concurrency=concurrency)
        elif kind == 2:
            builder = builder.aggregate(rng.randint(1, 5)).disaggregate()
        else:
            builder = builder.pipe(op, concurrency=concurrency)
    threads = rng.choice((None, None, 1, 2))
    return builder.add_sink(rng.randint(1, 4)).build(num_threads=threads)


class BodyError(Exception):
    """Raised by the consumer."""


async def stopped(pipeline: Pipeline[int], rng: random.Random, point: int, loop: Loop) -> list[int]:
    """Consume up to a point, stop there in some way, and return what came."""
    got: list[int] = []
    way = rng.choice(
        ("break", "exception", "cancel", "aclose", "drop", "scope", "aclose elsewhere")
    )
    if way in ("break", "drop"):
        iterator = aiter(pipeline)
        while len(got) < point:
            try:
                got.append(await anext(iterator))
            except StopAsyncIteration:
                break
        del iterator
        if way == "drop" and rng.random() < 0.1:
            gc.collect()
        return got

    async def consume() -> None:
        async with pipeline.run(loop=loop) as run:
            if way == "aclose elsewhere":
                closing = asyncio.create_task(run.aclose())
                with suppress(Exception):
                    while True:
                        got.append(await anext(run))
                await closing
                return
            if len(got) >= point:
                await give_up(run)
            async for item in run:
                got.append(item)
                if len(got) >= point:
                    await give_up(run)
                    return

    async def give_up(run: Any) -> None:
        if way == "exception":
            raise BodyError
        if way == "aclose":
            await run.aclose()
        if way == "cancel":
            me = asyncio.current_task()
            assert me is not None
            asyncio.get_running_loop().call_soon(me.cancel)
            await asyncio.sleep(60)

    task = asyncio.create_task(consume())
    if way == "cancel" and rng.random() < 0.5:
        await ticks(rng.randrange(30))
        task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    allowed = {"exception": BodyError, "cancel": asyncio.CancelledError, "aclose": RuntimeError}
    assert outcome is None or isinstance(outcome, allowed[way]), (way, outcome)
    return got


def stopped_sync(pipeline: Pipeline[int], rng: random.Random, point: int) -> list[int]:
    """Do the same in ordinary code."""
    got: list[int] = []
    way = rng.choice(("break", "exception", "scope", "close elsewhere"))
    if way == "break":
        for item in pipeline:
            if len(got) >= point:
                break
            got.append(item)
        return got
    with suppress(BodyError, RuntimeError), pipeline.run_sync() as run:
        if way == "close elsewhere":
            threading.Thread(target=run.close).start()
        for item in run:
            if len(got) >= point:
                if way == "exception":
                    raise BodyError
                break
            got.append(item)
    return got


async def async_rounds(seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    for number in range(rounds):
        length = rng.choice((0, 1, 2, rng.randint(0, 50)))
        point = rng.choice((0, length, rng.randint(0, 50)))
        loop: Loop = rng.choice(LOOPS)
        pipeline = random_pipeline(rng, length)
        async with asyncio.timeout(PATIENCE):
            got = await stopped(pipeline, rng, point, loop)
        assert got == list(range(len(got))), (number, got)
        if number % 50 == 49:
            await silence()
    await silence()


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("runner", ["asyncio", "uvloop"])
def test_random_stops_in_tasks(runner: str) -> None:
    """A3, contract 15: before the first item, at the last, anywhere, in every way."""
    if runner == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        uvloop.run(async_rounds(1, 1000))
    else:
        asyncio.run(async_rounds(2, 1000))
    wait_for_silence()


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_random_stops_in_ordinary_code() -> None:
    """A3, contract 15, for the other face."""
    rng = random.Random(3)
    for number in range(1000):
        length = rng.choice((0, 1, 2, rng.randint(0, 50)))
        point = rng.choice((0, length, rng.randint(0, 50)))
        got = stopped_sync(random_pipeline(rng, length), rng, point)
        assert got == list(range(len(got))), number
        if number % 50 == 49:
            wait_for_silence()
    wait_for_silence()


@pytest.mark.slow
def test_random_stops_while_threads_are_switched_very_often() -> None:
    """A3 with another schedule: the interpreter switches threads every 10 µs."""
    rng = random.Random(4)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(150):
            length = rng.randint(0, 50)
            got = stopped_sync(random_pipeline(rng, length), rng, rng.choice((0, length, 7)))
            assert got == list(range(len(got)))
        asyncio.run(async_rounds(5, 150))
    finally:
        sys.setswitchinterval(before)
    wait_for_silence()
