"""A pipeline as nested loops: the plainest program that does what a chain says."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import itertools
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from spdl_async import DROP, Aggregator, BuildError, Failure, Retry, TooManyFailures
from spdl_async.testing._reference_shapes import SHAPES, shaped
from spdl_async.testing._span import Span, has_lifespan

FAILURES_IN_A_ROW: Final = 100

Items = Generator[Any, None, None]

# What would be taken for an iterator's end or a cancellation is wrapped, as PEP 479 does.
PROTOCOL_ERRORS = (StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError)


class StepLike(Protocol):
    """One verb with its argument and options."""

    @property
    def verb(self) -> str: ...
    @property
    def argument(self) -> Any: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


@dataclass
class Expected:
    """What a chain delivers.

    Attributes:
        outputs: the results in order, those before the failure where one ended the pass.
        error: what ended the pass early, ``None`` where nothing did. Ops that raise new exceptions
            raise another object in the pipeline; those that raise a given one raise the same.
        failed: the number of calls that failed, skipped ones included; calls made again count once.
        retried: the number of calls that were made again.
    """

    outputs: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    failed: int = 0
    retried: int = 0

    def result(self) -> list[Any]:
        """Return the outputs, or raise what ended the pass."""
        if self.error is not None:
            raise self.error
        return self.outputs


class _Ended(BaseException):
    """Carries the failure that ends the pass past every loop."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


NOTHING: Final[Any] = object()  # the result of a skipped call
END: Final[Any] = object()  # what comes after an iterator's last value


Policy = str | Callable[[Failure], object]


def interpret(
    source: Any,
    steps: Iterable[StepLike],
    on_error: Policy,
    source_on_error: Policy,
    epoch: int = 0,
) -> Expected:
    """Run ``steps`` over ``source``, in a thread that has no loop yet."""

    def run() -> Expected:
        expected = Expected()
        with asyncio.Runner() as runner:
            loops = _Loops(runner, expected, on_error, epoch)
            parts = [loops.read(source, _Stage("source", source_on_error))]
            for number, step in enumerate(steps):
                parts.append(loops.step(step, number, parts[-1]))
            try:
                expected.outputs.extend(parts[-1])
            except _Ended as ended:
                expected.error = ended.error
            for part in reversed(parts):  # what a failure has left open above it
                part.close()
        return expected

    with ThreadPoolExecutor(1) as aside:
        return aside.submit(run).result()


@dataclass
class _Stage:
    """A stage's policy and what became of its calls."""

    name: str
    policy: Policy
    retry: Retry | None = None
    calls: int = 0
    errors: list[BaseException] = field(default_factory=list)


class _Loops:
    """One generator a stage, each pulling from the one above."""

    def __init__(
        self, runner: asyncio.Runner, expected: Expected, on_error: Policy, epoch: int
    ) -> None:
        self._runner = runner
        self._expected = expected
        self._on_error = on_error
        self._epoch = epoch

    def step(self, step: StepLike, number: int, above: Items) -> Items:
        """Return the results of a step over the values above."""
        if step.verb != "aggregate" and has_lifespan(step.argument):
            return self.within(step, number, above)
        return self.apart(step, step.argument, number, above)

    def within(self, step: StepLike, number: int, above: Items) -> Items:
        """Return the results of a step whose op is entered before and left after."""
        span = Span(self._runner, step.argument)
        fatal = _Stage("lifespan", "raise")
        op = self.attempt(fatal, span.enter)
        try:
            yield from self.apart(step, op, number, above)
        except BaseException:
            with contextlib.suppress(Exception):  # the pass has failed already
                span.leave()
            raise
        self.attempt(fatal, span.leave)

    def apart(self, step: StepLike, op: Any, number: int, above: Items) -> Items:
        """Return the results of a step that calls ``op``."""
        policy = step.options.get("on_error") or self._on_error
        stage = _Stage(f"{step.verb} {number}", policy, step.options.get("retry"))
        if step.verb in SHAPES:
            return (item for item in shaped(step.verb, op, step.options, self._epoch, above))
        if step.verb == "aggregate":
            if step.options.get("within") is not None:
                raise BuildError(
                    "reference_run: within= depends on time, which plain loops have not"
                )
            if isinstance(op, int):
                return self.batches(op, bool(step.options.get("drop_last")), above)
            return self.aggregates(op, bool(step.options.get("drop_last")), stage, above)
        if step.verb == "filter":
            return self.filters(op, stage, above)
        if step.verb == "disaggregate":
            return self.flows(elements, stage, above)
        if step.verb == "expand" or is_generator(op):
            return self.flows(op, stage, above)
        return self.maps(op if callable(op) else op.__getitem__, stage, above)

    # Failures

    def attempt(self, stage: _Stage, call: Callable[[], Any]) -> Any:
        """Call; return ``NOTHING`` for a failure that is skipped, raise ``_Ended`` for others.

        A call that the stage's ``retry`` allows is made again, without a wait.
        """
        for number in itertools.count(1):
            try:
                return call()
            except _Ended:
                raise
            except BaseException as caught:  # noqa: BLE001 -- the policy decides
                error = wrapped(caught)
            retry = stage.retry
            if retry is None or number >= retry.attempts or not isinstance(error, retry.on):
                self.fail(stage, error, number)
                break
            self._expected.retried += 1
        return NOTHING

    def fail(self, stage: _Stage, error: BaseException, attempts: int) -> None:
        """Apply the policy to a failure that nothing is tried against any more."""
        stage.errors.append(error)
        self._expected.failed += 1
        if stage.policy == "raise" or not isinstance(error, Exception):
            raise _Ended(error)
        if isinstance(stage.policy, str):
            return
        failure = Failure(
            stage=stage.name, index=-1, path=(), source=None, exception=error, attempts=attempts
        )
        try:
            answer = stage.policy(failure)
            if inspect.isawaitable(answer):
                self.wait_for(answer)
        except BaseException as raised:  # noqa: BLE001 -- it ends the pass
            raise _Ended(wrapped(raised)) from None

    def finish(self, stage: _Stage) -> None:
        """End the pass where every call of a stage has failed."""
        if stage.errors and len(stage.errors) == stage.calls:
            error = TooManyFailures(f"stage {stage.name!r}: every one of its calls failed")
            error.__cause__ = stage.errors[0]
            raise _Ended(error)

    # Stages

    def read(self, source: Any, stage: _Stage) -> Items:
        """Read the source; after a skipped failure the next item is asked for."""
        ending = _Stage(stage.name, "raise")
        values = self.attempt(ending, lambda: self.opened(source))
        while True:
            value = self.attempt(stage, functools.partial(next, values, END))
            if value is END:
                if stage.errors:
                    raise _Ended(stage.errors[0])  # an end right after a failure proves nothing
                return
            if value is not NOTHING:
                stage.errors.clear()
                yield value
            elif len(stage.errors) >= FAILURES_IN_A_ROW:
                raise _Ended(stage.errors[0])

    def opened(self, source: Any) -> Iterator[Any]:
        """Return an iterator over anything that ``add_source`` takes."""
        if callable(source) and not isinstance(source, (Iterable, AsyncIterable)):
            source = source()
            if inspect.isawaitable(source):
                source = self.wait_for(source)
        if isinstance(source, AsyncIterable):
            return _Driven(self, source)
        if hasattr(source, "__iter__"):
            return iter(source)
        return map(source.__getitem__, range(len(source)))

    def maps(self, op: Callable[[Any], Any], stage: _Stage, above: Items) -> Items:
        """Run a 1→1 op."""
        for item in above:
            stage.calls += 1
            value = self.attempt(stage, functools.partial(self.called, op, item))
            if value is not DROP and value is not NOTHING:
                yield value
        self.finish(stage)

    def filters(self, op: Callable[[Any], Any], stage: _Stage, above: Items) -> Items:
        """Keep the items for which a predicate is true."""
        for item in above:
            stage.calls += 1
            keep = self.attempt(stage, functools.partial(self.holds, op, item))
            if keep is True:
                yield item
        self.finish(stage)

    def flows(self, op: Callable[[Any], Any], stage: _Stage, above: Items) -> Items:
        """Run a 1→n op; what it gave before it failed counts."""
        for item in above:
            stage.calls += 1
            # Called again only before the first value, so that belongs to the call.
            first = self.attempt(stage, functools.partial(self.first_of, op, item))
            if first is NOTHING:
                continue
            value, values = first
            once = _Stage(stage.name, stage.policy, errors=stage.errors)
            while value is not END and value is not NOTHING:
                if value is not DROP:
                    yield value
                value = self.attempt(once, functools.partial(next, values, END))
        self.finish(stage)

    def batches(self, size: int, drop_last: bool, above: Items) -> Items:
        """Make lists."""
        held: list[Any] = []
        for item in above:
            held.append(item)
            if len(held) == size:
                yield held
                held = []
        if held and not drop_last:
            yield held

    def aggregates(self, given: Any, drop_last: bool, stage: _Stage, above: Items) -> Items:
        """Run an aggregator."""
        is_instance = isinstance(given, Aggregator) and not isinstance(given, type)
        make = functools.partial(copy.deepcopy, given) if is_instance else given
        made: list[Any] = []

        def call(verb: str, *items: Any) -> list[Any]:
            if not made:
                made.append(make())
            return list(getattr(made[0], verb)(*items) or ())

        for item in above:
            stage.calls += 1
            outputs = self.attempt(stage, functools.partial(call, "accumulate", item))
            if outputs is not NOTHING:
                yield from (value for value in outputs if value is not DROP)
        if not drop_last:
            outputs = self.attempt(stage, functools.partial(call, "flush"))
            stage.calls += (
                outputs is NOTHING
            )  # a good flush does not outweigh that all items failed
            if outputs is not NOTHING:
                yield from (value for value in outputs if value is not DROP)
        self.finish(stage)

    # Ops

    def called(self, op: Callable[[Any], Any], item: Any) -> Any:
        """Call an op; await what it returned if that is awaitable."""
        value = op(item)
        return self.wait_for(value) if value is not DROP and inspect.isawaitable(value) else value

    def holds(self, predicate: Callable[[Any], Any], item: Any) -> bool:
        """Tell whether a predicate is true of an item."""
        return bool(self.called(predicate, item))

    def first_of(self, op: Callable[[Any], Any], item: Any) -> tuple[Any, Iterator[Any]]:
        """Return the first value that a 1→n op makes of an item, and an iterator over the rest."""
        values = self.values_of(op, item)
        return next(values, END), values

    def values_of(self, op: Callable[[Any], Any], item: Any) -> Iterator[Any]:
        """Return an iterator over what a 1→n op makes of an item."""
        values = self.called(op, item)
        if isinstance(values, (str, bytes, bytearray)):
            raise TypeError(f"expand: the op returned one {type(values).__name__}")
        return _Driven(self, values) if isinstance(values, AsyncIterable) else iter(values)

    def wait_for(self, awaitable: Any) -> Any:
        """Drive an awaitable to its end on the private loop."""

        async def wait() -> Any:
            return await awaitable

        return self._runner.run(wait())


def wrapped(error: BaseException) -> BaseException:
    """Return what an exception of user code becomes."""
    if isinstance(error, PROTOCOL_ERRORS):
        wrapper = RuntimeError(f"user code raised {type(error).__name__}")
        wrapper.__cause__ = error
        return wrapper
    return error


class _Driven:
    """An async iterator as a sync one."""

    def __init__(self, loops: _Loops, values: AsyncIterable[Any]) -> None:
        self._loops = loops
        self._values = aiter(values)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._loops.wait_for(anext(self._values))
        except StopAsyncIteration:
            raise StopIteration from None


def elements(value: Any) -> Any:
    """Return a list or tuple as it is.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"disaggregate: an item is a {type(value).__name__}, not a list or tuple")
    return value


def is_generator(op: Any) -> bool:
    """Tell whether an op is a generator or async generator function, behind whatever wraps it."""
    while isinstance(op, functools.partial):
        op = op.func
    if isinstance(op, type) or not callable(op):
        return False
    if not inspect.isroutine(op):
        op = type(op).__call__
    return inspect.isgeneratorfunction(op) or inspect.isasyncgenfunction(op)
