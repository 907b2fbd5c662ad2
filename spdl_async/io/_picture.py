"""What is wanted of a picture, and what a back-end hands over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from spdl_async.errors import DecodeError
from spdl_async.io._fit import Fit, Pair, cropped, inner
from spdl_async.io._orientation import stored_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

Mode = Literal["RGB", "L", "RGBA", "unchanged"]

MOST_PIXELS = 178_956_970
"""256 MiB of grey, or 512 MiB of RGB pixels; also where Pillow by itself refuses."""

OVERSAMPLING = 2
"""A scaled JPEG decode keeps at least this many pixels for each wanted one, along both sides.

At 2 the result differs from that of a full decode by about one grey level in the mean; at 1 it is
10 to 25 % faster, but differs by two and up to five. Pillow's advice on ``reducing_gap`` is 2 too.
"""

_SCALES = (8, 4, 2)
"""Denominators of the scaled decode. The scales between them, as 3/8, have no SIMD code in
libjpeg-turbo and take longer than the next larger power of two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The checked options of `decode_image`; for most of them see there.

    Attributes:
        size: (height, width) of the result, upright; None for the picture's own.
        turn: apply the EXIF orientation.
        tolerate: return what could be decoded of damaged data.
    """

    size: Pair | None = None
    fit: Fit = "stretch"
    mode: Mode = "RGB"
    layout: Literal["HWC", "CHW"] = "HWC"
    turn: bool = True
    tolerate: bool = False
    max_pixels: int
    backend: str = "auto"

    def channels(self) -> int | None:
        """Return the number of channels of the result; None where the picture decides."""
        return {"RGB": 3, "L": 1, "RGBA": 4}.get(self.mode)


@dataclass(kw_only=True, slots=True)
class Decoded:
    """A picture as it is stored, perhaps scaled down.

    Attributes:
        pixels: shape (height, width, channels), dtype uint8, or uint16 for mode "unchanged".
        full: (height, width) before it was scaled down.
        orientation: the EXIF orientation that is yet to be applied, 1 to 8.
        damage: what was wrong with the data, where that was tolerated.
        alpha: the last channel is alpha.
        indices: the values are indices into a palette.
    """

    pixels: NDArray[Any]
    full: Pair
    orientation: int = 1
    damage: str | None = None
    alpha: bool = False
    indices: bool = False


def check_pixels(height: int, width: int, limit: int, *, frames: int = 1) -> None:
    """Refuse a picture so large that it may be an attack on the memory.

    Raises:
        DecodeError: it has more than ``limit`` pixels in all its frames.
    """
    if height * width * frames > limit:
        count = f"{frames:,} frames" if frames > 1 else "a picture"
        raise DecodeError(
            f"{count} of {width:,} x {height:,} pixels: more than max_pixels={limit:,}; raise it if "
            f"it is a picture of yours"
        )


def decoding_scale(full: Pair, orientation: int, wanted: Wanted) -> int:
    """Choose by how much a JPEG may be shrunk while it is decoded: 1, 2, 4 or 8."""
    size = stored_size(wanted.size, orientation if wanted.turn else 1)
    if size is None:
        return 1
    kept = cropped(full, size, wanted.fit)
    rows, columns = inner(full, size, wanted.fit)
    for scale in _SCALES:
        least = scale * OVERSAMPLING
        if kept[0] >= least * rows and kept[1] >= least * columns:
            return scale
    return 1
