"""The true sizes of the pictures in an icon, which its own directory need not tell.

Pillow decodes an ICO while it is opened, and of an ICNS it takes the sizes from the names of its parts, so
that a header of 16 x 16 pixels may lead to the memory of millions. The parts are whole PNG
files, JPEG 2000 code streams (ITU-T T.800, A.5.1), or, in an ICO, bitmaps without their file header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_PNG = b"\x89PNG\r\n\x1a\n"
_CODE_STREAM = b"\xff\x4f\xff\x51"
_ICO = (b"\0\0\1\0", b"\0\0\2\0")


def sizes_in_icon(view: memoryview[int]) -> Iterator[tuple[int, int]]:
    """Yield (height, width) of each picture in an ICO, CUR or ICNS; nothing for other formats."""
    start = bytes(view[:6])
    is_ico = start[:4] in _ICO
    if not is_ico and start[:4] != b"icns":
        return
    data = bytes(view)
    # Wherever they lie: directories can be damaged, or point into one another.
    for magic, skipped in ((_PNG, 16), (_CODE_STREAM, 8)):
        at = data.find(magic)
        while at >= 0 and at + skipped + 8 <= len(data):
            width, height = struct.unpack_from(">II", data, at + skipped)
            yield height, width
            at = data.find(magic, at + 1)
    if is_ico and len(start) == 6:
        yield from _bitmaps(data, int.from_bytes(start[4:], "little"))


def _bitmaps(data: bytes, entries: int) -> Iterator[tuple[int, int]]:
    for entry in range(6, min(6 + 16 * entries, len(data) - 15), 16):
        (at,) = struct.unpack_from("<I", data, entry + 12)
        if at + 16 <= len(data) and data[at : at + 8] != _PNG:
            _, width, height = struct.unpack_from("<Iii", data, at)
            yield abs(height) // 2, abs(width)  # the mask follows as a second half
