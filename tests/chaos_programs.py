"""Programs of chaos: trees of chains, merged and routed, with faults in them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from chaos_reference import (
    Chained,
    Expectation,
    Merged,
    Route,
    Source,
    Work,
    answer,
    answers,
    evaluate,
)
from fuzz_ops import (
    SOURCES,
    BoomError,
    Op,
    coroutine,
    digest,
)

from spdl_async import DROP, Merge, Pipeline, PipelineBuilder, Zip, cancelled

if TYPE_CHECKING:
    from chaos_kinds import Spanning, Spending


class Crowd:
    """Counts the calls of an op that run at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.most = self.now = 0
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.now -= 1

    def around(self, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a plain function that is counted."""

        def call(value: Any) -> Any:
            with self:
                return work(value)

        return call

    def around_async(self, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a coroutine function that is counted."""

        async def call(value: Any) -> Any:
            with self:
                return await work(value)

        return call


class Session:
    """An op with a lifespan, which it must be called within."""

    def __init__(self, op: Op) -> None:
        self.work = coroutine(op)
        self.entered = self.left = 0

    async def __aenter__(self) -> Self:
        await asyncio.sleep(0)  # one that is cancelled here was never entered
        self.entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)
        self.left += 1

    async def __call__(self, value: Any) -> Any:
        if self.entered <= self.left:
            raise AssertionError("called outside of its lifespan")
        return await self.work(value)


def is_stuck(op: Op, value: Any) -> bool:
    """Tell whether a call takes longer than its timeout."""
    return digest("stuck", op.key, value) % 12 == 0


def stuck(op: Op) -> Callable[[Any], Any]:
    def work(value: Any) -> Any:
        while is_stuck(op, value) and not cancelled():
            time.sleep(0.001)
        return op.result(value)

    return work


def stuck_async(op: Op) -> Callable[[Any], Any]:
    async def work(value: Any) -> Any:
        if is_stuck(op, value):
            await asyncio.Event().wait()
        return op.result(value)

    return work


def failing(op: Op) -> Callable[[Any], Any]:
    """What plain loops call instead of an op that is stuck at some values."""

    def work(value: Any) -> Any:
        if is_stuck(op, value):
            raise BoomError("stuck")
        return op.result(value)

    return work


async def one_by_one(branches: list[AsyncIterator[Any]]) -> AsyncIterator[Any]:
    """Mix branches: the first to its end, then the next."""
    for branch in branches:
        async for item in branch:
            yield item


@dataclass
class Program:
    """A tree, and how to run it."""

    seed: int
    face: str = "sync"
    tree: Chained = field(default_factory=lambda: Chained(Merged("turns", [])))
    build: dict[str, Any] = field(default_factory=dict)
    sink: int = 2
    uvloop: bool = False
    epochs: int = 1
    overlap: bool = True
    stop: str | None = None
    taken: int = 0
    exact: bool = True
    cut: bool = False
    timed: bool = False
    ops: list[Op] = field(default_factory=list)
    crowds: list[Crowd] = field(default_factory=list)
    sessions: list[Session | Spanning] = field(default_factory=list)
    budgets: list[Spending] = field(default_factory=list)
    shared: Spending | None = None
    limit: int | None = None
    copied: bool = False
    split: int = 0

    @property
    def on_error(self) -> Any:
        """The policy of ``build()``."""
        return self.build["on_error"]

    def __str__(self) -> str:
        how = f"all of {self.epochs}" if self.stop is None else f"{self.stop} after {self.taken}"
        return (
            f"seed {self.seed}: {self.face}{' on uvloop' if self.uvloop else ''}, {how}, "
            f"overlap={self.overlap}, exact={self.exact}, build({self.build}), sink {self.sink}\n"
            + "\n".join(told(self.tree))
        )

    def pipeline(self) -> Pipeline[Any]:
        """Build it; ops that recover from failures begin anew."""
        self.anew()
        pipeline: Pipeline[Any] = builder_of(self.tree).add_sink(self.sink).build(**self.build)
        return pipeline

    def anew(self) -> None:
        """Forget the calls so far."""
        for op in self.ops:
            op.calls.clear()
        for budget in (*self.budgets, *filter(None, [self.shared])):
            budget.anew()

    def expected(self, epoch: int = 0, on_error: Any = None) -> Expectation:
        """Run it in plain loops."""
        self.anew()
        return evaluate(self.tree, SOURCES, on_error or self.shared or self.on_error, epoch)


def told(tree: Chained, depth: int = 1) -> Iterator[str]:
    """Yield a tree as lines of text."""
    space = "  " * depth
    source = tree.source
    if isinstance(source, Merged):
        yield f"{space}merge: {source.turns}, weights={source.weights}"
        for branch in source.branches:
            yield from told(branch, depth + 1)
    else:
        yield f"{space}{source.kind} of {source.values}: {source.op}, on_error={source.on_error}"
    yield from told_stages(tree.stages, depth)


def told_stages(stages: list[Work | Route], depth: int) -> Iterator[str]:
    """Yield stages as lines of text."""
    for stage in stages:
        yield f"{'  ' * depth}→ {stage.text}, {stage.options}"
        if isinstance(stage, Route):
            for number, branch in enumerate(stage.branches):
                yield f"{'  ' * depth}  branch {number}"
                yield from told_stages(branch, depth + 2)


# Building


def builder_of(tree: Chained) -> Any:
    """Return the builder of a tree."""
    source = tree.source
    if isinstance(source, Source):
        made = SOURCES[source.kind](source.op, source.values)
        start: Any = PipelineBuilder().add_source(made, on_error=source.on_error)
        return with_stages(start, tree.stages)
    branches = [builder_of(branch) for branch in source.branches]
    merged: Any
    if source.turns == "zip":
        merged = Zip(*branches)
    elif source.turns == "mix":
        merged = Merge(*branches, mix=one_by_one)
    else:
        stop: Any = "first" if source.turns == "first" else "all"
        merged = Merge(*branches, weights=source.weights, stop=stop)
    return with_stages(PipelineBuilder().add_source(merged), tree.stages)


def with_stages(builder: Any, stages: list[Work | Route]) -> Any:
    """Add stages to a builder."""
    for stage in stages:
        if isinstance(stage, Work):
            given = () if stage.verb == "disaggregate" else (stage.argument,)
            builder = getattr(builder, stage.verb)(*given, **stage.options)
            continue
        ways = [lambda b, own=branch: with_stages(b, own) for branch in stage.branches]
        # A string as key: its text is not the number that plain loops know the branch by.
        keyed = [{f"way {n}": way for n, way in enumerate(ways)}] if "keys" in stage.text else ways
        builder = builder.route(stage.router, *keyed, **stage.options)
    return builder


def router_of(op: Op, count: int, kind: str, is_async: bool) -> Any:
    """Return a router as the pipeline calls it."""

    def ask(value: Any) -> Any:
        if kind == "lists":
            return answers(op, count, value)
        number = answer(op, count, value)
        return f"way {number}" if kind == "keys" and number is not DROP else number

    def work(value: Any) -> Any:
        op.shake(value)
        return ask(value)

    async def later(value: Any) -> Any:
        await op.ashake(value)
        return ask(value)

    return later if is_async else work
