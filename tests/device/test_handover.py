"""Whoever takes a batch makes its own stream wait for the copy; nobody waits on the host (G4, G10)."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from fakes import (
    CONSUMERS,
    ENGINE_CONSUMERS,
    Watch,
    callers_loop,
    calls,
    copying,
    inline_for,
    is_ours,
    sync_for,
    threads_of,
    until,
)

from spdl_async import PipelineBuilder
from spdl_async.testing import FakeDevice

pytestmark = pytest.mark.torch

Consumer = Callable[..., None]
COUNT = 30


def named(consumer: Consumer) -> str:
    return consumer.__name__


@pytest.mark.parametrize("consumer", CONSUMERS, ids=named)
def test_each_batch_is_right_when_the_device_comes_to_it(consumer: Consumer) -> None:
    """G1, G4: copies are late, slots few, and the consumer drops each batch before its kernel runs."""
    fake = FakeDevice()
    watch = Watch(fake)
    consumer(copying(fake, COUNT).build(), watch)
    assert sorted(watch.numbers()) == list(range(COUNT))


@pytest.mark.parametrize("consumer", CONSUMERS, ids=named)
def test_the_consumer_claims_in_its_own_thread(consumer: Consumer) -> None:
    fake = FakeDevice()
    consumer(copying(fake, 5).build(), lambda batch: None)
    assert threads_of(fake, "wait", "keep_for") == {"MainThread"}
    waits = calls(fake, "wait")
    assert len(waits) == len({wait.event for wait in waits}) == 5


@pytest.mark.parametrize("consumer", ENGINE_CONSUMERS, ids=named)
def test_the_host_waits_only_in_the_copying_thread(consumer: Consumer) -> None:
    """No host synchronisation where the consumer, or a loop, runs."""
    fake = FakeDevice()
    consumer(copying(fake, COUNT).build(), lambda batch: None)
    waiting = threads_of(
        fake, "synchronize", "copy", "pinned", "empty", "empty_bytes", "new_stream"
    )
    assert len(waiting) == 1
    assert all("to_device" in thread for thread in waiting)
    assert not [call for call in calls(fake, "copy") if call.detail == "pageable copy"]


def test_a_consumer_may_change_streams_between_batches() -> None:
    """G4: it is the stream that is current when the batch is taken that waits."""
    fake = FakeDevice()
    watch = Watch(fake)
    streams = [fake.new_stream() for _ in range(3)]
    with copying(fake, COUNT).build().run_sync() as run:
        for number in range(COUNT):
            with fake.on_stream(streams[number % 3]):
                watch(next(run))
    assert sorted(watch.numbers()) == list(range(COUNT))
    assert {call.stream for call in calls(fake, "wait")} == {stream.number for stream in streams}


@pytest.mark.parametrize("loop", ["caller", "own"])
def test_an_async_consumer_may_change_streams_between_batches(loop: Any) -> None:
    fake = FakeDevice()
    watch = Watch(fake)
    streams = [fake.new_stream() for _ in range(3)]

    async def main() -> None:
        async with copying(fake, COUNT).build().run(loop=loop) as run:
            for number in range(COUNT):
                with fake.on_stream(streams[number % 3]):
                    watch(await anext(run))

    asyncio.run(main())
    assert sorted(watch.numbers()) == list(range(COUNT))
    assert {call.stream for call in calls(fake, "wait")} == {stream.number for stream in streams}


def test_memory_that_a_consumer_drops_is_kept_for_its_kernels() -> None:
    """The consumer's stream is behind while copies go on: their memory must be other memory."""
    fake = FakeDevice()
    watch = Watch(fake)
    consumers = fake.new_stream()
    with copying(fake, COUNT, depth=1).build().run_sync() as run:
        for _ in range(COUNT):
            with fake.on_stream(consumers):
                watch(next(run))
        copies = {call.stream for call in calls(fake, "copy")}
        assert copies.isdisjoint({0, consumers.number})
    assert watch.numbers() == list(range(COUNT))


def test_copies_are_queued_before_the_consumer_asks_for_them() -> None:
    """G10: depth batches, and one more, are on their way before the first is taken."""
    fake = FakeDevice()
    with copying(fake, 10, depth=4).build().run_sync() as run:
        until(lambda: len(calls(fake, "copy")) == 5)
        assert not calls(fake, "keep_for", "synchronize")
        assert len(list(run)) == 10


def test_a_batch_that_was_never_taken_is_let_go() -> None:
    fake = FakeDevice()
    with copying(fake, 10).build().run_sync() as run:
        next(run)
    fake.synchronize()
    gc.collect()
    assert fake.bytes_on_device == 0


def test_a_claim_that_fails_is_the_consumers_error() -> None:
    fake = FakeDevice()
    fake.fail("wait", RuntimeError("the stream is broken"))
    with copying(fake, 3).build().run_sync() as run:
        with pytest.raises(RuntimeError, match="the stream is broken"):
            next(run)
        assert len(list(run)) == 2


def test_inline_runs_enter_no_device() -> None:
    """The thread is the user's, who has chosen its device."""
    fake = FakeDevice()
    watch = Watch(fake)
    inline_for(copying(fake, 5).build(), watch)
    assert watch.numbers() == list(range(5))
    assert not calls(fake, "enter_thread")
    assert threads_of(fake, "copy") == {"MainThread"}


def test_every_thread_of_ours_enters_the_device_first() -> None:
    """G6: copying thread, pool threads of ops below, and a loop of ours."""
    fake = FakeDevice()

    async def later(batch: Any) -> Any:
        return batch

    def now(batch: Any) -> Any:
        return batch

    pipeline = copying(fake, 8).pipe(now, concurrency=2).pipe(later).to_host().build()
    sync_for(pipeline, lambda batch: None)
    ours = {call.thread for call in fake.calls if is_ours(call.thread)}
    assert len(ours) >= 4  # copying, at least one of the pool, the loop, and back to the host
    for thread in ours:
        of_thread = [call.method for call in fake.calls if call.thread == thread]
        assert of_thread[0] == "enter_thread", thread
        assert of_thread.count("enter_thread") == 1, thread
    assert not calls(fake, "misuse")
    assert "MainThread" not in threads_of(fake, "enter_thread")


def test_threads_of_the_user_are_not_entered() -> None:
    """A loop of the caller's, with an async op below, and an ordinary thread: they chose their device."""
    fake = FakeDevice()

    async def later(batch: Any) -> Any:
        return batch

    callers_loop(copying(fake, 4).pipe(later).build(), lambda batch: None)
    consumer = threading.Thread(
        target=sync_for, args=(copying(fake, 4).build(), lambda batch: None), name="consumer"
    )
    consumer.start()
    consumer.join()
    assert {"MainThread", "consumer"} <= threads_of(fake, "wait")
    assert all(is_ours(thread) for thread in threads_of(fake, "enter_thread"))


def test_what_an_op_above_has_put_on_the_device_is_waited_for() -> None:
    """Already there is not done yet: the stream of the op that put it there is still to do so."""
    fake = FakeDevice()
    watch = Watch(fake, "x", "y")

    def send(number: int) -> dict[str, Any]:
        fake.enter_thread()
        host = torch.full((64,), number)
        pinned = fake.pinned(host.nbytes).view(torch.int64)
        pinned[:] = host
        kept.append(pinned)
        target = fake.empty(pinned)
        fake.copy(target, pinned)
        return {"x": target, "y": torch.full((64,), number)}

    kept: list[Any] = []
    builder = PipelineBuilder().add_source(range(20)).pipe(send).to_device(fake)
    other = fake.new_stream()
    with builder.build().run_sync() as run, fake.on_stream(other):
        for batch in run:
            watch(batch)
            del batch
    fake.advance(other)  # no more of other streams than this one waits for
    assert watch.numbers() == list(range(20))
