"""Failure policies at work: what ends a run, what is skipped and counted, and what is written down.

Everything here runs on the run's loop (or, inline, in the calling thread), in the order in which
items leave a stage. With input order that is the order of the items, so budgets are deterministic.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextvars import Context
from fractions import Fraction
from typing import Any

from spdl_async._plan.steps import OpPlan
from spdl_async._runtime.retrying import Retries
from spdl_async._runtime.ticket import (
    NO_ITEM,
    Item,
    OpFailure,
    describe_source,
    spoil,
    where_is,
    which_are,
)
from spdl_async.errors import CollateError, TooManyFailures
from spdl_async.errors import note_once as note_once
from spdl_async.spec.policy import Failure, FailurePolicy
from spdl_async.statistics import NO_ITEMS, FailureRecord, StageStatistics, why_nothing

logger = logging.getLogger("spdl_async")

MAX_RECORDS = 1_000
MAX_KINDS = 10
FRACTION_FROM_CALL = 100

# Raised by user code these would be taken for the end of an iterator or for a cancellation
# (PEP 479 makes the same choice for generators).
_PROTOCOL_ERRORS = (StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError)


def caught(error: BaseException, value: Any = ..., *, brief: bool = False) -> OpFailure:
    """Return ``error`` as a failure, formatted where it was caught: in the op's own thread.

    ``brief``: leave the traceback's text out, since it would not be kept.
    """
    if isinstance(error, _PROTOCOL_ERRORS):
        wrapper = RuntimeError(f"user code raised {type(error).__name__}")
        wrapper.__cause__ = error
        try:
            raise wrapper
        except RuntimeError as raised:
            error = raised
    text = "" if brief else "".join(traceback.format_exception(error))
    return OpFailure(error, text, value is None)


class Budget:
    """How many failures one policy still allows; shared by the stages of a build without their own."""

    __slots__ = ("calls", "failures", "limit", "made", "records", "what")

    def __init__(self, policy: FailurePolicy, what: str) -> None:
        self.limit = policy.max_failures
        self.what = what
        self.calls = 0
        self.failures = 0
        self.made: TooManyFailures | None = None
        self.records: list[FailureRecord] = []

    def spent(self, at_end: bool = False) -> bool:
        """Tell whether more has failed than is allowed."""
        if self.limit is None:
            return False
        if isinstance(self.limit, Fraction):
            looked_at = self.calls >= FRACTION_FROM_CALL or (at_end and self.calls > 0)
            return looked_at and self.failures > self.limit * self.calls
        return self.failures > self.limit

    def error(self, log: FailureLog) -> TooManyFailures:
        """Return the exception for a spent budget, with a count of each kind of failure.

        It is made once: a branch that fails later may come to the consumer earlier, since it has the
        turn, and the run has failed at the failure that spent the budget all the same.
        """
        if self.made is not None:
            return self.made
        of_calls = f" of {self.calls} calls" if isinstance(self.limit, Fraction) else ""
        last = self.records[-1]
        self.made = TooManyFailures(
            f"{self.what}: {self.failures} failures{of_calls}, max_failures={self.limit!r} allows "
            f"fewer; the last one: {last.summary()}\n{log.kinds()}",
            self.records,
        )
        return self.made


class FailureLog:
    """The failures of one run: the first thousand written out, all of them counted."""

    def __init__(self) -> None:
        self.records: list[FailureRecord] = []
        self.total = 0
        self.counts: Counter[tuple[str, str, str]] = Counter()

    @property
    def full(self) -> bool:
        """Whether as many failures are written out as will be."""
        return len(self.records) >= MAX_RECORDS

    def add(self, stage: str, item: Item | None, failure: OpFailure) -> FailureRecord:
        """Write a failure down."""
        error = failure.exception
        where = _innermost(error)
        record = FailureRecord(
            stage=stage,
            index=-1 if item is None else item.index,
            path=() if item is None else item.path,
            source="" if item is None else describe_source(item.source),
            error=type(error).__qualname__,
            message=_message(error),
            where=where,
            traceback=failure.text,
            attempts=failure.attempts,
        )
        self.total += 1
        self.counts[stage, record.error, where] += 1
        if not self.full:
            self.records.append(record)
        return record

    def kinds(self) -> str:
        """Return one line for each kind of failure and the place where it was raised."""
        lines = [
            f"  {number} × {error} in stage {stage!r} at {where}"
            for (stage, error, where), number in self.counts.most_common(MAX_KINDS)
        ]
        more = len(self.counts) - len(lines)
        return "\n".join([*lines, f"  and {more} other kinds"] if more > 0 else lines)


class Judge:
    """Applies one op's policy to the items that it failed on."""

    __slots__ = (
        "budget", "context", "failed", "first", "handler", "log", "name", "policy", "retries",
        "settled", "shared",
    )  # fmt: skip

    def __init__(
        self, op: OpPlan, budget: Budget, shared: bool, log: FailureLog, context: Context
    ) -> None:
        self.name = op.name
        self.handler = op.policy.handler
        self.context = context
        self.retries: Retries | None = None
        self.policy = op.policy
        self.budget = budget
        self.shared = shared
        self.log = log
        self.settled = 0
        self.failed = 0
        self.first: OpFailure | None = None

    @property
    def raises(self) -> bool:
        """Whether the first failure ends the run."""
        return self.policy.action == "raise"

    def ends(self, failure: OpFailure) -> bool:
        """Tell, from any thread, whether a failure surely ends the run; a budget may end it too."""
        return self.raises or not isinstance(failure.exception, Exception)

    def count_calls(self, calls: int) -> None:
        """Count calls whose outcome has left the stage."""
        self.settled += calls
        self.budget.calls += calls

    def count_flush(self) -> None:
        """Count a call that concerns no item: a good one does not outweigh that all items failed."""
        self.budget.calls += 1

    def retry_after(self, item: Item, failure: OpFailure, *, allowed: bool = True) -> float | None:
        """Return the seconds until the op is called again on the item, ``None`` where it is not."""
        return None if self.retries is None else self.retries.after(item, failure, allowed)

    def ask(self, item: Item, failure: OpFailure) -> Awaitable[object] | None:
        """Ask the user's function, if there is one; return what must be awaited for its answer."""
        error = failure.exception
        if self.handler is None or failure.asked or not isinstance(error, Exception):
            return None
        failure.asked = True
        failure.trace = error.__traceback__
        annotate(error, self.name, item, failure.input_was_none)
        record = Failure(
            stage=self.name,
            index=item.index,
            path=item.path,
            source=shown_source(item.source),
            exception=error,
            attempts=failure.attempts,
        )
        try:
            answer = self.context.copy().run(self.handler, record)
        except BaseException as raised:  # noqa: BLE001 -- it ends the run
            self.answered(item, failure, raised)
            return None
        return answer if inspect.isawaitable(answer) else None

    def answered(self, item: Item, failure: OpFailure, raised: BaseException) -> None:
        """Take what the user's function raised: that ends the run."""
        error = failure.exception
        if raised is error:  # as if nobody had been asked
            failure.answer = error.with_traceback(failure.trace)
            return
        if isinstance(raised, _PROTOCOL_ERRORS):
            raised = caught(raised, brief=True).exception
        add_context(raised, error)
        note_once(
            raised,
            f"spdl_async: raised by the on_error function of stage {self.name!r} for {where_is(item)}",
        )
        failure.answer = raised

    def note(self, item: Item, failure: OpFailure) -> FailureRecord:
        """Name stage and item on the exception, and write the failure down."""
        annotate(failure.exception, self.name, item, failure.input_was_none)
        return self.log.add(self.name, item, failure)

    def verdict(self, item: Item, failure: OpFailure) -> BaseException | None:
        """Record a failure; return what ends the run, ``None`` where the item is skipped."""
        error = failure.exception
        record = self.note(item, failure)
        self.failed += 1
        # Kept, with the frames that it holds, only as long as nothing but failures is known.
        if self.failed == self.settled == 1:
            self.first = failure
        elif self.failed < self.settled and self.first is not None:
            self.first.forget()
            self.first = None
        if self.raises or not isinstance(error, Exception):
            return error
        if failure.answer is not None:
            return failure.answer
        spoil(item)
        budget = self.budget
        budget.failures += 1
        if budget.limit is not None and len(budget.records) < MAX_RECORDS:
            budget.records.append(record)
        if failure is not self.first:
            failure.forget()
        return self.over_budget()

    def over_budget(self) -> BaseException | None:
        """Return the error of a spent budget."""
        return self.budget.error(self.log) if self.budget.spent() else None

    def at_end(self) -> BaseException | None:
        """Return what is wrong with the stage as a whole, after its last item."""
        if self.first is not None and self.failed == self.settled:
            all_calls = (
                "its only call failed"
                if self.settled == 1
                else f"every one of its {self.settled} calls failed; the first one"
            )
            error = TooManyFailures(
                f"stage {self.name!r}: {all_calls}: {_message(self.first.exception)}\n{self.log.kinds()}",
                [r for r in self.log.records if r.stage == self.name],
            )
            error.__cause__ = self.first.exception
            return error
        if not self.shared and self.budget.spent(at_end=True):
            return self.budget.error(self.log)
        return None


class Judges:
    """Makes the judges of a run, with one budget for each policy scope."""

    def __init__(self, log: FailureLog, context: Context, *, seed: int, epoch: int) -> None:
        self.log = log
        self._context = context
        self._seed = f"{seed}, {epoch}"
        self._shared: dict[int, Budget] = {}
        self.made: list[Judge] = []

    def of(self, op: OpPlan) -> Judge:
        """Return a judge for one op."""
        judge = self._judge(op)
        self.made.append(judge)
        if op.retry is not None:
            judge.retries = Retries(op.retry, f"{self._seed}, {op.name}")
        return judge

    def _judge(self, op: OpPlan) -> Judge:
        if op.scope is None:
            budget = Budget(op.policy, f"stage {op.name!r}")
            return Judge(op, budget, False, self.log, self._context)
        shared = self._shared.get(id(op.scope))
        if shared is not None:
            budget = shared
        else:
            budget = self._shared[id(op.scope)] = Budget(op.policy, "this build's stages together")
        return Judge(op, budget, True, self.log, self._context)

    def forget(self) -> None:
        """Let go of exceptions: the run has ended, and keeps only records."""
        for judge in self.made:
            judge.first = None

    def at_end(self) -> BaseException | None:
        """Return the error of a shared budget that is spent at the end of the pass."""
        for budget in self._shared.values():
            # A spent number has ended the pass where it was spent, unless a take had cut that off.
            if isinstance(budget.limit, Fraction) and budget.spent(at_end=True):
                return budget.error(self.log)
        return None


def warn_of_nothing(name: str, epoch: int, stages: Sequence[StageStatistics]) -> None:
    """Log what became of the items of a pass that has ended normally without a result.

    An empty source is nothing to warn of: it may well be empty.
    """
    if (text := why_nothing(stages)) != NO_ITEMS:
        logger.warning("pipeline %r, epoch %d: %s", name, epoch, text)


def annotate(error: BaseException, stage: str, item: Item, input_was_none: bool = False) -> None:
    """Add the note that names the stage and the item, once."""
    note = f"spdl_async: raised in stage {stage!r} on {where_is(item)}"
    if input_was_none:
        note += "\nspdl_async: its input was None, which the stage above (or the source) returned"
    note_once(error, note)
    if isinstance(error, CollateError) and (whose := which_are(item, error.samples)):
        note_once(error, f"spdl_async: the batch was gathered with {whose}")


def add_context(error: BaseException, earlier: BaseException) -> None:
    """Make ``earlier`` the context of an error, as if it had been raised while that was handled."""
    behind: BaseException | None = earlier
    seen: set[int] = set()
    while behind is not None and id(behind) not in seen:
        if behind is error:  # a circle would say nothing
            return
        seen.add(id(behind))
        behind = behind.__context__
    while error.__context__ is not None and id(error) not in seen:
        seen.add(id(error))
        error = error.__context__
    if id(error) not in seen:
        error.__context__ = earlier


def shown_source(source: Any) -> Any:
    """Return of a kept source item what a user's function may see: itself, or a text of its type."""
    if source is NO_ITEM:
        return None
    return describe_source(source) if names_a_type(source) else source


def names_a_type(source: Any) -> bool:
    """Tell whether a kept source item, or a part of it, is only the type of what was too big."""
    if type(source) is tuple:
        return any(map(names_a_type, source))
    return isinstance(source, type)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 -- a user's __str__ may fail; the type still tells something
        return f"<{type(error).__name__} whose str() fails>"


def _innermost(error: BaseException) -> str:
    cause = error.__cause__
    if error.__traceback__ is not None and type(error) is RuntimeError and cause is not None:
        error = cause if cause.__traceback__ is not None else error
    place = ""
    step = error.__traceback__
    while step is not None:
        place = f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}"
        step = step.tb_next
    return place
