"""One input of a 1→n stage and the values that come of it, and the hop that produces them."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Iterator
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

from spdl_async._plan.results import is_plain
from spdl_async._runtime.failures import caught
from spdl_async._runtime.hop import QUANTUM, SHARE_SECONDS, BaseHop
from spdl_async._runtime.ticket import Item, OpFailure
from spdl_async.spec.markers import DROP

if TYPE_CHECKING:
    from spdl_async._runtime.generator_step import ThreadFlowStep


class Flow:
    """The production of one input item.

    Attributes:
        item: the input.
        children: values produced and not yet collected by the loop.
        produced: number of values produced, dropped ones included: the next one's ordinal.
        sent: values that the next step has taken.
        ended: no more values will come.
        failure: why it ended early.
        dropped: yielded ``DROP`` and not yet counted.
        parked: waits for room, without a thread.
        settled: has ended, and all its values are handed on.
        listed: already in the step's list of flows with news.
    """

    __slots__ = (
        "children", "dropped", "ended", "failure", "hop", "item", "iterator", "listed", "parked",
        "produced", "sent", "settled",
    )  # fmt: skip

    def __init__(self, item: Item) -> None:
        self.item = item
        self.children: deque[Item] = deque()
        self.iterator: Iterator[Any] | None = None
        self.produced = 0
        self.sent = 0
        self.settled = False
        self.dropped = 0
        self.ended = False
        self.parked = False
        self.listed = False
        self.failure: OpFailure | None = None
        self.hop: FlowHop | None = None

    def full(self, limit: int) -> bool:
        """Whether as many values wait as may."""
        return self.produced - self.dropped - self.sent >= limit

    def add(self, value: Any) -> None:
        """Take one value that the op has produced."""
        item = self.item
        if value is DROP:
            self.dropped += 1
        else:
            path = (*item.path, self.produced)
            self.children.append(item.child(value, path, item.members))
        self.produced += 1

    def end(self, failure: OpFailure | None = None) -> None:
        """Note that no more values will come."""
        self.item.value = None
        self.iterator = None
        self.failure = failure
        self.ended = True


class FlowHop(BaseHop):
    """Drives generators and other iterators in a thread, one flow after the other."""

    __slots__ = ("busy", "calls", "flow")

    step: ThreadFlowStep

    def __init__(self, step: ThreadFlowStep) -> None:
        super().__init__(step)
        self.busy = 0.0
        self.calls = 0
        self.flow: Flow | None = None

    @property
    def must_run(self) -> bool:
        return self.flow is not None

    def busy_now(self) -> float:
        return self.busy

    def drain(self) -> bool:
        step = self.step
        start = clock()
        while True:
            flow, self.flow = self.flow, None
            if flow is None:
                if step.halted or step.starts_on_loop:  # there the loop begins flows
                    return False
                try:
                    flow = step.inbox.popleft()
                except IndexError:
                    return False
            elif flow.iterator is None and step.cancelled:  # it waited for another call
                flow.end()
                return False
            self.item = flow.item
            how = self.drive(flow, start)
            if how == "requeue":
                self.flow = flow
                step.news_of(flow)
                return self.requeue()
            if how != "ended":  # parked, handed to the loop or abandoned: this job is over
                return True
            step.news_of(flow)
            if clock() - start > QUANTUM and step.line.crowded and step.inbox and not step.halted:
                return self.requeue()

    def drive(self, flow: Flow, start: float) -> str:
        """Produce values until the flow ends, has no room, or others wait for the thread."""
        step = self.step
        began = now = announced = clock()
        share = 0
        how = "ended"
        try:
            if flow.iterator is None and not self.open(flow):
                return "handed over"
            iterator = flow.iterator
            assert iterator is not None
            while True:
                if step.cancelled:
                    close(iterator)
                    flow.end()
                    break
                if flow.full(step.flow_limit):
                    how = "parked"
                    break
                if now - start > QUANTUM and step.line.crowded:
                    how = "requeue"
                    break
                try:
                    value = next(iterator)
                except StopIteration:
                    flow.end()
                    break
                flow.add(value)
                before, now = now, clock()
                self.note_pace(now - before)
                share += 1
                if share >= step.share or now - announced > SHARE_SECONDS:
                    share = 0
                    announced = now
                    step.news_of(flow)
                else:
                    step.list_news(flow)
        except BaseException as error:  # noqa: BLE001 -- the stage's policy decides, on the loop
            self.failed(flow, error)
        self.busy += clock() - began
        if flow.ended:
            self.calls += 1
        elif how == "parked":
            step.park(flow, self)
        return how

    def open(self, flow: Flow) -> bool:
        """Call the op; ``False`` where what it returned has to be awaited on the loop."""
        step = self.step
        value = step.call(flow.item.value)
        if step.is_generator:
            flow.iterator = value
            return True
        if isinstance(value, AsyncIterable) or not is_plain(value, step.plain):
            self.item = None
            self.thread = 0
            flow.hop = self
            step.to_loop.append((flow, value))
            step.wake()
            return False
        flow.iterator = iterate(value)
        return True

    def failed(self, flow: Flow, error: BaseException) -> None:
        """End a flow whose op or iterator raised."""
        step = self.step
        failure = caught(error, flow.item.value, brief=step.judges[0].log.full)
        if step.call_again(flow, failure):
            return
        flow.end(failure)
        if step.judges[0].ends(failure):
            step.halted = True


def iterate(value: Any) -> Iterator[Any]:
    """Return an iterator over what an ``expand`` op returned.

    Raises:
        TypeError: it is no iterable, or one that is surely meant as one value.
    """
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError(
            f"expand: the op returned one {type(value).__name__}, which would be taken apart into "
            f"characters; return a list, or use pipe for 1→1"
        )
    try:
        return iter(value)
    except TypeError:
        raise TypeError(
            f"expand: the op must return an iterable, an async iterable or an awaitable of one, "
            f"not {type(value).__name__}; use pipe for 1→1"
        ) from None


def close(iterator: Any) -> None:
    """Close a generator that is not wanted any more; other iterators have nothing to close."""
    closing = getattr(iterator, "close", None)
    if closing is not None and hasattr(iterator, "throw"):
        closing()
