"""The work of `benchmarks.engine` done without spdl_async: baselines, and peers where installed.

Each `Callable` that a contestant runs is made here, or is None when what it needs is not installed.
A rate covers the time from the first request for an item to the last item: no start and no stop.
Slow contestants get fewer items, so that a round stays short.
"""

from __future__ import annotations

import asyncio
import queue
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import islice
from typing import Any

from benchmarks._measure import percentile

Run = Callable[[], float]
BATCH = 32


def noop(item: int) -> int:
    """Do nothing in a thread: what is measured is what surrounds it."""
    return item


async def noop_async(item: int) -> int:
    """Do nothing on the loop."""
    return item


def batches(items: Iterable[int], size: int = BATCH) -> Iterator[list[int]]:
    """Cut a stream into lists of `size`; the last one may be shorter."""
    stream = iter(items)
    while batch := list(islice(stream, size)):
        yield batch


def rate(stream: Iterable[list[int]], items: int) -> float:
    """Take all batches and give items a second; a stream that loses items is no contestant."""
    started = time.perf_counter()
    taken = sum(len(batch) for batch in stream)
    seconds = time.perf_counter() - started
    check(taken, items)
    return items / seconds


def check(taken: int, expected: int) -> None:
    """Refuse a result that came from the wrong number of items."""
    if taken != expected:
        raise AssertionError(f"{taken} items arrived, {expected} were sent")


def executor_map(items: int) -> float:
    """Run the standard library's own answer: `ThreadPoolExecutor(4).map`, cut into lists."""
    with ThreadPoolExecutor(4) as pool:
        started = time.perf_counter()
        taken = sum(len(batch) for batch in batches(pool.map(noop, range(items))))
        seconds = time.perf_counter() - started
    check(taken, items)
    return items / seconds


async def _gather_all(items: int) -> float:
    slots = asyncio.Semaphore(4)

    async def one(item: int) -> int:
        async with slots:
            return await noop_async(item)

    started = time.perf_counter()
    results = await asyncio.gather(*(one(item) for item in range(items)))
    seconds = time.perf_counter() - started
    check(len(results), items)
    return items / seconds


def semaphore_gather(items: int) -> float:
    """Run what people write by hand: a task for each item and a semaphore, all in memory."""
    return asyncio.run(_gather_all(items))


async def _aiostream(items: int) -> float:
    from aiostream import pipe, stream

    mapped = stream.iterate(range(items)) | pipe.map(noop_async, ordered=True, task_limit=4)
    taken = 0
    started = time.perf_counter()
    async with mapped.stream() as streamer:
        async for _ in streamer:
            taken += 1
    seconds = time.perf_counter() - started
    check(taken, items)
    return items / seconds


def aiostream_map(items: int) -> Run | None:
    """Give aiostream's ordered `map` with at most four tasks."""
    if find_spec("aiostream") is None:
        return None
    return lambda: asyncio.run(_aiostream(items))


def _spdl_builder(source: Any, ops: Iterable[Any]) -> Any:
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(source)
    for op in ops:
        builder = builder.pipe(op, concurrency=4, output_order="input")
    return builder


def spdl_batches(items: int, *, stages: int = 1, thread_queue: bool = True) -> Run | None:
    """Give SPDL with no-op thread stages and lists of 32, with its faster output queue."""
    if find_spec("spdl") is None:
        return None

    def run() -> float:
        builder = _spdl_builder(range(items), [noop] * stages)
        pipeline = (
            builder.aggregate(BATCH)
            .add_sink()
            .build(num_threads=4 * stages, use_thread_output_queue=thread_queue)
        )
        with pipeline.auto_stop():
            return rate(pipeline.get_iterator(), items)

    return run


def spdl_start_stop() -> Run | None:
    """Give the milliseconds in which SPDL starts, delivers five items and stops."""
    if find_spec("spdl") is None:
        return None

    def run() -> float:
        pipeline = _spdl_builder(range(5), [noop]).add_sink().build(num_threads=4)
        started = time.perf_counter()
        with pipeline.auto_stop():
            taken = sum(1 for _ in pipeline.get_iterator())
        milliseconds = (time.perf_counter() - started) * 1e3
        check(taken, 5)
        return milliseconds

    return run


def spdl_ready(calls: int, pause: float, *, thread_queue: bool) -> Run | None:
    """Give the p50 of `next` on SPDL's iterator while items wait, in microseconds."""
    if find_spec("spdl") is None:
        return None

    def run() -> float:
        pipeline = (
            _spdl_builder(range(calls + 8), [noop_async])
            .add_sink()
            .build(num_threads=1, use_thread_output_queue=thread_queue)
        )
        with pipeline.auto_stop():
            return p50_of_next(pipeline.get_iterator(), calls, pause)

    return run


def spdl_waiting(calls: int, pause: float, *, thread_queue: bool) -> Run | None:
    """Give the p50 of an item's way from SPDL's last stage to a consumer that waits for it."""
    if find_spec("spdl") is None:
        return None

    def run() -> float:
        pipeline = (
            _spdl_builder(ticks(calls, pause), [stamp])
            .add_sink()
            .build(num_threads=1, use_thread_output_queue=thread_queue)
        )
        with pipeline.auto_stop():
            return statistics.median(lateness(pipeline.get_iterator()))

    return run


async def ticks(calls: int, pause: float) -> AsyncIterator[int]:
    """Yield a number each `pause` seconds, on the loop."""
    for number in range(calls):
        await asyncio.sleep(pause)
        yield number


async def stamp(_: int) -> float:
    """Give the time at which an item leaves the last stage."""
    return time.perf_counter()


def lateness(stream: Iterable[float]) -> list[float]:
    """Compare each stamp with the time at which it arrives: microseconds."""
    return [(time.perf_counter() - sent) * 1e6 for sent in stream]


def p50_of_next(stream: Iterator[Any], calls: int, pause: float) -> float:
    """Time `next` calls that find an item ready: the caller rests `pause` seconds before each."""
    times: list[float] = []
    next(stream)
    for _ in range(calls):
        time.sleep(pause)
        started = time.perf_counter()
        next(stream)
        times.append((time.perf_counter() - started) * 1e6)
    return statistics.median(times)


def queue_ready(calls: int, pause: float) -> float:
    """Give the p50 of a plain `queue.Queue.get` that finds an item, in microseconds."""
    waiting: queue.Queue[int] = queue.Queue(2)

    def feed() -> None:
        for number in range(calls + 1):
            waiting.put(number)

    feeder = threading.Thread(target=feed)
    feeder.start()
    median = p50_of_next(iter(waiting.get, None), calls, pause)
    feeder.join()
    return median


def _until_none(waiting: queue.Queue[float | None]) -> Iterator[float]:
    while (sent := waiting.get()) is not None:
        yield sent


def queue_waiting(calls: int, pause: float) -> float:
    """Give the p50 of the way through a plain `queue.Queue` to a thread that waits for it."""
    waiting: queue.Queue[float | None] = queue.Queue(2)

    def feed() -> None:
        for _ in range(calls):
            time.sleep(pause)
            waiting.put(time.perf_counter())
        waiting.put(None)

    feeder = threading.Thread(target=feed)
    feeder.start()
    late = lateness(_until_none(waiting))
    feeder.join()
    return statistics.median(late)


def torchdata_threads(items: int) -> Run | None:
    """Give torchdata's threaded mapper and batcher."""
    if find_spec("torchdata") is None:
        return None

    def run() -> float:
        from torchdata.nodes import Batcher, IterableWrapper, Loader, ParallelMapper

        source = IterableWrapper(range(items))
        mapped = ParallelMapper(source, noop, num_workers=4, in_order=True, method="thread")
        return rate(Loader(Batcher(mapped, BATCH, drop_last=False)), items)

    return run


class _Numbers:
    """A map-style data set of integers."""

    def __init__(self, items: int) -> None:
        self._items = items

    def __len__(self) -> int:
        return self._items

    def __getitem__(self, index: int) -> int:
        return index


def _as_it_is(items: list[int]) -> list[int]:
    return items


def dataloader(items: int, *, processes: int) -> Run | None:
    """Give torch's DataLoader with worker processes that live as long as what is returned."""
    if find_spec("torch") is None:
        return None
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        _Numbers(items),  # type: ignore[arg-type]  # any object with these two methods will do
        batch_size=BATCH,
        num_workers=processes,
        collate_fn=_as_it_is,
        persistent_workers=processes > 0,
    )
    check(sum(len(batch) for batch in loader), items)
    return lambda: rate(loader, items)


def fair_executor(requests: int) -> float:
    """Give the p99 wait on a bare `ThreadPoolExecutor(1)` that always has one 2 ms job queued."""
    waits: list[float] = []
    ends = threading.Event()

    def noise(pool: ThreadPoolExecutor) -> None:
        while not ends.is_set():
            pool.submit(time.sleep, 0.002).result()

    with ThreadPoolExecutor(1) as pool:
        feeders = [threading.Thread(target=noise, args=(pool,)) for _ in range(2)]
        for feeder in feeders:
            feeder.start()
        for _ in range(requests):
            time.sleep(0.02)
            asked = time.perf_counter()
            waits.append((pool.submit(time.perf_counter).result() - asked) * 1e3)
        ends.set()
        for feeder in feeders:
            feeder.join()
    return percentile(waits, 0.99)
