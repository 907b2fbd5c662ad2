"""Stages whose calls in threads have a timeout.

A thread cannot be interrupted, so a call whose time is over is abandoned: the loop gives its slot to
another hop and its thread to nobody, the pool may start a thread in its place, and the item fails
with a ``StageTimeout``. What the call returns one day is dropped.

Whether a call was in time is decided by whoever takes the one entry of its *claim* first: the thread
when the call has returned, or the loop when the time is over. Taking it out of a list is atomic.
"""

from __future__ import annotations

import inspect
from asyncio import TimerHandle
from collections.abc import AsyncIterable, Iterator
from time import perf_counter as clock
from typing import Any, Final

from spdl_async._plan.results import is_plain
from spdl_async._plan.steps import ABANDONED_FACTOR
from spdl_async._runtime.abandoned import log_late, too_many_abandoned
from spdl_async._runtime.deadline import stack_of_thread, time_over
from spdl_async._runtime.failures import caught
from spdl_async._runtime.flow import Flow, FlowHop, close, iterate
from spdl_async._runtime.generator_step import ThreadFlowStep
from spdl_async._runtime.hop import QUANTUM, BaseHop, MapHop, dispose
from spdl_async._runtime.hopping_step import HoppingStep
from spdl_async._runtime.pool import LEAVE
from spdl_async._runtime.step import guarded
from spdl_async._runtime.thread_step import ThreadStep
from spdl_async._runtime.ticket import DONE, DROPPED, FAILED, Item, OpFailure, where_is
from spdl_async.spec.markers import DROP

NOTHING: Final = object()


class Lease:
    """The time of a hop's calls.

    Attributes:
        claim: holds when the present call began, until somebody takes it.
        began: when the last call began.
        abandoned: the loop has taken the claim; the hop belongs to nobody any more.
        gone: the call has returned all the same.
    """

    __slots__ = ("abandoned", "began", "claim", "gone")

    def __init__(self) -> None:
        self.claim: list[float] = []
        self.began = 0.0
        self.abandoned = False
        self.gone = False

    def begin(self) -> float:
        """Begin a call."""
        self.began = now = clock()
        self.claim = [now]
        return now

    def end(self) -> bool:
        """End a call; tell whether it was in time."""
        try:
            self.claim.pop()
        except IndexError:
            return False
        return True

    def take(self, seconds: float) -> float | None:
        """Abandon the call if it is older than ``seconds``, else return how much it has left.

        ``None``: it is abandoned. Infinity: no call runs.
        """
        claim = self.claim
        try:
            left = claim[0] + seconds - clock()
            if left > 0:
                return left
            claim.pop()
        except IndexError:  # it has returned meanwhile
            return float("inf")
        self.abandoned = True
        return None


class TimedMapHop(MapHop):
    """Runs one op on one item after the other; each is announced, as the loop looks at the time."""

    __slots__ = ("lease",)

    step: TimedThreadStep

    def __init__(self, step: TimedThreadStep) -> None:
        super().__init__(step)
        self.lease = Lease()

    @property
    def cancelled(self) -> bool:
        return self.step.cancelled or self.lease.abandoned

    def job(self) -> object:
        super().job()
        return LEAVE if self.lease.gone else None

    def time_left(self) -> float | None:
        return self.lease.began + (self.step.timeout or 0.0) - clock()

    def drain(self) -> bool:
        step = self.step
        start = clock()
        while True:
            if self.resume is not None:
                item, _ = self.resume
                self.resume = None
                if step.cancelled:
                    return False
            elif step.halted:
                return False
            else:
                try:
                    item = step.inbox.popleft()
                except IndexError:
                    return False
            self.item = item
            if not self.call(item):
                return True
            if step.of_use(next(step.finished)):
                step.wake()
            if clock() - start > QUANTUM and step.line.crowded and step.inbox and not step.halted:
                return self.requeue()

    def call(self, item: Item) -> bool:
        """Call the op; ``False`` where this job is over: the item is awaited, or given up."""
        step, argument = self.step, item.value
        value: Any = NOTHING
        error: BaseException | None = None
        began = self.lease.begin()
        try:
            value = step.calls[0](argument)
        except BaseException as raised:  # noqa: BLE001 -- the stage's policy decides, on the loop
            error = raised
        if not self.lease.end():
            end_late(self, value, error)
            error = None
            return False
        self.busy[0] += clock() - began
        self.calls[0] += 1
        self.slow += 1  # never in shares, whatever the pace
        if error is not None:
            failure = caught(error, argument, brief=step.judges[0].log.full)
            error = None
            if step.backoff is not None and step.call_again(item, argument, failure):
                return True
            step.fail(item, failure)
        elif value is DROP:
            item.state = DROPPED
        elif type(value) in step.plain or is_plain(value, step.plain):
            item.value = value
            item.state = DONE
        else:
            self.await_later(item, argument, value)
            return False
        if not step.ordered:
            step.done.append(item)
        return True

    def await_later(self, item: Item, argument: Any, awaitable: Any) -> None:
        """Have the loop await what the op returned; the item keeps this slot."""
        step = self.step
        item.value = awaitable
        self.argument = argument
        self.item = None
        self.thread = 0
        step.awaiting.append((self, item))
        step.wake()


class TimedFlowHop(FlowHop):
    """Drives iterators whose next value has a time."""

    __slots__ = ("driven", "lease")

    step: TimedFlowStep

    def __init__(self, step: TimedFlowStep) -> None:
        super().__init__(step)
        self.lease = Lease()
        self.driven: Flow | None = None

    @property
    def cancelled(self) -> bool:
        return self.step.cancelled or self.lease.abandoned

    def job(self) -> object:
        super().job()
        return LEAVE if self.lease.gone else None

    def drive(self, flow: Flow, start: float) -> str:
        step = self.step
        self.driven = flow
        while True:
            iterator = flow.iterator
            if step.cancelled:
                if iterator is not None:
                    close(iterator)
                flow.end()
                return "ended"
            if iterator is not None and flow.full(step.flow_limit):
                step.park(flow, self)
                return "parked"
            if iterator is not None and clock() - start > QUANTUM and step.line.crowded:
                return "requeue"
            how = self.next_value(flow, iterator)
            if how != "value":
                return how

    def next_value(self, flow: Flow, iterator: Iterator[Any] | None) -> str:
        """Take one value; return what to do then."""
        step, argument = self.step, flow.item.value
        value: Any = NOTHING
        error: BaseException | None = None
        began = self.lease.begin()
        try:
            if iterator is None:
                opened = step.call(argument)
                for_loop = isinstance(opened, AsyncIterable) or not is_plain(opened, step.plain)
                if for_loop and not step.is_generator:
                    value = opened
                else:
                    iterator = iterate(opened)
            if iterator is not None:
                value = next(iterator, NOTHING)
        except BaseException as raised:  # noqa: BLE001 -- the stage's policy decides, on the loop
            error = raised
        if not self.lease.end():
            end_late(self, value, error)
            error = None
            if iterator is not None:
                close(iterator)
            return "abandoned"
        self.busy += clock() - began
        self.slow += 1
        if error is not None:
            self.failed(flow, error)
            error = None  # else a cycle, in which the item's value would live on
        elif iterator is None:
            self.item = None
            self.thread = 0
            flow.hop = self
            step.to_loop.append((flow, value))
            step.wake()
            return "handed over"
        elif value is NOTHING:
            flow.end()
        else:
            flow.iterator = iterator
            flow.add(value)
            step.news_of(flow)
            return "value"
        self.calls += flow.ended
        return "ended"


def end_late(hop: TimedMapHop | TimedFlowHop, value: Any, error: BaseException | None) -> None:
    """Drop what an abandoned call has come to; its thread ends."""
    if error is not None:
        log_late(hop.step.meters[0].name, error)
    elif value is not NOTHING and inspect.isawaitable(value):
        dispose(value)
    hop.lease.gone = True


class TimedStep(HoppingStep):
    """What the two kinds of stages share: a timer that looks at the calls that run."""

    timeout: float | None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.lost: list[tuple[TimedMapHop | TimedFlowHop, Item]] = []
        self.watch: TimerHandle | None = None

    def submit(self, hop: BaseHop) -> bool:
        if self.watch is None:
            self.watch = self.host.loop.call_later(self.timeout or 0.0, self.look)
        return super().submit(hop)

    def disarm(self) -> None:
        super().disarm()
        if self.quiet and self.watch is not None:
            self.watch.cancel()
            self.watch = None

    @guarded
    def look(self) -> None:
        """Abandon the calls whose time is over, also while the run stops; wait for the next."""
        self.watch = None
        seconds = self.timeout or 0.0
        soonest = seconds
        for hop in list(self.hops):
            if isinstance(hop, (TimedMapHop, TimedFlowHop)):
                left = hop.lease.take(seconds)
                if left is None:
                    self.abandon(hop)
                else:
                    soonest = min(soonest, left)
        if self.active and self.watch is None:
            self.watch = self.host.loop.call_later(soonest, self.look)

    def abandon(self, hop: TimedMapHop | TimedFlowHop) -> None:
        """Give up a call: its slot is free, its thread is nobody's, its item has failed."""
        item = hop.item
        assert item is not None
        meter = self.meters[0]
        meter.abandoned += 1
        meter.calls += 1
        meter.busy += self.timeout or 0.0
        self.hops.remove(hop)
        self.at_work.discard(hop)
        self.collect_hop(hop)
        self.lost = [entry for entry in self.lost if not entry[0].lease.gone]
        self.lost.append((hop, item))
        stack = stack_of_thread(hop.thread)
        if self.line.ours is not None:
            self.line.ours.abandon(hop.thread)
        if not self.cancelled:
            self.time_is_over(hop, time_over(meter.name, item, self.timeout or 0.0, stack))
            if len(self.lost) > ABANDONED_FACTOR * self.concurrency:
                self.end_overrun()
            else:
                self.wake()
        if self.quiet:
            self.host.became_quiet()

    def time_is_over(self, hop: Any, failure: OpFailure) -> None:
        """Fail what the call was made for."""
        raise NotImplementedError

    def end_overrun(self) -> None:
        """End the run: too many calls are stuck."""
        self.advance()
        if self.closed:
            return
        self.fatal = too_many_abandoned(self, len(self.lost))
        self.advance_soon()

    def left_behind(self) -> list[str]:
        name = self.meters[0].name
        return [
            f"stage {name!r} on {where_is(item)}" for hop, item in self.lost if not hop.lease.gone
        ]


class TimedThreadStep(TimedStep, ThreadStep):
    """One 1→1 sync op with a timeout."""

    def new_hop(self) -> TimedMapHop:
        return TimedMapHop(self)

    def fail(self, item: Item, failure: OpFailure) -> None:
        """Mark an item as failed; from any thread."""
        item.value = failure
        item.state = FAILED
        if self.judges[0].ends(failure):
            self.halted = True

    def time_is_over(self, hop: TimedMapHop, failure: OpFailure) -> None:
        item = hop.item
        assert item is not None
        next(self.finished)
        if self.backoff is not None and self.call_again(item, item.value, failure):
            return
        self.fail(item, failure)
        if not self.ordered:
            self.done.append(item)


class TimedFlowStep(TimedStep, ThreadFlowStep):
    """A 1→n op with a timeout for each next value."""

    def new_hop(self) -> TimedFlowHop:
        return TimedFlowHop(self)

    def time_is_over(self, hop: TimedFlowHop, failure: OpFailure) -> None:
        flow = hop.driven
        assert flow is not None
        flow.iterator = None
        if self.call_again(flow, failure):
            return
        flow.end(failure)
        if self.judges[0].ends(failure):
            self.halted = True
        self.news_of(flow)
