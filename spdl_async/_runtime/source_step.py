"""Reading the source.

A sync iterable is pulled in a thread of its own, outside the pool, so a source that blocks holds
up nobody. The loop grants credit; the thread pulls as far as it reaches. Items are visible to the
loop as soon as they are pulled; only the wake-ups are coalesced while the source is fast. An async
iterable is read by a task on the loop, which also closes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter
from time import perf_counter as clock
from typing import Any

from spdl_async._plan.steps import MAX_CHUNK, MergePlan, SourcePlan, sources_of
from spdl_async._runtime.asking import hear
from spdl_async._runtime.budget import Budget
from spdl_async._runtime.channel import Outlet, Signal
from spdl_async._runtime.deadline import stack_of_error, time_over
from spdl_async._runtime.failures import Judge, caught, note_once
from spdl_async._runtime.gates import Gate
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.pace import Pace
from spdl_async._runtime.puller import Puller
from spdl_async._runtime.source_on_loop import read_async
from spdl_async._runtime.step import Host, Step, guarded
from spdl_async._runtime.ticket import (
    DROPPED,
    FAILED,
    KEPT_TYPES,
    NO_ITEM,
    Item,
    OpFailure,
    kept_source,
)
from spdl_async.spec.markers import DROP
from spdl_async.statistics import StageStatistics

FLOOR = 2  # one item on its way to the loop, one being made
FAILURES_IN_A_ROW = 100
IN_A_ROW = f"spdl_async: the source failed {FAILURES_IN_A_ROW} times in a row"
ENDED_AFTER = "spdl_async: the source ended right after it had failed"
MOST_PULLED = 32  # under a byte budget: asked for before the loop has seen how large they are

state_of = attrgetter("state")


def left_unread(source: SourcePlan) -> Callable[[], None] | None:
    """Return what tells a source that its run has ended, in case that never began to read it."""
    given = source.source
    return given.left_unread if hasattr(type(given), "left_unread") else None


def tell_unread(source: SourcePlan | MergePlan) -> None:
    """Tell the sources of a chain that is not read that this run has ended for them."""
    for each in sources_of(source):
        if (tell := left_unread(each)) is not None:
            tell()


class SourceStep(Step):
    """Reads one source; ``open_source`` returns its iterable, or raises.

    Called with another function, it takes the iterable from that.
    """

    def __init__(
        self,
        host: Host,
        out: Outlet,
        open_source: Callable[..., Any],
        *,
        on_loop: bool,
        builtin: list[Any] | tuple[Any, ...] | range | None,
        judge: Judge,
        meter: Meter,
        thread_name: str,
        timeout: float | None = None,
    ) -> None:
        super().__init__(host, None, out)
        self.open_source = open_source
        self.on_loop = on_loop
        self.builtin = builtin
        self.judge = judge
        self.timeout = timeout
        self.meters = [meter]
        self.pace = Pace(FLOOR, MAX_CHUNK)
        self.pulled = 0
        self.left = 0
        self.opened = False
        self.exhausted = False
        self.values: Iterator[Any] = iter(())
        self.puller = Puller(self, thread_name)
        self.signal = Signal(host.loop)
        self.permits = 0
        self.in_a_row = 0
        self.first_in_a_row: BaseException | None = None

    def use_call(self, at: int, call: Callable[..., Any]) -> None:  # noqa: ARG002 -- it has one
        self.open_source = functools.partial(self.open_source, call)

    def new_gate(self, budget: Budget) -> Gate:
        return Gate(budget, self, self.permit, MOST_PULLED)

    def permit(self, number: int) -> None:
        """Read so many items more, which the budget has room for."""
        self.permits += number
        if self.builtin is not None:
            self.fill()
        elif self.puller.alive:
            self.puller.allow(self.puller.allowed + number)
        self.signal.set()

    def start(self) -> None:
        if self.builtin is None:
            self.launch(self.read(), "read")
        else:
            self.values = iter(self.builtin)
            self.out.on_demand = self.fill
            self.fill()

    @property
    def quiet(self) -> bool:
        return not self.puller.alive

    @property
    def at_rest(self) -> bool:
        """Whether nothing reads the source any more."""
        return self.quiet and all(task.done() for task in self.tasks)

    def stop(self) -> None:
        super().stop()
        self.puller.stop()

    def running(self) -> list[tuple[str, int, Item | None]]:
        thread = self.puller.ident
        return [(self.meters[0].name, thread, None)] if self.puller.alive else []

    async def read(self) -> None:
        """Read until the end or a failure that ends the run."""
        if not self.on_loop:
            error = await self.read_thread()
            if error is None and self.puller.for_loop is not None:
                error = await read_async(self, self.puller.for_loop)
        else:
            error = await read_async(self, None)
        self.end_data(error)

    def end_data(self, error: BaseException | None) -> None:
        """End the data; tell the engine where the source was read to its very end."""
        error = error or self.judge.at_end()
        if self.gate is not None:
            self.gate.close()
        self.out.close(error)
        if error is None and not self.halted:  # a stop makes the thread end early too
            self.exhausted = True
            self.host.source_ended()

    def accept(self, items: list[Item]) -> tuple[list[Item], BaseException | None]:
        """Settle failures among what was read; return the good items and what ends the run."""
        judge = self.judge
        if judge.budget.limit is None and not self.in_a_row and not any(map(state_of, items)):
            judge.count_calls(len(items))
            return items, None
        good: list[Item] = []
        for item in items:
            judge.count_calls(1)
            if item.state != FAILED:
                self.in_a_row = 0
                self.first_in_a_row = None
                if item.state == DROPPED:
                    self.meters[0].dropped += 1
                    self.host.saw_drop()
                else:
                    good.append(item)
                if judge.budget.limit is not None and (error := judge.over_budget()):
                    return good, error
                continue
            failure = item.value
            self.meters[0].failed += 1
            self.in_a_row += 1
            if self.first_in_a_row is None:
                self.first_in_a_row = failure.exception
            error = judge.verdict(item, failure)
            if error is None and self.in_a_row >= FAILURES_IN_A_ROW:
                error = self.first_in_a_row
                note_once(error, IN_A_ROW)
            if error is not None:
                return good, error
        return good, None

    async def judged(self, items: list[Item]) -> tuple[list[Item], BaseException | None, int]:
        """Do as :meth:`accept`, asking the user's function about failures, one after the other.

        What comes before such a failure is handed on at once; the last number says how many.
        """
        if self.judge.handler is None or not any(item.state == FAILED for item in items):
            return *self.accept(items), 0
        good: list[Item] = []
        early = 0
        for item in items:
            if item.state == FAILED:
                if good:
                    self.hand_on(good)
                    early += len(good)
                    good = []
                answer = self.judge.ask(item, item.value)
                if answer is not None:
                    await hear(self, self.judge, answer, item, item.value)
            more, error = self.accept([item])
            good += more
            if error is not None:
                return good, error, early
        return good, None, early

    def at_source_end(self) -> BaseException | None:
        """Return the failure that ended the source, where its end came right after one.

        A generator that has raised is finished: ``next`` then says that it ended, which is no
        proof that there was no more data.
        """
        error = self.first_in_a_row
        if error is not None and self.opened:
            note_once(error, ENDED_AFTER)
        return error

    # Sequences without user code

    @guarded
    def fill(self) -> None:
        """Read a list, tuple or range on the loop: that runs no user code, so it cannot block.

        Items are made when the next step asks for them, so the source itself holds none.
        """
        room = min(self.out.room(), MAX_CHUNK)
        if self.gate is not None:
            room = self.permitted(self.gate, room)
        if room <= 0 or self.halted:
            return
        began = clock()
        chunk = [
            Item(value, k, value if type(value) in KEPT_TYPES else kept_source(value))
            for k, value in enumerate(islice(self.values, room), self.pulled)
        ]
        count = len(chunk)
        self.pulled += count
        self.judge.count_calls(count)
        self.meters[0].busy += clock() - began
        kept = [item for item in chunk if item.value is not DROP]
        if len(kept) < count:
            self.meters[0].dropped += count - len(kept)
            self.host.saw_drop()
        if kept:
            self.hand_on(kept)
        if count < room:
            self.out.on_demand = None
            self.end_data(None)
        elif not kept:
            self.host.loop.call_soon(self.fill)  # nobody asks again for what was dropped

    def permitted(self, gate: Gate, room: int) -> int:
        """Return how much of the room may be filled now; ask for the rest."""
        permits, self.permits = self.permits, 0
        gate.finished(permits)
        if room > permits:
            gate.ask(room - permits)
        return min(room, permits)

    # Sync iterables

    def hand_on(self, items: list[Item]) -> None:
        """Give items to the next step."""
        meter, ledger = self.meters[0], self.host.ledger
        ledger.opened += len(items)
        self.host.note_peak()
        meter.items_in += len(items)
        self.emit(items)
        if self.builtin is None:
            meter.queue = self.untaken
            meter.peak = max(meter.peak, self.untaken)

    def after_taken(self, count: int) -> None:
        self.left += count
        if self.builtin is None:
            self.meters[0].queue = self.untaken
        if self.puller.alive:
            self.pace.look(self.left, self.puller.fast)
            self.give_credit(count)
        self.signal.set()

    def give_credit(self, left: int) -> None:
        """Let the thread pull as many items as have left, as far as the budget allows."""
        puller, gate = self.puller, self.gate
        if gate is None:
            puller.grant(left, self.pace.window)
        else:
            puller.left += left
            gate.ask(puller.left + self.pace.window - puller.allowed)

    async def read_thread(self) -> BaseException | None:
        """Hand on what the thread pulls; it gets credit again as items are taken."""
        puller, gate = self.puller, self.gate
        if gate is not None:
            puller.allowed = 0
        puller.start()
        if gate is not None:
            self.give_credit(0)
        while True:
            items = puller.take()
            if items:
                if gate is not None:
                    gate.finished(len(items))
                good, error, early = await self.judged(items)
                if good:
                    self.hand_on(good)
                if error is not None:
                    puller.stop()
                    return error
                lost = len(items) - len(good) - early
                if lost:
                    self.give_credit(lost)
                del items, good
            elif puller.finished:
                if puller.buffer:
                    continue
                return None if puller.for_loop is not None else self.at_source_end()
            else:
                await self.signal.wait()

    def overdue_item(self, item: Item, error: BaseException) -> OpFailure:
        """Return the failure of a source that took too long for an item."""
        return time_over(self.meters[0].name, item, self.timeout or 0.0, stack_of_error(error))

    def failed_item(self, error: BaseException) -> Item:
        """Return an item that carries a failure of the source."""
        item = Item(caught(error), self.pulled, NO_ITEM)
        item.state = FAILED
        return item

    def failed_to_open(self, error: BaseException) -> BaseException:
        """Record that the source could not be opened, which no policy skips."""
        if self.asked_to_stop(error):
            raise error
        item = self.failed_item(error)
        failure: OpFailure = item.value
        self.judge.note(item, failure)
        return failure.exception

    def unreached_failures(self) -> None:
        for item in self.puller.buffer:
            if item.state == FAILED:
                self.judge.note(item, item.value)
        self.puller.buffer.clear()

    def statistics(self) -> list[StageStatistics]:
        return [self.meters[0].snapshot(self.puller.busy)]
