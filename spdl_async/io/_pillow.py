"""Decode with Pillow what the fast path does not take: every format but ordinary JPEG.

Nothing of Pillow's global state is changed, and no picture stays open after a call.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from spdl_async.errors import DecodeError
from spdl_async.io._diagnosis import describe_bytes

try:
    from PIL import ExifTags, Image, UnidentifiedImageError
except ImportError:
    _HAS_PILLOW = False
else:
    _HAS_PILLOW = True

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.ImageFile import ImageFile

_PIXELS_WITHOUT_PILLOW = 1024**3 // 4 // 3
"""Pillow's own default of MAX_IMAGE_PIXELS."""

_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N", "I")
"""Greyscale of 16 bits. Pillow gives some of it as "I", which has room for 32."""


def load_with_pillow(
    view: memoryview[int], *, at_least: tuple[int, int] | None = None
) -> tuple[NDArray[np.uint8], int]:
    """Decode the first picture of any format that Pillow knows.

    Args:
        view: the file's bytes.
        at_least: if the format can be decoded at a fraction of its size (JPEG), do, but to no
            less than this (height, width).

    Returns:
        The picture as stored, a writable array of shape (height, width, 3), and its EXIF
        orientation, 1 to 8.

    Raises:
        DecodeError: the data cannot be decoded.
        ImportError: Pillow is not installed.
    """
    _require_pillow()
    try:
        with Image.open(io.BytesIO(view)) as picture:
            if picture.format == "EPS":
                raise DecodeError(
                    "a PostScript (EPS) file: decoding it would start Ghostscript; convert it "
                    "to PNG or JPEG"
                )
            if at_least is not None:
                picture.draft(None, (at_least[1], at_least[0]))
            picture.load()
            orientation = picture.getexif().get(ExifTags.Base.Orientation, 1)
            return _as_rgb(picture), orientation if orientation in range(1, 9) else 1
    except (DecodeError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise DecodeError(describe_bytes(view)) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(
            f"{error}: raise PIL.Image.MAX_IMAGE_PIXELS if it is a picture of yours"
        ) from error
    except Exception as error:
        # Pillow's format readers let through whatever their parsing of damaged data meets.
        raise DecodeError(f"damaged picture ({len(view):,} bytes): {_reason(error)}") from error


def check_pixel_count(height: int, width: int) -> None:
    """Refuse a picture so large that it may be an attack on the memory, by Pillow's rule.

    Raises:
        DecodeError: it has more than twice ``PIL.Image.MAX_IMAGE_PIXELS`` pixels.
    """
    limit = Image.MAX_IMAGE_PIXELS if _HAS_PILLOW else _PIXELS_WITHOUT_PILLOW
    if limit is not None and height * width > 2 * limit:
        raise DecodeError(
            f"a JPEG of {width} x {height} pixels is larger than the limit of {2 * limit:,} "
            f"pixels: raise PIL.Image.MAX_IMAGE_PIXELS if it is a picture of yours"
        )


def resize_with_pillow(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Stretch a picture to ``size`` = (height, width) with an antialiasing bilinear filter.

    Takes and returns arrays of shape (height, width, 3).
    """
    _require_pillow()
    height, width = size
    return np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def _as_rgb(picture: ImageFile) -> NDArray[np.uint8]:
    """Convert a loaded picture of any mode to an array of 8-bit RGB."""
    if picture.mode in _SIXTEEN_BIT:
        return _grey_from_16_bits(np.asarray(picture))
    if picture.mode == "F":
        raise DecodeError(
            "a picture of floating-point numbers: there is no rule which of them are black and "
            "white; convert it to 8 or 16 bits first"
        )
    # With a transparent colour noted, Pillow warns that RGB cannot express it; the pixels of
    # the result are the same.
    picture.info.pop("transparency", None)
    return np.array(picture if picture.mode == "RGB" else picture.convert("RGB"))


def _grey_from_16_bits(grey: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Keep the high byte of each value. (Pillow's own conversion clips at 255 instead.)"""
    if grey.dtype.itemsize > 2 and (grey.min() < 0 or grey.max() > 0xFFFF):
        raise DecodeError(
            f"a greyscale picture with values from {grey.min()} to {grey.max()}: 16 bits hold 0 "
            f"to 65535; convert it first"
        )
    high = (grey >> 8).astype(np.uint8)
    return np.repeat(high[:, :, np.newaxis], 3, axis=2)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, OSError) and str(error) else f"{error!r}"


def _require_pillow() -> None:
    if not _HAS_PILLOW:
        raise ImportError(
            "this picture needs Pillow, which is not installed: pip install 'spdl-async[image]'",
            name="PIL",
        )
