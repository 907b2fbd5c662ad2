"""From the name of a device to what copies to it, with a clear error where there is none.

Nothing here makes a context on a GPU: ``device_count`` asks NVML where it can. What is returned is called
when a run starts, in the thread that starts it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spdl_async.device._backend import DeviceBackend
from spdl_async.errors import BuildError

if TYPE_CHECKING:
    import torch

CHOICES = '"cuda", "cuda:1" (any index), "mps" or "cpu"'
ELSE_CPU = 'or use device="cpu"'


def resolve(device: str | torch.device | DeviceBackend) -> Callable[[], DeviceBackend]:
    """Check that there is such a device, and return what makes the back-end of a run.

    Args:
        device: ``"cuda"`` (the current device of the thread that calls what is returned), ``"cuda:1"``,
            ``"mps"``, ``"cpu"``, a `torch.device`, or a back-end, which is used as it is.

    Raises:
        BuildError: there is no such device, or torch is missing or cannot use it; says what to do.
    """
    where = f"to_device(device={_shown(device)})"
    if isinstance(device, DeviceBackend):
        return lambda: device
    try:
        import torch
    except ImportError as error:
        raise BuildError(
            f"{where}: torch cannot be imported ({error}): pip install torch"
        ) from error
    if not isinstance(device, (str, torch.device)):
        raise BuildError(f"{where}: a device is {CHOICES}, a torch.device, or a DeviceBackend")
    parts = re.fullmatch(r"([a-z]+)(?::(0|[1-9][0-9]*))?", str(device))
    if parts is None or parts[1] not in ("cuda", "mps", "cpu"):
        raise BuildError(f"{where}: there is no copying to such a device: use {CHOICES}")
    index = None if parts[2] is None else int(parts[2])
    if parts[1] == "cuda":
        return _cuda(torch, index, where)
    if index:
        raise BuildError(f'{where}: there is one device of this kind: use "{parts[1]}"')
    return _cpu() if parts[1] == "cpu" else _mps(torch, where)


def _cuda(torch: Any, index: int | None, where: str) -> Callable[[], DeviceBackend]:
    version = torch.__version__
    if not torch.backends.cuda.is_built():
        raise BuildError(
            f"{where}: this torch ({version}) is built without CUDA: install a build with it "
            f"(https://pytorch.org/get-started), {ELSE_CPU}"
        )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        # Not is_available: that starts the driver, after which a forked child cannot use CUDA.
        count = torch.cuda.device_count()
    if not count:
        why = "".join(f"; torch says: {warning.message}" for warning in said)
        raise BuildError(
            f"{where}: torch {version} finds no GPU: the driver is missing or too old (see nvidia-smi), or "
            f"CUDA_VISIBLE_DEVICES hides them all; mend that, {ELSE_CPU}{why}"
        )
    if index is not None and index >= count:
        there = (
            "there is 1 GPU, cuda:0"
            if count == 1
            else f"there are {count} GPUs, the last cuda:{count - 1}"
        )
        raise BuildError(f"{where}: {there} (CUDA_VISIBLE_DEVICES may hide others)")
    from spdl_async.device._cuda import CudaDevice

    def make() -> DeviceBackend:
        current = torch.cuda.current_device() if index is None else index
        return CudaDevice(torch.device("cuda", current))

    return make


def _mps(torch: Any, where: str) -> Callable[[], DeviceBackend]:
    if not torch.backends.mps.is_built():
        raise BuildError(
            f"{where}: this torch ({torch.__version__}) is built without MPS: use a Mac, {ELSE_CPU}"
        )
    if not torch.backends.mps.is_available():
        raise BuildError(
            f"{where}: MPS is not available: it needs a Mac with a GPU, and a macOS that "
            f"torch {torch.__version__} supports; use such a machine, {ELSE_CPU}"
        )
    from spdl_async.device._mps import MpsDevice

    return MpsDevice


def _cpu() -> Callable[[], DeviceBackend]:
    from spdl_async.device._cpu import CpuDevice

    return CpuDevice


def _shown(device: object) -> str:
    if isinstance(device, str):
        return f'"{device}"'
    return repr(device)
