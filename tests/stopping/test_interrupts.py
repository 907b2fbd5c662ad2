"""Ctrl-C in scripts: A5, A2, A4; contract 13 and 14."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from children import Finished, run_script, run_scripts
from witness import PATIENCE, our_threads

from spdl_async import PipelineBuilder

INTERRUPTED = (130, -signal.SIGINT)

# The op passes items until one blocks; STEADY lets items flow for ever.
STEADY = """
def op(item):
    time.sleep(0.001)
    if item == 20:
        say("READY")
    return item
pipeline = PipelineBuilder().add_source(itertools.count).pipe(op, concurrency=2).build()
"""
STARVED = """
async def op(item):
    if item == 3:
        say("READY")
        await asyncio.Event().wait()
    return item
pipeline = PipelineBuilder().add_source(itertools.count).pipe(op).build()
"""
SLEEPS = """
def op(item):
    if item == 3:
        say("READY")
        time.sleep(SECONDS)
    return item
pipeline = PipelineBuilder().add_source(itertools.count).pipe(op, name="sleeper").build()
"""

ASYNC_SCOPE = """
async def main():
    async with pipeline.run(loop=LOOP) as run:
        async for item in run:
            pass
asyncio.run(main())
"""
ASYNC_SHORT = """
async def main():
    async for item in pipeline:
        pass
asyncio.run(main())
"""
SYNC_SCOPE = """
with pipeline.run_sync() as run:
    for item in run:
        pass
"""
SYNC_SHORT = """
for item in pipeline:
    pass
"""
IN_A_THREAD = """
def consume():
    for item in pipeline:
        pass
consumer = threading.Thread(target=consume, daemon=True)
consumer.start()
while consumer.is_alive():
    consumer.join(0.05)
"""
CONSUMERS = {
    "async with, caller's loop": "LOOP = 'caller'" + ASYNC_SCOPE,
    "async with, own loop": "LOOP = 'own'" + ASYNC_SCOPE,
    "async for": ASYNC_SHORT,
    "with": SYNC_SCOPE,
    "for": SYNC_SHORT,
    "for in a thread": IN_A_THREAD,
}
every_consumer = pytest.mark.parametrize("consumer", CONSUMERS)


def assert_interrupted(finished: Finished) -> None:
    assert finished.status in INTERRUPTED, (finished.status, finished.err)
    finished.assert_quiet()
    lines = finished.err.splitlines()
    assert lines.count("KeyboardInterrupt") == 1, finished.err
    assert lines[-1] == "KeyboardInterrupt", finished.err


@every_consumer
@pytest.mark.parametrize("state", [STEADY, STARVED], ids=["steady", "while it waits"])
def test_interrupt_of_the_consumer(consumer: str, state: str) -> None:
    """A5 (a): in steady state, and while the consumer awaits a batch that does not come."""
    finished = run_script(state + CONSUMERS[consumer], signals=(0.05,))
    assert_interrupted(finished)
    assert finished.seconds < 5


@pytest.mark.slow
def test_interrupt_of_consumers_in_threads_again_and_again() -> None:
    """A5: whether the thread waits in next() or is between two calls when the exit begins."""
    for _ in range(2):
        scripts = {str(number): STEADY + IN_A_THREAD for number in range(8)}
        for finished in run_scripts(scripts, signals=(0.05,)).values():
            assert_interrupted(finished)


def test_interrupt_while_a_thread_sleeps() -> None:
    """A5 (b): the call is waited for, in a bounded time."""
    scripts = {name: "SECONDS = 1" + SLEEPS + text for name, text in CONSUMERS.items()}
    for finished in run_scripts(scripts, signals=(0.05,)).values():
        assert_interrupted(finished)
        assert finished.seconds < 12


@pytest.mark.parametrize("loop", ["caller", "own"])
def test_interrupt_during_aclose(loop: str) -> None:
    """A5 (c): the interrupt ends the waiting."""
    body = (
        "SECONDS = 1"
        + SLEEPS.replace('say("READY")', "entered.set()")
        + f"""
entered = threading.Event()
async def main():
    run = pipeline.run(loop={loop!r})
    await run.__aenter__()
    await anext(run)
    await asyncio.to_thread(entered.wait)
    closing = asyncio.ensure_future(run.aclose())
    await asyncio.sleep(0)  # it has begun, and waits for the call
    assert not closing.done()
    say("READY")
    await closing
    say("aclose() went on to its end")
asyncio.run(main())
"""
    )
    finished = run_script(body, signals=(0.0,))
    assert_interrupted(finished)
    assert finished.seconds < 8
    assert "to its end" not in finished.out


@pytest.mark.slow
def test_second_interrupt_waits_for_nothing() -> None:
    """A5 (d): two, 50 ms apart, while a call is stuck for a minute; the exit is bounded."""
    scripts = {name: "SECONDS = 60" + SLEEPS + text for name, text in CONSUMERS.items()}
    for name, finished in run_scripts(scripts, signals=(0.05, 0.05)).items():
        assert finished.status in INTERRUPTED, (name, finished.err)
        assert "Fatal Python error" not in finished.err, name
        assert "Timeout (" not in finished.err, name
        assert finished.seconds < 15, name


def test_next_survives_an_interrupt() -> None:
    """Contract 17: a KeyboardInterrupt that is caught around next() loses nothing."""
    finished = run_script(
        """
        gate = threading.Event()
        def op(item):
            if item == 3:
                say("READY")
                gate.wait()
            return item
        got = []
        with PipelineBuilder().add_source(range(9)).pipe(op).build().run_sync() as run:
            while True:
                try:
                    got.append(next(run))
                except KeyboardInterrupt:
                    gate.set()
                except StopIteration:
                    break
        say(got)
        """,
        signals=(0.05,),
    )
    assert finished.status == 0, finished.err
    assert finished.out.endswith("[0, 1, 2, 3, 4, 5, 6, 7, 8]\n")
    finished.assert_quiet()


@pytest.mark.parametrize("form", ["it = aiter(outer)", "it = aiter(inner)"])
def test_the_body_raises_while_the_iterator_is_held(form: str) -> None:
    """A2: the consumer's traceback is the last thing on stderr, and the process ends."""
    finished = run_script(
        f"""
        inner = PipelineBuilder().add_source(itertools.count).pipe(lambda x: x, concurrency=2)
        inner = inner.aggregate(2).build()
        outer = PipelineBuilder().add_source(inner).pipe(str, concurrency=2).build()
        async def main():
            {form}
            async for batch in it:
                say("LEAVING")
                raise RuntimeError("the body's own")
        asyncio.run(main())
        """
    )
    assert finished.status == 1
    assert finished.err.splitlines()[-1] == "RuntimeError: the body's own"
    assert finished.err.count("Traceback") == 1
    finished.assert_quiet()
    assert finished.seconds < 8


def test_the_body_of_an_ordinary_loop_raises() -> None:
    """A2 for ordinary code, with nested pipelines."""
    finished = run_script(
        """
        inner = PipelineBuilder().add_source(itertools.count).pipe(lambda x: x).build()
        outer = PipelineBuilder().add_source(lambda: iter(inner)).pipe(str).build()
        it = iter(outer)
        for item in it:
            say("LEAVING")
            raise RuntimeError("the body's own")
        """
    )
    assert finished.status == 1
    assert finished.err.splitlines()[-1] == "RuntimeError: the body's own"
    assert finished.err.count("Traceback") == 1
    finished.assert_quiet()
    assert finished.seconds < 8


def test_stages_are_waited_for_together() -> None:
    """A4: sixteen threads that sleep a second each do not make sixteen seconds."""
    barrier = threading.Barrier(17)
    builder = PipelineBuilder().add_source(range(1000)).pipe(lambda x: x, name="first")
    for number in range(16):

        def op(item: int, number: int = number) -> int:
            if item == 15 - number:  # item 0 is then in the last stage, item 15 in the first
                barrier.wait(PATIENCE)
                time.sleep(1)
            return item

        builder = builder.pipe(op, name=f"stage {number}")
    with builder.build().run_sync():
        barrier.wait(PATIENCE)
        began = time.monotonic()
    assert time.monotonic() - began < 8
    assert not our_threads()
