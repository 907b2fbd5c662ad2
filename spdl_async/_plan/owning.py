"""Ops with a state for each run: lifespans and ``per_thread``, in whatever wraps them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from spdl_async._plan.field import AsyncOnField, OnField
from spdl_async._plan.lifespan import Rewrap, op_lifespan
from spdl_async._plan.per_thread import PerThread
from spdl_async._plan.place import drains
from spdl_async._plan.steps import OpPlan
from spdl_async.errors import BuildError


def peel(op: Any) -> tuple[Any, Rewrap]:
    """Return the object inside ``on(…)`` and ``functools.partial``, and what puts another in its place."""
    if isinstance(op, (OnField, AsyncOnField)):
        inner, rewrap = peel(op.__wrapped_op__)
        return inner, lambda call: op.with_call(rewrap(call))
    if isinstance(op, functools.partial):
        inner, rewrap = peel(op.func)
        return inner, lambda call: functools.partial(rewrap(call), *op.args, **op.keywords)
    return op, lambda call: call


def owned(op: OpPlan, inner: Any, place: Executor | None, where: str, wrap: Rewrap) -> OpPlan:
    """Return an op's plan with what its object owns, where it owns anything.

    Args:
        op: the plan.
        inner: the user's object, peeled.
        place: the executor that it runs on.
        where: the stage, for messages.
        wrap: makes the stage's call of a callable that takes the object's place.

    Raises:
        BuildError: it would have to own that in another process.
    """
    per_thread = isinstance(inner, PerThread)
    lifespan = op_lifespan(inner, where, wrap)
    if not per_thread and lifespan is None:
        return op
    if place is not None and not drains(place):
        raise BuildError(
            f"{where}: {'per_thread' if per_thread else 'an op with a lifespan'} cannot run on a "
            f"{type(place).__name__}, whose workers do not share our memory; make the op's state in "
            f"the executor's initializer, or leave executor= out"
        )
    if per_thread:
        return replace(op, per_run=functools.partial(made_for_run, inner, wrap))
    return replace(op, lifespan=lifespan)


def made_for_run(inner: PerThread, wrap: Rewrap) -> tuple[Callable[..., Any], Callable[[], None]]:
    """Return the call of a run for a ``per_thread`` op, and what lets go of what it has made."""
    ops = inner.for_run()
    return wrap(ops), ops.drop
