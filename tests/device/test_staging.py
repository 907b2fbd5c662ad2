"""Page-locked memory: few buffers, used again when their copies are done, not before (G1, G2, G11)."""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from fakes import Watch, batch_of, calls, copying, notes

from spdl_async import PipelineBuilder
from spdl_async.testing import FakeDevice

pytestmark = pytest.mark.torch


def taken(
    fake: FakeDevice, builder: PipelineBuilder[Any], take: Callable[[Any], None] | None = None
) -> dict[str, Any]:
    """Take all; return what the copy tells in the end."""
    with builder.build().run_sync() as run:
        for batch in run:
            if take is not None:
                take(batch)
            del batch
        return notes(run.statistics())


def arrays(size_of: Callable[[int], int]) -> Callable[[int], dict[str, Any]]:
    return lambda number: {
        "x": np.full(size_of(number), number % 251, np.uint8),
        "y": torch.full((size_of(number) // 4,), number % 251, dtype=torch.int32),
    }


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_memory_is_locked_after_the_first_batches(depth: int) -> None:
    """G10: no cudaHostAlloc in steady state."""
    fake = FakeDevice()
    told = taken(fake, copying(fake, 60, depth=depth))
    assert fake.pinned_allocations == told["staging_allocations"] == depth + 1
    assert told["most_staging_bytes"] == (depth + 1) * (1 << 16)
    assert told["pageable_batches"] == told["oversized_batches"] == 0
    locked = [at for at, call in enumerate(fake.calls) if call.method == "pinned"]
    copied = [at for at, call in enumerate(fake.calls) if call.method == "copy"]
    assert locked[-1] < copied[depth]


def test_a_slot_is_waited_for_in_the_copying_thread() -> None:
    """G1: the ring of depth + 1 is full until the device has read from the first slot."""
    fake = FakeDevice()
    watch = Watch(fake)
    told = taken(fake, copying(fake, 40, depth=1), watch)
    assert watch.numbers() == list(range(40))
    assert told["slot_waits"] == 40 - 2
    assert told["slot_wait_seconds"] > 0


def test_no_slot_is_waited_for_on_a_device_that_keeps_up() -> None:
    fake = FakeDevice(lazy=False)
    told = taken(fake, copying(fake, 40))
    assert told["slot_waits"] == 0
    assert told["staging_allocations"] == 1


def test_batches_of_any_size() -> None:
    """G11: 1 KB to 5 MB, 500 of them: bounded by the ring times the largest, and never torn."""
    sizes = random.Random(1)
    made = [sizes.choice((1 << 10, 1 << 14, 1 << 17, 1 << 20, 5 << 19)) for _ in range(500)]
    fake = FakeDevice()
    watch = Watch(fake, "x", "y")
    told = taken(fake, copying(fake, 500, arrays(made.__getitem__)), watch)
    assert watch.numbers() == [number % 251 for number in range(500)]
    assert told["most_staging_bytes"] <= 3 * (8 << 20)
    assert told["staging_allocations"] <= 3 * 8  # each is twice as large as the one it replaces
    assert told["oversized_batches"] == 0


def test_the_pool_grows_for_larger_batches_and_stays_so() -> None:
    fake = FakeDevice()
    told = taken(fake, copying(fake, 60, arrays(lambda number: 1 << (12 + number // 10))))
    assert told["staging_allocations"] <= 3 + 2 * 3
    assert told["most_staging_bytes"] <= 3 * (1 << 18)


def test_a_cap_holds() -> None:
    """Two slots of 64 KB fit in 150 KB: a third is not made, the copy waits for one of the two."""
    fake = FakeDevice()
    watch = Watch(fake)
    told = taken(fake, copying(fake, 40, depth=5, pin=150_000), watch)
    assert watch.numbers() == list(range(40))
    assert told["most_staging_bytes"] == 2 << 16
    assert fake.pinned_allocations == 2
    assert told["slot_waits"] == 38


def test_sizes_that_vary_under_a_cap_lock_nothing_anew() -> None:
    """One slot of 128 KB and one of 64 KB fit: a large batch waits for the large one, it takes no other's."""
    fake = FakeDevice()
    watch = Watch(fake, "x", "y")
    sizes = random.Random(2)
    made = [sizes.choice((1 << 14, 1 << 16)) for _ in range(100)]
    builder = copying(fake, 100, arrays(made.__getitem__), depth=3, pin=200_000)
    taken(fake, builder, watch)
    assert watch.numbers() == list(range(100))
    assert fake.pinned_allocations <= 4


def test_a_batch_beyond_the_cap_gets_memory_for_itself() -> None:
    fake = FakeDevice()
    watch = Watch(fake, "x", "y")
    builder = copying(
        fake, 30, arrays(lambda number: 1 << 17 if number % 10 == 5 else 1 << 10), pin="200KB"
    )
    told = taken(fake, builder, watch)
    assert watch.numbers() == list(range(30))
    assert told["oversized_batches"] == 3
    assert told["most_staging_bytes"] <= 200_000
    gc.collect()
    assert told["staging_bytes"] <= 200_000


def test_what_is_page_locked_already_is_not_staged() -> None:
    """G2: and it is held on to until it was read, though its user drops it at once."""
    fake = FakeDevice()
    watch = Watch(fake, "x")

    def make(number: int) -> dict[str, Any]:
        return {"x": fake.pinned(1 << 12).fill_(number)}

    told = taken(fake, copying_raw(fake, 60, make), watch)
    assert watch.numbers() == list(range(60))
    assert told["staging_allocations"] == 0
    assert fake.pinned_allocations == 60
    assert told["pageable_batches"] == 0


def copying_raw(fake: FakeDevice, count: int, make: Callable[[int], Any]) -> PipelineBuilder[Any]:
    """Return a pipeline whose source takes page-locked memory, and so sets its thread's device first."""

    def batches() -> Iterator[Any]:
        fake.enter_thread()
        yield from map(make, range(count))

    return PipelineBuilder().add_source(batches).to_device(fake)


def test_memory_of_others_that_is_registered_is_not_staged() -> None:
    """G2: numpy's memory, which no allocator of torch's watches."""
    fake = FakeDevice()
    watch = Watch(fake, "x")
    ring = [np.zeros(1 << 12, np.uint8) for _ in range(40)]
    for slot in ring:
        fake.pin(torch.from_numpy(slot))

    def make(number: int) -> dict[str, Any]:
        ring[number].fill(number)
        return {"x": ring[number]}

    told = taken(fake, copying_raw(fake, 40, make), watch)
    assert watch.numbers() == list(range(40))
    assert told["staging_allocations"] == 0


def test_page_locked_memory_of_the_users_counts_as_slots() -> None:
    """It is held on to until it was read, so no more than depth + 1 of it is."""
    fake = FakeDevice()
    told = taken(fake, copying_raw(fake, 20, lambda number: {"x": fake.pinned(1 << 10)}))
    assert told["slot_waits"] == 20 - 3


def test_what_is_there_already_is_not_copied() -> None:
    """G14."""
    fake = FakeDevice()
    there = fake.send(fake.pinned(64).fill_(7))
    copies = len(calls(fake, "copy"))
    pipeline = copying(fake, 3, lambda number: {"x": there, "n": number}).build()
    results = list(pipeline)
    assert all(result["x"] is there for result in results)
    assert len(calls(fake, "copy")) == copies
    assert fake.pinned_allocations == 1


def test_without_pinning() -> None:
    """pin=False: no page-locked memory, and the copying thread waits for each copy."""
    fake = FakeDevice()
    watch = Watch(fake)
    told = taken(fake, copying(fake, 20, pin=False), watch)
    assert watch.numbers() == list(range(20))
    assert fake.pinned_allocations == 0
    assert told["pageable_batches"] == 20
    assert {call.detail for call in calls(fake, "copy")} == {"pageable copy"}


def test_without_memory_to_lock(caplog: pytest.LogCaptureFixture) -> None:
    """G13: one warning that says so, and every batch arrives all the same."""
    fake = FakeDevice()
    fake.fail("pinned", RuntimeError("no more memory to lock"), times=None)
    watch = Watch(fake)
    with caplog.at_level(logging.WARNING, "spdl_async"):
        told = taken(fake, copying(fake, 20), watch)
    assert watch.numbers() == list(range(20))
    assert told["pageable_batches"] == 20
    (record,) = [r for r in caplog.records if "page-locked" in r.getMessage()]
    assert "no more memory to lock" in record.getMessage()


def test_memory_that_can_be_locked_again(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeDevice()
    fake.fail("pinned", RuntimeError("not now"), times=3)
    told = taken(fake, copying(fake, 20))
    assert told["pageable_batches"] == 3
    assert told["staging_allocations"] == 3


def test_batches_of_tensors_without_elements_are_neither_staged_nor_pageable() -> None:
    fake = FakeDevice()
    told = taken(fake, copying(fake, 3, lambda number: {"x": np.zeros((0, 3))}))
    assert told["pageable_batches"] == told["staging_allocations"] == 0
    assert not calls(fake, "copy")


def test_many_small_tensors_are_one_copy() -> None:
    """G9: and one block of memory, of which they are views."""
    fake = FakeDevice()
    made = {str(n): torch.full((5,), n) for n in range(200)}
    with copying(fake, 1, lambda number: made).build().run_sync() as run:
        batch = next(run)
        assert len(calls(fake, "copy")) == 1
        assert [int(fake.read(batch[str(n)])[4]) for n in range(200)] == list(range(200))
    assert len(calls(fake, "keep_for")) == 1


def test_large_tensors_are_copied_one_by_one() -> None:
    """So that the first is under way while the next is laid into the buffer."""
    fake = FakeDevice()
    taken(fake, copying(fake, 1, lambda number: [np.zeros(1 << 20, np.uint8) for _ in range(3)]))
    assert [call.size for call in calls(fake, "copy")] == [1 << 20] * 3


def test_a_batch_of_the_users_may_be_written_to_again_at_once() -> None:
    """It was laid into a buffer when the copy was queued, so that an aggregator may use it again."""
    fake = FakeDevice()
    memory = np.zeros(100, np.uint8)
    watch = Watch(fake, "x")

    def batches() -> Any:
        for number in range(20):
            memory.fill(number)
            yield {"x": memory.copy(), "n": batch_of(number)["label"]}

    taken(fake, PipelineBuilder().add_source(batches).to_device(fake), watch)
    assert watch.numbers() == list(range(20))
