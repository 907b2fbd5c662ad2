"""Runs used as the other kind of run say which line was meant; and remain what they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spdl_async import PipelineBuilder, RunStateError


def pipeline() -> Any:
    return PipelineBuilder().add_source([1, 2]).build()


def test_an_async_run_in_ordinary_code() -> None:
    run = pipeline().run()
    for misuse in (
        run.__enter__,
        lambda: run.__exit__(None, None, None),
        run.__iter__,
        run.__next__,
    ):
        with pytest.raises(RunStateError, match=r"with pipeline\.run_sync\(\) as run:"):
            misuse()
    with pytest.raises(RunStateError, match=r"In ordinary code take"), run:
        pass
    with pytest.raises(RunStateError, match=r"In ordinary code take"):
        for _ in run:
            pass
    with pytest.raises(RunStateError, match=r"In ordinary code take"):
        next(run)


async def test_an_ordinary_run_in_async_code() -> None:
    run = pipeline().run_sync()
    expected = r"async with pipeline\.run\(\) as run:"
    with pytest.raises(RunStateError, match=expected):
        async with run:
            pass
    with pytest.raises(RunStateError, match=expected):
        async for _ in run:
            pass
    with pytest.raises(RunStateError, match=expected):
        await anext(run)


async def test_misuse_does_not_spoil_an_open_run() -> None:
    async with pipeline().run() as run:
        with pytest.raises(RunStateError):
            list(run)
        assert [item async for item in run] == [1, 2]


@pytest.mark.parametrize("inline", [False, True])
def test_an_ordinary_run_is_still_an_ordinary_source(inline: bool) -> None:
    """It has ``__aiter__`` now, but only to refuse it."""
    with pipeline().run_sync() as inner:
        direct = PipelineBuilder().add_source(inner).build()
        assert direct.describe().loop == "own"
        with direct.run_sync(inline=inline) as run:
            assert list(run) == [1, 2]

    def opened() -> Iterator[int]:
        result: Iterator[int] = stack
        return result

    async def opened_async() -> Iterator[int]:
        return opened()

    for factory in (opened, opened_async):
        with pipeline().run_sync() as stack:
            built: Any = PipelineBuilder().add_source(factory)
            with built.build().run_sync(inline=inline) as run:
                assert list(run) == [1, 2]


def test_an_async_run_is_still_an_async_source() -> None:
    async def main() -> list[int]:
        async with pipeline().run() as inner:
            return [item async for item in PipelineBuilder().add_source(inner).build()]

    import asyncio

    assert asyncio.run(main()) == [1, 2]


async def test_a_run_of_epochs_says_what_its_user_wrote() -> None:
    """Each names epochs(), which is what has to be changed, and not run() or run_sync()."""
    async with pipeline().epochs(1) as epochs:
        async for run in epochs:
            for misuse in (run.__enter__, run.__iter__, run.__next__):
                with pytest.raises(RunStateError, match=r"    with pipeline\.epochs\(10\)"):
                    misuse()
    with pipeline().epochs(1) as epochs:
        for run in epochs:
            for misuse in (run.__aenter__, run.__aiter__, run.__anext__):
                with pytest.raises(RunStateError, match=r"async with pipeline\.epochs\(10\)"):
                    misuse()
