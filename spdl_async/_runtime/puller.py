"""The thread that pulls a sync source.

It pulls as far as the loop has granted credit, and waits for more without polling. An item is
visible to the loop as soon as it is pulled; only the wake-ups are coalesced while items come fast.
"""

from __future__ import annotations

import inspect
import threading
from asyncio import TimerHandle
from collections import deque
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

from spdl_async._plan.classify import pieces_of
from spdl_async._plan.results import is_async_iterable
from spdl_async._runtime.cancelled import current
from spdl_async._runtime.hop import SHARE_SECONDS
from spdl_async._runtime.hopping_step import COMPANY_SECONDS
from spdl_async._runtime.ticket import DROPPED, KEPT_TYPES, Item, kept_source
from spdl_async.spec.markers import DROP

if TYPE_CHECKING:
    from spdl_async._runtime.meter import Meter
    from spdl_async._runtime.source_step import SourceStep

NOT_ASYNC = (
    "add_source: the callable returned a {}, which is no async iterable; timeout= is for async sources, "
    "since nothing can interrupt the thread that pulls a sync one"
)


class Puller:
    """The thread that pulls a sync iterable."""

    def __init__(self, step: SourceStep, name: str) -> None:
        self.step = step
        self.host = step.host
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

    @property
    def meter(self) -> Meter:
        """The meter of the source."""
        return self.step.meters[0]

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
        if allowed - self.allowed < limit * 3 // 4:
            return  # not worth waking the thread for
        self.allow(allowed)

    def allow(self, allowed: int) -> None:
        """Let the thread pull so many items in all."""
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
            if is_async_iterable(source) or inspect.isawaitable(source):
                self.for_loop = source
                return
            if step.timeout is not None:
                raise TypeError(NOT_ASYNC.format(type(source).__name__))
            iterator = iterate(source)
            step.opened = True
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
        append = self.buffer.append
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
            kept = value if type(value) in KEPT_TYPES else kept_source(value)
            item = Item(value, step.pulled, kept)
            if value is DROP:
                item.state = DROPPED
            append(item)
            step.pulled += 1
            del item, value  # the thread may now wait for long
            before, now = now, clock()
            spent = now - before
            self.busy += spent
            if spent > SHARE_SECONDS:
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
        return step.judge.ends(item.value)


def iterate(source: Any) -> Iterator[Any]:
    """Return an iterator over a sync source, by index where it offers only that."""
    if isinstance(source, (str, bytes, bytearray)):
        raise TypeError(
            f"add_source: the callable returned one {type(source).__name__}, which would be read "
            f"{pieces_of(source)} by {pieces_of(source)}; return a list, an open file or another iterable"
        )
    if hasattr(source, "__iter__"):
        return iter(source)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return IndexIterator(source)
    raise TypeError(
        f"add_source: the callable returned an object of type {type(source).__name__}, which is no "
        f"iterable, async iterable or sequence"
    )


class IndexIterator:
    """Reads a sequence by index; an item that fails does not end it."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.indices = iter(range(len(source)))

    def __iter__(self) -> IndexIterator:
        return self

    def __next__(self) -> Any:
        index = next(self.indices)
        try:
            return self.source[index]
        except StopIteration as error:  # the source's own protocol is its len(): this is an error
            raise RuntimeError(f"the source raised StopIteration at index {index}") from error
