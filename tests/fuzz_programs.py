"""Random pipelines, and how one pass over them is driven."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

pytest.importorskip("hypothesis")

from fuzz_ops import (
    EXPANDS,
    FILTERS,
    GENERATORS,
    PIPES,
    SOURCES,
    Asked,
    AskedLater,
    BoomError,
    Gather,
    Op,
)
from hypothesis import strategies as st

from spdl_async import Pipeline, PipelineRun, Retry, SyncPipelineRun
from spdl_async.testing import Chain, Expected

T = TypeVar("T")
PATIENCE = 20.0

GIVEN = ThreadPoolExecutor(3, thread_name_prefix="given")  # shared by all that draw it
FACES = ("caller", "own", "sync", "inline", "short async", "short sync")
KINDS = (
    *(("pipe", kind) for kind in PIPES),
    *(("generator", kind) for kind in GENERATORS),
    *(("expand", kind) for kind in EXPANDS),
    *(("filter", kind) for kind in FILTERS),
    ("aggregate", "size"),
    ("aggregate", "instance"),
    ("aggregate", "factory"),
    ("disaggregate", ""),
    ("shuffle", "size"),
    ("take", "size"),
    ("skip", "size"),
    ("enumerate", "size"),
)
SHAPES = ("shuffle", "take", "skip", "enumerate")


@dataclass
class Program:
    """A pipeline, and how to run it."""

    source_kind: str
    source_op: Op
    count: int
    source_on_error: Any
    ops: list[Op]
    chain: Chain
    story: list[str]
    threads: int | str | None
    on_error: Any
    sink: int
    face: str
    uvloop: bool
    exact: bool

    def __repr__(self) -> str:
        where = f"{self.face}{' on uvloop' if self.uvloop else ''}"
        return (
            f"{self.source_kind} of {self.count} ({self.source_op}, on_error={self.source_on_error})"
            f"\n  → {' → '.join(self.story)}\n  build(threads={self.threads}, "
            f"on_error={self.on_error!r}), sink {self.sink}, {where}, exact={self.exact}"
        )

    def source(self) -> Any:
        """Return a fresh source; ops that recover from failures begin anew too."""
        for op in self.ops:
            op.calls.clear()
        return SOURCES[self.source_kind](self.source_op, range(self.count))

    def pipeline(self) -> Pipeline[Any]:
        """Build it."""
        builder = self.chain.builder(self.source(), on_error=self.source_on_error)
        threads: dict[str, Any] = {"num_threads": self.threads}
        if self.threads == "given":
            threads = {"executor": GIVEN}
        return builder.add_sink(self.sink).build(on_error=self.on_error, **threads)

    def expected(self, on_error: Any = None) -> Expected:
        """Run it in plain loops."""
        return self.chain.expected(
            self.source(),
            on_error=on_error or self.on_error,
            source_on_error=self.source_on_error,
        )


@dataclass
class Outcome:
    """What a consumer got."""

    outputs: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    run: PipelineRun[Any] | SyncPipelineRun[Any] | None = None


@st.composite
def programs(
    draw: st.DrawFn, *, failures: bool, endless: bool = False, faces: tuple[str, ...] = FACES
) -> Program:
    """Draw a program; without ``failures`` no op fails and every drop is wanted.

    ``endless``: nothing in it ends an endless source.
    """
    fails = st.sampled_from((0, 0, 0, 0, 300, 60, 60, 12, 2)) if failures else st.just(0)
    asked = st.builds(
        lambda kind, key, raises: kind(key, raises),
        st.sampled_from((Asked, AskedLater)),
        st.integers(0, 99),
        st.sampled_from((0, 0, 2, 20)),
    )
    words = st.sampled_from((None, None, "skip", "skip", "raise"))
    policies = words | asked if failures else st.none()
    retries = (
        st.none()
        if not failures
        else st.none()
        | st.builds(
            lambda attempts, backoff, on: Retry(attempts, backoff=backoff, on=on),
            st.integers(2, 4),
            st.sampled_from((0.0, 0.0005)),
            st.sampled_from(((BoomError,), (Exception,), (KeyError,))),
        )
    )
    ops: list[Op] = []
    chain, story, exact, nested = Chain(), [], True, 0
    for key in range(draw(st.integers(0, 5))):
        verb, kind = draw(st.sampled_from(KINDS))
        op = Op(
            key,
            fails=draw(fails),
            drops=draw(st.sampled_from((0, 0, 7))),
            jitter=draw(st.sampled_from(("none", "none", "yield", "wait"))),
            recovers=draw(st.integers(0, 3)),
        )
        ops.append(op)
        if verb == "disaggregate":
            if not nested and not (failures and exact):
                continue
            nested = max(0, nested - 1)
            chain = chain.disaggregate()
            story.append("disaggregate()")
            continue
        if verb in SHAPES:
            # Which items come first is known only where the order is; a number makes a pair of an item.
            if exact and not (verb == "enumerate" and nested) and not (verb == "take" and endless):
                chain = with_shape(chain, verb, draw)
                story.append(f"{verb}({chain.steps[-1].argument}, {dict(chain.steps[-1].options)})")
            continue
        if not exact and nested:
            continue  # below a batch whose members vary, only their taking apart is comparable
        options: dict[str, Any] = {}
        if verb == "aggregate":
            options["drop_last"] = exact and draw(st.booleans())
            nested += 1
        else:
            options["concurrency"] = draw(st.integers(1, 8))
            options["output_order"] = draw(st.sampled_from(("input",) * 5 + ("completion",)))
            exact = exact and options["output_order"] == "input"
            if (retry := draw(retries)) is not None:
                options["retry"] = retry
            if verb in ("pipe", "filter"):
                options["fuse"] = draw(st.booleans())
        if not (verb == "aggregate" and kind == "size"):
            options["on_error"] = draw(policies)
        argument = argument_of(verb, kind, op, exact, draw)
        chain = getattr(chain, "pipe" if verb == "generator" else verb)(argument, **options)
        story.append(f"{verb} {kind or argument}: {op if kind != 'size' else argument}, {options}")
    return Program(
        source_kind=draw(st.sampled_from(sorted(SOURCES))),
        source_op=Op(
            99, fails=draw(fails), jitter=draw(st.sampled_from(("none", "yield", "wait")))
        ),
        count=draw(st.sampled_from((60, 0, 1, 2, 7, 20, 20, 60, 150))),
        source_on_error=draw(policies),
        ops=ops,
        chain=chain,
        story=story,
        threads=draw(st.sampled_from((None, 1, 1, 2, 3, 4, "given"))),
        on_error=draw(st.sampled_from(("raise", "skip")) | (asked if failures else st.nothing())),
        sink=draw(st.integers(1, 4)),
        face=draw(st.sampled_from(faces)),
        uvloop=importlib.util.find_spec("uvloop") is not None and draw(st.booleans()),
        exact=exact,
    )


def with_shape(chain: Chain, verb: str, draw: st.DrawFn) -> Chain:
    """Add a verb that chooses, numbers or reorders items."""
    if verb == "shuffle":
        return chain.shuffle(
            draw(st.sampled_from((1, 2, 5, 30, 300))), seed=draw(st.integers(0, 9))
        )
    if verb == "enumerate":
        return chain.enumerate(draw(st.integers(-2, 2)))
    count = draw(st.sampled_from((0, 1, 3, 10, 50)))
    return chain.take(count) if verb == "take" else chain.skip(count)


def argument_of(verb: str, kind: str, op: Op, exact: bool, draw: st.DrawFn) -> Any:
    """Return what a verb is called with."""
    if verb == "aggregate":
        if kind == "size":
            return draw(st.integers(1, 9))
        gather = Gather(op, flush_fails=exact)
        return gather if kind == "instance" else lambda: Gather(op, flush_fails=exact)
    table = {"pipe": PIPES, "generator": GENERATORS, "expand": EXPANDS, "filter": FILTERS}[verb]
    return table[kind](op)


# Driving


def on_loop(work: Coroutine[Any, Any, T], *, uvloop: bool) -> T:
    """Run a coroutine on a fresh loop, asyncio's in debug mode or uvloop's."""
    factory: Callable[[], AbstractEventLoop] = asyncio.new_event_loop
    if uvloop:
        factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(debug=not uvloop, loop_factory=factory) as runner:
        return runner.run(work)


def one_pass(program: Program) -> Outcome:
    """Take every result of one pass."""
    pipeline = program.pipeline()
    if program.face in ("caller", "own", "short async"):
        return on_loop(_pass_async(pipeline, program.face), uvloop=program.uvloop)
    outcome = Outcome()
    try:
        if program.face == "short sync":
            outcome.outputs.extend(pipeline)
            return outcome
        with pipeline.run_sync(inline=program.face == "inline") as run:
            outcome.run = run
            for value in run:
                outcome.outputs.append(value)
    except BaseException as error:
        outcome.error = error
    return outcome


async def _pass_async(pipeline: Pipeline[Any], face: str) -> Outcome:
    outcome = Outcome()
    try:
        if face == "short async":
            async for value in pipeline:
                outcome.outputs.append(value)
            return outcome
        async with pipeline.run(loop="own" if face == "own" else "caller") as run:
            outcome.run = run
            async for value in run:
                outcome.outputs.append(value)
    except BaseException as error:
        outcome.error = error
    return outcome
