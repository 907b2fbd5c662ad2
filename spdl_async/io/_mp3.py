"""Where the frames of an MP3 file lie, and whether it is whole.

libmpg123, which libsndfile decodes MP3 with, writes to stderr about what it does not like, skips it
and goes on, so that damage is neither silent nor an error. This looks at the chain of frames first
(ISO/IEC 11172-3 and 13818-3: the header says how long a frame is), keeps from libmpg123 what is no
frame, and says where the chain ends too early.
"""

from __future__ import annotations

import struct

from spdl_async.errors import DecodeError
from spdl_async.io._media import Media

_KBPS = {
    (1, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}

_SAME = 0xFFFE0C00
"""Bits of a header that all frames of a file share: sync, version, layer and sample rate."""

_KIND = 0xFFFFFEC0
"""Bits that a frame's length and number of channels follow from: also bit rate, padding, mode, check sum."""

_HEADER = struct.Struct(">I")
_MOST_BIG_VALUES = 288
_TAGS = (b"TAG", b"APETAGEX", b"LYRICS", b"ID3", b"3DI")


def frames_of_mp3(media: Media) -> tuple[Media, str | None]:
    """Return the frames alone, and what is wrong with their end, None if nothing is.

    What is no MP3 is returned without ID3 tags in front, as FLAC files may have them, else as it is.

    Raises:
        DecodeError: the first frames are damaged, or of free bit rate.
    """
    start = _behind_tags(media)
    first = int.from_bytes(media.part(start, 4), "big")
    if first >> 21 == 0x7FF and first >> 17 & 3 and first >> 12 & 15 == 0:
        raise DecodeError('MP3 of "free" bit rate, which no header tells the length of frames in')
    if not is_frame(first):
        return (media if start == 0 else Media(media.part(start, media.size), None)), None
    view = media.part(0, media.size)
    at, frames = _chain(bytes(view), start, first)
    if frames < 2:  # libmpg123 refuses a single one
        raise DecodeError(
            f"damaged or truncated MP3: of its first two frames, from byte {start:,} on, "
            f"{frames} is whole"
        )
    cut = _said_of_tail(view, at)
    tag = _find_xing(view, start)
    if tag is not None and int.from_bytes(view[tag + 7 : tag + 8]) & 1:
        declared = int.from_bytes(view[tag + 8 : tag + 12], "big")
        if declared > frames - 1 and cut is None:
            cut = f"its header declares {declared:,} frames, and {max(0, frames - 1):,} are there"
    if cut is not None:
        cut = f"{cut}; {frames:,} whole MPEG frames are there"
    inside = view[start:at]
    true = _with_true_xing(inside, tag and tag - start, frames)
    if true is inside and len(inside) == media.size:
        return media, cut
    return Media(true, None), cut


def is_frame(header: int) -> bool:
    """Tell whether 32 bits are the header of a frame."""
    return header >> 21 == 0x7FF and header >> 17 & 3 != 0 and _length(header) > 0


def _behind_tags(media: Media) -> int:
    """Return where the frames begin: behind the ID3v2 tags, whose sizes have 7 bits a byte."""
    at = 0
    while bytes(media.part(at, 3)) == b"ID3":
        head = bytes(media.part(at, 10))
        if len(head) < 10:
            break
        size = 0
        for byte in head[6:]:
            size = size << 7 | byte & 0x7F
        at += 10 + size + (10 if head[5] & 0x10 else 0)
    return at


def _length(header: int) -> int:
    """Return a frame's length in bytes from its header; 0 where it is none."""
    version, layer = header >> 19 & 3, 4 - (header >> 17 & 3)
    rate_index, speed = header >> 10 & 3, header >> 12 & 15
    if version == 1 or layer == 4 or rate_index == 3 or speed in (0, 15):
        return 0
    bits = 1_000 * _KBPS[1 if version == 3 else 2, layer][speed - 1]
    rate, padding = _RATES[version][rate_index], header >> 9 & 1
    if layer == 1:
        return (12 * bits // rate + padding) * 4
    return (72 if layer == 3 and version != 3 else 144) * bits // rate + padding


def _is_mono(header: int) -> bool:
    return header >> 6 & 3 == 3


def _chain(data: bytes, start: int, first: int) -> tuple[int, int]:
    """Follow the frames from ``start``; return where their chain ends, and their number."""
    kinds = dict[int, tuple[int, ...]]()
    read, end = _HEADER.unpack_from, len(data)
    at, frames = start, 0
    while at + 4 <= end:
        header: int = read(data, at)[0]
        kind = kinds.get(header & _KIND)
        if kind is None:
            same = (header ^ first) & _SAME == 0 and _is_mono(header) == _is_mono(first)
            kind = kinds[header & _KIND] = _kind(header) if same else (0, 0, 0)
        length, head, size, *layout = kind
        if not length or at + length > end:
            break
        if size:
            bits = int.from_bytes(data[at + head : at + head + size], "big")
            if not _side_is_sound(bits, length - head - size, *layout):
                break
        at += length
        frames += 1
    return at, frames


def _kind(header: int) -> tuple[int, ...]:
    """Return a frame's length; then, for Layer III, where its side information lies, and its form."""
    length = _length(header)
    if header >> 17 & 3 != 1:
        return length, 0, 0
    mono, first_version = _is_mono(header), header >> 19 & 3 == 3
    if first_version:
        size, skipped, step, parts, to_window = (17, 18, 59, 2, 15) if mono else (32, 20, 59, 4, 15)
    else:
        size, skipped, step, parts, to_window = (9, 9, 63, 1, 20) if mono else (17, 10, 63, 2, 20)
    shift = 8 * size - skipped - 21  # 12 bits of length, 9 of count
    to_back = 8 * size - (9 if first_version else 8)
    return length, 4 if header >> 16 & 1 else 6, size, shift, step, parts, to_window, to_back


def _side_is_sound(
    bits: int, room: int, shift: int, step: int, parts: int, to_window: int, to_back: int
) -> bool:
    """Tell whether side information has possible numbers of values and of bits, and windows.

    Args:
        bits: the side information.
        room: bytes of the frame behind it.
        shift: to the count of values of its first part, as are the next in it.
        step: bits from one part to the next.
        parts: one for each granule and channel.
        to_window: bits from the count to the kind of window.
        to_back: to the number of bytes by which data begins in earlier frames.
    """
    used = 0
    for at in range(shift, shift - parts * step, -step):
        count = bits >> at
        # A window that is switched, but to no other.
        if count & 0x1FF > _MOST_BIG_VALUES or bits >> (at - to_window) & 7 == 4:
            return False
        used += count >> 9 & 0xFFF
    return used <= 8 * (room + (bits >> to_back))


def _said_of_tail(view: memoryview[int], at: int) -> str | None:
    tail = bytes(view[at : at + 64])
    if not tail.strip(b"\x00") or tail.startswith(_TAGS):
        return None
    rest = len(view) - at
    if int.from_bytes(tail[:2], "big") >> 5 == 0x7FF:
        return f"its frame at byte {at:,} is damaged or cut short ({rest:,} bytes are left)"
    return f"at byte {at:,} there is no frame, but {rest:,} bytes that are none"


def _find_xing(view: memoryview[int], start: int) -> int | None:
    """Return where the tag with the number of frames lies in the first frame, if it has one."""
    frame = bytes(view[start : start + 64])
    return next((start + frame.find(t) for t in (b"Xing", b"Info") if t in frame), None)


def _with_true_xing(frames: memoryview[int], tag: int | None, count: int) -> memoryview[int]:
    """Correct the frames' number and size in the tag: libmpg123 warns where they are wrong."""
    if tag is None:
        return frames
    flags = frames[tag + 7]
    at, true = tag + 8, {1: max(0, count - 1), 2: len(frames)}
    patched: bytearray | None = None
    for flag, value in true.items():
        if flags & flag:
            if int.from_bytes(frames[at : at + 4], "big") != value:
                patched = patched or bytearray(frames)
                patched[at : at + 4] = value.to_bytes(4, "big")
            at += 4
    return frames if patched is None else memoryview(patched).toreadonly()
