"""A skipped item's value is let go at once, not when the garbage collector comes by."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spdl_async import PipelineBuilder, Retry, map_items

pytestmark = pytest.mark.timeout(30)

COUNT = 100


class Picture:
    """Counts how many of its kind are alive."""

    alive = 0
    nbytes = 1_000

    def __init__(self) -> None:
        Picture.alive += 1

    def __del__(self) -> None:
        Picture.alive -= 1


class EverySecond:
    """Fails on every second picture."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, picture: Picture) -> Picture:
        self.calls += 1
        if self.calls % 2 == 0:
            raise ValueError("broken")
        return picture


def in_generator() -> Callable[[Picture], Iterator[Picture]]:
    check = EverySecond()

    def op(picture: Picture) -> Iterator[Picture]:
        yield check(picture)

    return op


def in_coroutine() -> Any:
    check = EverySecond()

    async def op(picture: Picture) -> Picture:
        return check(picture)

    return op


def in_async_generator() -> Any:
    check = EverySecond()

    async def op(picture: Picture) -> AsyncIterator[Picture]:
        yield check(picture)

    return op


class Gather:
    """An aggregator that fails on every second picture."""

    def __init__(self) -> None:
        self.check = EverySecond()

    def accumulate(self, picture: Picture) -> list[Picture]:
        return [self.check(picture)]

    def flush(self) -> list[Picture]:
        return []


async def heard(failure: object) -> None:
    """Skip."""


Chain = PipelineBuilder[Any]
CHAINS: dict[str, Callable[[Chain, Any], Chain]] = {
    "sync": lambda b, o: b.pipe(EverySecond(), **o),
    "completion": lambda b, o: b.pipe(EverySecond(), concurrency=2, output_order="completion", **o),
    "fused": lambda b, o: b.pipe(EverySecond(), concurrency=2, **o).pipe(
        EverySecond(), concurrency=2, **o
    ),
    "timed": lambda b, o: b.pipe(EverySecond(), timeout=60, **o),
    "retried": lambda b, o: b.pipe(EverySecond(), retry=Retry(attempts=2, backoff=0.0), **o),
    "generator": lambda b, o: b.pipe(in_generator(), **o),
    "timed generator": lambda b, o: b.pipe(in_generator(), timeout=60, **o),
    "async": lambda b, o: b.pipe(in_coroutine(), **o),
    "timed async": lambda b, o: b.pipe(in_coroutine(), timeout=60, **o),
    "retried async": lambda b, o: b.pipe(in_coroutine(), retry=Retry(attempts=2, backoff=0.0), **o),
    "async generator": lambda b, o: b.pipe(in_async_generator(), **o),
    "aggregator": lambda b, o: b.aggregate(Gather, **o),
    "elements": lambda b, o: b.aggregate(2).apply(map_items(EverySecond(), **o)),
}


@pytest.mark.parametrize("policy", ["skip", "function"])
@pytest.mark.parametrize("kind", CHAINS)
def test_the_value_of_a_skipped_item_does_not_outlive_it(kind: str, policy: str) -> None:
    options = {"on_error": "skip" if policy == "skip" else heard}
    made = PipelineBuilder().add_source(range(COUNT)).pipe(lambda _: Picture())
    pipeline = CHAINS[kind](made, options).build()
    gc.collect()
    gc.disable()
    Picture.alive = 0
    try:
        with pipeline.run_sync() as run:
            for _ in run:
                pass
            del _
        assert run.failures.total or kind.startswith("retried")
        assert Picture.alive == 0
    finally:
        gc.enable()


def test_the_same_on_an_executor_of_the_user() -> None:
    gc.collect()
    gc.disable()
    Picture.alive = 0
    try:
        with ThreadPoolExecutor(2) as pool:
            made = PipelineBuilder().add_source(range(COUNT)).pipe(lambda _: Picture())
            pipeline = made.pipe(EverySecond(), executor=pool, on_error="skip").build()
            with pipeline.run_sync() as run:
                for _ in run:
                    pass
                del _
            assert run.failures.total
        assert Picture.alive == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("leave", [False, True], ids=["fails", "left"])
@pytest.mark.parametrize("kind", CHAINS)
def test_a_run_that_is_kept_for_its_numbers_keeps_no_item(kind: str, leave: bool) -> None:
    made = PipelineBuilder().add_source(range(COUNT)).pipe(lambda _: Picture())
    pipeline = CHAINS[kind](made, {}).build()
    Picture.alive = 0
    run = pipeline.run_sync()
    try:
        with run:
            for _ in run:
                if leave:
                    break
    except ValueError:
        pass
    _ = None
    gc.collect()
    assert Picture.alive == 0
    stages = run.statistics().stages
    assert sum(stage.items_out for stage in stages) > 0
    assert not run.statistics().ended or kind.startswith("retried")


def test_the_same_of_a_run_in_the_calling_thread() -> None:
    made = PipelineBuilder().add_source(range(COUNT)).pipe(lambda _: Picture())
    Picture.alive = 0
    run = made.pipe(EverySecond()).build().run_sync(inline=True)
    with pytest.raises(ValueError, match="broken") as caught, run:
        list(run)
    del caught
    gc.collect()
    assert Picture.alive == 0
    assert not run.statistics().ended
    assert run.failures.total == 1
