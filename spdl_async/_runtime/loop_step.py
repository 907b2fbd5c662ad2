"""The async stages: a fixed number of workers on the loop, not a task per item."""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from spdl_async._runtime.channel import Channel, Outlet
from spdl_async._runtime.failures import Judge, caught
from spdl_async._runtime.meter import Meter, clock
from spdl_async._runtime.pace import SLICE_SECONDS, Pace
from spdl_async._runtime.slotted_step import SlottedStep
from spdl_async._runtime.step import Host, guarded
from spdl_async._runtime.telling import speaker
from spdl_async._runtime.ticket import DONE, DROPPED, FAILED, Item
from spdl_async.spec.markers import DROP

SAMPLE = 16
FAST_SECONDS = 0.0002


class LoopStep(SlottedStep):
    """One 1→1 coroutine function, run by ``concurrency`` workers."""

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        call: Callable[[Any], Awaitable[Any]],
        *,
        concurrency: int,
        ordered: bool,
        floor: int,
        ceiling: int,
        judge: Judge,
        meter: Meter,
    ) -> None:
        super().__init__(
            host,
            source,
            out,
            concurrency=concurrency,
            ordered=ordered,
            pace=Pace(floor, ceiling),
            judges=[judge],
            meters=[meter],
        )
        self.call = call
        self.inbox: deque[Item] = deque()
        self.sleepers: deque[Future[None]] = deque()
        self.seen_calls = 0
        self.seen_busy = 0.0
        self.workers = 0
        self.starting = False
        self.left = 0

    def use_call(self, at: int, call: Callable[..., Any]) -> None:  # noqa: ARG002 -- it has one
        self.call = call

    def begin(self, items: list[Item]) -> None:
        self.inbox.extend(items)
        self.rouse(len(items))

    def rouse(self, wanted: int) -> None:
        """Have up to ``wanted`` more workers take items, two now; those rouse others in their turn.

        So all of them are at work after a few turns of the loop where ops wait for something; where
        they do not, the first has emptied the inbox before many others were woken for nothing.
        """
        if self.starting:  # an eager task runs inside launch(): workers must not nest
            self.host.loop.call_soon(self.rouse_more)
            return
        wanted = min(wanted, 2)
        while wanted > 0 and self.sleepers:
            sleeper = self.sleepers.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                wanted -= 1
        while wanted > 0 and self.workers < self.concurrency:
            self.workers += 1
            self.starting = True
            task = self.launch(self.serve(), f"worker {self.workers - 1}")
            self.starting = False
            task.add_done_callback(self.worker_left)
            wanted -= 1

    @guarded
    def rouse_more(self) -> None:
        """Go on where an eager worker wanted others to be roused."""
        if self.inbox and not self.halted:
            self.rouse(len(self.inbox))

    def slots_taken(self) -> int:
        return self.workers - self.left

    def use_slots(self) -> None:
        if not self.halted:
            self.rouse(len(self.inbox))

    def worker_left(self, task: Task[None]) -> None:
        """Count a worker that has ended, as they do after the last item."""
        del task  # the engine looks at how it ended
        self.left += 1
        if self.successor is not None:
            self.hand_over()

    def finish_input(self) -> None:
        for sleeper in self.sleepers:
            if not sleeper.done():
                sleeper.set_result(None)

    async def serve(self) -> None:
        """Take items from the inbox until the input has ended."""
        speaker.set(self.meters[0])
        inbox = self.inbox
        while not self.halted:
            if not inbox:
                self.adapt()
                if self.input_ended:
                    return
                sleeper = self.host.loop.create_future()
                self.sleepers.append(sleeper)
                await sleeper
                continue
            if len(inbox) > 1:
                self.rouse(len(inbox) - 1)
            elif self.successor is not None:  # as soon as this item, perhaps the last, has begun
                self.host.loop.call_soon(self.hand_over)
            await self.work_through(inbox)

    async def work_through(self, inbox: deque[Item]) -> None:
        """Work until the inbox is empty or a failure ends the run."""
        meter = self.meters[0]
        call = self.call
        now = resumed = clock()
        while inbox and not self.halted:
            item = inbox.popleft()
            value = item.value
            try:
                value = await call(value)
            except BaseException as error:
                if self.asked_to_stop(error):
                    raise
                self.fail(item, caught(error, value, brief=self.judges[0].log.full))
            else:
                if value is DROP:
                    item.state = DROPPED
                else:
                    item.value = value
                    item.state = DONE
            end = clock()
            meter.busy += end - now
            meter.calls += 1
            now = end
            if not self.ordered:
                self.done.append(item)
            if not self.advancing:
                self.advance_soon()
            if now - resumed > SLICE_SECONDS:
                await asyncio.sleep(0)
                now = resumed = clock()

    def fail(self, item: Item, failure: Any) -> None:
        """Mark an item as failed; a failure that ends the run stops what comes after it."""
        item.value = failure
        item.state = FAILED
        if self.judges[0].ends(failure) and not self.halted:
            self.stop_starting()

    def adapt(self) -> None:
        """Fit the window to the time that calls take, when a worker has run dry."""
        meter = self.meters[0]
        new = meter.calls - self.seen_calls
        if new < SAMPLE:
            return
        average = (meter.busy - self.seen_busy) / new
        self.seen_calls, self.seen_busy = meter.calls, meter.busy
        if self.pace.look(meter.items_out, average < FAST_SECONDS):
            self.room.set()
