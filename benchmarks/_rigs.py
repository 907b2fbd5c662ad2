"""What the torture and the GPU's rows need of a device, on CUDA and on the fake one.

Both rigs do the same: the fake one shows without a GPU that the scripts run, and that the torture notices
what it is made for. Nothing here needs more than torch and numpy.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from spdl_async.device import DeviceBackend
from spdl_async.device._cuda import CudaDevice
from spdl_async.testing import FakeDevice

PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device
CALIBRATION_CYCLES = 20_000_000


class Rig(Protocol):
    """A device, and what a consumer does there.

    Attributes:
        name: for people.
        backend: what is given to ``to_device``.
        real: whether there is time on it: a fake device has none.
    """

    name: str
    real: bool
    backend: DeviceBackend

    def late(self, seconds: float) -> DeviceBackend:
        """Return a back-end whose copies each start that much later, on the device."""

    def new_stream(self) -> Any:
        """Make a stream for the consumer."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the calling thread's current one; None for the default one."""

    def slow(self, seconds: float) -> None:
        """Keep the current stream busy for some time."""

    def launch(self, function: Callable[..., object], *tensors: torch.Tensor) -> None:
        """Queue a function of tensors of the device on the current stream."""

    def computed(
        self, function: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor
    ) -> torch.Tensor:
        """Queue a function whose result is like its argument; return the result."""

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a complete copy on the device."""

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host, when the current stream has done its work."""

    def mark(self) -> Any:
        """Return an event behind what is queued on the current stream."""

    def wait(self, event: Any) -> None:
        """Wait on the host for an event."""

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two events that have completed."""

    def finish(self) -> None:
        """Wait for all that is queued on the device."""

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy in page-locked memory of the device's own allocator."""

    def register(self, tensor: torch.Tensor) -> None:
        """Page-lock memory that the allocator of the device knows nothing of."""

    def unregister(self, tensor: torch.Tensor) -> None:
        """Undo that."""

    def pinned_allocations(self) -> int | None:
        """Return how often memory was page-locked so far; None where torch does not count it."""

    def bytes_on_device(self) -> int:
        """Return the bytes of all tensors on the device."""

    def start_peak(self) -> None:
        """Begin to watch the most of them."""

    def peak(self) -> int:
        """Return the most since `start_peak`."""

    def limit(self, room: int | None) -> None:
        """Let the device have room for so many bytes more; None: no limit."""


class LateCuda(CudaDevice):
    """A GPU on which each copy waits for a kernel first."""

    def __init__(self, device: torch.device, cycles: int) -> None:
        super().__init__(device)
        self._cycles = cycles

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue the copy behind a kernel that does nothing for a while."""
        torch.cuda._sleep(self._cycles)  # type: ignore[no-untyped-call]  # torch's
        super().copy(target, source)


class CudaRig:
    """A GPU."""

    real = True

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        self.backend: DeviceBackend = CudaDevice(self.device)
        properties = torch.cuda.get_device_properties(self.device)
        memory = properties.total_memory / 1e9
        self.name = f"{properties.name}, {memory:.0f} GB, CUDA {torch.version.cuda}"
        self._total: int = properties.total_memory
        start = self.mark()
        torch.cuda._sleep(CALIBRATION_CYCLES)  # type: ignore[no-untyped-call]  # torch's
        end = self.mark()
        end.synchronize()
        self._cycles_per_second = CALIBRATION_CYCLES / max(1e-6, self.seconds(start, end))

    def late(self, seconds: float) -> DeviceBackend:
        """Return a back-end whose copies each wait for an idle kernel."""
        return LateCuda(self.device, self._cycles(seconds))

    def _cycles(self, seconds: float) -> int:
        return max(1, int(seconds * self._cycles_per_second))

    def new_stream(self) -> torch.cuda.Stream:
        """Make a stream."""
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch's

    def on(self, stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
        """Make a stream the current one."""
        if stream is None:
            stream = torch.cuda.default_stream(self.device)
        return torch.cuda.stream(stream)

    def slow(self, seconds: float) -> None:
        """Queue an idle kernel."""
        with torch.cuda.device(self.device):
            torch.cuda._sleep(self._cycles(seconds))  # type: ignore[no-untyped-call]  # torch's

    def launch(self, function: Callable[..., object], *tensors: torch.Tensor) -> None:
        """Call it: torch's functions queue their kernels."""
        function(*tensors)

    def computed(
        self, function: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor
    ) -> torch.Tensor:
        """Call it."""
        return function(tensor)

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy it, and wait."""
        there = tensor.to(self.device)
        self.finish()
        return there

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy it back."""
        return tensor.cpu()

    def mark(self) -> torch.cuda.Event:
        """Record an event that keeps the time."""
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait(self, event: torch.cuda.Event) -> None:
        """Wait for it."""
        event.synchronize()

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Ask the device, which keeps milliseconds."""
        return float(start.elapsed_time(end)) / 1e3

    def finish(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self.device)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy it into page-locked memory of torch's allocator."""
        return torch.empty_like(tensor, pin_memory=True).copy_(tensor)

    def register(self, tensor: torch.Tensor) -> None:
        """Call cudaHostRegister."""
        code = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, PORTABLE)  # type: ignore[no-untyped-call]
        if int(code):
            raise RuntimeError(
                f"cudaHostRegister of {tensor.nbytes:,} bytes failed with error {int(code)}"
            )

    def unregister(self, tensor: torch.Tensor) -> None:
        """Call cudaHostUnregister."""
        code = torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())  # type: ignore[no-untyped-call]
        if int(code):
            raise RuntimeError(f"cudaHostUnregister failed with error {int(code)}")

    def pinned_allocations(self) -> int | None:
        """Ask torch's allocator of page-locked memory; before torch 2.7 or so it does not count."""
        statistics = getattr(torch.cuda, "host_memory_stats", None)
        found = None if statistics is None else statistics().get("num_host_alloc")
        return None if found is None else int(found)

    def bytes_on_device(self) -> int:
        """Ask the caching allocator."""
        return torch.cuda.memory_allocated(self.device)

    def start_peak(self) -> None:
        """Reset the allocator's peak."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Return it."""
        return torch.cuda.max_memory_allocated(self.device)

    def limit(self, room: int | None) -> None:
        """Give unused memory back to the driver, and limit what the allocator may ask it for."""
        share = 1.0
        if room is not None:
            self.finish()
            torch.cuda.empty_cache()
            share = min(1.0, (torch.cuda.memory_reserved(self.device) + room) / self._total)
        torch.cuda.set_per_process_memory_fraction(share, self.device)


class FakeRig:
    """A `FakeDevice`, as late as can be: no copy runs before somebody needs it."""

    real = False

    def __init__(self, fake: FakeDevice | None = None) -> None:
        self.fake = fake or FakeDevice()
        self.backend: DeviceBackend = self.fake
        self.name = "a fake device: nothing below is a measurement"

    def late(self, seconds: float) -> DeviceBackend:  # noqa: ARG002 -- it is late anyway
        """Return it as it is."""
        return self.fake

    def new_stream(self) -> Any:
        """Make a stream."""
        return self.fake.new_stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the current one."""
        return contextlib.nullcontext() if stream is None else self.fake.on_stream(stream)

    def slow(self, seconds: float) -> None:
        """Do nothing: all of it is slow."""

    def launch(self, function: Callable[..., object], *tensors: torch.Tensor) -> None:
        """Queue it."""
        self.fake.launch(function, *tensors)

    def computed(
        self, function: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor
    ) -> torch.Tensor:
        """Queue it, and what writes its result."""
        result = self.fake.empty(tensor)
        self.fake.launch(lambda to, of: to.copy_(function(of)), result, tensor)
        return result

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy it, and wait."""
        there = self.fake.send(tensor)
        self.fake.synchronize()
        return there

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy it back."""
        return self.fake.read(tensor)

    def mark(self) -> Any:
        """Record an event."""
        return self.fake.record(self.fake.current_stream())

    def wait(self, event: Any) -> None:
        """Wait for it."""
        self.fake.synchronize(event)

    def seconds(self, start: Any, end: Any) -> float:
        """Return what stands for time there."""
        return self.fake.seconds_between(start, end)

    def finish(self) -> None:
        """Run all that is queued."""
        self.fake.synchronize()

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy it into page-locked memory."""
        memory = self.fake.pinned(tensor.nbytes)
        return memory.view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def register(self, tensor: torch.Tensor) -> None:
        """Treat memory as page-locked from now on."""
        self.fake.pin(tensor)

    def unregister(self, tensor: torch.Tensor) -> None:
        """Do nothing: it keeps what was registered."""

    def pinned_allocations(self) -> int | None:
        """Count them."""
        return self.fake.pinned_allocations

    def bytes_on_device(self) -> int:
        """Count them."""
        return self.fake.bytes_on_device

    def start_peak(self) -> None:
        """Do nothing: its peak is that of its whole life."""

    def peak(self) -> int:
        """Return it."""
        return self.fake.peak_bytes_on_device

    def limit(self, room: int | None) -> None:
        """Set its size."""
        self.fake.memory = None if room is None else self.fake.bytes_on_device + room


def missing() -> str | None:
    """Say in one line why there is no `CudaRig` here; None where there can be one."""
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]  # torch's
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no GPU"
    return None


def model_of(rig: Rig, seconds: float) -> Callable[[torch.Tensor], None]:
    """Return a model: matrix products that take so long, on a batch that is looked at once.

    Its products are of a fixed size, and their number was found with events.
    """
    if not isinstance(rig, CudaRig):
        return lambda batch: rig.launch(lambda tensor: tensor[:1].sum(), batch)
    side = 2048  # larger than its launch on any GPU, small enough for a millisecond of them
    left = torch.randn(side, side, device=rig.device, dtype=torch.float16)
    right = torch.randn(side, side, device=rig.device, dtype=torch.float16)
    product = torch.empty_like(left)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(left, right, out=product)

    multiply(50)  # clocks go up, cuBLAS makes its plans
    best = _fastest(rig, multiply, (100, 100, 100)) / 100
    times = max(1, round(seconds / best))

    def model(batch: torch.Tensor) -> None:
        multiply(times)
        torch.sum(batch[:1].float())  # the batch is used, wherever it lies

    return model


def _fastest(rig: Rig, work: Callable[[int], None], repeats: Sequence[int]) -> float:
    found: list[float] = []
    for times in repeats:
        start = rig.mark()
        work(times)
        end = rig.mark()
        rig.wait(end)
        found.append(rig.seconds(start, end))
    return min(found)


def wall(rig: Rig, work: Callable[[], object]) -> float:
    """Return the seconds that some work takes, on the host and on the device."""
    rig.finish()
    started = time.perf_counter()
    work()
    rig.finish()
    return time.perf_counter() - started
