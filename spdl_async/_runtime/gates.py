"""What a step asks of the byte budget before it begins a call, or pulls an item."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from spdl_async._runtime.channel import Signal
from spdl_async._runtime.ticket import Item

if TYPE_CHECKING:
    from spdl_async._runtime.budget import Budget
    from spdl_async._runtime.flow import Flow
    from spdl_async._runtime.generator_step import ThreadFlowStep
    from spdl_async._runtime.step import Step


class Gate:
    """What a step asks for before it begins a call or pulls an item.

    Attributes:
        waiting: how many it asks for.
        running: how many were let go and have not had their result.
        results: how many have come to their end.
        largest: bytes of the largest result so far.
        most: how many may be let go at once, later on.
        served: the number of the last time that something was let go.
    """

    def __init__(self, budget: Budget, step: Step, start: Callable[[int], None], most: int) -> None:
        self.budget = budget
        self.step = step
        self.start = start
        self.waiting = 0
        self.running = 0
        self.results = 0
        self.largest = 0
        self.most = most
        self.served = 0

    @property
    def is_source(self) -> bool:
        """Whether what is asked for comes from outside."""
        return self.step.source is None

    @property
    def reserved(self) -> int:
        """Bytes that what was let go may still make."""
        return self.running * self.largest if self.is_live else 0

    @property
    def room(self) -> int:
        """How many more may be let go, whatever there is of memory.

        One more for every four results: how large those are has to be learnt.
        """
        return min(self.most, 1 + self.results // 4) - self.running

    @property
    def is_live(self) -> bool:
        """Whether the results of the step are still wanted."""
        return not self.step.cancelled

    @property
    def is_open(self) -> bool:
        """Whether the step still begins something."""
        return not self.step.halted

    def ask(self, number: int) -> None:
        """Ask for so many in all."""
        self.waiting = max(0, number)
        self.budget.look()

    def finished(self, number: int) -> None:
        """Hear that so many have come to their end."""
        self.running -= number
        self.results += number
        self.budget.look()

    def close(self) -> None:
        """Hear that there is nothing to begin any more, and nothing runs."""
        self.waiting = self.running = 0
        self.budget.look()

    def let_go_of_items(self) -> None:
        """Let go of what waits here, when the run has ended."""

    def let_go(self, number: int) -> None:
        """Begin so many."""
        self.waiting -= number
        self.running += number
        self.budget.grants += 1
        self.served = self.budget.grants
        self.start(number)


class InputGate(Gate):
    """The gate of a step that calls an op on its items, which wait here."""

    def __init__(
        self, budget: Budget, step: Step, begin: Callable[[list[Item]], None], most: int
    ) -> None:
        super().__init__(budget, step, self.begin_some, most)
        self.begin = begin
        self.items: deque[Item] = deque()
        self.begun = Signal(budget.engine.loop)

    def offer(self, items: list[Item]) -> None:
        """Have items wait until their calls may begin."""
        self.items += items
        self.ask(self.waiting + len(items))

    def begin_some(self, number: int) -> None:
        """Begin the calls on the first items."""
        items = [self.items.popleft() for _ in range(min(number, len(self.items)))]
        if items:
            self.begin(items)
        if not self.items:
            self.begun.set()

    def let_go_of_items(self) -> None:
        self.items.clear()

    async def all_begun(self) -> None:
        """Return when no item waits any more."""
        while self.items:
            await self.begun.wait()


class FlowGate(InputGate):
    """The gate of a 1→n stage, which also asks before a flow that has begun makes another value.

    Attributes:
        flows: those whose last value was taken, and that may go on.
    """

    def __init__(self, budget: Budget, step: ThreadFlowStep) -> None:
        super().__init__(budget, step, step.begin, step.full)
        self.flows: deque[Flow] = deque()
        self.of = step

    def ask_for(self, flow: Flow) -> None:
        """Have a flow wait until it may make another value."""
        self.flows.append(flow)
        self.refresh()

    def offer(self, items: list[Item]) -> None:
        self.items += items
        self.refresh()

    def let_go_of_items(self) -> None:
        super().let_go_of_items()
        self.flows.clear()

    def refresh(self) -> None:
        """Ask for the flows that wait, and for as many new ones as there are free slots."""
        at_work = sum(1 for flow in self.of.flows if not flow.ended)
        new = min(len(self.items), max(0, self.of.concurrency - at_work))
        self.ask(len(self.flows) + (0 if self.of.halted else new))

    @property
    def is_open(self) -> bool:
        return not self.of.cancelled  # after a failure, what was begun goes on

    def begin_some(self, number: int) -> None:
        while number and self.flows:
            flow = self.flows.popleft()
            flow.sent += 1
            self.of.let_go_on(flow)
            number -= 1
        super().begin_some(number)

    def resting(self) -> int:
        """Return how many flows were let go and wait for something else than their op.

        One that has made its value waits to hand it on; one whose first call had not begun before a
        failure that ends the run will never begin.
        """
        return sum(
            1 for flow in self.of.flows if flow.children or flow.ended or self.never_begins(flow)
        )

    def never_begins(self, flow: Flow) -> bool:
        """Tell whether a failure that ends the run has come before the flow's first call."""
        step = self.of
        return (
            step.halted
            and flow.iterator is None
            and flow not in step.slots
            and not step.was_tried(flow)
            and all(hop.item is not flow.item for hop in step.hops)
        )
