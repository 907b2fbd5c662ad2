"""Built-in steps on the loop that gather items and take them apart: aggregate, disaggregate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from spdl_async._plan.steps import FLATTEN_CHUNK
from spdl_async._runtime.asking import hear
from spdl_async._runtime.channel import Channel, Outlet, Signal
from spdl_async._runtime.failures import Judge
from spdl_async._runtime.meter import Meter, clock
from spdl_async._runtime.pace import SLICE_SECONDS, Pace
from spdl_async._runtime.step import Host, Step
from spdl_async._runtime.ticket import Item, Ledger, OpFailure
from spdl_async.spec.markers import DROP

MANY = 256
MOST = 1024
MAX_MEMBERS = 4096


def batch_of(members: Sequence[Item], value: Any) -> Item:
    """Return an item made of others, which keep their identity and lose their values."""
    if not members:  # an aggregator may have something to say at the end of no data
        return Item(value, -1, None, None, (), ())
    first = members[0]
    return first.child(value, first.path, members)


class BatchStep(Step):
    """Lists of ``size`` items, made on the loop."""

    puts_together = True
    gathering = True
    eager = False  # whether the first item of a batch must be known at once

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        *,
        size: int,
        bound: int,
        drop_last: bool,
        meter: Meter,
    ) -> None:
        super().__init__(host, source, out)
        self.size = size
        self.drop_last = drop_last
        self.room = Signal(host.loop)
        self.meters = [meter]
        self.pace = Pace(size, bound)
        self.members: list[Item] = []
        self.values: list[Any] = []
        self.batch_due = False  # the open batch is to leave as it is, as soon as there is room

    def start(self) -> None:
        self.launch(self.work(), "batches")

    def stop(self) -> None:
        super().stop()
        self.members, self.values = [], []

    def after_taken(self, count: int) -> None:  # noqa: ARG002 -- any number is room
        self.room.set()

    @property
    def ahead(self) -> int:
        """How many finished batches may wait for room."""
        return max(1, self.pace.window // self.size)

    async def work(self) -> None:
        """Fill batches until the input ends; a failure above leaves the open one unfinished."""
        inp, out, size, meter = self.inp, self.out, self.size, self.meters[0]
        resumed = clock()
        while True:
            if clock() - resumed > SLICE_SECONDS:  # big batches must not hold up the loop
                await asyncio.sleep(0)
                resumed = clock()
            ahead = max(1, self.pace.window // size)
            while self.untaken >= ahead:  # full batches wait: no other one is begun
                await self.room.wait()
            if self.batch_due:
                self.emit_open()
                continue
            began = clock()
            inp.quorum = 1 if self.eager else size - len(self.values)
            # As much as fills the batches that there is room for, at least one. A batch whose members
            # are shortened is filled exactly: they do not run parallel to its values.
            batches = 1 if size > MAX_MEMBERS else max(1, out.room() + ahead - 1 - self.untaken)
            wanted = size * batches - len(self.values)
            items = await inp.get_many(min(wanted, MOST))
            meter.waiting_input += clock() - began
            if not items:
                break
            meter.items_in += len(items)
            self.accept(items)
            del items
        self.finish()

    def accept(self, items: list[Item]) -> bool:
        """Put items into the open batch, emit what is full; tell whether another batch is open now."""
        size, meter = self.size, self.meters[0]
        begins = not self.values
        self.values += [item.value for item in items]
        for item in items:
            item.value = None
        self.members += items
        shorten(self.members, self.host.ledger)
        meter.peak = max(meter.peak, min(size, len(self.values)))
        if len(self.values) >= size:
            self.emit(cut(self.members, self.values, size))
            self.pace.look(meter.items_out * size, True)
            whole = len(self.values) // size * size
            self.members, self.values = self.members[whole:], self.values[whole:]
            begins = True
        meter.queue = len(self.values)
        return begins

    def emit_open(self) -> None:
        """Emit the open batch as it is."""
        self.batch_due = False
        members, self.members = self.members, []
        values, self.values = self.values, []
        self.meters[0].queue = 0
        self.emit([batch_of(members, values)])

    def finish(self) -> None:
        """Settle the last batch, and close."""
        meter, failure = self.meters[0], self.inp.failure
        meter.queue = 0
        if self.members and failure is None:
            if self.drop_last:
                meter.dropped += len(self.values)
                for item in self.members:
                    self.host.ledger.release(item)
            else:
                self.emit_open()
        self.members, self.values = [], []
        self.out.close(failure)


def shorten(members: list[Item], ledger: Ledger) -> None:
    """Keep of a very long list of members the first and the last; the others count as delivered.

    A million tickets behind one batch would cost more memory, and longer pauses for the garbage
    collector, than anybody's use of them is worth.
    """
    if len(members) > MAX_MEMBERS:
        for member in members[1:-1]:
            ledger.pass_load(member, members[0])
            ledger.release(member)
        del members[1:-1]


def cut(members: list[Item], values: list[Any], size: int) -> list[Item]:
    """Return the full batches; one that is just full takes the lists as they are."""
    if len(values) == size:
        return [batch_of(members, values)]
    return [
        batch_of(members[k : k + size], values[k : k + size])
        for k in range(0, len(values) // size * size, size)
    ]


class FlattenStep(Step):
    """The elements of lists and tuples, taken apart on the loop."""

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        *,
        opened: Callable[[Any], Any] | None,
        judge: Judge,
        meter: Meter,
    ) -> None:
        super().__init__(host, source, out)
        self.opened = opened
        self.judge = judge
        self.room = Signal(host.loop)
        self.meters = [meter]

    def start(self) -> None:
        self.launch(self.work(), "elements")

    def after_taken(self, count: int) -> None:  # noqa: ARG002 -- any number is room
        self.room.set()

    async def work(self) -> None:
        """Take apart one item after the other, in pieces that do not hold up the loop."""
        inp, out, meter = self.inp, self.out, self.meters[0]
        while True:
            while self.untaken:
                await self.room.wait()
            began = clock()
            items = await inp.get_many(FLATTEN_CHUNK)
            meter.waiting_input += clock() - began
            if not items:
                break
            meter.items_in += len(items)
            meter.peak = max(meter.peak, len(items))
            items.reverse()
            while items:  # taken out one by one: what is done must not be kept alive by this frame
                meter.queue = len(items)
                error = await self.flatten(items.pop())
                meter.queue = len(items)
                if error is not None:
                    self.host.cancel_above(self)
                    out.close(error)
                    return
        out.close(inp.failure or self.judge.at_end())

    async def flatten(self, item: Item) -> BaseException | None:
        """Emit one item's elements; return what ends the run."""
        value, item.value = item.value, None
        meter = self.meters[0]
        self.judge.count_calls(1)
        if self.opened is not None:
            value = self.opened(value)
        if not isinstance(value, (list, tuple)):
            meter.failed += 1
            failure = OpFailure(*not_a_list(value))
            answer = self.judge.ask(item, failure)
            if answer is not None:
                await hear(self, self.judge, answer, item, failure)
            error = self.judge.verdict(item, failure)
            if error is None:
                self.host.ledger.release(item)
            return error
        self.host.ledger.free(item)  # its elements count for themselves now
        members = item.members
        known = members is not None and len(members) == len(value)
        left = len(value)
        for start in range(0, len(value), MANY):
            part = value[start : start + MANY]
            if known and members is not None:
                # New items with the members' identity: the same members may stand behind several lists.
                children = [
                    member.child(element, member.path, member.members)
                    for member, element in zip(members[start : start + MANY], part, strict=True)
                ]
            else:
                self.host.ledger.adopt(item, len(part))
                children = [
                    item.child(element, (*item.path, start + k), members)
                    for k, element in enumerate(part)
                ]
            kept = [child for child in children if child.value is not DROP]
            for child in children:
                if child.value is DROP:
                    meter.dropped += 1
                    self.host.saw_drop()
                    self.host.ledger.release(child)
            if kept:
                self.emit(kept)
            left -= len(part)
            del children, kept, part
            while left and self.untaken:
                await self.room.wait()
            if left:
                await asyncio.sleep(0)
        if not known:
            self.host.ledger.release(item)
        return self.judge.over_budget()


def not_a_list(value: Any) -> tuple[BaseException, str]:
    """Return the error for an item that disaggregate cannot take apart, and its text."""
    error = TypeError(
        f"disaggregate: an item is a {type(value).__name__}, not a list or tuple; to take other "
        f"iterables apart use expand(lambda x: x)"
    )
    return error, f"TypeError: {error}\n"
