"""Devices on which a copy is done when it returns."""

from __future__ import annotations

from typing import Any

import torch

# How torch's allocators for the CPU and MPS say it, in errors of no class of their own.
NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")


class SynchronousDevice:
    """What the CPU and MPS share.

    There are no streams to choose between, so nothing of streams and events is called, and nothing copies
    from page-locked memory by itself, so that staging would be one copy more.

    Args:
        device: as torch knows it.
    """

    asynchronous = False
    out_of_memory: tuple[type[BaseException], ...] = (MemoryError,)

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = str(device)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def enter_thread(self) -> None:
        """Do nothing: there is one device of this kind."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        """Say that there are no streams."""
        raise RuntimeError(f"{self.name} has no streams: copies are done when they return")

    new_stream = current_stream = on_stream = record = wait = is_done = synchronize = _refuse
    keep_for = seconds_between = _refuse

    def pinned(self, size: int) -> torch.Tensor:
        """Return ordinary memory of the host.

        Raises:
            MemoryError: there is no more.
        """
        try:
            return torch.empty(size, dtype=torch.uint8, device="cpu")
        except RuntimeError as error:
            self._explain(error, size)
            raise

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return True for any tensor of the host: there is nothing that staging would help."""
        return tensor.device.type == "cpu"

    def is_here(self, tensor: torch.Tensor) -> bool:
        """Compare the kinds of device: there is one of each."""
        return tensor.device.type == self.device.type

    def empty(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory; dense tensors keep their strides, others become dense.

        Raises:
            MemoryError: there is no more.
        """
        try:
            return torch.empty_like(tensor, device=self.device, requires_grad=False)
        except RuntimeError as error:
            self._explain(error, tensor.numel() * tensor.element_size())
            raise

    def empty_bytes(self, size: int) -> torch.Tensor:
        """Return bytes.

        Raises:
            MemoryError: there is no more.
        """
        try:
            return torch.empty(size, dtype=torch.uint8, device=self.device)
        except RuntimeError as error:
            self._explain(error, size)
            raise

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy; the source may be written again when it returns."""
        target.copy_(source.detach())

    def move(self, thing: Any) -> Any:
        """Call the thing's own ``to``, without ``non_blocking``: nothing would tell when it is done.

        Raises:
            MemoryError: there is no more.
        """
        try:
            return thing.to(self.device)
        except RuntimeError as error:
            self._explain(error, getattr(thing, "nbytes", 0))
            raise

    def _explain(self, error: RuntimeError, size: int) -> None:
        """Raise MemoryError where that is what happened."""
        if any(words in str(error) for words in NO_MEMORY):
            raise MemoryError(f"no memory for {size} bytes on {self.name}: {error}") from error
