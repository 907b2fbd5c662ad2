"""The chain of MP3 frames, many at once, is the one that a plain reader of one frame after another finds."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("soundfile")

from fuzz_files import mutated
from sample_media import sound, tone

from spdl_async.io import decode_audio
from spdl_async.io._mp3 import _chain
from spdl_async.io._mp3_frames import frame_form, frame_length, same_sound

pytestmark = pytest.mark.torch


def possible(frame: bytes) -> bool:
    """Read a frame's side information field by field, as the standard lists them."""
    if frame[1] >> 1 & 3 != 1:
        return True  # not Layer III
    bits = "".join(f"{byte:08b}" for byte in frame[4 if frame[1] & 1 else 6 :])
    at = 0

    def read(count: int) -> int:
        nonlocal at
        at += count
        return int(bits[at - count : at], 2)

    first_version, mono = frame[1] >> 3 & 3 == 3, frame[3] >> 6 == 3
    channels = 1 if mono else 2
    back = read(9 if first_version else 8)
    if first_version:
        read((5 if mono else 3) + 4 * channels)
    else:
        read(1 if mono else 2)
    used = 0
    for _ in range((2 if first_version else 1) * channels):
        used += read(12)
        if read(9) > 288:
            return False
        read(8 + (4 if first_version else 9))
        switched, kind = read(1), read(2)
        if switched and kind == 0:
            return False
        read(20 + (3 if first_version else 2))
    return used <= len(bits) - at + 8 * back


def plain_chain(data: bytes) -> tuple[int, int]:
    first, at, frames = int.from_bytes(data[:4], "big"), 0, 0
    while len(data) >= at + 4:
        header = int.from_bytes(data[at : at + 4], "big")
        length = frame_length(header)
        if not same_sound(header, first) or not length or at + length > len(data):
            break
        if not possible(data[at : at + length]):
            break
        at, frames = at + length, frames + 1
    return at, frames


def with_check_sum(frame: bytes) -> bytes:
    """The same frame with room for a check sum, which is taken from its end."""
    return frame[:1] + bytes([frame[1] & 0xFE]) + frame[2:4] + b"\0\0" + frame[4:-2]


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_the_chain_is_that_of_a_plain_reader(rate: int, channels: int) -> None:
    data = sound("MP3", rate=rate, samples=tone(20_000, channels))
    at, whole = plain_chain(data)
    assert at == len(data)
    found = set[int]()
    for seed in range(150):
        damaged = mutated(data, random.Random(seed)) if seed else data
        first = int.from_bytes(damaged[:4], "big")
        if frame_length(first) and first >> 21 == 0x7FF:
            at, frames = _chain(damaged + bytes(3), 0, first)
            assert (at, frames) == plain_chain(damaged)
            found.add(frames)
    assert len(found) > 5
    assert max(found) == whole


def test_frames_with_and_without_check_sums_are_one_chain() -> None:
    data = sound("MP3", samples=tone(40_000))
    at, count = 0, 0
    frames = list[bytes]()
    while at < len(data):
        length = frame_length(int.from_bytes(data[at : at + 4], "big"))
        frames.append(data[at : at + length])
        at += length
    mixed = b"".join(
        with_check_sum(frame) if 0 < number < 9 else frame for number, frame in enumerate(frames)
    )
    at, count = _chain(mixed + bytes(3), 0, int.from_bytes(mixed[:4], "big"))
    assert (at, count) == plain_chain(mixed) == (len(mixed), len(frames))


def test_more_frames_than_are_looked_at_together() -> None:
    data = sound("MP3", rate=8_000, samples=tone(300_000, 1))
    first = int.from_bytes(data[:4], "big")
    at, frames = _chain(data + bytes(3), 0, first)
    assert (at, frames) == plain_chain(data)
    assert frames > 512
    form = frame_form(first)
    broken = bytearray(data)
    broken[at - 1_000 : at - 800] = b"\xff" * 200
    assert _chain(bytes(broken) + bytes(3), 0, first) == plain_chain(bytes(broken))
    assert form is frame_form(first)


def test_sound_in_memory_is_decoded_without_and_with_a_file_of_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the system has no such files, or gives none, libsndfile calls back: the same samples."""
    for format in ("MP3", "FLAC"):  # noqa: A001 -- soundfile's word
        data = sound(format)
        expected = decode_audio(data)[0]

        def refuse(name: str) -> int:
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(os, "memfd_create", refuse, raising=False)
            assert np.array_equal(decode_audio(data)[0], expected)
            patch.delattr(os, "memfd_create")
            assert np.array_equal(decode_audio(data)[0], expected)
            assert np.array_equal(decode_audio(data, offset=0.02)[0], expected[:, 960:])
