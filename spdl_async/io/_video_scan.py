"""The table of a video's frames, from its packets alone: when each is shown, and where to start."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FALLBACK_RATE = 25.0


@dataclass(frozen=True, kw_only=True)
class FrameTable:
    """All frames of a video, in the order in which they are shown.

    Attributes:
        times: when each is shown, seconds from the first, ascending.
        duration: when the last one is over, seconds.
        packets: for each frame, the number of its packet in the file, from 0.
        entries: for each frame, the number of the key frame's packet at which decoding has to
            begin for it.
        by_pts: a frame's position by its time stamp; None where time stamps are missing or not
            unique, so that frames are told apart by counting them from the start.
        ordinals: a packet's number by its time stamp.
        stamps: for each packet, its presentation and decoding time stamps.
        cut: the packets ended with an error or a damaged packet: what was said.
    """

    times: NDArray[np.float64]
    duration: float
    packets: list[int]
    entries: list[int]
    by_pts: dict[int, int] | None
    ordinals: dict[int, int]
    stamps: list[tuple[int | None, int | None]]
    cut: str | None

    def __len__(self) -> int:
        return len(self.times)


@dataclass(slots=True)
class _Packet:
    pts: int | None
    dts: int | None
    duration: int
    key: bool
    shown: bool


def scan(packets: Iterable[Any], stream: Any, failure: type[Exception]) -> FrameTable:
    """Read all packets of a stream, decoding none, and lay out its frames."""
    found, cut = list[_Packet](), None
    vp8 = stream.codec_context.name in ("vp8", "libvpx")
    try:
        for packet in packets:
            if not packet.size:
                continue
            if packet.is_corrupt:
                cut = f"the packet at byte {packet.pos} is cut short or damaged"
                break
            # A VP8 frame whose bit "show_frame" (RFC 6386, 9.1) is clear is only referred to.
            shown = not packet.is_discard and not (vp8 and not bytes(packet)[0] & 0x10)
            found.append(
                _Packet(packet.pts, packet.dts, packet.duration or 0, packet.is_keyframe, shown)
            )
    except failure as error:
        cut = str(error)
    stamped = _by_stamps(found, float(stream.time_base or 0), cut)
    return stamped or _by_counting(found, stream, cut)


def _by_stamps(found: list[_Packet], unit: float, cut: str | None) -> FrameTable | None:
    stamps = [packet.pts for packet in found if packet.pts is not None]
    if unit <= 0 or len(stamps) < len(found) or len(set(stamps)) < len(stamps):
        return None
    # What may be shown first of all is a key frame: those before it lack what they refer to.
    keys, key_stamps = list[int](), list[int]()
    entry_of = dict[int, int]()
    for number, (packet, pts) in enumerate(zip(found, stamps, strict=True)):
        if packet.key and (not key_stamps or pts > key_stamps[-1]):
            keys.append(number)
            key_stamps.append(pts)
        # Frames shown before the key frame that they follow in the file need the one before it.
        at = bisect.bisect_right(key_stamps, pts) - 1
        if packet.shown and at >= 0:
            entry_of[number] = keys[at]
    if not entry_of:
        return None
    order = sorted(entry_of, key=lambda number: stamps[number])
    pts_in_order = np.array([stamps[number] for number in order], np.int64)
    times = (pts_in_order - pts_in_order[0]) * unit
    last = max(found[order[-1]].duration, 0) * unit or _typical_gap(times)
    return FrameTable(
        times=times,
        duration=float(times[-1]) + last,
        packets=order,
        entries=[entry_of[number] for number in order],
        by_pts={int(pts): position for position, pts in enumerate(pts_in_order)},
        ordinals={pts: number for number, pts in enumerate(stamps)},
        stamps=[(packet.pts, packet.dts) for packet in found],
        cut=cut,
    )


def _by_counting(found: list[_Packet], stream: Any, cut: str | None) -> FrameTable:
    rate = float(stream.average_rate or stream.guessed_rate or _FALLBACK_RATE)
    shown = [number for number, packet in enumerate(found) if packet.shown]
    return FrameTable(
        times=np.arange(len(shown)) / rate,
        duration=len(shown) / rate,
        packets=shown,
        entries=[0] * len(shown),
        by_pts=None,
        ordinals={},
        stamps=[],
        cut=cut,
    )


def _typical_gap(times: NDArray[np.float64]) -> float:
    gap = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    return gap or 1.0 / _FALLBACK_RATE
