"""The byte budget of a run: ``build(max_bytes=)``.

Every value that a step hands on is measured, and counts until the consumer has taken it or it was
dropped, or until something was made of it. Before a call is begun (or a source asked for an item)
its step *asks*; it is let go when the largest result that the step has had so far fits beside what is
held and what other calls may still make. Steps further down ask first, since they make room.

So the only way over the budget is a result that is larger than all that its step had before; at first
few calls run at once, until it is known how large the results are. And a
run cannot get stuck: where nothing runs, the consumer has nothing to take and somebody asks all the
same, one call is let go beyond the budget. That is how an item larger than the budget passes, alone,
and how a batch is filled. Where one batch alone is larger than the budget it never fits: an error.

The passes of ``epochs()`` share one budget: the younger sees what the older holds, and never goes
beyond the budget itself while the older is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from spdl_async._plan.routing import Routed
from spdl_async._runtime.channel import Channel, Outlet
from spdl_async._runtime.failures import note_once
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.ticket import Item, Ledger, where_is
from spdl_async.errors import BudgetError
from spdl_async.spec.sizes import SizeOf, bytes_text, estimate_bytes
from spdl_async.statistics import ByteStatistics

if TYPE_CHECKING:
    from spdl_async._runtime.bridge import Sink
    from spdl_async._runtime.engine import Engine
    from spdl_async._runtime.gates import Gate
    from spdl_async._runtime.step import Step

TURNS: Final = 4
"""Turns of the loop without any change after which a run that waits counts as stuck."""


class Load:
    """The bytes of an item, and the stage that they are counted for."""

    __slots__ = ("bytes", "meter")

    def __init__(self, number: int, meter: Meter) -> None:
        self.bytes = number
        self.meter = meter


class Budget(Ledger):
    """The ledger of a run that also counts bytes, and lets calls begin.

    Attributes:
        held: bytes of all values in flight.
        peak_bytes: the most that were held.
        overdrawn: how often something was begun although the budget was spent.
        older, younger: the budgets of the passes that share the memory.
    """

    def __init__(self, engine: Engine, limit: int, size_of: SizeOf) -> None:
        super().__init__()
        self.engine = engine
        self.limit = limit
        self.size_of = size_of
        # What stands for a batch on a device knows its size itself, but not what a user's function asks.
        self.peek = None if size_of is estimate_bytes else engine.plan.peek
        self.sink = Meter("sink", "sink", 1)
        self.last: Outlet | None = None
        self.gates: list[Gate] = []
        self.held = 0
        self.peak_bytes = 0
        self.overdrawn = 0
        self.grants = 0
        self.turns = 0
        self.looking = False
        self.over = False
        self.older: Budget | None = None
        self.younger: Budget | None = None

    # Counting

    def emitted(self, step: Step, items: Sequence[Item]) -> None:
        """Measure what a step hands on."""
        gate, meter = step.gate, step.meters[0]
        last = step.out is self.last
        for item in items:
            if step.keeps_values and self.load_of(item) is not None:
                self.move(item, meter)
            else:
                number = self.measure(step, item)
                self.free(item)
                for member in item.members or ():
                    self.free(member)
                self.put(item, number, meter)
                if gate is not None:
                    gate.largest = max(gate.largest, number)
            if last:
                self.move(item, self.sink)
        self.peak_bytes = max(self.peak_bytes, self.held)
        self.look()

    def measure(self, step: Step, item: Item) -> int:
        """Return the bytes of an item's value; of what a step has put together, those of its parts."""
        if step.puts_together and item.members:
            loads = [self.load_of(member) for member in item.members]
            return sum(load.bytes for load in loads if load is not None)
        if self.over:
            return 0
        value, more = item.value, 0
        if isinstance(value, Routed):
            more, value = value.more_bytes, value.value
        try:
            return self.checked_size(value) + more
        except Exception as error:  # noqa: BLE001 -- the user's function; the consumer gets it
            note_once(
                error,
                f"spdl_async: raised by size_of= of build(), on {where_is(item)} as stage "
                f"{step.meters[-1].name!r} handed it on",
            )
            self.over = True
            self.engine.crash(error)
            return 0

    def checked_size(self, value: Any) -> int:
        """Return what the user's function says of a value; of a list, of each element."""
        if self.peek is not None:
            value = self.peek(value)
        if isinstance(value, list):
            return sum(map(self.checked_size, value))
        number = self.size_of(value)
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise TypeError(
                f"build: size_of must return a number of bytes, an int of at least 0, not {number!r} "
                f"(for a value of type {type(value).__name__})"
            )
        return number

    @staticmethod
    def load_of(item: Item) -> Load | None:
        """Return what counts for an item."""
        load: Load | None = getattr(item, "load", None)
        return load

    def put(self, item: Item, number: int, meter: Meter) -> None:
        """Count bytes for an item."""
        item.load = Load(number, meter)
        self.held += number
        meter.bytes += number
        meter.peak_bytes = max(meter.peak_bytes, meter.bytes)

    def free(self, item: Item) -> None:
        """Count nothing for an item any more."""
        load = self.load_of(item)
        if load is not None:
            item.load = None
            self.held -= load.bytes
            load.meter.bytes -= load.bytes

    def move(self, item: Item, meter: Meter) -> None:
        """Count an item's bytes for another stage."""
        load = self.load_of(item)
        if load is not None and load.meter is not meter:
            load.meter.bytes -= load.bytes
            load.meter = meter
            meter.bytes += load.bytes
            meter.peak_bytes = max(meter.peak_bytes, meter.bytes)

    def split_load(self, item: Item, to: Item, number: int) -> None:
        load, other = self.load_of(item), self.load_of(to)
        if load is not None:
            load.bytes -= number
            if other is None:
                to.load = Load(number, load.meter)
            else:
                other.bytes += number
                load.meter.bytes -= number
                other.meter.bytes += number

    def pass_load(self, item: Item, to: Item) -> None:
        """Let an item's bytes count for another one, which has its value now."""
        load = self.load_of(item)
        if load is None:
            return
        item.load = None
        other = self.load_of(to)
        if other is None:
            to.load = load
        else:
            load.meter.bytes -= load.bytes
            other.bytes += load.bytes
            other.meter.bytes += load.bytes

    def release(self, item: Item) -> None:
        self.free(item)
        super().release(item)
        self.look()

    # Letting calls begin

    @property
    def used(self) -> int:
        """Bytes that are held, or may be made by what runs, in all passes together."""
        own = self.held + sum(gate.reserved for gate in self.gates)
        return own + sum(b.own_use for b in (self.older, self.younger) if b is not None)

    @property
    def own_use(self) -> int:
        """Bytes that this pass holds or may still make."""
        return self.held + sum(gate.reserved for gate in self.gates)

    def attach(self, steps: Sequence[Step], sink: Sink) -> None:
        """Have the steps of the run ask here, and tell what they hand on."""
        self.last = sink
        sink.on_emptied.append(self.let_go)
        for step in reversed(steps):
            step.budget = self
            for channel in step.reads_from:
                if isinstance(channel, SizedChannel):
                    channel.meter = step.meters[0]
            step.gate = gate = step.new_gate(self)
            if gate is not None:
                self.gates.append(gate)

    def statistics(self, ended: bool) -> ByteStatistics:
        """Return a snapshot, from any thread; after the end of the data nothing is held."""
        return ByteStatistics(
            held=0 if ended else self.held,
            in_sink=0 if ended else self.sink.bytes,
            peak=self.peak_bytes,
            limit=self.limit,
            overdrawn=self.overdrawn,
        )

    def share_with(self, before: Budget) -> None:
        """Share the memory with the pass before, which goes first."""
        if not before.over or before.engine.handover.waits:
            self.older, before.younger = before, self

    def end(self) -> None:
        """Hear that the pass has ended; what its consumer has not taken is still in memory."""
        self.over = True
        if not self.engine.handover.waits:
            self.let_go()

    def let_go(self) -> None:
        """Let go of the memory, when nothing waits for the consumer of a pass that has ended."""
        if not self.over:
            return
        if self.younger is not None:
            self.younger.older = None
            self.younger.look()
        self.older = self.younger = None

    def look(self) -> None:
        """See soon, once for all that changes in this turn of the loop, what may begin."""
        self.turns = 0
        if self.over:
            if self.younger is not None:
                self.younger.look()
        elif not self.looking:
            self.looking = True
            self.engine.loop.call_soon(self.decide)

    def decide(self) -> None:
        """Let begin what fits; where nothing moves any more, one thing that does not."""
        self.looking = False
        if self.over or self.engine.stopping:
            return
        try:
            self.grant()
            if self.younger is not None:
                self.younger.look()
            if not self.is_stuck():
                return
            if self.turns < TURNS:
                self.turns += 1
                self.looking = True
                self.engine.loop.call_soon(self.decide)
            else:
                self.turns = 0
                self.overdraw()
        except Exception as error:  # noqa: BLE001 -- ours; the consumer must hear of it
            self.engine.crashed(error)

    def grant(self) -> None:
        """Let begin what fits, what is furthest down first."""
        for gate in self.gates:
            while gate.waiting and gate.is_open:
                if gate.room <= 0:
                    break
                fitting = (self.limit - self.used) // max(1, gate.largest)
                if fitting <= 0:
                    return  # what is further up must not take the room that this one waits for
                gate.let_go(min(fitting, gate.room, gate.waiting))

    def is_stuck(self) -> bool:
        """Tell whether nothing will move unless something more begins."""
        engine = self.engine
        if self.older is not None or engine.handover.buffer or self.asking() is None:
            return False
        if any(step.occupied for step in engine.steps):
            return False
        return not any(
            gate.running > gate.step.resting()
            for gate in self.gates
            if gate.is_live and not gate.is_source
        )

    def asking(self) -> Gate | None:
        """Return the gate to be served first where one has to be: one that feeds no other that asks.

        There are several of these where branches come together; they take turns, since what is made
        in one branch may be of no use before something comes from the other.
        """
        last: list[Gate] = []
        fed: set[Step] = set()
        for gate in self.gates:  # from the end of the chain upwards
            if gate.waiting and gate.is_open and gate.step not in fed:
                fed |= self.feeding(gate.step)
                if not (gate.is_source and gate.running):
                    last.append(gate)
        return min(last, key=lambda gate: gate.served, default=None)

    def feeding(self, step: Step) -> set[Step]:
        """Return the steps above one, all the way up."""
        found: set[Step] = set()
        above = list(step.above)
        while above:
            each = above.pop()
            if each not in found:
                found.add(each)
                above += each.above
        return found

    def overdraw(self) -> None:
        """Let one begin beyond the budget."""
        gate = self.asking()
        if gate is None:
            return
        error = self.too_large()
        if error is not None:
            self.over = True
            self.engine.crash(error)
            return
        made = sum(each.step.resting() * each.largest for each in self.gates)
        if self.held + made + gate.largest > self.limit:
            self.overdrawn += 1
        gate.let_go(1)

    def too_large(self) -> BudgetError | None:
        """Return the error where what one stage gathers can never fit."""
        for step in self.engine.steps:
            meter = step.meters[0]
            if step.gathering and not step.untaken and meter.bytes >= self.limit:
                return BudgetError(
                    f"stage {meter.name!r} has gathered {bytes_text(meter.bytes)} ({meter.bytes:,} bytes) "
                    f"and needs more before it hands anything on, but build(max_bytes=) allows "
                    f"{bytes_text(self.limit)} ({self.limit:,} bytes): gather fewer items, or allow more"
                )
        return None


class SizedChannel(Channel):
    """A channel that counts what is taken from it for the step that takes it."""

    __slots__ = ("budget", "meter")

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget.engine.loop)
        self.budget = budget
        self.meter: Meter | None = None

    async def get_many(self, most: int) -> list[Item]:
        items = await super().get_many(most)
        if self.meter is not None:
            for item in items:
                self.budget.move(item, self.meter)
        self.budget.look()
        return items
