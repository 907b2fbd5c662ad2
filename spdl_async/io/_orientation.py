"""Read the EXIF orientation of a JPEG and turn a picture upright.

The orientation is read by hand: a few microseconds, where Pillow would parse the whole header.
Format: JPEG segments as in ITU-T T.81 annex B, the EXIF block (a TIFF header and its first
directory) as in CIPA DC-008, section 4.5; tag 0x0112 "Orientation" holds 1 to 8.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ORIENTATION_TAG = 0x0112
_APP1 = 0xE1
_START_OF_SCAN = 0xDA
_END_OF_IMAGE = 0xD9
_SIDEWAYS = 5
"""From this orientation on, turning the picture upright exchanges its height and width."""

_SEGMENT = struct.Struct(">BBH")
_EXIF = b"Exif\x00\x00"


def jpeg_orientation(data: memoryview[int]) -> int:
    """Return the EXIF orientation of a JPEG, 1 to 8; 1 where it says nothing sensible.

    A damaged header is no error here: the decoder judges the file.
    """
    position, last = 2, len(data) - 4
    while position <= last:
        prefix, marker, length = _SEGMENT.unpack_from(data, position)
        if prefix != 0xFF or marker in (_START_OF_SCAN, _END_OF_IMAGE):
            break
        if marker == 0xFF:  # a fill byte, T.81 B.1.1.2
            position += 1
            continue
        body = position + 4
        if marker == _APP1 and data[body : body + 6] == _EXIF:
            return exif_orientation(bytes(data[body : position + 2 + length]))
        position += 2 + length
    return 1


def exif_orientation(exif: bytes) -> int:
    """Look the orientation up in an EXIF block; 1 where it is damaged or says nothing sensible.

    Args:
        exif: a TIFF structure, which in some formats has "Exif" and two zeros before it.
    """
    tiff = exif.removeprefix(_EXIF)
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    if start + 2 > len(tiff):
        return 1
    (entries,) = struct.unpack_from(order + "H", tiff, start)
    # An entry is tag, type, count and value, 12 bytes; a short sits at the value's beginning.
    end = min(start + 2 + 12 * entries, len(tiff) - 11)
    for entry in range(start + 2, end, 12):
        tag, kind, _, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == _ORIENTATION_TAG and kind == 3 and 1 <= value <= 8:
            return int(value)
    return 1


def stored_size(size: tuple[int, int] | None, orientation: int) -> tuple[int, int] | None:
    """Return the (height, width) to make of the stored picture so that upright it has ``size``."""
    if size is None or orientation < _SIDEWAYS:
        return size
    return (size[1], size[0])


def upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Turn a picture as its EXIF orientation asks.

    Args:
        pixels: shape (height, width, channels), as stored.
        orientation: 1 to 8. Row 0 of the stored picture is, upright, its: 1 top, 2 top
            mirrored, 3 bottom mirrored, 4 bottom, 5 left, 6 right, 7 right mirrored, 8 left
            mirrored.

    Returns:
        A view, which is ``pixels`` itself for orientation 1.
    """
    if orientation == 1:
        return pixels
    turned = pixels.transpose(1, 0, 2) if orientation >= _SIDEWAYS else pixels
    if orientation in (3, 4, 7, 8):
        turned = turned[::-1]
    if orientation in (2, 3, 6, 7):
        turned = turned[:, ::-1]
    return turned


def as_stored(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Undo `upright`."""
    # Quarter turns are each other's inverses; all the others are their own.
    return upright(pixels, {6: 8, 8: 6}.get(orientation, orientation))
