"""Memory: contract 4 and J1, J5, J7; long, endless, empty and heavy sources."""

from __future__ import annotations

import asyncio
import gc
import itertools
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from spdl_async import PipelineBuilder

Loop = Literal["caller", "own"]
LOOPS: list[Loop] = ["caller", "own"]
both_loops = pytest.mark.parametrize("loop", LOOPS)

PRELUDE = """
import asyncio, gc, itertools, os, resource, sys, threading
from spdl_async import PipelineBuilder

def memory():
    gc.collect()
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * 4096

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

MB = 1024 * 1024
"""


def run(body: str) -> str:
    """Run a script in a fresh process, where memory can be measured."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_long_list_is_shared_by_threads() -> None:
    """J1, light: a list of a million strings, 16 threads, no growth."""
    run(
        """
        names = [f"folder/{number}.jpg" for number in range(1_000_000)]
        pipeline = (
            PipelineBuilder().add_source(names).pipe(len, concurrency=16).aggregate(1000).build()
        )
        for batch in itertools.islice(pipeline, 100):
            pass
        before = memory()
        assert sum(sum(batch) for batch in itertools.islice(pipeline, 300)) > 300_000
        assert memory() - before < 16 * MB, (memory() - before) / MB
        """
    )


@pytest.mark.slow
def test_no_descriptor_per_batch() -> None:
    """J5: 64 descriptors are enough to keep five thousand batches."""
    run(
        """
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        def op(item):
            with open("/proc/self/stat", "rb") as file:
                return file.read(8)
        pipeline = (
            PipelineBuilder().add_source(range(10_000)).pipe(op, concurrency=4).aggregate(2).build()
        )
        kept = list(pipeline)
        async def main():
            return [batch async for batch in pipeline]
        kept += asyncio.run(main())
        assert len(kept) == 10_000
        """
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", ["range(10**7)", "lambda: iter(range(10**7))", "itertools.count", "generator"]
)
def test_a_hundred_batches_of_ten_million(source: str) -> None:
    """J7: nothing grows with the length of the source; an endless one is as good."""
    run(
        f"""
        def generator():
            yield from range(10**7)
        pipeline = (
            PipelineBuilder().add_source({source}).pipe(abs, concurrency=4).aggregate(32).build()
        )
        list(itertools.islice(pipeline, 5))
        before, threads = memory(), threading.active_count()
        with pipeline.run_sync() as run:
            for number, batch in enumerate(itertools.islice(run, 100)):
                assert batch == list(range(number * 32, number * 32 + 32))
            assert threading.active_count() - threads <= 6
        assert memory() - before < 8 * MB
        async def main():
            seen = 0
            async with pipeline.run(loop="caller") as run:
                async for batch in run:
                    seen += 1
                    assert len(asyncio.all_tasks()) < 12
                    if seen == 100:
                        break
        asyncio.run(main())
        assert memory() - before < 8 * MB
        """
    )


@pytest.mark.slow
def test_memory_is_flat_over_a_pass_and_over_passes() -> None:
    """Design §5, memory: over 160,000 items, and over 30 epochs."""
    run(
        """
        def gen(item):
            yield item
            yield item
        pipeline = (
            PipelineBuilder().add_source(range(160_000)).pipe(abs, concurrency=4)
            .filter(lambda x: x % 2).aggregate(16).disaggregate().aggregate(8).build()
        )
        small = (
            PipelineBuilder().add_source(range(2_000)).pipe(abs, concurrency=4)
            .pipe(gen, concurrency=2).aggregate(16).build()
        )
        for _ in range(3):
            list(small)
        early = late = 0
        for number, batch in enumerate(pipeline):
            if number == 2_000:
                early = memory()
            elif number == 9_000:
                late = memory()
        assert late and late - early < 4 * MB, (late - early) / MB
        before = memory()
        objects = len(gc.get_objects())
        for _ in range(30):
            for batch in small:
                pass
        assert memory() - before < 4 * MB, (memory() - before) / MB
        assert len(gc.get_objects()) - objects < 500
        """
    )


@pytest.mark.slow
@pytest.mark.parametrize("face", ["sync", "own", "caller"])
def test_items_of_fifty_megabytes(face: str) -> None:
    """Contract 4: no more of them are alive than the bound says."""
    run(
        f"""
        def make(number):
            return bytearray(50 * MB)
        def touch(data):
            data[0] = 1
            return data
        pipeline = (
            PipelineBuilder().add_source(range(40)).pipe(make).pipe(touch).add_sink(1).build()
        )
        bound = pipeline.describe().source_items_bound
        face = {face!r}
        before = memory()
        def consume():
            with pipeline.run_sync() as run:
                for data in run:
                    assert len(data) == 50 * MB
        async def consume_async():
            async with pipeline.run(loop=face) as run:
                async for data in run:
                    assert len(data) == 50 * MB
        consume() if face == "sync" else asyncio.run(consume_async())
        assert peak() - before < (bound + 2) * 50 * MB, (peak() - before) / MB
        assert memory() - before < 60 * MB, "the last item is still alive"
        """
    )


class Heavy:
    """An item that tells when it is gone."""

    alive: int = 0

    def __init__(self, number: int) -> None:
        self.number = number


def assert_soon_gone(reference: weakref.ref[Any], what: str) -> None:
    """Wait a moment: a thread may be in the middle of letting go."""
    end = time.monotonic() + 5
    while reference() is not None and time.monotonic() < end:
        time.sleep(0.002)
    assert reference() is None, f"{what}: {gc.get_referrers(reference())}"


@pytest.mark.parametrize("stage", ["op", "two ops", "generator", "filter", "batches", "async op"])
def test_what_was_taken_is_not_kept_alive(stage: str) -> None:
    """Contract 4: an idle thread, a window or a task of ours keeps no item that was delivered."""
    gate = threading.Event()
    seen: list[weakref.ref[Heavy]] = []

    def source() -> Iterator[Heavy]:
        for number in range(3):
            item = Heavy(number)
            seen.append(weakref.ref(item))
            yield item
            del item
        gate.wait(20)

    async def async_op(item: Heavy) -> Heavy:
        await asyncio.sleep(0)
        return item

    def generator(item: Heavy) -> Iterator[Heavy]:
        yield item

    builder: PipelineBuilder[Any] = PipelineBuilder().add_source(source)
    if stage == "op":
        builder = builder.pipe(lambda x: x)
    elif stage == "two ops":
        builder = builder.pipe(lambda x: x, concurrency=2).pipe(lambda x: x, concurrency=2)
    elif stage == "generator":
        builder = builder.pipe(generator)
    elif stage == "filter":
        builder = builder.filter(lambda x: True)
    elif stage == "batches":
        builder = builder.aggregate(3).pipe(lambda x: x).disaggregate()
    else:
        builder = builder.pipe(async_op)
    with builder.build().run_sync() as run:
        for number in range(3):
            item = next(run)
            assert item.number == number
            del item
        try:
            for number, reference in enumerate(seen):
                assert_soon_gone(reference, f"item {number}")
        finally:
            gate.set()
        assert list(run) == []


@both_loops
async def test_an_empty_source(loop: Loop) -> None:
    """The issue's list: an empty source ends at once, below every kind of stage."""

    async def op(item: int) -> int:
        return item

    pipeline = (
        PipelineBuilder()
        .add_source([1][1:])
        .pipe(op)
        .pipe(abs, concurrency=3)
        .expand(lambda x: [x])
        .filter(lambda x: True)
        .aggregate(4)
        .build()
    )
    async with pipeline.run(loop=loop) as run:
        assert [batch async for batch in run] == []
    assert list(pipeline) == []
    assert len(PipelineBuilder().add_source([1][1:]).build()) == 0


@both_loops
async def test_a_chain_of_twenty_stages(loop: Loop) -> None:
    """The issue's list: every stage gets its turn, with one pool thread too."""

    async def op(item: int) -> int:
        return item + 1

    for threads in (None, 1):
        builder = PipelineBuilder().add_source(range(300))
        for number in range(20):
            if number % 4 == 3:
                builder = builder.pipe(op, concurrency=2)
            else:
                builder = builder.pipe(lambda x: x + 1, concurrency=1 + number % 3)
        async with builder.build(num_threads=threads).run(loop=loop) as run:
            assert [item async for item in run] == list(range(20, 320))


@both_loops
async def test_an_endless_source(loop: Loop) -> None:
    """The issue's list: what is in flight stays within the bound."""
    pipeline = PipelineBuilder().add_source(itertools.count).pipe(abs, concurrency=3).build()
    bound = pipeline.describe().source_items_bound
    assert bound is not None
    async with pipeline.run(loop=loop) as run:
        expected = itertools.count()
        async for item in run:
            assert item == next(expected)
            assert run.statistics().in_flight <= bound
            if item == 3000:
                break
    assert run.statistics().peak_in_flight <= bound
