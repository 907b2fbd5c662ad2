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
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, TypeVarTuple

from spdl_async._runtime.budget import Budget
from spdl_async._runtime.channel import Channel, Outlet, nobody
from spdl_async._runtime.gates import Gate
from spdl_async._runtime.host import Host as Host
from spdl_async._runtime.meter import Meter, clock
from spdl_async._runtime.span import Span
from spdl_async._runtime.ticket import (
    Item,
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
    around: Step | None = None  # the route in one of whose branches it is
    budget: Budget | None = None  # of bytes, where the run has one
    gate: Gate | None = None  # what it has to ask there before it begins something
    occupied = False  # user code that no gate knows of is at work
    keeps_values = False  # hands on the values that it took, so they need not be measured again
    puts_together = False  # what it hands on are lists or tuples of what it took
    meter: Meter | None = None  # what runs as the step itself is a lifespan's code, and no op
    gathering = False  # holds items until there are enough

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
    def reads_from(self) -> Sequence[Channel]:
        """The channels that it reads."""
        return () if self.source is None else (self.source,)

    def new_gate(self, budget: Budget) -> Gate | None:  # noqa: ARG002 -- those that call ops have one
        """Return what the step has to ask before it begins something."""
        return None

    def resting(self) -> int:
        """Return how many of the calls that its gate let go wait for something else now."""
        return 0

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

    def let_go(self) -> None:
        """Let go of the items that are left: the run may be kept for its statistics."""
        self.out.on_taken = nobody
        for channel in self.reads_from:
            channel.clear()
        if self.gate is not None:
            self.gate.let_go_of_items()

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

    def gone(self) -> None:
        """Hear, as a route, that an item was dropped or skipped in a branch."""
        self.advance_soon()
        if self.around is not None:
            self.around.gone()

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
        if self.budget is not None:
            self.budget.emitted(self, items)
        self.out.push(items)

    def taken(self, count: int) -> None:
        """Hear that the next step has taken items."""
        self.untaken -= count
        if not self.untaken:
            self.meters[-1].unblock()
        self.after_taken(count)

    def after_taken(self, count: int) -> None:
        """Make use of the room."""
