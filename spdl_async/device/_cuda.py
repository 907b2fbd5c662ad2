"""CUDA, and ROCm, which torch calls by the same name."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch


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
        tensor.record_stream(stream)

    def move(self, thing: Any) -> Any:
        """Call the thing's own ``to``."""
        return thing.to(self.device, non_blocking=True)
