"""Leaving ``epochs()`` in every way and at every point; contracts 13, 14, 18."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any, Literal

import pytest
from children import run_scripts
from test_random_stops import BodyError, random_pipeline
from witness import (
    PATIENCE,
    Gate,
    our_threads,
    silence,
    ticks,
    wait_for_silence,
    wait_until,
)

from spdl_async import Pipeline, PipelineBuilder, RunStateError, ShutdownTimeout

Loop = Literal["caller", "own"]
LOOPS: list[Loop] = ["caller", "own"]


def numbers() -> Iterator[int]:
    yield from range(20)


async def anumbers() -> AsyncIterator[int]:
    for number in range(20):
        await asyncio.sleep(0)
        yield number


def two_in_flight() -> tuple[Pipeline[int], threading.Event]:
    """Return a pipeline, and what is set when its second epoch has begun."""
    begun: list[int] = []
    second = threading.Event()

    def source() -> Iterator[int]:
        begun.append(0)
        if len(begun) == 2:
            second.set()
        yield from range(8)  # fewer than the pipeline holds while ops count as slow

    return PipelineBuilder().add_source(source).pipe(int, concurrency=2).build(), second


@pytest.mark.parametrize("loop", LOOPS)
async def test_leaving_stops_both_epochs(loop: Loop) -> None:
    pipeline, second = two_in_flight()
    async with pipeline.epochs(loop=loop) as epochs:
        run = await anext(epochs)
        await anext(run)
        assert await asyncio.to_thread(second.wait, PATIENCE)
    assert our_threads() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(RunStateError, match="left, closed or dropped"):
        await anext(run)


def test_leaving_stops_both_epochs_in_ordinary_code() -> None:
    pipeline, second = two_in_flight()
    with pipeline.epochs() as epochs:
        run = next(epochs)
        next(run)
        assert second.wait(PATIENCE)
    assert our_threads() == []


@pytest.mark.parametrize("loop", LOOPS)
async def test_an_exception_and_a_cancellation_in_the_body_stop_everything(loop: Loop) -> None:
    pipeline, second = two_in_flight()
    inside = asyncio.Event()

    async def body(error: BaseException | None) -> None:
        async with pipeline.epochs(loop=loop) as epochs:
            async for run in epochs:
                async for _ in run:
                    assert await asyncio.to_thread(second.wait, PATIENCE)
                    inside.set()
                    if error is not None:
                        raise error
                    await asyncio.Event().wait()

    with pytest.raises(BodyError):
        await body(BodyError())
    assert our_threads() == []
    inside.clear()
    task = asyncio.create_task(body(None))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert our_threads() == []


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_dropped_short_form_stops_silently(loop: Loop) -> None:
    pipeline, second = two_in_flight()
    async for run in pipeline.epochs(loop=loop):
        await anext(run)
        assert await asyncio.to_thread(second.wait, PATIENCE)
        break
    await silence()  # although `run` is still referred to
    assert run.epoch == 0
    assert run.statistics().delivered == 1


def test_a_dropped_short_form_stops_silently_in_ordinary_code() -> None:
    pipeline, second = two_in_flight()
    for run in pipeline.epochs():
        next(run)
        assert second.wait(PATIENCE)
        break
    wait_for_silence()
    assert run.statistics().delivered == 1


def test_results_that_wait_are_gone_when_the_epochs_are_dropped() -> None:
    epochs = PipelineBuilder().add_source(range(3)).build().epochs(1)
    run = next(epochs)
    assert next(run) == 0
    del epochs
    wait_for_silence()
    with pytest.raises(RunStateError, match="keep the object"):
        list(run)


@pytest.mark.parametrize("loop", LOOPS)
async def test_entered_epochs_that_are_dropped_warn_once(loop: Loop) -> None:
    pipeline, _ = two_in_flight()

    async def enter() -> None:
        epochs = pipeline.epochs(loop=loop)
        await epochs.__aenter__()
        await anext(epochs)

    with pytest.warns(ResourceWarning, match="epochs of pipeline .* dropped while open") as caught:
        await enter()
    assert len(caught) == 1
    await silence()


def test_entered_epochs_that_are_dropped_warn_in_ordinary_code() -> None:
    pipeline, _ = two_in_flight()
    with pytest.warns(ResourceWarning, match=r"leave their `with` block or call close\(\)"):
        pipeline.epochs().__enter__()
    wait_for_silence()


def test_nothing_of_past_epochs_is_kept() -> None:
    class Box:
        pass

    boxes: list[weakref.ref[Box]] = []

    def op(item: int) -> Box:
        box = Box()
        boxes.append(weakref.ref(box))
        return box

    pipeline = PipelineBuilder().add_source(range(5)).pipe(op).build()
    first = None
    for run in pipeline.epochs(6):
        first = first or run  # an old run that is kept must not keep the later ones
        for box in run:
            del box
        alive = sum(ref() is not None for ref in boxes[: 5 * (run.epoch + 1)])
        assert alive == 0, run.epoch
        del run
    assert first is not None
    gc.collect()
    engines = [o for o in gc.get_objects() if type(o).__name__ == "Engine"]
    assert len([e for e in engines if e.plan is pipeline._plan]) <= 1


@pytest.mark.parametrize("loop", LOOPS)
async def test_what_runs_on_after_a_break_is_named_and_waited_for(loop: Loop) -> None:
    gate = Gate()
    pipeline = PipelineBuilder().add_source(range(5)).pipe(gate.pass_through, name="held").build()
    async with pipeline.epochs(2, loop=loop, shutdown_timeout=0.05) as epochs:
        run = await anext(epochs)
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        with pytest.raises(ShutdownTimeout, match="stage 'held' on item 0") as caught:
            await anext(epochs)
        assert "pass_through" in str(caught.value)
        gate.opened.set()
        # The epoch was not lost: asking again waits again.
        run = await anext(epochs)
        assert run.epoch == 1
        assert [item async for item in run] == [*range(5)]


def test_leaving_names_what_still_runs() -> None:
    gate = Gate()
    pipeline = PipelineBuilder().add_source(range(5)).pipe(gate.pass_through, name="held").build()
    epochs = pipeline.epochs(2, shutdown_timeout=0.05)
    with pytest.raises(ShutdownTimeout, match="stage 'held' on item 0"), epochs:
        assert gate.entered.wait(PATIENCE)
    gate.opened.set()
    epochs.close()
    assert our_threads() == []


async def test_asking_can_be_cancelled_without_losing_an_epoch() -> None:
    """Contract 17, for epochs."""
    gate = Gate()
    pipeline = PipelineBuilder().add_source(range(5)).pipe(gate.pass_through).build()
    async with pipeline.epochs(2) as epochs:
        run = await anext(epochs)
        assert await asyncio.to_thread(gate.entered.wait, PATIENCE)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(epochs)
        with pytest.raises(RunStateError, match="the next one was asked for"):
            await anext(run)
        gate.opened.set()
        assert (await anext(epochs)).epoch == 1
        with pytest.raises(StopAsyncIteration):
            await anext(epochs)


@pytest.mark.parametrize("loop", LOOPS)
async def test_closing_from_another_task_ends_a_wait(loop: Loop) -> None:
    async def never(item: int) -> int:
        await asyncio.Event().wait()
        return item

    pipeline = PipelineBuilder().add_source(anumbers).pipe(never).build()
    async with pipeline.epochs(loop=loop) as epochs:
        run = await anext(epochs)
        waiting = asyncio.ensure_future(anext(run))
        await ticks(5)
        await asyncio.gather(epochs.aclose(), epochs.aclose())
        with pytest.raises(RunStateError, match="left, closed or dropped"):
            await waiting
        with pytest.raises(RunStateError, match="inside their `async with` block"):
            await anext(epochs)


# A3, for epochs


async def left_somehow(pipeline: Pipeline[int], length: int, rng: random.Random) -> None:
    loop: Loop = rng.choice(LOOPS)
    way = rng.choice(("break", "drop", "exception", "cancel", "aclose", "end"))
    overlap = rng.random() < 0.8
    last = rng.randint(0, 3)

    async def consume(epochs: Any) -> None:
        at = 0
        async for run in epochs:
            point = rng.choice((0, length, length + 1, rng.randint(0, length + 1)))
            got: list[int] = []
            while len(got) < point:
                try:
                    got.append(await anext(run))
                except StopAsyncIteration:
                    break
            assert got == list(range(min(point, length)))
            at += 1
            if at > last and way != "end":
                break
        if way == "exception":
            raise BodyError
        if way == "aclose":
            await epochs.aclose()
        if way == "cancel":
            await asyncio.Event().wait()

    async def body() -> None:
        if way == "drop":
            await consume(pipeline.epochs(4, loop=loop, overlap=overlap))
            return
        async with pipeline.epochs(4, loop=loop, overlap=overlap) as epochs:
            await consume(epochs)

    task = asyncio.create_task(body())
    if way == "cancel":
        await ticks(rng.randrange(60))
        task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    allowed = {"exception": BodyError, "cancel": asyncio.CancelledError}
    assert outcome is None or isinstance(outcome, allowed.get(way, ())), (way, outcome)


async def rounds(seed: int, count: int) -> None:
    rng = random.Random(seed)
    for number in range(count):
        length = rng.choice((0, 1, 2, rng.randint(0, 40)))
        async with asyncio.timeout(PATIENCE):
            await left_somehow(random_pipeline(rng, length), length, rng)
        if number % 50 == 49:
            await silence()
    await silence()


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("runner", ["asyncio", "uvloop"])
def test_random_stops_of_epochs(runner: str) -> None:
    if runner == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        uvloop.run(rounds(11, 300))
    else:
        asyncio.run(rounds(12, 300))
    wait_for_silence()


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_random_stops_of_epochs_in_ordinary_code() -> None:
    rng = random.Random(13)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for number in range(300):
            length = rng.choice((0, 1, 2, rng.randint(0, 40)))
            pipeline, last = random_pipeline(rng, length), rng.randint(0, 3)
            way = rng.choice(("break", "exception", "close elsewhere", "end"))
            with suppress(BodyError, RunStateError), pipeline.epochs(4) as epochs:
                if way == "close elsewhere":
                    threading.Thread(target=epochs.close).start()
                for at, run in enumerate(epochs):
                    point = rng.choice((0, length + 1, rng.randint(0, length + 1)))
                    got: list[int] = []
                    for item in run if point else ():
                        got.append(item)
                        if len(got) == point:
                            break
                    assert got == list(range(min(point, length)))
                    if at == last and way == "break":
                        break
                    if at == last and way == "exception":
                        raise BodyError
            if number % 50 == 49:
                wait_for_silence()
    finally:
        sys.setswitchinterval(before)
    wait_for_silence()


# The end of the interpreter

OPEN_AT_EXIT = """
def op(x):
    time.sleep(0.001)
    return x
pipeline = PipelineBuilder().add_source(list(range(50))).pipe(op, concurrency=2).build()
"""
SCRIPTS = {
    "sync, a module global": OPEN_AT_EXIT
    + """
epochs = iter(pipeline.epochs())
run = next(epochs)
next(run)
say("LEAVING")
""",
    "between two epochs": OPEN_AT_EXIT
    + """
epochs = iter(pipeline.epochs(overlap=False))
run = next(epochs)
for item in run:
    pass
say("LEAVING")
""",
    "async, the loop closed under it": OPEN_AT_EXIT
    + """
async def main():
    global epochs, run
    epochs = aiter(pipeline.epochs(loop="caller"))
    run = await anext(epochs)
    await anext(run)
asyncio.run(main())
say("LEAVING")
""",
    "a loop that just stopped": OPEN_AT_EXIT
    + """
async def main():
    global epochs, run
    epochs = aiter(pipeline.epochs(loop="caller"))
    run = await anext(epochs)
    await anext(run)
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
say("LEAVING")
""",
    "a daemon thread": OPEN_AT_EXIT
    + """
def train():
    for run in pipeline.epochs():
        for item in run:
            if run.epoch == 1:
                began.set()
began = threading.Event()
threading.Thread(target=train, daemon=True).start()
began.wait(10)
say("LEAVING")
""",
}


def test_the_interpreter_ends_with_epochs_open() -> None:
    """Contract 16."""
    for name, done in run_scripts(SCRIPTS, options=("-W", "ignore::ResourceWarning")).items():
        assert done.status == 0, (name, done.err)
        assert done.out.endswith("LEAVING\n"), (name, done.err)
        done.assert_quiet()
        assert "still runs" not in done.err, name


def test_an_interrupt_ends_the_epochs() -> None:
    body = (
        OPEN_AT_EXIT
        + """
    try:
        with pipeline.epochs() as epochs:
            for run in epochs:
                if run.epoch == 2:
                    say("READY")
                for item in run:
                    pass
    except KeyboardInterrupt:
        left = [t.name for t in threading.enumerate() if t.name.startswith("spdl_async-")]
        say(f"left {left}")
    """.replace("\n    ", "\n")
    )
    done = run_scripts({"it": body}, signals=(0.05,))["it"]
    assert (done.status, done.out) == (0, "READY\nleft []\n"), done.err
    done.assert_quiet()


# A9, D7


def test_five_hundred_epochs_leave_nothing_behind() -> None:
    """A9: threads, descriptors and objects are as many at the end as after a few."""
    pipeline = PipelineBuilder().add_source(numbers).pipe(int, concurrency=2).aggregate(4).build()
    counts: list[tuple[int, int]] = []
    with pipeline.epochs(500) as epochs:
        for run in epochs:
            assert len(list(run)) == 5
            if run.epoch in (20, 499):
                gc.collect()
                ours = {name for name in our_threads() if not name.endswith("-source")}
                counts.append((len(ours), len(gc.get_objects())))
    assert counts[0][0] == counts[1][0] == 3
    assert counts[1][1] - counts[0][1] < 500  # one object an epoch would be 480
    wait_until(lambda: our_threads() == [])


def test_random_ops_make_other_numbers_in_each_epoch() -> None:
    """D7: threads share the process's generators, so nothing repeats."""
    import numpy as np

    def draw(item: int) -> tuple[float, int]:
        return random.random(), int(np.random.randint(1 << 62))

    pipeline = PipelineBuilder().add_source(range(400)).pipe(draw, concurrency=8).build()
    drawn = [pair for run in pipeline.epochs(2) for pair in run]
    for which in zip(*drawn, strict=True):
        assert len(set(which)) == 800
