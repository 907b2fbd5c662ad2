"""How many batches are on the device: ``depth`` that wait, one being copied, and what the consumer holds."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

pytest.importorskip("torch")

from fakes import SIZE, calls, copying, until

from spdl_async import BuildError
from spdl_async.testing import FakeDevice

pytestmark = pytest.mark.torch

DEPTHS = (1, 2, 5)
BATCH = SIZE + 3 * 256  # bytes of the device, at most, for one of our batches


def settled(fake: FakeDevice, copies: int) -> int:
    """Return how many batches were copied when nothing more comes; it is a mistake if more do."""
    until(lambda: len(calls(fake, "copy")) >= copies)
    time.sleep(0.05)  # a pass that copies too many has time to do so; a right one has nothing to do
    return len(calls(fake, "copy"))


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_consumer_that_pauses_finds_depth_and_one(depth: int) -> None:
    fake = FakeDevice()
    with copying(fake, 40, depth=depth).build().run_sync() as run:
        assert settled(fake, depth + 1) == depth + 1
        for taken in (1, 2, 3):
            batch = next(run)
            assert settled(fake, depth + 1 + taken) == depth + 1 + taken
            del batch
            assert fake.bytes_on_device <= (depth + 1) * BATCH


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("loop", ["caller", "own"])
def test_an_async_consumer_that_pauses_finds_the_same(depth: int, loop: Any) -> None:
    fake = FakeDevice()

    async def main() -> None:
        async with copying(fake, 40, depth=depth).build().run(loop=loop) as run:
            await anext(run)
            assert await asyncio.to_thread(settled, fake, depth + 2) == depth + 2

    asyncio.run(main())


@pytest.mark.parametrize("depth", DEPTHS)
def test_memory_never_exceeds_that(depth: int) -> None:
    """With a consumer that lets go of each batch: the peak over a whole pass."""
    fake = FakeDevice()
    with copying(fake, 100, depth=depth).build().run_sync() as run:
        for batch in run:
            del batch
    # One more that has been taken, and is not yet the consumer's.
    assert fake.peak_bytes_on_device <= (depth + 2) * BATCH


@pytest.mark.parametrize("depth", DEPTHS)
def test_epochs_hold_no_more(depth: int) -> None:
    """The next pass is begun ahead, but its copies only when those of this one are taken."""
    fake = FakeDevice()
    with copying(fake, 30, depth=depth).build().epochs(4) as epochs:
        for epoch in epochs:
            for batch in epoch:
                del batch
    assert fake.peak_bytes_on_device <= (depth + 2) * BATCH


def test_describe_tells() -> None:
    text = str(copying(FakeDevice(), 3, depth=5).build().describe())
    assert "to_device: batches copied to fake:0 in a thread of its own, 5 ahead" in text
    assert "sink: 5 waiting results, on the device" in text
    assert "to_device: 1 (window)" in text


def test_describe_tells_of_stages_below() -> None:
    text = str(copying(FakeDevice(), 3, depth=5).pipe(len).build().describe())
    assert "5 ahead" in text
    assert "on the device" not in text


def test_add_sink_must_say_the_same() -> None:
    builder = copying(FakeDevice(), 3, depth=5)
    with pytest.raises(BuildError, match=r"depth=5; write to_device\(…, depth=7\)"):
        builder.add_sink(7).build()
    with pytest.raises(BuildError, match="depth=2"):
        builder.add_sink(2).build()  # it is said, though it is the default elsewhere
    builder.add_sink(5).build()
    builder.pipe(len).add_sink(7).build()


@pytest.mark.parametrize("depth", [0, -1, True, 2.0, "2", 10**6])
def test_a_depth_that_is_none(depth: Any) -> None:
    with pytest.raises(BuildError, match="to_device: depth"):
        copying(FakeDevice(), 3, depth=depth)


def test_below_are_the_windows_of_other_stages_on_top() -> None:
    """An op below that holds two at most: besides these, depth wait and one is being copied."""
    fake = FakeDevice()
    with fake.hold("wait") as hold:  # the op's thread claims its first batch
        builder = copying(fake, 40, depth=3).pipe(len, concurrency=1, buffer_size=1)
        with builder.build().run_sync() as run:
            hold.wait_reached()
            assert settled(fake, 3 + 1 + 2) == 3 + 1 + 2
            hold.release()
            assert list(run) == [4] * 40
