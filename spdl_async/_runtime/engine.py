"""The engine: wires steps to channels and runs them under one supervisor task.

What it promises (if the code disagrees, the code is wrong):

*Items.* Every source item reaches the consumer exactly once, unless it is dropped (``DROP``, a skip,
an aggregator, ``drop_last``) or cut off (``take``, a merge up to its first end). With input order,
results leave each stage in the order of its inputs. ``concurrency`` bounds a stage's calls at every
instant: a slot is free when its call has returned, or is abandoned because its time was over.

*Bounds.* What a stage has finished stays in its window until the next one takes it. The windows (of
shuffles, routes, merges too), the source's chunk, open batches and the sink bound what is in flight,
but for what a user's aggregator and abandoned calls hold.

*Failure.* A failure travels down the chain as the reason of a channel's close, behind the items
that came before it. So the consumer first gets exactly what preceded the failed item, then the same
exception object. The steps above are stopped the moment the failure is known.

*Stopping.* A stop is a state, not an item: every step is told, its tasks are cancelled, its threads
start no further call. The supervisor ends when all tasks and all calls in threads have ended. It is
not the consumer's child, so a failing stage never cancels the consumer. A cancellation of it (only
the end of the loop does that) is a stop request; it ends the waiting for threads at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from time import perf_counter as clock
from typing import Any

from spdl_async._plan.steps import Plan
from spdl_async._runtime.bridge import Handover, Sink
from spdl_async._runtime.budget import Budget, SizedChannel
from spdl_async._runtime.cancelled import current
from spdl_async._runtime.channel import Channel, Signal
from spdl_async._runtime.failures import FailureLog, Judges, note_once, warn_of_nothing
from spdl_async._runtime.live import registry
from spdl_async._runtime.pool import ThreadPool
from spdl_async._runtime.report import report_of, warn_of_abandoned
from spdl_async._runtime.shared import Shared, join_all, new_pool
from spdl_async._runtime.snapshot import snapshot_of
from spdl_async._runtime.source_step import SourceStep
from spdl_async._runtime.stall import StallWatch
from spdl_async._runtime.step import Step
from spdl_async._runtime.ticket import Ledger
from spdl_async._runtime.wire import lay_chain
from spdl_async._runtime.workers import is_at_work, threads_of
from spdl_async.statistics import Failures, RunStatistics, StageStatistics

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
        own_loop: bool = False,
        stall_warning: float | None = None,
        shared: Shared | None = None,
        devices: Mapping[str, Any] | None = None,
    ) -> None:
        self.plan = plan
        self.devices = devices or {}
        self.handover = handover
        self.loop = loop
        self.context = context
        self.epoch = epoch
        self.saw_drop = on_drop
        self.shared = shared
        self.pool = new_pool(plan) if shared is None else shared.pool
        self.own_pools: list[ThreadPool] = []  # of steps with a thread of their own
        self.budget = None if plan.max_bytes is None else Budget(self, plan.max_bytes, plan.size_of)
        self.ledger: Ledger = self.budget or Ledger()
        self.log = FailureLog()
        self.judges = Judges(self.log, context, seed=plan.seed, epoch=epoch)
        self.steps: list[Step] = []
        self.tasks: set[Task[None]] = set()
        self.changed = Signal(loop)
        self.watchers: list[Signal] = []  # of those who wait for a step's tasks and calls to end
        self.at_end: list[Callable[[], None]] = []
        self.before: Engine | None = None  # the pass before, where its stages are at work still
        self.supervisor: Task[None] | None = None
        self.stopping = False
        self.partly_stopped = False
        self.exiting = False
        self.forked = False
        self.let_go = False
        self.loop_thread: threading.Thread | None = None
        self.started = clock()
        self.finished: float | None = None
        self.final: RunStatistics | None = None
        self.stall: StallWatch | None = None
        if stall_warning is not None:
            self.stall = StallWatch(self, stall_warning, own_loop=own_loop)
            handover.on_wait = self.stall.wait_begins

    # Running

    def wire(self) -> None:
        """Make the steps, on the engine's loop."""
        sink = Sink(self.loop, self.handover, self.ledger, self.at_data_end)
        lay_chain(self, self.plan, sink)
        if self.budget is not None:
            self.budget.attach(self.steps, sink)

    def new_channel(self) -> Channel:
        """Return an edge between two steps."""
        return Channel(self.loop) if self.budget is None else SizedChannel(self.budget)

    async def supervise(self) -> None:
        """Run the pass to its end; the only parent of every task of the run."""
        self.supervisor = asyncio.current_task()
        torn_down = False
        try:
            if not self.stopping:
                self.wire()
                self.take_over()
                for step in self.steps:
                    step.open()
            torn_down = await self.until_tasks_end()
            if not torn_down:
                torn_down = await self.until_quiet()
        except Exception as error:  # noqa: BLE001 -- an error of ours; the consumer must hear of it
            self.crash(error)
        finally:
            self.end()
        if torn_down:
            raise asyncio.CancelledError

    def take_over(self) -> None:
        """Share the slots of each stage with the pass before."""
        before, self.before = self.before, None
        if before is not None:
            for old, new in zip(before.steps, self.steps, strict=False):
                new.take_over(old)
            if self.budget is not None and before.budget is not None:
                self.budget.share_with(before.budget)

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
            self.shut_pool()
            await join_all(self.threads(), self.loop_thread)
        except asyncio.CancelledError:
            return True
        return False

    def end(self) -> None:
        """Settle what is left; the last thing that the supervisor does."""
        self.handover.on_wait = None
        if self.stall is not None:
            self.stall.end()
        for step in self.steps:
            step.give_up()
        self.shut_pool()
        warn_of_abandoned(self.plan.name, self.steps)
        for step in self.steps:
            step.unreached_failures()
            step.halted = True  # so all its slots are free
            step.hand_over()
            # A cancelled task keeps its exception, that the frames, and those what they held.
            step.tasks.clear()
            for meter in step.meters:
                meter.unblock()  # what the consumer has not taken holds up nothing any more
        self.judges.forget()
        if self.budget is not None:
            self.budget.end()
        for forget in self.at_end:
            forget()
        if self.exiting:
            self.handover.close_at_exit()
        elif not self.handover.ended:
            self.handover.close()
        self.let_go = not all(step.quiet for step in self.steps)
        self.finished = clock()
        if self.shared is None and not self.let_go:
            registry.discard(self)
        self.rest()

    def rest(self) -> None:
        """Keep the numbers alone when all is over: steps hold items. Passes of a series may share slots."""
        if not self.finished or not self.handover.closed:
            return  # results of an open one may still be taken, and are accounted for
        with self.handover.settling:
            for step in self.steps:
                step.let_go()
            if self.shared is None and not self.let_go and self.final is None:
                self.final = snapshot_of(self)
                self.handover.forget_engine()
                self.steps, self.at_end, self.watchers, self.budget = [], [], [], None

    def shut_pool(self) -> None:
        """Let the pools' threads end, where no other pass uses them."""
        for pool in self.own_pools:
            pool.shutdown(wait=False)
        if self.shared is None:
            self.pool.shutdown(wait=False)

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
        self.note_change()

    @property
    def torn_down(self) -> bool:
        # The loop's teardown cancels all tasks before any of them runs; nobody else cancels this one.
        return self.supervisor is not None and self.supervisor.cancelling() > 0

    def cancel_above(self, step: Step) -> None:
        self.partly_stopped = True
        for above in step.above:
            above.stop_for(step)
            self.cancel_above(above)

    def note_peak(self) -> None:
        self.handover.settle(self.ledger)  # what the consumer has is not in flight any more
        self.ledger.note_peak()

    def became_quiet(self) -> None:
        self.note_change()

    def note_change(self) -> None:
        """Have those look who wait for something to end."""
        self.changed.set()
        if self.budget is not None:
            self.budget.look()
        for watcher in self.watchers:
            watcher.set()
        if self.partly_stopped:
            self.source_ended()

    def source_ended(self) -> None:
        if self.shared is not None and self.source_exhausted:
            self.shared.on_source_end()

    @property
    def source_exhausted(self) -> bool:
        """Whether all sources were read as far as they are wanted: to the end, but for a stop.

        Merging up to the first end stops the other branches, whose sources count when they rest.
        """
        sources = [step for step in self.steps if isinstance(step, SourceStep)]
        return (
            not self.stopping
            and any(step.exhausted for step in sources)
            and all(step.exhausted or (step.cancelled and step.at_rest) for step in sources)
        )

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
        if self.forked:  # the loop's wake-up pipe is the parent's too
            return
        self.halt_threads()
        self.call_on_loop(self.request_stop)

    def call_on_loop(self, callback: Callable[[], None]) -> None:
        """Call something on the loop, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(callback)

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
            self.shut_pool()

    def leave_in_fork(self, parent: int) -> None:
        """Take no further part in a child process: this run is the parent's."""
        self.forked = True
        self.handover.close_in_fork(
            f"this run of pipeline {self.plan.name!r} belongs to process {parent}, of which this one "
            f"({os.getpid()}) is a fork without its threads; build and run a pipeline here"
        )

    def is_calling(self) -> bool:
        """Tell whether this thread runs user code of the run, which then must not wait for its end."""
        step = current.step
        in_stage = step is not None and step.host is self
        return in_stage or threading.current_thread() is self.loop_thread

    def is_asking(self) -> bool:
        """Tell whether code of the run itself asks: in its threads, or in a task of its loop."""
        if self.is_calling():
            return True
        try:
            return asyncio.current_task() in self.tasks
        except RuntimeError:  # no loop runs here
            return False

    def at_work(self) -> bool:
        """Tell whether a thread of the run has work, as opposed to waiting for some."""
        return is_at_work(self)

    def threads(self) -> list[threading.Thread]:
        """Return the threads of the run that have not ended."""
        return threads_of(self)

    # Looking

    @property
    def failures(self) -> Failures:
        """The failures so far, at most the first thousand."""
        return Failures(self.log.records, self.log.total)

    def stage_statistics(self) -> tuple[StageStatistics, ...]:
        """Return a snapshot of each stage."""
        return tuple(shot for step in self.steps for shot in step.statistics())

    def statistics(self) -> RunStatistics:
        """Return a snapshot, from any thread."""
        return self.final or snapshot_of(self)

    def end_time(self) -> float:
        """Return when the pass ended, for its consumer; now, while it has not."""
        if not self.handover.end_seen and self.finished is not None and self.handover.closed:
            return self.finished
        return self.handover.end_seen or clock()

    def report(self) -> str:
        """Say what still runs: stage, item, and the stack of the thread or task."""
        return report_of(self.steps, self.tasks)
