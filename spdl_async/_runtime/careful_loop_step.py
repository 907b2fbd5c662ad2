"""Async stages whose calls have a timeout, or are made again after a failure."""

from __future__ import annotations

import asyncio
from typing import Any

from spdl_async._runtime.deadline import Deadline, stack_of_error, time_over
from spdl_async._runtime.failures import caught
from spdl_async._runtime.loop_step import LoopStep
from spdl_async._runtime.meter import clock
from spdl_async._runtime.pace import SLICE_SECONDS
from spdl_async._runtime.retrying import Backoff
from spdl_async._runtime.step import guarded
from spdl_async._runtime.telling import speaker
from spdl_async._runtime.ticket import DONE, DROPPED, Item, OpFailure
from spdl_async.spec.markers import DROP


class CarefulLoopStep(LoopStep):
    """One 1→1 coroutine function; with retries its workers stay until the last item has left."""

    def __init__(self, *arguments: Any, timeout: float | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.timeout = timeout
        self.calling = 0
        if self.judges[0].retries is not None:
            self.backoff = Backoff(self.host.loop, self.count_retry, self.start_due)

    def slots_taken(self) -> int:
        return self.calling

    @guarded
    def start_due(self) -> None:
        """Have a worker take a call whose wait is over."""
        if not self.cancelled:
            self.rouse(1)

    @guarded
    def advance(self) -> None:
        LoopStep.advance(self)
        if self.closed:
            self.finish_input()  # wakes the workers

    def next_item(self) -> Item | None:
        """Return what a worker is to do next: what was begun before goes on first, and in any case."""
        if self.backoff is not None and self.backoff.due:
            item: Item = self.backoff.due.popleft()
            return item
        return None if self.halted or not self.inbox else self.inbox.popleft()

    async def serve(self) -> None:
        speaker.set(self.meters[0])
        deadline = None if self.timeout is None else Deadline(self, self.timeout)
        resumed = clock()
        while not self.closed:
            item = self.next_item()
            if item is None:
                self.adapt()
                if self.input_ended and self.backoff is None:
                    return
                sleeper = self.host.loop.create_future()
                self.sleepers.append(sleeper)
                await sleeper
                resumed = clock()
                continue
            due = 0 if self.backoff is None else len(self.backoff.due)
            if self.inbox or due:
                self.rouse(len(self.inbox) + due)
            self.calling += 1
            if self.successor is not None:  # as soon as this item, perhaps the last, has begun
                self.host.loop.call_soon(self.hand_over)
            try:
                await self.attempt(item, deadline)
            finally:
                self.calling -= 1
            del item
            if self.successor is not None:
                self.hand_over()
            if clock() - resumed > SLICE_SECONDS:
                await asyncio.sleep(0)
                resumed = clock()

    async def attempt(self, item: Item, deadline: Deadline | None) -> None:
        """Call the op once."""
        meter, value = self.meters[0], item.value
        failure: OpFailure | None = None
        result: Any = None
        began = clock()
        if deadline is not None:
            deadline.start()
        try:
            result = await self.call(value)
        except BaseException as error:
            is_over = deadline is not None and deadline.stop()
            if self.asked_to_stop(error):
                raise
            if is_over:
                failure = self.overdue_item(item, stack_of_error(error))
            else:
                failure = caught(error, value, brief=self.judges[0].log.full)
        else:
            if deadline is not None and deadline.stop():
                failure = self.overdue_item(item, "")
        meter.busy += clock() - began
        meter.calls += 1
        if failure is not None:
            wait = self.judges[0].retry_after(item, failure)
            if wait is not None and self.backoff is not None:
                self.backoff.news.append((item, wait))
                self.backoff.arm()
                return
            self.fail(item, failure)
        elif result is DROP:
            item.state = DROPPED
        else:
            item.value = result
            item.state = DONE
        if not self.ordered:
            self.done.append(item)
        if not self.advancing:
            self.advance_soon()

    def overdue_item(self, item: Item, stack: str) -> OpFailure:
        """Return the failure of a call whose time is over."""
        return time_over(self.meters[0].name, item, self.timeout or 0.0, stack)
