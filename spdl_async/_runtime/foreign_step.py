"""Stages on a given executor that is no thread pool, such as a ``ProcessPoolExecutor``.

Nothing of the runtime travels: one submit is a module-level function with the ops and one value.
The worker sends back how it ended; exceptions keep their type, and the text of the worker's
traceback comes along as a note.
"""

from __future__ import annotations

import functools
import pickle
import traceback
from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from spdl_async._plan.results import is_plain
from spdl_async._plan.steps import ABANDONED_FACTOR
from spdl_async._runtime.abandoned import log_late, too_many_abandoned
from spdl_async._runtime.channel import Channel, Outlet
from spdl_async._runtime.deadline import time_over
from spdl_async._runtime.failures import Judge, caught, note_once
from spdl_async._runtime.hop import CANCELLED
from spdl_async._runtime.meter import Meter, clock
from spdl_async._runtime.pace import Pace
from spdl_async._runtime.retrying import Backoff
from spdl_async._runtime.slotted_step import SlottedStep
from spdl_async._runtime.step import Host, guarded
from spdl_async._runtime.telling import speaker
from spdl_async._runtime.ticket import DONE, DROPPED, FAILED, Item, OpFailure, where_is
from spdl_async.spec.markers import DROP

Outcome = tuple[str, int, Any, str, float]


@functools.cache
def unread_meter(concurrency: int) -> Meter:
    """Return what ops in a worker speak to: it tells them how many they are, and nobody looks."""
    return Meter("", "executor", concurrency)


def work(calls: tuple[Callable[[Any], Any], ...], value: Any, concurrency: int) -> Outcome:
    """Run ops on a value in a worker; return (how it ended, op index, value or error, text, s)."""
    before = speaker.set(unread_meter(concurrency))
    try:
        return outcome_of(calls, value)
    finally:
        speaker.reset(before)


def outcome_of(calls: tuple[Callable[[Any], Any], ...], value: Any) -> Outcome:
    """Run ops on a value."""
    began = clock()
    plain: set[type] = set()
    at = 0
    try:
        for at, call in enumerate(calls):
            value = call(value)
            if value is DROP:
                return "dropped", at, None, "", clock() - began
            if not is_plain(value, plain):
                close = getattr(value, "close", None)
                if close is not None:
                    close()
                raise TypeError(
                    "an op on a foreign executor returned an awaitable, which cannot leave the "
                    "worker; make it an async def op, which stays on the loop"
                )
    except (KeyboardInterrupt, SystemExit) as error:
        return "failed", at, portable(error), traceback.format_exc(), clock() - began
    except BaseException as error:  # noqa: BLE001 -- the stage's policy decides, in the parent
        return "failed", at, portable(error), traceback.format_exc(), clock() - began
    return "done", at, value, "", clock() - began


class Portable:
    """An exception taken apart, for types that pickle cannot rebuild by calling them."""

    def __init__(self, error: BaseException) -> None:
        self.kind = type(error)
        self.args = error.args
        self.state = dict(error.__dict__)

    def rebuild(self) -> BaseException:
        """Make the exception again without running its ``__init__``."""
        error = self.kind.__new__(self.kind, *self.args)
        error.args = self.args
        error.__dict__.update(self.state)
        return error


def portable(error: BaseException) -> Any:
    """Return ``error`` in a form that survives pickling, keeping its type wherever possible."""
    for form in (error, Portable(error)):
        try:
            pickle.loads(pickle.dumps(form))
        except Exception:  # noqa: BLE001 -- any failure means: try the next form
            continue
        return form
    return RuntimeError(f"{type(error).__qualname__}: {error} (its type cannot be pickled)")


class ForeignStep(SlottedStep):
    """1→1 sync ops on an executor whose workers share no memory with us."""

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        calls: list[Callable[[Any], Any]],
        *,
        executor: Executor,
        concurrency: int,
        window: int,
        ordered: bool,
        judges: list[Judge],
        meters: list[Meter],
        timeout: float | None = None,
    ) -> None:
        super().__init__(
            host,
            source,
            out,
            concurrency=concurrency,
            ordered=ordered,
            pace=Pace(window, window),
            judges=judges,
            meters=meters,
        )
        self.calls = tuple(calls)
        self.executor = executor
        self.inbox: deque[Item] = deque()
        self.futures: dict[Future[Outcome], Item] = {}
        self.timeout = timeout
        self.timers: dict[Future[Outcome], TimerHandle] = {}
        self.lost: dict[Future[Outcome], Item] = {}
        self.arguments: dict[Item, Any] = {}  # of items whose calls may be made again
        if judges[0].retries is not None:  # such a stage has one op
            self.backoff = Backoff(host.loop, self.count_retry, self.pump)

    @property
    def quiet(self) -> bool:
        return not self.futures

    def slots_taken(self) -> int:
        return len(self.futures)

    def use_slots(self) -> None:
        self.pump()

    def begin(self, items: list[Item]) -> None:
        self.inbox.extend(items)
        self.pump()

    @guarded
    def pump(self) -> None:
        """Submit as many items as may run at once; first those whose call is made again."""
        due: deque[Item] = deque() if self.backoff is None else self.backoff.due
        while len(self.futures) < self.concurrency and not self.cancelled:
            if due:  # begun before, so it goes on even after a failure that ends the run
                item = due.popleft()
            elif self.inbox and not self.halted:
                item = self.inbox.popleft()
            else:
                return
            try:
                future = self.executor.submit(work, self.calls, item.value, self.concurrency)
            except Exception as error:  # noqa: BLE001 -- a dead or closed executor fails the item
                self.fail(item, 0, caught(error), "")
                self.advance_soon()
            else:
                self.sent(item, future)

    def sent(self, item: Item, future: Future[Outcome]) -> None:
        """Take note of a submit."""
        if self.backoff is not None:
            self.arguments[item] = item.value
        item.value = None
        self.futures[future] = item
        if self.timeout is not None:
            self.timers[future] = self.host.loop.call_later(self.timeout, self.expire, future)
        future.add_done_callback(self.on_future)

    @guarded
    def expire(self, future: Future[Outcome]) -> None:
        """Give up a call whose time is over, also while the run stops."""
        del self.timers[future]
        item = self.futures.pop(future, None)
        if item is None:
            return
        if not future.cancel():
            self.lost[future] = item
            self.meters[0].abandoned += 1
        if not self.cancelled:
            self.fail(item, 0, time_over(self.meters[0].name, item, self.timeout or 0.0), "")
            if len(self.lost) > ABANDONED_FACTOR * self.concurrency:
                self.advance()
                self.fatal = too_many_abandoned(self, len(self.lost))
        self.after_call()

    def after_call(self) -> None:
        """Go on when a slot is free."""
        if self.quiet:
            self.host.became_quiet()
        self.pump()
        self.advance()

    def on_future(self, future: Future[Outcome]) -> None:
        """Pass a future's end on to the loop; called in a thread of the executor."""
        try:
            self.host.loop.call_soon_threadsafe(self.take_outcome, future)
        except RuntimeError:  # the loop is closed: nobody waits for the result any more
            pass

    @guarded
    def take_outcome(self, future: Future[Outcome]) -> None:
        """Settle one submit, and go on with the next."""
        timer = self.timers.pop(future, None)
        if timer is not None:
            timer.cancel()
        item = self.futures.pop(future, None)
        if item is None:  # its time was over
            self.end_late(future)
            return
        if future.cancelled():
            self.fail(item, 0, caught(RuntimeError(CANCELLED)), "")
        elif (error := future.exception()) is not None:
            self.fail(item, 0, caught(error), "")
        else:
            self.settle_outcome(item, future.result())
        self.after_call()

    def end_late(self, future: Future[Outcome]) -> None:
        """Drop the outcome of an abandoned call."""
        if self.lost.pop(future, None) is None or future.cancelled():
            return
        error = future.exception()
        if error is None and future.result()[0] == "failed":
            error = future.result()[2]
            error = error.rebuild() if isinstance(error, Portable) else error
        if error is not None:
            log_late(self.meters[0].name, error)

    def settle_outcome(self, item: Item, outcome: Outcome) -> None:
        """Note in the item how its call ended."""
        how, at, value, text, seconds = outcome
        # The worker times a fused group as a whole: its last op's stage gets the seconds.
        self.meters[at].busy += seconds
        if how == "done":
            item.value = value
            item.state = DONE
        elif how == "dropped":
            item.at = at
            item.state = DROPPED
        else:
            error = value.rebuild() if isinstance(value, Portable) else value
            self.fail(item, at, caught(error), text)
            return
        self.arguments.pop(item, None)
        if not self.ordered:
            self.done.append(item)

    def fail(self, item: Item, at: int, failure: OpFailure, text: str) -> None:
        """Mark an item as failed, or wait for its next call."""
        argument = self.arguments.pop(item, item.value)
        if text:
            note_once(failure.exception, f"spdl_async: traceback in the worker:\n{text}")
        if self.backoff is not None and not self.cancelled:
            wait = self.judges[0].retry_after(item, failure)
            if wait is not None:
                item.value = argument
                self.backoff.news.append((item, wait))
                self.backoff.arm()
                return
        item.at = at
        item.value = failure
        item.state = FAILED
        if not self.ordered:
            self.done.append(item)
        if self.judges[at].ends(failure):
            self.stop_starting()

    def running(self) -> list[tuple[str, int, Item | None]]:
        return [(self.meters[0].name, 0, item) for item in self.futures.values()]

    def left_behind(self) -> list[str]:
        name = self.meters[0].name
        return [f"stage {name!r} on {where_is(item)}" for item in self.lost.values()]

    def stop(self) -> None:
        super().stop()
        self.inbox.clear()
        self.arguments.clear()
        for future in list(self.futures):
            future.cancel()
