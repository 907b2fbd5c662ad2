"""Resize a picture on one native thread.

Of torch's kernels for ``interpolate`` only one keeps to the calling thread: the AVX2 one for
uint8 in channels-last layout with at most four channels. It is also the fastest that there is.
All others start a team of OpenMP threads for every thread that calls them. Where the processor
has no AVX2, or torch is not installed, the work is therefore Pillow's, whose filter is the same one
(the results differ by at most one grey level) and whose resize releases the GIL too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from spdl_async.io._extras import need
from spdl_async.io._out import own

if TYPE_CHECKING:
    from numpy.typing import NDArray


@functools.cache
def torch_interpolate() -> tuple[Any, Callable[..., Any]] | None:
    """Return torch and its ``interpolate``, or None where it would not stay on its thread."""
    try:
        import torch
        from torch.nn.functional import interpolate
    except ImportError:
        return None
    fast = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return (torch, interpolate) if fast else None


def resize(
    pixels: NDArray[Any], size: tuple[int, int], *, alpha: bool = False, nearest: bool = False
) -> NDArray[Any]:
    """Stretch a picture to ``size`` with an antialiasing bilinear filter.

    Args:
        pixels: shape (height, width, channels), dtype uint8 or uint16.
        size: the (height, width) to make of it, in pixels.
        alpha: the last channel is alpha, by which the others are weighted.
        nearest: take one pixel instead of mixing several: for palette indices.

    Returns:
        A C-contiguous array of shape (\\*size, channels); ``pixels`` itself where nothing is to be done.
    """
    # Torch would copy a picture that has the right size, on a team of threads.
    if pixels.shape[:2] == size:
        return pixels
    torch = None if alpha or nearest or pixels.dtype != np.uint8 else torch_interpolate()
    if torch is None:
        return _resize_with_pillow(pixels, size, alpha, nearest)
    from_numpy, interpolate = torch[0].from_numpy, torch[1]
    # In this order unsqueeze and permute give the strides that torch takes for channels-last; a
    # batch dimension added last does not, and then the result comes back in planes. Torch warns of
    # what is not writable.
    batch = from_numpy(own(pixels)).unsqueeze(0).permute(0, 3, 1, 2)
    resized = interpolate(batch, size=size, mode="bilinear", antialias=True)
    result: NDArray[np.uint8] = resized.permute(0, 2, 3, 1).squeeze(0).numpy()
    return np.ascontiguousarray(result)


def _resize_with_pillow(
    pixels: NDArray[Any], size: tuple[int, int], alpha: bool, nearest: bool
) -> NDArray[Any]:
    image = need("PIL.Image", "image")
    way = image.Resampling.NEAREST if nearest else image.Resampling.BILINEAR
    box = (size[1], size[0])
    channels = pixels.shape[2]
    if pixels.dtype == np.uint8 and (channels in (1, 3) or alpha):
        picture = image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
        return np.array(picture.resize(box, way)).reshape(*size, channels)
    result = np.empty((*size, channels), pixels.dtype)
    for channel in range(channels):
        plane = image.fromarray(pixels[:, :, channel].astype(np.float32))
        # The weights of the filter are positive and sum to one: nothing leaves the range.
        result[:, :, channel] = np.rint(np.asarray(plane.resize(box, way)))
    return result
