"""Damaged sounds: the error names the damage, and nothing is allocated that a header claims."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("soundfile")

import soundfile
from sample_media import sound, tone

from spdl_async.errors import DecodeError
from spdl_async.io import audio_info, decode_audio, read_audio

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


@pytest.fixture
def poison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go where libsndfile finds the header of a Sound Designer II file for whatever has no name."""
    path = tmp_path / "x.sd2"
    soundfile.write(path, tone(100, 3), POISONED, format="SD2", subtype="PCM_16")
    path.with_name("._x.sd2").rename(tmp_path / "._")
    monkeypatch.chdir(tmp_path)
    with (
        path.open("rb", buffering=0) as file,
        soundfile.SoundFile(file.fileno(), closefd=False) as read,
    ):
        assert read.samplerate == POISONED, "the poison works"


POISONED = 12_345

HEADS = [
    b"", b"RIFF....WAVE", b"RIFX....WAVE", b"RF64....WAVE", b"FORM....AIFF", b"FORM....AIFC", b"FORM....8SVX",
    b"FORM....16SV", b"FORM....JUNK", b".snd", b"dns.", b"fap ", b" paf", b"NIST", b"Creative", b"riff",
    b"MATLAB 5", b"PVF1", b"Extended Ins", b"caff....desc", b"OggS", b"ALawSoundFil", b"fLaC", b"2BIT",
    b"\xf0\x7e\x00\x01", b"\x01\x04", b"\x64\xa3\x07\x00", b"\x00\x07\xa3\x64",
    b"\0\0\x03\xe8\0\0\0\1\0\0\0\1", b"\0\0\0\0\1\0\0\0\1\0\0\0",
    (2_994).to_bytes(4, "big") + b"\0\0\0\0\0\2\0\0", b"\0\0\0\0\0\0\0\0\0\2\0\0",
    b"ID3\4\0\0\0\0\0\4abcd", b"ID3\4\0\x10\0\0\0\4abcd", b"ID3\4\0\0\x7f\x7f\x7f\x7f", b"ID3",
]  # fmt: skip


def heard(decode: Callable[[], tuple[Any, int]]) -> int | None:
    try:
        return decode()[1]
    except DecodeError as error:
        # Of data in memory libsndfile opens the file, and then sees that they are no header.
        return POISONED if "fork" in str(error) else None


@pytest.mark.usefixtures("poison")
def test_no_other_file_is_read_whatever_the_data_are(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for head in HEADS:
        for fill in (b"\0", b"junk"):
            data = (head + 6_000 * fill)[:6_000]
            path.write_bytes(data)
            assert heard(partial(decode_audio, data)) != POISONED, head
            assert heard(partial(read_audio, path)) != POISONED, head
    for data in (bytes(6_000), b"junk" * 100):
        with pytest.raises(DecodeError, match=r"not a sound .* of no format that is known"):
            decode_audio(data)


@pytest.mark.usefixtures("poison")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files have no names here")
def test_no_other_file_is_read_for_mp3(tmp_path: Path) -> None:
    data, path = sound("MP3"), tmp_path / "file"
    for whole in (data, b"ID3\4\0\0\0\0\0\4abcd" + data):
        path.write_bytes(whole)
        for samples, rate in (decode_audio(whole), read_audio(path)):
            assert (samples.shape, rate) == ((2, 4_001), 48_000)
        assert audio_info(whole).format == "MP3"
    for second in range(0xE0, 0x100):
        for third in range(1, 0x100, 5):
            damaged = b"\xff" + bytes((second, third)) + data[3:]
            assert heard(partial(decode_audio, damaged)) != POISONED, (second, third)


WRITTEN = sorted(soundfile.available_formats().keys() - {"RAW", "SD2"})


@pytest.mark.parametrize("format", WRITTEN)
@pytest.mark.parametrize("endian", ["FILE", "LITTLE", "BIG"])
def test_all_that_libsndfile_writes_is_known(format: str, endian: str) -> None:  # noqa: A002
    kind = "PCM_16" if soundfile.check_format(format, "PCM_16") else None
    if not soundfile.check_format(format, kind, endian):
        pytest.skip("there is no such format")
    file = io.BytesIO()
    try:
        soundfile.write(file, tone(4_000, 1), 8_000, format=format, subtype=kind, endian=endian)
    except soundfile.LibsndfileError:
        pytest.skip("it writes none")
    samples, rate = decode_audio(file.getvalue())
    assert (samples.shape, rate) == ((1, 4_000 if format != "SDS" else samples.shape[1]), 8_000)


def test_a_tag_in_front_of_a_flac_is_passed_over(tmp_path: Path) -> None:
    data = sound("FLAC")
    path = tmp_path / "x.flac"
    path.write_bytes(b"ID3\x04\x00\x00\x00\x00\x01\x00" + bytes(128) + data)
    assert np.array_equal(decode_audio(path.read_bytes())[0], decode_audio(data)[0])
    assert np.array_equal(read_audio(path, offset=0.05)[0], decode_audio(data, offset=0.05)[0])


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
