"""Copies back to the host: queued on a side stream, waited for off the loop, handed on when complete."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

import torch

from spdl_async.device._dense import is_dense
from spdl_async.device._fetching import Fetching
from spdl_async.device._in_flight import backends_in, claim, enter, sent
from spdl_async.device._only import Only
from spdl_async.device._resolve import resolve
from spdl_async.device._tensors import tensors_anywhere, tensors_in
from spdl_async.device._tree import find
from spdl_async.errors import DeviceError

if TYPE_CHECKING:
    from spdl_async.device._backend import DeviceBackend


logger = logging.getLogger("spdl_async")


class HostCopier:
    """Copies what a model made back to the host, in one thread; what it hands on is complete."""

    def __init__(self, *, only: Only | None, pin: bool, in_own_thread: bool) -> None:
        self._only = only
        self._some_stay = only is not None
        self._warned = False
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
        # What stays on the device is still to be told of the streams that will use it.
        return sent(batch, backends) if self._some_stay else batch

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
        # What holds nothing of the device stays the same object, tensors of the host in it or not.
        only = self._only or Only(ask=lambda _, value: bool(tensors_in(value, backend)))
        found = find(batch, only, strict=False)
        values: list[Any] = []
        for leaf in found.leaves:
            if leaf.kind == "object":
                values.append(self._fetched(leaf.thing, backend, stream))
            elif not backend.is_here(leaf.tensor):
                values.append(leaf.source)
            elif leaf.kind == "odd":
                values.append(leaf.tensor.cpu())
            else:
                values.append(self._copied(leaf.tensor, backend, stream))
        batch = found.rebuild(values)
        if self._only is None and (left := tensors_in(batch, backend)):
            raise DeviceError(
                f"to_host: {len(left)} tensors are still on {backend.name}, in objects without a to() that "
                f"moves them; give their class one, or return lists, dicts or dataclasses above to_host"
            )
        return batch

    def _fetched(self, thing: Any, backend: DeviceBackend, stream: Any) -> Any:
        """Return a thing that moves itself; it may look at its tensors, so each is waited for."""
        if not tensors_in(thing, backend) or not hasattr(thing, "to"):
            return thing

        def fetch(tensor: torch.Tensor) -> torch.Tensor:
            copied = self._copied(tensor.detach().resolve_conj().resolve_neg(), backend, stream)
            if stream is not None:
                backend.synchronize(backend.record(stream))
            return copied

        with Fetching(backend, fetch):
            return thing.to("cpu")

    def _copied(self, tensor: torch.Tensor, backend: DeviceBackend, stream: Any) -> torch.Tensor:
        if stream is None:
            self._bytes += tensor.nbytes
            return tensor.cpu()
        size = tensor.nbytes
        memory = self._memory(backend, size)[:size].view(tensor.dtype)
        # One that is not dense is made so by the device, on its way.
        target = (
            memory.as_strided(tensor.shape, tensor.stride())
            if is_dense(tensor)
            else memory.view(tensor.shape)
        )
        if size:
            backend.copy(target, tensor)
        self._bytes += size
        return target

    def _memory(self, backend: DeviceBackend, size: int) -> torch.Tensor:
        """Return memory of the host, page-locked where that can be had."""
        if self._pin and size:
            try:
                return backend.pinned(size)
            except RuntimeError as error:  # torch.OutOfMemoryError is one
                if not self._warned:
                    self._warned = True
                    logger.warning(
                        "to_host: no page-locked memory for %s bytes (%s); results are copied to pageable "
                        "memory, which is slower",
                        f"{size:,}",
                        error,
                    )
        return torch.empty(size, dtype=torch.uint8)

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
