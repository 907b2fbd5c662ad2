"""``per_thread``: an op that is made once in each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from spdl_async._plan.classify import check_arity, classify_op
from spdl_async._plan.lifespan import instances_have_lifespan
from spdl_async.errors import BuildError
from spdl_async.spec.stages import op_name

T = TypeVar("T")
U = TypeVar("U")


def per_thread(factory: Callable[[], Callable[[T], U]], /) -> Callable[[T], U]:
    """Return an op that calls, in each thread, an op of that thread's own.

    For what must not be shared between threads, or not left by the thread that made it: decoders,
    file handles, connections, random generators. ``factory`` is called in the thread, at its first
    item; where it raises, that item fails, and it is called again for the next one. Each run makes
    its ops anew, and lets go of them when it is over; they are not closed, so what must be closed at
    a certain time belongs into a lifespan. All stages share the threads of the pool, so there may be
    as many ops as it has threads (``build(num_threads=…)``), though never more than ``concurrency``
    at work. With ``run_sync(inline=True)`` there is one thread.

    Args:
        factory: takes no argument and returns a sync op, or an object to look up in. In ``expand``
            the op should return a list: a lazy iterator may go on in another thread.

    Raises:
        BuildError: the factory takes arguments, is async, or makes ops that are.

    >>> import zlib
    >>> from spdl_async import PipelineBuilder, per_thread
    >>> class Inflater:
    ...     def __init__(self):
    ...         self.count = 0  # no lock: only one thread has this object
    ...     def __call__(self, data):
    ...         self.count += 1
    ...         return zlib.decompress(data)
    >>> packed = PipelineBuilder().add_source([zlib.compress(b"a"), zlib.compress(b"b")])
    >>> list(packed.pipe(per_thread(Inflater), concurrency=8).build())
    [b'a', b'b']
    """
    where = f"per_thread({op_name(factory)})"
    if not callable(factory):
        raise BuildError(
            f"{where}: pass a function without arguments, or a class, that makes the op of a thread, "
            f"not a {type(factory).__name__}"
        )
    check_arity(factory, 0, where)
    if not isinstance(factory, type) and classify_op(factory, where)[0] != "sync":
        raise BuildError(
            f"{where}: the factory is async or a generator; it is called in a thread and must return "
            f"the op of that thread"
        )
    if isinstance(factory, type):
        refuse_kind(factory.__call__, where, BuildError)
        refuse_lifespan(factory, where, BuildError)
    return cast("Callable[[T], U]", PerThread(factory, where))


class PerThread:
    """The description of such an op: :meth:`for_run` makes the one of a run."""

    def __init__(self, factory: Callable[[], Any], where: str) -> None:
        self.__wrapped_op__ = factory
        self.__name__ = op_name(factory)
        self._where = where
        self._outside = self.for_run()

    def for_run(self) -> ThreadOps:
        """Return a callable that makes its ops anew."""
        return ThreadOps(self.__wrapped_op__, self._where)

    def __call__(self, item: Any, /) -> Any:
        """Call the op outside of a pipeline."""
        return self._outside(item)

    def __reduce__(self) -> Any:
        return PerThread, (self.__wrapped_op__, self._where)


class ThreadOps:
    """The ops of one run, one for each thread."""

    __slots__ = ("_factory", "_local", "_where")

    def __init__(self, factory: Callable[[], Any], where: str) -> None:
        self._factory = factory
        self._where = where
        self._local = threading.local()

    def __call__(self, item: Any, /) -> Any:
        try:
            call = self._local.call
        except AttributeError:
            pass  # made below: an error of the factory must not have this one as its context
        else:
            return call(item)
        return self._make()(item)

    def _make(self) -> Callable[[Any], Any]:
        op = self._factory()
        refuse_kind(op, self._where, TypeError)
        refuse_lifespan(type(op), self._where, TypeError)
        try:
            _, call = classify_op(op, self._where)
        except BuildError as error:
            raise TypeError(str(error)) from None
        self._local.call = call
        return call

    def drop(self) -> None:
        """Let go of the ops of all threads."""
        self._local = threading.local()


def refuse_lifespan(kind: type, where: str, error: type[Exception]) -> None:
    """Raise where the op of a thread expects to be entered."""
    if instances_have_lifespan(kind):
        raise error(
            f"{where}: {kind.__name__} has a lifespan, which belongs to a stage and not to a thread; "
            f"pipe such an op itself, or let the factory return what needs no lifespan"
        )


def refuse_kind(op: Any, where: str, error: type[Exception]) -> None:
    """Raise where the op of a thread would not stay in that thread."""
    if not callable(op):
        return
    kind = classify_op(op, where)[0]
    if kind in ("async", "async generator"):
        raise error(
            f"{where}: it makes async ops, which run on the event loop and not in threads; pipe such "
            f"an op itself, and give it a lifespan for what it owns"
        )
    if kind == "generator":
        raise error(
            f"{where}: it makes generator functions, whose generators may go on in another thread; "
            f"return a list instead, with expand(per_thread(…))"
        )
