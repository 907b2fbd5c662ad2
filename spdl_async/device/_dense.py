"""Tensors as runs of bytes: what can be copied as it lies, strides included, and what has to be laid out."""

from __future__ import annotations

import numpy as np
import torch

_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's elements lie next to each other, in whatever order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(
        (stride, size)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        if size > 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def in_c_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor as it is; of another one a stand-in without memory, in C order."""
    if is_dense(tensor):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor's memory: shape (nbytes,), dtype uint8, in the order in which it lies."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8)


def lay(tensor: torch.Tensor, memory: torch.Tensor) -> None:
    """Write a CPU tensor into host memory of its size, as it lies; one that is not dense in C order.

    By numpy, in this thread: torch would start a team of threads for each thread that copies.
    """
    target: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = memory.numpy()
    if is_dense(tensor):
        target[...] = as_bytes(tensor).numpy()
        return
    same = tensor.detach().view(_as_integers(tensor)) if tensor.itemsize <= 8 else tensor.detach()
    source = same.numpy()
    np.copyto(target.view(source.dtype).reshape(source.shape), source)


def _as_integers(tensor: torch.Tensor) -> torch.dtype:
    """Return a dtype of the same size that numpy has: it knows neither bfloat16 nor float8."""
    return _AS_INTEGERS[tensor.itemsize]
