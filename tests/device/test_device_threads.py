"""Which device a name means is asked in the thread that starts a pass, each time, and nowhere else (G6)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from fakes import batch_of, calls

from spdl_async import Pipeline, PipelineBuilder
from spdl_async.device import _kit
from spdl_async.testing import FakeDevice

pytestmark = pytest.mark.torch


class Current(threading.local):
    """The current device of a thread, as CUDA has one."""

    number = 0


class Gpus:
    """Two devices, and what ``"cuda"`` means in a thread."""

    def __init__(self) -> None:
        self.current = Current()
        self.all = [FakeDevice("fake:0"), FakeDevice("fake:1")]
        self.asked: list[str] = []

    def resolve(self, device: Any) -> Callable[[], FakeDevice]:
        assert device == "cuda"

        def here() -> FakeDevice:
            self.asked.append(threading.current_thread().name)
            return self.all[self.current.number]

        return here


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    made = Gpus()
    monkeypatch.setattr(_kit, "resolve", made.resolve)
    return made


def built() -> Pipeline[Any]:
    return PipelineBuilder().add_source(range(3)).pipe(batch_of).to_device("cuda").build()


def iterates(pipeline: Pipeline[Any]) -> None:
    list(pipeline)


def runs(pipeline: Pipeline[Any]) -> None:
    with pipeline.run_sync() as run:
        list(run)


def runs_inline(pipeline: Pipeline[Any]) -> None:
    with pipeline.run_sync(inline=True) as run:
        list(run)


def runs_async(loop: Any) -> Callable[[Pipeline[Any]], None]:
    def consume(pipeline: Pipeline[Any]) -> None:
        async def main() -> None:
            async with pipeline.run(loop=loop) as run:
                async for _ in run:
                    pass

        asyncio.run(main())

    return consume


def epochs(pipeline: Pipeline[Any]) -> None:
    with pipeline.epochs(2) as passes:
        for run in passes:
            list(run)


WAYS = {
    "iterates": iterates,
    "run_sync": runs,
    "inline": runs_inline,
    "caller": runs_async("caller"),
    "own": runs_async("own"),
    "epochs": epochs,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [0, 1])
def test_the_current_device_of_the_thread_that_starts(gpus: Gpus, way: str, number: int) -> None:
    pipeline = built()
    assert not gpus.asked  # not when it is built: a process that only builds makes no context

    def start() -> None:
        gpus.current.number = number
        WAYS[way](pipeline)

    thread = threading.Thread(target=start, name="trainer")
    thread.start()
    thread.join()
    assert set(gpus.asked) == {"trainer"}
    used, unused = gpus.all[number], gpus.all[1 - number]
    assert calls(used, "copy")
    assert not unused.calls


def test_two_threads_use_one_pipeline_on_two_devices(gpus: Gpus) -> None:
    pipeline = built()

    def start(number: int) -> None:
        gpus.current.number = number
        runs(pipeline)

    threads = [threading.Thread(target=start, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(calls(fake, "copy")) for fake in gpus.all] == [3, 3]
    assert not any(calls(fake, "misuse") for fake in gpus.all)
