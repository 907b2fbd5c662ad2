"""CUDA, and ROCm, which torch calls by the same name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def _is_wrapper(kind: type[torch.Tensor]) -> bool:
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def parts_of(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the strided tensors that a tensor is made of: torch knows ``record_stream`` for these alone."""
    if type(tensor) is not torch.Tensor and _is_wrapper(type(tensor)):
        names = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
        return [part for name in names for part in parts_of(getattr(tensor, name))]
    if tensor.layout in _COMPRESSED:
        return [getattr(tensor, name)() for name in _COMPRESSED[tensor.layout]]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.is_quantized or tensor.is_nested:
        memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return [memory.set_(tensor.untyped_storage())]
    return [tensor]


class CudaDevice:
    """One GPU, with torch's streams, events and caching allocators.

    Args:
        device: with an index.
    """

    asynchronous = True
    out_of_memory: tuple[type[BaseException], ...] = (torch.cuda.OutOfMemoryError,)

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = str(device)

    def __repr__(self) -> str:
        return f"<CudaDevice {self.name}>"

    def enter_thread(self) -> None:
        """Make this the current device of the calling thread, which is GPU 0 in a new one.

        It comes first: pinned memory too puts a context, hundreds of megabytes, on the current device.
        """
        torch.cuda.set_device(self.device)

    def new_stream(self) -> torch.cuda.Stream:
        """Take a stream from torch's pool of 32 for each device."""
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch's

    def current_stream(self) -> torch.cuda.Stream:
        """Return the calling thread's stream of this device, whatever device is its current one."""
        return torch.cuda.current_stream(self.device)

    def on_stream(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        """Make the stream, and its device, current in the calling thread; afterwards both as before."""
        return torch.cuda.stream(stream)

    def record(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """Return a new event behind what is queued on the stream."""
        # A blocking event sleeps in `synchronize`, where others keep a core busy.
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]  # torch's
        event.record(stream)
        return event

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """Let what is queued from now on wait for the event."""
        stream.wait_event(event)

    def is_done(self, event: torch.cuda.Event) -> bool:
        """Ask whether the event has completed."""
        return bool(event.query())  # type: ignore[no-untyped-call]  # torch's

    def synchronize(self, event: torch.cuda.Event) -> None:
        """Wait for the event; torch gives up the GIL meanwhile."""
        event.synchronize()

    def seconds_between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return the time between two events, to half a microsecond."""
        return float(start.elapsed_time(end)) / 1e3

    def pinned(self, size: int) -> torch.Tensor:
        """Return page-locked bytes of torch's allocator, which takes the next power of two of them.

        Raises:
            torch.cuda.OutOfMemoryError: the system has no more memory that can be locked.
        """
        try:
            return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError as error:
            # cudaHostAlloc's failure has no class of its own.
            if isinstance(error, self.out_of_memory) or "out of memory" not in str(error):
                raise
            raise torch.cuda.OutOfMemoryError(
                f"cannot page-lock {size} bytes of host memory: {error}"
            ) from error

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Ask the driver about the memory of a CPU tensor; registered memory of others counts too."""
        return tensor.is_pinned()

    def is_here(self, tensor: torch.Tensor) -> bool:
        """Compare the devices."""
        return tensor.device == self.device

    def empty(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory from the caching allocator; dense tensors keep their strides, others become dense."""
        return torch.empty_like(tensor, device=self.device, requires_grad=False)

    def empty_bytes(self, size: int) -> torch.Tensor:
        """Return bytes from the caching allocator."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy, on the calling thread's stream of this device."""
        target.copy_(source.detach(), non_blocking=True)

    def keep_for(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Tell the caching allocator of a use on another stream."""
        for part in parts_of(tensor):
            part.record_stream(stream)

    def move(self, thing: Any) -> Any:
        """Call the thing's own ``to``."""
        return thing.to(self.device, non_blocking=True)
