"""Writing a picture into memory that somebody else has allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spdl_async.io._fit import margin

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spdl_async.io._picture import Wanted


def check_out(out: Any, wanted: Wanted) -> None:
    """Refuse what cannot be written into, before anything is decoded.

    Raises:
        TypeError: it is no array.
        ValueError: it is not writable or C-contiguous, or has another shape than is known to come.
    """
    if out is None:
        return
    array = _as_array(out)
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError(
            "out must be C-contiguous and writable: one row of a batch, batch[n], is, a slice of its "
            "columns is not"
        )
    channels = wanted.channels()
    if wanted.size is not None and channels is not None:
        height, width = wanted.size
        shape = (height, width, channels)
        check_shape(
            array,
            shape if wanted.layout == "HWC" else (channels, height, width),
            np.dtype(np.uint8),
        )


def pixels_of(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the array to write into.

    Raises:
        ValueError: it has another shape or dtype.
    """
    array = _as_array(out)
    check_shape(array, shape, dtype)
    return array


def own(pixels: NDArray[Any]) -> NDArray[Any]:
    """Return the array, or a copy of it where it is not C-contiguous and writable."""
    flags = pixels.flags
    return pixels if flags.c_contiguous and flags.writeable else pixels.copy(order="C")


def check_shape(array: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise ``ValueError`` unless the array has this shape and dtype."""
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(
            f"out has shape {array.shape} and dtype {array.dtype}, but the picture has shape {shape} and "
            f"dtype {dtype}"
        )


def write(pixels: NDArray[Any], target: NDArray[Any]) -> None:
    """Write a picture into the middle of a larger or equal one, whose rest becomes 0.

    Both are of shape (height, width, channels), and may be views of any layout.
    """
    height, width, _ = pixels.shape
    if pixels.shape != target.shape:
        target[...] = 0
    top, left = margin((target.shape[0], target.shape[1]), (height, width))
    target[top : top + height, left : left + width] = pixels


def _as_array(out: Any) -> NDArray[Any]:
    if isinstance(out, np.ndarray):
        return out
    device = getattr(out, "device", None)
    if getattr(device, "type", None) == "cpu" and hasattr(out, "numpy"):
        array: NDArray[Any] = out.numpy()
        return array
    where = "" if device is None else f" on {device}"
    raise TypeError(f"out must be a numpy array or a CPU tensor, not {type(out).__name__}{where}")
