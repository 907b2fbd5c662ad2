"""Page-locked memory for batches that are written in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def pinned_empty(shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a page-locked CPU tensor, uninitialised: ``to_device`` copies from it without staging.

    Where torch finds no GPU it is ordinary memory. Where it finds some it needs a context on one of them,
    and takes any that is there; else it makes one on the current device of the calling thread, which is GPU
    0 in threads of a pipeline. So, with several GPUs, move the model to its own before the pipeline runs.

    Locking takes milliseconds: allocate few, and use them again, as `ImageBatcher` does::

        ImageBatcher(64, size=224, allocate=pinned_empty)

    Args:
        shape: of the tensor.
        dtype: of its elements; None for ``torch.uint8``.

    >>> from spdl_async.device import pinned_empty
    >>> pinned_empty((2, 3)).shape
    torch.Size([2, 3])
    """
    import torch

    there = torch.cuda.is_available()
    return torch.empty(shape, dtype=dtype or torch.uint8, device="cpu", pin_memory=there)
