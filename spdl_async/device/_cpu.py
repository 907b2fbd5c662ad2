"""The CPU as the device, for machines without another one and for tests."""

from __future__ import annotations

import torch

from spdl_async.device._synchronous import SynchronousDevice


class CpuDevice(SynchronousDevice):
    """The memory that tensors of the host lie in already, so that none is copied."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
