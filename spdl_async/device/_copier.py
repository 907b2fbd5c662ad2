"""Copies of batches to a device: staged in page-locked memory, queued on a side stream, never waited for.

The tensors of a batch are laid into one staging buffer, one after the other. The large ones are copied from
there one by one, while the next is being laid; the small ones together, into one block of the device's memory
of which they are views.
"""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spdl_async.device._dense import as_bytes, in_c_order, is_dense, lay
from spdl_async.device._in_flight import InFlight, enter
from spdl_async.device._leaves import Leaf
from spdl_async.device._only import Only
from spdl_async.device._staging import Buffer, StagingPool
from spdl_async.device._tensors import tensors_in
from spdl_async.device._tree import Found, find
from spdl_async.errors import DeviceError

if TYPE_CHECKING:
    import torch

    from spdl_async.device._backend import DeviceBackend

SMALL_BYTES = 1 << 18
ALIGNMENT = 256

logger = logging.getLogger("spdl_async")


class Counts:
    """What the copies of a run came to; claims count from any thread."""

    def __init__(self) -> None:
        self.batches = 0
        self.bytes = 0
        self.seconds = 0.0
        self.timed_bytes = 0
        self.pageable = 0
        self._claimed = 0
        self._ready = 0
        self._lock = threading.Lock()

    def claimed(self, ready: bool) -> None:
        """Count a batch that was taken, and whether its copy was done by then."""
        with self._lock:
            self._claimed += 1
            self._ready += ready

    @property
    def overlapped(self) -> float:
        """The share of the batches taken whose copy was done by then."""
        return self._ready / self._claimed if self._claimed else 0.0


class Copier:
    """Copies the batches of one run, in one thread."""

    def __init__(
        self,
        backend: DeviceBackend,
        *,
        only: Only | None,
        depth: int,
        staging_bytes: int | None,
        in_own_thread: bool,
    ) -> None:
        self._backend = backend
        self._only = only
        self._in_own_thread = in_own_thread
        self._first = True
        self._stream: Any = None
        self._staging = (
            None if staging_bytes is None else StagingPool(backend, depth + 1, staging_bytes)
        )
        # (start, end, bytes, what the device reads from), in the order in which they were queued.
        self._under_way: collections.deque[tuple[Any, Any, int, list[Any]]] = collections.deque()
        self._counts = Counts()

    def __call__(self, batch: Any, /) -> Any:
        """Queue the copy of a batch.

        Raises:
            DeviceError: the device, or the host, has no memory for it; or a field is no tensor.
        """
        backend = self._backend
        if self._in_own_thread:
            enter(backend)
        found = find(batch, self._only, strict=self._first)
        self._first = False
        if not found.leaves:
            return batch
        try:
            if not backend.asynchronous:
                return self._done(found)
            if self._stream is None:
                self._stream = backend.new_stream()
            self._settle()
            with backend.on_stream(self._stream):
                return self._queued(found)
        except backend.out_of_memory as error:
            size = sum(_size(leaf) for leaf in found.leaves)
            raise DeviceError(
                f"{backend.name} has no memory for a batch of {size:,} bytes in {len(found.leaves)} "
                f"tensors ({error}); make batches smaller, or depth="
            ) from error

    def statistics(self) -> Mapping[str, object]:
        """Return what was copied, and at what cost."""
        counts, staging = self._counts, self._staging
        seconds = counts.seconds
        return {
            "batches_copied": counts.batches,
            "bytes_copied": counts.bytes,
            "gigabytes_per_second": counts.timed_bytes / seconds / 1e9 if seconds else 0.0,
            "overlapped": counts.overlapped,
            "slot_waits": 0 if staging is None else staging.waits,
            "slot_wait_seconds": 0.0 if staging is None else staging.waited,
            "staging_bytes": 0 if staging is None else staging.held,
            "staging_allocations": 0 if staging is None else staging.allocated,
            "oversized_batches": 0 if staging is None else staging.oversized,
            "pageable_batches": counts.pageable,
        }

    def close(self) -> None:
        """Wait for the copies under way: what they read from must live until then."""
        for _, end, _, _ in self._under_way:
            self._backend.synchronize(end)
        self._settle()
        if self._staging is not None:
            self._staging.close()

    # Making copies

    def _queued(self, found: Found) -> Any:
        backend = self._backend
        values: list[Any] = [None] * len(found.leaves)
        staged: list[tuple[int, torch.Tensor]] = []
        reads: list[Any] = []
        copied = 0
        start = backend.record(self._stream)
        for number, leaf in enumerate(found.leaves):
            if leaf.kind == "tensor" and backend.is_here(leaf.tensor):
                values[number] = leaf.tensor
            elif leaf.kind != "tensor" or leaf.tensor.device.type != "cpu":
                values[number], source = self._moved(leaf)
                reads.append(source)
                copied += _size(leaf)
            elif backend.is_pinned(leaf.tensor) and is_dense(leaf.tensor):
                values[number] = backend.empty(leaf.tensor)
                backend.copy(values[number], leaf.tensor)
                reads.append(leaf.tensor)
                copied += leaf.tensor.nbytes
            else:
                staged.append((number, leaf.tensor))
                copied += leaf.tensor.nbytes
        owned = self._stage(staged, values, reads) if staged else []
        end = backend.record(self._stream)
        self._under_way.append((start, end, copied, reads))
        self._counts.batches += 1
        self._counts.bytes += copied
        ours = [values[n] for n, leaf in enumerate(found.leaves) if values[n] is not leaf.tensor]
        packed = {id(values[number]) for number, _ in staged}
        tensors = owned + tensors_in([v for v in ours if id(v) not in packed], backend)
        return InFlight(found.rebuild(values), backend, end, tensors, self._counts.claimed)

    def _stage(
        self, staged: list[tuple[int, torch.Tensor]], values: list[Any], reads: list[Any]
    ) -> list[torch.Tensor]:
        """Copy tensors through a staging buffer; return the blocks of the device's memory."""
        small = [pair for pair in staged if pair[1].nbytes <= SMALL_BYTES]
        if len(small) == 1:
            small = []
        packed = {number for number, _ in small}
        large = [pair for pair in staged if pair[0] not in packed]
        offsets, at = dict[int, int](), 0
        for number, tensor in small + large:
            offsets[number] = at
            at += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        small_bytes = offsets[large[0][0]] if large else at
        buffer = self._buffer(at) if at else None
        if buffer is None:
            return self._copy_pageable(staged, values, reads)
        try:
            blocks = self._copy_small(small, small_bytes, offsets, buffer.memory, values)
            for number, tensor in large:
                values[number] = block = self._backend.empty(in_c_order(tensor))
                blocks.append(block)
                if tensor.nbytes:
                    part = buffer.memory[offsets[number] : offsets[number] + tensor.nbytes]
                    lay(tensor, part)
                    self._backend.copy(as_bytes(block), part)
        except BaseException:
            self._give_back(buffer)
            raise
        self._give_back(buffer)
        return blocks

    def _give_back(self, buffer: Buffer) -> None:
        assert self._staging is not None
        try:
            event = self._backend.record(self._stream)
        except BaseException:
            self._staging.forget(buffer)
            raise
        self._staging.give_back(buffer, event)

    def _copy_small(
        self,
        small: list[tuple[int, torch.Tensor]],
        size: int,
        offsets: Mapping[int, int],
        memory: torch.Tensor,
        values: list[Any],
    ) -> list[torch.Tensor]:
        if not small:
            return []
        block = self._backend.empty_bytes(size)
        for number, tensor in small:
            at = offsets[number]
            lay(tensor, memory[at : at + tensor.nbytes])
            strides = tensor.stride() if is_dense(tensor) else None
            flat = block[at : at + tensor.nbytes].view(tensor.dtype)
            values[number] = (
                flat.view(tensor.shape)
                if strides is None
                else flat.as_strided(tensor.shape, strides)
            )
        if size:
            self._backend.copy(block, memory[:size])
        return [block]

    def _copy_pageable(
        self, staged: list[tuple[int, torch.Tensor]], values: list[Any], reads: list[Any]
    ) -> list[torch.Tensor]:
        """Copy without staging; the driver then waits for each copy, in this thread."""
        self._counts.pageable += 1
        blocks = []
        for number, tensor in staged:
            source = tensor if is_dense(tensor) else tensor.contiguous()
            values[number] = block = self._backend.empty(source)
            blocks.append(block)
            if source.nbytes:
                self._backend.copy(block, source)
            reads.append(source)
        return blocks

    def _buffer(self, size: int) -> Buffer | None:
        """Return a staging buffer; ``None`` where there is to be none, or no memory for one."""
        if self._staging is None:
            return None
        try:
            return self._staging.lend(size)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if not self._counts.pageable:
                logger.warning(
                    "to_device: no page-locked memory for a batch of %s bytes (%s); it is copied from "
                    "pageable memory, which is slower and does not overlap",
                    f"{size:,}",
                    error,
                )
            return None

    def _moved(self, leaf: Leaf) -> tuple[Any, Any]:
        """Move what brings its own ``to``; return the result, and what it was copied from."""
        source = leaf.tensor if leaf.kind != "object" else leaf.thing
        try:
            if (
                leaf.kind == "object"
                and self._staging is not None
                and callable(getattr(source, "pin_memory", None))
            ):
                source = source.pin_memory()
            return self._backend.move(source), source
        except Exception as error:
            error.add_note(f"spdl_async: raised by {leaf.where}, a {type(source).__name__}")
            raise

    def _done(self, found: Found) -> Any:
        """Copy without streams; what is there already stays as it is."""
        values, copied = list[Any](), 0
        for leaf in found.leaves:
            if leaf.kind == "object":
                values.append(self._backend.move(leaf.thing))
            elif self._backend.is_here(leaf.tensor):
                values.append(leaf.tensor)
            else:
                values.append(self._backend.move(leaf.tensor))
                copied += _size(leaf)
        self._counts.batches += 1
        self._counts.bytes += copied
        return found.rebuild(values)

    def _settle(self) -> None:
        """Let go of what copies that are done by now have read from."""
        under_way = self._under_way
        while under_way and self._backend.is_done(under_way[0][1]):
            start, end, size, _ = under_way.popleft()
            self._counts.seconds += self._backend.seconds_between(start, end)
            self._counts.timed_bytes += size


def _size(leaf: Leaf) -> int:
    return leaf.tensor.nbytes if leaf.kind == "tensor" else 0
