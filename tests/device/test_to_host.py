"""Results come back complete, whatever the device has done by then (G5)."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from fakes import CONSUMERS, Watch, batch_of, calls, copying, is_ours, notes

from spdl_async import PipelineBuilder
from spdl_async.device import _host_copier
from spdl_async.testing import FakeDevice

pytestmark = pytest.mark.torch

COUNT = 20


class Model:
    """Queues a kernel that writes a result, and keeps a field of the host's."""

    def __init__(self, fake: FakeDevice) -> None:
        self.fake = fake

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        image = batch["image"]
        out = self.fake.empty(image)
        self.fake.launch(lambda i, o: o.copy_(i + 100), image, out)
        return {"scores": out, "key": batch["key"], "host": batch.get("host")}


@pytest.mark.parametrize("consume", CONSUMERS, ids=lambda consume: consume.__name__)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_results_are_complete_when_they_are_handed_on(consume: Any, concurrency: int) -> None:
    """G5: read at once, by code that knows of no device; in order, and page-locked."""
    fake = FakeDevice()
    results: list[tuple[int, int, int]] = []

    def take(batch: Any) -> None:
        scores = batch["scores"]
        assert not fake.is_here(scores)
        assert fake.is_pinned(scores)
        results.append((int(batch["key"]), int(scores.min()), int(scores.max())))

    consume(copying(fake, COUNT).pipe(Model(fake), concurrency=concurrency).to_host().build(), take)
    if consume.__name__ == "two_tasks":
        results.sort()
    assert results == [(n, n + 100, n + 100) for n in range(COUNT)]


def test_the_wait_is_in_a_thread_of_its_own() -> None:
    fake = FakeDevice()
    list(copying(fake, COUNT).pipe(Model(fake)).to_host().build())
    waits = [call for call in calls(fake, "synchronize") if "to_host" in call.thread]
    assert len(waits) == COUNT
    streams = {call.stream for call in calls(fake, "copy") if call.detail == "device to host"}
    assert len(streams) == 1
    assert streams.isdisjoint(
        {0, *(c.stream for c in calls(fake, "copy") if "to_device" in c.thread)}
    )
    assert all(is_ours(call.thread) for call in calls(fake, "synchronize"))


def test_fields_of_the_host_are_the_same_objects() -> None:
    fake = FakeDevice()
    host = [np.ones(3), torch.ones(2), "word"]

    def make(number: int) -> dict[str, Any]:
        return {**batch_of(number), "host": host}

    builder = copying(fake, 3, make, only=("image",)).pipe(Model(fake)).to_host()
    for batch in builder.build():
        assert batch["host"] is host
        assert isinstance(host[0], np.ndarray)


def test_without_a_stage_between() -> None:
    fake = FakeDevice()
    numbers = [int(batch["label"][0]) for batch in copying(fake, COUNT).to_host().build()]
    assert numbers == list(range(COUNT))


@pytest.mark.parametrize("inline", [False, True])
def test_without_to_device_above(monkeypatch: pytest.MonkeyPatch, inline: bool) -> None:
    """An op has put its result on the device itself, on its thread's stream."""
    fake = FakeDevice()
    # Tensors of the fake lie on torch's CPU, so their device cannot tell.
    monkeypatch.setattr(_host_copier.HostCopier, "_backends_of", lambda self, batch: [fake])
    host = [fake.pinned(64).fill_(number) for number in range(COUNT)]

    def op(number: int) -> Any:
        fake.enter_thread()
        out = fake.empty(host[number])
        fake.copy(out, host[number])
        fake.launch(lambda x: x.add_(100), out)
        return [out]

    pipeline = PipelineBuilder().add_source(range(COUNT)).pipe(op).to_host().build()
    with pipeline.run_sync(inline=inline) as run:
        assert [(int(x[0]), int(x[63])) for (x,) in run] == [
            (n + 100, n + 100) for n in range(COUNT)
        ]


def test_tensors_of_the_host_pass_as_they_are() -> None:
    tensor = torch.ones(2)
    (result,) = PipelineBuilder().add_source([{"x": tensor}]).to_host().build()
    assert result["x"] is tensor


def test_what_only_leaves_there_is_still_handed_over() -> None:
    """Its memory is kept for the consumer's stream, as that of any batch on the device."""
    fake = FakeDevice()
    watch = Watch(fake, "image")
    other = fake.new_stream()
    labels = []
    builder = copying(fake, 40).to_host(only=("label", "weight"))
    with builder.build().run_sync() as run, fake.on_stream(other):
        for batch in run:
            labels.append(int(batch["label"][0]))
            watch(batch)
            del batch
    assert labels == watch.numbers() == list(range(40))


def test_results_that_are_not_dense() -> None:
    fake = FakeDevice()
    builder = copying(fake, 3).pipe(lambda batch: batch["image"][::2, ::3]).to_host()
    results = list(builder.build())
    assert [(int(x.min()), int(x.max())) for x in results] == [(n, n) for n in range(3)]


def test_without_pinning() -> None:
    fake = FakeDevice()
    locked: list[bool] = []
    for batch in copying(fake, 3).to_host(pin=False).build():
        locked.append(fake.is_pinned(batch["image"]))
    assert locked == [False] * 3


def test_without_memory_to_lock(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeDevice()
    builder = copying(fake, 5, lambda number: {"x": torch.full((9,), number)}, pin=False).to_host()
    fake.fail("pinned", RuntimeError("no more memory to lock"), times=None)
    with caplog.at_level(logging.WARNING, "spdl_async"):
        assert [int(batch["x"][8]) for batch in builder.build()] == list(range(5))
    (record,) = caplog.records
    assert "to_host: no page-locked memory" in record.getMessage()


def test_statistics() -> None:
    fake = FakeDevice()
    with copying(fake, COUNT).pipe(Model(fake)).to_host().build().run_sync() as run:
        list(run)
        told = notes(run.statistics(), "to_host")
    assert told["batches_copied"] == COUNT
    assert told["bytes_copied"] == COUNT * 4096
    assert told["waited_seconds"] > 0


def test_a_result_that_fails_is_skipped() -> None:
    fake = FakeDevice()
    # So many slots that only to_host waits for the device, until the pass has ended.
    builder = copying(fake, 6, depth=10).pipe(Model(fake)).to_host(on_error="skip")
    fake.fail("synchronize", ZeroDivisionError, after=2)
    with builder.build().run_sync() as run:
        results = [int(batch["key"]) for batch in run]
        assert [(record.stage, record.index) for record in run.failures] == [("to_host", 2)]
    assert results == [0, 1, 3, 4, 5]
