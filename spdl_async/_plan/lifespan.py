"""Ops that own resources: finding an object's lifespan, and what takes its place once it is entered."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from spdl_async._plan.classify import classify_op
from spdl_async._plan.steps import Lifespan, OpKind
from spdl_async.errors import BuildError
from spdl_async.spec.aggregator import Aggregator

Rewrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def has_lifespan(op: Any) -> bool:
    """Tell whether an object is an async context manager, or has a ``lifespan()`` that makes one.

    What is only a sync context manager (an open file, a lock) is not entered: that may be its user's.
    """
    return not isinstance(op, type) and instances_have_lifespan(type(op))


def instances_have_lifespan(kind: type) -> bool:
    """Tell the same of a class, for its instances."""
    is_manager = hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__")
    return is_manager or callable(getattr(kind, "lifespan", None))


def op_lifespan(op: Any, where: str, wrap: Rewrap) -> Lifespan | None:
    """Return the lifespan of a stage's op, ``None`` where it has none.

    Args:
        op: the object itself, peeled.
        where: the stage, for messages.
        wrap: makes the stage's call of a callable that takes the object's place.
    """
    if not has_lifespan(op):
        return None
    check_lifespan(op, where)
    kind = classify_op(op, where)[0]

    def use(owner: Any, entered: Any) -> Callable[..., Any] | None:
        if entered is owner or not callable(entered):
            return None
        return wrap(checked_kind(entered, kind, where))

    return Lifespan(owner=lambda: op, use=use)


def checked_kind(entered: Any, kind: OpKind, where: str) -> Callable[..., Any]:
    """Return the call of what entering gave, which must be of the kind that the plan was made for."""
    found, call = classify_op(entered, where)
    if found != kind:
        raise TypeError(
            f"{where}: entering the op's lifespan gave a callable of kind {found!r}, while the op "
            f"itself is of kind {kind!r}, by which build() has placed the stage; give one of the "
            f"same kind, or none: then the op itself is called"
        )
    return call


def source_lifespan(source: Any) -> Lifespan | None:
    """Return the lifespan of a source; only ``lifespan()`` makes one."""
    if not has_lifespan(source) or not hasattr(type(source), "lifespan"):
        return None
    check_lifespan(source, "add_source")

    def use(owner: Any, entered: Any) -> Callable[..., Any] | None:
        is_source = hasattr(entered, "__aiter__") or hasattr(entered, "__iter__")
        if entered is owner or not is_source or isinstance(entered, (str, bytes)):
            return None
        return lambda: entered

    return Lifespan(owner=lambda: source, use=use)


def aggregator_lifespan(given: Any, make: Callable[[], Any]) -> Lifespan | None:
    """Return the lifespan of an aggregator: of the copy, or the new instance, that a run works with."""
    is_instance = not isinstance(given, type) and isinstance(given, Aggregator)
    kind = given if isinstance(given, type) else type(given)
    if not (is_instance or isinstance(given, type)) or not instances_have_lifespan(kind):
        return None
    check_lifespan(given, "aggregate")
    owner = functools.partial(copy.deepcopy, given) if is_instance else make

    def use(owner: Any, entered: Any) -> Callable[..., Any]:
        made = entered if isinstance(entered, Aggregator) else owner
        return lambda: made

    return Lifespan(owner=owner, use=use, makes_owner=True)


def check_lifespan(owner: Any, where: str) -> None:
    """Raise ``BuildError`` where ``lifespan`` is a function that makes no context manager."""
    kind = owner if isinstance(owner, type) else type(owner)
    method = getattr(kind, "lifespan", None)
    if inspect.isasyncgenfunction(method) or inspect.iscoroutinefunction(method):
        fix = "@contextlib.asynccontextmanager"
    elif inspect.isgeneratorfunction(method):
        fix = "@contextlib.contextmanager"
    else:
        return
    raise BuildError(
        f"{where}: lifespan() of {kind.__name__} must return a context manager; write {fix} above it "
        f"and one yield into it"
    )
