"""The memory of batches whose rows are decoded in place: who may write where, and when it is free again.

A *buffer* has room for one batch. Items are given its rows in their order, so that in the end row n of the
buffer is item n of the batch, and nothing is left to copy. When an item is lost on the way (it failed, or
was dropped), the items behind it that have a row already are one too far down; they are moved up when
the batch is complete, and the next new item gets a row of its own outside, so that all others are in their
place again. A loss costs as many copies of rows as items were on the way, and no hole is left.

The memory goes back for another batch when nobody can reach the array any more: neither the consumer, through
the batch or any view or tensor of it, nor a row that is still on its way. Reference counts tell.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Memory:
    """Arrays of one shape that are used again and again.

    Args:
        shape: of one batch.
        allocate: makes the memory; takes the shape and returns a numpy array or a CPU tensor.
        keep: how many unused ones are kept.
    """

    def __init__(self, shape: tuple[int, ...], allocate: Callable[..., Any] | None, keep: int):
        self.shape = shape
        self._allocate = allocate
        self._keep = keep
        # Appending and popping are atomic: leases end in whatever thread drops the last reference.
        self._unused: collections.deque[Any] = collections.deque()
        self._counts = collections.Counter(in_place=0, moved=0, copied=0, allocated=0)
        self._lock = threading.Lock()

    def count(self, **counts: int) -> None:
        """Add to the counts, of all runs together."""
        with self._lock:
            self._counts.update(counts)

    def counts(self) -> dict[str, int]:
        """Return the counts."""
        with self._lock:
            return dict(self._counts)

    def lend(self) -> NDArray[np.uint8]:
        """Return an array whose memory comes back when nothing refers to it any more."""
        try:
            memory = self._unused.pop()
        except IndexError:
            memory = self._new()
        array: NDArray[np.uint8] = np.asarray(Lease(memory, self))
        return array

    def take_back(self, memory: Any) -> None:
        """Keep it for the next batch, if there is room."""
        if len(self._unused) < self._keep:
            self._unused.append(memory)

    def _new(self) -> Any:
        self.count(allocated=1)
        if self._allocate is None:
            return np.empty(self.shape, np.uint8)
        memory = self._allocate(self.shape)
        array = as_array(memory)
        good = array.shape == self.shape and array.dtype == np.uint8 and array.flags.c_contiguous
        if not good or not array.flags.writeable:
            raise ValueError(
                f"allocate must return a writable, C-contiguous uint8 array (or CPU tensor) of shape "
                f"{self.shape}, not {array.dtype} of shape {array.shape}"
            )
        return memory


class Lease:
    """What every view of a lent array refers to; it hands the memory back when it dies."""

    def __init__(self, memory: Any, owner: Memory) -> None:
        # numpy takes the pointer from here, and keeps this object as the base of the array.
        self.__array_interface__ = dict(as_array(memory).__array_interface__)
        self._memory = memory
        self._owner = owner

    def __del__(self) -> None:
        self._owner.take_back(self._memory)


def as_array(memory: Any) -> NDArray[Any]:
    """Return a numpy array, or a CPU tensor as one."""
    array: NDArray[Any] = memory if isinstance(memory, np.ndarray) else memory.numpy()
    return array


class Buffer:
    """A batch in the making.

    Attributes:
        array: shape (rows, …).
        taken: for each row 1 while an item has it.
    """

    __slots__ = ("array", "taken")

    def __init__(self, array: NDArray[np.uint8]) -> None:
        self.array = array
        self.taken = bytearray(len(array))


class ImageRow:
    """An item on its way, and the row of the batch that its picture is decoded into.

    Attributes:
        item: what came in; once it is decoded with None in the picture's place.
        pixels: the row, a writable array of the shape of one picture. A stage between
            ``batcher.decode`` and the batch may change it in place, and returns the `ImageRow`.
    """

    __slots__ = ("_buffer", "_held", "_index", "_rows", "item", "pixels")

    def __init__(
        self, item: Any, pixels: Any, rows: BatchRows, buffer: Buffer | None, index: int
    ) -> None:
        self.item = item
        self.pixels = pixels
        self._rows = rows
        self._buffer = buffer
        self._index = index
        self._held = True

    def release(self) -> None:
        """Give the row back, because the item is lost."""
        if self._held:
            self._held = False
            # No lock: this runs as a finalizer too, in any thread at any instant.
            self._rows.changes.append((self._buffer, self._index, -1))
            self._buffer = self.pixels = None

    def regain(self) -> None:
        """Take a row outside of the batch, for another attempt at an item that was lost."""
        if not self._held:
            self._held = True
            self._rows.changes.append((None, 0, 1))
            self.pixels = np.empty(self._rows.shape, np.uint8)

    def __del__(self) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"ImageRow({self.item!r})"


class BatchRows:
    """The rows of one run: an aggregator that gives each item one, and what makes batches of them."""

    def __init__(self, memory: Memory) -> None:
        self.changes: collections.deque[tuple[Buffer | None, int, int]] = collections.deque()
        self.shape = memory.shape[1:]
        self._memory = memory
        self._size = memory.shape[0]
        self._lock = threading.Lock()
        self._next = 0
        self._newest = -1
        self._complete = 0  # batches, and the number of the buffer that the next one belongs into
        self._buffers: dict[int, Buffer] = {}

    def accumulate(self, item: Any, /) -> tuple[ImageRow]:
        """Give an item the next row."""
        with self._lock:
            self._settle()
            number, index = divmod(self._next, self._size)
            self._next += 1
            buffer = self._buffer(number)
            if buffer is None or buffer.taken[index]:
                row = np.empty(self.shape, np.uint8)
                return (ImageRow(item, row, self, None, index),)
            buffer.taken[index] = 1
            return (ImageRow(item, buffer.array[index], self, buffer, index),)

    def flush(self) -> tuple[()]:
        """Hold nothing."""
        return ()

    def place(self, rows: Sequence[ImageRow]) -> NDArray[np.uint8]:
        """Return the batch of these rows, in their order, which lose them to it."""
        with self._lock:
            self._settle()
            home = self._buffers.get(self._complete)
            moved = [
                (n, row) for n, row in enumerate(rows) if row._buffer is not home or row._index != n
            ]
            if home is None or self._is_in_the_way(home, rows, moved):
                array = self._memory.lend()
                for n, row in enumerate(rows):
                    array[n] = row.pixels
                self._memory.count(copied=len(rows))
            else:
                array = home.array
                # Rows of the same memory may have to change places.
                pixels = [
                    row.pixels.copy() if row._buffer is home else row.pixels for _, row in moved
                ]
                for (n, _), picture in zip(moved, pixels, strict=True):
                    array[n] = picture
                self._memory.count(in_place=len(rows) - len(moved), moved=len(moved))
            for row in rows:
                if row._buffer is not None:
                    row._buffer.taken[row._index] = 0
                row._held, row._buffer, row.pixels = False, None, None
            # The next batch begins with the next buffer, also after one that is not full.
            self._next += self._size - len(rows)
            self._buffers.pop(self._complete, None)
            self._complete += 1
        return array[: len(rows)]

    def _settle(self) -> None:
        """Count the items that were lost (those to come move up) or regained."""
        while self.changes:
            buffer, index, step = self.changes.popleft()
            self._next += step
            if buffer is not None:
                buffer.taken[index] = 0

    def _buffer(self, number: int) -> Buffer | None:
        """Return the buffer of the batch with this number; None where it is in use for another."""
        if number > self._newest:
            self._buffers[number] = Buffer(self._memory.lend())
            self._newest = number
        return self._buffers.get(number)

    @staticmethod
    def _is_in_the_way(
        home: Buffer, rows: Sequence[ImageRow], moved: list[tuple[int, ImageRow]]
    ) -> bool:
        """Tell whether a row that is to be moved would hit one of an item that is not in the batch."""
        own = {row._index for row in rows if row._buffer is home}
        return any(home.taken[n] and n not in own for n, _ in moved)
