"""Hops: jobs on a thread pool that drain a step's inbox.

A hop takes items from the inbox that its step keeps filled, so a thread that finishes one starts
the next without waiting for the loop. It ends when the inbox is dry. Between two items it also
looks whether other jobs wait for a thread of the pool; after a quantum of 5 ms it then goes to the
end of the line, keeping its slot. A hop never waits for room, a lock or the loop.

Finished items are announced to the loop together: those of quick ops in shares that last a fraction
of a millisecond, those of slow ops when the next step can do something with them, or when the inbox
runs low. The append comes before the flag is read, and the loop clears the flag before it takes
results, so no wake-up is lost.
"""

from __future__ import annotations

import threading
from concurrent.futures import Executor, Future
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

from spdl_async._plan.results import is_plain
from spdl_async._runtime.cancelled import current
from spdl_async._runtime.failures import caught
from spdl_async._runtime.pool import ThreadPool
from spdl_async._runtime.ticket import DONE, DROPPED, FAILED, Item
from spdl_async.spec.markers import DROP

if TYPE_CHECKING:
    from spdl_async._runtime.hopping_step import HoppingStep
    from spdl_async._runtime.meter import Meter
    from spdl_async._runtime.thread_step import ThreadStep

QUANTUM = 0.005
CANCELLED = "the executor cancelled the stage's work (a shutdown with cancel_futures=True?)"
SHARE_SECONDS = 0.0002


class Line:
    """Where hops queue for a thread: our pool, which counts who waits, or a given executor."""

    __slots__ = ("executor", "ours")

    def __init__(self, pool: ThreadPool, given: Executor | None) -> None:
        self.ours = pool if given is None else None
        self.executor = pool if given is None else given

    def submit(self, hop: BaseHop) -> None:
        """Queue a hop."""
        if self.ours is not None:
            self.ours.put(hop.job)
        else:
            hop.future = future = self.executor.submit(hop.job)
            future.add_done_callback(hop.left_line)

    @property
    def crowded(self) -> bool:
        """Whether a hop that has used its quantum must let others go first."""
        # On a given executor nobody can see who waits: there a hop always goes back in line.
        return self.ours is None or self.ours.waiting > 0


class BaseHop:
    """One slot of a step's concurrency; at most one job of it is queued or runs at any time."""

    __slots__ = ("at", "future", "item", "quick", "quick_busy", "slow", "step", "thread")

    step: HoppingStep

    def __init__(self, step: HoppingStep) -> None:
        self.step = step
        self.item: Item | None = None
        self.at = 0
        # How many results took less, or more, than a share's time. Counting them tells fast ops from
        # slow ones where a mean would not: one wait for the GIL outweighs a thousand quick calls.
        self.quick = 0
        self.slow = 0
        self.quick_busy = 0.0
        self.thread = 0
        self.future: Future[object] | None = None

    def job(self) -> object:
        """Run in a thread of the pool, in a copy of the run's context."""
        step = self.step
        self.thread = threading.get_ident()
        before = current.swap(self)
        try:
            keeps_slot = step.host.context.copy().run(self.drain)
        except BaseException as error:  # noqa: BLE001 -- an error of ours must not kill the thread silently
            step.host.crashed(error)
            keeps_slot = False
        finally:
            current.swap(before)
        if not keeps_slot:  # else another thread may already run this hop again
            self.item = None
            self.thread = 0
            step.ended.append(self)
            step.wake()
        return None

    @property
    def host(self) -> object:
        """The engine that its step is a part of."""
        return self.step.host

    @property
    def meter(self) -> Meter:
        """The meter of the op that runs."""
        return self.step.meters[self.at]

    @property
    def cancelled(self) -> bool:
        """What :func:`~spdl_async.cancelled` tells the op that runs."""
        return self.step.cancelled

    def drain(self) -> bool:
        """Work; return True where the slot is kept although this job ends."""
        raise NotImplementedError

    def requeue(self) -> bool:
        """Go to the end of the line, keeping the slot; False where the executor refuses."""
        self.item = None
        self.thread = 0
        try:
            self.step.line.submit(self)
        except RuntimeError as error:
            self.step.refused(error)
            return False
        return True

    def left_line(self, future: Future[object]) -> None:
        """Hear that a given executor is done with the job, perhaps without having run it."""
        if future.cancelled():
            self.step.refused(RuntimeError(CANCELLED))
            self.step.ended.append(self)
            self.step.wake()

    @property
    def must_run(self) -> bool:
        """Whether the job has something to close, so that it may not be taken out of the line."""
        return False

    def note_pace(self, seconds: float) -> None:
        """Count a result that took ``seconds``."""
        if seconds > SHARE_SECONDS:
            self.slow += 1
        else:
            self.quick += 1
            self.quick_busy += seconds

    def busy_now(self) -> float:
        """Return the seconds of calls that are not yet handed over to the meter."""
        return 0.0


class MapHop(BaseHop):
    """Runs the ops of a fused group on one item after the other."""

    __slots__ = ("argument", "busy", "calls", "resume")

    step: ThreadStep

    def __init__(self, step: ThreadStep) -> None:
        super().__init__(step)
        self.busy = [0.0] * len(step.calls)
        self.calls = [0] * len(step.calls)
        self.resume: tuple[Item, int] | None = None
        self.argument: Any = None

    def busy_now(self) -> float:
        return sum(self.busy)

    def time_left(self) -> float | None:
        """Return the seconds that are left of the call's time; ``None``: all of them."""
        return None

    def drain(self) -> bool:
        step = self.step
        take = step.inbox.popleft
        share = 0
        start = announced = now = clock()
        first = 0
        while True:
            if self.resume is not None:
                item, first = self.resume
                self.resume = None
                if step.cancelled:
                    return False
                item.at = 0
            elif step.halted:
                return False
            else:
                try:
                    item = take()
                except IndexError:
                    return False
                first = item.at
                if first:  # an op in the middle of the group is called again
                    item.at = 0
            self.item = item
            before = now
            now = self.run_ops(item, first, now)
            if now - before > SHARE_SECONDS:  # note_pace, without the call
                self.slow += 1
            elif now >= 0:
                self.quick += 1
                self.quick_busy += now - before
            elif step.cancelled:
                dispose(item.value)
                return False
            else:  # the item waits for an awaitable on the loop, and keeps this slot
                self.item = None
                self.thread = 0
                step.awaiting.append((self, item))
                step.wake()
                return True
            share += 1
            finished = next(step.finished)
            if step.share == 1:
                if step.of_use(finished):
                    step.wake()
            elif share >= step.share or now - announced > SHARE_SECONDS:
                share = 0
                announced = now
                # With a dry inbox the hop ends now, and its end is announced anyway.
                if not step.woken and step.inbox:
                    step.wake()
            if now - start > QUANTUM and step.line.crowded and step.inbox and not step.halted:
                if not step.woken:
                    step.wake()
                return self.requeue()

    def run_ops(self, item: Item, first: int, now: float) -> float:
        """Run the ops from ``first`` on; return the time after the last, or -1 for an awaitable."""
        step = self.step
        value = argument = item.value
        plain, busy, calls = step.plain, self.busy, self.calls
        at = first
        try:
            for at, call in step.numbered[first:] if first else step.numbered:
                argument = value
                self.at = at
                value = call(value)
                end = clock()
                busy[at] += end - now
                calls[at] += 1
                now = end
                if type(value) not in plain and not is_plain(value, plain):
                    if value is DROP:
                        item.at = at
                        item.state = DROPPED
                        break
                    item.at = at
                    item.value = value
                    if step.backoff is not None:
                        self.argument = argument
                    return -1.0
            else:
                item.value = value
                item.state = DONE
        except BaseException as error:  # noqa: BLE001 -- the stage's policy decides, on the loop
            end = clock()
            self.busy[at] += end - now
            self.calls[at] += 1
            now = end
            item.at = at
            failure = caught(error, argument, brief=step.judges[at].log.full)
            if step.backoff is not None and step.call_again(item, argument, failure):
                return now
            item.value = failure
            item.state = FAILED
            if step.judges[at].ends(failure):
                step.halted = True
                step.wake()
            del failure  # the error's traceback holds this frame, which must not hold the error
        if not step.ordered:
            step.done.append(item)
        return now


def dispose(value: Any) -> None:
    """Close a coroutine or another awaitable that nobody will wait for, so that it does not warn."""
    closing = getattr(value, "close", None)
    if closing is not None:
        closing()
