"""The leak check, the reference interpreter and the suite's own fixtures do what they say."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from spdl_async import DROP, PipelineBuilder, PipelineRun, TooManyFailures
from spdl_async.testing import Chain, LeakError, check_leaks, reference_run


def identity(item: Any) -> Any:
    return item


async def acopy(item: int) -> int:
    await asyncio.sleep(0)
    return item


def twice(item: int) -> Iterator[int]:
    yield item
    yield item


async def atwice(item: int) -> AsyncIterator[int]:
    yield item
    yield item


# Leaks


def test_no_leak_is_found_where_there_is_none() -> None:
    with check_leaks():
        assert list(PipelineBuilder().add_source(range(9)).pipe(identity).build())[-1] == 8


def test_a_thread_that_stays_is_a_leak() -> None:
    stay = threading.Event()

    def stuck() -> None:
        stay.wait()

    thread = threading.Thread(target=stuck, name="spdl_async-stuck", daemon=True)
    with (
        pytest.raises(LeakError, match=r"thread spdl_async-stuck(.|\n)*in stuck"),
        check_leaks(timeout=0.01),
    ):
        thread.start()
    stay.set()
    thread.join()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not list them")
def test_an_open_descriptor_is_a_leak() -> None:
    with pytest.raises(LeakError, match="file descriptor"), check_leaks(timeout=0.01):
        ends = os.pipe()
    for end in ends:
        os.close(end)


async def test_a_task_that_stays_is_a_leak() -> None:
    with pytest.raises(LeakError, match="task <Task pending name='lonely'"):
        async with check_leaks(timeout=0.01):
            lonely = asyncio.create_task(asyncio.Event().wait(), name="lonely")
    lonely.cancel()


async def test_an_open_run_is_a_leak() -> None:
    run: PipelineRun[int]
    with pytest.raises(LeakError, match="spdl_async"):
        async with check_leaks(timeout=0.01):
            run = PipelineBuilder().add_source(range(99)).pipe(identity).build().run()
            await run.__aenter__()
    await run.aclose()


async def test_what_is_about_to_end_is_waited_for() -> None:
    async with check_leaks():
        task = asyncio.create_task(asyncio.sleep(0.01))
    assert task.done()


async def test_a_block_that_raises_is_not_checked() -> None:
    with pytest.raises(KeyError):
        async with check_leaks(timeout=0):
            task = asyncio.create_task(asyncio.Event().wait())
            raise KeyError
    task.cancel()


async def test_async_code_is_told_to_use_async_with() -> None:
    with pytest.raises(RuntimeError, match="async with check_leaks"), check_leaks():
        pass


def test_the_tasks_of_a_given_loop_are_checked() -> None:
    loop = asyncio.new_event_loop()
    try:
        with check_leaks(loop=loop):
            ends = loop.create_task(asyncio.sleep(0.001))
        assert ends.done()
        with pytest.raises(LeakError, match="task"), check_leaks(loop=loop, timeout=0.01):
            stays = loop.create_task(asyncio.Event().wait())
        stays.cancel()
        loop.run_until_complete(asyncio.wait([stays]))
    finally:
        loop.close()


# The reference


class Pairs:
    """Pairs of items; a lone last one comes alone."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def accumulate(self, item: int) -> list[tuple[int, ...]]:
        self.held.append(item)
        if len(self.held) < 2:
            return []
        pair, self.held = tuple(self.held), []
        return [pair]

    def flush(self) -> list[tuple[int, ...]]:
        return [tuple(self.held)] if self.held else []


def odd_fails(item: int) -> int:
    if item % 2:
        raise ValueError(item)
    return item


def fails_midway(item: int) -> Iterator[int]:
    yield item
    if item == 1:
        raise ValueError(item)
    yield item


def big(item: int) -> int:
    return DROP if item < 3 else item  # type: ignore[return-value]  # a marker, not a number


CHAINS: dict[str, tuple[Chain, list[Any]]] = {
    "none": (Chain(), [0, 1, 2, 3, 4]),
    "sync": (Chain().pipe(lambda x: x + 1), [1, 2, 3, 4, 5]),
    "async": (Chain().pipe(acopy, concurrency=2), [0, 1, 2, 3, 4]),
    "awaitable": (Chain().pipe(lambda x: acopy(x)), [0, 1, 2, 3, 4]),
    "lookup": (Chain().pipe(list("abcde")), list("abcde")),
    "generator": (Chain().pipe(twice), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
    "async generator": (Chain().pipe(atwice), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
    "expand": (Chain().expand(range), [0, 0, 1, 0, 1, 2, 0, 1, 2, 3]),
    "filter": (Chain().filter(lambda x: x % 2), [1, 3]),
    "async filter": (Chain().filter(acopy), [1, 2, 3, 4]),
    "drop": (Chain().pipe(big), [3, 4]),
    "aggregate": (Chain().aggregate(2), [[0, 1], [2, 3], [4]]),
    "drop_last": (Chain().aggregate(2, drop_last=True), [[0, 1], [2, 3]]),
    "instance": (Chain().aggregate(Pairs()), [(0, 1), (2, 3), (4,)]),
    "factory": (Chain().aggregate(Pairs), [(0, 1), (2, 3), (4,)]),
    "disaggregate": (Chain().aggregate(3).disaggregate(), [0, 1, 2, 3, 4]),
    "skip": (Chain().pipe(odd_fails, on_error="skip").aggregate(2), [[0, 2], [4]]),
    "skip midway": (Chain().pipe(fails_midway, on_error="skip"), [0, 0, 1, 2, 2, 3, 3, 4, 4]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_reference_and_the_pipeline_agree(name: str) -> None:
    chain, wanted = CHAINS[name]
    assert chain.expected(range(5)).result() == wanted
    assert list(chain.builder(range(5)).build()) == wanted


def test_the_reference_stops_at_the_first_failure() -> None:
    expected = reference_run(range(5), Chain().pipe(fails_midway).aggregate(2))
    assert expected.outputs == [[0, 0]]  # no partial batch
    assert isinstance(expected.error, ValueError)
    with pytest.raises(ValueError):
        expected.result()


def test_the_reference_knows_that_a_stage_that_only_fails_is_an_error() -> None:
    expected = Chain().pipe(odd_fails).expected([1, 3], on_error="skip")
    assert isinstance(expected.error, TooManyFailures)
    assert isinstance(expected.error.__cause__, ValueError)
    assert expected.failed == 2


def test_the_reference_wraps_what_looks_like_an_end() -> None:
    def stop(item: int) -> int:
        raise StopIteration

    error = Chain().pipe(stop).expected([1]).error
    assert isinstance(error, RuntimeError)
    assert isinstance(error.__cause__, StopIteration)


def test_the_reference_reads_every_kind_of_source() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def opened() -> list[int]:
        return [1, 2]

    class Indexed:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            return index + 1

    for source in ([1, 2], lambda: iter([1, 2]), numbers, numbers(), opened, Indexed()):
        assert Chain().expected(source).outputs == [1, 2]


async def test_the_reference_works_beside_a_running_loop() -> None:
    assert Chain().pipe(acopy).expected([1, 2]).outputs == [1, 2]


def test_a_source_that_fails_and_ends_is_a_failure() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError

    expected = Chain().expected(source, source_on_error="skip")
    assert expected.outputs == [1]
    assert isinstance(expected.error, OSError)


# The suite's own fixtures


async def test_async_tests_run_on_both_loops(request: pytest.FixtureRequest) -> None:
    loop = asyncio.get_running_loop()
    kinds = {"asyncio"} if importlib.util.find_spec("uvloop") is None else {"asyncio", "uvloop"}
    name = request.node.callspec.id if hasattr(request.node, "callspec") else "asyncio"
    assert name in kinds | {""}
    if isinstance(loop, asyncio.BaseEventLoop):
        assert loop.get_debug()
