"""Lifespans: what the ops of a step own is entered before its first item and left after its last.

One task of the step's own does both, since what is entered may belong to a task (``asyncio.timeout``,
a task group, a cancel scope). It starts the step in between, and holds back the end of the step's data
until all is left: so whoever sees the end knows that nothing went wrong in leaving, and what a stage
writes at its end is written. After a failure, or a stop, nothing is held back.

What only a sync context manager does runs in a thread of the pool: loading a model must not hold up the
loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from asyncio import Task
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final, TypeVar

from spdl_async._plan.steps import Lifespan, OpPlan
from spdl_async._runtime.cancelled import current
from spdl_async._runtime.channel import Signal
from spdl_async._runtime.failures import FailureLog, caught, note_once
from spdl_async._runtime.step import Step
from spdl_async._runtime.ticket import Item

S = TypeVar("S", bound=Step)

Leave = Callable[[], Awaitable[Any]]

NOBODY: Final = (None, None, None)  # what a block that ended well gives to __exit__


def in_lifespan(step: S, ops: tuple[OpPlan, ...]) -> S:
    """Give a step a keeper where one of its ops owns something."""
    spans = [(at, op, op.lifespan) for at, op in enumerate(ops) if op.lifespan is not None]
    if spans:
        step.span = Keeper(step, spans)
    return step


class Keeper:
    """Enters what a step's ops own, runs the step, and leaves again."""

    def __init__(self, step: Step, spans: list[tuple[int, OpPlan, Lifespan]]) -> None:
        self.step = step
        self.spans = spans
        self.signal = Signal(step.host.loop)
        self.name = spans[0][1].name
        self.task: Task[None] | None = None
        self.interruptible = False  # an ``__aenter__`` is awaited, which a stop cancels
        self.data_ended = False
        self.released = False
        self.torn_down = False
        self.entered = 0
        self.thread = 0

    # What the step and its outlet call

    def start(self) -> None:
        """Start the task."""
        self.step.host.watchers.append(self.signal)
        self.step.out.on_close = self.hold
        work = self.keep()
        task = self.step.host.spawn(work, f"spdl_async: stage {self.name}: lifespan")
        task.add_done_callback(
            lambda _: work.close()
        )  # a wrapping task factory may not have begun it

    def hold(self, failure: BaseException | None) -> bool:
        """Hold back the end of the step's data, unless it ends with a failure."""
        self.data_ended = True
        self.signal.set()
        return failure is None and not self.released

    def stop(self) -> None:
        """Hear that the step is stopped."""
        if self.interruptible and self.task is not None and not self.task.cancelling():
            self.task.cancel()
        self.signal.set()

    def running(self) -> list[tuple[str, int, Item | None]]:
        """Return (stage, thread ident, None) where a thread enters or leaves."""
        return [(self.name, self.thread, None)] if self.thread else []

    # The task

    async def keep(self) -> None:
        """Enter, run the step, leave."""
        step = self.step
        self.task = asyncio.current_task()
        context = contextvars.copy_context()
        leaves: list[tuple[OpPlan, Leave]] = []
        if await self.enter_all(leaves, context) and not step.cancelled:
            step.start()
            while not self.over:
                await self.news()
        failure = await self.leave_all(leaves)
        self.released = True
        if self.data_ended:
            step.out.close(failure)  # where a failure has closed it before, this says nothing

    @property
    def over(self) -> bool:
        """Whether nothing of the step runs any more, nor will."""
        step = self.step
        if not (self.data_ended or step.cancelled) or not all(task.done() for task in step.tasks):
            return False
        return step.quiet or self.torn_down

    async def news(self) -> None:
        """Wait until something has changed. The loop's teardown cancels every task: a stop request."""
        try:
            await self.signal.wait()
        except asyncio.CancelledError:
            if self.torn_down:
                raise
            self.torn_down = True
            if not self.step.host.torn_down:
                error = RuntimeError(
                    f"the lifespan of stage {self.name!r} was cancelled by code outside"
                )
                self.step.host.crashed(error)

    async def enter_all(
        self, leaves: list[tuple[OpPlan, Leave]], context: contextvars.Context
    ) -> bool:
        """Enter one op after the other; ``False`` after a failure, which ends the run."""
        step = self.step
        for at, op, span in self.spans:
            if step.cancelled:
                return False
            try:
                made = span.makes_owner
                owner = await self.in_thread(span.owner, context) if made else span.owner()
                entered, leave = await self.enter(owner, context)
                leaves.append((op, leave))
                call = span.use(owner, entered)
                if call is not None:
                    step.use_call(at, call)
            except BaseException as error:  # noqa: BLE001 -- a stop, or recorded and delivered
                self.interruptible = False
                if not step.asked_to_stop(error):
                    failure = record(step.host.log, op.name, error, "entering")
                    step.host.cancel_above(step)
                    step.out.close(failure)
                    step.stop()
                elif step.host.torn_down:
                    self.torn_down = True
                return False
        return True

    async def enter(self, owner: Any, context: contextvars.Context) -> tuple[Any, Leave]:
        """Enter one op; return what that gave, and how to leave."""
        manager = manager_of(owner)
        if isinstance(manager, AbstractAsyncContextManager):
            self.interruptible = True
            entered = await manager.__aenter__()
            self.interruptible = False
            return entered, lambda: manager.__aexit__(*NOBODY)
        entered = await self.in_thread(manager.__enter__, context)
        return entered, lambda: self.in_thread(lambda: manager.__exit__(*NOBODY), context)

    async def leave_all(self, leaves: list[tuple[OpPlan, Leave]]) -> BaseException | None:
        """Leave in reverse order; return the first failure."""
        step = self.step
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()  # a stop that interrupted the entering does not concern the leaving
        first = None
        for op, leave in reversed(leaves):
            try:
                await leave()
            except BaseException as error:  # noqa: BLE001 -- recorded, and delivered where the data ended
                if isinstance(error, asyncio.CancelledError) and step.host.torn_down:
                    continue
                failure = record(step.host.log, op.name, error, "leaving")
                first = first or failure
        return first

    async def in_thread(self, call: Callable[[], Any], context: contextvars.Context) -> Any:
        """Run a call in a thread of the pool; once begun it is waited for, as every call in a thread."""
        loop = self.step.host.loop
        outcome: list[tuple[Any, BaseException | None]] = []

        def job() -> None:
            self.thread = threading.get_ident()
            before = current.swap(self.step)
            try:
                outcome.append((context.run(call), None))
            except BaseException as error:  # noqa: BLE001 -- raised in the task
                outcome.append((None, error))
            current.swap(before)
            self.thread = 0
            try:
                loop.call_soon_threadsafe(self.signal.set)
            except RuntimeError:  # the loop is closed: nobody waits any more
                pass

        self.step.host.pool.put(job)
        while not outcome:
            await self.news()
        value, error = outcome[0]
        if error is not None:
            raise error
        return value


def manager_of(owner: Any) -> AbstractAsyncContextManager[Any] | AbstractContextManager[Any]:
    """Return the context manager of an op: what its ``lifespan()`` makes, else itself.

    Raises:
        TypeError: ``lifespan()`` has made something else.
    """
    make = getattr(owner, "lifespan", None) if hasattr(type(owner), "lifespan") else None
    manager = owner if make is None else make()
    if isinstance(manager, (AbstractAsyncContextManager, AbstractContextManager)):
        return manager
    raise TypeError(
        f"lifespan() of {type(owner).__name__} returned a {type(manager).__name__}, which is no context "
        f"manager; write it with @contextlib.asynccontextmanager and one yield"
    )


def record(log: FailureLog, stage: str, error: BaseException, doing: str) -> BaseException:
    """Write down a failure of entering or leaving, with a note that names the stage; return it."""
    failure = caught(error, brief=log.full)
    note_once(
        failure.exception, f"spdl_async: raised while {doing} the lifespan of stage {stage!r}"
    )
    log.add(stage, None, failure)
    return failure.exception
