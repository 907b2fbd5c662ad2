"""The object that ``pipeline.epochs()`` returns: options, misuse, types."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, assert_type

import pytest
from faces import Gate, run_loop

from spdl_async import (
    BuildError,
    Epochs,
    Pipeline,
    PipelineBuilder,
    PipelineRun,
    RunStateError,
    SyncPipelineRun,
)


def build() -> Pipeline[int]:
    return PipelineBuilder().add_source(range(3)).build()


def test_len_is_the_number_of_epochs() -> None:
    assert len(build().epochs(5)) == 5
    assert build().epochs(0)
    with pytest.raises(TypeError, match="no end"):
        len(build().epochs())


@pytest.mark.parametrize("n", [True, -1, 1.0, "2"])
def test_n_is_an_int_of_at_least_zero(n: Any) -> None:
    with pytest.raises(BuildError, match="epochs: n must be an int"):
        build().epochs(n)


def test_other_options_are_checked_at_the_call() -> None:
    pipeline = build()
    with pytest.raises(BuildError, match="epochs: overlap"):
        pipeline.epochs(overlap=1)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(BuildError, match="epochs: loop"):
        pipeline.epochs(loop="mine")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(BuildError, match="epochs: shutdown_timeout"):
        pipeline.epochs(shutdown_timeout=-1)


def test_a_one_shot_iterator_has_one_epoch() -> None:
    pipeline = PipelineBuilder().add_source(iter(range(3))).build()
    for n in (None, 0, 2):
        with pytest.raises(BuildError, match="one pass only"):
            pipeline.epochs(n)
    assert [list(run) for run in pipeline.epochs(1)] == [[0, 1, 2]]
    with pytest.raises(RunStateError, match="used up"), pipeline.epochs(1):
        pass
    with pytest.raises(RunStateError, match="used up"):
        next(iter(pipeline.epochs(1, overlap=False)))


def test_no_epochs_are_none() -> None:
    assert list(build().epochs(0)) == []
    with build().epochs(0) as epochs:
        assert list(epochs) == []


def test_without_a_number_they_go_on() -> None:
    seen = []
    for run in build().epochs():
        seen.append((run.epoch, list(run)))
        if run.epoch == 5:
            break
    assert seen == [(epoch, [0, 1, 2]) for epoch in range(6)]


def test_types() -> None:
    pipeline = build()
    assert_type(pipeline.epochs(2), Epochs[int])
    for run in pipeline.epochs(1):
        assert_type(run, SyncPipelineRun[int])

    async def main() -> None:
        async for run in pipeline.epochs(1):
            assert_type(run, PipelineRun[int])

    asyncio.run(main())


def test_describe_counts_both_epochs() -> None:
    pipeline = PipelineBuilder().add_source(range(9)).pipe(int).aggregate(3).build()
    shown = pipeline.describe()
    assert shown.source_items_bound is not None
    assert shown.epochs_source_items_bound == 2 * shown.source_items_bound
    assert f"two passes together: at most {shown.epochs_source_items_bound}" in str(shown)
    unknown = PipelineBuilder().add_source([[1]]).disaggregate().build().describe()
    assert unknown.epochs_source_items_bound is None


# Misuse


def sync_misuse(work: Callable[[Epochs[int]], object]) -> Callable[[], None]:
    def run() -> None:
        with build().epochs(3) as epochs:
            work(epochs)

    return run


def async_misuse(work: Callable[[Epochs[int]], Awaitable[object]]) -> Callable[[], None]:
    async def main() -> None:
        async with build().epochs(3) as epochs:
            await work(epochs)

    return lambda: asyncio.run(main())


async def enter_run(epochs: Epochs[int]) -> None:
    async with await anext(epochs):
        pass


async def enter_again(epochs: Epochs[int]) -> None:
    async with epochs:
        pass


async def ask_for_ordinary(epochs: Epochs[int]) -> None:
    next(epochs)


def enter_run_sync(epochs: Epochs[int]) -> None:
    with next(epochs):
        pass


async def iterate_the_one_before(epochs: Epochs[int]) -> None:
    run = await anext(epochs)
    await anext(epochs)
    await anext(run)


def iterate_the_one_before_sync(epochs: Epochs[int]) -> None:
    run = next(epochs)
    next(epochs)
    next(run)


def iterate_a_closed_one(epochs: Epochs[int]) -> None:
    run = next(epochs)
    run.close()
    next(run)


def use_the_callers_loop() -> None:
    list(build().epochs(2, loop="caller"))


MISUSE: dict[str, tuple[Callable[[], None], str]] = {
    "entering a run": (async_misuse(enter_run), "async for run in epochs"),
    "entering a run, sync": (sync_misuse(enter_run_sync), "for run in epochs"),
    "entering twice": (async_misuse(enter_again), "entered before"),
    "entering twice, sync": (sync_misuse(lambda epochs: epochs.__enter__()), "entered before"),
    "the other face": (async_misuse(ask_for_ordinary), "used from async code"),
    "the other face, sync": (sync_misuse(lambda epochs: aiter(epochs)), "used from ordinary code"),
    "an old run": (async_misuse(iterate_the_one_before), "the next one was asked for"),
    "an old run, sync": (sync_misuse(iterate_the_one_before_sync), "the next one was asked for"),
    "a closed run": (sync_misuse(iterate_a_closed_one), "the run is closed"),
    "the caller's loop": (use_the_callers_loop, "async code"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_told(case: str) -> None:
    work, message = MISUSE[case]
    with pytest.raises(RunStateError, match=message):
        work()


def test_closed_epochs_give_no_runs() -> None:
    with build().epochs(3) as epochs:
        run = next(epochs)
    with pytest.raises(RunStateError, match="inside their `with` block"):
        next(epochs)
    with pytest.raises(RunStateError, match="was left, closed or dropped"):
        next(run)
    epochs.close()
    short = build().epochs(1)
    assert [list(run) for run in short] == [[0, 1, 2]]
    assert list(short) == []


def test_a_run_in_hand_of_dropped_epochs_is_over() -> None:
    run = next(iter(build().epochs(2)))
    with pytest.raises(RunStateError, match="keep the object"):
        list(run)


def test_two_tasks_cannot_ask_at_once() -> None:
    gate, reached = Gate(), Gate()

    def hold(item: int) -> int:
        reached.open()
        gate.wait()
        return item

    async def main() -> None:
        pipeline = PipelineBuilder().add_source(range(3)).pipe(hold).build()
        async with pipeline.epochs(3) as epochs:
            with gate.opened_at_end():
                run = await anext(epochs)
                await reached.passed()
                asking = asyncio.create_task(anext(epochs))  # waits for the call that is held
                await asyncio.sleep(0)
                with pytest.raises(RunStateError, match="asked for already"):
                    await anext(epochs)
                gate.open()
                run = await asking
                assert [item async for item in run] == [0, 1, 2]

    run_loop(main())
