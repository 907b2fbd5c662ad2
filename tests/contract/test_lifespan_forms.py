"""Lifespans: odd moments, sources and aggregators, what is none, and the ends of runs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, ClassVar

import pytest
from faces import Face, Gate, drive, run_loop
from owners import (
    COUNT,
    KINDS,
    STAGES,
    Managed,
    Ordinary,
    Owner,
    assert_enclosed,
    async_op,
    every_engine,
    every_face,
    every_kind,
    numbers,
    sync_op,
)

from spdl_async import BuildError, Pipeline, PipelineBuilder, ShutdownTimeout, on

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST", default="none")


def leave_when(builder: PipelineBuilder[int], face: Face, gate: Gate, then: Gate) -> None:
    """Run a pipeline, and leave it, taking nothing, when a gate is open; open another one then."""

    async def main() -> None:
        async with builder.build().run(loop="own" if face is Face.OWN else "caller"):
            await gate.passed()
            asyncio.get_running_loop().call_soon(then.open)

    if face.is_async:
        run_loop(main(), face)
        return
    with builder.build().run_sync():
        gate.wait()
        then.open()


@every_engine
def test_nothing_is_called_when_the_consumer_leaves_while_it_enters(face: Face) -> None:
    entering, never = Gate(), Gate()
    events: list[str] = []

    class Op:
        async def __aenter__(self) -> None:
            entering.open()
            try:
                await never.passed()
            except asyncio.CancelledError:
                events.append("cancelled")
                raise

        async def __aexit__(self, *of_block: object) -> None:
            events.append("left")

        async def __call__(self, item: int) -> int:
            events.append("called")
            return item

    leave_when(numbers().pipe(Op()), face, entering, Gate())
    assert events == ["cancelled"]


@every_engine
def test_a_sync_lifespan_that_is_being_entered_is_waited_for_and_left(face: Face) -> None:
    """A thread cannot be interrupted: what it has entered is left again."""
    entering, gate = Gate(), Gate()
    events: list[str] = []

    class Op:
        @contextlib.contextmanager
        def lifespan(self) -> Iterator[None]:
            entering.open()
            gate.wait()
            events.append("entered")
            yield
            events.append("left")

        def __call__(self, item: int) -> int:
            events.append("called")
            return item

    leave_when(numbers().pipe(Op()), face, entering, gate)
    assert events == ["entered", "left"]


@pytest.mark.parametrize("loop", ["caller", "own"])
def test_a_blocked_exit_is_a_shutdown_timeout(loop: Any) -> None:
    """Contract 13: it names the stage, and shows where it waits."""
    gate = Gate()
    leaving = threading.Event()

    class Op:
        async def __aenter__(self) -> None:
            pass

        async def __aexit__(self, *of_block: object) -> None:
            await self.stuck_in_here()

        async def stuck_in_here(self) -> None:
            leaving.set()
            await gate.passed()

        async def __call__(self, item: int) -> int:
            return item

    async def main() -> None:
        run = numbers().pipe(Op(), name="culprit").build().run(loop=loop, shutdown_timeout=0.05)
        with pytest.raises(ShutdownTimeout) as caught:
            async with run:
                await anext(run)
        assert "culprit" in str(caught.value)
        assert "stuck_in_here" in str(caught.value)
        gate.open()
        await run.aclose()

    asyncio.run(main())
    assert leaving.is_set()


@every_face
def test_the_context_of_the_run(face: Face) -> None:
    """Contract 21."""
    seen: list[str] = []

    class Op:
        @contextlib.asynccontextmanager
        async def lifespan(self) -> AsyncGenerator[None, None]:
            seen.append(REQUEST.get())
            yield
            seen.append(REQUEST.get())

        def __call__(self, item: int) -> int:
            return item

    token = REQUEST.set("mine")
    try:
        drive(numbers().pipe(Op()), face).result()
    finally:
        REQUEST.reset(token)
    assert seen == ["mine", "mine"]


@every_face
@pytest.mark.parametrize("verb", ["pipe", "filter", "on", "expand"])
def test_what_entering_gives_is_called_where_it_is_callable(verb: str, face: Face) -> None:
    """So two passes at once each have a session of their own."""

    class Op:
        @contextlib.asynccontextmanager
        async def lifespan(self) -> AsyncGenerator[Callable[[int], Any], None]:
            yield {
                "pipe": lambda item: -item,
                "on": lambda item: -item,
                "filter": lambda item: item % 2,
                "expand": lambda item: [item] * item,
            }[verb]

        def __call__(self, item: int) -> Any:
            raise AssertionError("the object itself was called")

    source = numbers()
    if verb == "on":
        outputs = drive(source.pipe(lambda x: (x, 0)).pipe(on(0, Op())), face).result()
        assert outputs == [(-item, 0) for item in range(COUNT)]
        return
    builder: Any = getattr(source, verb)(Op())
    expected = {
        "pipe": [0, -1, -2, -3, -4],
        "filter": [1, 3],
        "expand": [1, 2, 2, 3, 3, 3, 4, 4, 4, 4],
    }
    assert drive(builder, face).result() == expected[verb]


@every_face
def test_a_callable_of_another_kind_is_told(face: Face) -> None:
    class Op:
        @contextlib.asynccontextmanager
        async def lifespan(self) -> AsyncGenerator[Callable[[int], int], None]:
            yield abs

        async def __call__(self, item: int) -> int:
            return item

    outcome = drive(numbers().pipe(Op(), name="owner"), face)
    assert isinstance(outcome.error, TypeError)
    assert "'owner'" in str(outcome.error)
    assert "kind 'sync'" in str(outcome.error)


# Sources and aggregators


@every_face
@pytest.mark.parametrize("is_async", [False, True])
def test_a_source_with_a_lifespan(is_async: bool, face: Face) -> None:
    """Only lifespan(): what is merely a context manager may be its user's own."""

    class Source(Ordinary):
        async def __aenter__(self) -> None:
            raise AssertionError("entered")

        async def __aexit__(self, *of_block: object) -> None:
            raise AssertionError("left")

    class Async(Source):
        async def __aiter__(self) -> AsyncIterator[int]:
            try:
                for item in range(COUNT):
                    self.used(item)
                    yield item
            finally:
                self.note("closed")

    class Sync(Source):
        def __iter__(self) -> Iterator[int]:
            try:
                for item in range(COUNT):
                    self.used(item)
                    yield item
            finally:
                self.note("closed")

    source: Any = Async() if is_async else Sync()
    builder: PipelineBuilder[int] = PipelineBuilder().add_source(source)
    assert drive(builder, face).result() == list(range(COUNT))
    assert source.events[0] == "enter"
    assert source.events[-2:] == ["closed", "leave"]
    source.events.clear()
    drive(builder, face, take=1)
    assert source.events[-2:] == ["closed", "leave"]


@every_face
def test_a_source_that_is_given_by_its_lifespan(face: Face) -> None:
    class Source:
        @contextlib.asynccontextmanager
        async def lifespan(self) -> AsyncGenerator[Iterable[int], None]:
            yield range(3)

        def __iter__(self) -> Iterator[int]:
            raise AssertionError("the object itself was read")

    assert drive(PipelineBuilder().add_source(Source()), face).result() == [0, 1, 2]


class Pairs(Managed):
    """An aggregator; each run works with a copy, or an instance, of its own."""

    made: ClassVar[list[Pairs]] = []

    def __init__(self) -> None:
        super().__init__()
        self.held: list[int] = []

    async def __aenter__(self) -> None:
        Pairs.made.append(self)
        await super().__aenter__()

    def accumulate(self, item: int) -> Iterable[tuple[int, ...]]:
        self.used(item)
        self.held.append(item)
        return self.flush() if len(self.held) == 2 else ()

    def flush(self) -> Iterable[tuple[int, ...]]:
        held, self.held = tuple(self.held), []
        return [held] if held else []


@every_face
@pytest.mark.parametrize("form", ["instance", "class"])
def test_an_aggregator_with_a_lifespan(form: str, face: Face) -> None:
    given = Pairs() if form == "instance" else Pairs
    Pairs.made.clear()
    builder: PipelineBuilder[tuple[int, ...]] = numbers().aggregate(given)
    for _ in range(2):
        assert drive(builder, face).result() == [(0, 1), (2, 3), (4,)]
    assert len(Pairs.made) == 2
    assert Pairs.made[0] is not Pairs.made[1]
    assert given not in Pairs.made
    for made in Pairs.made:
        assert_enclosed(made.events, COUNT)


# What is no lifespan, and what build() says


@every_face
def test_what_is_not_entered(face: Face) -> None:
    class File:
        def __enter__(self) -> None:
            raise AssertionError

        def __exit__(self, *of_block: object) -> None:
            raise AssertionError

        def __call__(self, item: int) -> int:
            return item

    class Client(Managed):
        async def get(self, item: int) -> int:
            return item

        async def __aenter__(self) -> None:
            raise AssertionError("a bound method's object is its user's")

    class Wrap:
        """A class as an op: its instances are data."""

        def __init__(self, item: int) -> None:
            self.item = item

        async def __aenter__(self) -> None:
            raise AssertionError

        async def __aexit__(self, *of_block: object) -> None:
            raise AssertionError

    builder = numbers().pipe(File()).pipe(Client().get).pipe(Wrap).pipe(lambda made: made.item)
    assert drive(builder, face).result() == list(range(COUNT))


def test_where_it_runs() -> None:
    for kind in KINDS:
        _, builder = STAGES["sync"](kind)
        described = builder.build().describe()
        assert described.loop == "caller"
        assert "stage 'owner' has a lifespan" in described.text
        assert "lifespan of owner" in described.text
    assert numbers().pipe(abs).build().describe().loop == "own"


def test_what_cannot_work_is_told_at_build() -> None:
    class Forgotten:
        async def lifespan(self) -> AsyncGenerator[None, None]:
            yield

        def __call__(self, item: int) -> int:
            return item

    class ForgottenToo:
        def lifespan(self) -> Iterator[None]:
            yield

        def __call__(self, item: int) -> int:
            return item

    with pytest.raises(BuildError, match=r"@contextlib\.asynccontextmanager"):
        numbers().pipe(Forgotten()).build()
    with pytest.raises(BuildError, match=r"@contextlib\.contextmanager"):
        numbers().pipe(ForgottenToo()).build()
    with ProcessPoolExecutor(1) as executor:
        builder = numbers().pipe(sync_op(Ordinary), executor=executor)
        with pytest.raises(BuildError, match="do not share our memory"):
            builder.build()


@every_face
def test_a_lifespan_that_makes_no_context_manager(face: Face) -> None:
    class Op:
        def lifespan(self) -> int:
            return 3

        def __call__(self, item: int) -> int:
            return item

    outcome = drive(numbers().pipe(Op()), face)
    assert isinstance(outcome.error, TypeError)
    assert "int, which is no context manager" in str(outcome.error)


# Other ends of a run


async def until(met: Callable[[], bool]) -> None:
    """Give the loop, and other threads, turns until a condition is met."""
    for _ in range(50_000):
        if met():
            return
        await asyncio.sleep(0.0001)
    raise AssertionError("it never came about")


def owning(op: Any) -> Pipeline[int]:
    return PipelineBuilder().add_source(range(10**6)).pipe(op).build()


@every_kind
def test_the_end_of_a_loop_leaves_too(kind: type[Owner]) -> None:
    """Contract 14: what asyncio.run cancels is left in its task all the same."""
    op = async_op(kind)
    kept: list[Any] = []

    async def main() -> None:
        iterator = aiter(owning(op))
        kept.append(iterator)
        await anext(iterator)

    asyncio.run(main())
    assert op.events[0] == "enter"
    assert op.events[-1] == "leave"
    assert len(set(map(id, op.tasks))) == (kind is not Ordinary)


@every_kind
async def test_break_leaves(kind: type[Owner]) -> None:
    op = async_op(kind)
    async for _ in owning(op):
        break
    await until(lambda: "leave" in op.events)


@every_kind
@pytest.mark.parametrize("loop", ["caller", "own"])
async def test_cancellation_leaves(kind: type[Owner], loop: Any) -> None:
    op = async_op(kind)

    async def consume() -> None:
        async with owning(op).run(loop=loop) as run:
            async for _ in run:
                pass

    task = asyncio.create_task(consume())
    await until(lambda: len(op.events) > 10)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert op.events[-1] == "leave"


async def test_two_passes_at_once_have_a_session_each() -> None:
    open_now: set[int] = set()
    numbers_of_sessions = iter(range(10))

    class Op:
        @contextlib.asynccontextmanager
        async def lifespan(self) -> AsyncGenerator[Callable[[int], Any], None]:
            mine = next(numbers_of_sessions)
            open_now.add(mine)

            async def ask(item: int) -> tuple[int, int]:
                assert mine in open_now
                return mine, item

            yield ask
            open_now.remove(mine)

        async def __call__(self, item: int) -> tuple[int, int]:
            raise AssertionError(item)

    pipeline = numbers().pipe(Op()).build()
    async with pipeline.run() as one, pipeline.run() as other:
        first, second = await anext(one), await anext(other)
        assert open_now == {0, 1}
        assert first[0] != second[0]
    assert not open_now
