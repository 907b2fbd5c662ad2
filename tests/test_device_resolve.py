"""Names of devices become back-ends, or an error of the build that says what to do."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest

from spdl_async.device import DeviceBackend
from spdl_async.device._resolve import resolve
from spdl_async.errors import BuildError
from spdl_async.testing import FakeDevice

pytest.importorskip("torch")

import torch

from spdl_async.device._cpu import CpuDevice
from spdl_async.device._cuda import CudaDevice
from spdl_async.device._mps import MpsDevice

pytestmark = pytest.mark.torch


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that there are so many; nothing that makes a context may be called."""

    def forbidden(*args: object) -> Any:
        raise AssertionError("this would make a context")

    def pretend(count: int, built: bool = True) -> None:
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        for name in ("is_available", "current_device", "init", "_lazy_init", "set_device"):
            monkeypatch.setattr(torch.cuda, name, forbidden)

    return pretend


def refused(device: Any) -> str:
    with pytest.raises(BuildError) as caught:
        resolve(device)
    return str(caught.value)


def test_a_back_end_is_used_as_it_is() -> None:
    fake = FakeDevice()
    assert isinstance(fake, DeviceBackend)
    assert resolve(fake)() is fake


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")])
def test_the_cpu_is_always_there(device: Any) -> None:
    backend = resolve(device)()
    assert isinstance(backend, CpuDevice)
    assert isinstance(backend, DeviceBackend)
    assert backend.name == "cpu"


@pytest.mark.parametrize("device", ["cuda:1", torch.device("cuda", 1)])
def test_a_gpu_with_an_index_is_that_one(gpus: Any, device: Any) -> None:
    gpus(2)
    backend = resolve(device)()
    assert isinstance(backend, CudaDevice)
    assert isinstance(backend, DeviceBackend)
    assert backend.name == "cuda:1"
    assert backend.device == torch.device("cuda", 1)


@pytest.mark.parametrize("device", ["cuda", torch.device("cuda")])
def test_without_an_index_it_is_the_current_one_when_the_run_starts(
    gpus: Any, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(4)
    make = resolve(device)
    for current in (3, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
        assert make().name == f"cuda:{current}"


def test_a_torch_without_cuda_is_named(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(0, built=False)
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    message = refused("cuda")
    assert message.startswith(
        'to_device(device="cuda"): this torch (2.13.0+cpu) is built without CUDA'
    )
    assert "install a build with it" in message
    assert 'use device="cpu"' in message


def test_cuda_without_a_gpu_is_refused_with_what_torch_says(
    gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(0)
    message = refused("cuda")
    assert "finds no GPU: the driver is missing or too old (see nvidia-smi)" in message
    assert "CUDA_VISIBLE_DEVICES" in message

    def count() -> int:
        warnings.warn("CUDA initialization: the driver is too old", stacklevel=1)
        return 0

    monkeypatch.setattr(torch.cuda, "device_count", count)
    assert refused("cuda:0").endswith("torch says: CUDA initialization: the driver is too old")


@pytest.mark.parametrize(
    ("count", "device", "told"),
    [
        (1, "cuda:1", "there is 1 GPU, cuda:0"),
        (2, torch.device("cuda", 2), "there are 2 GPUs, the last cuda:1"),
        (64, "cuda:300", "there are 64 GPUs, the last cuda:63"),  # torch.device makes 44 of 300
    ],
)
def test_an_index_that_is_not_there_is_refused_with_how_many_are(
    gpus: Any, count: int, device: Any, told: str
) -> None:
    gpus(count)
    assert told in refused(device)


@pytest.mark.parametrize("device", ["mps", "mps:0", torch.device("mps")])
def test_mps_where_it_is(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    backend = resolve(device)()
    assert isinstance(backend, MpsDevice)
    assert isinstance(backend, DeviceBackend)
    assert not backend.asynchronous


def test_mps_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: False)
    assert "is built without MPS" in refused("mps")
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert "MPS is not available: it needs a Mac" in refused("mps")


@pytest.mark.parametrize(
    "device",
    ["cudda", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:01", " cuda", "", "xpu", "meta", "1"],
)
def test_other_names_are_refused_with_those_that_there_are(device: str) -> None:
    assert refused(device) == (
        f'to_device(device="{device}"): there is no copying to such a device: '
        'use "cuda", "cuda:1" (any index), "mps" or "cpu"'
    )


def test_other_kinds_of_torch_device_are_refused() -> None:
    assert refused(torch.device("meta")).startswith(
        "to_device(device=device(type='meta')): there is no"
    )


@pytest.mark.parametrize("device", ["cpu:1", "mps:1"])
def test_there_is_one_cpu_and_one_mps(device: str) -> None:
    assert f'use "{device[:3]}"' in refused(device)


@pytest.mark.parametrize("device", [0, None, True, 1.5, ["cuda"], FakeDevice])
def test_what_is_no_device_is_refused(device: Any) -> None:
    assert "a torch.device, or a DeviceBackend" in refused(device)


def test_without_torch_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert refused("cuda").endswith("pip install torch")
    assert "torch cannot be imported" in refused("cpu")


def test_the_interface_is_there_without_torch() -> None:
    code = (
        "import sys; from spdl_async.device import _resolve; assert 'torch' not in sys.modules\n"
        "from spdl_async.testing import FakeDevice; _resolve.resolve(FakeDevice())()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
