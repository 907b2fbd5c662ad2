"""Memory of a device that there is not: given out again at once, as by a caching allocator, never cleaned."""

from __future__ import annotations

import bisect
from collections import deque
from typing import TYPE_CHECKING, Any

from spdl_async.testing._fake_streams import FakeStream, Streams

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

POISON = 0xA5
ALIGNMENT = 512  # bytes, as cudaMalloc has it


class Block:
    """A piece of memory.

    Attributes:
        memory: its bytes; shape (size,), uint8.
        address: of the first byte.
        kind: "device", "pinned", or "registered" for host memory of others that is page-locked.
        stream: on which it is given out; None for host memory.
        kept: streams that `keep_for` has named since it was given out.
        owner: what must live as long as the block, for memory of others.
    """

    __slots__ = ("address", "kept", "kind", "memory", "owner", "stream")

    def __init__(
        self,
        memory: NDArray[np.uint8],
        kind: str,
        stream: FakeStream | None = None,
        owner: object = None,
    ) -> None:
        self.memory = memory
        self.address = int(memory.__array_interface__["data"][0])
        self.kind = kind
        self.stream = stream
        self.kept: list[FakeStream] = []
        self.owner = owner


class Lease:
    """What every tensor and view of a block refers to; its end hands the block back."""

    def __init__(self, block: Block, freed: deque[tuple[Block, Any]]) -> None:
        self.__array_interface__ = dict(block.memory.__array_interface__)
        self._block = block
        self._freed = freed

    def __del__(self) -> None:
        # It runs in any thread at any instant, so it takes no lock.
        block = self._block
        if block.kind == "pinned":
            block.memory.fill(POISON)  # a copy that has not run yet finds what others write there
        self._freed.append((block, [(stream, stream.queued) for stream in block.kept]))


class FakeMemory:
    """The blocks of a device, and of the host memory that it reads and writes by itself."""

    def __init__(self) -> None:
        self._addresses: list[int] = []
        self._blocks: dict[int, Block] = {}
        self._freed: deque[tuple[Block, list[tuple[FakeStream, int]]]] = deque()
        self._kept: list[tuple[Block, list[tuple[FakeStream, int]]]] = []
        self._unused: dict[tuple[FakeStream, int], list[Block]] = {}
        self._live = 0
        self.peak = 0
        self.pinned_allocations = 0

    def live(self) -> int:
        """Return the bytes on the device that a tensor still refers to."""
        with Streams.lock:
            self._settle()
            return self._live

    def on_device(self, size: int, stream: FakeStream, limit: int | None) -> torch.Tensor | None:
        """Return ``size`` bytes, at least one; None where the limit forbids it."""
        room = _rounded(size)
        with Streams.lock:
            self._settle()
            if limit is not None and self._live + room > limit:
                return None
            self._live += room
            self.peak = max(self.peak, self._live)
            unused = self._unused.get((stream, room))
            if unused:
                block = unused.pop()
                block.kept = []
            else:
                block = Block(_poisoned(room), "device", stream)
                self._add(block)
            return self._lent(block)

    def pinned(self, size: int) -> torch.Tensor:
        """Return ``size`` bytes of the host, at least one."""
        with Streams.lock:
            self._settle()
            self.pinned_allocations += 1
            block = Block(_poisoned(_rounded(size)), "pinned")
            self._add(block)
            return self._lent(block)

    def register(self, tensor: torch.Tensor) -> None:
        """Treat host memory of others as page-locked from now on; it is kept."""
        import torch

        storage = tensor.untyped_storage()
        memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
        with Streams.lock:
            self._settle()
            self._add(Block(memory.numpy(), "registered", owner=memory))

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        """Return the block in which a tensor lies."""
        if str(tensor.layout) != "torch.strided" or tensor.device.type != "cpu":
            return None
        address = tensor.untyped_storage().data_ptr()
        with Streams.lock:
            at = bisect.bisect_right(self._addresses, address) - 1
            if at < 0:
                return None
            block = self._blocks[self._addresses[at]]
            return block if address < block.address + len(block.memory) else None

    def _lent(self, block: Block) -> torch.Tensor:
        import numpy as np
        import torch

        return torch.from_numpy(np.asarray(Lease(block, self._freed)))

    def _add(self, block: Block) -> None:
        if block.address not in self._blocks:
            bisect.insort(self._addresses, block.address)
        self._blocks[block.address] = block

    def _settle(self) -> None:
        """Give the memory back that was freed, but for what other streams may still use."""
        while self._freed:
            block, uses = self._freed.popleft()
            if block.kind == "pinned":
                del self._blocks[block.address]
                self._addresses.remove(block.address)
                continue
            self._live -= len(block.memory)
            self._kept.append((block, uses))
        kept, self._kept = self._kept, []
        for block, uses in kept:
            if any(stream.done < position for stream, position in uses):
                self._kept.append((block, uses))
            elif block.stream is not None:
                room = len(block.memory)
                self._unused.setdefault((block.stream, room), []).append(block)


def alias(tensor: torch.Tensor, block: Block) -> torch.Tensor:
    """Return the same elements without keeping the block from being given out again."""
    import torch

    if not tensor.numel():
        return tensor.detach()
    extent = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    start = tensor.data_ptr() - block.address
    span = block.memory[start : start + extent * tensor.element_size()]
    with torch.inference_mode(False):  # the work may run in a thread that is not in that mode
        same = torch.from_numpy(span).view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    if tensor.is_conj():
        same = same.conj()
    return torch._neg_view(same) if tensor.is_neg() else same


def _rounded(size: int) -> int:
    # Every dtype's size divides 16, and a tensor without elements needs an address too.
    return max(16, -(-size // 16) * 16)


def _poisoned(size: int) -> NDArray[np.uint8]:
    import numpy as np

    memory = np.full(size + ALIGNMENT, POISON, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + size]
