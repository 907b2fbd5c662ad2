"""Contract 20: what the library never touches, and how many threads it makes."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import AsyncIterator, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import pytest

from spdl_async import Pipeline, PipelineBuilder

Loop = Literal["caller", "own"]
LOOPS: list[Loop] = ["caller", "own"]


def everything() -> Pipeline[list[int]]:
    """Return a pipeline with every kind of stage."""

    async def source() -> AsyncIterator[int]:
        for number in range(40):
            yield number

    async def op(item: int) -> int:
        await asyncio.sleep(0)
        return item

    def generator(item: int) -> Generator[int, None, None]:
        yield item

    return (
        PipelineBuilder()
        .add_source(source)
        .pipe(op, concurrency=2)
        .pipe(lambda x: x, concurrency=3)
        .pipe(generator)
        .filter(lambda x: x >= 0)
        .aggregate(4)
        .build(name="everything")
    )


def global_state() -> dict[str, object]:
    """Return what belongs to the process and not to us."""
    return {
        "policy": asyncio.get_event_loop_policy(),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "wakeup fd": signal.set_wakeup_fd(signal.set_wakeup_fd(-1)),
        "switch interval": sys.getswitchinterval(),
        "excepthooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "warnings": list(warnings.filters),
        "trace": (sys.gettrace(), sys.getprofile(), threading.gettrace()),
        "recursion": sys.getrecursionlimit(),
        "stack size": threading.stack_size(),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.disabled),
        "faulthandler": faulthandler.is_enabled(),
        "asyncgen hooks": sys.get_asyncgen_hooks(),
        "descriptors": sys.stderr,
    }


class RecordingExecutor(ThreadPoolExecutor):
    """A default executor that counts what is given to it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.calls = 0
        self.ended = False

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        return super().submit(*args, **kwargs)

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        self.ended = True
        super().shutdown(*args, **kwargs)


def test_ordinary_code_leaves_the_process_as_it_was() -> None:
    """Contract 20, and also while the run is open."""
    before = global_state()
    with everything().run_sync() as run:
        next(run)
        assert global_state() == before
    assert len(list(everything())) == 10
    assert global_state() == before


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_run_leaves_the_callers_loop_as_it_was(loop: Loop) -> None:
    """Contract 20: default executor, exception handler, task factory, debug mode."""
    running = asyncio.get_running_loop()
    executor = RecordingExecutor()
    running.set_default_executor(executor)
    debug, handler, factory = (
        running.get_debug(),
        running.get_exception_handler(),
        running.get_task_factory(),
    )
    before = global_state()
    async with everything().run(loop=loop) as run:
        await anext(run)
        assert global_state() == before
        assert len([batch async for batch in run]) == 9
    assert executor.calls == 0
    assert not executor.ended
    assert running.get_debug() == debug
    assert running.get_exception_handler() is handler
    assert running.get_task_factory() is factory
    assert global_state() == before
    executor.shutdown()


async def test_a_given_executor_is_not_shut_down() -> None:
    executor = RecordingExecutor()
    pipeline = (
        PipelineBuilder().add_source(range(9)).pipe(abs, concurrency=2).build(executor=executor)
    )
    async with pipeline.run() as run:
        await anext(run)
    assert list(pipeline) == list(range(9))
    assert executor.calls
    assert not executor.ended
    executor.shutdown()


@pytest.mark.parametrize("loop", LOOPS)
async def test_thread_names_and_numbers(loop: Loop) -> None:
    """Contract 20: names begin with spdl_async-, and there are no more than the plan says."""
    names: set[str] = set()

    def op(item: int) -> int:
        names.add(threading.current_thread().name)
        return item

    def source() -> Generator[int, None, None]:
        names.add(threading.current_thread().name)
        yield from range(500)

    before = set(threading.enumerate())
    pipeline = (
        PipelineBuilder()
        .add_source(source)
        .pipe(op, concurrency=3)
        .pipe(op, concurrency=2, fuse=False)
        .build(name="photos")
    )
    most = 0
    async with pipeline.run(loop=loop) as run:
        async for _ in run:
            new = [t for t in threading.enumerate() if t not in before]
            names.update(t.name for t in new)
            most = max(most, len(new))
            assert all(t.daemon for t in new)
    assert names
    assert all(name.startswith("spdl_async-") for name in names), names
    assert any("photos" in name for name in names), names
    assert most <= pipeline.describe().num_threads + 2  # the source's and the loop's
    assert pipeline.describe().num_threads == 5


@pytest.mark.torch
@pytest.mark.slow
def test_torch_and_the_number_of_threads() -> None:
    """Contract 20: torch's settings are untouched; OS threads at most ours + 4, decoding included."""
    script = """
    import io, os, threading
    import numpy as np
    import torch
    from PIL import Image
    from spdl_async import PipelineBuilder
    from spdl_async.collate import collate
    from spdl_async.io import decode_image

    def system_threads():
        return len(os.listdir("/proc/self/task"))

    rng = np.random.default_rng(0)
    def jpeg(number):
        data = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (300 + number, 400, 3), np.uint8)).save(data, "JPEG")
        return data.getvalue()
    pictures = [jpeg(number) for number in range(8)] * 12
    settings = (
        torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype(),
        torch.is_grad_enabled(), torch.get_rng_state().sum().item(), os.environ.copy(),
    )
    before, python_before = system_threads(), threading.active_count()
    pipeline = (
        PipelineBuilder().add_source(pictures)
        .pipe(lambda data: decode_image(data, size=224), concurrency=8)
        .aggregate(8).pipe(collate, concurrency=2).build()
    )
    extra, batches = 0, 0
    with pipeline.run_sync() as run:
        for batch in run:
            ours = threading.active_count() - python_before
            extra = max(extra, system_threads() - before - ours)
            batches += 1
    assert batches == 12
    assert extra <= 4, extra
    assert settings == (
        torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype(),
        torch.is_grad_enabled(), torch.get_rng_state().sum().item(), os.environ.copy(),
    )
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=55
    )
    assert done.returncode == 0, done.stderr
