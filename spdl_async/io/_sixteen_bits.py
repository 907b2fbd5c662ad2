"""16-bit colours out of Pillow, whose pictures of several channels have 8 bits.

Pillow unpacks such a file into the high bytes of the values. Read with the other byte order it unpacks
the low bytes instead; two passes give all 16 bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.ImageFile import ImageFile

SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N", "I")
"""Greyscale of 16 bits. Pillow gives some of it as "I", which has room for 32."""

_NATIVE = "L" if sys.byteorder == "little" else "B"
_OTHER = {"B": "L", "L": "B", "N": "B" if _NATIVE == "L" else "L"}


_ORDERS = {f"{mode};16{order}" for mode in ("RGB", "RGBA", "CMYK") for order in "LBN"}


def has_16_bit_colors(picture: ImageFile, view: memoryview[int]) -> bool:
    """Tell whether a PNG or TIFF has several channels of 16 bits."""
    if picture.format == "PNG":
        return view[24] == 16 and view[25] in (2, 4, 6)
    return picture.format == "TIFF" and _raw_mode(picture) in _ORDERS


def load_16_bit_colors(
    picture: ImageFile, open_again: Callable[[], ImageFile], load: Callable[[ImageFile], str | None]
) -> tuple[NDArray[np.uint16], str | None]:
    """Load the picture that a file stands at.

    Args:
        picture: the opened file.
        open_again: opens it once more.
        load: loads a picture and returns what is wrong with it, where that is tolerated.

    Returns:
        Shape (height, width, channels), dtype uint16; and what is wrong with it.
    """
    raw = _raw_mode(picture)
    with open_again() as other:
        other.seek(picture.tell())
        if raw == "LA;16B":
            # One value of four bytes: both bytes of the grey, both of the alpha.
            _set_raw_mode(other, "RGBA")
            damage = load(other)
            pairs = np.ascontiguousarray(np.asarray(other))
            values: NDArray[np.uint16] = pairs.view(">u2").astype(np.uint16)
            return values, damage
        _set_raw_mode(other, raw[:-1] + _OTHER[raw[-1]])
        damage = load(other)
        low = np.asarray(other)
    load(picture)
    values = np.asarray(picture).astype(np.uint16)
    values <<= 8
    values |= low
    return values, damage


def _raw_mode(picture: ImageFile) -> str:
    """Return how the decoder unpacks the data of an opened picture."""
    args: Any = picture.tile[0].args if picture.tile else ""
    return args if isinstance(args, str) else str(args[0])


def _set_raw_mode(picture: ImageFile, raw: str) -> None:
    """Have it unpacked in another way."""
    picture.tile = [
        tile._replace(args=(raw, *tile.args[1:]) if isinstance(tile.args, tuple) else raw)
        for tile in picture.tile
    ]
