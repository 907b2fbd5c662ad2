"""Epochs: the passes over a pipeline in a row, for async and for ordinary code."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Literal, NoReturn, Self, TypeVar

from spdl_async._order import Order
from spdl_async._run import LoopChoice, PipelineRun, State, beside
from spdl_async._sync import SyncPipelineRun
from spdl_async.errors import RunStateError

if TYPE_CHECKING:
    from spdl_async._series import Epoch, Series

T_co = TypeVar("T_co", covariant=True)

Face = Literal["async", "sync"]

ENTERED_TWICE = "these epochs were entered before: call pipeline.epochs() again for another series"
AFTER_CLOSE = "the epochs are closed: their runs are only to be had inside their `{}` block"
RUN_CLOSED = "the run is closed: its results were only to be had until then; ask for the next epoch"
ENDLESS = "epochs() without a number has no end, so it has no len()"
ASKED_TWICE = "the next epoch is being asked for already, in another task or thread"
OTHER_FACE = """these epochs are already used from {} code: use one of

    async with pipeline.epochs(10) as epochs:        with pipeline.epochs(10) as epochs:
        async for run in epochs:                         for run in epochs:
            async for batch in run:                          for batch in run:
                ...                                              ..."""
CALLER_IS_ASYNC = (
    'epochs(loop="caller") is for async code: ordinary code has no running loop. Leave loop= out'
)
MUST_NOT_BE_ENTERED = """a run of epochs() is started already and must not be entered. Iterate it:

    async with pipeline.epochs(10) as epochs:
        async for run in epochs:
            async for batch in run:
                ..."""
NOT_ORDINARY = """this run is of epochs() in async code: `async for`. In ordinary code take

    with pipeline.epochs(10) as epochs:
        for run in epochs:
            for batch in run:
                ..."""
NOT_ASYNC = """this run is of epochs() in ordinary code: `for`. In async code take

    async with pipeline.epochs(10) as epochs:
        async for run in epochs:
            async for batch in run:
                ..."""
MUST_NOT_BE_ENTERED_SYNC = """a run of epochs() is started already and must not be entered. Iterate it:

    with pipeline.epochs(10) as epochs:
        for run in epochs:
            for batch in run:
                ..."""


class Epochs(Generic[T_co]):
    """Passes over a pipeline in a row: an iterator of started runs, and a context manager.

    Made by :meth:`Pipeline.epochs`. Each run is started already and is iterated without being
    entered. Asking for the next run ends the one before, wherever that was left; leaving the block
    stops everything and waits for it. ``len()`` is the number of epochs, where one was given.

    >>> from spdl_async import PipelineBuilder
    >>> pipeline = PipelineBuilder().add_source(range(4)).aggregate(2).build()
    >>> with pipeline.epochs(2) as epochs:
    ...     for run in epochs:
    ...         print(run.epoch, list(run))
    0 [[0, 1], [2, 3]]
    1 [[0, 1], [2, 3]]
    """

    def __init__(self, order: Order, n: int | None, *, overlap: bool, loop: LoopChoice) -> None:
        self._order = order
        self._n = n
        self._overlap = overlap
        self._loop = loop
        self._state = State.NEW
        self._short = True
        self._face: Face | None = None
        self._series: Series | None = None
        self._asking = False

    def __len__(self) -> int:
        """Return the number of epochs.

        Raises:
            TypeError: none was given; they go on for ever.
        """
        if self._n is None:
            raise TypeError(ENDLESS)
        return self._n

    def __bool__(self) -> bool:
        return True

    # In async code

    async def __aenter__(self) -> Self:
        """Start the first epoch.

        Raises:
            RunStateError: the epochs were entered or iterated before.
        """
        self._enter("async")
        return self

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
        """Stop all epochs and wait until nothing of them runs any more.

        A cancellation ends the waiting at once, but not the stop; calling again waits again.

        Raises:
            ShutdownTimeout: user code still ran after ``shutdown_timeout`` seconds, in all.
        """
        await self._leave(patient=False)

    async def _leave(self, *, patient: bool) -> None:
        was, self._state = self._state, State.CLOSED
        series = self._series
        if series is None or (was is State.CLOSED and series.ended.done()):
            return
        series.close()
        await series.wait_ended(self._order.shutdown_timeout, patient=patient)

    def __aiter__(self) -> AsyncIterator[PipelineRun[T_co]]:
        self._use("async")
        return self

    async def __anext__(self) -> PipelineRun[T_co]:
        """End the current run and return the next one, which is started.

        Raises:
            StopAsyncIteration: that was the last epoch.
            RunStateError: the epochs are closed, or the next one is being asked for already.
            ShutdownTimeout: user code of the run that was left early still ran after
                ``shutdown_timeout`` seconds; asking again waits again.
        """
        self._use("async")
        series = self._open()
        if series is None:
            raise StopAsyncIteration
        self._ask()
        try:
            if (ending := series.retire()) is not None:
                await ending.wait_ended(self._order.shutdown_timeout)
            epoch = series.take()
        finally:
            self._asking = False
        if epoch is not None:
            return _EpochRun(self._order, epoch, own_loop=series.loop_thread is not None)
        if self._short:
            await self.aclose()
        raise StopAsyncIteration

    # In ordinary code

    def __enter__(self) -> Self:
        """Start the first epoch.

        Raises:
            RunStateError: the epochs were entered or iterated before.
        """
        self._enter("sync")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with beside(error):
            self.close()

    def close(self) -> None:
        """Stop all epochs and wait until nothing of them runs any more.

        Raises:
            ShutdownTimeout: user code still ran after ``shutdown_timeout`` seconds, in all.
        """
        was, self._state = self._state, State.CLOSED
        series = self._series
        if series is None or (was is State.CLOSED and series.ended.done()):
            return
        series.close()
        series.wait_ended_sync(self._order.shutdown_timeout)

    def __iter__(self) -> Iterator[SyncPipelineRun[T_co]]:
        self._use("sync")
        return self

    def __next__(self) -> SyncPipelineRun[T_co]:
        """End the current run and return the next one, which is started.

        Raises:
            StopIteration: that was the last epoch.
            RunStateError: the epochs are closed, or the next one is being asked for already.
            ShutdownTimeout: user code of the run that was left early still ran after
                ``shutdown_timeout`` seconds; asking again waits again.
        """
        self._use("sync")
        series = self._open()
        if series is None:
            raise StopIteration
        self._ask()
        try:
            if (ending := series.retire()) is not None:
                ending.wait_ended_sync(self._order.shutdown_timeout)
            epoch = series.take()
        finally:
            self._asking = False
        if epoch is not None:
            return _SyncEpochRun(self._order, epoch)
        if self._short:
            self.close()
        raise StopIteration

    # Both

    def _enter(self, face: Face) -> None:
        if self._state is not State.NEW:
            raise RunStateError(ENTERED_TWICE)
        self._use(face)
        self._start()
        self._short = False

    def _use(self, face: Face) -> None:
        if self._face is None:
            if face == "sync" and self._loop == "caller":
                raise RunStateError(CALLER_IS_ASYNC)
            self._face = face
        elif self._face != face:
            raise RunStateError(OTHER_FACE.format("async" if face == "sync" else "ordinary"))

    def _start(self) -> Series:
        loop = self._order.plan.loop if self._loop == "auto" else self._loop
        own_loop = self._face == "sync" or loop == "own"
        from spdl_async._series import Series

        self._series = Series(self._order, self._n, overlap=self._overlap, own_loop=own_loop)
        self._state = State.OPEN
        return self._series

    def _open(self) -> Series | None:
        """Return the running series; ``None`` where a short form has come to its end."""
        if self._state is State.NEW:
            return self._start()
        if self._state is State.OPEN:
            return self._series
        if self._short:
            return None
        raise RunStateError(AFTER_CLOSE.format("async with" if self._face == "async" else "with"))

    def _ask(self) -> None:
        if self._asking:
            raise RunStateError(ASKED_TWICE)
        self._asking = True

    def __del__(self) -> None:
        # May run in any thread at any instant: takes no lock, runs no user code.
        series = getattr(self, "_series", None)
        if series is None or self._state is State.CLOSED:
            return
        series.stop()
        if not self._short:
            block, close = ("with", "close()")
            if self._face == "async":
                block, close = ("async with", "await epochs.aclose()")
            warnings.warn(
                f"epochs of pipeline {self._order.plan.name!r} were dropped while open; leave their "
                f"`{block}` block or call {close}",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )


class _EpochRun(PipelineRun[T_co]):
    """A run that is started already; dropping it ends it silently, as leaving its loop does."""

    not_ordinary = NOT_ORDINARY

    def __init__(self, order: Order, epoch: Epoch, *, own_loop: bool) -> None:
        super().__init__(order, loop="own" if own_loop else "caller", short=False)
        self._started = self._pass = epoch
        self._state = State.OPEN

    async def __aenter__(self) -> NoReturn:
        raise RunStateError(MUST_NOT_BE_ENTERED)

    def _begin_short(self) -> NoReturn:
        raise RunStateError(RUN_CLOSED)

    def __del__(self) -> None:
        _drop(getattr(self, "_pass", None))


class _SyncEpochRun(SyncPipelineRun[T_co]):
    """The same for ordinary code."""

    not_async = NOT_ASYNC

    def __init__(self, order: Order, epoch: Epoch) -> None:
        super().__init__(order, inline=False, short=False)
        self._started = self._pass = epoch
        self._state = State.OPEN

    def __enter__(self) -> NoReturn:
        raise RunStateError(MUST_NOT_BE_ENTERED_SYNC)

    def _begin_short(self) -> NoReturn:
        raise RunStateError(RUN_CLOSED)

    def __del__(self) -> None:
        _drop(getattr(self, "_pass", None))


def _drop(epoch: Epoch | None) -> None:
    # May run in any thread at any instant: takes no lock, runs no user code.
    if epoch is not None and not epoch.ended_well and not epoch.handover.closed:
        epoch.stop()
