"""One pool thread is enough for any pipeline, and pools are shared fairly (issue 2); K7."""

from __future__ import annotations

import asyncio
import io
import itertools
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest

from spdl_async import Pipeline, PipelineBuilder

Loop = Literal["caller", "own"]
LOOPS: list[Loop] = ["caller", "own"]
both_loops = pytest.mark.parametrize("loop", LOOPS)
PATIENCE = 20.0


def worked(item: int) -> int:
    time.sleep(0.002)  # longer than it takes to be outrun by others
    return item


async def first(pipeline: Pipeline[Any], count: int, loop: Loop) -> list[Any]:
    got = []
    async with asyncio.timeout(PATIENCE):
        async with pipeline.run(loop=loop) as run:
            async for item in run:
                got.append(item)
                if len(got) == count:
                    break
    return got


@both_loops
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("op", [abs, worked])
async def test_three_stages_on_one_thread(loop: Loop, concurrency: int, op: Any) -> None:
    """Issue 2: work reaches the end at once, though the first stage never runs dry."""
    builder = PipelineBuilder().add_source(itertools.count)
    for number in range(3):
        builder = builder.pipe(op, concurrency=concurrency, name=f"s{number}", fuse=False)
    pipeline = builder.build(num_threads=1)
    assert await first(pipeline, 60, loop) == list(range(60))


@both_loops
async def test_no_stage_starves_on_one_thread(loop: Loop) -> None:
    """Issue 2: calls of the last stage keep up with those of the first, up to what is in flight."""
    calls = [0, 0, 0]

    def stage(number: int) -> Any:
        def op(item: int) -> int:
            calls[number] += 1
            return worked(item)

        return op

    builder = PipelineBuilder().add_source(itertools.count)
    for number in range(3):
        builder = builder.pipe(stage(number), concurrency=2, fuse=False, name=f"s{number}")
    pipeline = builder.build(num_threads=1)
    bound = pipeline.describe().source_items_bound
    assert bound is not None
    await first(pipeline, 100, loop)
    assert calls[2] >= 100
    assert calls[0] - calls[2] <= bound


@both_loops
@pytest.mark.parametrize("below", [abs, worked])
async def test_a_generator_feeds_a_stage_on_one_thread(loop: Loop, below: Any) -> None:
    """Issue 2: the endless generator gives its thread away when its output is full."""

    def endless(item: int) -> Generator[int, None, None]:
        yield from itertools.count()

    pipeline = PipelineBuilder().add_source([0]).pipe(endless).pipe(below).build(num_threads=1)
    assert await first(pipeline, 200, loop) == list(range(200))


@both_loops
async def test_a_slow_generator_feeds_a_stage_on_one_thread(loop: Loop) -> None:
    """Issue 2: also when its output never fills."""

    def endless(item: int) -> Generator[int, None, None]:
        for number in itertools.count():
            yield worked(number)

    pipeline = PipelineBuilder().add_source([0]).pipe(endless).pipe(abs).build(num_threads=1)
    assert await first(pipeline, 60, loop) == list(range(60))


@both_loops
async def test_a_filter_of_an_endless_source_on_one_thread(loop: Loop) -> None:
    """Issue 2, design §4: A (2 ms, endless) → filter 1/10 → C; C gets all its items at once."""
    kept_at: list[int] = []
    calls = 0

    def a(item: int) -> int:
        nonlocal calls
        calls += 1
        return worked(item)

    def c(item: int) -> int:
        kept_at.append(calls)
        return item

    pipeline = (
        PipelineBuilder()
        .add_source(itertools.count)
        .pipe(a)
        .filter(lambda item: item % 10 == 0)
        .pipe(c)
        .build(num_threads=1)
    )
    assert await first(pipeline, 12, loop) == list(range(0, 120, 10))
    # When C sees the kth item, A has run 10 k times, and a few more: the windows below it.
    assert all(at <= 10 * number + 30 for number, at in enumerate(kept_at)), kept_at


@both_loops
async def test_two_pipelines_share_a_given_pool(loop: Loop) -> None:
    """Issue 2: on one ThreadPoolExecutor neither starves the other."""
    calls = {"one": 0, "two": 0}
    lock = threading.Lock()

    def stage(name: str) -> Any:
        def op(item: int) -> int:
            with lock:
                calls[name] += 1
            return worked(item)

        return op

    with ThreadPoolExecutor(2) as executor:

        def build(name: str, concurrency: int) -> Pipeline[int]:
            source = PipelineBuilder().add_source(itertools.count)
            return source.pipe(stage(name), concurrency=concurrency).build(executor=executor)

        async def consume(pipeline: Pipeline[int], count: int, ended: asyncio.Event) -> None:
            async with pipeline.run(loop=loop) as run:
                async for item in run:
                    if item == count or ended.is_set():
                        ended.set()
                        return

        ended = asyncio.Event()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(
                consume(build("one", 2), 300, ended), consume(build("two", 2), 300, ended)
            )
        share = calls["one"] / sum(calls.values())
    assert 0.25 < share < 0.75, calls


@both_loops
async def test_a_small_job_beside_a_big_one_on_a_given_pool(loop: Loop) -> None:
    """Issue 2: a pipeline that never runs dry does not keep the other from the only thread."""
    with ThreadPoolExecutor(1) as executor:
        endless = PipelineBuilder().add_source(itertools.count)
        big = endless.pipe(worked, concurrency=4).build(executor=executor)
        small = PipelineBuilder().add_source(range(20)).pipe(abs).build(executor=executor)
        async with asyncio.timeout(PATIENCE):
            async with big.run(loop=loop) as run:
                consumer = asyncio.create_task(consume_all(run))
                async with small.run(loop=loop) as other:
                    assert [item async for item in other] == list(range(20))
                assert not consumer.done()
                consumer.cancel()
                await asyncio.wait([consumer])


async def consume_all(run: Any) -> None:
    async for _ in run:
        pass


def test_lambdas_closures_and_open_files() -> None:
    """K7: nothing is pickled."""
    file = io.BytesIO(b"".join(bytes([number]) * 4 for number in range(40)))
    lock = threading.Lock()
    handles = {"count": 0}

    class Local:
        def __init__(self, added: int) -> None:
            self.added = added
            self.lock = threading.Lock()

        def add(self, number: int) -> int:
            return number + self.added

        def __call__(self, number: int) -> int:
            with self.lock:
                return number - self.added

    def read(index: int) -> int:
        with lock:
            handles["count"] += 1
            file.seek(4 * index)
            return file.read(4)[0]

    numbers = (number for number in range(40))
    local = Local(5)
    pipeline = (
        PipelineBuilder()
        .add_source(numbers)
        .pipe(read, concurrency=4)
        .pipe(local.add, concurrency=2)
        .pipe(local)
        .pipe(lambda number: (number, local))
        .build()
    )
    got = list(pipeline)
    assert [number for number, _ in got] == list(range(40))
    assert all(one is local for _, one in got)
    assert handles["count"] == 40


@pytest.mark.parametrize("stages", [2, 5])
def test_hops_of_one_stage_do_not_hold_the_pool(stages: int) -> None:
    """One thread, stages with more concurrency than threads: order and bound are kept."""
    builder = PipelineBuilder().add_source(range(200))
    for number in range(stages):
        builder = builder.pipe(
            worked if number % 2 else abs, concurrency=4, fuse=False, name=f"s{number}"
        )
    assert list(builder.build(num_threads=1)) == list(range(200))
