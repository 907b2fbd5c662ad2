"""What copies need of a device: the one interface behind which CUDA, MPS and the fake device lie."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


@runtime_checkable
class DeviceBackend(Protocol):
    """A device that tensors are copied to, with streams and events as CUDA has them.

    Work on a stream is done in the order in which it was queued there, later than the call that queues
    it. Streams go on independently of each other, but for events: what is queued on a stream behind `wait`
    starts when all that was queued before the event's `record` is done. Nothing but `synchronize` waits
    on the host.

    Methods are called in threads of ours and in the consumer's, never on a loop of ours; each thread of ours
    calls `enter_thread` before anything else.

    Attributes:
        name: for people: ``"cuda:1"``.
        asynchronous: whether there are streams at all. Where not, only `enter_thread`, `is_here` and `move`
            are called.
        out_of_memory: what `empty` and `pinned` raise when there is no memory.
    """

    name: str
    asynchronous: bool
    out_of_memory: tuple[type[BaseException], ...]

    def enter_thread(self) -> None:
        """Make this the current device of the calling thread."""

    def new_stream(self) -> Any:
        """Make a stream of the device."""

    def current_stream(self) -> Any:
        """Return the stream on which the calling thread's work for this device is queued."""

    def on_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Make ``stream`` the current one of the calling thread within a ``with`` block."""

    def record(self, stream: Any) -> Any:
        """Return an event that completes when all that is queued on ``stream`` so far is done."""

    def wait(self, stream: Any, event: Any) -> None:
        """Let what is queued on ``stream`` from now on wait for an event; the host does not."""

    def is_done(self, event: Any) -> bool:
        """Tell whether an event has completed, without waiting."""

    def synchronize(self, event: Any) -> None:
        """Wait on the host for an event, without the GIL."""

    def seconds_between(self, start: Any, end: Any) -> float:
        """Return the seconds between two events that have completed."""

    def pinned(self, size: int) -> torch.Tensor:
        """Return ``size`` bytes of page-locked host memory: a CPU tensor of shape (size,), dtype uint8."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Tell whether a CPU tensor lies in page-locked memory, from which the device copies by itself."""

    def is_here(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is on this device already."""

    def empty(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory of the device for a tensor of the same shape, dtype and strides, uninitialised.

        It is allocated on the calling thread's current stream: freed, it may be given out again to work
        that is queued there later, unless `keep_for` has told of other streams.
        """

    def empty_bytes(self, size: int) -> torch.Tensor:
        """Return ``size`` bytes of the device, uninitialised: shape (size,), dtype uint8; else as `empty`."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy, host to device or back, on the calling thread's current stream.

        It does not wait where the host's memory is page-locked; else it may.
        """

    def keep_for(self, tensor: torch.Tensor, stream: Any) -> None:
        """Keep a tensor's memory, once it is freed, until what ``stream`` has queued by then is done."""

    def move(self, thing: Any) -> Any:
        """Return ``thing.to(this device, non_blocking=True)``, for objects that bring their own ``to``."""
