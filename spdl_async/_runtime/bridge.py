"""The sink: a bounded hand-over from the engine's loop to whoever takes the results.

The consumer may be a task on the same loop, a task on another loop, or an ordinary thread. Its
buffer *is* the sink's. The engine may put while there is room; each result taken gives room back.
Waiting is by condition on both sides: nothing polls.

A result is taken by the consumer itself, when it runs, so a consumer that is cancelled while it
waits loses nothing and keeps nothing from others.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable
from time import perf_counter as clock
from typing import Any

from spdl_async._runtime.channel import nobody
from spdl_async._runtime.ticket import Item, Ledger
from spdl_async.errors import RunStateError

CLOSED_WHILE_WAITING = (
    "the run was closed while this task waited for its next result: another task called aclose() "
    "or left the `async with` block. Results are only to be had inside it."
)


class Empty(Exception):  # noqa: N818 -- a signal, as queue.Empty is
    """Nothing is ready yet."""


class Handover:
    """The buffer between the engine and its consumer.

    Attributes:
        delivered: results taken.
        waiting: seconds in which consumers waited.
        end_seen: when a consumer first learned that there is no more.
        failed: whether the pass has failed; the error itself is kept for consumers only.
        on_wait: told, in the consumer's thread, that a consumer begins to wait.
        claim: what a result goes through in the consumer's thread.
    """

    def __init__(self, size: int, claim: Callable[[Any], Any] | None = None) -> None:
        self.size = size
        self.claim = claim
        self.buffer: deque[Item] = deque()
        self.taken: deque[Item] = deque()
        # After the engine's end its loop and the consumer's threads may settle at once. No finalizer does.
        self.settling = threading.RLock()
        self.ended = False
        self.closed = False
        self.closed_because = CLOSED_WHILE_WAITING
        self.at_exit = False
        self.error: BaseException | None = None
        self.failed = False
        self.trace: Any = None
        self.delivered = 0
        self.waiting = 0.0
        self.end_seen = 0.0
        self.engine_loop: AbstractEventLoop | None = None
        self._engine_thread = 0
        self._starved = False
        self._room_called = False
        self._on_room: Any = None
        self.on_wait: Callable[[], None] | None = None
        self._tasks: deque[tuple[AbstractEventLoop, Future[None]]] = deque()
        self._threads: deque[tuple[threading.Lock, bool]] = deque()

    @property
    def waits(self) -> bool:
        """Whether a result waits for the consumer."""
        return bool(self.buffer) and not self.closed

    # The engine's side

    def attach(self, loop: AbstractEventLoop, on_room: Any) -> None:
        """Tell where the engine runs and what to call there when room appears."""
        self.engine_loop = loop
        self._engine_thread = threading.get_ident()
        self._on_room = on_room

    def room(self) -> int:
        """Return how many results the sink has room for; negative where some lie beyond it."""
        return self.size - len(self.buffer)

    def put(self, items: list[Item]) -> None:
        """Add results and wake as many waiting consumers."""
        if self.closed:
            return
        self.buffer.extend(items)
        for _ in items:
            self._wake_one()

    def finish(self, error: BaseException | None) -> None:
        """End the results; the error is attached before anyone can see the end."""
        if not self.ended:
            self.error, self.failed = error, error is not None
            self.trace = None if error is None else error.__traceback__
            self.ended = True
            if self.closed:
                self._let_go()
            self._wake_all()

    def close(self) -> None:
        """End for good: what waits is told, what is in the buffer is dropped, a failure is let go."""
        self.closed = True
        self.buffer.clear()
        self._let_go()
        self._wake_all()
        self._tell_room()

    def _let_go(self) -> None:
        """Let go of a failure that nobody can be told any more: its frames hold items."""
        self.error = self.trace = None

    def forget_engine(self) -> None:
        """Keep nothing of the engine alive, which needs no room any more."""
        self._on_room = None

    def settle(self, ledger: Ledger) -> None:
        """Account for the results that were taken; on the engine's loop, or after its end, in any thread."""
        taken = self.taken
        with self.settling:
            while taken:
                ledger.release(taken.popleft())

    def close_at_exit(self) -> None:
        """End because the interpreter does: tell threads of other runs, which are waited for.

        Daemon threads of the user's go on waiting, those that come later too; an exception there would
        only be noise beside the program's own end.
        """
        self.at_exit = True
        foreign = deque(waiter for waiter in self._threads if not waiter[1])
        self._threads = deque(waiter for waiter in self._threads if waiter[1])
        self.close()
        self._threads = foreign

    def close_in_fork(self, why: str) -> None:
        """End in a forked child, where no thread is left that could be waited for or woken."""
        self.closed_because = why
        self.settling = threading.RLock()  # a thread of the parent may hold the one before
        self.closed = True
        self.buffer.clear()
        self._tasks.clear()
        self._threads.clear()

    def room_seen(self) -> None:
        """Clear the coalescing flag, before the engine looks at the room."""
        self._room_called = False

    def _wake_one(self) -> None:
        while self._threads:
            try:
                lock, _ = self._threads.popleft()
            except IndexError:
                break
            try:
                lock.release()
            except RuntimeError:  # it was woken already, by an end
                continue
            return
        while self._tasks:
            try:
                loop, waiter = self._tasks.popleft()
            except IndexError:
                return
            if self._wake_task(loop, waiter):
                return

    def _wake_task(self, loop: AbstractEventLoop, waiter: Future[None]) -> bool:
        if waiter.done():
            return False
        if loop is self.engine_loop:
            waiter.set_result(None)
            return True
        try:
            loop.call_soon_threadsafe(self._resolve, waiter)
        except RuntimeError:  # the consumer's loop is closed
            return False
        return True

    def _resolve(self, waiter: Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)
        elif waiter.cancelled():
            self.pass_on()

    def _wake_all(self) -> None:
        while self._threads or self._tasks:
            self._wake_one()

    # The consumer's side

    def take(self) -> Any:
        """Return a result that is ready.

        Raises:
            Empty: none is, but more may come.
            StopAsyncIteration: that was all.
            RunStateError: the run is closed.
        """
        try:
            item = self.buffer.popleft()
        except IndexError:
            pass
        else:
            if self.closed:  # meanwhile: what came before it is gone
                raise RunStateError(self.closed_because)
            value, item.value = item.value, None
            self.taken.append(item)
            self.delivered += 1
            # A consumer that has to wait anyway is the faster side: it gives room back in one go.
            if not self._starved or not self.buffer:
                self._starved = False
                self._tell_room()
            return value if self.claim is None else self.claim(value)
        if self.closed:
            raise RunStateError(self.closed_because)
        if self.ended and not self.buffer:
            if not self.end_seen:
                self.end_seen = clock()
            error = self.error
            if error is not None:
                try:
                    raise error.with_traceback(self.trace)
                finally:
                    del error  # which would hold itself by this frame
            if self.closed:  # in between
                raise RunStateError(self.closed_because)
            raise StopAsyncIteration
        raise Empty

    def _tell_room(self) -> None:
        on_room = self._on_room
        if self._room_called or self.engine_loop is None or on_room is None:
            return
        self._room_called = True
        if threading.get_ident() == self._engine_thread:
            on_room()
            return
        try:
            self.engine_loop.call_soon_threadsafe(on_room)
        except RuntimeError:  # the engine's loop is closed: it needs no room any more
            pass

    def consumer_waits(self) -> bool:
        """Tell whether somebody waits for a result now."""
        return bool(self._threads) or any(not waiter.done() for _, waiter in list(self._tasks))

    def pass_on(self) -> None:
        """Let another consumer have the wake-up of one that gave up."""
        if self.buffer or self.ended or self.closed:
            self._wake_one()

    async def next_async(self) -> Any:
        """Wait for a result in a task; cancelling loses nothing."""
        while True:
            try:
                return self.take()
            except Empty:
                pass
            except RunStateError:
                if self.at_exit and _is_left_at_exit():
                    await asyncio.get_running_loop().create_future()
                raise
            loop = asyncio.get_running_loop()
            waiter: Future[None] = loop.create_future()
            self._tasks.append((loop, waiter))
            if self.buffer or self.ended or self.closed:  # it came in between
                self._wake_one()
            elif self.on_wait is not None:
                self.on_wait()
            began = clock()
            self._starved = True
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self.pass_on()
                raise
            finally:
                self.waiting += clock() - began

    def next_sync(self) -> Any:
        """Wait for a result in an ordinary thread."""
        while True:
            try:
                return self.take()
            except Empty:
                pass
            except RunStateError:
                if self.at_exit and _is_left_at_exit():
                    threading.Event().wait()
                raise
            lock = threading.Lock()
            lock.acquire()
            waiter = (lock, threading.current_thread().name.startswith("spdl_async-"))
            self._threads.append(waiter)
            if self.buffer or self.ended or self.closed:
                self._wake_one()
            elif self.on_wait is not None:
                self.on_wait()
            began = clock()
            self._starved = True
            try:
                lock.acquire()
            except BaseException:  # KeyboardInterrupt
                try:
                    self._threads.remove(waiter)
                except ValueError:  # the wake-up had come
                    self.pass_on()
                raise
            finally:
                self.waiting += clock() - began


def _is_left_at_exit() -> bool:
    thread = threading.current_thread()
    return thread.daemon and not thread.name.startswith("spdl_async-")


class Sink:
    """The engine's end of the hand-over: what the last step writes to instead of a channel.

    Results beyond the sink's size lie in the buffer too, where a consumer that is faster finds them
    without a round trip, but they are still the last step's: it goes on counting them.
    """

    __slots__ = (
        "_at_end",
        "_beyond",
        "_handover",
        "_ledger",
        "_loop",
        "_results",
        "on_close",
        "on_demand",
        "on_emptied",
        "on_taken",
        "quorum",
    )

    def __init__(
        self,
        loop: AbstractEventLoop,
        handover: Handover,
        ledger: Ledger,
        at_end: Callable[[int], BaseException | None],
    ) -> None:
        self._handover = handover
        self._ledger = ledger
        self._at_end = at_end
        self._beyond = 0
        self._results = 0
        self.quorum = 1
        self.on_taken: Callable[[int], None] = nobody
        self.on_demand: Callable[[], None] | None = None
        self.on_emptied: list[Callable[[], None]] = []
        self.on_close: Callable[[BaseException | None], bool] | None = None
        handover.attach(loop, self.on_room)

    def on_room(self) -> None:
        """Account for what was taken; there is room again."""
        handover = self._handover
        handover.room_seen()
        handover.settle(self._ledger)
        if not handover.closed:  # else nobody wants more
            self._account(0)
            if self.on_demand is not None and not handover.ended:
                self.on_demand()
        if not handover.buffer:
            for emptied in self.on_emptied:
                emptied()

    @property
    def empty(self) -> bool:
        """Whether no result waits for the consumer."""
        return not self._handover.waits

    def room(self) -> int:
        return max(0, self._handover.room())

    def push(self, items: list[Item]) -> None:
        self._handover.put(items)
        self._results += len(items)
        self._account(len(items))

    def _account(self, added: int) -> None:
        beyond = max(0, -self._handover.room())
        passed = self._beyond + added - beyond
        self._beyond = beyond
        if passed:
            self.on_taken(passed)

    def close(self, failure: BaseException | None = None) -> None:
        if self.on_close is not None and self.on_close(failure):
            return
        if self._handover.ended:  # by a failure: what comes behind it is not judged
            return
        self._handover.finish(failure or self._at_end(self._results))
