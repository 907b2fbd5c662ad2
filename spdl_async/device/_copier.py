"""Copies of batches to a device: staged in page-locked memory, queued on a side stream, never waited for.

The tensors of a batch are laid into one staging buffer, one after the other. The large ones are copied from
there one by one, while the next is being laid; the small ones together, into one block of the device's memory
of which they are views.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable, Mapping
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

from spdl_async.device._counts import Counts
from spdl_async.device._dense import as_bytes, in_c_order, is_dense, lay
from spdl_async.device._in_flight import InFlight, backends_in, claim, enter, sent
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

_NEVER_FREED: list[Any] = []


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
        # What copies read from of which it is not known when they are done.
        self._unknown: list[list[Any]] = []
        self._depth = depth
        self._warned = False
        self._counts = Counts()

    def __call__(self, batch: Any, /) -> Any:
        """Queue the copy of a batch.

        Raises:
            DeviceError: the device, or the host, has no memory for it; or a field is no tensor.
        """
        backend = self._backend
        others = [one for one in backends_in(batch) if one is not backend]
        batch = claim(batch)  # of a copy above, to another device or of other fields
        if self._in_own_thread:
            enter(backend)
        found = find(batch, self._only, strict=self._first)
        self._first = False
        if not found.leaves:
            return sent(batch, others)
        try:
            if not backend.asynchronous:
                return sent(self._moved_now(found), others)
            if self._stream is None:
                self._stream = backend.new_stream()
            self._settle()
            self._wait_for_turn()
            made_on = backend.current_stream()
            with backend.on_stream(self._stream):
                copied = self._queued(found, made_on)
            return sent(copied, others)
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
            "slot_waits": counts.waits + (0 if staging is None else staging.waits),
            "slot_wait_seconds": counts.waited + (0.0 if staging is None else staging.waited),
            "staging_bytes": 0 if staging is None else staging.held,
            "most_staging_bytes": 0 if staging is None else staging.most_held,
            "staging_allocations": 0 if staging is None else staging.allocated,
            "oversized_batches": 0 if staging is None else staging.oversized,
            "pageable_batches": counts.pageable,
        }

    def close(self) -> None:
        """Wait for the copies under way: what they read from must live until then."""
        under_way, self._under_way = self._under_way, collections.deque()
        try:
            for _, end, _, _ in under_way:
                self._backend.synchronize(end)
            if self._unknown or (self._staging is not None and self._staging.lost):
                self._backend.synchronize(self._backend.record(self._stream))
            if self._staging is not None:
                self._staging.close()
            self._account(under_way)
        except Exception as error:  # noqa: BLE001 -- nobody is left who could be told by an exception
            # The device may read what it was given for as long as it likes: it is never freed.
            _NEVER_FREED.append((under_way, self._unknown, self._staging))
            logger.warning(
                "to_device: %s failed at the end of a run (%s: %s); the host memory that its last copies "
                "read from is kept until the process ends",
                self._backend.name,
                type(error).__name__,
                error,
            )

    # Making copies

    def _wait_for_turn(self) -> None:
        """Wait until fewer copies are under way than may be: they hold on to memory of the host.

        Raises:
            what ``backend.synchronize`` raises.
        """
        if len(self._under_way) <= self._depth:
            return
        began = clock()
        self._counts.waits += 1
        while len(self._under_way) > self._depth:
            self._backend.synchronize(self._under_way[0][1])
            self._settle()
        self._counts.waited += clock() - began

    def _queued(self, found: Found, made_on: Any) -> Any:
        backend = self._backend
        values: list[Any] = [None] * len(found.leaves)
        staged: list[tuple[int, torch.Tensor]] = []
        tensors: list[torch.Tensor] = []
        reads: list[Any] = []
        lent: list[Buffer] = []
        copied = 0
        start = backend.record(self._stream)
        behind = False
        try:
            for number, leaf in enumerate(found.leaves):
                tensor = leaf.tensor
                here = tensor is not None and backend.is_here(tensor)
                if not behind and (here or leaf.kind != "tensor"):
                    # What an op above has put on the device itself is there when its stream is so far.
                    behind = True
                    backend.wait(self._stream, backend.record(made_on))
                if here and leaf.kind == "tensor":
                    values[number] = tensor
                    tensors.append(tensor)
                elif leaf.kind != "tensor" or tensor.device.type != "cpu":
                    values[number] = moved = self._moved(leaf, reads)
                    tensors += tensors_in(moved, backend)
                    copied += 0 if here else _size(leaf)
                elif backend.is_pinned(tensor) and is_dense(tensor):
                    values[number] = block = backend.empty(tensor)
                    tensors.append(block)
                    reads.append(tensor)
                    backend.copy(block, tensor)
                    copied += tensor.nbytes
                else:
                    staged.append((number, tensor))
                    copied += tensor.nbytes
            if staged:
                tensors += self._stage(staged, values, reads, lent)
            end = backend.record(self._stream)
        except BaseException:
            self._keep(reads, lent)
            raise
        self._give_back(lent, end)
        self._under_way.append((start, end, copied, reads))
        self._counts.batches += bool(staged or reads)
        self._counts.bytes += copied
        return InFlight(found.rebuild(values), backend, end, tensors, self._counts.claimed)

    def _give_back(self, lent: list[Buffer], event: Any) -> None:
        """Give staging buffers back, which are read from until an event."""
        for buffer in lent:
            assert self._staging is not None
            self._staging.give_back(buffer, event)

    def _keep(self, reads: list[Any], lent: list[Buffer]) -> None:
        """Keep what copies of a batch that failed may still read from."""
        if not reads and not lent:
            return
        try:
            event = self._backend.record(self._stream)
        except Exception:  # noqa: BLE001 -- what has failed before is the one to be told
            self._unknown.append(reads)
            for buffer in lent:
                assert self._staging is not None
                self._staging.forget(buffer)
        else:
            self._under_way.append((event, event, 0, reads))
            self._give_back(lent, event)

    def _stage(
        self,
        staged: list[tuple[int, torch.Tensor]],
        values: list[Any],
        reads: list[Any],
        lent: list[Buffer],
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
        if not at:  # tensors without elements
            for number, tensor in staged:
                values[number] = self._backend.empty(tensor)
            return [values[number] for number, _ in staged]
        buffer = self._buffer(at)
        if buffer is None:
            return self._copy_pageable(staged, values, reads)
        lent.append(buffer)
        blocks = self._copy_small(small, small_bytes, offsets, buffer.memory, values)
        for number, tensor in large:
            values[number] = block = self._backend.empty(in_c_order(tensor))
            blocks.append(block)
            if tensor.nbytes:
                part = buffer.memory[offsets[number] : offsets[number] + tensor.nbytes]
                lay(tensor, part)
                self._backend.copy(as_bytes(block), part)
        return blocks

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
            reads.append(source)
            if source.nbytes:
                self._backend.copy(block, source)
        return blocks

    def _buffer(self, size: int) -> Buffer | None:
        """Return a staging buffer; ``None`` where there is to be none, or no memory for one."""
        if self._staging is None:
            return None
        try:
            return self._staging.lend(size)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            self._warn_of_pageable(f"a batch of {size:,} bytes", error)
            return None

    def _warn_of_pageable(self, what: str, error: RuntimeError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "to_device: no page-locked memory for %s (%s); it is copied from pageable memory, which is "
                "slower and does not overlap",
                what,
                error,
            )

    def _moved(self, leaf: Leaf, reads: list[Any]) -> Any:
        """Move what brings its own ``to``; note what it is copied from."""
        source = leaf.tensor if leaf.kind != "object" else leaf.thing
        pins = leaf.kind == "object" and callable(getattr(source, "pin_memory", None))
        try:
            if pins and self._staging is not None and self._backend.asynchronous:
                source = self._pinned(source)
            reads.append(source)
            return self._backend.move(source)
        except self._backend.out_of_memory:
            raise
        except Exception as error:
            if leaf.kind == "odd":
                raise DeviceError(
                    f"{leaf.where}, of layout {source.layout} and dtype {source.dtype}, cannot be moved "
                    f"to {self._backend.name} ({error}); make it dense above to_device, or leave it out by "
                    f"only=…",
                    field=leaf.where,
                ) from error
            error.add_note(f"spdl_async: raised by {leaf.where}, a {type(source).__name__}")
            raise

    def _pinned(self, thing: Any) -> Any:
        """Return a thing that pins itself, pinned; or as it is, where there is no memory for that."""
        try:
            return thing.pin_memory()
        except RuntimeError as error:  # what cudaHostAlloc's failure is
            self._counts.pageable += 1
            self._warn_of_pageable(f"a {type(thing).__name__}", error)
            return thing

    def _moved_now(self, found: Found) -> Any:
        """Move without streams: what is there already stays as it is."""
        values, moved, reads = list[Any](), 0, list[Any]()
        for leaf in found.leaves:
            if leaf.kind != "object" and self._backend.is_here(leaf.tensor):
                values.append(leaf.tensor)
            else:
                values.append(self._moved(leaf, reads))
                moved += _size(leaf)
        self._counts.batches += bool(reads)
        self._counts.bytes += moved
        return found.rebuild(values)

    def _settle(self) -> None:
        """Let go of what copies that are done by now have read from."""
        under_way = self._under_way
        done = []
        while under_way and self._backend.is_done(under_way[0][1]):
            done.append(under_way.popleft())
        self._account(done)

    def _account(self, done: Iterable[tuple[Any, Any, int, list[Any]]]) -> None:
        """Count how long copies took."""
        for start, end, size, _ in done:
            if size:
                self._counts.seconds += self._backend.seconds_between(start, end)
                self._counts.timed_bytes += size


def _size(leaf: Leaf) -> int:
    return leaf.tensor.nbytes if leaf.kind == "tensor" else 0
