"""Loops of every make: L11, and the end of each of them: contract 14."""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from typing import Any

import pytest
from witness import wait_for_silence

from spdl_async import Pipeline, PipelineBuilder

Main = Callable[[], Coroutine[Any, Any, None]]


def everything() -> Pipeline[list[int]]:
    async def source() -> AsyncIterator[int]:
        for number in range(60):
            await asyncio.sleep(0)
            yield number

    async def op(item: int) -> int:
        await asyncio.sleep(0)
        return item

    def generator(item: int) -> Generator[int, None, None]:
        yield item

    async def agenerator(item: int) -> AsyncGenerator[int, None]:
        yield item

    return (
        PipelineBuilder()
        .add_source(source)
        .pipe(op, concurrency=3)
        .pipe(abs, concurrency=3)
        .pipe(generator, concurrency=2)
        .pipe(agenerator)
        .aggregate(7)
        .build()
    )


EXPECTED = [list(range(begin, min(60, begin + 7))) for begin in range(0, 60, 7)]


async def scenario() -> None:
    """Whole passes on both loops, a break, a failure, a cancellation."""
    pipeline = everything()
    assert [batch async for batch in pipeline] == EXPECTED
    async with pipeline.run(loop="own") as run:
        assert [batch async for batch in run] == EXPECTED
    async with pipeline.run(loop="caller") as run:
        assert await anext(run) == EXPECTED[0]
    async for _ in pipeline:
        break
    with pytest.raises(ZeroDivisionError):
        async with PipelineBuilder().add_source(range(3)).pipe(lambda x: 1 // x).build().run() as r:
            await anext(r)

    async def consume() -> None:
        async with everything().run() as run:
            async for _ in run:
                pass

    task = asyncio.create_task(consume())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    iterator = aiter(pipeline)
    assert await anext(iterator) == EXPECTED[0]  # and left open to the end of the loop


class CountingLoop(asyncio.SelectorEventLoop):
    """A loop subclass, which may do things of its own around the public methods."""

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())
        self.calls = 0

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:  # type: ignore[override]  # passes on
        self.calls += 1
        return super().call_soon_threadsafe(*args, **kwargs)


def by_asyncio_run(main: Main) -> None:
    asyncio.run(main())


def by_asyncio_run_debug(main: Main) -> None:
    asyncio.run(main(), debug=True)


def by_uvloop_run(main: Main) -> None:
    pytest.importorskip("uvloop").run(main())


def by_uvloop_debug(main: Main) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop, debug=True) as runner:
        runner.run(main())


def by_runner_twice(main: Main) -> None:
    with asyncio.Runner() as runner:
        runner.run(main())
        runner.run(main())


def by_subclass(main: Main) -> None:
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(main())


def by_run_until_complete(main: Main) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.run_until_complete(asyncio.sleep(0.01))  # what was dropped ends here
    loop.run_until_complete(loop.shutdown_asyncgens())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()


def in_another_thread(main: Main) -> None:
    errors: list[BaseException] = []

    def target() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def by_task_factory(main: Main) -> None:
    """A factory that wraps coroutines, as tracing tools do."""

    def factory(
        loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        async def traced() -> Any:
            return await coro

        return asyncio.Task(traced(), loop=loop, **options)

    async def wrapped() -> None:
        asyncio.get_running_loop().set_task_factory(factory)  # type: ignore[arg-type]  # as libraries do
        await main()

    asyncio.run(wrapped())


def by_eager_tasks(main: Main) -> None:
    if sys.version_info < (3, 12):
        pytest.skip("eager tasks came with Python 3.12")
    else:

        async def wrapped() -> None:
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            await main()

        asyncio.run(wrapped())


RUNNERS = [
    by_asyncio_run,
    by_asyncio_run_debug,
    by_uvloop_run,
    by_uvloop_debug,
    by_runner_twice,
    by_subclass,
    by_run_until_complete,
    in_another_thread,
    by_task_factory,
    by_eager_tasks,
]


@pytest.mark.parametrize("runner", RUNNERS, ids=lambda runner: runner.__name__)
def test_every_loop(runner: Callable[[Main], None]) -> None:
    """L11, and contract 14: the open iterator ends with its loop, in silence."""
    runner(scenario)
    wait_for_silence()


def test_one_pipeline_on_loop_after_loop() -> None:
    """Contract 14, 18: a pipeline keeps nothing of a loop that is gone."""
    pipeline = everything()

    async def main() -> None:
        assert [batch async for batch in pipeline] == EXPECTED
        async for _ in pipeline:
            break

    for number in range(10):
        asyncio.run(main(), debug=bool(number % 2))
        assert list(pipeline) == EXPECTED
    wait_for_silence()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@pytest.mark.parametrize("waits", [False, True])
def test_eager_workers_do_not_nest(waits: bool) -> None:
    """L11: many workers whose tasks begin at once, in the middle of starting one another."""
    running, peak = 0, 0

    async def op(item: int) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        if waits:
            await asyncio.sleep(0.001)
        running -= 1
        return item

    async def main() -> None:
        factory: Any = getattr(asyncio, "eager_task_factory")  # noqa: B009 -- not in Python 3.11
        asyncio.get_running_loop().set_task_factory(factory)
        pipeline = PipelineBuilder().add_source(range(3_000)).pipe(op, concurrency=400).build()
        assert [item async for item in pipeline] == list(range(3_000))

    asyncio.run(main())
    assert peak > 100 if waits else peak == 1
