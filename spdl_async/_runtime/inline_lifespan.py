"""Lifespans for ``run_sync(inline=True)``: entered and left by whoever asks for results."""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from spdl_async._plan.steps import (
    AggregatePlan,
    MapPlan,
    OpPlan,
    SourcePlan,
    StepPlan,
    ops_of,
)
from spdl_async._runtime.inline_loop import InlineLoop
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
    if isinstance(plan, MapPlan):
        return replace(plan, ops=tuple(ops))
    if isinstance(plan, AggregatePlan):
        return replace(plan, op=ops[0], make=ops[0].call)
    if isinstance(plan, SourcePlan):
        return replace(plan, op=ops[0], open=ops[0].call)
    return replace(plan, op=ops[0])


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
            served = _Served(self._run.loop, manager)
            return served.enter(), served.leave
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


class _Served:
    """Enters and leaves an async context manager in one task, which waits in between."""

    def __init__(self, loop: InlineLoop, manager: AbstractAsyncContextManager[Any]) -> None:
        self._loop = loop
        self._manager = manager
        self._task: Task[None] | None = None
        self._asked: Future[None] | None = None
        self._answer: Future[tuple[Any, BaseException | None]] | None = None

    def enter(self) -> Any:
        """Enter; return what that gives."""
        loop = self._loop.get()
        self._asked = loop.create_future()
        self._answer = loop.create_future()
        self._task = self._loop.start(self._serve(self._answer))
        return self._answered()

    def leave(self) -> None:
        """Leave, where the task was not ended from outside."""
        assert self._asked is not None
        if not self._asked.done():
            self._answer = self._loop.get().create_future()
            self._asked.set_result(None)
            self._answered()

    def _answered(self) -> Any:
        answer = self._answer
        assert answer is not None
        value, error = self._loop.get().run_until_complete(answer)
        if error is not None:
            raise error
        return value

    async def _serve(self, entered: Future[tuple[Any, BaseException | None]]) -> None:
        try:
            value = await self._manager.__aenter__()
        except BaseException as error:  # noqa: BLE001 -- raised by whoever enters
            entered.set_result((None, error))
            return
        entered.set_result((value, None))
        assert self._asked is not None
        await asyncio.wait([self._asked])
        try:
            await self._manager.__aexit__(*NOBODY)
        except BaseException as error:  # noqa: BLE001 -- raised by whoever leaves
            failure: BaseException | None = error
        else:
            failure = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((None, failure))
