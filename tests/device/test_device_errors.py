"""What goes wrong on a device: memory that is not there, calls that fail, pipelines that cannot be."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from fakes import Watch, batch_of, calls, copying, is_ours, notes, until

from spdl_async import (
    BuildError,
    DeviceError,
    Failure,
    Merge,
    PipelineBuilder,
    TooManyFailures,
)
from spdl_async.testing import FakeDevice

pytestmark = pytest.mark.torch


def large_at(*numbers: int) -> Any:
    return lambda number: batch_of(number, 1 << (20 if number in numbers else 12))


def test_a_device_without_memory_names_stage_batch_and_bytes() -> None:
    fake = FakeDevice(memory=1 << 19)
    pipeline = copying(fake, 10, large_at(4)).build()
    with pytest.raises(
        DeviceError, match=r"fake:0 has no memory for a batch of 1,048,604 bytes"
    ) as caught:
        for _ in pipeline:
            pass
    assert "3 tensors" in str(caught.value)
    assert "stage 'to_device' on item 4" in "".join(caught.value.__notes__)
    assert caught.value.__cause__ is not None


def test_a_policy_applies() -> None:
    fake = FakeDevice(memory=1 << 19)
    watch = Watch(fake)
    with copying(fake, 10, large_at(4, 6), on_error="skip").build().run_sync() as run:
        for batch in run:
            watch(batch)
            del batch
        assert [record.index for record in run.failures] == [4, 6]
        assert {record.error for record in run.failures} == {"DeviceError"}
    assert watch.numbers() == [n for n in range(10) if n not in (4, 6)]


def test_a_function_is_asked() -> None:
    fake = FakeDevice(memory=1 << 19)
    asked: list[Failure] = []
    pipeline = copying(fake, 10, large_at(4), on_error=asked.append).build()
    assert len(list(pipeline)) == 9
    assert [(failure.stage, failure.index) for failure in asked] == [("to_device", 4)]
    assert isinstance(asked[0].exception, DeviceError)


def test_a_budget_is_spent() -> None:
    fake = FakeDevice(memory=1 << 19)
    builder = copying(fake, 10, large_at(4, 6), on_error="skip", max_failures=1)
    with pytest.raises(TooManyFailures, match="'to_device': 2 failures"):
        list(builder.build())


def test_the_build_has_a_policy_too() -> None:
    fake = FakeDevice(memory=1 << 19)
    assert len(list(copying(fake, 10, large_at(4)).build(on_error="skip"))) == 9


def test_memory_is_free_again_after_a_failure() -> None:
    fake = FakeDevice(memory=3 << 20)
    fake.fail("empty", fake.out_of_memory[0], after=2)
    builder = copying(fake, 6, large_at(*range(6)), on_error="skip")
    for batch in builder.build():
        del batch
    fake.synchronize()
    gc.collect()
    assert fake.bytes_on_device == 0


METHODS = (
    "enter_thread", "new_stream", "current_stream", "on_stream", "record", "wait", "is_done",
    "seconds_between", "synchronize", "pinned", "is_pinned", "is_here", "empty", "empty_bytes", "copy",
    "keep_for",
)  # fmt: skip


def some_batches(number: int) -> dict[str, Any]:
    """Return small, large and page-locked tensors."""
    return {**batch_of(number), "large": torch.full((1 << 17,), number, dtype=torch.int32)}


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("after", [0, 1, 2, 5, 9, 14])
@pytest.mark.parametrize("method", METHODS)
def test_any_call_may_fail(method: str, after: int, policy: Any) -> None:
    """The pass ends with that error, or goes on without the batch; what it delivers is right."""
    fake = FakeDevice()
    fake.fail(method, ZeroDivisionError("device fault"), after=after)
    watch = Watch(fake, "image", "label", "large")
    builder = copying(fake, 12, some_batches, on_error=policy).to_host(only=("weight",))
    delivered: list[int] = []
    faults = 0
    with builder.build().run_sync() as run:
        while True:
            try:
                batch = next(run)
            except StopIteration:
                break
            except ZeroDivisionError as error:
                faults += 1
                # In the consumer's own thread a claim may fail, and the pass goes on.
                if any(is_ours(thread) for thread in failing_thread(error)):
                    break
                continue
            delivered.append(int(batch["key"]))
            watch(batch)
            del batch
        failed = sum(stage.failed for stage in run.statistics().stages)
    assert watch.numbers() == delivered
    assert faults <= 1
    assert failed <= 1
    assert faults or len(delivered) + failed == 12
    assert not calls(fake, "misuse")
    until(lambda: not [thread for thread in threading.enumerate() if is_ours(thread.name)])


def failing_thread(error: BaseException) -> list[str]:
    """Return the names of threads of ours where a stage is named: that ends the pass."""
    told = "".join(getattr(error, "__notes__", ()))
    return ["spdl_async-" if "stage" in told else "MainThread"]


def test_page_locked_memory_outlives_a_batch_that_failed() -> None:
    """Its first copy is queued when the second fails: the device still reads from the first's memory."""
    fake = FakeDevice()
    seen: list[Any] = []
    original = fake.copy

    def batches() -> Any:
        fake.enter_thread()
        yield [fake.pinned(64).fill_(7), fake.pinned(64).fill_(8)]

    def copy(target: Any, source: Any) -> None:
        fake.launch(lambda x: seen.append(x.tolist()), source)  # as the copy itself reads it
        original(target, source)

    fake.copy = copy  # type: ignore[method-assign]
    fake.fail("empty", ZeroDivisionError("the second"), after=1)
    builder = PipelineBuilder().add_source(batches).to_device(fake, on_error="skip")
    with pytest.raises(TooManyFailures):
        list(builder.build())
    until(lambda: seen == [[7] * 64])  # which the end of the copying thread waits for


def test_a_device_that_fails_at_the_end_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeDevice()
    watch = Watch(fake)
    fake.fail("synchronize", ZeroDivisionError("device fault"))  # the end is the first to wait
    with copying(fake, 2).build().run_sync() as run:
        for batch in run:
            watch(batch)
    assert watch.numbers() == [0, 1]
    (record,) = caplog.records
    assert (
        "fake:0 failed at the end of a run (ZeroDivisionError: device fault)" in record.getMessage()
    )


def test_a_cache_below() -> None:
    with pytest.raises(BuildError, match="what is on a device cannot be kept"):
        copying(FakeDevice(), 3).cache(memory="1MB").build()


def test_a_mix_below() -> None:
    async def mix(branches: list[Any]) -> Any:
        async for item in branches[0]:
            yield item

    with pytest.raises(BuildError, match=r"Merge\(mix=\).*put to_device below the Merge"):
        PipelineBuilder().add_source(Merge(copying(FakeDevice(), 3), mix=mix)).build()


def test_processes_below() -> None:
    with ProcessPoolExecutor(1) as executor:
        with pytest.raises(
            BuildError, match="'len': what is on a device cannot be sent to the workers"
        ):
            copying(FakeDevice(), 3).pipe(len, executor=executor).build()
        builder = copying(FakeDevice(), 3).to_host().pipe(len, executor=executor)
        builder.build()


@pytest.mark.parametrize(
    "option", [{"pin": "much"}, {"pin": -1}, {"only": "image"}, {"only": ()}, {"only": 3}]
)
def test_options_that_mean_nothing(option: dict[str, Any]) -> None:
    with pytest.raises(BuildError):
        copying(FakeDevice(), 3, **option).build()


@pytest.mark.parametrize("device", ["gpu", "cuda:x", 3, None, "xpu"])
def test_devices_that_are_none(device: Any) -> None:
    """G14: at build()."""
    with pytest.raises(BuildError, match=r"to_device\(device="):
        PipelineBuilder().add_source([1]).to_device(device).build()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_here() -> None:
    """G14: a clear error from build()."""
    with pytest.raises(BuildError, match=r'to_device.*use device="cpu"'):
        PipelineBuilder().add_source([1]).to_device().build()


def test_a_copy_of_nothing_is_counted_nowhere() -> None:
    fake = FakeDevice()
    with PipelineBuilder().add_source(["a", "b"]).to_device(fake).build().run_sync() as run:
        assert list(run) == ["a", "b"]
        assert notes(run.statistics())["batches_copied"] == 0
