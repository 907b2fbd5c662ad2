"""Copies to a device and back: pinned, on a side stream, handed over without a host synchronisation."""

from __future__ import annotations

from spdl_async.device._backend import DeviceBackend as DeviceBackend
from spdl_async.device._inference import inference as inference
from spdl_async.device._pinned import pinned_empty as pinned_empty

__all__ = ["DeviceBackend", "inference", "pinned_empty"]
