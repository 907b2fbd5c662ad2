"""Where the frames of an MP3 file lie, and whether it is whole.

libmpg123, which libsndfile decodes MP3 with, writes to stderr about what it does not like, skips it
and goes on, so that damage is neither silent nor an error. This looks at the chain of frames first
(ISO/IEC 11172-3 and 13818-3: the header says how long a frame is), keeps from libmpg123 what is no
frame, and says where the chain ends too early.
"""

from __future__ import annotations

from spdl_async.errors import DecodeError
from spdl_async.io._media import Media
from spdl_async.io._mp3_frames import FrameForm, frame_form, frame_length, same_sound

_AT_ONCE = 256
"""Frames whose side information is checked together."""

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
    at, frames = _chain(b"".join((view, bytes(3))), start, first)
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
    return header >> 21 == 0x7FF and frame_length(header) > 0


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


def _chain(data: bytes, at: int, first: int) -> tuple[int, int]:
    """Follow the frames from ``at``; return where their chain ends, and their number.

    Args:
        data: the file, and three bytes more, so that each place in it has a third one.
        at: where its first frame begins.
        first: that frame's header.
    """
    frames, form = 0, None
    while True:
        header = int.from_bytes(data[at : at + 4], "big")
        if not same_sound(header, first) or frame_form(header) is form:
            return at, frames
        form = frame_form(header)
        at, more = _chain_of_form(data, at, form)
        frames += more


def _chain_of_form(data: bytes, at: int, form: FrameForm) -> tuple[int, int]:
    slot, lengths, end = form.slot, form.lengths, len(data) - 3
    frames = 0
    while True:
        starts = list[bytes]()
        begin = at
        for _ in range(_AT_ONCE):
            length = lengths[data[at + 2]]
            if not length or at + length > end:
                break
            starts.append(data[at : at + slot])
            at += length
        sound = form.sound(b"".join(starts), len(starts))
        frames += sound
        if sound < len(starts):
            return begin + sum(lengths[start[2]] for start in starts[:sound]), frames
        if sound < _AT_ONCE:
            return at, frames


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
