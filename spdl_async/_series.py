"""Passes of one pipeline in a row, at most two at a time, on one loop and one thread pool.

The next pass begins when the source of the one that is being consumed was read to its end, so the
first results of the next are made while the last of this one are consumed. Neither waits for the
other: a pass that begins ahead takes a stage over when the one before has started its last call
there (``Engine.take_over``), so ``concurrency`` bounds the calls of both together.

Who consumes may do so in another thread than the loop's, and asks for the next pass while the loop
may be about to begin it ahead. A lock settles that; it is held for no longer than a pass takes to
be made, and never by a finalizer.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable

from spdl_async._loops import LoopThread
from spdl_async._order import Order
from spdl_async._runtime.channel import Signal
from spdl_async._runtime.engine import Engine
from spdl_async._runtime.live import registry
from spdl_async._runtime.shared import Shared, join_all, new_pool
from spdl_async._runtime.telling import new_context
from spdl_async._start import BasePass, Ending, begin_pass, registered, unregister
from spdl_async.errors import RunStateError

SUPERSEDED = (
    "this epoch is over: the next one was asked for, and asking for it ends the one before. Take "
    "what you need from a run before you go on to the next"
)
EPOCHS_LEFT = (
    "this epoch is over: its `epochs()` was left, closed or dropped, which ends its runs; keep the "
    "object that epochs() returned for as long as you iterate its runs"
)
NOTHING_RUNS = "nothing of it runs any more"
LOOP_CLOSED = "the event loop on which these epochs began is closed; call epochs() on the new one"


class Epoch(BasePass):
    """One pass of a series."""

    task: asyncio.Task[None] | None = None  # a loop refers to its tasks only weakly
    retired = False

    @property
    def ended_well(self) -> bool:
        """Whether the consumer has seen its end, without a failure."""
        handover = self.handover
        return bool(handover.end_seen) and not handover.failed and not handover.closed


class Series(Ending):
    """What runs beside the consumer of ``epochs()``.

    Attributes:
        live: passes that have begun and not ended: the current one, one ahead, one that is ending.
        current: the pass that the consumer has.
        ahead: the next one, if it has begun already.
        begun: how many have begun.
    """

    def __init__(self, order: Order, n: int | None, *, overlap: bool, own_loop: bool) -> None:
        super().__init__(order.plan.name)
        self.order = order
        self.n = n
        self.overlap = overlap
        self.own_loop = own_loop
        self.context = new_context()
        self.pool = new_pool(order.plan)
        self.lock = threading.Lock()
        self.live: list[Epoch] = []
        self.stuck: list[Engine] = []
        self.current: Epoch | None = None
        self.ahead: Epoch | None = None
        self.begun = 0
        self.closed = False
        self.let_go = False
        self.exiting = False
        self.forked = ""  # in a forked child, why nothing can be done here
        first = begin_pass(order) if overlap and n != 0 else None
        thread = LoopThread(f"spdl_async-{self.name}-loop") if own_loop else None
        self.loop = asyncio.get_running_loop() if thread is None else thread.loop
        self.changed = Signal(self.loop)
        if first is not None:
            self.ahead = self.begin(first)
        if thread is not None:
            with registered(self):
                self.loop_thread = thread.start(
                    self.supervise, self.context, lambda: self.ended.set_result(None)
                )
            return
        with registered(self):
            task = self.loop.create_task(
                self.supervise(), name=f"spdl_async: epochs of {self.name}", context=self.context
            )
        task.add_done_callback(functools.partial(unregister, self))
        self.ends_with(task)

    # Beginning a pass, with the lock held

    def begin(self, number: int) -> Epoch:
        """Make a pass and have the loop start it."""
        epoch = Epoch(
            self.order,
            number,
            self.loop,
            self.context,
            own_loop=self.own_loop,
            shared=Shared(self.pool, self.on_source_end),
        )
        self.live.append(epoch)  # first: what an interrupt leaves here is ended by a stop
        try:
            self.loop.call_soon_threadsafe(self.launch, epoch)
        except RuntimeError:
            self.live.remove(epoch)
            raise RunStateError(LOOP_CLOSED) from None
        self.begun += 1
        return epoch

    @property
    def more(self) -> bool:
        """Whether another pass may begin."""
        return self.n is None or self.begun < self.n

    def begin_ahead(self) -> None:
        """Begin the next pass if it is time; never more than two are in flight."""
        current = self.current
        if not self.overlap or self.closed or not self.more or self.ahead is not None:
            return
        if current is None or current.retired or current.handover.failed:
            return
        if current.engine.source_exhausted and all(epoch is current for epoch in self.live):
            self.ahead = self.begin(begin_pass(self.order))

    # The consumer's side

    def retire(self) -> Epoch | None:
        """End the current pass; return it if its end has to be waited for."""
        epoch = self.current
        if epoch is None:
            return None
        if epoch.ended_well:
            # Where the next has not begun ahead, something of this one is still to end: a source that
            # was stopped, or an op that is being left.
            done = self.ahead is not None or not self.more or epoch.ended.done()
            return None if done else epoch
        epoch.retired = True
        epoch.handover.closed_because = SUPERSEDED
        epoch.close()
        return epoch

    def take(self) -> Epoch | None:
        """Return the next pass, ``None`` after the last.

        Raises:
            RunStateError: the series is closed, or its loop is.
        """
        if self.forked:
            raise RunStateError(self.forked)
        with self.lock:
            if self.closed:
                raise RunStateError(EPOCHS_LEFT)
            if self.ahead is None:
                if not self.more:
                    return None
                self.ahead = self.begin(begin_pass(self.order))
            self.current, self.ahead = self.ahead, None
            self.begin_ahead()
            return self.current

    def close(self) -> None:
        """Ask all passes to stop, and tell whoever waits for a result.

        Raises:
            RunStateError: they run in the process of which this one is a fork.
        """
        if self.forked:
            raise RunStateError(self.forked)
        self.closed = True
        for epoch in self.known():
            if not epoch.retired:
                epoch.handover.closed_because = EPOCHS_LEFT
            epoch.close()
        self.post(self.request_stop)

    def stop(self) -> None:
        """Ask all passes to stop, from a finalizer: takes no lock, runs no user code."""
        if self.forked:
            return
        self.closed = True
        for epoch in self.known():
            epoch.handover.closed_because = EPOCHS_LEFT
            epoch.engine.halt_threads()
        self.post(self.request_stop)

    def known(self) -> list[Epoch]:
        """Return the live passes and the current one; from any thread."""
        current = self.current
        live = list(self.live)
        return live if current is None or current in live else [*live, current]

    def post(self, work: Callable[[], None]) -> None:
        """Have the loop call something; it may be closed."""
        try:
            self.loop.call_soon_threadsafe(work)
        except RuntimeError:  # the loop is closed
            pass

    # On the loop

    def launch(self, epoch: Epoch) -> None:
        """Start a pass that has begun."""
        if epoch not in self.live:  # a stop has overtaken it
            return
        if self.closed:
            self.never_launched(epoch)
            return
        others = [other for other in self.live if other is not epoch]
        current = self.current
        if not others and current is not None and current is not epoch and current.handover.waits:
            others = [current]  # it has ended, but not for its consumer
        epoch.engine.before = others[0].engine if others else None
        epoch.task = task = self.loop.create_task(
            epoch.engine.supervise(),
            name=f"spdl_async: {self.name}, epoch {epoch.epoch}",
            context=self.context,
        )
        epoch.ends_with(task)
        task.add_done_callback(functools.partial(self.left, epoch))

    def never_launched(self, epoch: Epoch) -> None:
        """End a pass that was made and will not be started."""
        epoch.handover.close()
        epoch.ended.set_result(None)
        self.live.remove(epoch)
        self.changed.set()

    def left(self, epoch: Epoch, task: asyncio.Task[None]) -> None:
        """Hear that a pass has ended."""
        del task  # seen by the pass itself
        self.live.remove(epoch)
        if epoch.engine.let_go:
            self.stuck.append(epoch.engine)
        self.changed.set()
        self.on_source_end()

    def on_source_end(self) -> None:
        """Begin the next pass if it is time."""
        with self.lock:
            self.begin_ahead()

    def request_stop(self) -> None:
        """Stop every pass."""
        self.closed = True
        for epoch in self.live[:]:
            if epoch.task is None:
                self.never_launched(epoch)
            else:
                epoch.engine.request_stop()
        current = self.current
        if current is not None and not current.ended_well and not self.exiting:
            current.handover.close()  # it may have ended, with results that nobody has taken
        self.changed.set()

    async def supervise(self) -> None:
        """Wait until the series is closed and its passes have ended; then end the threads."""
        torn_down = False
        try:
            while self.live or not self.closed:
                try:
                    await self.changed.wait()
                except asyncio.CancelledError:
                    if torn_down:
                        break
                    torn_down = True  # by the end of the loop, which has cancelled the passes too
                    self.request_stop()
            self.pool.shutdown(wait=False)
            if not self.live and not self.stuck:
                await join_all(self.pool.threads, None)
        finally:
            self.end()
        if torn_down:
            raise asyncio.CancelledError

    def end(self) -> None:
        """Settle what is left; the last thing that the supervisor does."""
        with self.lock:
            self.closed = True
            # A run that somebody keeps must not keep the others alive.
            self.current = self.ahead = None
        self.pool.shutdown(wait=False)
        for epoch in self.live[:]:
            if epoch.task is None:
                self.never_launched(epoch)
        self.let_go = bool(self.live or self.stuck)
        if not self.let_go:
            registry.discard(self)

    def is_asked_from_inside(self) -> bool:
        return any(engine.is_asking() for engine in self.engines())

    # For the end of the interpreter, and for forks

    def leave_in_fork(self, parent: int) -> None:
        """Take no further part in a child process: these runs are the parent's."""
        self.lock = threading.Lock()  # the parent may hold the one before
        self.closed = True
        self.forked = (
            f"these epochs of pipeline {self.name!r} belong to process {parent}, of which this one is a "
            f"fork without its threads; build and run a pipeline here"
        )
        for epoch in self.known():
            epoch.engine.leave_in_fork(parent)

    def post_exit(self) -> None:
        """Ask for a stop because the interpreter ends: whoever waits for results may go on waiting."""
        self.closed = self.exiting = True
        for epoch in self.live[:]:
            epoch.engine.post_exit()
        self.post(self.request_stop)
        if not self.loop.is_running():
            self.pool.shutdown(wait=False)

    def engines(self) -> list[Engine]:
        """Return the engines that may still run."""
        return [epoch.engine for epoch in self.live[:]] + self.stuck

    def at_work(self) -> bool:
        """Tell whether a thread has work, as opposed to waiting for some."""
        return self.pool.busy or any(engine.at_work() for engine in self.engines())

    def threads(self) -> list[threading.Thread]:
        """Return the threads that have not ended."""
        shared = [self.loop_thread, *self.pool.threads]
        own = [thread for engine in self.engines() for thread in engine.threads()]
        return [thread for thread in shared if thread is not None and thread.is_alive()] + own

    def report(self) -> str:
        """Say what still runs: stage, item, stack."""
        return "\n".join(engine.report() for engine in self.engines()) or NOTHING_RUNS
