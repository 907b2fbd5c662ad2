"""One thing each: delays, back to the host, models, memory, shutdown, layouts, devices."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gpu_devices import each_device, on_gpu, open_rig

from benchmarks._rigs import CudaRig
from spdl_async import DeviceError, PipelineBuilder
from spdl_async.device import inference

pytestmark = pytest.mark.torch

MIB = 1 << 20


# Hand-over


@each_device
def test_what_is_computed_at_once_sees_a_copy_that_is_a_tenth_of_a_second_late(kind: str) -> None:
    rig = open_rig(kind)
    streams = [None, rig.new_stream(), rig.new_stream()]
    made = PipelineBuilder().add_source(range(6)).pipe(lambda k: np.full(300_000, k, np.int64))
    sums: list[int] = []
    with made.to_device(rig.late(0.1)).build().run_sync() as run:
        batches = iter(run)
        for k in range(6):
            with rig.on(streams[k % 3]):
                sums.append(int(rig.read(rig.computed(lambda b: b * 2, next(batches))).sum()))
    assert sums == [2 * 300_000 * k for k in range(6)]


@each_device
def test_stages_below_work_in_their_own_threads(kind: str) -> None:
    rig = open_rig(kind)

    def augmented(batch: torch.Tensor) -> torch.Tensor:
        rig.slow(0.005)
        return rig.computed(lambda b: b + 1, batch)

    found: list[torch.Tensor] = []
    pipeline = (
        PipelineBuilder()
        .add_source(range(60))
        .pipe(lambda k: np.full(100_000, k, np.int32))
        .to_device(rig.late(0.002))
        .pipe(augmented, concurrency=2, fuse=False)
        .pipe(augmented, fuse=False)
        .build()
    )
    with pipeline.run_sync() as run:
        for batch in run:
            found.append(rig.read(batch))
    assert all(bool((one == k + 2).all()) for k, one in enumerate(found))
    assert len(found) == 60


@each_device
def test_back_on_the_host_behind_a_slow_kernel(kind: str) -> None:
    rig = open_rig(kind)

    def model(batch: dict[str, Any]) -> dict[str, Any]:
        rig.slow(0.03)
        return {"scores": rig.computed(lambda b: b * 3, batch["image"]), "key": batch["key"]}

    pipeline = (
        PipelineBuilder()
        .add_source(range(40))
        .pipe(lambda k: {"image": np.full((64, 1_000), k, np.float32), "key": f"{k}"})
        .to_device(rig.late(0.002))
        .pipe(model)
        .to_host()
        .build()
    )
    for k, batch in enumerate(pipeline):  # read at once: nobody waits here
        assert batch["scores"].device.type == "cpu"
        assert (batch["scores"].min(), batch["scores"].max()) == (3 * k, 3 * k)
        assert batch["key"] == f"{k}"


@on_gpu
def test_a_model_in_inference_mode_with_autocast() -> None:
    rig = CudaRig()
    model = torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.Dropout()).to(rig.device)
    rows = torch.randn(20, 64, 32)
    pipeline = (
        PipelineBuilder()
        .add_source(list(rows))
        .to_device(rig.late(0.002))
        .pipe(inference(model, autocast=torch.bfloat16))
        .to_host()
        .build()
    )
    results = list(pipeline)
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        expected = [model(row.to(rig.device)).cpu() for row in rows]
    assert not model.training
    for result, right in zip(results, expected, strict=True):
        assert result.dtype == torch.bfloat16
        assert not result.requires_grad
        torch.testing.assert_close(result, right)


# Threads and devices


@on_gpu
def test_each_thread_of_ours_sets_its_device_before_anything_else() -> None:
    first: dict[str, str] = {}
    rig = CudaRig()
    inner: Any = rig.backend

    class Listening(type(inner)):  # type: ignore[misc]  # the class of a back-end
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            thread = threading.current_thread().name
            if callable(value) and thread.startswith("spdl_async-"):
                first.setdefault(thread, name)
            return value

    listening = Listening(rig.device)
    pipeline = (
        PipelineBuilder()
        .add_source(range(20))
        .pipe(lambda k: np.full(1_000, k))
        .to_device(listening)
        .pipe(lambda b: b + 1, concurrency=2)
        .build()
    )
    assert [int(batch[0]) for batch in pipeline] == [k + 1 for k in range(20)]
    assert first
    assert set(first.values()) == {"enter_thread"}


ON_SECOND = """
import ctypes, json, os, subprocess, sys
import numpy as np, torch
from spdl_async import PipelineBuilder

torch.cuda.set_device(1)
made = PipelineBuilder().add_source(range(50)).pipe(lambda k: np.full(100_000, k)).to_device(sys.argv[1])
sums = [int(batch.sum()) for batch in made.pipe(lambda b: b * 2, concurrency=2).build()]
assert sums == [2 * 100_000 * k for k in range(50)], sums
back = made.to_host().build()
assert [int(batch[0]) for batch in back] == list(range(50))
assert torch.cuda.memory_allocated(0) == 0
assert torch.cuda.memory_reserved(0) == 0
cuda = ctypes.CDLL("libcuda.so.1")
flags, active, device = ctypes.c_uint(), ctypes.c_int(-1), ctypes.c_int()
for index, expected in ((0, 0), (1, 1)):
    assert cuda.cuDeviceGet(ctypes.byref(device), index) == 0
    assert cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0
    assert active.value == expected, f"device {index}: context {active.value}, not {expected}"
"""


@on_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_no_context_on_another_device(device: str) -> None:
    need_two()
    if torch.version.hip:
        pytest.skip("asks CUDA's driver")
    command = [sys.executable, "-c", ON_SECOND, device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@on_gpu
def test_two_devices_at_a_time() -> None:
    need_two()
    rigs = [CudaRig(1), CudaRig(0)]  # the last one makes GPU 0 current in this thread
    source = PipelineBuilder().add_source(range(100)).pipe(lambda k: np.full(200_000, k, np.int32))
    on_each = [source.to_device(rig.late(0.001)).build() for rig in rigs]
    for k, (one, zero) in enumerate(zip(*on_each, strict=True)):
        assert (one.device.index, zero.device.index) == (1, 0)
        assert bool((one == k).all())
        assert bool((zero == k).all())


def need_two() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")


@on_gpu
def test_cuda_is_the_current_device_of_the_thread_that_starts_the_run() -> None:
    last = torch.cuda.device_count() - 1
    pipeline = PipelineBuilder().add_source([np.ones(3)]).to_device("cuda").build()
    found: list[int | None] = []

    def consume() -> None:
        torch.cuda.set_device(last)
        found.extend(batch.device.index for batch in pipeline)

    thread = threading.Thread(target=consume)
    thread.start()
    thread.join()
    assert found == [last]


# Memory


@each_device
def test_a_device_that_is_full_is_an_error_and_the_run_ends(kind: str) -> None:
    rig = open_rig(kind)
    size = 64 * MIB if kind == "cuda" else MIB

    def pipeline(on_error: Any = None) -> Any:
        made = PipelineBuilder().add_source([size, 8 * size, size])
        sized = made.pipe(lambda n: np.full(n, 7, np.uint8))
        return sized.to_device(rig.backend, pin="1GB", on_error=on_error).build()

    rig.limit(4 * size)
    try:
        with pytest.raises(DeviceError, match="no memory for a batch") as caught:
            list(pipeline())
        said = "\n".join([str(caught.value), *caught.value.__notes__])
        assert f"{8 * size:,} bytes" in said
        assert "to_device" in said
        assert "item 1" in said
        with pipeline("skip").run_sync() as run:
            assert [len(batch) for batch in run] == [size, size]
        assert run.failures.total == 1
    finally:
        rig.limit(None)
    assert [len(batch) for batch in pipeline()] == [size, 8 * size, size]


@each_device
def test_a_consumer_that_keeps_everything_fills_the_device(kind: str) -> None:
    rig = open_rig(kind)
    size = 64 * MIB if kind == "cuda" else MIB
    made = (
        PipelineBuilder().add_source(range(1_000)).pipe(lambda k: np.full(size, k % 256, np.uint8))
    )
    kept: list[torch.Tensor] = []
    rig.limit(4 * size)
    try:
        with pytest.raises(DeviceError, match="no memory for a batch"):
            for batch in made.to_device(rig.backend).build():
                kept.append(batch)
        assert 2 <= len(kept) <= 4
        assert all(bool((rig.read(batch) == k).all()) for k, batch in enumerate(kept))
    finally:
        rig.limit(None)


@each_device
def test_memory_of_device_and_host_is_bounded_and_nothing_is_locked_in_the_steady_state(
    kind: str,
) -> None:
    rig = open_rig(kind)
    size, depth = (32 * MIB, 3) if kind == "cuda" else (MIB, 3)
    rig.finish()
    before = rig.bytes_on_device()
    rig.start_peak()
    made = PipelineBuilder().add_source(range(60)).pipe(lambda k: np.full(size, k, np.uint8))
    locked = rig.pinned_allocations() or 0
    with made.to_device(rig.backend, depth=depth).build().run_sync() as run:
        k = 0
        for batch in run:
            result = rig.computed(lambda b: b[:1], batch[:1])
            assert int(rig.read(result)) == k
            del batch, result
            k += 1  # noqa: SIM113 -- enumerate() would keep the last batch
            if k == 50:
                notes = next(s.notes for s in run.statistics().stages if "staging_bytes" in s.notes)
    allocations: Any = notes["staging_allocations"]
    assert notes["staging_bytes"] == allocations * size  # which is a power of two
    assert 1 <= allocations <= depth + 1
    assert (rig.pinned_allocations() or 0) - locked <= depth + 1
    # Finished, one being copied, the consumer's; and the results.
    assert rig.peak() - before <= (depth + 1 + 1) * size + size // 4


# Shutdown


@each_device
def test_leaving_in_the_middle_of_copies(kind: str) -> None:
    rig = open_rig(kind)
    before = rig.bytes_on_device()
    for taken in range(20):
        made = PipelineBuilder().add_source(range(100)).pipe(lambda k: np.full(MIB, k, np.int8))
        pipeline = made.to_device(rig.late(0.03), pin="4MB").build()
        with pipeline.run_sync() as run:
            for k, batch in enumerate(run):
                assert bool((rig.read(batch) == k).all())
                stop = k >= taken % 4
                del batch
                if stop:
                    break
    rig.finish()
    assert rig.bytes_on_device() == before


@each_device
def test_a_failure_in_the_middle_of_copies(kind: str) -> None:
    rig = open_rig(kind)

    def make(k: int) -> Any:
        if k == 7:
            raise KeyError("seven")
        return np.full(MIB, k, np.int8)

    made = PipelineBuilder().add_source(range(100)).pipe(make).to_device(rig.late(0.01))
    right: list[bool] = []
    with pytest.raises(KeyError, match="seven"):
        for k, batch in enumerate(made.build()):
            right.append(bool((rig.read(batch) == k).all()))
    assert right == [True] * 7


# What batches are made of

DTYPES = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
)


def strided() -> Iterator[tuple[str, torch.Tensor]]:
    numbers = torch.arange(2 * 3 * 5 * 8)
    for name in DTYPES:
        dtype = getattr(torch, name, None)
        if dtype is not None:
            yield name, (numbers % 97).float().to(dtype).view(2, 3, 5, 8)
    dense = (numbers % 97).float().view(2, 3, 5, 8)
    yield "channels last", dense.to(memory_format=torch.channels_last)
    yield "transposed", dense.transpose(0, 3)
    yield "with gaps", dense[:, ::2, 1:4]
    yield "expanded", dense[:1].expand(4, 3, 5, 8)
    yield "no dimension", torch.tensor(3.5)
    yield "no element", torch.empty(0, 7)
    yield "conjugated", torch.randn(4, 4, dtype=torch.complex64).conj()
    yield "negative", torch.randn(4, 4, dtype=torch.complex64).conj().imag
    yield "with gradient", torch.randn(4, requires_grad=True)
    yield "large", torch.randn(300_000)


def odd() -> Iterator[tuple[str, torch.Tensor]]:
    dense = torch.eye(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CSR is in beta, quantisation moves elsewhere
        yield "sparse COO", dense.to_sparse()
        yield "sparse CSR", dense.to_sparse_csr()
        yield "sparse BSR", dense.to_sparse_bsr((2, 2))
        yield "quantised", torch.quantize_per_tensor(dense, 0.1, 3, torch.quint8)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare bit by bit."""
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    if one.layout != torch.strided:
        return bool(torch.equal(one.to_dense(), other.to_dense()))
    if one.is_quantized:
        return bool(torch.equal(one.dequantize(), other.dequantize()))
    flat = [t.detach().resolve_conj().resolve_neg().contiguous().flatten() for t in (one, other)]
    return bool(torch.equal(flat[0].view(torch.uint8), flat[1].view(torch.uint8)))


@each_device
@pytest.mark.parametrize("pin", [True, False])
def test_every_dtype_and_layout(kind: str, pin: bool) -> None:
    rig = open_rig(kind)
    batch = dict(strided())
    made = PipelineBuilder().add_source([batch] * 5).to_device(rig.late(0.002), pin=pin)
    for copied in made.build():
        assert list(copied) == list(batch)
        for name, tensor in batch.items():
            back = rig.read(copied[name])
            assert same(back, tensor), f"{name}: {back} is not {tensor}"
            assert not copied[name].requires_grad


@on_gpu
@pytest.mark.parametrize(("name", "tensor"), list(odd()))
def test_sparse_and_quantised(name: str, tensor: torch.Tensor) -> None:
    rig = CudaRig()
    try:
        plain = tensor.to(rig.device).cpu()
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"torch itself cannot: {error}")
    made = PipelineBuilder().add_source([{"x": tensor, "y": torch.ones(3)}] * 20)
    for copied in made.to_device(rig.late(0.002)).build():
        assert copied["x"].device == rig.device
        assert same(copied["x"].cpu(), plain), name


@each_device
def test_what_is_page_locked_or_there_already_is_not_staged(kind: str) -> None:
    rig = open_rig(kind)
    there = rig.send(torch.arange(1_000))
    locked = rig.pinned(torch.arange(100_000))
    batches: list[dict[str, Any]] = [{"there": there, "locked": locked, "key": "a"}] * 10
    made = PipelineBuilder().add_source(batches)
    with made.to_device(rig.late(0.002)).build().run_sync() as run:
        for batch in run:
            assert batch["there"] is there
            assert bool((rig.read(batch["locked"]) == torch.arange(100_000)).all())
        notes = next(s.notes for s in run.statistics().stages if "staging_bytes" in s.notes)
    assert notes["staging_allocations"] == 0
    assert notes["bytes_copied"] == 10 * locked.nbytes


@each_device
def test_fields_that_were_not_chosen_stay(kind: str) -> None:
    rig = open_rig(kind)
    batch: dict[str, Any] = {"image": np.ones((4, 4)), "mask": np.zeros(3)}
    (copied,) = PipelineBuilder().add_source([batch]).to_device(rig.backend, only=["image"]).build()
    assert copied["mask"] is batch["mask"]
    assert rig.read(copied["image"]).tolist() == batch["image"].tolist()
