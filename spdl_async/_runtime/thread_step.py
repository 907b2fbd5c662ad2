"""The thread stages: sync ops, alone or fused, run by hops that drain the step's inbox."""

from __future__ import annotations

import itertools
from asyncio import Task
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from spdl_async._runtime.channel import Channel, Outlet
from spdl_async._runtime.deadline import Deadline, stack_of_error, time_over
from spdl_async._runtime.failures import Judge, caught
from spdl_async._runtime.hop import BaseHop, MapHop, dispose
from spdl_async._runtime.hopping_step import HoppingStep
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.pace import Pace
from spdl_async._runtime.step import Host
from spdl_async._runtime.telling import speaker
from spdl_async._runtime.ticket import DONE, DROPPED, FAILED, PENDING, Item, OpFailure
from spdl_async.spec.markers import DROP
from spdl_async.statistics import StageStatistics


class ThreadStep(HoppingStep):
    """A group of fused 1→1 sync ops."""

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        calls: list[Callable[[Any], Any]],
        *,
        concurrency: int,
        executor: Executor | None,
        ordered: bool,
        floor: int,
        ceiling: int,
        judges: list[Judge],
        meters: list[Meter],
        timeout: float | None = None,
    ) -> None:
        super().__init__(
            host,
            source,
            out,
            concurrency=concurrency,
            executor=executor,
            ordered=ordered,
            pace=Pace(floor, ceiling),
            judges=judges,
            meters=meters,
        )
        self.calls = calls
        self.timeout = timeout
        self.numbered = tuple(enumerate(calls))
        self.plain: set[type] = set()
        self.awaiting: deque[tuple[MapHop, Item]] = deque()

        # Calls finished by threads, and items that have left: the difference waits to be collected.
        self.finished = itertools.count(1)
        self.collected = 0
        self.low = concurrency + 2 if concurrency > 1 else 1

    def new_hop(self) -> MapHop:
        return MapHop(self)

    def use_call(self, at: int, call: Callable[..., Any]) -> None:
        self.calls[at] = call
        self.numbered = tuple(enumerate(self.calls))

    def of_use(self, finished: int) -> bool:
        """Tell a hop that has finished an item whether the loop would do anything about it now.

        That is: hand it on to a step that waits for so many, or put more into an inbox that runs low.
        With input order only the head of the window lets anything leave. (Where the head is another
        item now, its own thread asks after it has marked that as done.)
        """
        if self.woken:
            return False
        if len(self.inbox) <= self.low:
            return True
        if finished - self.collected < self.out.quorum:
            return False
        if not self.ordered:
            return True
        try:
            return self.held[0].state != PENDING
        except IndexError:  # the loop has just taken the last one
            return False

    def collect(self) -> list[Item]:
        before = self.unfinished
        ready = super().collect()
        self.collected += len(ready) + before - self.unfinished
        return ready

    def begin(self, items: list[Item]) -> None:
        self.inbox.extend(items)
        if not self.halted:
            self.dispatch()
            self.arm()

    def after_wake(self) -> None:
        while self.awaiting:
            self.start_awaiting(*self.awaiting.popleft())

    def call_again(self, item: Item, value: Any, failure: OpFailure) -> bool:
        """Take back an item whose op ``item.at`` is to be called again on ``value``; from any thread."""
        wait = self.judges[item.at].retry_after(item, failure)
        if wait is None or self.backoff is None:
            return False
        item.value = value
        self.backoff.news.append((item, wait))
        self.wake()
        return True

    def count_retry(self, what: Any) -> None:
        self.meters[what.at].retried += 1
        self.collected += 1  # the failed call was counted as a finished item

    def go_on(self, hop: BaseHop, what: Any) -> None:
        assert isinstance(hop, MapHop)
        hop.resume = (what, what.at)
        if not self.submit(hop):
            hop.resume = None

    def collect_hop(self, hop: BaseHop) -> None:
        if isinstance(hop, MapHop):
            for at, meter in enumerate(self.meters):
                meter.calls += hop.calls[at]
                meter.busy += hop.busy[at]
                hop.calls[at] = 0
                hop.busy[at] = 0.0
            hop.future = None

    def start_awaiting(self, hop: MapHop, item: Item) -> None:
        """Await on the loop what an op returned; the slot stays taken."""
        awaitable, item.value = item.value, None
        if self.cancelled:
            self.leave(hop, awaitable)
            return
        task = self.launch(self.await_result(hop, item, awaitable), "awaitable")

        def ended(task: Task[None]) -> None:
            self.forget(task)
            if task.cancelled():
                self.leave(hop, awaitable)

        task.add_done_callback(ended)

    def leave(self, hop: MapHop, awaitable: Any) -> None:
        """Give back the slot of an item that nobody waits for any more."""
        dispose(awaitable)
        self.ended.append(hop)
        self.wake()

    async def await_result(self, hop: MapHop, item: Item, awaitable: Any) -> None:
        """Await one result, then finish the item or run the rest of its group in a new hop."""
        at = item.at
        speaker.set(self.meters[at])
        argument, hop.argument = hop.argument, None
        began = self.host.loop.time()
        deadline = None if self.timeout is None else Deadline(self, self.timeout)
        failure = None
        try:
            if deadline is not None:
                deadline.start(hop.time_left())
            value = await awaitable
        except BaseException as error:
            is_over = deadline is not None and deadline.stop()
            if self.asked_to_stop(error):
                raise
            failure = self.overdue_item(item, error) if is_over else caught(error)
        else:
            if deadline is not None and deadline.stop():
                failure = self.overdue_item(item, None)
        self.meters[at].busy += self.host.loop.time() - began
        if failure is not None:
            self.end_awaited(item, argument, failure)
        elif value is DROP:
            item.state = DROPPED
        else:
            item.value = value
            if at + 1 == len(self.calls):
                item.at = 0
                item.state = DONE
            else:
                hop.resume = (item, at + 1)
                if not self.submit(hop):
                    hop.resume = None
                return
        next(self.finished)
        if not self.ordered and item.state != PENDING:
            self.done.append(item)
        self.ended.append(hop)
        self.wake()

    def end_awaited(self, item: Item, argument: Any, failure: OpFailure) -> None:
        """Mark an item as failed, or have its op called again."""
        if self.backoff is not None and self.call_again(item, argument, failure):
            return
        item.value = failure
        item.state = FAILED
        if self.judges[item.at].ends(failure):
            self.halted = True

    def overdue_item(self, item: Item, error: BaseException | None) -> OpFailure:
        """Return the failure of a call whose awaitable was cancelled because its time was over."""
        stack = "" if error is None else stack_of_error(error)
        return time_over(self.meters[item.at].name, item, self.timeout or 0.0, stack)

    def unreached_failures(self) -> None:
        super().unreached_failures()
        for _, item in self.awaiting:  # left by a loop that was torn down
            dispose(item.value)

    def statistics(self) -> list[StageStatistics]:
        shots = []
        for at, meter in enumerate(self.meters):
            busy = sum(h.busy[at] for h in self.hops if isinstance(h, MapHop))
            calls = sum(h.calls[at] for h in self.hops if isinstance(h, MapHop))
            items = meter.calls + calls - meter.retried
            if at:
                meter.items_in = items
            if at + 1 < len(self.meters):
                meter.items_out = items - meter.failed - meter.dropped
            shots.append(meter.snapshot(busy))
        return shots
