"""Starting an engine on a loop, and ending it: what both faces of a run share."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from spdl_async._loops import LoopThread
from spdl_async._order import Order
from spdl_async._plan.steps import sources_of
from spdl_async._runtime.bridge import Handover
from spdl_async._runtime.engine import Engine
from spdl_async._runtime.inline import InlinePass
from spdl_async._runtime.live import Live, registry
from spdl_async._runtime.shared import Shared
from spdl_async._runtime.telling import new_context
from spdl_async.errors import RunStateError, ShutdownTimeout
from spdl_async.statistics import Failures, RunStatistics


class Ending:
    """Something of ours that runs beside the caller, until it has ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.ended.set_running_or_notify_cancel()
        self.loop_thread: threading.Thread | None = None

    def report(self) -> str:
        """Say what still runs: stage, item, stack."""
        raise NotImplementedError

    def is_asked_from_inside(self) -> bool:
        """Tell whether it is code of its own that asks: that cannot wait for its own end."""
        raise NotImplementedError

    async def wait_ended(self, timeout: float, *, patient: bool = False) -> None:
        """Wait until nothing of it runs any more; not from inside a stage, which is part of that.

        A cancellation ends the waiting at once. Where it is ``patient``, as a block is that is being
        left, the second one does; the first is raised when the waiting is over.

        Raises:
            ShutdownTimeout: user code still ran when ``timeout`` seconds were over.
        """
        if self.is_asked_from_inside():
            return
        first = None
        if not self.ended.done():
            loop = asyncio.get_running_loop()
            over = loop.time() + timeout
            ended = asyncio.wrap_future(self.ended)
            try:
                while True:
                    try:
                        await asyncio.wait([ended], timeout=max(0.0, over - loop.time()))
                        break
                    except asyncio.CancelledError as error:
                        if first is not None or not patient:
                            raise
                        first = error
            finally:
                ended.cancel()
        if self.ended.done():
            self.join()
        elif first is None:
            raise self.too_late(timeout)
        else:
            first.add_note(f"spdl_async: beside this, {self.too_late(timeout)}")
        if first is not None:
            raise first

    def wait_ended_sync(self, timeout: float) -> None:
        """Do the same in an ordinary thread."""
        if self.is_asked_from_inside():
            return
        try:
            self.ended.result(timeout)
        except concurrent.futures.TimeoutError:
            raise self.too_late(timeout) from None
        self.join()

    def join(self) -> None:
        """Join the loop's thread, which has nothing left to do."""
        thread = self.loop_thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def too_late(self, timeout: float) -> ShutdownTimeout:
        """Return the error that names what holds up the stop."""
        return ShutdownTimeout(
            f"pipeline {self.name!r} did not stop within {timeout:g} s:\n{self.report()}"
        )

    def ends_with(self, task: asyncio.Task[None]) -> None:
        """Count as ended when the task that runs it has ended."""
        task.add_done_callback(functools.partial(_resolve, self.ended))


class BasePass(Ending):
    """A pass that runs on a loop: its engine, and the hand-over of its results."""

    def __init__(
        self,
        order: Order,
        epoch: int,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        *,
        own_loop: bool,
        shared: Shared | None = None,
    ) -> None:
        super().__init__(order.plan.name)
        self.epoch = epoch
        self.handover = Handover(order.plan.sink_size, order.plan.claim)
        self.engine = Engine(
            order.plan,
            self.handover,
            loop=loop,
            context=context,
            epoch=epoch,
            on_drop=order.facts.saw_drop,
            own_loop=own_loop,
            stall_warning=order.stall_warning,
            shared=shared,
            devices=order.devices,
        )

    @property
    def forked(self) -> bool:
        """Whether the pass was left behind in the process of which this one is a fork."""
        return self.engine.forked

    def report(self) -> str:
        return self.engine.report()

    def is_asked_from_inside(self) -> bool:
        return self.engine.is_asking()

    def stop(self) -> None:
        """Ask the pass to stop; from any thread, a finalizer included."""
        self.engine.post_stop()

    def close(self) -> None:
        """Ask the pass to stop, and tell whoever waits for a result.

        Raises:
            RunStateError: the pass runs in the process of which this one is a fork.
        """
        if self.forked:
            raise RunStateError(self.handover.closed_because)
        self.handover.close()
        self.engine.post_stop()
        self.engine.rest()

    def next(self) -> object:
        """Return the next result in an ordinary thread; ``StopIteration`` after the last."""
        try:
            return self.handover.next_sync()
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def error(self) -> BaseException | None:
        """What ended the pass, where it failed."""
        return self.handover.error

    def statistics(self) -> RunStatistics:
        """Return a snapshot."""
        return self.engine.statistics()

    @property
    def failures(self) -> Failures:
        """Return the failures so far."""
        return self.engine.failures


class Started(BasePass):
    """A pass with threads, and perhaps a loop, of its own."""

    def __init__(self, order: Order, *, own_loop: bool) -> None:
        epoch = begin_pass(order)
        context = new_context()
        if own_loop:
            thread = LoopThread(f"spdl_async-{order.plan.name}-loop")
            super().__init__(order, epoch, thread.loop, context, own_loop=True)
            with registered(self.engine):
                self.loop_thread = self.engine.loop_thread = thread.start(
                    self.engine.supervise, context, lambda: self.ended.set_result(None)
                )
            return
        loop = asyncio.get_running_loop()
        super().__init__(order, epoch, loop, context, own_loop=False)
        with registered(self.engine):
            task = loop.create_task(
                self.engine.supervise(), name=f"spdl_async: {self.name}", context=context
            )
        task.add_done_callback(functools.partial(unregister, self.engine))
        self.ends_with(task)


def begin_pass(order: Order) -> int:
    """Return the number of the pass that begins.

    Raises:
        RunStateError: the source is an iterator that an earlier pass has used up, or the pipeline was
            built in another process, of which this one is a fork.
    """
    if order.facts.pid != os.getpid():
        raise RunStateError(
            f"pipeline {order.plan.name!r} was built in process {order.facts.pid}, of which this one "
            f"({os.getpid()}) is a fork; what its ops and source hold may need threads that exist "
            f"only there: build a pipeline in this process"
        )
    for source in sources_of(order.plan.source):
        if not source.single_use:
            continue
        if order.facts.source_used:
            raise RunStateError(
                f"the source of {order.plan.name!r} is an iterator ({type(source.source).__name__}), "
                f"which an earlier pass has used up; for several passes give add_source a list, "
                f"another re-iterable, or a callable that returns a fresh iterator"
            )
    order.facts.source_used = True
    number = order.facts.next_epoch()
    return number if order.epoch is None else order.epoch


def start_inline(order: Order) -> InlinePass:
    """Start a pass in the calling thread."""
    return InlinePass(order.plan, order.facts, begin_pass(order), order.devices)


class Registered(Live, Protocol):
    """What is registered by whoever starts it."""

    @property
    def let_go(self) -> bool:
        """Whether something of it goes on after its end."""


@contextmanager
def registered(run: Registered) -> Iterator[None]:
    """Make a run known before its loop begins with it: a fork may come in between."""
    registry.add(run)
    try:
        yield
    except BaseException:
        registry.discard(run)
        raise


def unregister(run: Registered, task: asyncio.Task[None]) -> None:
    """Forget a run whose task has ended; one that was cancelled before it began cannot do so itself."""
    del task
    if not run.let_go:
        registry.discard(run)


def _resolve(ended: concurrent.futures.Future[None], task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # seen: the engine has delivered it to the consumer
    ended.set_result(None)
