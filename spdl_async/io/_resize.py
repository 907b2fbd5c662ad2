"""Resize a picture on one native thread.

Of torch's kernels for ``interpolate`` only one keeps to the calling thread: the AVX2 one for
uint8 in channels-last layout with at most four channels. It is also the fastest that there is.
All others start a team of OpenMP threads for every thread that calls them. Where the processor
has no AVX2 the work is therefore Pillow's, whose filter is the same one (the results differ by at
most one grey level) and whose resize releases the GIL too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import interpolate

from spdl_async.io._pillow import resize_with_pillow

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KERNEL_STAYS_ON_ITS_THREAD = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def resize(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Stretch a picture to ``size`` with an antialiasing bilinear filter.

    Args:
        pixels: shape (height, width, 3), dtype uint8, C-contiguous and writable.
        size: the (height, width) to make of it, in pixels.

    Returns:
        A C-contiguous array of shape (\\*size, 3); ``pixels`` itself where nothing is to be done.
    """
    # Torch would copy a picture that has the right size, on a team of threads.
    if pixels.shape[:2] == size:
        return pixels
    if not _KERNEL_STAYS_ON_ITS_THREAD:
        return resize_with_pillow(pixels, size)
    # In this order unsqueeze and permute give the strides that torch takes for channels-last; a
    # batch dimension added last does not, and then the result comes back in planes.
    batch = torch.from_numpy(pixels).unsqueeze(0).permute(0, 3, 1, 2)
    resized = interpolate(batch, size=size, mode="bilinear", antialias=True)
    result: NDArray[np.uint8] = resized.permute(0, 2, 3, 1).squeeze(0).numpy()
    return np.ascontiguousarray(result)
