"""The back-ends: what they ask of torch, and what all of them keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from spdl_async.device import DeviceBackend
from spdl_async.device._cpu import CpuDevice
from spdl_async.device._cuda import CudaDevice
from spdl_async.device._mps import MpsDevice
from spdl_async.testing import FakeDevice

pytestmark = pytest.mark.torch


def gpu() -> DeviceBackend:
    return CudaDevice(torch.device("cuda", torch.cuda.current_device()))


BACKENDS = [
    pytest.param(CpuDevice, id="cpu"),
    pytest.param(FakeDevice, id="fake"),
    pytest.param(gpu, id="cuda", marks=pytest.mark.gpu),
]
LAYOUTS = {
    "plain": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6).reshape(2, 3).t(),
    "channels last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "gaps": torch.arange(12.0)[::2],
    "expanded": torch.ones(1).expand(4),
    "scalar": torch.tensor(5, dtype=torch.int16),
    "without elements": torch.empty(0, 3),
    "bfloat16": torch.arange(5, dtype=torch.bfloat16),
    "conjugated": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "with a gradient": torch.ones(3, requires_grad=True),
}


@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_tensors_go_there_and_back(make: Callable[[], DeviceBackend], tensor: Any) -> None:
    backend = make()
    backend.enter_thread()
    there = backend.empty(tensor)
    assert backend.is_here(there)
    assert not there.requires_grad
    assert (there.shape, there.dtype) == (tensor.shape, tensor.dtype)
    assert there.stride() == torch.empty_like(tensor).stride()
    size = tensor.numel() * tensor.element_size()
    slot = backend.pinned(size).view(tensor.dtype).as_strided(there.shape, there.stride())
    assert backend.is_pinned(slot) or not size
    slot.copy_(tensor.detach())
    backend.copy(there, slot)
    assert not there.requires_grad
    back = torch.empty_like(slot)
    backend.copy(back, there)
    if backend.asynchronous:
        backend.synchronize(backend.record(backend.current_stream()))
    assert torch.equal(back, tensor.detach())
    direct = backend.empty(tensor)
    backend.copy(direct, tensor)
    assert not direct.requires_grad


@pytest.mark.parametrize("make", BACKENDS)
def test_bytes_and_objects(make: Callable[[], DeviceBackend]) -> None:
    backend = make()
    backend.enter_thread()
    memory = backend.empty_bytes(10)
    assert (memory.shape, memory.dtype) == ((10,), torch.uint8)
    assert backend.is_here(memory)
    packed = backend.move(torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]))
    assert backend.is_here(packed.data)


@pytest.mark.parametrize("make", BACKENDS)
def test_the_default_device_of_torch_changes_nothing(make: Callable[[], DeviceBackend]) -> None:
    backend = make()
    backend.enter_thread()
    source = torch.ones(3, dtype=torch.uint8)
    with torch.device("meta"):
        slot = backend.pinned(3)
        there = [backend.empty_bytes(3), backend.empty(slot)]
        slot.copy_(source)
        for target in there:
            backend.copy(target, slot)
    assert slot.device.type == "cpu"
    assert all(backend.is_here(target) for target in there)


@pytest.mark.parametrize("make", [p for p in BACKENDS if p.id != "cpu"])
def test_work_waits_for_an_event_of_another_stream(make: Callable[[], DeviceBackend]) -> None:
    backend = make()
    backend.enter_thread()
    side, here = backend.new_stream(), backend.current_stream()
    slot = backend.pinned(4).fill_(3)
    with backend.on_stream(side):
        assert backend.current_stream() == side
        batch = backend.empty(slot)
        backend.copy(batch, slot)
        event = backend.record(side)
    assert backend.current_stream() == here
    backend.wait(here, event)
    backend.keep_for(batch, here)
    back = backend.pinned(4)
    backend.copy(back, batch)
    done = backend.record(here)
    backend.synchronize(done)
    assert backend.is_done(event)
    assert backend.is_done(done)
    assert back.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("make", [CpuDevice, MpsDevice])
def test_a_device_without_streams_says_so(make: Callable[[], Any]) -> None:
    backend = make()
    for name in ("new_stream", "current_stream", "on_stream", "record", "wait", "synchronize"):
        with pytest.raises(RuntimeError, match="has no streams: copies are done when they return"):
            getattr(backend, name)()


def test_the_tensors_of_the_host_are_here_for_the_cpu() -> None:
    backend = CpuDevice()
    tensor = torch.ones(3)
    assert backend.is_here(tensor)
    assert backend.is_pinned(tensor)
    assert not MpsDevice().is_here(tensor)
    assert backend.move(tensor) is tensor


def test_no_memory_on_the_host_is_a_memory_error() -> None:
    backend = CpuDevice()
    size = 1 << 60
    for call in (backend.pinned, backend.empty_bytes):
        with pytest.raises(backend.out_of_memory, match=f"no memory for {size} bytes on cpu: "):
            call(size)
    with pytest.raises(backend.out_of_memory, match=f"no memory for {size} bytes on cpu: "):
        backend.empty(torch.ones(1, dtype=torch.uint8).expand(size))
    with pytest.raises(RuntimeError, match="negative dimension"):
        backend.pinned(-1)


# What CudaDevice asks of torch, without a GPU


class Asked:
    """Stands for a class or function of torch.cuda, and for what it returns; notes what is asked."""

    def __init__(self, log: list[tuple[Any, ...]], name: str) -> None:
        self._log = log
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Asked:
        self._log.append((self._name, *args, *kwargs.items()))
        return self

    def __getattr__(self, name: str) -> Asked:
        return Asked(self._log, f"{self._name}.{name}")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    log: list[tuple[Any, ...]] = []
    for name in ("set_device", "Stream", "Event", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, Asked(log, name))
    return log


def test_every_call_names_the_device(asked: list[tuple[Any, ...]]) -> None:
    device = torch.device("cuda", 1)
    backend = CudaDevice(device)
    backend.enter_thread()
    stream = backend.new_stream()
    backend.current_stream()
    backend.on_stream(stream)
    assert asked == [
        ("set_device", device),
        ("Stream", device),
        ("current_stream", device),
        ("stream", stream),
    ]


def test_events_block_instead_of_spinning(asked: list[tuple[Any, ...]]) -> None:
    backend = CudaDevice(torch.device("cuda", 1))
    stream = backend.new_stream()
    event = backend.record(stream)
    backend.wait(stream, event)
    assert backend.is_done(event)
    backend.synchronize(event)
    assert asked[1:] == [
        ("Event", ("enable_timing", True), ("blocking", True)),
        ("Event.record", stream),
        ("Stream.wait_event", event),
        ("Event.query",),
        ("Event.synchronize",),
    ]


def test_memory_is_asked_for_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[Any, ...]] = []
    device = torch.device("cuda", 1)
    backend = CudaDevice(device)
    tensor: Any = torch.ones(2)
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, Asked(log, name))
    backend.empty_bytes(5)
    backend.empty(tensor)
    backend.pinned(7)
    assert log == [
        ("empty", 5, ("dtype", torch.uint8), ("device", device)),
        ("empty_like", tensor, ("device", device), ("requires_grad", False)),
        ("empty", 7, ("dtype", torch.uint8), ("device", "cpu"), ("pin_memory", True)),
    ]
    thing: Any = Asked(log, "thing")
    backend.copy(thing, thing)
    backend.move(thing)
    assert log[3][0] == "thing.detach"
    assert (log[4][0], log[4][2]) == ("thing.copy_", ("non_blocking", True))
    assert log[5:] == [
        ("thing.to", device, ("non_blocking", True)),
    ]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA error: out of memory"), torch.cuda.OutOfMemoryError),
        (RuntimeError("CUDA error: device-side assert"), RuntimeError),
    ],
)
def test_what_cannot_be_pinned_is_out_of_memory(
    error: RuntimeError, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(torch, "empty", refuse)
    backend = CudaDevice(torch.device("cuda", 0))
    with pytest.raises(RuntimeError, match=str(error)) as caught:
        backend.pinned(10)
    assert type(caught.value) is kind
    assert kind is RuntimeError or "cannot page-lock 10 bytes" in str(caught.value)


def test_a_tensor_is_here_on_this_gpu_only() -> None:
    class OfGpu:
        device = torch.device("cuda", 1)

    tensor: Any = OfGpu()
    assert CudaDevice(torch.device("cuda", 1)).is_here(tensor)
    assert not CudaDevice(torch.device("cuda", 0)).is_here(tensor)
    assert not CudaDevice(torch.device("cuda", 1)).is_here(torch.ones(1))
