"""The one rule for colours, on arrays: what every back-end's pixels go through.

Formulas and their rounding are Pillow's, so that it makes no difference who has decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spdl_async.errors import DecodeError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def to_8_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Keep the high byte of 16-bit values: 0 to 65535 become 0 to 255, never clipped.

    Raises:
        DecodeError: values that 16 bits do not hold.
    """
    return (to_16_bits(values) >> 8).astype(np.uint8)


def to_16_bits(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Return whole numbers as 16 bits, where they fit.

    Raises:
        DecodeError: values that 16 bits do not hold.
    """
    if values.dtype.itemsize > 2 and values.size and (values.min() < 0 or values.max() > 0xFFFF):
        raise DecodeError(
            f"a greyscale picture with values from {values.min()} to {values.max()}: 16 bits hold 0 "
            f"to 65535; convert it first"
        )
    return values.astype(np.uint16)


def cmyk_to_rgb(cmyk: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert without colour profiles: each ink darkens what black has left.

    Args:
        cmyk: shape (height, width, 4), 0 is no ink.

    Returns:
        Shape (height, width, 3), dtype uint8.
    """
    light = 255 - cmyk[:, :, 3:].astype(np.uint16)
    product = cmyk[:, :, :3] * light + 128
    # Division by 255 to the nearest, in 16 bits.
    darkened = (product + (product >> 8)) >> 8
    rgb: NDArray[np.uint8] = (light - np.minimum(darkened, light)).astype(np.uint8)
    return rgb


def rgb_to_grey(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the luma of ITU-R BT.601 as shape (height, width, 1)."""
    red, green, blue = (rgb[:, :, channel].astype(np.uint32) for channel in range(3))
    luma = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
    return luma.astype(np.uint8)[:, :, np.newaxis]


def as_mode(pixels: NDArray[np.uint8], mode: str) -> NDArray[np.uint8]:
    """Bring 1 (grey) or 3 (RGB) channels to those of ``mode``, "RGB", "L" or "RGBA" (opaque)."""
    channels = pixels.shape[2]
    if mode == "L":
        return pixels if channels == 1 else rgb_to_grey(pixels)
    if channels == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    if mode == "RGBA" and pixels.shape[2] == 3:
        height, width, _ = pixels.shape
        opaque = np.full((height, width, 4), 255, np.uint8)
        opaque[:, :, :3] = pixels
        return opaque
    return pixels
