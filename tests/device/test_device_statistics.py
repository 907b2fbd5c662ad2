"""What a copy tells about itself: bytes, batches, rates, waits, memory, and how much overlapped."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from fakes import CONSUMERS, SIZE, calls, copying, notes, until

from spdl_async import Pipeline, RunStatistics
from spdl_async.testing import FakeDevice

pytestmark = pytest.mark.torch

BYTES = SIZE + 3 * 8 + 4


def ended(pipeline: Pipeline[Any], *, inline: bool = False) -> RunStatistics:
    with pipeline.run_sync(inline=inline) as run:
        for batch in run:
            del batch
        return run.statistics()


@pytest.mark.parametrize("inline", [False, True])
def test_batches_and_bytes(inline: bool) -> None:
    fake = FakeDevice()
    told = notes(ended(copying(fake, 20).build(), inline=inline))
    assert told["batches_copied"] == 20
    assert told["bytes_copied"] == 20 * BYTES


def test_the_rate_is_of_the_devices_clock() -> None:
    """The fake's clock goes by its events: one thousandth of a second for each."""
    fake = FakeDevice(lazy=False)
    told = notes(ended(copying(fake, 20).build()))
    # Two events a batch: before it and behind it.
    assert told["gigabytes_per_second"] == pytest.approx(BYTES / 1e-3 / 1e9)


@pytest.mark.parametrize(
    ("lazy", "inline", "share"),
    # In threads a lazy device may be waited for, at the end of the copying thread, before a batch is taken.
    [(True, True, 0.0), (False, True, 1.0), (False, False, 1.0)],
)
def test_the_share_that_overlapped(lazy: bool, inline: bool, share: float) -> None:
    """Of copies that were done when the batch was taken."""
    fake = FakeDevice(lazy=lazy)
    # Fewer than there are slots: none is waited for.
    told = notes(ended(copying(fake, 3).build(), inline=inline))
    assert told["overlapped"] == share


def test_some_overlapped() -> None:
    fake = FakeDevice()
    with copying(fake, 4, depth=3).build().run_sync() as run:
        next(run)
        next(run)
        until(lambda: len(calls(fake, "record")) == 2 * 4)  # the last one is behind the fourth copy
        fake.advance()
        next(run)
        next(run)
        assert notes(run.statistics())["overlapped"] == 0.5


def test_memory_is_told_while_it_is_held() -> None:
    fake = FakeDevice()
    with copying(fake, 20).build().run_sync() as run:
        for _ in range(10):
            next(run)
        assert notes(run.statistics())["staging_bytes"] == 3 << 16
        list(run)
    told = notes(run.statistics())
    assert told["staging_bytes"] == 0
    assert told["most_staging_bytes"] == 3 << 16


@pytest.mark.parametrize("consume", CONSUMERS, ids=lambda consume: consume.__name__)
def test_they_cost_the_consumer_nothing_on_the_host(consume: Any) -> None:
    fake = FakeDevice()
    consume(copying(fake, 3).build(), lambda batch: None)
    main = [call.method for call in fake.calls if call.thread == "MainThread"]
    if consume.__name__ != "inline_for":
        assert set(main) == {"is_done", "current_stream", "wait", "keep_for"}


def test_they_are_printed() -> None:
    text = str(ended(copying(FakeDevice(), 3).build()))
    assert f"to_device: batches_copied 3, bytes_copied {3 * BYTES}" in text
