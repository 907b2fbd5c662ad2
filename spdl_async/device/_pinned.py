"""Page-locked memory for batches that are written in place."""

from __future__ import annotations

import torch


def pinned_empty(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Return a page-locked CPU tensor, uninitialised: ``to_device`` copies from it without staging.

    Where torch finds no GPU it is ordinary memory. Locking takes milliseconds: allocate few, and use them
    again, as `ImageBatcher` does::

        ImageBatcher(64, size=224, allocate=pinned_empty)

    >>> from spdl_async.device import pinned_empty
    >>> pinned_empty((2, 3)).shape
    torch.Size([2, 3])
    """
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=torch.cuda.is_available())
