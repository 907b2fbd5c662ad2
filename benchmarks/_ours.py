"""The work of `benchmarks.engine` done with spdl_async, through its public API only."""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from benchmarks._measure import percentile, rss_mib
from benchmarks._peers import (
    BATCH,
    check,
    lateness,
    noop,
    noop_async,
    p50_of_next,
    rate,
    stamp,
    ticks,
)
from spdl_async import DROP, Pipeline, PipelineBuilder

T = TypeVar("T")
Loop = Literal["caller", "own"]
Runner = Callable[[Awaitable[float]], float]


def thread_stages(
    items: int, *, stages: int, fuse: bool, concurrency: int = 4, iterator: bool = False
) -> Pipeline[list[int]]:
    """Build a chain of no-op thread stages that ends in lists of 32.

    A `range` may be read in a way of its own; with `iterator` the source is code of the user's.
    """
    if iterator:
        builder = PipelineBuilder().add_source(lambda: (item for item in range(items)))
    else:
        builder = PipelineBuilder().add_source(range(items))
    for _ in range(stages):
        builder = builder.pipe(noop, concurrency=concurrency, fuse=fuse)
    return builder.aggregate(BATCH).build()


def async_stage(items: int, *, sink: int = 2) -> Pipeline[int]:
    """Build one no-op async stage whose items reach the consumer one by one."""
    builder = PipelineBuilder().add_source(range(items)).pipe(noop_async, concurrency=4)
    return builder.add_sink(sink).build()


def async_batches(items: int, *, concurrency: int = 4) -> Pipeline[list[int]]:
    """Build one no-op async stage that ends in lists of 32."""
    builder = PipelineBuilder().add_source(range(items))
    return builder.pipe(noop_async, concurrency=concurrency).aggregate(BATCH).build()


def sync_rate(pipeline: Pipeline[list[int]], items: int) -> float:
    """Give items a second of one pass from ordinary code."""
    with pipeline.run_sync() as run:
        return rate(run, items)


async def async_rate(pipeline: Pipeline[list[int]], items: int, loop: Loop) -> float:
    """Give items a second of one pass from async code, from the first request to the last batch."""
    async with pipeline.run(loop=loop) as run:
        taken = 0
        started = time.perf_counter()
        async for batch in run:
            taken += len(batch)
        seconds = time.perf_counter() - started
    check(taken, items)
    return items / seconds


async def async_rate_single(pipeline: Pipeline[int], items: int, loop: Loop) -> float:
    """Do the same for a pipeline whose items arrive one by one."""
    async with pipeline.run(loop=loop) as run:
        taken = 0
        started = time.perf_counter()
        async for _ in run:
            taken += 1
        seconds = time.perf_counter() - started
    check(taken, items)
    return items / seconds


def import_time(module: str, repeats: int) -> float:
    """Give the median milliseconds in which a fresh interpreter imports a module."""
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(repeats)
    ]
    return statistics.median(times) * 1e3


def _five() -> Pipeline[int]:
    return PipelineBuilder().add_source(range(5)).pipe(noop, concurrency=4).build()


def start_stop_sync(repeats: int) -> float:
    """Give the median milliseconds in which an idle run starts, delivers five items and ends."""
    pipeline, times = _five(), []
    for _ in range(repeats):
        started = time.perf_counter()
        with pipeline.run_sync() as run:
            taken = sum(1 for _ in run)
        times.append((time.perf_counter() - started) * 1e3)
        check(taken, 5)
    return statistics.median(times)


async def start_stop(repeats: int, loop: Loop) -> float:
    """Do the same from async code; the loop that calls exists already."""
    pipeline, times = _five(), []
    for _ in range(repeats):
        started = time.perf_counter()
        taken = 0
        async with pipeline.run(loop=loop) as run:
            async for _item in run:
                taken += 1
        times.append((time.perf_counter() - started) * 1e3)
        check(taken, 5)
    return statistics.median(times)


def ready_sync(calls: int, pause: float) -> float:
    """Give the p50 of `next` while items wait in the sink, in microseconds."""
    with async_stage(calls + 8).run_sync() as run:
        return p50_of_next(run, calls, pause)


async def ready_async(calls: int, pause: float, loop: Loop) -> float:
    """Give the p50 of `anext` while items wait in the sink.

    With `loop="own"` the caller's loop is blocked in between, as by a training step: the hand-over
    must not need it. With `loop="caller"` the caller awaits, or the stages could not run at all.
    """
    times: list[float] = []
    async with async_stage(calls + 8).run(loop=loop) as run:
        await anext(run)
        for _ in range(calls):
            if loop == "own":
                time.sleep(pause)  # noqa: ASYNC251 -- this is the step that blocks the loop
            else:
                await asyncio.sleep(pause)
            started = time.perf_counter()
            await anext(run)
            times.append((time.perf_counter() - started) * 1e6)
    return statistics.median(times)


def _stamped(calls: int, pause: float) -> Pipeline[float]:
    def source() -> AsyncIterator[int]:
        return ticks(calls, pause)

    return PipelineBuilder().add_source(source).pipe(stamp).build()


def waiting_sync(calls: int, pause: float) -> float:
    """Give the p50 of an item's way from the last stage to a thread that waits for it."""
    with _stamped(calls, pause).run_sync() as run:
        return statistics.median(lateness(run))


async def waiting_async(calls: int, pause: float, loop: Loop) -> float:
    """Give the p50 of an item's way from the last stage to a coroutine that waits for it."""
    async with _stamped(calls, pause).run(loop=loop) as run:
        return statistics.median([(time.perf_counter() - sent) * 1e6 async for sent in run])


def busy(item: int) -> int:
    """Take 2 ms of a pool thread without the GIL, as a small decode does."""
    time.sleep(0.002)
    return item


def waited(asked: float) -> float:
    """Give the milliseconds from the request to this call in a pool thread."""
    return (time.perf_counter() - asked) * 1e3


async def every_tenth(item: int) -> Any:
    """Let one item in ten of the busy stage through, stamped: a request every 20 ms."""
    return time.perf_counter() if item % 10 == 0 else DROP


def fair_inside(requests: int) -> float:
    """Give the p99 wait when both stages are in one pipeline, on one thread of our own pool."""
    pipeline: Pipeline[float] = (
        PipelineBuilder()
        .add_source(itertools.count())
        .pipe(busy)
        .pipe(every_tenth)
        .pipe(waited)
        .build(num_threads=1)
    )
    with pipeline.run_sync() as run:
        waits = list(itertools.islice(run, requests))
    return percentile(waits, 0.99)


async def fair_between(requests: int) -> float:
    """Give the p99 wait when a second pipeline shares one given `ThreadPoolExecutor(1)`."""

    async def asked() -> AsyncIterator[float]:
        for _ in range(requests):
            await asyncio.sleep(0.02)
            yield time.perf_counter()

    async def drain(run: AsyncIterator[int]) -> None:
        async for _ in run:
            pass

    with ThreadPoolExecutor(1) as pool:
        noise = PipelineBuilder().add_source(itertools.count()).pipe(busy).build(executor=pool)
        calls = PipelineBuilder().add_source(asked).pipe(waited).build(executor=pool)
        async with noise.run(loop="caller") as endless, calls.run(loop="caller") as run:
            drained = asyncio.create_task(drain(endless))
            waits = [wait async for wait in run]
            drained.cancel()
            await asyncio.gather(drained, return_exceptions=True)
    check(len(waits), requests)
    return percentile(waits, 0.99)


def cost_per_item(items: int, concurrency: int, kind: Literal["thread", "async"]) -> float:
    """Give microseconds an item of one pass over a no-op stage with lists of 32."""
    if kind == "thread":
        pipeline = thread_stages(items, stages=1, fuse=True, concurrency=concurrency)
    else:
        pipeline = async_batches(items, concurrency=concurrency)
    return 1e6 / sync_rate(pipeline, items)


def memory_growth(items: int) -> tuple[float, float, float]:
    """Give the resident MiB after a tenth of the items, the most later on, and after the run."""
    warm, seen = 0.0, 0.0
    with thread_stages(items, stages=1, fuse=True).run_sync() as run:
        for number, _ in enumerate(run):
            done = number * BATCH
            if not warm and done >= items // 10:
                warm = rss_mib()
            elif warm and number % 256 == 0:
                seen = max(seen, rss_mib())
    gc.collect()
    return warm, max(seen, warm), rss_mib()
