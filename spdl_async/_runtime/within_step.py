"""Gathering with a limit on how long the first item of a batch waits (``aggregate(within=)``).

One timer a stage, armed only while a batch is open. A timer that finds a later batch open than the
one that it was armed for is armed again for that one, so a fast stage pays for a timer once in
``within`` seconds, not once a batch.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable
from typing import Any

from spdl_async._runtime.aggregate_step import AggregateStep
from spdl_async._runtime.batch_step import BatchStep
from spdl_async._runtime.step import guarded
from spdl_async._runtime.ticket import NO_ITEM, Item, OpFailure


class BatchTimer:
    """When the open batch is to leave; ``on_due`` is called then, on the loop."""

    __slots__ = ("_armed_for", "_at", "_due", "_loop", "_timer")

    def __init__(self, loop: AbstractEventLoop, due: Callable[[], None]) -> None:
        self._loop = loop
        self._due = due
        self._at: float | None = None
        self._armed_for = 0.0
        self._timer: TimerHandle | None = None

    def set(self, at: float | None) -> None:
        """Set it in the loop's time, or ``None`` where nothing waits."""
        self._at = at
        if at is not None and self._timer is None:
            self._arm(at)

    def cancel(self) -> None:
        """Let go of the timer."""
        self._at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at: float) -> None:
        self._armed_for = at
        self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        at = self._at
        if at is None:
            return
        # The numbers are compared, not the clock: a timer may fire a clock tick early.
        if at != self._armed_for:
            self._arm(at)
            return
        self._at = None
        self._due()


class TimedBatchStep(BatchStep):
    """Lists of ``size`` items, shorter ones where the first item has waited ``within`` seconds."""

    eager = True  # its time runs

    def __init__(self, *arguments: Any, within: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.within = within
        self.deadline = BatchTimer(self.host.loop, self.on_due)

    def stop(self) -> None:
        super().stop()
        self.deadline.cancel()

    def accept(self, items: list[Item]) -> bool:
        begins = super().accept(items)
        if begins:
            self.batch_due = False
            self.deadline.set(self.host.loop.time() + self.within if self.values else None)
        return begins

    @guarded
    def on_due(self) -> None:
        """Emit the open batch; where there is no room it goes on filling until there is."""
        if self.untaken < self.ahead:
            self.emit_open()
        else:
            self.batch_due = True

    def finish(self) -> None:
        self.deadline.cancel()
        super().finish()


class TimedAggregateStep(AggregateStep):
    """A user's aggregator that is flushed when an item has waited ``within`` seconds in it.

    What an aggregator of the user's holds only it knows. After an output the item that brought it about
    may be still in it, so its time runs on; a flush that finds nothing does no harm. Those of ours
    tell: there it is the item that is held longest whose time counts.
    """

    def __init__(self, *arguments: Any, within: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.within = within
        self.deadline = BatchTimer(self.host.loop, self.on_due)
        self.tick = Item(None, -1, NO_ITEM, None, (), ())
        self.arrivals: deque[float] = deque()
        self.arrived: dict[int, float] = {}  # of items by number, where the aggregator tells those
        self.waits = False  # a deadline is set, or its flush is on its way
        self.ticking = False
        self.ends_with_flush = False

    def begin(self, items: list[Item]) -> None:
        now = self.host.loop.time()
        self.arrivals.extend([now] * len(items))
        super().begin(items)

    def finish_input(self) -> None:
        self.deadline.cancel()
        self.ends_with_flush = self.inp.failure is None and not self.drop_last
        if self.ends_with_flush:
            self.inbox.append(None)
            self.dispatch()
        self.flushed = not (self.ends_with_flush or self.ticking)

    def stop(self) -> None:
        super().stop()
        self.deadline.cancel()

    @guarded
    def on_due(self) -> None:
        """Have the aggregator flushed, after the items that wait before it."""
        if not self.halted and not self.input_ended:
            self.ticking = True
            self.inbox.append(self.tick)
            self.dispatch()
            self.arm()

    def settle_outcome(self, item: Item | None, values: list[Any], bad: OpFailure | None) -> None:
        if item is self.tick:
            self.settle_flush(values, bad)
            return
        number = self.accepted_in_all
        super().settle_outcome(item, values, bad)
        if item is None:
            return
        arrived = self.arrivals.popleft()
        if self.input_ended or bad is not None:
            return
        if self.exact:
            self.arrived[number] = arrived
            self.follow_oldest()
        elif values or not self.waits:
            self.waits = True
            self.deadline.set(arrived + self.within)

    def follow_oldest(self) -> None:
        """Set the deadline by the item that is held longest."""
        arrived, held = self.arrived, self.by_number
        while arrived and (oldest := next(iter(arrived))) not in held:
            del arrived[oldest]
        if not self.ticking:
            self.deadline.set(arrived[oldest] + self.within if arrived else None)

    def settle_flush(self, values: list[Any], bad: OpFailure | None) -> None:
        """Settle a flush that the clock asked for; the data go on after it."""
        super().settle_outcome(None, values, bad)
        self.flushed = self.input_ended and not self.ends_with_flush
        self.ticking = self.waits = False
        self.deadline.set(None)
        if self.exact and not self.input_ended:
            self.follow_oldest()
