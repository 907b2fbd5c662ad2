"""Copies to a device and back: pinned, on a side stream, handed over without a host synchronisation."""

from __future__ import annotations

from spdl_async.device._backend import DeviceBackend as DeviceBackend

__all__ = ["DeviceBackend"]
