"""Damaged sounds: the error names the damage, and nothing is allocated that a header claims."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("soundfile")

from sample_media import sound, tone

from spdl_async.errors import DecodeError
from spdl_async.io import decode_audio

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes(9), "not a sound"),
        (b"<html>404</html>", "not a sound"),
        (sound("FLAC")[:-300], "flac"),
        (sound("OGG", "VORBIS")[:300], "not a sound"),
        (sound("MP3")[:-30], "MP3: its frame at byte .* is damaged or cut short"),
        (sound("MP3")[:1_152], "MP3: its header declares . frames, and . are there"),
        (sound("MP3") + b"<html>" * 20, "there is no frame, but 120 bytes that are none"),
        (sound("MP3")[:580], "of its first two frames, from byte 0 on, 1 is whole"),
    ],
)
def test_damage_is_named(data: bytes, said: str) -> None:
    with pytest.raises(DecodeError, match=said):
        decode_audio(data)


def test_whole_frames_of_a_cut_mp3_can_be_had() -> None:
    long = sound("MP3", samples=tone(40_000))
    whole, _ = decode_audio(long)
    cut = long[: len(long) // 2]
    part, _ = decode_audio(cut, duration=0.2)
    assert np.abs(part - whole[:, :9_600]).max() < 1e-3
    with pytest.raises(DecodeError, match="whole MPEG frames are there"):
        decode_audio(cut)


def test_tags_around_an_mp3_are_no_damage() -> None:
    data = sound("MP3")
    tagged = b"ID3\x04\x00\x00\x00\x00\x01\x00" + bytes(128) + data + b"TAG" + bytes(125)
    assert np.array_equal(decode_audio(tagged)[0], decode_audio(data)[0])


def test_mp3_frames_of_every_kind_are_found() -> None:
    for rate in (8_000, 11_025, 16_000, 24_000, 32_000, 44_100):
        for channels in (1, 2):
            data = sound("MP3", rate=rate, samples=tone(20_000, channels))
            assert decode_audio(data)[0].shape == (channels, 20_000)
            with pytest.raises(DecodeError, match="cut short"):
                decode_audio(data[:-9])


def test_a_header_that_claims_years_of_sound_allocates_nothing() -> None:
    import resource

    data = bytearray(sound("FLAC"))
    data[21] |= 0x0F  # the highest bits of the number of frames: 2**36 - 2**32 and more
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DecodeError):
        decode_audio(bytes(data))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
