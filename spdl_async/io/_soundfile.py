"""Sound through libsndfile: FLAC, MP3, Ogg (Vorbis, Opus), AIFF and what else it knows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spdl_async.errors import DecodeError
from spdl_async.io._extras import need
from spdl_async.io._media import Media
from spdl_async.io._mp3 import is_frame

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KNOWN = re.compile(
    rb"RIF[FX]....WAVE|RF64....WAVE|FORM....(?:AIF[FC]|8SVX|16SV)|\.snd|dns\.|fap | paf|NIST|Creative"
    rb"|riff|MATLAB 5|PVF1|Extended Ins|caff....desc|OggS|ALawSoundFil|fLaC|2BIT"
    rb"|\xf0\x7e.\x01|\x01\x04|\x64\xa3[\x00-\x07]\x00|\x00[\x00-\x07]\xa3\x64"
    rb"|\x00\x00\x03\xe8(?:\x00\x00\x00\x01){2}|\x00{4}(?:\x01\x00\x00\x00){2}",
    re.DOTALL,
)
"""How sounds begin that libsndfile knows at once; HTK is told otherwise.

Of others it looks first whether they are Sound Designer II, whose header is in a file beside it. For
want of a name it opens ``._`` in the current folder, waits if that is a pipe, and believes it: so nothing of
the kind must come to it, and MP3, which it looks for last, is given a name (`_named`)."""

_NAMES = Path("/proc/self/fd")
"""Where open files have names, and nobody can put others beside them."""

_BLOCK = 1 << 20
"""Samples to allocate at a time where a header claims more than the data can be trusted for."""

_TRUSTED = 64
"""Samples for each byte of the file, up to which the header's count is believed and allocated."""

UNKNOWN_FRAMES = (1 << 63) - 1
"""What libsndfile says of a FLAC that was written to a pipe: its header has no count."""

_ESTIMATED = ("MP3",)
"""Formats without a count of frames: what is shown is an estimate, and fewer may come."""


_COPIED = 1 << 24
"""Bytes up to which data in memory is copied into a file for libsndfile: a few milliseconds."""


@contextmanager
def open_sound(media: Media, *, to_decode: bool = False) -> Iterator[Any]:
    """Open with libsndfile; the ``SoundFile`` is closed at the end, whatever happens.

    Args:
        media: the bytes.
        to_decode: more than the header is going to be read.

    Raises:
        DecodeError: it is no sound that libsndfile reads, or damaged.
        ImportError: soundfile is not installed.
        OSError: the file cannot be read.
    """
    soundfile = need("soundfile", "audio")
    is_mp3 = is_frame(int.from_bytes(media.part(0, 4), "big"))
    if not is_mp3 and not _is_known(media):
        raise DecodeError(_described("of no format that is known", media))
    media.seek(0)
    # Read by its descriptor, a file costs no call back into Python, which waits for the GIL.
    try:
        with (
            _file_of(media, copy=is_mp3 or to_decode) as file,
            soundfile.SoundFile(_named(file) if is_mp3 else file, closefd=False) as sound,
        ):
            yield sound
            media.check()
    except soundfile.LibsndfileError as error:
        media.check()
        raise DecodeError(_describe(error, media)) from error


@contextmanager
def _file_of(media: Media, *, copy: bool) -> Iterator[Any]:
    """Give a descriptor, of a file in memory where ``media`` is none; where there is no such, ``media``."""
    descriptor = media.descriptor()
    if descriptor is not None or not copy or media.size > _COPIED:
        yield media if descriptor is None else descriptor
        return
    try:
        made = os.memfd_create("sound")
    except (AttributeError, OSError):  # not on Linux; no descriptor is left
        yield media
        return
    try:
        yield made if os.pwrite(made, media.part(0, media.size), 0) == media.size else media
    finally:
        os.close(made)


def _named(file: Any) -> Any:
    """Return the name of an open file, beside which there is nothing; where the system has none, the file."""
    return str(_NAMES / str(file)) if isinstance(file, int) and _NAMES.is_dir() else file


def _is_known(media: Media) -> bool:
    """Tell whether libsndfile will see by the first bytes what this is."""
    head = bytes(media.part(0, 12))
    if _KNOWN.match(head):
        return True
    # HTK: the number of 16-bit samples, the period, and the size and kind of samples.
    return head[8:] == b"\0\2\0\0" and 2 * int.from_bytes(head[:4], "big") + 12 == media.size


def _describe(error: Any, media: Media) -> str:
    return _described(str(error.error_string).removeprefix("Error : ").rstrip("."), media)


def _described(reason: str, media: Media) -> str:
    start = bytes(media.part(0, 12))
    return (
        f"not a sound that can be decoded, or a damaged one: {reason} "
        f"({media.size:,} bytes, which begin with {start.hex(' ')})"
    )


def read_sound(sound: Any, media: Media, first: int, count: int) -> NDArray[np.float32]:
    """Return frames as float32 of shape (frames, channels).

    Raises:
        DecodeError: the sound is damaged, or ends before the last wanted frame.
    """
    if first:
        sound.seek(first)
    unknown = sound.frames == UNKNOWN_FRAMES
    # Where it can seek, soundfile asks for its position before each read, and seeks to where it stands
    # after it, which costs, and which libsndfile refuses at an end that it does not know.
    sound.seekable = bool
    channels: int = sound.channels
    if count * channels <= max(_BLOCK, _TRUSTED * media.size):
        blocks = [sound.read(count, dtype="float32", always_2d=True)]
    else:
        blocks = list(_blocks(sound, count))
    taken = sum(len(block) for block in blocks)
    media.check()
    if taken < count and not unknown and sound.format not in _ESTIMATED:
        raise DecodeError(
            f"truncated or damaged {sound.format}: {first + taken:,} of {sound.frames:,} frames "
            f"could be decoded from {media.size:,} bytes"
        )
    if len(blocks) == 1:
        samples: NDArray[np.float32] = blocks[0]
        return samples
    return np.concatenate(blocks)


def _blocks(sound: Any, count: int) -> Iterator[NDArray[np.float32]]:
    step = max(1, _BLOCK // sound.channels)
    while count > 0:
        block = sound.read(min(step, count), dtype="float32", always_2d=True)
        yield block
        if len(block) < min(step, count):
            return
        count -= len(block)
