"""The 1→n stages: generators and ``expand``, streaming.

Values flow before a generator ends. Each flow may hold a bounded number of values that the next
step has not taken; then a sync generator is *parked*: it keeps its slot, not its thread, and a
later hop resumes it. With input order only the head's values leave; the others produce ahead, up
to their bound.
"""

from __future__ import annotations

from asyncio import Future, Task
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from spdl_async._runtime.asking import consult
from spdl_async._runtime.budget import Budget
from spdl_async._runtime.channel import Channel, Outlet
from spdl_async._runtime.failures import Judge
from spdl_async._runtime.flow import Flow, FlowHop, iterate
from spdl_async._runtime.flow_on_loop import produce
from spdl_async._runtime.gates import FlowGate
from spdl_async._runtime.hop import BaseHop, dispose
from spdl_async._runtime.hopping_step import HoppingStep
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.pace import Pace
from spdl_async._runtime.step import Host, guarded
from spdl_async._runtime.ticket import Item, OpFailure
from spdl_async.statistics import StageStatistics

FIRST_LIMIT = 16


class ThreadFlowStep(HoppingStep):
    """A 1→n op whose iterators run in threads; async ones that it returns run on the loop."""

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        call: Callable[[Any], Any],
        *,
        is_generator: bool,
        starts_on_loop: bool,
        concurrency: int,
        executor: Executor | None,
        ordered: bool,
        window: int,
        max_flow: int,
        judge: Judge,
        meter: Meter,
        timeout: float | None = None,
    ) -> None:
        super().__init__(
            host,
            source,
            out,
            concurrency=concurrency,
            executor=executor,
            ordered=ordered,
            pace=Pace(window, window),
            judges=[judge],
            meters=[meter],
        )
        self.call = call
        self.timeout = timeout
        self.is_generator = is_generator
        self.starts_on_loop = starts_on_loop
        self.max_flow = max_flow
        self.flow_limit = min(FIRST_LIMIT, max_flow)
        self.plain: set[type] = set()
        self.flows: deque[Flow] = deque()
        self.news: deque[Flow] = deque()
        self.to_loop: deque[tuple[Flow, Any]] = deque()
        self.newly_parked: deque[Flow] = deque()
        self.loop_flows: dict[Flow, Future[None]] = {}
        self.runs: deque[list[Any]] = deque()  # [flow, number]: whose values wait to be taken
        self.slots: dict[Flow, list[FlowHop]] = {}

    def new_gate(self, budget: Budget) -> FlowGate:
        return FlowGate(budget, self)

    def resting(self) -> int:
        return self.gate.resting() if isinstance(self.gate, FlowGate) else 0

    def new_hop(self) -> FlowHop:
        return FlowHop(self)

    def use_call(self, at: int, call: Callable[..., Any]) -> None:  # noqa: ARG002 -- it has one
        self.call = call

    def begin(self, items: list[Item]) -> None:
        for item in items:
            flow = Flow(item)
            self.flows.append(flow)
            self.inbox.append(flow)
        self.held.clear()
        if not self.halted:
            self.dispatch()
            self.arm()

    def submit(self, hop: BaseHop) -> bool:
        if self.starts_on_loop and isinstance(hop, FlowHop) and hop.flow is None:
            return self.start_on_loop(hop)
        return super().submit(hop)

    def start_on_loop(self, hop: FlowHop) -> bool:
        """Give a slot to the next flow of an async op."""
        if not self.inbox:
            self.idle.append(hop)
            return False
        flow = self.inbox.popleft()
        flow.hop = hop
        self.drive_on_loop(flow, None)
        return True

    # What threads call

    def news_of(self, flow: Flow) -> None:
        """Tell the loop that a flow has values or has ended."""
        self.list_news(flow)
        if not self.woken:
            self.wake()

    def list_news(self, flow: Flow) -> None:
        """Put a flow where the loop finds it when it looks next."""
        if not flow.listed:
            flow.listed = True
            self.news.append(flow)

    def park(self, flow: Flow, hop: FlowHop) -> None:
        """Take a flow off its thread until there is room for its values."""
        hop.item = None
        hop.thread = 0
        flow.hop = hop
        self.newly_parked.append(flow)
        self.news_of(flow)

    # On the loop

    def give_up(self) -> None:
        self.look_at_parked()

    def look_at_parked(self) -> None:
        """Take note of flows that threads have parked; there may be room again by now."""
        while self.newly_parked:
            flow = self.newly_parked.popleft()
            flow.parked = True
            self.resume(flow)

    def after_wake(self) -> None:
        self.look_at_parked()
        while self.to_loop:
            self.drive_on_loop(*self.to_loop.popleft())

    def resume(self, flow: Flow) -> None:
        """Let a parked flow go on when it has room again, or is to be closed."""
        if flow.parked and (self.cancelled or not flow.full(max(1, self.flow_limit // 2))):
            flow.parked = False
            hop, flow.hop = flow.hop, None
            assert hop is not None
            hop.flow = flow
            if not self.submit(hop):
                hop.flow = None

    # Calls that are made again

    def use_slots(self) -> None:
        super().use_slots()
        if isinstance(self.gate, FlowGate):
            self.gate.refresh()

    def call_again(self, flow: Flow, failure: OpFailure) -> bool:
        """Take back a flow whose op is to be called again; from any thread."""
        wait = self.judges[0].retry_after(flow.item, failure, allowed=not flow.produced)
        if wait is None or self.backoff is None:
            return False
        flow.iterator = None
        self.backoff.news.append((flow, wait))
        self.wake()
        return True

    def was_tried(self, what: Any) -> bool:
        return super().was_tried(what.item)

    def go_on(self, hop: BaseHop, what: Any) -> None:
        assert isinstance(hop, FlowHop)
        if self.starts_on_loop:
            what.hop = hop
            self.drive_on_loop(what, None)
            return
        hop.flow = what
        if not self.submit(hop):
            hop.flow = None

    @guarded
    def advance(self) -> None:
        self.advancing = False
        while not self.closed:
            flow = self.next_flow()
            if flow is None:
                break
            self.emit_flow(flow)
        if isinstance(self.gate, FlowGate):
            self.gate.refresh()
        if self.closed:
            return
        if self.fatal is not None:
            self.end_with(self.fatal)
        elif self.input_ended and not self.flows:
            self.closed = True
            self.out.close(self.inp.failure or self.verdict_at_end())

    def next_flow(self) -> Flow | None:
        """Return a flow that has values to emit or has ended."""
        if self.fatal is not None:
            return None
        if not self.ordered:
            return self.news.popleft() if self.news else None
        self.news.clear()
        head = self.flows[0] if self.flows else None
        if head is not None:
            head.listed = False
            if head.children or head.ended:
                return head
        return None

    def emit_flow(self, flow: Flow) -> None:
        """Hand on a flow's values, and settle it when it has ended."""
        flow.listed = False
        if flow.settled:  # its thread has listed it once more just after it was settled
            return
        ended = flow.ended  # read before the values: what comes between is seen next time
        children = flow.children
        values = [children.popleft() for _ in range(len(children))]
        if values:
            self.host.ledger.adopt(flow.item, len(values))
            self.runs.append([flow, len(values)])
            self.emit(values)
            if self.gate is not None:
                self.gate.finished(len(values))
        if ended and not children:
            self.settle_flow(flow)

    def after_taken(self, count: int) -> None:
        """Give the room to the flows whose values were taken."""
        runs = self.runs
        while count:
            run = runs[0]
            flow, waiting = run
            part = min(count, waiting)
            count -= part
            if self.gate is None or flow.settled:
                flow.sent += part
            if part == waiting:
                runs.popleft()
            else:
                run[1] = waiting - part
            if flow.settled:
                self.leave_window(flow)
            elif isinstance(self.gate, FlowGate):
                self.gate.ask_for(flow)
            else:
                self.let_go_on(flow)

    def let_go_on(self, flow: Flow) -> None:
        """Let a flow that waits for room produce more."""
        if flow.parked and flow.sent >= self.flow_limit:  # it is fast: let it hold more
            self.flow_limit = min(self.max_flow, self.flow_limit * 2)
        self.resume(flow)
        wake = self.loop_flows.get(flow)
        if wake is not None and not wake.done() and not flow.full(self.flow_limit):
            wake.set_result(None)

    def settle_flow(self, flow: Flow) -> None:
        """Account for a flow that has ended and whose values are all handed on."""
        judge, meter = self.judges[0], self.meters[0]
        if self.asks and flow.failure is not None and self.ask_about_flow(flow, flow.failure):
            return
        self.flows.remove(flow)
        if flow.dropped:
            meter.dropped += flow.dropped
            self.host.saw_drop()
        judge.count_calls(1)
        if flow.failure is not None:
            meter.failed += 1
            self.fatal = judge.verdict(flow.item, flow.failure)
        elif self.by_call:
            self.fatal = judge.over_budget()
        if self.fatal is None:
            self.host.ledger.release(flow.item)
        flow.settled = True
        if self.gate is not None:
            self.gate.finished(1)
        self.leave_window(flow)

    def ask_about_flow(self, flow: Flow, failure: OpFailure) -> bool:
        """Ask the user's function about a flow's failure; ``True`` while the answer is waited for."""

        def answered() -> None:
            flow.ended = True
            self.list_news(flow)
            self.advance_soon()

        if not consult(self, self.judges[0], flow.item, failure, answered):
            return False
        flow.ended = False
        return True

    def leave_window(self, flow: Flow) -> None:
        """Make room for another input when the last value of an ended flow is taken."""
        if flow.produced - flow.dropped == flow.sent:
            self.accepted -= 1
            self.meters[0].queue = self.accepted
            self.room.set()

    def collect_hop(self, hop: BaseHop) -> None:
        if isinstance(hop, FlowHop):
            self.meters[0].busy += hop.busy
            self.meters[0].calls += hop.calls
            hop.busy = 0.0
            hop.calls = 0
            hop.future = None

    # Flows on the loop

    def drive_on_loop(self, flow: Flow, value: Any) -> None:
        """Run a flow in a task: an async op, or what a sync op returned for the loop."""
        if self.cancelled:
            dispose(value)
            flow.end()
            assert flow.hop is not None
            self.ended.append(flow.hop)
            self.wake()
            return
        hop, flow.hop = flow.hop, None
        assert hop is not None
        slot = self.slots[flow] = [hop]  # before the task: an eager one may be done at once
        task = self.launch(produce(self, flow, value), "flow")

        def ended(task: Task[None]) -> None:
            self.forget(task)
            if task.cancelled():
                dispose(value)
                flow.end()
            # Else a thread goes on with the flow, or it waits for another call, or has begun that.
            if self.slots.get(flow) is slot:
                self.give_back(flow)

        task.add_done_callback(ended)

    def give_back(self, flow: Flow) -> None:
        """Give back the slot of a flow that ran on the loop."""
        self.loop_flows.pop(flow, None)
        self.ended += self.slots.pop(flow)
        self.wake()

    def to_thread(self, flow: Flow, value: Any) -> None:
        """Let a thread go on with a sync iterable that was awaited; it keeps the slot."""
        flow.iterator = iterate(value)
        [hop] = self.slots.pop(flow)
        hop.flow = flow
        if not super().submit(hop):
            hop.flow = None

    def stop(self) -> None:
        super().stop()
        for flow in self.flows:
            self.resume(flow)

    def let_go(self) -> None:
        super().let_go()
        for items in (self.held, self.news, self.to_loop, self.newly_parked, self.runs):
            items.clear()

    def unreached_failures(self) -> None:
        for flow in self.flows:
            if flow.failure is not None:
                self.judges[0].note(flow.item, flow.failure)
        self.flows.clear()
        for _, value in self.to_loop:
            dispose(value)

    def statistics(self) -> list[StageStatistics]:
        busy = sum(hop.busy_now() for hop in self.hops)
        return [self.meters[0].snapshot(busy)]
