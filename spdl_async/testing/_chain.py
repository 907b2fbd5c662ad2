"""A chain written once, to be built as a pipeline and run as plain loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from spdl_async import Failure, PipelineBuilder
from spdl_async.testing._reference import Expected, interpret

Verb = Literal[
    "pipe",
    "expand",
    "filter",
    "aggregate",
    "disaggregate",
    "shuffle",
    "take",
    "skip",
    "enumerate",
    "cache",
]
OnError = Literal["raise", "skip"] | Callable[[Failure], object]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One verb with its argument and options.

    Attributes:
        verb: the builder's method.
        argument: its positional argument; ``None`` for ``disaggregate``.
        options: its keyword arguments.
    """

    verb: Verb
    argument: Any = None
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Chain:
    """The stages of a pipeline as a value, for comparing the pipeline with plain loops.

    Each verb takes what the builder's verb of that name takes and returns a longer chain.
    :meth:`builder` makes a pipeline of it; :meth:`expected` runs the same ops one item at a time,
    without threads or tasks, and tells what the pipeline must deliver in input order.

    >>> from spdl_async.testing import Chain
    >>> chain = Chain().pipe(lambda x: x * x, concurrency=4).filter(lambda x: x % 2).aggregate(2)
    >>> chain.expected(range(6)).outputs
    [[1, 9], [25]]
    >>> list(chain.builder(range(6)).build()) == chain.expected(range(6)).outputs
    True
    """

    steps: tuple[Step, ...] = ()

    def pipe(self, op: Any, /, **options: Any) -> Chain:
        """Add ``PipelineBuilder.pipe``: 1→1, or 1→n for generator functions."""
        return self._with("pipe", op, options)

    def expand(self, op: Any, /, **options: Any) -> Chain:
        """Add ``PipelineBuilder.expand``: 1→n."""
        return self._with("expand", op, options)

    def filter(self, predicate: Callable[[Any], Any], /, **options: Any) -> Chain:
        """Add ``PipelineBuilder.filter``."""
        return self._with("filter", predicate, options)

    def aggregate(self, size_or_aggregator: Any, /, **options: Any) -> Chain:
        """Add ``PipelineBuilder.aggregate``."""
        return self._with("aggregate", size_or_aggregator, options)

    def disaggregate(self) -> Chain:
        """Add ``PipelineBuilder.disaggregate``."""
        return self._with("disaggregate", None, {})

    def shuffle(self, buffer_size: int, /, *, seed: int, **options: Any) -> Chain:
        """Add ``PipelineBuilder.shuffle``; its order is exact, so it needs a seed."""
        return self._with("shuffle", buffer_size, {"seed": seed, **options})

    def take(self, n: int, /) -> Chain:
        """Add ``PipelineBuilder.take``."""
        return self._with("take", n, {})

    def skip(self, n: int, /) -> Chain:
        """Add ``PipelineBuilder.skip``."""
        return self._with("skip", n, {})

    def enumerate(self, start: int = 0) -> Chain:
        """Add ``PipelineBuilder.enumerate``."""
        return self._with("enumerate", start, {})

    def cache(self, folder: Any = None, /, **options: Any) -> Chain:
        """Add ``PipelineBuilder.cache``, which changes no result."""
        return self._with("cache", folder, options)

    def _with(self, verb: Verb, argument: Any, options: dict[str, Any]) -> Chain:
        step = Step(verb=verb, argument=argument, options=MappingProxyType(dict(options)))
        return Chain((*self.steps, step))

    def builder(self, source: Any, /, **options: Any) -> PipelineBuilder[Any]:
        """Return a builder of this chain over ``source``; options are those of ``add_source``."""
        builder: Any = PipelineBuilder().add_source(source, **options)
        for step in self.steps:
            arguments = () if step.verb == "disaggregate" else (step.argument,)
            builder = getattr(builder, step.verb)(*arguments, **step.options)
        made: PipelineBuilder[Any] = builder
        return made

    def expected(
        self,
        source: Any,
        /,
        *,
        on_error: OnError = "raise",
        source_on_error: OnError | None = None,
        epoch: int = 0,
    ) -> Expected:
        """Run the chain over ``source`` in plain loops; see :func:`reference_run`."""
        return reference_run(
            source, self, on_error=on_error, source_on_error=source_on_error, epoch=epoch
        )


def reference_run(
    source: Any,
    chain: Chain,
    /,
    *,
    on_error: OnError = "raise",
    source_on_error: OnError | None = None,
    epoch: int = 0,
) -> Expected:
    """Run a chain over a source in plain loops, one item at a time, and tell what comes out.

    This is what a pipeline of the same chain must deliver: exactly where every stage keeps the
    input order, else in some order. Stages obey their own ``on_error``, else ``on_error`` here,
    which stands for that of ``build()``; ``retry`` is obeyed without waiting, an ``on_error`` function
    is called with a record without index and source; budgets (``max_failures``) and ``timeout`` are not
    looked at. Ops are entered and left (lifespans of sources and aggregators are not looked at). It
    works in a
    thread of its own, so it may be called while a loop is running; an infinite source never ends.

    Args:
        source: what ``add_source`` takes.
        chain: the stages.
        on_error: policy of the stages, and of the source, that have none of their own.
        source_on_error: policy of the source.
        epoch: number of the pass, which the order of ``shuffle`` depends on.

    Raises:
        BuildError: the chain has a ``shuffle`` without a seed or an ``aggregate(within=)``, which plain
            loops cannot predict.

    >>> from spdl_async.testing import Chain, reference_run
    >>> expected = reference_run([4, 2, 0, 1], Chain().pipe(lambda x: 8 // x))
    >>> expected.outputs, expected.error
    ([2, 4], ZeroDivisionError('integer division or modulo by zero'))
    >>> reference_run([4, 2, 0, 1], Chain().pipe(lambda x: 8 // x), on_error="skip").outputs
    [2, 4, 8]
    """
    return interpret(source, chain.steps, on_error, source_on_error or on_error, epoch)
