"""Slots: how many calls of a stage run at once, also where two epochs of ``epochs()`` meet.

A pass that begins while the one before it is still at work shares each stage's slots with that: it
gets those that the older pass will not need any more, because it has started its last call there.
So ``concurrency`` bounds the calls of both together, an op of one call at a time never runs twice,
and the older pass, which the consumer waits for, goes first. It waits for nothing of the younger
one, so there is no way for them to hold each other up.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from spdl_async._runtime.budget import Budget
from spdl_async._runtime.channel import Channel, Outlet
from spdl_async._runtime.failures import Judge
from spdl_async._runtime.gates import Gate, InputGate
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.pace import Pace
from spdl_async._runtime.retrying import Backoff
from spdl_async._runtime.step import Host, Step
from spdl_async._runtime.windowed_step import WindowedStep


class SlottedStep(WindowedStep):
    """A step whose calls take slots.

    Attributes:
        full: the stage's concurrency.
        concurrency: slots that it may take now: fewer while the pass before it uses some.
        inbox: accepted items whose calls have not been started.
        successor: the same step of the next pass, while that has not got all slots.
    """

    inbox: deque[Any]

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        *,
        concurrency: int,
        ordered: bool,
        pace: Pace,
        judges: list[Judge],
        meters: list[Meter],
    ) -> None:
        super().__init__(
            host, source, out, ordered=ordered, pace=pace, judges=judges, meters=meters
        )
        self.full = concurrency
        self.concurrency = concurrency
        self.successor: SlottedStep | None = None
        self.backoff: Backoff | None = None

    def let_go(self) -> None:
        super().let_go()
        self.inbox.clear()

    def new_gate(self, budget: Budget) -> Gate | None:
        # With input order some of those that were let go are done and wait for the first one.
        return InputGate(budget, self, self.begin, 2 * self.full if self.ordered else self.full)

    def slots_taken(self) -> int:
        """Return how many slots are in use."""
        raise NotImplementedError

    def use_slots(self) -> None:
        """Start calls: there are more slots than before."""
        raise NotImplementedError

    def count_retry(self, what: Any) -> None:  # noqa: ARG002 -- a fused group has to look at it
        """Count a call that is to be made again."""
        self.meters[0].retried += 1

    def stop(self) -> None:
        super().stop()
        if self.backoff is not None:
            self.backoff.clear()

    def to_be_repeated(self) -> int:
        """Return how many calls will be made again, although no other is started any more."""
        return 0 if self.backoff is None else len(self.backoff)

    @property
    def may_start(self) -> bool:
        """Whether calls may still have to be started."""
        inp, gate = self.inp, self.gate
        waiting = self.inbox or (gate is not None and gate.items)
        return not self.halted and bool(waiting or len(inp) or not inp.closed)

    def take_over(self, before: Step) -> None:
        if isinstance(before, SlottedStep):
            self.concurrency = 0
            before.successor = self
            before.hand_over()

    def hand_over(self) -> None:
        after = self.successor
        if after is None or self.may_start:
            return
        # What waits for its next call will need a slot again.
        taken = self.slots_taken() + self.to_be_repeated()
        if not taken:
            self.successor = None
        spare = after.full - taken
        if spare > after.concurrency:
            after.concurrency = spare
            after.use_slots()
