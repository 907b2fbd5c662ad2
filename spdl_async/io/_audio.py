"""Turn sounds into float32 arrays: the public functions."""

from __future__ import annotations

import math
import operator
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from spdl_async.errors import DecodeError
from spdl_async.io._extras import need
from spdl_async.io._media import Media, media_of_bytes, media_of_file
from spdl_async.io._mp3 import frames_of_mp3
from spdl_async.io._soundfile import UNKNOWN_FRAMES, open_sound, read_sound
from spdl_async.io._wav import WavLayout, parse_wav, read_wav

if TYPE_CHECKING:
    from typing_extensions import Buffer

Samples = NDArray[np.float32]


_MOST_RATIO = 400
"""From 384 kHz down to 1 kHz, or the other way round. Samples beyond that are no sounds any more."""

_MOST_REPEATED = 1024
"""Channels to make of a mono sound: as many as libsndfile knows."""


@dataclass(frozen=True, kw_only=True)
class AudioInfo:
    """What the header of a sound says.

    Attributes:
        sample_rate: frames a second.
        channels: how many samples a frame has.
        frames: how many frames there are; an estimate for MP3; 0 of a FLAC that was written to a pipe, whose
            header does not say.
        format: the container, as ``WAV``, ``RF64``, ``FLAC``, ``MP3`` or ``OGG``.
        encoding: how samples are stored, as ``PCM_16``, ``FLOAT``, ``VORBIS`` or ``OPUS``.
    """

    sample_rate: int
    channels: int
    frames: int
    format: str
    encoding: str

    @property
    def duration(self) -> float:
        """The length in seconds."""
        return self.frames / self.sample_rate


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """What the caller asked for, checked."""

    sample_rate: int | None
    channels: int | None
    offset: float
    duration: float | None

    def __post_init__(self) -> None:
        for name in ("sample_rate", "channels"):
            value = getattr(self, name)
            if value is not None and _whole(name, value) < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        for name in ("offset", "duration"):
            value = getattr(self, name)
            if value is None and name == "duration":
                continue
            try:
                good = math.isfinite(value) and value >= 0
            except TypeError:
                raise TypeError(f"{name} must be a number of seconds, not {value!r}") from None
            if not good:
                raise ValueError(f"{name} must be a finite number of seconds >= 0, not {value}")

    def range_in(self, frames: int, rate: int) -> tuple[int, int]:
        """Return the first frame and how many frames to read."""
        first = round(min(self.offset * rate, frames + 1))
        if first > frames:
            raise ValueError(
                f"offset={self.offset} s lies behind the end: the sound is "
                f"{frames / rate:.3f} s long ({frames:,} frames)"
            )
        rest = frames - first
        if self.duration is None:
            return first, rest
        # One more where it is resampled, so that no rounding leaves the result a frame short.
        exact = min(self.duration * rate, rest)
        resampled = self.sample_rate not in (None, rate)
        return first, math.ceil(exact) if resampled else round(exact)


def decode_audio(
    data: Buffer,
    *,
    sample_rate: int | None = None,
    channels: int | None = None,
    offset: float = 0.0,
    duration: float | None = None,
) -> tuple[NDArray[np.float32], int]:
    """Decode a sound into float32 samples.

    WAV files of plain samples are read without any library, and without a copy where they hold
    mono float32: the array is then a read-only view of ``data``. FLAC, MP3, Ogg (Vorbis, Opus),
    AIFF and more go through libsndfile. Only what ``offset`` and ``duration`` ask for is decoded.
    Runs on the calling thread alone, mostly without the GIL.

    Integers are divided by half their range, 2**(bits - 1), so that samples lie in [-1, 1), which
    is what libsndfile does. Floats are taken as they are, also beyond 1.

    Args:
        data: the content of a file, as any contiguous bytes-like object.
        sample_rate: frames a second that the result shall have; ``None`` keeps the sound's own.
            Resampled by libsoxr at its quality ``HQ``, by a factor of at most 400 up or down.
        channels: ``None`` keeps the sound's own; 1 is the mean of all channels; another number
            (to 1,024) repeats a mono sound. Any other change of the number is an error, since nothing says
            which channel belongs where.
        offset: seconds to leave out at the start.
        duration: seconds to decode at most; ``None`` is up to the end. Where the sound is long
            enough, the result has exactly ``round(duration * rate)`` frames, so it can be stacked.

    Returns:
        An array of shape (channels, frames), dtype float32, C-contiguous; and its sample rate in
        frames a second.

    Raises:
        DecodeError: the data is damaged, no sound, or ends before the last frame asked for.
        TypeError: ``data`` is not bytes-like, such as a path: use `read_audio`.
        ValueError: an argument is out of range, ``offset`` lies behind the end, or the number of
            channels or the rate cannot be changed like that.
        ImportError: soundfile or soxr is needed and not installed.

    Example:
        >>> import io, numpy as np, soundfile
        >>> file = io.BytesIO()
        >>> soundfile.write(file, np.zeros((48_000, 2)), 48_000, format="FLAC")
        >>> samples, rate = decode_audio(file.getvalue(), sample_rate=16_000, channels=1)
        >>> samples.shape, samples.dtype, rate
        ((1, 16000), dtype('float32'), 16000)
    """
    wanted = _Wanted(sample_rate=sample_rate, channels=channels, offset=offset, duration=duration)
    return _decode(media_of_bytes(data, "decode_audio", "read_audio(path)"), wanted)


def read_audio(
    path: str | os.PathLike[str],
    *,
    sample_rate: int | None = None,
    channels: int | None = None,
    offset: float = 0.0,
    duration: float | None = None,
) -> tuple[NDArray[np.float32], int]:
    """Read and decode a sound file in one call: open, read, close, decode.

    Of a long file only the wanted part is read: a minute of an hour-long recording costs a minute.

    Args:
        path: the file.
        sample_rate: as for `decode_audio`, and so are the others.

    Returns:
        As `decode_audio`.

    Raises:
        DecodeError: as `decode_audio`; this message and those of ``ValueError`` about the content
            start with the path.
        OSError: the file cannot be opened or read, or is no regular file.

    Example:
        >>> import tempfile, numpy as np, soundfile
        >>> with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        ...     soundfile.write(file.name, np.zeros(8_000), 8_000)
        ...     samples, rate = read_audio(file.name, offset=0.5)
        >>> samples.shape, rate
        ((1, 4000), 8000)
    """
    wanted = _Wanted(sample_rate=sample_rate, channels=channels, offset=offset, duration=duration)
    with media_of_file(path) as media:
        return _decode(media, wanted)


def audio_info(data: Buffer) -> AudioInfo:
    """Return what the header of a sound says, without decoding it.

    Args:
        data: the content of a file; of WAV and FLAC the first few kilobytes are enough for all
            but ``frames`` where the header does not have it.

    Raises:
        DecodeError: the header is damaged, or it is no sound.
        TypeError: ``data`` is not bytes-like.

    Example:
        >>> import io, numpy as np, soundfile
        >>> file = io.BytesIO()
        >>> soundfile.write(file, np.zeros((4_000, 2)), 8_000, format="WAV", subtype="PCM_24")
        >>> info = audio_info(file.getvalue())
        >>> info.channels, info.duration, info.encoding
        (2, 0.5, 'PCM_24')
    """
    media = media_of_bytes(data, "audio_info", "audio_info(path.read_bytes())")
    layout = parse_wav(media)
    if layout is not None:
        return _info_of_wav(layout)
    with open_sound(frames_of_mp3(media)[0]) as sound:
        return _info_of_sound(sound)


def _decode(media: Media, wanted: _Wanted) -> tuple[Samples, int]:
    layout = parse_wav(media)
    if layout is not None:
        own = layout.rate
        _check_ratio(own, wanted.sample_rate)
        samples = read_wav(media, layout, *wanted.range_in(layout.frames, own))
    else:
        media, cut = frames_of_mp3(media)
        with open_sound(media, to_decode=True) as sound:
            frames, own = _checked_counts(sound)
            _check_ratio(own, wanted.sample_rate)
            first, count = wanted.range_in(frames, own)
            if cut is not None and first + count >= frames:
                raise DecodeError(f"truncated or damaged MP3: {cut}")
            samples = read_sound(sound, media, first, count)
    samples = _with_channels(samples, wanted.channels)
    rate = wanted.sample_rate
    if rate is not None and rate != own:
        samples = _resample(samples, own, rate)
        if wanted.duration is not None:
            samples = samples[: round(min(wanted.duration * rate, len(samples)))]
    return _repeated(np.ascontiguousarray(samples.T), wanted.channels), rate or own


def _with_channels(samples: Samples, channels: int | None) -> Samples:
    """Mix down to one channel before the costly steps; check what is repeated after them."""
    present = samples.shape[1]
    if channels is not None and present == 1 and channels > _MOST_REPEATED:
        raise ValueError(
            f"channels={channels:,} of a mono sound: it is repeated at most {_MOST_REPEATED:,} times"
        )
    if channels in (None, present) or present == 1:
        return samples
    if channels != 1:
        raise ValueError(
            f"channels={channels} of a sound with {present}: only to 1 (their mean) and from 1 "
            f"(repeated) is defined; take None and choose among the rows of the result"
        )
    mixed: Samples = samples.mean(axis=1, dtype=np.float32, keepdims=True)
    return mixed


def _repeated(samples: Samples, channels: int | None) -> Samples:
    if channels is None or channels == len(samples):
        return samples
    return np.repeat(samples, channels, axis=0)


def _check_ratio(own: int, wanted: int | None) -> None:
    """Refuse what would make gigabytes of kilobytes, or take minutes, before anything is decoded."""
    if wanted is not None and not own <= _MOST_RATIO * wanted <= _MOST_RATIO**2 * own:
        raise ValueError(
            f"sample_rate={wanted:,} of a sound that has {own:,} frames a second, as its header says: "
            f"it is resampled up and down by a factor of at most {_MOST_RATIO}"
        )


def _resample(samples: Samples, old: int, new: int) -> Samples:
    soxr = need("soxr", "audio")
    if len(samples) == 0:
        return samples
    resampled: Samples = soxr.resample(np.ascontiguousarray(samples), old, new)
    return resampled


def _info_of_wav(layout: WavLayout) -> AudioInfo:
    return AudioInfo(
        sample_rate=layout.rate,
        channels=layout.channels,
        frames=layout.frames,
        format=layout.container,
        encoding=layout.kind,
    )


def _info_of_sound(sound: Any) -> AudioInfo:
    frames, rate = _checked_counts(sound)
    return AudioInfo(
        sample_rate=rate,
        channels=sound.channels,
        frames=0 if frames == UNKNOWN_FRAMES else frames,
        format=sound.format,
        encoding=sound.subtype,
    )


def _checked_counts(sound: Any) -> tuple[int, int]:
    """Return the number of frames and the sample rate."""
    frames, rate, channels = sound.frames, sound.samplerate, sound.channels
    if frames < 0 or rate < 1 or channels < 1:
        raise DecodeError(
            f"damaged header: {frames:,} frames of {channels} channels at {rate:,} a second"
        )
    return frames, rate


def _whole(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]  # what is no number ends below
    except TypeError:
        raise TypeError(f"{name} must be a whole number or None, not {value!r}") from None
