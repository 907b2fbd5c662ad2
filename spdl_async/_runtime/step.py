"""What all steps share: tasks, a way to stop, and the window of the 1→1 steps.

A step reads from the channel above it (a merge from several, a source from none) and writes to the
one below. Its tasks belong to the
engine's task group. :meth:`Step.stop` cancels at once; calls that already run in threads go on
until they return, and :attr:`Step.quiet` tells when the last of them did.
"""

from __future__ import annotations

import asyncio
import functools
from asyncio import Task
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

from spdl_async._runtime.asking import ask_about
from spdl_async._runtime.channel import Channel, Outlet, Signal
from spdl_async._runtime.failures import Judge
from spdl_async._runtime.host import Host as Host
from spdl_async._runtime.meter import Meter, clock
from spdl_async._runtime.pace import Pace
from spdl_async._runtime.span import Span
from spdl_async._runtime.ticket import (
    DONE,
    DROPPED,
    FAILED,
    PENDING,
    Item,
    OpFailure,
)
from spdl_async.statistics import StageStatistics

S = TypeVar("S", bound="Step")
A = TypeVarTuple("A")


def guarded(callback: Callable[[S, *A], None]) -> Callable[[S, *A], None]:
    """Deliver an error of ours in a loop's callback to the consumer, whom it would leave waiting."""

    @functools.wraps(callback)
    def run(self: S, *arguments: *A) -> None:
        try:
            callback(self, *arguments)
        except Exception as error:  # noqa: BLE001 -- delivered
            self.host.crashed(error)

    return run


class Step:
    """One step of a run, on the engine's loop."""

    span: Span | None = None

    def __init__(self, host: Host, source: Channel | None, out: Outlet) -> None:
        self.host = host
        self.source = source
        self.out = out
        self.above: tuple[Step, ...] = ()  # the steps that feed this one
        self.meters: list[Meter] = []
        self.halted = False  # no call is started any more
        self.cancelled = False  # and the results of those that run are not wanted
        self.tasks: list[Task[None]] = []
        self.overdue: set[Task[Any]] = set()  # cancelled because their time was over, not by a stop
        self.untaken = 0
        self.advancing = False
        out.on_taken = self.taken

    @property
    def inp(self) -> Channel:
        """The one channel above."""
        if self.source is None:
            raise AssertionError("a source has no channel above it, a merge several")
        return self.source

    @property
    def quiet(self) -> bool:
        """Whether no user code of this step runs in a thread."""
        return True

    def open(self) -> None:
        """Start the step, once what its ops own is entered."""
        if self.span is None:
            self.start()
        else:
            self.span.start()

    def start(self) -> None:
        """Start the step's tasks."""
        raise NotImplementedError

    def use_call(self, at: int, call: Callable[..., Any]) -> None:
        """Call something else in place of the op with that number; before the start."""
        raise NotImplementedError

    def stop(self) -> None:
        """Cancel at once: no call is started any more, tasks are cancelled."""
        self.halted = True
        self.cancelled = True
        if self.span is not None:
            self.span.stop()
        for task in self.tasks:
            # A second cancellation would interrupt what it closes.
            if not task.cancelling() or task in self.overdue:
                self.overdue.discard(task)
                task.cancel()

    def stop_for(self, asker: Step) -> None:  # noqa: ARG002 -- a route asks who it is
        """Stop because a step below wants no more."""
        if not self.cancelled:
            self.stop()

    def take_over(self, before: Step) -> None:
        """Share the slots of the same step of the pass before, which goes first."""

    def hand_over(self) -> None:
        """Let the next pass have the slots that this one does not need any more."""

    def give_up(self) -> None:
        """Hand to the pool what still has to be closed; the loop will not come back to it."""

    def unreached_failures(self) -> None:
        """Write down failures that nobody came to, because the run ended before."""

    def running(self) -> list[tuple[str, int, Item | None]]:
        """Return (stage, thread ident, item) of the calls that run in threads now."""
        return []

    def left_behind(self) -> list[str]:
        """Name the calls that were abandoned and still run."""
        return []

    def statistics(self) -> list[StageStatistics]:
        """Return a snapshot for each stage of the step."""
        return [meter.snapshot() for meter in self.meters]

    def launch(self, work: Coroutine[Any, Any, None], what: str) -> Task[None]:
        """Start one of the step's own tasks, cancelled by :meth:`stop`."""
        task = self.host.spawn(work, f"spdl_async: stage {self.meters[0].name}: {what}")
        self.tasks.append(task)
        task.add_done_callback(functools.partial(self.check_ended, work))
        return task

    def check_ended(self, work: Coroutine[Any, Any, None], task: Task[None]) -> None:
        """See to it that a task which somebody else has cancelled does not leave the run hanging."""
        work.close()  # a task factory that wraps it may never have started it
        if task.cancelled() and not self.halted and not self.host.torn_down:
            self.host.crashed(RuntimeError(f"{task.get_name()!r} was cancelled by code outside"))

    def asked_to_stop(self, error: BaseException) -> bool:
        """Tell whether an exception in a task of ours is the cancellation that a stop has asked for.

        User code can raise ``CancelledError`` too, or cancel the task that it runs in: an ordinary
        failure, after which the task goes on.
        """
        if not isinstance(error, asyncio.CancelledError):
            return False
        if self.cancelled or self.host.torn_down:
            return True
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        return False

    def forget(self, task: Task[None]) -> None:
        """Let go of a task that has ended."""
        if task in self.tasks:
            self.tasks.remove(task)

    def advance_soon(self) -> None:
        """Advance in the loop's next turn, once for all that finishes in this one."""
        if not self.advancing:
            self.advancing = True
            self.host.loop.call_soon(self.advance)

    def advance(self) -> None:
        """Hand on what is finished."""

    # What is handed on stays counted here until the next step takes it.

    def emit(self, items: list[Item]) -> None:
        """Hand items on."""
        meter = self.meters[-1]
        if not self.untaken:
            meter.blocked_since = clock()
        self.untaken += len(items)
        meter.items_out += len(items)
        self.out.push(items)

    def taken(self, count: int) -> None:
        """Hear that the next step has taken items."""
        self.untaken -= count
        if not self.untaken:
            self.meters[-1].unblock()
        self.after_taken(count)

    def after_taken(self, count: int) -> None:
        """Make use of the room."""


class WindowedStep(Step):
    """A 1→1 step: its window is what it has accepted and the next step has not taken.

    The window restores input order: items leave from its head. With completion order they leave
    as they are done. Either way the window bounds what the step holds.
    """

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        *,
        ordered: bool,
        pace: Pace,
        judges: list[Judge],
        meters: list[Meter],
    ) -> None:
        super().__init__(host, source, out)
        self.meters = meters
        self.judges = judges
        self.ordered = ordered
        self.pace = pace
        self.held: deque[Item] = deque()
        self.done: deque[Item] = deque()
        self.accepted = 0
        self.unfinished = 0
        self.input_ended = False
        self.closed = False
        self.fatal: BaseException | None = None
        self.room = Signal(host.loop)
        self.feeder: Task[None] | None = None
        self.by_call = any(j.budget.limit is not None for j in judges)
        self.asks = any(j.handler is not None for j in judges)

    def start(self) -> None:
        self.feeder = self.launch(self.feed(), "input")

    def begin(self, items: list[Item]) -> None:
        """Start work on accepted items."""
        raise NotImplementedError

    def finish_input(self) -> None:
        """Hear that no more items will come."""

    def stop_starting(self) -> None:
        """React to a failure that ends the run: items after it are not started any more."""
        self.halted = True
        if self.feeder is not None:
            self.feeder.cancel()
        self.host.cancel_above(self)

    async def feed(self) -> None:
        """Accept items as far as the window has room."""
        meter = self.meters[0]
        inp, pace = self.inp, self.pace
        while True:
            free = pace.window - self.accepted
            if free < pace.least:
                await self.room.wait()
                continue
            if self.accepted or len(inp):
                items = await inp.get_many(free)
            else:
                began = clock()
                items = await inp.get_many(free)
                meter.waiting_input += clock() - began
            if not items:
                break
            self.accepted += len(items)
            self.unfinished += len(items)
            meter.items_in += len(items)
            meter.queue = self.accepted
            if self.accepted > meter.peak:
                meter.peak = self.accepted
            if self.ordered:
                self.held.extend(items)
            self.begin(items)
        self.input_ended = True
        self.finish_input()
        self.hand_over()
        self.advance()

    @guarded
    def advance(self) -> None:
        """Hand on what is finished, in the step's order; close at the end or after a failure."""
        self.advancing = False
        if self.closed:
            return
        ready = self.collect()
        if ready:
            self.unfinished -= len(ready)
            self.emit(ready)
        if self.fatal is not None:
            self.end_with(self.fatal)
        elif self.input_ended and not self.unfinished:
            self.closed = True
            self.out.close(self.inp.failure or self.verdict_at_end())

    def end_with(self, error: BaseException) -> None:
        """End the run's data with a failure; what runs after the failed item is not wanted."""
        self.closed = True
        self.stop_starting()
        self.out.close(error)
        self.stop()

    def stop(self) -> None:
        self.closed = True
        super().stop()

    def unreached_failures(self) -> None:
        """Write down failures that nobody came to, because the run ended before."""
        for item in (*self.held, *self.done):
            if item.state == FAILED and isinstance(item.value, OpFailure):
                self.judges[item.at].note(item, item.value)
        self.held.clear()
        self.done.clear()

    def verdict_at_end(self) -> BaseException | None:
        """Return what is wrong with one of the step's stages as a whole."""
        for judge in self.judges:
            error = judge.at_end()
            if error is not None:
                return error
        return None

    def collect(self) -> list[Item]:
        """Take from the window what may leave it now; drops and failures are settled here."""
        if self.fatal is not None:
            return []
        ready: list[Item] = []
        waiting = self.held if self.ordered else self.done
        while waiting:
            item = waiting[0]
            state = item.state
            if state == PENDING:
                break
            waiting.popleft()
            if state == DONE:
                item.state = PENDING
                ready.append(item)
                if self.by_call and self.count_and_check():
                    break
            elif self.asks and state == FAILED and ask_about(self, item):
                if self.ordered:
                    waiting.appendleft(item)
                    break
            elif not self.settle(item, state):
                break
        if ready and not self.by_call:
            for judge in self.judges:
                judge.settled += len(ready)
        return ready

    def count_and_check(self) -> bool:
        """Count one item's calls for the budgets; tell whether one of them is spent."""
        for judge in self.judges:
            judge.count_calls(1)
            if self.fatal is None:
                self.fatal = judge.over_budget()
        return self.fatal is not None

    def settle(self, item: Item, state: int) -> bool:
        """Account for a dropped or failed item; ``False`` where that ends the run."""
        at = item.at
        for judge in self.judges[: at + 1]:
            judge.count_calls(1)
        if state == DROPPED:
            self.meters[at].dropped += 1
            self.host.saw_drop()
            if self.by_call:
                self.fatal = self.judges[at].over_budget()
        else:
            self.meters[at].failed += 1
            failure = item.value
            item.value = None
            self.fatal = self.judges[at].verdict(item, failure)
        item.value = None
        self.unfinished -= 1
        self.after_taken(1)
        if self.fatal is not None:
            return False  # not released: what comes behind it must not leave before the failure
        self.host.ledger.release(item)
        return True

    def after_taken(self, count: int) -> None:
        """Account for items that left the window."""
        self.accepted -= count
        self.meters[0].queue = self.accepted
        self.room.set()
