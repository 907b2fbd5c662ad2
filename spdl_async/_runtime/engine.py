"""The engine: wires steps to channels and runs them under one supervisor task.

What it promises (if the code disagrees, the code is wrong):

*Items.* Every source item reaches the consumer exactly once, unless a filter, ``DROP`` or an
explicit skip policy dropped it, which is counted. With input order, results leave each stage in the
order of its inputs. ``concurrency`` bounds the calls of a stage at every instant, also after a
cancellation: a slot is free when its call has returned.

*Bounds.* A stage accepts as many items as its window has room for, and what it has finished stays
in its window until the next one takes it. Nothing else holds items, so the sum of the windows,
the source's chunk, open batches and the sink bound what is in flight.

*Failure.* A failure travels down the chain as the reason of a channel's close, behind the items
that came before it. So the consumer first gets exactly what preceded the failed item, then the same
exception object. The steps above are stopped the moment the failure is known. The sink closes
after the error is attached.

*Stopping.* A stop is a state, not an item: every step is told, its tasks are cancelled, its threads
start no further call. The supervisor ends when all tasks have ended and all calls in threads have
returned. The consumer is not the supervisor's parent, so a failing stage never cancels the
consumer. A cancellation of the supervisor (only the end of the loop does that) is a stop request;
it ends the waiting for threads at once.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from dataclasses import replace
from time import perf_counter as clock
from types import FrameType
from typing import Any

from spdl_async._plan.steps import Plan
from spdl_async._runtime.bridge import Handover, Sink
from spdl_async._runtime.channel import Signal
from spdl_async._runtime.failures import FailureLog, Judges, note_once, warn_of_nothing
from spdl_async._runtime.live import registry
from spdl_async._runtime.pool import ThreadPool
from spdl_async._runtime.source_step import SourceStep
from spdl_async._runtime.step import Step
from spdl_async._runtime.ticket import Ledger, where_is
from spdl_async._runtime.wire import lay_chain
from spdl_async.statistics import FailureRecord, RunStatistics, StageStatistics

logger = logging.getLogger("spdl_async")


class Engine:
    """One pass of a pipeline."""

    def __init__(
        self,
        plan: Plan,
        handover: Handover,
        *,
        loop: AbstractEventLoop,
        context: Context,
        epoch: int,
        on_drop: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.handover = handover
        self.loop = loop
        self.context = context
        self.epoch = epoch
        self.saw_drop = on_drop
        self.pool = ThreadPool(plan.num_threads, f"spdl_async-{plan.name}")
        self.ledger = Ledger()
        self.log = FailureLog()
        self.judges = Judges(self.log)
        self.steps: list[Step] = []
        self.tasks: set[Task[None]] = set()
        self.changed = Signal(loop)
        self.supervisor: Task[None] | None = None
        self.stopping = False
        self.exiting = False
        self.let_go = False
        self.loop_thread: threading.Thread | None = None
        self.started = clock()
        self.finished: float | None = None

    # Running

    def wire(self) -> None:
        """Make the steps, on the engine's loop."""
        sink = Sink(self.loop, self.handover, self.ledger, self.at_data_end)
        lay_chain(self, self.plan, sink)

    async def supervise(self) -> None:
        """Run the pass to its end; the only parent of every task of the run."""
        registry.add(self)
        self.supervisor = asyncio.current_task()
        torn_down = False
        try:
            if not self.stopping:
                self.wire()
                for step in self.steps:
                    step.start()
            torn_down = await self.until_tasks_end()
            if not torn_down:
                torn_down = await self.until_quiet()
        except Exception as error:  # noqa: BLE001 -- an error of ours; the consumer must hear of it
            self.crash(error)
        finally:
            self.end()
        if torn_down:
            raise asyncio.CancelledError

    def at_data_end(self, results: int) -> BaseException | None:
        """Return what is wrong with the pass as a whole; its data have ended, after ``results``."""
        self.changed.set()
        error = self.judges.at_end()
        if error is None and not results and not self.stopping:
            warn_of_nothing(self.plan.name, self.epoch, self.stage_statistics())
        return error

    async def until_tasks_end(self) -> bool:
        """Wait for the end of data and tasks; return whether the loop is being torn down."""
        torn_down = False
        while self.tasks or not (self.handover.ended or self.stopping):
            try:
                await self.changed.wait()
            except asyncio.CancelledError:
                if torn_down:
                    return True
                torn_down = True
                self.request_stop()
        return torn_down

    async def until_quiet(self) -> bool:
        """Wait for calls in threads and for the threads themselves."""
        try:
            while not all(step.quiet for step in self.steps):
                await self.changed.wait()
            self.pool.shutdown(wait=False)
            for count, thread in enumerate(self.threads()):
                if thread is self.loop_thread:
                    continue
                thread.join()  # done or idle, so this takes microseconds
                if count % 16 == 15:
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            return True
        return False

    def end(self) -> None:
        """Settle what is left; the last thing that the supervisor does."""
        for step in self.steps:
            step.give_up()
        self.pool.shutdown(wait=False)
        for step in self.steps:
            step.unreached_failures()
            # A cancelled task keeps its exception, that the frames, and those what user code held.
            step.tasks.clear()
        if self.exiting:
            self.handover.close_at_exit()
        elif not self.handover.ended:
            self.handover.close()
        self.finished = clock()
        if all(step.quiet for step in self.steps):
            registry.discard(self)
        else:
            self.let_go = True

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Task[None]:
        """Start a task of the run; the supervisor waits for it."""
        task = self.loop.create_task(work, name=name, context=self.context.copy())
        self.tasks.add(task)
        task.add_done_callback(self.task_ended)
        return task

    def task_ended(self, task: Task[None]) -> None:
        """Take note of a task's end; an exception that it let out is an error of ours."""
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crashed(error)
        self.changed.set()

    @property
    def torn_down(self) -> bool:
        # The loop's teardown cancels all tasks before any of them runs; nobody else cancels this one.
        return self.supervisor is not None and self.supervisor.cancelling() > 0

    def cancel_above(self, step: Step) -> None:
        for above in step.above:
            if not above.cancelled:
                above.stop()
            self.cancel_above(above)

    def note_peak(self) -> None:
        self.handover.settle(self.ledger)  # what the consumer has is not in flight any more
        self.ledger.note_peak()

    def became_quiet(self) -> None:
        self.changed.set()

    def crashed(self, error: BaseException) -> None:
        """Deliver an error of the library itself; from any thread."""
        note_once(error, "spdl_async: this is an error of the library itself; please report it")
        try:
            self.loop.call_soon_threadsafe(self.crash, error)
        except RuntimeError:  # the loop is closed: nobody is left to tell but the log
            logger.error("a run failed after its loop was closed", exc_info=error)

    def crash(self, error: BaseException) -> None:
        """End the run with an error, on the loop."""
        self.handover.finish(error)
        self.request_stop()

    # Stopping

    def request_stop(self) -> None:
        """Stop every step, on the loop."""
        if not self.stopping:
            self.stopping = True
            for step in self.steps:
                step.stop()
        self.changed.set()

    def post_stop(self) -> None:
        """Ask for a stop from any thread, a finalizer included: takes no lock, runs no user code."""
        self.halt_threads()
        try:
            self.loop.call_soon_threadsafe(self.request_stop)
        except RuntimeError:  # the loop is closed
            pass

    def halt_threads(self) -> None:
        """Keep threads from starting another call, before the loop comes to it: they look at flags."""
        for step in self.steps:
            step.halted = step.cancelled = True
            if isinstance(step, SourceStep):
                step.puller.cancelled = True
                step.puller.gate.put(None)

    def post_exit(self) -> None:
        """Ask for a stop because the interpreter ends: whoever waits for results may go on waiting."""
        self.exiting = True
        self.handover.close_at_exit()
        self.post_stop()
        if not self.loop.is_running():
            self.pool.shutdown(wait=False)

    def at_work(self) -> bool:
        """Tell whether a thread of the run has work, as opposed to waiting for some."""
        pullers = [s.puller for s in self.steps if isinstance(s, SourceStep)]
        return self.pool.busy or any(p.alive and not p.starving for p in pullers)

    def threads(self) -> list[threading.Thread]:
        """Return the threads of the run that have not ended."""
        pullers = [s.puller.thread for s in self.steps if isinstance(s, SourceStep)]
        threads = [self.loop_thread, *pullers, *self.pool.threads]
        return [thread for thread in threads if thread is not None and thread.is_alive()]

    # Looking

    @property
    def failures(self) -> tuple[FailureRecord, ...]:
        """The failures so far, at most the first thousand."""
        return tuple(self.log.records)

    def stage_statistics(self) -> tuple[StageStatistics, ...]:
        """Return a snapshot of each stage."""
        return tuple(shot for step in self.steps for shot in step.statistics())

    def statistics(self) -> RunStatistics:
        """Return a snapshot, from any thread."""
        handover, ledger = self.handover, self.ledger
        if self.finished is not None:  # the engine's loop does not do it any more
            handover.settle(ledger)
        stages = self.stage_statistics()
        in_flight = ledger.opened - ledger.closed
        ended = bool(handover.end_seen) and handover.error is None
        if ended:
            # Results that were taken last may not be accounted for yet, which only the loop may do
            # while it runs; but the end of the data was seen, so what is left is known: nothing.
            stages = tuple(replace(stage, queue=0) for stage in stages)
            if self.finished is None:
                in_flight = 0
        return RunStatistics(
            name=self.plan.name,
            epoch=self.epoch,
            elapsed=self.end_time() - self.started,
            stages=stages,
            delivered=handover.delivered,
            consumer_waiting=handover.waiting,
            in_flight=in_flight,
            peak_in_flight=ledger.peak,
            failures=self.log.total,
            threads=self.plan.num_threads,
            ended=ended,
        )

    def end_time(self) -> float:
        """Return when the pass ended, for its consumer; now, while it has not."""
        if self.handover.end_seen:
            return self.handover.end_seen
        if self.finished is not None and self.handover.closed:
            return self.finished
        return clock()

    def report(self) -> str:
        """Say what still runs: stage, item, and the stack of the thread or task."""
        frames = sys._current_frames()
        parts = []
        for step in self.steps:
            for stage, ident, item in step.running():
                on = "" if item is None else f" on {where_is(item)}"
                frame = frames.get(ident)
                stack = "" if frame is None else "".join(traceback.format_stack(frame))
                parts.append(f"stage {stage!r}{on} still runs:\n{stack}")
        for task in list(self.tasks):
            stack = "".join(
                line
                for frame in suspended_frames(task.get_coro())
                for line in traceback.format_stack(frame, limit=1)
            )
            parts.append(f"task {task.get_name()!r} has not ended:\n{stack}")
        return "\n".join(parts) or "nothing of it runs any more"


def suspended_frames(awaited: Any) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine, down to what it waits for."""
    while awaited is not None:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                yield frame
                inner = {"cr": "cr_await", "gi": "gi_yieldfrom", "ag": "ag_await"}[kind]
                awaited = getattr(awaited, inner, None)
                break
        else:
            awaited = None
