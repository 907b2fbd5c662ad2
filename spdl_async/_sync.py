"""The face of a run for ordinary code."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar, cast

from spdl_async._order import Order
from spdl_async._run import State, beside
from spdl_async._wrong_face import NotAsync
from spdl_async.errors import RunStateError
from spdl_async.statistics import Failures, RunStatistics

T_co = TypeVar("T_co", covariant=True)

NOT_ENTERED = """the run was not entered. Either

    with pipeline.run_sync() as run:
        for batch in run:
            ...

or, for one pass without statistics,

    for batch in pipeline:
        ..."""

ENTERED_TWICE = (
    "the run was entered before: a run is one pass; call pipeline.run_sync() for another"
)
AFTER_CLOSE = "the run is closed: its results are only to be had inside the `with` block"


class Pass(Protocol):
    """A started pass as this face needs it: on a loop of ours, or inline."""

    epoch: int

    def next(self) -> object:
        """Return the next result; ``StopIteration`` after the last."""

    def close(self) -> None:
        """Ask for a stop, and tell whoever waits."""

    def stop(self) -> None:
        """Ask for a stop, from a finalizer."""

    def wait_ended_sync(self, timeout: float) -> None:
        """Wait until nothing of it runs any more."""

    @property
    def error(self) -> BaseException | None:
        """What ended the pass, where it failed."""

    @property
    def failures(self) -> Failures:
        """The failures so far."""

    def statistics(self) -> RunStatistics:
        """Return a snapshot."""


class SyncPipelineRun(NotAsync, Generic[T_co]):
    """One pass over a pipeline in ordinary code: a context manager and an iterator.

    The stages run on a loop of ours in a thread of its own, so the caller may block as long as it
    likes, and may itself be called from a running loop.

    >>> from spdl_async import PipelineBuilder
    >>> pipeline = PipelineBuilder().add_source(range(5)).aggregate(2).build()
    >>> with pipeline.run_sync() as run:
    ...     print(list(run), run.statistics().delivered)
    [[0, 1], [2, 3], [4]] 3
    """

    def __init__(self, order: Order, *, inline: bool, short: bool) -> None:
        self._order = order
        self._inline = inline
        self._short = short
        self._state = State.NEW
        self._started: Pass | None = None

    def __enter__(self) -> Self:
        """Start the pass.

        Raises:
            RunStateError: the run was entered before, or its one-shot source is used up.
        """
        if self._state is not State.NEW:
            raise RunStateError(ENTERED_TWICE)
        self._start()
        return self

    def _start(self) -> Pass:
        from spdl_async._start import Started, start_inline

        if self._inline:
            self._started = start_inline(self._order)
        else:
            self._started = Started(self._order, own_loop=True)
        self._state = State.OPEN
        return self._started

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with beside(error):
            self.close()

    def close(self) -> None:
        """Stop the run and wait until nothing of it runs any more.

        Raises:
            ShutdownTimeout: user code still ran after ``shutdown_timeout`` seconds.
        """
        self._state = State.CLOSED
        started = self._started
        if started is not None:
            started.close()
            started.wait_ended_sync(self._order.shutdown_timeout)

    def __del__(self) -> None:
        # May run in any thread at any instant: takes no lock, runs no user code.
        started = getattr(self, "_started", None)
        if started is None or self._state is State.CLOSED or getattr(started, "forked", False):
            return
        started.stop()
        if not self._short:
            warnings.warn(
                f"a run of pipeline {self._order.plan.name!r} was dropped while open; leave its "
                f"`with` block or call run.close()",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )

    def __iter__(self) -> Iterator[T_co]:
        if self._state is State.NEW and not self._short:
            raise RunStateError(NOT_ENTERED)
        return self

    def __next__(self) -> T_co:
        """Return the next result.

        Raises:
            StopIteration: that was all.
            RunStateError: the run was not entered, or is closed.
            Exception: what user code raised; ``run.failures`` lists what else failed.
        """
        started = self._started
        if self._state is not State.OPEN or started is None:
            started = self._begin_short()
        try:
            return cast("T_co", started.next())
        except StopIteration:
            if self._short:
                self.close()
            raise
        except BaseException as error:
            if self._short and error is started.error:
                self._state = State.CLOSED
                started.stop()
            raise

    def _begin_short(self) -> Pass:
        if self._short and self._state is State.NEW:
            return self._start()
        if self._state is State.NEW:
            raise RunStateError(NOT_ENTERED)
        if self._short:
            raise StopIteration
        raise RunStateError(AFTER_CLOSE)

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

    def _seen(self) -> Pass:
        if self._started is None:
            raise RunStateError(NOT_ENTERED)
        return self._started
