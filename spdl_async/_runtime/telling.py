"""``tally()`` and ``note()``: what a running op can tell the statistics of its stage.

Nothing is prepared per item. Sync code in our threads is found by what the thread runs (`current`); a
group of fused ops keeps the number of the one at work there anyway. Coroutines, and what runs inline,
are found by a variable that is set once for a worker, a flow or a stage, and that goes along into
``asyncio.to_thread``.
"""

from __future__ import annotations

import contextvars
import operator
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Final, SupportsIndex

from spdl_async._runtime.cancelled import current

if TYPE_CHECKING:
    from spdl_async._runtime.meter import Meter

speaker: Final[ContextVar[Meter | None]] = ContextVar("spdl_async stage", default=None)
"""The meter of the stage whose coroutine runs here; ``None`` in a run's own context.

Looked at before `current`: what a thread of ours calls may run a loop, or a pass, of its own.
"""


def new_context() -> Context:
    """Return a copy of the context in which a run begins; no stage around it speaks in it."""
    context = contextvars.copy_context()
    if speaker.get() is not None:
        context.run(speaker.set, None)
    return context


def meter_here() -> Meter | None:
    """Return the meter of the stage whose user code asks; ``None`` outside one."""
    meter = speaker.get()
    if meter is not None:
        return meter
    step = current.step
    return None if step is None else step.meter


def tally(name: str, n: float | SupportsIndex = 1) -> None:
    """Add to a counter of the stage whose op calls this.

    ``run.statistics()`` shows it as one of `StageStatistics.notes`. For what an op finds out
    on the way and its result does not tell: items decoded in the slow way, bytes read, hits. It costs
    about a microsecond, loses nothing under threads, and each pass begins at 0.

    It is for ops (sync, async and generators, in fused groups, on a ``ThreadPoolExecutor``, with
    ``run_sync(inline=True)``), routers, predicates, aggregators and sources, and also for what an
    async op runs by ``asyncio.to_thread``. Everywhere else nothing happens: outside of a pipeline,
    in an ``on_error`` function, in a lifespan, in threads that an op starts itself, and on an
    executor that is no ``ThreadPoolExecutor``, whose workers (processes, interpreters) do not share
    memory with the run.

    Args:
        name: what is counted, as it is to be shown.
        n: how much is added: a whole number or a float, also a negative one, or whether to count.

    Raises:
        TypeError: ``name`` is no text, ``n`` no number, or `note` has set that name to something else.

    >>> from spdl_async import PipelineBuilder, tally
    >>> def parse(text):
    ...     if text.startswith("#"):
    ...         tally("comments")
    ...     return text.lstrip("#")
    >>> with PipelineBuilder().add_source(["a", "#b", "#c"]).pipe(parse).build().run_sync() as run:
    ...     texts = list(run)
    >>> run.statistics().stage("parse").notes["comments"]
    2
    """
    _check_name("tally", name)
    if not isinstance(n, (int, float)):
        n = _number(name, n)
    meter = meter_here()
    if meter is not None:
        meter.add(name, n)


def note(name: str, value: object) -> None:
    """Set a value that the statistics of the stage show, whose op calls this.

    The last value of all threads stays: for what is the same in all calls, such as the version of a
    decoder, or the latest. Where it can be called, and where nothing happens, is as for `tally`.

    Args:
        name: what the value is, as it is to be shown.
        value: kept until the statistics are, so give a number or a short text, no item.

    Raises:
        TypeError: ``name`` is no text.

    >>> import zlib
    >>> from spdl_async import PipelineBuilder, note
    >>> def unpack(data):
    ...     note("zlib", zlib.ZLIB_RUNTIME_VERSION)
    ...     return zlib.decompress(data)
    >>> packed = PipelineBuilder().add_source([zlib.compress(b"a")])
    >>> with packed.pipe(unpack).build().run_sync() as run:
    ...     values = list(run)
    >>> run.statistics().stage("unpack").notes["zlib"] == zlib.ZLIB_RUNTIME_VERSION
    True
    """
    _check_name("note", name)
    meter = meter_here()
    if meter is not None:
        meter.set(name, value)


def _check_name(function: str, name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{function}: the name must be a text, not {name!r}")


def _number(name: str, n: SupportsIndex) -> int:
    """Return a whole number of another type, such as numpy's."""
    try:
        return operator.index(n)
    except TypeError:
        raise TypeError(f"tally({name!r}): n must be a number, not {n!r}") from None
