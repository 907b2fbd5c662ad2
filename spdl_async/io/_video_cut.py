"""Tell whether a video file ends before its container does, from the sizes that this declares.

FFmpeg reads what is there and then reports an ordinary end. The outermost layer of the common
containers knows better: each top-level box of MP4 and MOV (ISO/IEC 14496-12), the segment of
Matroska and WebM (RFC 8794, RFC 9559) and the RIFF chunks of AVI declare how long they are.
"""

from __future__ import annotations

from spdl_async.io._media import Media

_MOST_BOXES = 10_000
_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp", b"moof", b"sidx")
_EBML, _SEGMENT = 0x1A45DFA3, 0x18538067


def missing_end(media: Media) -> str | None:
    """Return what is cut short and where; None where nothing is, or nothing can be told."""
    start = bytes(media.part(0, 12))
    if start[4:8] in _BOXES:
        return _missing_in_boxes(media)
    if start[:4] == _EBML.to_bytes(4, "big"):
        return _missing_in_matroska(media)
    if start[:4] == b"RIFF" and start[8:] == b"AVI ":
        return _missing_in_avi(media)
    return None


def _said(what: str, at: int, end: int, media: Media) -> str | None:
    if end <= media.size:
        return None
    return f"{what} at byte {at:,} reaches to byte {end:,}, and the data ends at {media.size:,}"


def _missing_in_boxes(media: Media) -> str | None:
    at = 0
    for _ in range(_MOST_BOXES):
        if at >= media.size:
            return None
        head = bytes(media.part(at, 16))
        size, name = int.from_bytes(head[:4], "big"), head[4:8]
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        if size == 0 or len(head) < 8:
            return None  # up to the end, or a few bytes behind the last box
        if size < 8 or not name.isascii():
            return None  # no box: FFmpeg says what it makes of it
        said = _said(f"its box {name.decode('ascii')!r}", at, at + size, media)
        if said is not None:
            return said
        at += size
    return None


def _missing_in_matroska(media: Media) -> str | None:
    at = 0
    for _ in range(2):
        head = media.part(at, 12)
        element, id_length = _number(head, keep_marker=True)
        size, size_length = _number(head[id_length:], keep_marker=False)
        body = at + id_length + size_length
        if not id_length or not size_length or size == (1 << (7 * size_length)) - 1:
            return None  # damaged, or of unknown size: a live stream
        if element == _SEGMENT:
            return _said("its segment", at, body + size, media)
        at = body + size
    return None


def _number(data: memoryview[int], *, keep_marker: bool) -> tuple[int, int]:
    """Read a number of EBML, whose leading zero bits say how long it is: (value, length)."""
    if not data or not data[0]:
        return 0, 0
    length = 9 - data[0].bit_length()
    if len(data) < length:
        return 0, 0
    value = int.from_bytes(data[:length], "big")
    return (value if keep_marker else value & ((1 << (7 * length)) - 1)), length


def _missing_in_avi(media: Media) -> str | None:
    at = 0
    for _ in range(_MOST_BOXES):
        head = bytes(media.part(at, 8))
        if len(head) < 8 or head[:4] != b"RIFF":
            return None
        size = int.from_bytes(head[4:], "little")
        said = _said("its RIFF chunk", at, at + 8 + size, media)
        if said is not None:
            return said
        at += 8 + size + size % 2
    return None
