"""The async face of a run."""

from __future__ import annotations

import asyncio
import enum
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter as clock
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar, cast

from spdl_async._order import Order
from spdl_async._wrong_face import NotOrdinary
from spdl_async.errors import RunStateError, ShutdownTimeout, note_once
from spdl_async.statistics import Failures, RunStatistics

if TYPE_CHECKING:
    from spdl_async._start import BasePass

T_co = TypeVar("T_co", covariant=True)

LoopChoice = Literal["auto", "caller", "own"]

BLOCKED_SECONDS = 0.1

logger = logging.getLogger("spdl_async")


class State(enum.Enum):
    """Where a run is in its life; the value completes "the run …"."""

    NEW = "was not entered"
    OPEN = "is open"
    CLOSED = "is closed"


@contextmanager
def beside(error: BaseException | None) -> Iterator[None]:
    """Leave a block: what goes wrong in that is a note on the body's own exception, if there is one."""
    try:
        yield
    except (ShutdownTimeout, RunStateError) as late:
        if error is None:
            raise
        note_once(error, f"spdl_async: beside this, {late}")


NOT_ENTERED = """the run was not entered. Either

    async with pipeline.run() as run:
        async for batch in run:
            ...

or, for one pass without statistics,

    async for batch in pipeline:
        ..."""

ENTERED_TWICE = "the run was entered before: a run is one pass; call pipeline.run() for another"
AFTER_CLOSE = "the run is closed: its results are only to be had inside the `async with` block"


class PipelineRun(NotOrdinary, Generic[T_co]):
    """One pass over a pipeline: an async context manager and an async iterator.

    Leaving the ``async with`` block returns when everything that the run has started has ended, but for
    calls that were abandoned because their time was over. Only a second cancellation ends it earlier.

    >>> import asyncio
    >>> from spdl_async import PipelineBuilder
    >>> async def main():
    ...     pipeline = PipelineBuilder().add_source(range(5)).aggregate(2).build()
    ...     async with pipeline.run() as run:
    ...         return [batch async for batch in run]
    >>> asyncio.run(main())
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, order: Order, *, loop: LoopChoice, short: bool) -> None:
        self._order = order
        self._own_loop = (order.plan.loop if loop == "auto" else loop) == "own"
        self._short = short
        self._state = State.NEW
        self._started: BasePass | None = None
        self._watch = None if self._own_loop else _Watch(order.plan.name)

    # Life

    async def __aenter__(self) -> Self:
        """Start the pass.

        Raises:
            RunStateError: the run was entered before, or its one-shot source is used up.
        """
        if self._state is not State.NEW:
            raise RunStateError(ENTERED_TWICE)
        self._start()
        return self

    def _start(self) -> BasePass:
        from spdl_async._start import Started

        self._started = Started(self._order, own_loop=self._own_loop)
        self._state = State.OPEN
        return self._started

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with beside(error):
            # A block that a cancellation ends has had its first.
            await self._leave(patient=not isinstance(error, asyncio.CancelledError))

    async def aclose(self) -> None:
        """Stop the run and wait until nothing of it runs any more.

        A cancellation ends the waiting at once, but not the stop; calling again waits again.

        Raises:
            ShutdownTimeout: user code still ran after ``shutdown_timeout`` seconds.
        """
        await self._leave(patient=False)

    async def _leave(self, *, patient: bool) -> None:
        was, self._state = self._state, State.CLOSED
        started = self._started
        if started is None or (was is State.CLOSED and started.ended.done()):
            return
        started.close()
        await started.wait_ended(self._order.shutdown_timeout, patient=patient)

    def __del__(self) -> None:
        # May run in any thread at any instant: takes no lock, runs no user code.
        started = getattr(self, "_started", None)
        if started is None or self._state is State.CLOSED or started.forked:
            return
        started.stop()
        if not self._short:
            warnings.warn(
                f"a run of pipeline {self._order.plan.name!r} was dropped while open; leave its "
                f"`async with` block or await run.aclose()",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )

    # Results

    def __aiter__(self) -> Self:
        if self._state is State.NEW and not self._short:
            raise RunStateError(NOT_ENTERED)
        return self

    async def __anext__(self) -> T_co:
        """Return the next result.

        Cancelling loses nothing: the result goes to whoever asks next.

        Raises:
            StopAsyncIteration: that was all.
            RunStateError: the run was not entered, or is closed.
            Exception: what user code raised; ``run.failures`` lists what else failed.
        """
        started = self._started
        if self._state is not State.OPEN or started is None:
            started = self._begin_short()
        watch = self._watch
        if watch is not None and not started.handover.ended:
            watch.look(len(started.handover.buffer))
        try:
            value = await started.handover.next_async()
        except StopAsyncIteration:
            if self._short:
                await self.aclose()
            raise
        except BaseException as error:
            if self._short and error is started.error:
                self._state = State.CLOSED
                started.stop()
            raise
        if watch is not None:
            watch.hand_over()
        return cast("T_co", value)

    def _begin_short(self) -> BasePass:
        if self._short and self._state is State.NEW:
            return self._start()
        if self._state is State.NEW:
            raise RunStateError(NOT_ENTERED)
        if self._short:
            raise StopAsyncIteration
        raise RunStateError(AFTER_CLOSE)

    # Looking

    @property
    def epoch(self) -> int:
        """Number of the pass, from 0."""
        return self._seen().epoch

    @property
    def failures(self) -> Failures:
        """What user code has failed on, at most the first thousand; readable after the end too."""
        return self._seen().failures

    def statistics(self) -> RunStatistics:
        """Return a snapshot of what each stage did; ``str()`` of it is a table."""
        return self._seen().statistics()

    def _seen(self) -> BasePass:
        if self._started is None:
            raise RunStateError(NOT_ENTERED)
        return self._started


class _Watch:
    """Warns once when the consumer has blocked the caller's loop long enough to starve the run.

    It looks at a step of the consumer only when the one before took long, so a quick consumer costs
    nothing.
    """

    __slots__ = ("_handed", "_loop_ran", "_name", "_suspect", "_warned")

    def __init__(self, name: str) -> None:
        self._name = name
        self._handed = 0.0
        self._loop_ran = 0.0
        self._suspect = False
        self._warned = False

    def hand_over(self) -> None:
        """Note that the consumer got a result, and when the loop runs again after that."""
        self._handed = clock()
        self._loop_ran = 0.0
        if self._suspect:
            asyncio.get_running_loop().call_soon(self._ran)

    def _ran(self) -> None:
        if not self._loop_ran:
            self._loop_ran = clock()

    def look(self, ready: int) -> None:
        """Look how long the consumer kept the loop; nothing ``ready`` means that it starved us."""
        if self._warned or not self._handed:
            return
        now = clock()
        blocked = (self._loop_ran or now) - self._handed
        if self._suspect and not ready and blocked >= BLOCKED_SECONDS:
            self._warned = True
            logger.warning(
                "the consumer of pipeline %r blocked the event loop for %.0f ms, in which the "
                "pipeline could not work: await asyncio.to_thread(step, batch), or use "
                "loop='own' in pipeline.run() or epochs() where no op holds resources of this loop",
                self._name,
                blocked * 1e3,
            )
        self._suspect = now - self._handed >= BLOCKED_SECONDS and not self._warned
