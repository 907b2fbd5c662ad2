"""A built pipeline: reusable, never mutated, the maker of runs."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from spdl_async._epochs import Epochs
from spdl_async._order import Facts, Order
from spdl_async._plan.bounds import (
    Bound,
    LengthUnknownError,
    bounds,
    epochs_bound,
    hint,
    length,
    source_items_bound,
)
from spdl_async._plan.copying import devices_here
from spdl_async._plan.describe import mermaid, text
from spdl_async._plan.inline import check_inline
from spdl_async._plan.steps import Plan, sources_of
from spdl_async._run import LoopChoice, PipelineRun
from spdl_async._sync import SyncPipelineRun
from spdl_async.errors import BuildError
from spdl_async.spec.policy import check_int, is_number
from spdl_async.spec.stages import ChainSpec, Scope, scoped

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Description:
    """What ``describe()`` returns; ``str()`` gives the text.

    Attributes:
        text: the stages, where they run and why, bounds, and the seed, as plain text.
        mermaid: the chain as a Mermaid flow chart.
        loop: where ``loop="auto"`` runs the stages: ``"caller"`` or ``"own"``.
        bounds: the most elements that each place can hold.
        source_items_bound: the most source items in flight; ``None`` where it cannot be computed: with
            ``disaggregate``, an aggregator of yours or one without a limit on its items,
            ``Merge(mix=)``, or a route whose branches make many items of one or gather them.
        epochs_source_items_bound: the same for :meth:`Pipeline.epochs`, where the next pass begins
            while the current one still has items in flight.
        num_threads: the size of the thread pool.
        seed: the root of all randomness of ``shuffle`` and of ``Merge``'s draws.
    """

    text: str
    mermaid: str
    loop: str
    bounds: tuple[Bound, ...]
    source_items_bound: int | None
    epochs_source_items_bound: int | None
    num_threads: int
    seed: int

    def __str__(self) -> str:
        return self.text


class Pipeline(Generic[T_co]):
    """A pipeline that can be run any number of times, several passes at once included.

    Made by :meth:`PipelineBuilder.build`. It starts nothing until it is run or iterated.

    >>> from spdl_async import PipelineBuilder
    >>> squares = PipelineBuilder().add_source(range(4)).pipe(lambda x: x * x).build()
    >>> list(squares), list(squares), len(squares)
    ([0, 1, 4, 9], [0, 1, 4, 9], 4)
    """

    def __init__(self, plan: Plan, chain: ChainSpec, scope: Scope) -> None:
        # The runtime is loaded here: not when the package is imported, and not when a run begins.
        import spdl_async._series  # noqa: F401

        self._plan = plan
        self._chain = chain
        self._scope = scope
        self._facts = Facts()

    def __repr__(self) -> str:
        return f"<Pipeline {self._plan.name!r}: {len(self._plan.steps)} steps>"

    # Running

    def run(
        self,
        *,
        loop: LoopChoice = "auto",
        epoch: int | None = None,
        shutdown_timeout: float = 30.0,
        stall_warning: float | None = 60.0,
    ) -> PipelineRun[T_co]:
        """Return one pass for async code: ``async with pipeline.run() as run``.

        Args:
            loop: where the stages run. ``"caller"``: on the caller's running loop. ``"own"``: on a
                loop of ours in a thread (uvloop where installed), so that a training step that
                blocks the caller's loop does not starve them. ``"auto"``: ``"caller"`` where
                something in the pipeline is visibly async, else ``"own"``.
            epoch: number of the pass; default: how many passes this pipeline has started.
            shutdown_timeout: seconds that leaving the block waits for user code that still runs.
            stall_warning: seconds after which, when nothing was delivered while the consumer waits,
                one record in the log (``"spdl_async"``) shows stage, item and stack of what holds it
                up; ``None``: never. For steps that take minutes choose more.

        Raises:
            BuildError: an option has no meaning.
        """
        check_loop(loop, "run")
        return PipelineRun(
            self._order(epoch, shutdown_timeout, stall_warning), loop=loop, short=False
        )

    def run_sync(
        self,
        *,
        inline: bool = False,
        epoch: int | None = None,
        shutdown_timeout: float = 30.0,
        stall_warning: float | None = 60.0,
    ) -> SyncPipelineRun[T_co]:
        """Return one pass for ordinary code: ``with pipeline.run_sync() as run``.

        Args:
            inline: run everything in the calling thread, one item at a time, without threads or a
                pool, so that ``breakpoint()`` and tracebacks are plain. For debugging.
            epoch: number of the pass; default: how many passes this pipeline has started.
            shutdown_timeout: seconds that leaving the block waits for user code that still runs.
            stall_warning: seconds after which, when nothing was delivered while the consumer waits,
                one record in the log (``"spdl_async"``) shows stage, item and stack of what holds it
                up; ``None``: never. Not inline, where a debugger may stop for as long as it likes.

        Raises:
            BuildError: an option has no meaning; or ``inline`` with a ``timeout`` on a sync op, which
                nobody could enforce.
            RunStateError: raised by the run, not here: ``inline`` with a ``Merge(mix=)``, whose
                branches have to run beside it; or with async ops, where a loop runs in this thread.
        """
        if inline:
            check_inline(self._plan)
        return SyncPipelineRun(
            self._order(epoch, shutdown_timeout, stall_warning), inline=inline, short=False
        )

    def epochs(
        self,
        n: int | None = None,
        *,
        overlap: bool = True,
        loop: LoopChoice = "auto",
        shutdown_timeout: float = 30.0,
        stall_warning: float | None = 60.0,
    ) -> Epochs[T_co]:
        """Return passes in a row, for ``async for`` or ``for``, without a pause between them.

        Each pass is a run of its own, with fresh counters and failure budgets, and is started
        already. The next one begins when the source of the current one was read to its end; both use
        the same threads, and a stage's ``concurrency`` bounds the calls of both together. At most two
        are in flight, so :meth:`describe` prints a bound for them of its own.

        Args:
            n: how many epochs; ``None``: go on until the loop is left.
            overlap: begin the next epoch ahead. ``False`` begins it only when it is asked for: for
                code that changes the source, or what ops use, between two epochs.
            loop: as in :meth:`run`; ordinary code always uses a loop of ours.
            shutdown_timeout: seconds that leaving the block, or leaving a run early, waits for user
                code that still runs.
            stall_warning: as in :meth:`run`, for each of the passes; ``None``: never.

        Raises:
            BuildError: an option has no meaning, or the source is an iterator, which has one pass
                only, and ``n`` is not 1.
        """
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 0):
            raise BuildError(
                f"epochs: n must be an int of at least 0, or None for no end, not {n!r}"
            )
        if not isinstance(overlap, bool):
            raise BuildError(f"epochs: overlap must be True or False, not {overlap!r}")
        check_loop(loop, "epochs")
        for source in sources_of(self._plan.source):
            if source.single_use and n != 1:
                raise BuildError(
                    f"epochs: the source is an iterator ({type(source.source).__name__}), which has "
                    f"one pass only; give add_source a list, another re-iterable, or a callable that "
                    f"returns a fresh iterator, or ask for epochs(1)"
                )
        order = self._order(None, shutdown_timeout, stall_warning, verb="epochs")
        return Epochs(order, n, overlap=overlap, loop=loop)

    def __aiter__(self) -> AsyncIterator[T_co]:
        return PipelineRun(self._order(), loop="auto", short=True)

    def __iter__(self) -> Iterator[T_co]:
        return SyncPipelineRun(self._order(), inline=False, short=True)

    def _order(
        self,
        epoch: int | None = None,
        shutdown_timeout: float = 30.0,
        stall_warning: float | None = 60.0,
        verb: str = "run",
    ) -> Order:
        if epoch is not None:
            check_int(epoch, "run: epoch", least=0)
        if not is_number(shutdown_timeout) or not shutdown_timeout >= 0:
            raise BuildError(
                f"{verb}: shutdown_timeout is in seconds, at least 0, not {shutdown_timeout!r}"
            )
        if math.isinf(shutdown_timeout):
            raise BuildError(f"{verb}: shutdown_timeout must be finite; a stop always ends")
        if stall_warning is not None and not (
            is_number(stall_warning) and 0 < stall_warning < math.inf
        ):
            raise BuildError(
                f"{verb}: stall_warning is in seconds, more than 0, not {stall_warning!r}; None "
                f"turns the warning off"
            )
        return Order(
            self._plan,
            self._facts,
            epoch,
            float(shutdown_timeout),
            stall_warning,
            devices_here(self._plan),
        )

    # Looking

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        """Return the exact number of results of a pass.

        Raises:
            TypeError: it cannot be known: the message says which stage makes it so.
        """
        try:
            count = length(self._plan)
        except LengthUnknownError as error:
            raise TypeError(str(error)) from None
        if self._facts.dropped:
            raise TypeError("an op of this pipeline has returned DROP, so results are fewer")
        return count

    def __length_hint__(self) -> int:
        """Return the number of results if nothing is dropped."""
        try:
            return hint(self._plan)
        except LengthUnknownError:
            return NotImplemented  # type: ignore[no-any-return]  # the protocol's own answer

    def _inlined(self, where: str) -> ChainSpec:  # noqa: ARG002 -- the form of the builder's
        """Return the chain as the beginning of another one; its stages keep their options."""
        return scoped(self._chain, self._scope)

    def describe(self) -> Description:
        """Say what the pipeline is, where it runs and why, and how much it can hold."""
        plan = self._plan
        return Description(
            text=text(plan),
            mermaid=mermaid(plan),
            loop=plan.loop,
            bounds=bounds(plan),
            source_items_bound=source_items_bound(plan),
            epochs_source_items_bound=epochs_bound(plan),
            num_threads=plan.num_threads,
            seed=plan.seed,
        )


def check_loop(loop: object, verb: str) -> None:
    """Raise ``BuildError`` where ``loop=`` has no meaning."""
    if loop not in ("auto", "caller", "own"):
        raise BuildError(f'{verb}: loop must be "auto", "caller" or "own", not {loop!r}')
