"""The GPU of Apple's machines.

torch has one MPS stream, which all threads use, and ``torch.mps.Event`` records on it alone. So a copy cannot
run beside the model's work in a stream of its own, and needs no event: what is queued later sees it. It waits
until the host's memory has been read.
"""

from __future__ import annotations

import torch

from spdl_async.device._synchronous import SynchronousDevice


class MpsDevice(SynchronousDevice):
    """The one MPS device."""

    def __init__(self) -> None:
        super().__init__(torch.device("mps", 0))
