"""Lifespans for ``run_sync(inline=True)``: entered and left by whoever asks for results."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from spdl_async._plan.steps import (
    MapPlan,
    OpPlan,
    SourcePlan,
    StepPlan,
    ops_of,
)
from spdl_async._runtime.inline_loop import AsyncInOrdinary
from spdl_async._runtime.lifespan import NOBODY, manager_of, record
from spdl_async.errors import RunStateError

if TYPE_CHECKING:
    from spdl_async._runtime.inline import InlinePass, Items


P = TypeVar("P", SourcePlan, StepPlan)


class Box:
    """The call of an op, which may be another one once its lifespan is entered."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *items: Any) -> Any:
        return self.call(*items)


def in_lifespan(run: InlinePass, plan: P, make: Callable[[P], Items]) -> Items:
    """Return the generator of a step, within the lifespans of its ops, with their state for this run."""
    ops = (plan.op,) if isinstance(plan, SourcePlan) else ops_of(plan)
    if all(op.lifespan is None and op.per_run is None for op in ops):
        return make(plan)
    boxed, let_go = [], []
    for op in ops:
        call = op.call
        if op.per_run is not None:
            call, drop = op.per_run()
            let_go.append(drop)
        boxed.append(replace(op, call=Box(call)))
    return enclosed(run, boxed, make(with_ops(plan, boxed)), let_go)


def with_ops(plan: Any, ops: list[OpPlan]) -> Any:
    """Return a step's plan with other ops."""
    return replace(plan, ops=tuple(ops)) if isinstance(plan, MapPlan) else replace(plan, op=ops[0])


def enclosed(
    run: InlinePass, ops: list[OpPlan], body: Items, let_go: list[Callable[[], None]]
) -> Items:
    """Enter, run the step, leave; an error in leaving is raised where the step has ended well."""
    keeper = InlineKeeper(run)
    try:
        for op in ops:
            keeper.enter(op)
        yield from body
    except BaseException:
        keeper.leave_all()
        raise
    finally:
        for drop in let_go:
            drop()
    failure = keeper.leave_all()
    if failure is not None:
        raise failure


class InlineKeeper:
    """What has been entered for one step."""

    def __init__(self, run: InlinePass) -> None:
        self._run = run
        self._context = run.context.copy()
        self._leaves: list[tuple[str, Callable[[], object]]] = []

    def enter(self, op: OpPlan) -> None:
        """Enter one op's lifespan, and put what is to be called into its box."""
        span = op.lifespan
        if span is None:
            return
        try:
            owner = self._context.run(span.owner)
            entered, leave = self._entered(owner)
            self._leaves.append((op.name, leave))
            call = span.use(owner, entered)
        except RunStateError:
            raise
        except BaseException as error:  # noqa: BLE001 -- recorded; no policy skips it
            failure = record(self._run.log, op.name, error, "entering")
            raise failure from failure.__cause__
        if call is not None:
            assert isinstance(op.call, Box)
            op.call.call = call

    def _entered(self, owner: Any) -> tuple[Any, Callable[[], object]]:
        manager = self._context.run(manager_of, owner)
        if isinstance(manager, AbstractAsyncContextManager):
            inside = self._run.loop.drive(held(manager))
            try:
                return next(inside), functools.partial(leave, inside)
            except BaseException:
                inside.close()
                raise
        entered = self._context.run(manager.__enter__)
        return entered, lambda: self._context.run(manager.__exit__, *NOBODY)

    def leave_all(self) -> BaseException | None:
        """Leave in reverse order; return the first failure."""
        first = None
        while self._leaves:
            name, leave = self._leaves.pop()
            try:
                leave()
            except BaseException as error:  # noqa: BLE001 -- recorded, and raised where nothing else is
                failure = record(self._run.log, name, error, "leaving")
                first = first or failure
        return first


def leave(inside: AsyncInOrdinary) -> None:
    """Leave what :func:`held` has entered."""
    try:
        next(inside, None)
    finally:
        inside.close()


async def held(manager: AbstractAsyncContextManager[Any]) -> AsyncGenerator[Any, None]:
    """Yield what entering gives, and leave: in one task, to which may belong what is entered."""
    async with manager as entered:
        yield entered
