"""The form of MPEG audio frames: ISO/IEC 11172-3, 2.4.1 and 2.4.2, and 13818-3.

libmpg123 writes to stderr about what is impossible in a frame. So frames are looked at before, and as
there are forty in each second, many at once: what they begin with, one after the other, is one large
number, of which each frame has a slot of as many bits; adding, masking or shifting such numbers does so
in every slot.
"""

from __future__ import annotations

import functools

_KBPS = {
    (1, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}

_SAME = 0xFFFF0C00
"""Bits of a header that frames of one form share: sync, version, layer, check sum and sample rate."""

_MODE = 0xC0
_LAYER_3 = 1
_MOST_BIG_VALUES = 288

_GUARD = 1 << 20
"""More than the bits of any frame, so that no slot borrows from the next."""


def frame_length(header: int) -> int:
    """Return a frame's length in bytes from its header, of 32 bits; 0 where it is none."""
    version, layer = header >> 19 & 3, 4 - (header >> 17 & 3)
    rate_index, speed = header >> 10 & 3, header >> 12 & 15
    if version == 1 or layer == 4 or rate_index == 3 or speed in (0, 15):
        return 0
    bits = 1_000 * _KBPS[1 if version == 3 else 2, layer][speed - 1]
    rate, padding = _RATES[version][rate_index], header >> 9 & 1
    if layer == 1:
        return (12 * bits // rate + padding) * 4
    return (72 if layer == 3 and version != 3 else 144) * bits // rate + padding


def same_sound(header: int, other: int) -> bool:
    """Tell whether frames may follow each other: all but check sums, and mono or not, is the same."""
    return (header ^ other) & _SAME & ~0x10000 == 0 and _is_mono(header) == _is_mono(other)


def frame_form(header: int) -> FrameForm:
    """Return the form of frames with this header."""
    return _frame_form(header & (_SAME | _MODE))


def _is_mono(header: int) -> bool:
    return header & _MODE == _MODE


class FrameForm:
    """How long frames are, and where the fields lie that they begin with.

    A slot is the header, the check sum and, of Layer III, the side information. That has a part for each
    granule and channel, which begins with 12 bits of length and 9 of count (``big_values``), and has,
    further behind, a switch and two bits for the kind of its window.

    Attributes:
        slot: bytes of a slot.
        lengths: bytes of a frame, by the third byte of its header; 0 where that is of another form.
    """

    __slots__ = ("_back", "_fields", "_last", "_lengths", "_rooms", "lengths", "slot")

    def __init__(self, header: int) -> None:
        mono, first_version = _is_mono(header), header >> 19 & 3 == 3
        if header >> 17 & 3 != _LAYER_3:
            size, skipped, step, parts, window = 0, 0, 0, 0, 0
        elif first_version:
            size, skipped, step, parts, window = (
                (17, 18, 59, 2, 33) if mono else (32, 20, 59, 4, 33)
            )
        else:
            size, skipped, step, parts, window = (9, 9, 63, 1, 38) if mono else (17, 10, 63, 2, 38)
        self.slot = (4 if header & 0x10000 else 6) + size
        headers = [header & ~0xFF00 | third << 8 for third in range(256)]
        self.lengths = [frame_length(h) if (h ^ header) & _SAME == 0 else 0 for h in headers]
        # In bits, and the guard bit with it.
        self._rooms = [
            self._slots(max(0, 8 * (length - self.slot)) + _GUARD) for length in self.lengths
        ]
        begins = [8 * size - skipped - step * part for part in range(parts)]
        self._lengths = [begin - 12 for begin in begins]
        counts, windows = [begin - 21 for begin in begins], [begin - window for begin in begins]
        back = (
            9 if first_version else 8
        )  # by how many bytes data begins in earlier frames: the first field
        self._back = 8 * size - back if size else 0
        top = 8 * (self.slot - 4)
        fields = (
            header << top,
            (_SAME | (_MODE if mono else 0)) << top,
            0 if mono else 0x80 << top,
            sum(0x1FF << count for count in counts),
            sum(0x1FF - _MOST_BIG_VALUES << count for count in counts),
            sum(0x200 << count for count in counts),
            sum(4 << at - 3 for at in windows),
            0xFFF if size else 0,
            (1 << back) - 1 if size else 0,
            _GUARD if size else 0,
        )
        self._fields = [self._slots(field) for field in fields]
        self._last = 0, [0] * len(fields)

    def _slots(self, value: int) -> bytes:
        return value.to_bytes(self.slot, "big")

    def _of(self, frames: int) -> list[int]:
        """Return the fields in the slots of so many frames; most often it is as many as before."""
        last = self._last
        if last[0] != frames:
            numbers = [int.from_bytes(field * frames, "big") for field in self._fields]
            self._last = last = frames, numbers  # one assignment, as other threads use it too
        return last[1]

    def sound(self, starts: bytes, frames: int) -> int:
        """Count the frames up to one of another form, or of impossible numbers of values or bits, or windows.

        Args:
            starts: the slots of all.
            frames: how many there are.
        """
        form, same, stereo, counts, above, over, switches, length, back, guard = self._of(frames)
        slots = int.from_bytes(starts, "big")
        bad = (slots ^ form) & same | slots & slots << 1 & stereo
        # What is more than 288 carries into the bit above the count.
        bad |= (slots & counts) + above & over
        # A window that is switched, but to no other.
        bad |= slots & ~(slots << 1) & ~(slots << 2) & switches
        # The guard bit goes where the parts need more bits than there are.
        rooms = b"".join(map(self._rooms.__getitem__, starts[2 :: self.slot]))
        left = int.from_bytes(rooms, "big") + ((slots >> self._back & back) << 3)
        for at in self._lengths:
            left -= slots >> at & length
        bad |= guard & ~left
        return frames - 1 - (bad.bit_length() - 1) // (8 * self.slot) if bad else frames


_frame_form = functools.cache(FrameForm)
