"""The window of the 1→1 steps: what a step has accepted and the next one has not taken."""

from __future__ import annotations

from asyncio import Task
from collections import deque

from spdl_async._runtime.asking import ask_about
from spdl_async._runtime.channel import Channel, Outlet, Signal
from spdl_async._runtime.failures import Judge
from spdl_async._runtime.gates import InputGate
from spdl_async._runtime.host import Host
from spdl_async._runtime.meter import Meter, clock
from spdl_async._runtime.pace import Pace
from spdl_async._runtime.step import Step, guarded
from spdl_async._runtime.ticket import DONE, DROPPED, FAILED, GONE, PENDING, Item, OpFailure


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
        self.gate: InputGate | None = None
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
            if self.gate is None:
                self.begin(items)
            else:
                self.gate.offer(items)
        if self.gate is not None:
            await self.gate.all_begun()
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
        before = self.unfinished
        ready = self.collect()
        if ready:
            self.unfinished -= len(ready)
            self.emit(ready)
        if self.gate is not None:
            self.gate.finished(before - self.unfinished)
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

    def let_go(self) -> None:
        super().let_go()
        self.feeder = None  # its frame holds what it took last
        self.fatal = None  # and so do those of a failure

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
        if self.around is not None:
            item.at = GONE
            self.around.gone()
        return True

    def after_taken(self, count: int) -> None:
        """Account for items that left the window."""
        self.accepted -= count
        self.meters[0].queue = self.accepted
        self.room.set()
