"""Decode JPEG with simplejpeg: libjpeg-turbo without the GIL, at a fraction of the size where it may.

libjpeg's warnings are errors here ("strict"), since it goes on after damage and makes the rest up. Under
``damaged="tolerate"`` a damaged file is decoded a second time without that.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from spdl_async.errors import DecodeError
from spdl_async.io._colors import as_mode, cmyk_to_rgb
from spdl_async.io._orientation import jpeg_orientation
from spdl_async.io._picture import Decoded, Wanted, check_pixels, decoding_scale

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_INK = ("CMYK", "YCCK")

_DAMAGE = ("Corrupt JPEG data", "Premature end of JPEG file")
"""How libjpeg's warnings start when part of the picture is made up. Its other warnings (an
unknown Adobe transform, an odd JFIF revision …) and its refusals are left to Pillow."""

_NO_DAMAGE = "ICC"
"""A broken colour profile does not touch the pixels."""


@functools.cache
def installed() -> Any:
    """Return the module simplejpeg, or None."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def decode_jpeg(view: memoryview[int], wanted: Wanted) -> Decoded | None:
    """Decode a JPEG; return None where Pillow should try.

    Raises:
        DecodeError: libjpeg reports damage, or the picture has more pixels than is allowed.
    """
    library = installed()
    try:
        height, width, colors, _ = library.decode_jpeg_header(view)
    except (ValueError, KeyError):
        # simplejpeg raises ValueError for every refusal, and KeyError for a colour space or
        # subsampling that it has no name for.
        return None
    check_pixels(height, width, wanted.max_pixels)
    orientation = jpeg_orientation(view)
    scale = decoding_scale((height, width), orientation, wanted)
    space = _color_space(colors, wanted.mode)
    # simplejpeg takes the smallest scale that gives this much: exactly ours.
    size = {"min_height": -(-height // scale), "min_width": -(-width // scale)}
    damage = None
    try:
        pixels = library.decode_jpeg(view, colorspace=space, strict=True, **size)
    except (ValueError, KeyError) as error:
        reason = str(error)
        if not reason.startswith(_DAMAGE) or _NO_DAMAGE in reason:
            return None
        damage = _describe(reason, len(view))
        if not wanted.tolerate:
            raise DecodeError(damage) from error
        try:
            pixels = library.decode_jpeg(view, colorspace=space, strict=False, **size)
        except (ValueError, KeyError):
            raise DecodeError(damage) from error
    if space == "CMYK":
        pixels = _from_ink(pixels, wanted.mode)
    return Decoded(pixels=pixels, full=(height, width), orientation=orientation, damage=damage)


def _color_space(colors: str, mode: str) -> str:
    if colors in _INK:
        return "CMYK"
    if mode == "L" or (mode == "unchanged" and colors == "Gray"):
        return "GRAY"
    return "RGB"


def _from_ink(pixels: NDArray[np.uint8], mode: str) -> NDArray[np.uint8]:
    """Convert what a CMYK or YCCK file has: by Adobe's habit, and Pillow's, inverted ink."""
    ink = 255 - pixels
    return ink if mode == "unchanged" else as_mode(cmyk_to_rgb(ink), "L" if mode == "L" else "RGB")


def _describe(reason: str, size: int) -> str:
    if reason.startswith("Premature end"):
        return f"truncated JPEG: the data ends after {size:,} bytes, before the picture does"
    return f"damaged JPEG ({size:,} bytes): {reason.removeprefix('Corrupt JPEG data: ')}"
