"""A user's aggregator: its calls run in a thread, one at a time and in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from time import perf_counter as clock
from typing import Any

from spdl_async._plan.steps import AGGREGATE_WINDOW
from spdl_async._runtime.asking import consult
from spdl_async._runtime.batch_step import batch_of, shorten
from spdl_async._runtime.budget import Budget
from spdl_async._runtime.channel import Channel, Outlet
from spdl_async._runtime.failures import Judge, caught
from spdl_async._runtime.hop import QUANTUM, SHARE_SECONDS, BaseHop
from spdl_async._runtime.hopping_step import HoppingStep
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.notes import has_notes, notes_of
from spdl_async._runtime.pace import Pace
from spdl_async._runtime.step import Host, Step, guarded
from spdl_async._runtime.ticket import Item, OpFailure
from spdl_async.spec.aggregator import Gathered
from spdl_async.spec.markers import DROP
from spdl_async.statistics import StageStatistics

# (the item, ``None`` for the flush; the outputs; what went wrong)
Outcome = tuple[Item | None, list[Any], OpFailure | None]


class AggregateHop(BaseHop):
    """Feeds the aggregator with what is in the inbox; ``None`` there means flush."""

    __slots__ = ("busy", "calls")

    step: AggregateStep

    def __init__(self, step: AggregateStep) -> None:
        super().__init__(step)
        self.busy = 0.0
        self.calls = 0

    def busy_now(self) -> float:
        return self.busy

    def drain(self) -> bool:
        step = self.step
        start = announced = now = clock()
        share = 0
        while not step.halted:
            try:
                item = step.inbox.popleft()
            except IndexError:
                break
            self.item = item
            outcome = self.call(item)
            before, now = now, clock()
            self.busy += now - before
            self.calls += 1
            self.note_pace(now - before)
            step.outcomes.append(outcome)
            share += 1
            if share >= step.share or now - announced > SHARE_SECONDS:
                share = 0
                announced = now
                step.note_statistics()
                step.wake()
            if now - start > QUANTUM and step.line.crowded and step.inbox and not step.halted:
                step.wake()
                return self.requeue()
        if share:  # not noted since
            step.note_statistics()
        return False

    def call(self, item: Item | None) -> Outcome:
        """Call the aggregator once."""
        step = self.step
        try:
            if step.aggregator is None:
                step.aggregator = step.make()
                step.has_notes = has_notes(step.aggregator)
                step.exact = getattr(step.aggregator, "tells_members", False)
            if item is None or item is step.tick:
                outputs = list(step.aggregator.flush() or ())
                step.note_statistics()  # before the last results can be seen
            else:
                value, item.value = item.value, None
                outputs = list(step.aggregator.accumulate(value) or ())
        except BaseException as error:  # noqa: BLE001 -- the stage's policy decides, on the loop
            failure = caught(error, brief=step.judges[0].log.full)
            if step.judges[0].ends(failure):
                step.halted = True
            return item, [], failure
        return item, outputs, None


def members_of(value: Any, held: dict[int, Item]) -> tuple[list[Item], Any]:
    """Take the items of an output out of those that are held; return them and a plain list."""
    if type(value) is not Gathered:
        members = list(held.values())
        held.clear()
        return members, value
    found = (held.pop(number, None) for number in value.numbers)
    return [item for item in found if item is not None], list(value)


class AggregateStep(HoppingStep):
    """Gathers items by an :class:`~spdl_async.Aggregator`.

    What comes out belongs to every item accepted since the last output.
    """

    tick: Item | None = None  # in the inbox, asks for a flush before the end

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        make: Callable[[], Any],
        *,
        drop_last: bool,
        executor: Executor | None,
        judge: Judge,
        meter: Meter,
    ) -> None:
        super().__init__(
            host,
            source,
            out,
            concurrency=1,
            executor=executor,
            ordered=True,
            pace=Pace(AGGREGATE_WINDOW, AGGREGATE_WINDOW),
            judges=[judge],
            meters=[meter],
        )
        self.make = make
        self.aggregator: Any = None
        self.has_notes = False
        self.exact = False
        self.accepted_in_all = 0
        self.by_number: dict[int, Item] = {}
        self.drop_last = drop_last
        self.outcomes: deque[Outcome] = deque()
        self.members: list[Item] = []
        self.last_members: list[Item] = []
        self.consulting = False
        self.flushed = drop_last  # with drop_last there is nothing to wait for at the end

    def note_statistics(self) -> None:
        """Ask the aggregator what it has to say about itself; between its calls, in their thread."""
        if self.has_notes:
            self.meters[0].notes = notes_of(self.aggregator)

    def take_over(self, before: Step) -> None:
        """Share nothing: the aggregator is this pass's own."""

    gathering = True

    def new_gate(self, budget: Budget) -> None:
        """Return nothing: what is gathered was there before."""

    @property
    def occupied(self) -> bool:  # type: ignore[override]
        return self.consulting or not self.quiet

    def new_hop(self) -> AggregateHop:
        return AggregateHop(self)

    def use_call(self, at: int, call: Callable[..., Any]) -> None:  # noqa: ARG002 -- it has one
        self.make = call

    def begin(self, items: list[Item]) -> None:
        self.held.clear()  # order needs no window here: calls are made one after the other
        self.inbox.extend(items)
        if not self.halted:
            self.dispatch()
            self.arm()

    def finish_input(self) -> None:
        if self.inp.failure is None and not self.flushed:
            self.inbox.append(None)
            self.dispatch()
        else:
            self.flushed = True

    def after_taken(self, count: int) -> None:  # noqa: ARG002 -- any number is room
        self.advance_soon()  # outputs wait for room, not items: those left with their outcome

    @guarded
    def advance(self) -> None:
        self.advancing = False
        if self.closed:
            return
        while self.outcomes and self.fatal is None and not self.untaken and not self.consulting:
            item, values, bad = self.outcomes[0]
            if bad is not None and self.asks and self.ask_about(item, bad):
                return
            self.outcomes.popleft()
            self.settle_outcome(item, values, bad)
        if self.fatal is not None:
            self.end_with(self.fatal)
        elif self.input_ended and self.flushed and not self.accepted:
            self.closed = True
            self.drop_tail()
            self.out.close(self.inp.failure or self.verdict_at_end())

    def ask_about(self, item: Item | None, failure: OpFailure) -> bool:
        """Ask the user's function about a failure; ``True`` while the answer is waited for."""

        def answered() -> None:
            self.consulting = False
            self.advance_soon()

        about = self.tail() if item is None else item
        self.consulting = consult(self, self.judges[0], about, failure, answered)
        return self.consulting

    def settle_outcome(self, item: Item | None, values: list[Any], bad: OpFailure | None) -> None:
        """Settle one call and hand on what came of it."""
        judge, meter = self.judges[0], self.meters[0]
        if bad is not None:
            self.fail(item, bad)
        else:
            if item is not None:
                judge.count_calls(1)
                self.join(item)
            else:
                judge.count_flush()
            kept = [value for value in values if value is not DROP]
            if len(kept) < len(values):
                meter.dropped += len(values) - len(kept)
                self.host.saw_drop()
            if kept:
                self.emit(self.wrap(kept))
            if self.by_call and self.fatal is None:
                self.fatal = judge.over_budget()
        if self.budget is not None:
            self.budget.look()
        if item is None:
            self.flushed = True
        else:
            self.accepted -= 1
            meter.queue = self.accepted
            self.room.set()

    def fail(self, item: Item | None, failure: OpFailure) -> None:
        """Apply the policy: a failure of ``accumulate`` concerns its item, of ``flush`` the tail."""
        judge, meter = self.judges[0], self.meters[0]
        judge.count_calls(1)
        meter.failed += 1
        if item is None:
            tail = self.tail()
            self.drop_tail()
            self.fatal = judge.verdict(tail, failure)
        else:
            self.fatal = judge.verdict(item, failure)
            self.host.ledger.release(item)

    def join(self, item: Item) -> None:
        """Let an item belong to the next output, or to the one that says so."""
        if self.exact:
            self.by_number[self.accepted_in_all] = item
            self.accepted_in_all += 1
            return
        self.members.append(item)
        shorten(self.members, self.host.ledger)

    def wrap(self, values: list[Any]) -> list[Item]:
        """Make items of outputs; the first takes the members, the others share them."""
        if self.exact:
            return [self.wrap_exact(value) for value in values]
        members = self.members
        if members:
            self.members = []
            self.last_members = members
        else:  # outputs of a flush that come after all items have left
            members = self.last_members
            for member in members:
                self.host.ledger.adopt(member, 1)
        items = [batch_of(members, values[0])]
        for value in values[1:]:
            for member in members:
                self.host.ledger.adopt(member, 1)
            items.append(batch_of(members, value))
        return items

    def wrap_exact(self, value: Any) -> Item:
        """Make an item of an output that says which items it is made of."""
        members, value = members_of(value, self.by_number)
        shorten(members, self.host.ledger)
        return batch_of(members, value)

    def tail(self) -> Item:
        """Return what stands for the items that no output took along, as one item."""
        return batch_of(self.members or list(self.by_number.values()), None)

    def drop_tail(self) -> None:
        """Account for items that no output took along."""
        for member in self.by_number.values():
            self.meters[0].dropped += 1
            self.host.ledger.release(member)
        self.by_number.clear()
        for member in self.members:
            self.host.ledger.release(member)
        self.members = []

    def collect_hop(self, hop: BaseHop) -> None:
        if isinstance(hop, AggregateHop):
            self.meters[0].busy += hop.busy
            self.meters[0].calls += hop.calls
            hop.busy = 0.0
            hop.calls = 0
            hop.future = None

    def unreached_failures(self) -> None:
        for item, _, failure in self.outcomes:
            if failure is not None and item is not None:
                self.judges[0].note(item, failure)
        self.outcomes.clear()

    def statistics(self) -> list[StageStatistics]:
        return [self.meters[0].snapshot(sum(hop.busy_now() for hop in self.hops))]
