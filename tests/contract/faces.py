"""Run a pipeline on each of its faces, and what tests need to watch it: gates, counters, records."""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, TypeVar

import uvloop

from spdl_async import (
    FailureRecord,
    Pipeline,
    PipelineBuilder,
    PipelineRun,
    RunStatistics,
    SyncPipelineRun,
)

T = TypeVar("T")
PATIENCE = 5.0  # seconds after which a wait is a failure; no test waits that long when it passes


class Face(enum.Enum):
    """How a pass is run: on the caller's loop (two kinds), a loop of its own, or from plain code."""

    CALLER = "caller"
    CALLER_UVLOOP = "caller-uvloop"
    OWN = "own"
    SYNC = "sync"
    INLINE = "inline"

    @property
    def is_async(self) -> bool:
        """Whether the consumer is a coroutine."""
        return self in (Face.CALLER, Face.CALLER_UVLOOP, Face.OWN)


FACES = tuple(Face)
ENGINE_FACES = tuple(face for face in Face if face is not Face.INLINE)


@dataclass
class Outcome:
    """What a consumer saw of a pass: its outputs, how it ended, and the run."""

    outputs: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    run: PipelineRun[Any] | SyncPipelineRun[Any] | None = None

    @property
    def failures(self) -> tuple[FailureRecord, ...]:
        """The failures that the run lists."""
        assert self.run is not None
        return self.run.failures

    @property
    def statistics(self) -> RunStatistics:
        """The run's last snapshot."""
        assert self.run is not None
        return self.run.statistics()

    def result(self) -> list[Any]:
        """Return the outputs of a pass that must have ended well."""
        if self.error is not None:
            raise AssertionError(f"the pass failed after {len(self.outputs)}") from self.error
        return self.outputs


OnOutput = Callable[[Any], None]


def drive(
    made: Pipeline[Any] | PipelineBuilder[Any],
    face: Face,
    *,
    take: int | None = None,
    on_output: OnOutput | None = None,
    hold: Gate | None = None,
    shutdown_timeout: float = PATIENCE,
    leave_with: BaseException | None = None,
    on_end: Callable[[], None] | None = None,
) -> Outcome:
    """Run one pass on a face; take all of its outputs or the first ``take``, then leave its block.

    The consumer waits at ``hold`` after each output; ``on_end`` is called just before it leaves.
    An error of the iteration is in the outcome; ``leave_with`` is raised in the block, at its end.
    """
    pipeline = made.build() if isinstance(made, PipelineBuilder) else made
    if face.is_async:
        work = _drive_async(
            pipeline, face, take, on_output, hold, shutdown_timeout, leave_with, on_end
        )
        return run_loop(work, face)
    outcome = Outcome()
    run = pipeline.run_sync(inline=face is Face.INLINE, shutdown_timeout=shutdown_timeout)
    with run:
        outcome.run = run
        try:
            while take is None or len(outcome.outputs) < take:
                outcome.outputs.append(value := next(run))
                if on_output is not None:
                    on_output(value)
                if hold is not None:
                    hold.wait()
        except StopIteration:
            pass
        except BaseException as error:
            outcome.error = error
        if on_end is not None:
            on_end()
        if leave_with is not None:
            raise leave_with
    return outcome


async def _drive_async(
    pipeline: Pipeline[Any],
    face: Face,
    take: int | None,
    on_output: OnOutput | None,
    hold: Gate | None,
    shutdown_timeout: float,
    leave_with: BaseException | None,
    on_end: Callable[[], None] | None,
) -> Outcome:
    outcome = Outcome()
    where: Literal["own", "caller"] = "own" if face is Face.OWN else "caller"
    async with pipeline.run(loop=where, shutdown_timeout=shutdown_timeout) as run:
        outcome.run = run
        try:
            while take is None or len(outcome.outputs) < take:
                outcome.outputs.append(value := await anext(run))
                if on_output is not None:
                    on_output(value)
                if hold is not None:
                    await hold.passed()
        except StopAsyncIteration:
            pass
        except BaseException as error:
            outcome.error = error
        if on_end is not None:
            on_end()
        if leave_with is not None:
            raise leave_with
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"the run left tasks behind: {left}"
    return outcome


def run_loop(work: Coroutine[Any, Any, T], face: Face = Face.CALLER) -> T:
    """Run a coroutine on a fresh loop, asyncio's in debug mode or uvloop's; let no error be lost."""
    factory = uvloop.new_event_loop if face is Face.CALLER_UVLOOP else asyncio.new_event_loop
    lost: list[dict[str, Any]] = []
    with asyncio.Runner(debug=face is not Face.CALLER_UVLOOP, loop_factory=factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: lost.append(context))
        result = runner.run(work)
    assert not lost, f"errors that nobody took: {lost}"
    return result


class Gate:
    """Opens once; threads and coroutines of any loop can wait for it, with patience."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @property
    def is_open(self) -> bool:
        """Whether it has been opened."""
        return self._event.is_set()

    def open(self) -> None:
        """Let everybody through, from any thread."""
        with self._lock:
            self._event.set()
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:  # that loop is closed, so nobody waits there any more
                pass

    def wait(self) -> None:
        """Wait in a thread."""
        if not self._event.wait(PATIENCE):
            raise AssertionError("a gate that a thread waits at was never opened")

    async def passed(self) -> None:
        """Wait on a loop."""
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._event.is_set():
                return
            self._waiting.append((asyncio.get_running_loop(), future))
        async with asyncio.timeout(PATIENCE):
            await future

    @contextmanager
    def opened_at_end(self) -> Iterator[None]:
        """Open it when the block is left, also by a failed assertion: no thread stays behind."""
        try:
            yield
        finally:
            self.open()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Crowd:
    """Counts the calls of an op that run at once; ``full`` opens when ``size`` of them do."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.full = Gate()
        self.started = 0
        self.ended = 0
        self.most = 0
        self._changed = threading.Condition()

    @property
    def running(self) -> int:
        """The calls that have started and not ended."""
        return self.started - self.ended

    def __enter__(self) -> None:
        with self._changed:
            self.started += 1
            self.most = max(self.most, self.running)
            self._changed.notify_all()
        if self.size and self.running >= self.size:
            self.full.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self.ended += 1
            self._changed.notify_all()

    def wait_started(self, number: int) -> None:
        """Wait until that many calls have started."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.started >= number, PATIENCE):
                raise AssertionError(f"{self.started} calls started, {number} were awaited")

    def wait_ended(self, number: int) -> None:
        """Wait until that many calls have ended."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.ended >= number, PATIENCE):
                raise AssertionError(f"{self.ended} calls ended, {number} were awaited")

    def wait_settled(self, calm: float = 0.05) -> int:
        """Wait until no call starts or ends for ``calm`` seconds; return how many have started.

        It gives a faulty engine the time to start too many. A slow machine makes the test that
        uses it weaker, never red.
        """
        with self._changed:
            while self.started < 50_000 and self._changed.wait(calm):
                pass
            return self.started


def notes_of(error: BaseException) -> str:
    """Return an exception's notes as one text."""
    return "\n".join(getattr(error, "__notes__", ()))


def functions_in(error: BaseException) -> list[str]:
    """Return the names of the functions in an exception's traceback, the innermost last."""
    names = []
    trace = error.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return names
