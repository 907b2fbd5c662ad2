"""WAV files whose samples are plain numbers: where they lie, and their way into float32.

Formats: RIFF and RF64/BW64 (EBU Tech 3306, ITU-R BS.2088) with PCM of 8, 16, 24 and 32 bits, IEEE
float of 32 and 64 bits, and the same under WAVE_FORMAT_EXTENSIBLE. All else that may be in a WAV
file (A-law, µ-law, ADPCM …) and big-endian RIFX is left to libsndfile.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spdl_async.errors import DecodeError
from spdl_async.io._media import Media

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNKNOWN = 0xFFFFFFFF
"""A size that the writer did not know (a stream), or that stands in RF64's ``ds64`` chunk."""

_MOST_CHUNKS = 10_000
_MOST_CHANNELS = 1_024  # what libsndfile takes, too

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_SUBFORMAT = bytes.fromhex("000000001000800000aa00389b71")  # the GUID behind its first two bytes

_KINDS = {
    (_PCM, 1): "PCM_U8",
    (_PCM, 2): "PCM_16",
    (_PCM, 3): "PCM_24",
    (_PCM, 4): "PCM_32",
    (_FLOAT, 4): "FLOAT",
    (_FLOAT, 8): "DOUBLE",
}
_WIDTHS = {kind: width for (_, width), kind in _KINDS.items()}


@dataclass(frozen=True, kw_only=True)
class WavLayout:
    """What the header says.

    Attributes:
        kind: how a sample is stored, in libsndfile's words.
        start: byte offset of the first sample.
        frames: how many frames the header declares; what is there where it does not know.
        present: how many of these are there.
        container: ``WAV`` or ``RF64``.
    """

    rate: int
    channels: int
    kind: str
    start: int
    frames: int
    present: int
    container: str

    @property
    def frame_bytes(self) -> int:
        """Bytes that one frame takes: one sample of each channel."""
        return self.channels * _WIDTHS[self.kind]


def parse_wav(media: Media) -> WavLayout | None:
    """Read the header; None where the file is none of the kinds that this module knows.

    Raises:
        DecodeError: it is one, and its header is damaged.
    """
    head = bytes(media.part(0, 12))
    if head[:4] not in (b"RIFF", b"RF64", b"BW64") or head[8:] != b"WAVE":
        return None
    sizes: tuple[int, int] | None = None
    format_chunk: bytes | None = None
    at = 12
    for _ in range(_MOST_CHUNKS):
        name, size = _chunk(media, at)
        if name == b"ds64":
            sizes = _sizes64(media, at)
        elif name == b"fmt ":
            format_chunk = bytes(media.part(at + 8, min(size, 40)))
        elif name == b"data":
            if format_chunk is None:
                raise DecodeError(f"damaged WAV: no fmt chunk before the data chunk at byte {at}")
            known = _data_size(media, at, size, sizes)
            container = "WAV" if head[:4] == b"RIFF" else "RF64"
            return _layout(format_chunk, at + 8, known, media.size, container)
        at = _next_chunk(media, at, size)
    raise DecodeError(f"damaged WAV: more than {_MOST_CHUNKS:,} chunks before the data chunk")


def _chunk(media: Media, at: int) -> tuple[bytes, int]:
    header = bytes(media.part(at, 8))
    if len(header) < 8:
        raise DecodeError(
            f"truncated WAV: no data chunk up to byte {media.size:,}, where the file ends"
        )
    return header[:4], int.from_bytes(header[4:], "little")


def _next_chunk(media: Media, at: int, size: int) -> int:
    """Skip a chunk and the byte that makes its size even, which some writers leave out."""
    end = at + 8 + size
    if size % 2 and not (_is_name(media.part(end, 4)) and not _is_name(media.part(end + 1, 4))):
        end += 1
    return end


def _is_name(four: memoryview[int]) -> bool:
    return len(four) == 4 and all(32 <= byte < 127 for byte in four)


def _sizes64(media: Media, at: int) -> tuple[int, int]:
    """Return the sizes of the file and of the data chunk from an RF64 file's ``ds64``."""
    body = bytes(media.part(at + 8, 16))
    if len(body) < 16:
        raise DecodeError(f"truncated RF64: its ds64 chunk at byte {at} is cut short")
    riff, data = struct.unpack("<QQ", body)
    return riff, data


def _data_size(media: Media, at: int, size: int, sizes: tuple[int, int] | None) -> int | None:
    """Return the data chunk's size; None where the writer did not know it."""
    if sizes is not None and size == _UNKNOWN:
        size = sizes[1]
    if size == _UNKNOWN:
        return None
    if size == 0 and media.size > at + 8:
        # A writer that was killed, or could not go back, leaves 0 here and data behind it. In a
        # complete file of no samples there is nothing, or another chunk.
        following = media.part(at + 8, 4)
        inside = int.from_bytes(media.part(at + 12, 4), "little") <= media.size - at - 16
        if not (_is_name(following) and inside):
            return None
    return size


def _layout(
    chunk: bytes, start: int, size: int | None, file_size: int, container: str
) -> WavLayout | None:
    if len(chunk) < 16:
        raise DecodeError(f"damaged WAV: its fmt chunk has {len(chunk)} bytes of at least 16")
    tag, channels, rate, _, block, _ = struct.unpack("<HHIIHH", chunk[:16])
    if tag == _EXTENSIBLE and len(chunk) >= 40:
        if chunk[26:40] != _SUBFORMAT:
            return None
        tag = int.from_bytes(chunk[24:26], "little")
    if tag not in (_PCM, _FLOAT):
        return None
    if not 1 <= channels <= _MOST_CHANNELS or rate == 0:
        raise DecodeError(
            f"damaged WAV: its fmt chunk says {channels} channels at {rate:,} frames a second"
        )
    # Samples of an odd number of bits are stored in whole bytes, with their bits at the top.
    kind = _KINDS.get((tag, block // channels)) if block % channels == 0 else None
    if kind is None:
        return None
    available = max(0, file_size - start) // block
    frames = available if size is None else size // block
    return WavLayout(
        rate=rate,
        channels=channels,
        kind=kind,
        start=start,
        frames=frames,
        present=min(frames, available),
        container=container,
    )


def read_wav(media: Media, layout: WavLayout, first: int, count: int) -> NDArray[np.float32]:
    """Return frames as float32 of shape (count, channels): a view of the data where it is that.

    Integers are divided by half their range, 2**(bits - 1), so that they lie in [-1, 1): what
    libsndfile does, and with it soundfile, librosa and torchaudio. 8-bit samples are unsigned.

    Raises:
        DecodeError: the file ends before the last wanted frame.
        OSError: it cannot be read.
    """
    if first + count > layout.present:
        raise DecodeError(
            f"truncated WAV: its data chunk at byte {layout.start - 8} declares {layout.frames:,} "
            f"frames, and {layout.present:,} are there (the file ends after {media.size:,} bytes)"
        )
    data = media.part(layout.start + first * layout.frame_bytes, count * layout.frame_bytes)
    if len(data) < count * layout.frame_bytes:
        raise DecodeError(f"the file got shorter while it was read: {media.size:,} bytes before")
    return _as_float(data, layout.kind).reshape(count, layout.channels)


def _as_float(data: memoryview[int], kind: str) -> NDArray[np.float32]:
    if kind == "FLOAT":
        samples: NDArray[Any] = np.frombuffer(data, "<f4")
        aligned = samples.flags.aligned and samples.dtype.isnative
        return samples if aligned else samples.astype(np.float32)
    if kind == "DOUBLE":
        with np.errstate(over="ignore", invalid="ignore"):
            return np.frombuffer(data, "<f8").astype(np.float32)
    if kind == "PCM_24":
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return _scaled(wide.view("<i4")[:, 0], 31)
    if kind == "PCM_U8":
        samples = np.frombuffer(data, np.uint8).astype(np.float32)
        samples -= 128
        samples *= np.float32(2.0**-7)
        return samples
    if kind == "PCM_16":
        return _scaled(np.frombuffer(data, "<i2"), 15)
    return _scaled(np.frombuffer(data, "<i4"), 31)


def _scaled(samples: NDArray[Any], bits: int) -> NDArray[np.float32]:
    # The ufunc casts and multiplies block by block: one pass, one array.
    result: NDArray[np.float32] = np.multiply(
        samples, np.float32(2.0**-bits), dtype=np.float32, casting="unsafe"
    )
    return result
