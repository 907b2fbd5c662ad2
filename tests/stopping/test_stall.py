"""The stall watchdog: one record names what holds up the results."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest
from witness import PATIENCE, wait_until

from spdl_async import BuildError, PipelineBuilder, per_thread
from spdl_async.testing import run_virtual

Logged = pytest.LogCaptureFixture


def stalls(logged: Logged) -> list[str]:
    return [
        record.getMessage()
        for record in logged.records
        if record.name == "spdl_async" and "nothing was delivered" in record.getMessage()
    ]


async def takes_long(item: int) -> int:
    """Stall at the third item."""
    await asyncio.sleep(200 if item == 2 else 30)
    return item


def test_one_record_at_the_time_it_is_due(caplog: Logged) -> None:
    """It names the pipeline, the stage, the item, how long, and where the coroutine waits."""
    seen: list[tuple[float, int]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        pipeline = PipelineBuilder().add_source(range(5)).pipe(takes_long, name="culprit")
        async with pipeline.build(name="train").run(loop="caller") as run:
            async for _ in run:
                seen.append((loop.time(), len(stalls(caplog))))

    run_virtual(main())
    assert seen == [(30, 0), (60, 0), (260, 1), (290, 1), (320, 1)]
    (text,) = stalls(caplog)
    assert "pipeline 'train': nothing was delivered for 60.0 s" in text
    assert "stage 'culprit' on item 2 (2)" in text
    assert "await asyncio.sleep(200 if item == 2 else 30)" in text
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_again_only_after_progress(caplog: Logged) -> None:
    async def stalls_twice(item: int) -> int:
        await asyncio.sleep(1000 if item in (1, 3) else 1)
        return item

    async def main() -> None:
        pipeline = PipelineBuilder().add_source(range(5)).pipe(stalls_twice).build()
        async with pipeline.run(loop="caller", stall_warning=10) as run:
            counts = [len(stalls(caplog)) async for _ in run]
        assert counts == [0, 1, 1, 2, 2]

    run_virtual(main())
    assert ["on item 1" in text for text in stalls(caplog)] == [True, False]


def test_only_while_the_consumer_waits(caplog: Logged) -> None:
    """A training step that takes minutes is no stall, nor is what comes right after it."""

    async def main() -> None:
        async def op(item: int) -> int:
            await asyncio.sleep(30)
            return item

        pipeline = PipelineBuilder().add_source(range(6)).pipe(op).add_sink(1).build()
        async with pipeline.run(loop="caller") as run:
            async for _ in run:
                await asyncio.sleep(500)

    run_virtual(main())
    assert not stalls(caplog)


def test_waits_that_are_given_up_count_together(caplog: Logged) -> None:
    """A consumer that asks again and again, each time for a moment, waits all the same."""

    async def main() -> None:
        pipeline = PipelineBuilder().add_source(range(3)).pipe(takes_long).build()
        got: list[int] = []
        async with pipeline.run(loop="caller") as run:
            while len(got) < 3:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(7):
                        got.append(await anext(run))

    run_virtual(main())
    assert len(stalls(caplog)) == 1


def test_none_turns_it_off(caplog: Logged) -> None:
    async def main() -> None:
        pipeline = PipelineBuilder().add_source(range(3)).pipe(takes_long).build()
        async with pipeline.run(loop="caller", stall_warning=None) as run:
            assert [item async for item in run] == [0, 1, 2]

    run_virtual(main())
    assert not caplog.records


@pytest.mark.parametrize(("seconds", "told"), [(10, 2), (3000, 0), (None, 0)])
def test_each_of_several_epochs_has_it(seconds: float | None, told: int, caplog: Logged) -> None:
    async def main() -> None:
        pipeline = PipelineBuilder().add_source(range(3)).pipe(takes_long).build()
        async with pipeline.epochs(2, loop="caller", stall_warning=seconds) as epochs:
            async for run in epochs:
                assert [item async for item in run] == [0, 1, 2]

    run_virtual(main())
    assert ["on item 2" in text for text in stalls(caplog)].count(True) == told


def test_the_short_form_has_it(caplog: Logged) -> None:
    async def main() -> None:
        pipeline = PipelineBuilder().add_source(range(3)).pipe(takes_long).build()
        assert [item async for item in pipeline] == [0, 1, 2]

    run_virtual(main())
    assert len(stalls(caplog)) == 1


# Who is named, in every kind of stage


class Stuck:
    """User code that does not come back until it is let out."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def deep_inside(self, item: int) -> int:
        if item:
            assert self.opened.wait(PATIENCE)
        return item

    def op(self, item: int) -> int:
        return self.deep_inside(item)

    async def aop(self, item: int) -> int:
        await self.wait_in_here(item)
        return item

    async def wait_in_here(self, item: int) -> None:
        while item and not self.opened.is_set():  # noqa: ASYNC110 -- a thread sets it
            await asyncio.sleep(0.005)

    def generator(self, item: int) -> Generator[int, None, None]:
        yield self.deep_inside(item)

    async def agenerator(self, item: int) -> AsyncGenerator[int, None]:
        await self.wait_in_here(item)
        yield item

    def source(self) -> Iterator[int]:
        yield 0
        yield self.deep_inside(1)

    async def asource(self) -> AsyncIterator[int]:
        yield 0
        await self.wait_in_here(1)
        yield 1

    def later(self, item: int) -> Any:
        return self.aop(item)

    def accumulate(self, item: int) -> list[int]:
        return [self.deep_inside(item)]

    def flush(self) -> list[int]:
        return []


class Entering:
    """Never gets in by itself."""

    def __init__(self, stuck: Stuck) -> None:
        self.stuck = stuck

    async def __aenter__(self) -> None:
        await self.stuck.wait_in_here(1)

    async def __aexit__(self, *of_block: object) -> None: ...

    def __call__(self, item: int) -> int:
        return item


class EnteringInAThread(Entering):
    @contextlib.contextmanager
    def lifespan(self) -> Iterator[None]:
        self.stuck.deep_inside(1)
        yield


def two() -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(2))


IN_THREADS = "deep_inside"
ON_LOOP = "wait_in_here"
KINDS: dict[str, tuple[Callable[[Stuck], PipelineBuilder[int]], str, str]] = {
    "op": (lambda s: two().pipe(s.op, name="culprit"), IN_THREADS, "item 1"),
    "fused": (
        lambda s: (
            two()
            .pipe(lambda x: x, concurrency=2, name="innocent")
            .pipe(s.op, concurrency=2, name="culprit")
        ),
        IN_THREADS,
        "item 1",
    ),
    "async": (lambda s: two().pipe(s.aop, name="culprit", concurrency=2), ON_LOOP, "item 1"),
    "awaitable": (lambda s: two().pipe(s.later, name="culprit"), ON_LOOP, "item 1"),
    "generator": (lambda s: two().pipe(s.generator, name="culprit"), IN_THREADS, "item 1"),
    "async generator": (lambda s: two().pipe(s.agenerator, name="culprit"), ON_LOOP, "item 1"),
    "aggregator": (lambda s: two().aggregate(lambda: s, name="culprit"), IN_THREADS, "item 1"),
    "source": (
        lambda s: PipelineBuilder().add_source(s.source, name="culprit").pipe(int),
        IN_THREADS,
        "stage 'culprit'\n",
    ),
    "async source": (
        lambda s: PipelineBuilder().add_source(s.asource, name="culprit").pipe(int),
        ON_LOOP,
        "stage 'culprit'\n",
    ),
    "per thread": (
        lambda s: two().pipe(per_thread(lambda: s.op), name="culprit"),
        IN_THREADS,
        "item 1",
    ),
    "lifespan": (
        lambda s: two().pipe(int).pipe(Entering(s), name="culprit"),
        ON_LOOP,
        "stage 'culprit'\n",
    ),
    "lifespan in a thread": (
        lambda s: two().pipe(int).pipe(EnteringInAThread(s), name="culprit"),
        IN_THREADS,
        "stage 'culprit'\n",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("face", ["caller", "own", "sync"])
def test_names_who_holds_it_up(kind: str, face: Any, caplog: Logged) -> None:
    """Other stages wait for it, or have nothing to do; only it is named."""
    make, frame, where = KINDS[kind]
    stuck = Stuck()
    builder = make(stuck).pipe(lambda x: x, name="below").pipe(takes_no_time, name="last")
    pipeline = builder.build()

    def let_out() -> None:
        # On a busy machine the start may be a stall of its own; after an item there is another record.
        wait_until(lambda: f"in {frame}\n" in "".join(stalls(caplog)))
        stuck.opened.set()

    async def main() -> None:
        async with pipeline.run(loop=face, stall_warning=0.1) as run:
            assert [item async for item in run] == [0, 1]

    helper = threading.Thread(target=let_out)
    helper.start()
    if face == "sync":
        with pipeline.run_sync(stall_warning=0.1) as run:
            assert list(run) == [0, 1]
    else:
        asyncio.run(main())
    helper.join()
    text = next(text for text in stalls(caplog) if f"in {frame}\n" in text)
    assert "stage 'culprit'" in text
    assert "It waits for:" in text
    assert where in text
    for innocent in "innocent", "below", "last":
        assert innocent not in text


async def takes_no_time(item: int) -> int:
    return item


def test_of_many_calls_the_foremost_are_shown(caplog: Logged) -> None:
    async def main() -> None:
        pipeline = PipelineBuilder().add_source(range(64)).pipe(hold, concurrency=32).build()
        async with pipeline.run(loop="caller") as run:
            await anext(run)

    async def hold(item: int) -> int:
        await asyncio.sleep(100)
        return item

    run_virtual(main())
    (text,) = stalls(caplog)
    assert [f"on item {number} " in text for number in range(6)] == [True] * 4 + [False] * 2
    assert "and 28 other calls" in text


@pytest.mark.parametrize("bad", [0, -1, "60", True, float("inf"), float("nan")])
def test_what_has_no_meaning(bad: Any) -> None:
    pipeline = two().build()
    with pytest.raises(BuildError, match="stall_warning is in seconds"):
        pipeline.run(stall_warning=bad)
    with pytest.raises(BuildError, match="None turns the warning off"):
        pipeline.run_sync(stall_warning=bad)
    with pytest.raises(BuildError, match="epochs: stall_warning is in seconds"):
        pipeline.epochs(stall_warning=bad)
