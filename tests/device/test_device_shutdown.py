"""A pass that is left in the middle of a copy: it ends in time or says what holds it, and leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from fakes import calls, copying, is_ours, until

from spdl_async import Pipeline, PipelineBuilder, ShutdownTimeout
from spdl_async.testing import FakeDevice

pytestmark = pytest.mark.torch

HELD = ("copy", "synchronize", "pinned", "record", "enter_thread")


class Stop(Exception):  # noqa: N818 -- a signal
    """Raised by a consumer."""


def leaves(pipeline: Pipeline[Any], stuck: Callable[[], None], timeout: float) -> None:
    with pipeline.run_sync(shutdown_timeout=timeout):
        stuck()


def breaks(pipeline: Pipeline[Any], stuck: Callable[[], None], timeout: float) -> None:
    with pipeline.run_sync(shutdown_timeout=timeout) as run:
        stuck()
        for _ in run:
            break


def raises(pipeline: Pipeline[Any], stuck: Callable[[], None], timeout: float) -> None:
    with pytest.raises(Stop), pipeline.run_sync(shutdown_timeout=timeout):
        stuck()
        raise Stop


def is_cancelled(pipeline: Pipeline[Any], stuck: Callable[[], None], timeout: float) -> None:
    async def consume() -> None:
        async with pipeline.run(shutdown_timeout=timeout) as run:
            async for _ in run:
                await asyncio.Event().wait()
            raise AssertionError("it went on")

    async def main() -> None:
        task = asyncio.create_task(consume())
        await asyncio.to_thread(stuck)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())


def settled(fake: FakeDevice) -> None:
    """Check that nothing is left: no thread of ours, nothing on the device."""
    until(lambda: not [thread for thread in threading.enumerate() if is_ours(thread.name)])
    fake.advance()
    gc.collect()
    until(lambda: gc.collect() >= 0 and fake.bytes_on_device == 0)
    assert not calls(fake, "misuse")


@pytest.mark.parametrize("method", HELD)
@pytest.mark.parametrize("leave", [leaves, raises, is_cancelled])
def test_leaving_waits_for_a_copy_that_goes_on(leave: Any, method: str) -> None:
    fake = FakeDevice()
    with fake.hold(method) as hold:
        releaser = threading.Timer(0.2, hold.release)

        def stuck() -> None:
            if method != "synchronize":  # which is called when slots run out, or at the end
                hold.wait_reached()
            releaser.start()

        leave(copying(fake, 40, depth=1).build(), stuck, 30.0)
    releaser.join()
    settled(fake)


@pytest.mark.parametrize("method", ["copy", "pinned"])
def test_a_copy_that_hangs_is_named(method: str) -> None:
    """ShutdownTimeout tells that it is to_device; when the device goes on, all of it ends."""
    fake = FakeDevice()
    with fake.hold(method) as hold:
        with pytest.raises(ShutdownTimeout, match="'to_device' on item 0"):
            leaves(copying(fake, 40).build(), hold.wait_reached, 0.2)
        assert [thread for thread in threading.enumerate() if "to_device" in thread.name]
    settled(fake)


def test_a_device_that_hangs_at_the_end_is_named() -> None:
    """The copies are queued: what waits for them is the end of the copying thread."""
    fake = FakeDevice()
    with fake.hold("synchronize") as hold:
        with pytest.raises(ShutdownTimeout, match="to_device"):
            leaves(
                copying(fake, 40, depth=3).build(),
                lambda: until(lambda: len(calls(fake, "copy")) == 4),
                0.2,
            )
        hold.wait_reached()
    settled(fake)


def test_break_in_the_middle() -> None:
    fake = FakeDevice()
    breaks(copying(fake, 40).build(), lambda: None, 30.0)
    settled(fake)


def test_page_locked_memory_lives_until_it_was_read() -> None:
    """Leave at once: the copies under way are waited for before the buffers are let go."""
    fake = FakeDevice()
    seen: list[Any] = []
    original = fake.copy

    def copy(target: Any, source: Any) -> None:
        fake.launch(lambda x: seen.append(int(x[0]) < 40), source)
        original(target, source)

    fake.copy = copy  # type: ignore[method-assign]
    leaves(
        copying(fake, 40, depth=5).build(),
        lambda: until(lambda: len(calls(fake, "copy")) == 6),
        30.0,
    )
    assert seen == [True] * 6
    settled(fake)


def test_results_outlive_the_pass() -> None:
    fake = FakeDevice()
    results = list(copying(fake, 2).build())  # plain iteration: the pass has ended
    assert [int(fake.read(batch["label"])[0]) for batch in results] == [0, 1]
    del results
    settled(fake)


def test_epochs_left_early() -> None:
    fake = FakeDevice()
    with copying(fake, 40).build().epochs(3) as epochs:
        for epoch in epochs:
            next(epoch)
            break
    del epoch
    settled(fake)


def test_a_pass_that_nobody_leaves() -> None:
    """It is collected, as any other run."""
    fake = FakeDevice()
    run = copying(fake, 40).build().run_sync()
    iterator = iter(run.__enter__())
    next(iterator)
    run.__exit__(None, None, None)
    del run, iterator
    settled(fake)


def test_failures_above_and_below_leave_nothing() -> None:
    fake = FakeDevice()

    def fail(batch: Any) -> Any:
        if batch["key"] == "7":
            raise Stop
        return batch

    for builder in (
        copying(fake, 40).pipe(fail, concurrency=2),
        PipelineBuilder().add_source([{"key": "7"}]).pipe(fail).to_device(fake),
    ):
        with pytest.raises(Stop):
            for batch in builder.build():
                del batch
        settled(fake)
