"""What kind of op, source or aggregator a user's object is; the only place that inspects them."""

from __future__ import annotations

import collections.abc
import copy
import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from spdl_async._plan.results import is_async_iterable
from spdl_async._plan.steps import OpKind
from spdl_async.errors import BuildError
from spdl_async.spec.aggregator import Aggregator
from spdl_async.spec.stages import op_name


def classify_op(op: Any, where: str) -> tuple[OpKind, Callable[..., Any]]:
    """Return an op's kind and what to call.

    Raises:
        BuildError: it can neither be called nor be indexed.
    """
    if callable(op):
        return _kind_of_callable(op), op
    if isinstance(op, (str, bytes, bytearray)):
        raise BuildError(
            f"{where}: the op is the {type(op).__name__} {op!r}; pass the function itself, not its name"
        )
    made_by_a_call = _made_by_a_call(op)
    if made_by_a_call is not None:
        raise BuildError(
            f"{where}: the op is {made_by_a_call}: pass the function itself, without calling it; to "
            f"bind arguments use functools.partial(function, …)"
        )
    if hasattr(type(op), "__getitem__"):
        return "sync", op.__getitem__
    raise BuildError(
        f"{where}: the op must be a function, a coroutine function, a generator function, a callable "
        f"object or an object with __getitem__, not {type(op).__name__}{_instead(op)}"
    )


def _instead(given: Any) -> str:
    """Say what to do with an object that is no stage, where it is known."""
    if callable(getattr(given, "stages", None)):
        return "; add its stages by .apply(….stages())"
    if isinstance(given, Aggregator):
        return "; add an aggregator by .aggregate(…)"
    return ""


def _made_by_a_call(op: Any) -> str | None:
    """Say what calling an async or generator function made, where it was given for the function."""
    if inspect.iscoroutine(op):
        _refuse_coroutine(op)
        return f"a coroutine object, what calling {op.__name__}(…) returns"
    if inspect.isawaitable(op):
        return f"an awaitable of type {type(op).__name__}"
    if inspect.isgenerator(op) or inspect.isasyncgen(op):
        kind = "a generator" if inspect.isgenerator(op) else "an async generator"
        return f"{kind} object, what calling {op.__name__}(…) returns"
    return None


def _refuse_coroutine(given: Any) -> None:
    """Close a coroutine that was never begun, else Python warns, later and elsewhere, of just that."""
    if inspect.iscoroutine(given) and inspect.getcoroutinestate(given) == inspect.CORO_CREATED:
        given.close()


def _kind_of_callable(op: Any) -> OpKind:
    target = op
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, type):  # calling a class makes an instance, whatever its __call__ is
        return "sync"
    if not inspect.isroutine(target):
        candidates: tuple[Any, ...] = (target, type(target).__call__)
    else:
        candidates = (target,)
    for candidate in candidates:
        if inspect.isasyncgenfunction(candidate):
            return "async generator"
        if inspect.iscoroutinefunction(candidate):
            return "async"
        if inspect.isgeneratorfunction(candidate):
            return "generator"
    return "sync"


def check_arity(call: Callable[..., Any], arguments: int, where: str) -> None:
    """Raise ``BuildError`` where the signature says that ``call`` does not take ``arguments``."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # builtins without a signature: the first call will tell
        return
    try:
        signature.bind(*(None for _ in range(arguments)))
    except TypeError as error:
        what, wanted, to_bind = (
            ("op", "one argument, the item", "the others")
            if arguments == 1
            else ("callable", "no argument", "its arguments")
        )
        if arguments == 1 and isinstance(call, type):
            raise BuildError(
                f"{where}: the op is the class {call.__name__}, which is called with {wanted} ({error}); "
                f"if an object of it is meant, make one: {call.__name__}(…)"
            ) from None
        raise BuildError(
            f"{where}: the {what} is called with {wanted}, but its signature is {signature} ({error}); "
            f"bind {to_bind} with functools.partial or a lambda"
        ) from None


def check_fragment(fragment: Any) -> None:
    """Raise ``BuildError`` where ``apply`` cannot call it with a builder."""
    if not callable(fragment):
        raise BuildError(
            f"apply: pass a function that takes a builder and returns it with more stages, not "
            f"{type(fragment).__name__}{_instead(fragment)}"
        )
    try:
        inspect.signature(fragment).bind(None)
    except TypeError as error:
        raise BuildError(
            f"apply: {op_name(fragment)} is called with one argument, the builder, but its signature "
            f"is {inspect.signature(fragment)} ({error}); if it makes such a function, call it"
        ) from None
    except ValueError:  # a builtin without a signature: the call will tell
        pass


def check_handler(handler: Callable[..., Any] | None, where: str) -> None:
    """Raise ``BuildError`` where an ``on_error`` function cannot work.

    Its signature may say that it does not take the failure; a generator function would do nothing.
    """
    if handler is None:
        return
    kind = _kind_of_callable(handler)
    if kind not in ("sync", "async"):
        raise BuildError(
            f"{where}: on_error is a {kind} function, of which a call does nothing; make it a "
            f"function or a coroutine function"
        )
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # builtins without a signature: the first call will tell
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise BuildError(
            f"{where}: on_error is called with one argument, the failure, but its signature is "
            f"{signature} ({error})"
        ) from None


def is_opened_at_run(source: Any) -> bool:
    """Tell whether a source is a callable, so that only a run shows whether its iterable is async."""
    return callable(source) and not hasattr(type(source), "__iter__")


def is_single_use(source: Any) -> bool:
    """Tell whether a source is an iterator, which has one pass only."""
    return isinstance(source, (collections.abc.Iterator, collections.abc.AsyncIterator))


def classify_source(source: Any) -> tuple[Callable[[], Any], bool]:
    """Return a callable that opens a source, and whether it is read on the loop.

    Raises:
        BuildError: it is no source; the message says what would be.
    """
    if isinstance(source, (str, bytes, bytearray)):
        raise BuildError(
            f"add_source: the source is one {type(source).__name__}, which would be read "
            f"{pieces_of(source)} by {pieces_of(source)}; for one item put it into a list, "
            f"[{shortened(source)}], for a file's lines give partial(open, path), for the files of a "
            f"folder list_files(folder, '**/*.jpg') of spdl_async.io"
        )
    if isinstance(source, os.PathLike):
        raise BuildError(
            f"add_source: the source is one path, {os.fspath(source)!r}; for one item put it into a list, "
            f"for the files of a folder give list_files(folder, '**/*.jpg') of spdl_async.io"
        )
    if isinstance(
        source, type
    ):  # a class has the methods of its instances, and is a factory of them
        check_arity(source, 0, f"add_source({source.__name__})")
        return source, False
    if is_async_iterable(source):
        return _same(source), True
    if hasattr(source, "__iter__"):
        return _same(source), False
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return _same(source), False
    if inspect.isawaitable(source):
        _refuse_coroutine(source)
        raise BuildError(
            "add_source: the source is a coroutine or another awaitable, which has one pass at most; "
            "pass the async function itself, without calling it"
        )
    if callable(source):
        check_arity(source, 0, "add_source")
        on_loop = _kind_of_callable(source) in ("async", "async generator")
        return source, on_loop
    raise BuildError(
        f"add_source: the source must be an iterable, an async iterable, a sequence with __len__ and "
        f"__getitem__, or a callable without arguments that returns one, not {type(source).__name__}"
    )


def find_set_epoch(source: Any) -> Callable[[int], object] | None:
    """Return a source's ``set_epoch`` method, with which it hears the number of each pass.

    Raises:
        BuildError: it cannot be called with one number, or is a coroutine function.
    """
    found = None if isinstance(source, type) else getattr(source, "set_epoch", None)
    if not callable(found):
        return None
    method: Callable[[int], object] = found
    where = f"add_source: {type(source).__name__}.set_epoch"
    if _kind_of_callable(method) != "sync":
        raise BuildError(
            f"{where} must be an ordinary function: it is called with the number of the pass right "
            f"before the source is read"
        )
    try:
        inspect.signature(method).bind(0)
    except TypeError as error:
        raise BuildError(
            f"{where} is called with one argument, the number of the pass, but {error}"
        ) from None
    except ValueError:  # a builtin without a signature: the first call will tell
        pass
    return method


def pieces_of(source: str | bytes | bytearray) -> str:
    """Return what iterating over text or bytes gives."""
    return "character" if isinstance(source, str) else "byte"


def shortened(source: str | bytes | bytearray) -> str:
    """Return text or bytes as Python writes them, or dots where that is long."""
    return repr(source) if len(source) <= 30 else "…"


def _same(source: Any) -> Callable[[], Any]:
    return lambda: source


def classify_aggregator(aggregator: Any) -> Callable[[], Any]:
    """Return a callable that makes a fresh aggregator for a run.

    Raises:
        BuildError: it is neither an aggregator nor a factory of one.
    """
    if not isinstance(aggregator, type) and isinstance(aggregator, Aggregator):
        return lambda: copy.deepcopy(aggregator)
    if callable(aggregator):
        check_arity(aggregator, 0, "aggregate")
        return _checked(aggregator)
    raise BuildError(
        f"aggregate: pass a batch size, an Aggregator (an object with accumulate(item) and flush()) or "
        f"a factory of one, not {type(aggregator).__name__}{_instead(aggregator)}"
    )


def _checked(factory: Callable[[], Any]) -> Callable[[], Any]:
    def make() -> Any:
        made = factory()
        if not isinstance(made, Aggregator):
            raise TypeError(
                f"aggregate: the factory returned an object of type {type(made).__name__}, which has no "
                f"accumulate(item) and flush()"
            )
        return made

    return make


def check_size_of(size_of: object, limit: int | None) -> None:
    """Refuse what cannot tell the size of a value."""
    if size_of is None:
        return
    if limit is None:
        raise BuildError("build: size_of is used only with max_bytes=; give both")
    if not callable(size_of) or inspect.iscoroutinefunction(size_of):
        raise BuildError(
            f"build: size_of must be a function that returns the bytes of a value, not {size_of!r}"
        )
