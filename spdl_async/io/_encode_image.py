"""encode_image: an array to the bytes of a picture file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from spdl_async.io._extras import need
from spdl_async.io._jpeg import installed

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHANNELS = {1: "GRAY", 3: "RGB", 4: "RGBA"}


def encode_image(
    array: NDArray[Any],
    *,
    format: Literal["JPEG", "PNG", "WEBP"] = "JPEG",  # noqa: A002 -- Pillow's word
    quality: int = 90,
) -> bytes:
    """Encode an array as a picture file, in memory.

    Args:
        array: shape (height, width), or (height, width, channels) with 1 (grey), 3 (RGB) or 4 (RGBA)
            channels; dtype uint8, for PNG in grey also uint16. A CPU tensor is taken too.
        format: "JPEG" (lossy, no alpha), "PNG" (lossless) or "WEBP" (lossy, with alpha).
        quality: 1 to 100, for JPEG and WebP; PNG has none.

    Returns:
        The content of the file.

    Raises:
        TypeError: the array's dtype is not one that the format holds.
        ValueError: shape, format or quality is out of range, or JPEG is given an alpha channel.
        ImportError: Pillow (for PNG and WebP) is not installed.

    Example:
        >>> import numpy as np
        >>> from spdl_async.io import image_info
        >>> pixels = np.zeros((60, 80, 3), np.uint8)
        >>> image_info(encode_image(pixels, format="PNG")).width
        80
    """
    if format not in ("JPEG", "PNG", "WEBP"):
        raise ValueError(f"format must be 'JPEG', 'PNG' or 'WEBP', not {format!r}")
    if isinstance(quality, bool) or not isinstance(quality, int) or not 1 <= quality <= 100:
        raise ValueError(f"quality must be a whole number from 1 to 100, not {quality!r}")
    pixels = _checked(np.asarray(array), format)
    simplejpeg = installed()
    if format == "JPEG" and simplejpeg is not None:
        channels = pixels.shape[2]
        data: bytes = simplejpeg.encode_jpeg(
            pixels,
            quality=quality,
            colorspace=_CHANNELS[channels],
            colorsubsampling="Gray" if channels == 1 else "420",
        )
        return data
    image = need("PIL.Image", "image")
    file = io.BytesIO()
    picture = image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    options = {} if format == "PNG" else {"quality": quality}
    picture.save(file, format, **options)
    return file.getvalue()


def _checked(array: NDArray[Any], kind: str) -> NDArray[Any]:
    """Return the array as (height, width, channels), C-contiguous."""
    pixels = array[:, :, np.newaxis] if array.ndim == 2 else array
    if pixels.ndim != 3 or pixels.shape[2] not in _CHANNELS or 0 in pixels.shape:
        raise ValueError(
            f"encode_image takes an array of shape (height, width) or (height, width, channels) with 1, "
            f"3 or 4 channels, not {array.shape}; one in the layout CHW is turned by "
            f"array.transpose(1, 2, 0)"
        )
    deep = kind == "PNG" and pixels.shape[2] == 1 and pixels.dtype == np.uint16
    if pixels.dtype != np.uint8 and not deep:
        raise TypeError(
            f"encode_image takes uint8 for {kind} (and uint16 for grey in PNG), not {pixels.dtype}: "
            f"scale and convert it first"
        )
    if kind == "JPEG" and pixels.shape[2] == 4:
        raise ValueError("JPEG has no alpha channel: leave it out, as with array[:, :, :3]")
    if kind == "WEBP" and max(pixels.shape[:2]) > 16383:
        raise ValueError(f"WebP holds at most 16383 pixels a side, not {pixels.shape[:2]}")
    return np.ascontiguousarray(pixels)
