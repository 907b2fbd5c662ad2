"""Copies back to the host: queued on a side stream, waited for off the loop, handed on when complete."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

import torch

from spdl_async.device._dense import is_dense
from spdl_async.device._in_flight import backends_in, claim, enter
from spdl_async.device._only import Only
from spdl_async.device._resolve import resolve
from spdl_async.device._tensors import tensors_anywhere
from spdl_async.device._tree import find

if TYPE_CHECKING:
    from spdl_async.device._backend import DeviceBackend


def _is_tensor(path: tuple[Any, ...], value: Any) -> bool:  # noqa: ARG001 -- the form of all
    return isinstance(value, torch.Tensor)


class HostCopier:
    """Copies what a model made back to the host, in one thread; what it hands on is complete."""

    def __init__(self, *, only: Only | None, pin: bool, in_own_thread: bool) -> None:
        self._only = Only(ask=_is_tensor) if only is None else only
        self._pin = pin
        self._in_own_thread = in_own_thread
        self._backends: dict[str, DeviceBackend] = {}  # of tensors that come without an event
        self._streams: dict[int, Any] = {}
        self._batches = 0
        self._bytes = 0
        self._waited = 0.0

    def __call__(self, batch: Any, /) -> Any:
        """Copy a batch, and wait for that; in this thread, which has nothing else to do."""
        backends = backends_in(batch)
        if not backends:
            backends = self._backends_of(batch)
        ends = []
        for backend in backends:
            batch, end = self._queued(batch, backend)
            if end is not None:
                ends.append((backend, end))
        began = clock()
        for backend, end in ends:
            backend.synchronize(end)
        if backends:
            self._batches += 1
            self._waited += clock() - began
        return batch

    def _backends_of(self, batch: Any) -> list[DeviceBackend]:
        """Return the devices of tensors that come from an op which has put them there itself."""
        found: dict[str, DeviceBackend] = {}
        for tensor in tensors_anywhere(batch):
            name = str(tensor.device)
            if tensor.device.type != "cpu" and name not in found:
                known = self._backends.get(name)
                found[name] = self._backends[name] = known or resolve(tensor.device)()
        return list(found.values())

    def _queued(self, batch: Any, backend: DeviceBackend) -> tuple[Any, Any]:
        """Queue the copy of what lies on one device; return the batch and what completes with it."""
        if self._in_own_thread:
            enter(backend)
        if not backend.asynchronous:
            return self._replaced(claim(batch), backend, None), None
        stream = self._streams.get(id(backend))
        if stream is None:
            stream = self._streams[id(backend)] = backend.new_stream()
        # Without an event of its own, a result is behind what this thread's stream has queued.
        made = None if backends_in(batch) else backend.record(backend.current_stream())
        with backend.on_stream(stream):
            if made is not None:
                backend.wait(stream, made)
            batch = self._replaced(claim(batch), backend, stream)
            return batch, backend.record(stream)

    def _replaced(self, batch: Any, backend: DeviceBackend, stream: Any) -> Any:
        found = find(batch, self._only, strict=False)
        values: list[Any] = []
        for leaf in found.leaves:
            if leaf.kind == "object" or not backend.is_here(leaf.tensor):
                values.append(leaf.source)
            elif leaf.kind == "odd":
                values.append(leaf.tensor.cpu())
            else:
                values.append(self._copied(leaf.tensor, backend, stream))
        return found.rebuild(values)

    def _copied(self, tensor: torch.Tensor, backend: DeviceBackend, stream: Any) -> torch.Tensor:
        if stream is None:
            self._bytes += tensor.nbytes
            return tensor.cpu()
        backend.keep_for(tensor, stream)
        source = tensor if is_dense(tensor) else tensor.contiguous()
        size = source.nbytes
        memory = (
            backend.pinned(size) if self._pin and size else torch.empty(size, dtype=torch.uint8)
        )
        target = memory[:size].view(source.dtype).as_strided(source.shape, source.stride())
        if size:
            backend.copy(target, source)
        self._bytes += size
        return target

    def statistics(self) -> Mapping[str, object]:
        """Return what was copied, and how long that was waited for."""
        return {
            "batches_copied": self._batches,
            "bytes_copied": self._bytes,
            "waited_seconds": self._waited,
        }

    def close(self) -> None:
        """Let go of the streams; every copy was waited for."""
        self._streams.clear()
