"""Breaking out of the short forms and dropping iterators: contract 14; A1, L1, L13."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import pytest
from witness import (
    Witness,
    other_tasks,
    our_threads,
    silence,
    until,
    wait_for_silence,
    wait_until,
)

from spdl_async import Pipeline, PipelineBuilder, PipelineRun

Kind = Literal["sync", "async"]
KINDS: list[Kind] = ["sync", "async"]
both_kinds = pytest.mark.parametrize("kind", KINDS)


def counted(kind: Kind, witness: Witness, length: int = 10_000) -> Pipeline[int]:
    """Return a pipeline whose source counts what it is asked for.

    The sync one runs on a loop of ours, the async one on the caller's.
    """

    def source() -> Iterator[int]:
        for number in range(length):
            with witness.call():
                pass
            yield number

    async def asource() -> AsyncIterator[int]:
        for number in source():
            await asyncio.sleep(0)
            yield number

    def op(item: int) -> int:
        return item

    if kind == "sync":
        return PipelineBuilder().add_source(source).pipe(op, concurrency=2).add_sink(4).build()
    return PipelineBuilder().add_source(asource).pipe(op, concurrency=2).add_sink(4).build()


def allowance(pipeline: Pipeline[Any], taken: int) -> int:
    """Return how many items a source may have been asked for when ``taken`` were consumed."""
    bound = pipeline.describe().source_items_bound
    assert bound is not None
    return taken + bound + 1


@both_kinds
async def test_break_out_of_async_for(kind: Kind) -> None:
    """Contract 14, A1: it stops at once, silently, fifty times over, and nothing stays behind."""
    witness = Witness()
    pipeline = counted(kind, witness)
    before = witness.began
    for _ in range(50):
        async for item in pipeline:
            if item == 3:
                break
        await silence()
        assert witness.began - before <= allowance(pipeline, 4)
        before = witness.began
    await asyncio.sleep(0)
    assert witness.began == before, "the source moved after the stop"


def test_break_out_of_for() -> None:
    """Contract 14, A1, in ordinary code."""
    witness = Witness()
    pipeline = counted("sync", witness)
    before = witness.began
    for _ in range(50):
        for item in pipeline:
            if item == 3:
                break
        wait_for_silence()
        assert witness.began - before <= allowance(pipeline, 4)
        before = witness.began


def test_fifty_breaks_without_waiting_in_between() -> None:
    """A1: re-making an iterator every few steps piles up nothing."""
    witness = Witness()
    pipeline = counted("sync", witness)
    for _ in range(50):
        for item in pipeline:
            if item == 3:
                break
    wait_for_silence()
    moved = witness.began
    assert moved <= 50 * allowance(pipeline, 4)
    assert witness.began == moved


@both_kinds
async def test_exception_in_the_loop_body(kind: Kind) -> None:
    """Contract 14: the body's exception comes out alone, and the run stops."""
    mine = RuntimeError("body")
    with pytest.raises(RuntimeError) as caught:
        async for _ in counted(kind, Witness()):
            raise mine
    assert caught.value is mine
    assert mine.__context__ is None
    assert not hasattr(mine, "__notes__")
    mine.__traceback__ = None  # it holds the frame that holds the iterator
    del caught
    await silence()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exception_in_the_loop_body_of_ordinary_code(error: type[BaseException]) -> None:
    """Contract 14: KeyboardInterrupt too."""
    mine = error("body")
    with pytest.raises(error) as caught:
        for _ in counted("sync", Witness()):
            raise mine
    assert caught.value is mine
    assert not hasattr(mine, "__notes__")
    mine.__traceback__ = None
    del caught
    wait_for_silence()


@both_kinds
async def test_return_out_of_the_loop(kind: Kind) -> None:
    async def first(pipeline: Pipeline[int]) -> int:
        async for item in pipeline:
            return item
        return -1

    assert await first(counted(kind, Witness())) == 0
    await silence()


@both_kinds
async def test_dropped_iterators_stop_in_silence(kind: Kind) -> None:
    """Contract 14, L1: no warning for a short form; the stop begins with the last reference."""
    witness = Witness()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        iterator = aiter(counted(kind, witness))
        assert await anext(iterator) == 0
        assert await anext(iterator) == 1
        del iterator
        await silence()
    assert not seen
    assert witness.running == 0  # and with no thread and no task left none can begin


@both_kinds
async def test_an_iterator_that_was_never_used_starts_nothing(kind: Kind) -> None:
    witness = Witness()
    pipeline = counted(kind, witness)
    iterator = aiter(pipeline)
    assert not our_threads()
    assert not other_tasks()
    del iterator
    iter(pipeline)
    assert not our_threads()
    assert witness.began == 0


@both_kinds
async def test_an_iterator_in_a_cycle_collected_in_another_thread(kind: Kind) -> None:
    """Contract 14: finalizers may run in any thread at any instant."""
    for _ in range(10):
        await drop_in_a_cycle(kind)


async def drop_in_a_cycle(kind: Kind) -> None:
    cycle: list[Any] = [aiter(counted(kind, Witness()))]
    cycle.append(cycle)
    assert await anext(cycle[0]) == 0
    gone = weakref.ref(cycle[0])
    del cycle
    threading.Thread(target=gc.collect).start()
    await until(lambda: gone() is None)
    await silence()


def test_a_sync_iterator_collected_in_a_thread_of_the_pipeline() -> None:
    """Contract 14: even in a thread of another run, in the middle of its op."""
    for _ in range(10):
        cycle: list[Any] = [iter(counted("sync", Witness()))]
        cycle.append(cycle)
        assert next(cycle[0]) == 0
        gone = weakref.ref(cycle[0])
        del cycle

        def op(item: int) -> int:
            return gc.collect() and item

        list(PipelineBuilder().add_source(range(3)).pipe(op).build())
        assert gone() is None
    wait_for_silence()


def test_a_finalizer_survives_a_closed_loop() -> None:
    """Contract 14: the caller's loop may be closed long before the iterator is dropped."""

    async def main() -> AsyncIterator[int]:
        iterator = aiter(counted("async", Witness()))
        assert await anext(iterator) == 0
        return iterator

    kept = [asyncio.run(main()) for _ in range(5)]
    wait_for_silence()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        del kept
        gc.collect()
    assert not seen


def test_the_end_of_asyncio_run_is_a_stop() -> None:
    """Contract 14: a cancellation of our tasks by its teardown is a stop request."""
    ended: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            for number in range(10**9):
                yield number
        finally:
            await asyncio.sleep(0)
            ended.append("source")

    held: list[PipelineRun[int]] = []

    async def main() -> int:
        run = PipelineBuilder().add_source(source).pipe(lambda x: x).build().run()
        held.append(run)  # left open on purpose
        await run.__aenter__()
        return await anext(run)

    assert asyncio.run(main()) == 0
    assert ended == ["source"]
    wait_for_silence()
    asyncio.run(held[0].aclose())  # no warning, and nothing left to wait for


@both_kinds
@pytest.mark.parametrize("loop", ["caller", "own"])
async def test_one_warning_for_an_open_run_that_is_dropped(
    kind: Kind, loop: Literal["caller", "own"]
) -> None:
    """Contract 14: exactly one ResourceWarning, which names the pipeline; and the run stops."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run = counted(kind, Witness()).run(loop=loop)
        await run.__aenter__()
        assert await anext(run) == 0
        del run
        await silence()
    assert [w.category for w in seen] == [ResourceWarning]
    assert "pipeline" in str(seen[0].message)
    assert "aclose" in str(seen[0].message)


@pytest.mark.parametrize("inline", [False, True])
def test_one_warning_for_an_open_sync_run_that_is_dropped(inline: bool) -> None:
    """Contract 14, in ordinary code."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run = counted("sync", Witness()).run_sync(inline=inline)
        run.__enter__()
        assert next(run) == 0
        del run
        wait_for_silence()
    assert [w.category for w in seen] == [ResourceWarning]
    assert "close()" in str(seen[0].message)


@pytest.mark.parametrize("loop", ["caller", "own"])
async def test_no_warning_for_other_runs(loop: Literal["caller", "own"]) -> None:
    """Contract 14: not entered, closed, left, ended, failed: all are silent."""

    def failing(item: int) -> int:
        raise ValueError(item)

    pipeline = counted("sync", Witness(), length=5)
    bad = PipelineBuilder().add_source(range(3)).pipe(failing).build()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pipeline.run(loop=loop)
        pipeline.run_sync()
        async with pipeline.run(loop=loop) as run:
            await anext(run)
        run = pipeline.run(loop=loop)
        await run.__aenter__()
        await run.aclose()
        async with pipeline.run(loop=loop) as run:
            assert [item async for item in run] == [0, 1, 2, 3, 4]
        for _ in pipeline:
            break
        async for _ in pipeline:
            break
        with pytest.raises(ValueError) as caught:
            async for _ in bad:
                pass
        del run, caught
        await silence()
    assert not seen


@both_kinds
async def test_only_the_iterator_is_referenced(kind: Kind) -> None:
    """L13: the garbage collector takes no stage away while somebody iterates."""
    done = threading.Event()

    def collect() -> None:
        while not done.is_set():
            gc.collect()

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        got = [item async for item in counted(kind, Witness(), length=300)]
    finally:
        done.set()
        await until(lambda: not collector.is_alive())
    assert got == list(range(300))


def test_two_passes_at_once_are_dropped_one_by_one() -> None:
    """Each pass has its own life."""
    pipeline = counted("sync", Witness())
    one, two = iter(pipeline), iter(pipeline)
    assert list(itertools.islice(one, 3)) == [0, 1, 2]
    assert list(itertools.islice(two, 2)) == [0, 1]
    del one
    gc.collect()
    assert list(itertools.islice(two, 100)) == list(range(2, 102))
    del two
    wait_for_silence()


def test_the_short_form_ends_for_good() -> None:
    """An iterator that has ended stays ended, and holds no thread."""
    iterator = iter(counted("sync", Witness(), length=3))
    assert list(iterator) == [0, 1, 2]
    wait_until(lambda: not our_threads())
    assert list(iterator) == []
    with pytest.raises(StopIteration):
        next(iterator)
