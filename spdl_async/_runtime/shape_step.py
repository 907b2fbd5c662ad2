"""Built-in steps on the loop that choose, number and reorder items.

They do no work worth running ahead for, so they ask for as many items as the next step waits for,
and hold nothing (the shuffle: its buffer).
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from typing import Final

from spdl_async._runtime.channel import Channel, Outlet, Signal
from spdl_async._runtime.meter import Meter, clock
from spdl_async._runtime.pace import SLICE_SECONDS
from spdl_async._runtime.step import Host, Step
from spdl_async._runtime.ticket import Item

MANY: Final = 256

Draw = Callable[[], float]  # a number of at least 0, below 1


class RelayStep(Step):
    """Asks the step above for what the one below waits for."""

    keeps_values = True

    def __init__(self, host: Host, source: Channel, out: Outlet, *, meter: Meter) -> None:
        super().__init__(host, source, out)
        self.meters = [meter]
        self.demand = Signal(host.loop)
        self.resumed = 0.0
        out.on_demand = self.demand.set

    def start(self) -> None:
        self.launch(self.work(), "items")

    async def work(self) -> None:
        """Relay until the input ends."""
        while items := await self.take_in(await self.room_below()):
            passed = self.relay(items)
            if passed:
                self.emit(passed)
            del items, passed  # what is handed on must not be kept alive by this frame
        self.out.close(self.inp.failure)

    def relay(self, items: list[Item]) -> list[Item]:
        """Return what becomes of items."""
        raise NotImplementedError

    async def room_below(self) -> int:
        """Return for how many items the next step waits, a slice's worth at most."""
        await self.breathe()
        while (room := self.out.room()) <= 0:
            await self.demand.wait()
            self.resumed = clock()
        return min(room, MANY)

    async def breathe(self) -> None:
        """Let the loop's other callbacks run, after a slice."""
        if clock() - self.resumed > SLICE_SECONDS:
            await asyncio.sleep(0)
            self.resumed = clock()

    async def take_in(self, most: int) -> list[Item]:
        """Return up to ``most`` items of the step above, none at the end."""
        meter, inp = self.meters[0], self.inp
        inp.quorum = min(most, self.out.quorum)
        began = clock()
        items = await inp.get_many(most)
        meter.waiting_input += clock() - began
        meter.items_in += len(items)
        return items


class TakeStep(RelayStep):
    """The first ``count`` items; with the last of them it ends what is above."""

    def __init__(
        self, host: Host, source: Channel, out: Outlet, *, count: int, meter: Meter
    ) -> None:
        super().__init__(host, source, out, meter=meter)
        self.left = count

    def start(self) -> None:
        if self.left:
            super().start()
        else:  # the steps above are started, but none of their tasks has run yet
            self.host.cancel_above(self)
            self.out.close()

    async def work(self) -> None:
        """Relay until there are enough, or the input ends."""
        while self.left:
            room = await self.room_below()
            items = await self.take_in(min(room, self.left))
            if not items:
                self.out.close(self.inp.failure)
                return
            self.left -= len(items)
            if not self.left:
                self.host.cancel_above(self)
            self.emit(items)
            del items
        self.out.close()


class SkipStep(RelayStep):
    """All but the first ``count`` items."""

    def __init__(
        self, host: Host, source: Channel, out: Outlet, *, count: int, meter: Meter
    ) -> None:
        super().__init__(host, source, out, meter=meter)
        self.left = count

    async def work(self) -> None:
        """Drop the first ones whether or not anybody waits, then relay."""
        meter, ledger = self.meters[0], self.host.ledger
        while self.left:
            await self.breathe()
            items = await self.take_in(min(self.left, MANY))
            if not items:
                break
            self.left -= len(items)
            meter.dropped += len(items)
            for item in items:
                item.value = None
                ledger.release(item)
            del items
        await super().work()

    def relay(self, items: list[Item]) -> list[Item]:
        return items


class EnumerateStep(RelayStep):
    """(number, item) of each item, which counts as large as the item."""

    def __init__(
        self, host: Host, source: Channel, out: Outlet, *, start: int, meter: Meter
    ) -> None:
        super().__init__(host, source, out, meter=meter)
        self.number = start

    def relay(self, items: list[Item]) -> list[Item]:
        for number, item in enumerate(items, self.number):
            item.value = (number, item.value)
        self.number += len(items)
        return items


class ShuffleStep(RelayStep):
    """A random order within a buffer.

    The next number is drawn when an item leaves, so the order is a function of the key, the epoch and
    the order of arrival: sizes of chunks, speed and waiting take no part.
    """

    gathering = True

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        *,
        size: int,
        key: str,
        epoch: int,
        meter: Meter,
    ) -> None:
        super().__init__(host, source, out, meter=meter)
        self.size = size
        self.draw = generator(key, epoch).random
        self.buffer: list[Item] = []

    async def work(self) -> None:
        """Fill the buffer, exchange its items for those that come, empty it at the end."""
        await self.fill()
        while items := await self.take_in(await self.room_below()):
            exchange(self.buffer, items, self.draw)
            self.emit(items)
            del items
        buffer, meter = self.buffer, self.meters[0]
        while buffer:
            room = min(await self.room_below(), len(buffer))
            self.emit([draw_one(buffer, self.draw) for _ in range(room)])
            meter.queue = len(buffer)
        # What came before a failure above is complete: it is handed on like everything else.
        self.out.close(self.inp.failure)

    async def fill(self) -> None:
        """Take in as many items as the buffer holds."""
        buffer, meter = self.buffer, self.meters[0]
        while len(buffer) < self.size:
            await self.breathe()
            items = await self.take_in(min(self.size - len(buffer), MANY))
            if not items:
                return
            buffer += items
            meter.queue = meter.peak = len(buffer)

    def unreached_failures(self) -> None:
        self.buffer.clear()  # nobody wants these items any more; the run's statistics outlive it


def generator(key: str, epoch: int) -> random.Random:
    """Return the source of randomness of a stage in an epoch; the same in every process."""
    digest = hashlib.sha256(f"{key}/{epoch}".encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


def exchange(buffer: list[Item], items: list[Item], draw: Draw) -> None:
    """Put each item into the place of a random one of the buffer, which takes its place."""
    size = len(buffer)
    for k, item in enumerate(items):
        at = int(draw() * size)
        items[k], buffer[at] = buffer[at], item


def draw_one(buffer: list[Item], draw: Draw) -> Item:
    """Take a random item out of the buffer."""
    at = int(draw() * len(buffer))
    buffer[at], buffer[-1] = buffer[-1], buffer[at]
    return buffer.pop()
