"""Page-locked buffers through which batches go to a device: few, bounded, used again and again.

To lock pages takes milliseconds and holds up the whole process, so it is not done for each batch. A buffer
that was copied from is free when the copy's event has completed, not before: the device reads from it
until then.
"""

from __future__ import annotations

from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from spdl_async.device._backend import DeviceBackend

LEAST_BYTES = 1 << 16


class Buffer:
    """Page-locked memory, and the event behind which it may be written to again."""

    __slots__ = ("event", "memory", "size")

    def __init__(self, memory: torch.Tensor, size: int) -> None:
        self.memory = memory
        self.size = size
        self.event: Any = None


class StagingPool:
    """The buffers of one copying thread.

    Args:
        backend: whose memory it is.
        most: how many buffers there may be.
        max_bytes: how much they may take together.

    Attributes:
        held: bytes in buffers now.
        most_held: the most that it was.
        lost: whether a buffer was given up.
        waits: how often a copy had to wait for one.
        waited: seconds in that.
        oversized: batches that were larger than ``max_bytes`` and got memory for themselves.
        allocated: how often memory was locked.
    """

    def __init__(self, backend: DeviceBackend, most: int, max_bytes: int) -> None:
        self._backend = backend
        self._most = most
        self._max_bytes = max_bytes
        self._free: list[Buffer] = []
        self._lost: list[Buffer] = []
        self._used: list[Buffer] = []  # in the order in which they were lent
        self.held = 0
        self.most_held = 0
        self.waits = 0
        self.waited = 0.0
        self.oversized = 0
        self.allocated = 0

    @property
    def lost(self) -> bool:
        return bool(self._lost)

    def lend(self, size: int) -> Buffer:
        """Return a buffer of at least ``size`` bytes; wait for one where all are in use.

        Raises:
            what ``backend.pinned`` raises: there is no memory.
        """
        # torch's allocator of page-locked memory gives powers of two anyway.
        wanted = max(LEAST_BYTES, 1 << (size - 1).bit_length())
        if wanted > self._max_bytes:
            self.oversized += 1
            return self._new(size, kept=False)
        while True:
            self._settle()
            fitting = [buffer for buffer in self._free if buffer.size >= size]
            if fitting:
                buffer = min(fitting, key=lambda each: each.size)
                self._free.remove(buffer)
                self._used.append(buffer)
                return buffer
            # Where memory is short and one that is large enough is in use, it is cheaper to wait for that
            # than to lock memory anew, now for this size and then for another.
            there_is_one = any(buffer.size >= size for buffer in self._used)
            if self._make_room(wanted, patient=there_is_one):
                return self._new(wanted, kept=True)
            self._wait()

    def give_back(self, buffer: Buffer, event: Any) -> None:
        """Hear that a buffer is copied from, until ``event``; it may be lent again after that."""
        buffer.event = event

    def forget(self, buffer: Buffer) -> None:
        """Give up a buffer of which nobody knows any more until when it is read."""
        self._used.remove(buffer)
        self.held -= buffer.size
        self._lost.append(buffer)  # the device may still read from it

    def close(self) -> None:
        """Wait for the copies from all buffers, and let go of these.

        The caller has waited for what is queued on the stream, where it has given up a buffer.
        """
        for buffer in self._used:
            if buffer.event is not None:
                self._backend.synchronize(buffer.event)
        self._used.clear()
        self._lost.clear()
        self._free.clear()
        self.held = 0

    def _new(self, size: int, *, kept: bool) -> Buffer:
        buffer = Buffer(self._backend.pinned(size), size)
        self.allocated += 1
        self._used.append(buffer)
        if kept:
            self.held += size
            self.most_held = max(self.most_held, self.held)
        else:
            buffer.size = 0  # not to be lent again
        return buffer

    def _make_room(self, wanted: int, *, patient: bool) -> bool:
        """Drop free buffers that are too small, as many as needed; tell whether there is room."""
        self._free.sort(key=lambda buffer: buffer.size, reverse=True)
        while True:
            kept = len(self._free) + sum(1 for buffer in self._used if buffer.size)
            if kept < self._most and self.held + wanted <= self._max_bytes:
                return True
            short = self.held + wanted > self._max_bytes
            if not self._free or (short and patient):
                return False
            self.held -= self._free.pop().size

    def _settle(self) -> None:
        """Find buffers whose copies are done."""
        used: list[Buffer] = []
        for buffer in self._used:
            if buffer.event is None or not self._backend.is_done(buffer.event):
                used.append(buffer)
                continue
            buffer.event = None
            if buffer.size:
                self._free.append(buffer)
        self._used = used

    def _wait(self) -> None:
        """Wait for the copy that was queued first."""
        began = clock()
        self.waits += 1
        first = next(buffer for buffer in self._used if buffer.event is not None)
        self._backend.synchronize(first.event)
        self.waited += clock() - began
