"""Running a program on its face, to the end or to where it is stopped."""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from spdl_async import RunStateError

if TYPE_CHECKING:
    from chaos_programs import Program

T = TypeVar("T")


class BodyError(Exception):
    """Raised by the consumer."""


@dataclass
class Outcome:
    """What a consumer saw of one pass."""

    outputs: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    run: Any = None
    ended: bool = False


# Ordinary code


def play_sync(program: Program) -> list[Outcome]:
    """Run a program from ordinary code."""
    pipeline = program.pipeline()
    if program.face == "epochs sync":
        return epochs_sync(program, pipeline)
    outcome = Outcome()
    if program.face == "short sync" or program.stop == "drop":
        take_sync(program, outcome, iter(pipeline))
        return [outcome]
    closing: list[threading.Thread] = []
    with suppress(BodyError), pipeline.run_sync(inline=program.face == "inline") as run:
        outcome.run = run
        if program.stop == "elsewhere" and program.face != "inline":
            take_sync(program, outcome, run)
            closing.append(threading.Thread(target=run.close))
            closing[0].start()
            drain_sync(outcome, run)
        else:
            take_sync(program, outcome, run)
        if program.stop == "close":
            run.close()
        if program.stop == "raise":
            raise BodyError
    for thread in closing:
        thread.join()
    return [outcome]


def take_sync(program: Program, outcome: Outcome, results: Any) -> None:
    """Take as many results as the program says."""
    try:
        while program.stop is None or len(outcome.outputs) < program.taken:
            outcome.outputs.append(next(results))
    except StopIteration:
        outcome.ended = True
    except Exception as error:
        outcome.error = error


def drain_sync(outcome: Outcome, results: Any) -> None:
    """Go on while somebody else closes the run."""
    if outcome.ended or outcome.error is not None:
        return
    try:
        for value in results:
            outcome.outputs.append(value)
        outcome.ended = True
    except RunStateError:
        pass
    except Exception as error:
        outcome.error = error


def epochs_sync(program: Program, pipeline: Any) -> list[Outcome]:
    """Run several passes."""
    outcomes: list[Outcome] = []
    with (
        suppress(BodyError),
        pipeline.epochs(program.epochs, overlap=program.overlap) as epochs,
    ):
        for run in epochs:
            outcomes.append(Outcome(run=run))
            take_sync(program, outcomes[-1], run)
            if program.stop == "raise":
                raise BodyError
            if program.stop == "drop":
                break
    return outcomes


# Coroutines


async def play_async(program: Program) -> list[Outcome]:
    """Run a program in a task, and stop it as it says."""
    outcomes: list[Outcome] = []
    consumer = asyncio.create_task(consume(program, outcomes))
    if program.stop == "any time":
        for _ in range(program.taken * 3):
            await asyncio.sleep(0.0005 if program.seed % 3 == 0 else 0)
        consumer.cancel()
    await asyncio.wait([consumer])
    if not consumer.cancelled() and not isinstance(consumer.exception(), (BodyError, type(None))):
        consumer.result()
    if program.stop == "cancel" and not consumer.cancelled():
        raise AssertionError("a cancellation was swallowed")
    del consumer  # its exception holds the frames that hold the results
    # A cancellation that comes while the block is being left ends its waiting, not the stop.
    silent = program.face.startswith("short") or program.stop in ("drop", "any time")
    if silent:
        gc.collect()
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        if not silent:
            raise AssertionError(f"left behind: {left}")
        await asyncio.wait(left)
    return outcomes


async def consume(program: Program, outcomes: list[Outcome]) -> None:
    """Take results on one of the faces."""
    pipeline: Any = program.pipeline()
    if program.face == "epochs async":
        async with pipeline.epochs(program.epochs, overlap=program.overlap) as epochs:
            async for run in epochs:
                outcomes.append(Outcome(run=run))
                await take_async(program, outcomes[-1], run)
                await give_up(program, run)
                if program.stop == "drop":
                    break
        return
    outcomes.append(outcome := Outcome())
    if program.face == "short async" or program.stop == "drop":
        await take_async(program, outcome, aiter(pipeline))
        if program.stop == "cancel":
            await give_up(program, None)
        return
    async with pipeline.run(loop="own" if program.face == "own" else "caller") as run:
        outcome.run = run
        await take_async(program, outcome, run)
        if program.stop == "elsewhere":
            closing = asyncio.create_task(run.aclose())
            await drain_async(outcome, run)
            await closing
        await give_up(program, run)


async def take_async(program: Program, outcome: Outcome, results: Any) -> None:
    """Take as many results as the program says."""
    endless = program.stop in (None, "any time")
    try:
        while endless or len(outcome.outputs) < program.taken:
            outcome.outputs.append(await anext(results))
    except StopAsyncIteration:
        outcome.ended = True
    except Exception as error:
        outcome.error = error


async def drain_async(outcome: Outcome, results: Any) -> None:
    """Go on while another task closes the run."""
    if outcome.ended or outcome.error is not None:
        return
    try:
        async for value in results:
            outcome.outputs.append(value)
        outcome.ended = True
    except RunStateError:
        pass
    except Exception as error:
        outcome.error = error


async def give_up(program: Program, run: Any) -> None:
    """Leave a block as the program says."""
    if program.stop == "raise":
        raise BodyError
    if program.stop == "close" and program.face != "epochs async":
        await run.aclose()
    if program.stop == "cancel":
        me = asyncio.current_task()
        assert me is not None
        asyncio.get_running_loop().call_soon(me.cancel)
        await asyncio.Event().wait()


def on_loop(work: Coroutine[Any, Any, T], *, uvloop: bool) -> T:
    """Run a coroutine on a fresh loop; let no error be lost."""
    factory: Callable[[], AbstractEventLoop] = asyncio.new_event_loop
    if uvloop and importlib.util.find_spec("uvloop") is not None:
        factory = importlib.import_module("uvloop").new_event_loop
    lost: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: lost.append(context))
        result = runner.run(work)
    assert not lost, f"errors that nobody took: {lost}"
    return result
