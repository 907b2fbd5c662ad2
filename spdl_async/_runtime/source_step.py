"""Reading the source.

A sync iterable is pulled in a thread of its own, outside the pool, so a source that blocks holds
up nobody. The loop grants credit; the thread pulls as far as it reaches. Items are visible to the
loop as soon as they are pulled; only the wake-ups are coalesced while the source is fast. An async
iterable is read by a task on the loop, which also closes it.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from asyncio import TimerHandle
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterator
from queue import SimpleQueue
from time import perf_counter as clock
from typing import Any

from spdl_async._runtime.cancelled import current
from spdl_async._runtime.channel import Channel, Signal
from spdl_async._runtime.failures import Judge, caught
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.pace import Pace
from spdl_async._runtime.step import Host, Step
from spdl_async._runtime.thread_step import COMPANY_SECONDS, _asked_to_stop
from spdl_async._runtime.ticket import FAILED, Item, OpFailure, Ticket, kept_source
from spdl_async.statistics import StageStatistics

FAST_SECONDS = 0.0002
FLOOR = 2  # one item on its way to the loop, one being made
SLICE_SECONDS = 0.001
FAILURES_IN_A_ROW = 100


class SourceStep(Step):
    """Reads one source; ``open_source`` returns its iterable, or raises."""

    def __init__(
        self,
        host: Host,
        out: Channel,
        open_source: Callable[[], Any],
        *,
        on_loop: bool,
        epoch: int,
        max_chunk: int,
        judge: Judge,
        meter: Meter,
        thread_name: str,
    ) -> None:
        super().__init__(host, None, out)
        self.open_source = open_source
        self.on_loop = on_loop
        self.epoch = epoch
        self.judge = judge
        self.meters = [meter]
        self.pace = Pace(FLOOR, max_chunk)
        self.pulled = 0
        self.puller = Puller(self, thread_name)
        self.signal = Signal(host.loop)
        self.in_a_row = 0
        self.first_in_a_row: BaseException | None = None

    def start(self) -> None:
        self.launch(self.read(), "read")

    @property
    def quiet(self) -> bool:
        return not self.puller.alive

    def stop(self) -> None:
        super().stop()
        self.puller.stop()

    def running(self) -> list[tuple[str, int, Item | None]]:
        thread = self.puller.ident
        return [(self.meters[0].name, thread, None)] if self.puller.alive else []

    async def read(self) -> None:
        """Read until the end or a failure that ends the run."""
        error: BaseException | None
        if not self.on_loop:
            error = await self.read_thread()
            if error is None and self.puller.for_loop is not None:
                error = await self.read_async(self.puller.for_loop)
        else:
            error = await self.read_async(None)
        self.out.close(error or self.judge.at_end())

    def accept(self, items: list[Item]) -> tuple[list[Item], BaseException | None]:
        """Settle failures among what was read; return the good items and what ends the run."""
        good: list[Item] = []
        judge = self.judge
        for item in items:
            judge.count_calls(1)
            if item.state != FAILED:
                self.in_a_row = 0
                self.first_in_a_row = None
                good.append(item)
                if judge.budget.limit is not None and (error := judge.over_budget()):
                    return good, error
                continue
            failure = item.value
            self.meters[0].failed += 1
            error = judge.verdict(item, failure)
            self.in_a_row += 1
            if self.first_in_a_row is None:
                self.first_in_a_row = failure.exception
            if error is None and self.in_a_row >= FAILURES_IN_A_ROW:
                error = self.first_in_a_row
                error.add_note(f"spdl_async: the source failed {self.in_a_row} times in a row")
            if error is not None:
                return good, error
        return good, None

    def at_source_end(self) -> BaseException | None:
        """Return the failure that ended the source, where its end came right after one.

        A generator that has raised is finished: ``next`` then says that it ended, which is no
        proof that there was no more data.
        """
        error = self.first_in_a_row
        if error is not None:
            error.add_note("spdl_async: the source ended right after it had failed")
        return error

    # Sync iterables

    async def read_thread(self) -> BaseException | None:
        """Take what the thread pulls, and grant it credit as items leave."""
        puller, meter, host = self.puller, self.meters[0], self.host
        puller.start()
        while True:
            items = puller.take()
            if items:
                good, error = self.accept(items)
                host.ledger.opened += len(good)
                host.ledger.note_peak()
                meter.items_in += len(good)
                meter.queue = len(good)
                meter.peak = max(meter.peak, len(good))
                await self.put_all(good, meter)
                if error is not None:
                    puller.stop()
                    return error
                self.pace.look(meter.items_out, puller.fast)
                puller.grant(len(items), self.pace.window)
            elif puller.finished:
                if puller.buffer:
                    continue
                return None if puller.for_loop is not None else self.at_source_end()
            else:
                await self.signal.wait()

    # Async iterables

    async def read_async(self, given: Any) -> BaseException | None:
        """Read an async iterable on the loop, closing it in this task."""
        try:
            source = self.open_source() if given is None else given
            if inspect.isawaitable(source):
                source = await source
            if not isinstance(source, AsyncIterable):
                self.open_source = lambda: source
                return await self.read_thread()
            iterator = aiter(source)
        except BaseException as error:  # noqa: BLE001 -- the policy decides
            return self.failed_to_open(error)
        try:
            return await self.iterate(iterator)
        finally:
            closing = getattr(iterator, "aclose", None)
            if closing is not None:
                await self.close(closing)

    async def close(self, closing: Callable[[], Any]) -> None:
        """Close the async iterator; an error in that is an error of the source."""
        try:
            await closing()
        except Exception as error:  # noqa: BLE001 -- recorded
            item = self.failed_item(error)
            self.judge.note(item, item.value)

    async def iterate(self, iterator: AsyncIterator[Any]) -> BaseException | None:
        """Put items one by one; the next step takes what has gathered when it comes."""
        meter, ledger = self.meters[0], self.host.ledger
        began = resumed = clock()
        while True:
            try:
                value = await anext(iterator)
            except StopAsyncIteration:
                return self.at_source_end()
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and _asked_to_stop():
                    raise
                item = self.failed_item(error)
            else:
                item = Item(value, Ticket(self.epoch, self.pulled, kept_source(value)))
            self.pulled += 1
            meter.busy += clock() - began
            good, error_or_none = self.accept([item])
            if good:
                ledger.opened += 1
                ledger.note_peak()
                meter.items_in += 1
                meter.queue = meter.peak = 1
                await self.put_all(good, meter)
                meter.queue = 0
            if error_or_none is not None:
                return error_or_none
            began = clock()
            if began - resumed > SLICE_SECONDS:
                await asyncio.sleep(0)
                began = resumed = clock()

    def failed_item(self, error: BaseException) -> Item:
        """Return an item that carries a failure of the source."""
        item = Item(caught(error), Ticket(self.epoch, self.pulled, None))
        item.state = FAILED
        return item

    def failed_to_open(self, error: BaseException) -> BaseException:
        """Record that the source could not be opened, which no policy skips."""
        if isinstance(error, asyncio.CancelledError) and _asked_to_stop():
            raise error
        item = self.failed_item(error)
        failure: OpFailure = item.value
        self.judge.note(item, failure)
        return failure.exception

    def unreached_failures(self) -> None:
        for item in self.puller.buffer:
            if item.state == FAILED:
                self.judge.note(item, item.value)
        self.puller.buffer.clear()

    def statistics(self) -> list[StageStatistics]:
        return [self.meters[0].snapshot(self.puller.busy)]


class Puller:
    """The thread that pulls a sync iterable."""

    def __init__(self, step: SourceStep, name: str) -> None:
        self.step = step
        self.name = name
        self.buffer: deque[Item] = deque()
        self.allowed = 1
        self.starving = False
        self.fast = False
        self.woken = False
        self.cancelled = False
        self.finished = False
        self.alive = False
        self.ident = 0
        self.thread: threading.Thread | None = None
        self.left = 0
        self.busy = 0.0
        self.chunk_start = 0
        self.slow = 0
        self.for_loop: Any = None
        self.seen = -1
        self.timer: TimerHandle | None = None
        self.gate: SimpleQueue[None] = SimpleQueue()

    # On the loop

    def start(self) -> None:
        """Start the thread."""
        self.alive = True
        self.finished = False
        self.thread = threading.Thread(target=self.run, name=self.name, daemon=True)
        self.thread.start()
        self.ident = self.thread.ident or 0

    def stop(self) -> None:
        """Have the thread end as soon as the source lets it."""
        self.cancelled = True
        self.gate.put(None)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def grant(self, taken: int, limit: int) -> None:
        """Account for items that left, and allow the thread to have ``limit`` items waiting."""
        self.left += taken
        allowed = self.left + limit
        if allowed > self.allowed:
            self.allowed = allowed
        if self.starving:
            self.starving = False
            self.gate.put(None)

    def take(self) -> list[Item]:
        """Return what has been pulled."""
        buffer = self.buffer
        return [buffer.popleft() for _ in range(len(buffer))]

    def on_wake(self) -> None:
        """Hear from the thread that there is something to take, or that it has ended."""
        self.woken = False
        self.step.signal.set()
        if self.finished and not self.alive:
            self.step.host.became_quiet()
        elif self.fast and self.timer is None and not self.cancelled:
            self.woken = True
            self.timer = self.step.host.loop.call_later(COMPANY_SECONDS, self.on_timer)

    def on_timer(self) -> None:
        """Look for items of a fast source, which does not announce each; until it slows down."""
        self.timer = None
        pulled = self.step.pulled
        if not self.fast or pulled == self.seen:
            self.fast = False
            self.woken = False
        else:
            self.seen = pulled
            self.timer = self.step.host.loop.call_later(COMPANY_SECONDS, self.on_timer)
        self.step.signal.set()

    # In the thread

    def wake(self, *, always: bool = False) -> None:
        """Have the loop look, unless it is about to."""
        if always or not self.woken:
            self.woken = True
            try:
                self.step.host.loop.call_soon_threadsafe(self.on_wake)
            except RuntimeError:  # the loop is closed: nobody waits for items any more
                pass

    def run(self) -> None:
        """Pull the source in a copy of the run's context."""
        current.swap(self)
        try:
            self.step.host.context.copy().run(self.pull)
        except BaseException as error:  # noqa: BLE001 -- ours; must not end the thread silently
            self.step.host.crashed(error)
        finally:
            self.finished = True
            self.alive = False
            self.wake(always=True)

    def pull(self) -> None:
        """Open the source and pull it to its end."""
        step = self.step
        began = clock()
        try:
            source = step.open_source()
            if isinstance(source, AsyncIterable) or inspect.isawaitable(source):
                self.for_loop = source
                return
            iterator = iterate(source)
        except BaseException as error:  # noqa: BLE001 -- recorded; no policy skips it
            self.put_failure(error)
            return
        self.busy += clock() - began
        try:
            self.pull_all(iterator)
        finally:
            if isinstance(iterator, Generator):
                try:
                    iterator.close()
                except BaseException as error:  # noqa: BLE001 -- recorded on the loop
                    self.put_failure(error)

    def pull_all(self, iterator: Iterator[Any]) -> None:
        """Pull as far as credit reaches, again and again."""
        step = self.step
        epoch, append = step.epoch, self.buffer.append
        now = clock()
        while not self.cancelled:
            if step.pulled >= self.allowed:
                self.wait_for_credit()
                now = clock()
                continue
            try:
                value = next(iterator)
            except StopIteration:
                return
            except BaseException as error:  # noqa: BLE001 -- the policy decides, on the loop
                fatal = self.put_failure(error)
                if fatal:
                    return
                now = clock()
                continue
            append(Item(value, Ticket(epoch, step.pulled, kept_source(value))))
            step.pulled += 1
            before, now = now, clock()
            spent = now - before
            self.busy += spent
            if spent > FAST_SECONDS:
                self.slow += 1
                self.wake(always=self.timer is not None)  # it may be long until the next one
            elif not self.woken:
                self.wake()

    def wait_for_credit(self) -> None:
        """Wait until the loop grants more."""
        self.starving = True
        if self.step.pulled < self.allowed or self.cancelled:
            self.starving = False
            return
        # Counted, not averaged: one wait for the GIL outweighs a thousand quick items.
        self.fast = self.slow * 4 <= self.step.pulled - self.chunk_start
        self.wake(always=True)
        self.gate.get()
        self.chunk_start, self.slow = self.step.pulled, 0

    def put_failure(self, error: BaseException) -> bool:
        """Hand a failure to the loop; return whether it surely ends the run."""
        step = self.step
        item = step.failed_item(error)
        step.pulled += 1
        self.buffer.append(item)
        self.wake(always=True)
        return step.judge.raises or not isinstance(item.value.exception, Exception)


def iterate(source: Any) -> Iterator[Any]:
    """Return an iterator over a sync source, by index where it offers only that."""
    if hasattr(source, "__iter__"):
        return iter(source)
    return by_index(source)


def by_index(source: Any) -> Iterator[Any]:
    """Read ``source[0]``, ``source[1]``, … ``len(source)`` times.

    An ``IndexError`` inside is an error of the source, not its end.
    """
    return IndexIterator(source)


class IndexIterator:
    """Reads a sequence by index; an item that fails does not end it."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.indices = iter(range(len(source)))

    def __iter__(self) -> IndexIterator:
        return self

    def __next__(self) -> Any:
        index = next(self.indices)
        return self.source[index]
