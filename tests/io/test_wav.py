"""WAV without a library: every kind of samples, and headers as they are met in the wild."""

from __future__ import annotations

import struct

import numpy as np
import pytest

pytest.importorskip("torch")

from sample_media import chunk, format_chunk, sound, tone, wav

from spdl_async.errors import DecodeError
from spdl_async.io import audio_info, decode_audio

pytestmark = pytest.mark.torch

RAMP = np.arange(-300, 300, dtype="<i2")
DATA = chunk(b"data", RAMP.tobytes())


def test_integers_are_divided_by_half_their_range() -> None:
    cases = {
        8: (b"\x00\x80\xff", [-1.0, 0.0, 127 / 128]),
        16: (struct.pack("<3h", -(2**15), 0, 2**15 - 1), [-1.0, 0.0, 1 - 2**-15]),
        24: (b"\x00\x00\x80\x00\x00\x00\xff\xff\x7f", [-1.0, 0.0, 1 - 2**-23]),
        32: (struct.pack("<3i", -(2**31), 0, 2**30), [-1.0, 0.0, 0.5]),
    }
    for bits, (body, expected) in cases.items():
        samples, rate = decode_audio(wav(format_chunk(bits=bits), chunk(b"data", body)))
        assert samples.tolist() == [expected]
        assert samples.dtype == np.float32
        assert rate == 8_000


def test_floats_are_taken_as_they_are_also_beyond_one() -> None:
    values = [-3.0, 0.25, 1e30]
    for bits, code in ((32, "<3f"), (64, "<3d")):
        data = wav(format_chunk(3, bits=bits), chunk(b"data", struct.pack(code, *values)))
        assert decode_audio(data)[0].tolist() == [np.array(values, np.float32).tolist()]


KINDS = [
    (container, subtype)
    for container in ("WAV", "WAVEX", "RF64")
    for subtype in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")
]


@pytest.mark.parametrize(("container", "subtype"), KINDS)
def test_every_kind_is_what_libsndfile_makes_of_it(
    container: str, subtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile = pytest.importorskip("soundfile")
    import io

    data = sound(container, subtype)
    expected, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    monkeypatch.setattr(soundfile, "SoundFile", None)  # it is not needed from here on
    samples, ours = decode_audio(data)
    assert np.array_equal(samples, expected.T)
    assert samples.flags.c_contiguous
    assert ours == rate
    assert audio_info(data).encoding == subtype
    assert audio_info(data).format == ("RF64" if container == "RF64" else "WAV")


def test_mono_float_is_a_read_only_view() -> None:
    body = np.linspace(-1, 1, 100, dtype="<f4")
    data = wav(format_chunk(3, bits=32), chunk(b"data", body.tobytes()))
    samples, _ = decode_audio(data)
    assert np.shares_memory(samples, np.frombuffer(data, np.uint8))
    assert not samples.flags.writeable
    part, _ = decode_audio(bytearray(data), offset=50 / 8_000, duration=20 / 8_000)
    assert np.array_equal(part[0], body[50:70])
    assert not part.flags.writeable


def test_unaligned_float_is_copied() -> None:
    body = np.linspace(-1, 1, 100, dtype="<f4").tobytes()
    data = b"x" + wav(format_chunk(3, bits=32), chunk(b"data", body))
    samples, _ = decode_audio(memoryview(data)[1:])
    assert samples.flags.aligned
    assert samples.tobytes() == body


ODD = chunk(b"LIST", b"odd")
HEADERS = {
    "plain": wav(format_chunk(), DATA),
    "chunks before, between and behind": wav(ODD, format_chunk(), ODD, DATA, ODD),
    "an odd chunk without its padding": wav(
        format_chunk(), chunk(b"LIST", b"odd", pad=False), DATA
    ),
    "sizes of a stream": wav(
        format_chunk(), chunk(b"data", RAMP.tobytes(), size=0xFFFFFFFF), size=0xFFFFFFFF
    ),
    "sizes never filled in": wav(format_chunk(), chunk(b"data", RAMP.tobytes(), size=0), size=0),
    "a wrong size of the whole": wav(format_chunk(), DATA, size=5),
    "extensible": wav(
        chunk(
            b"fmt ",
            struct.pack("<HHIIHH", 0xFFFE, 1, 8_000, 16_000, 2, 16)
            + struct.pack("<HHI", 22, 16, 4)
            + bytes.fromhex("0100000000001000800000aa00389b71"),
        ),
        DATA,
    ),
    "RF64": wav(
        chunk(b"ds64", struct.pack("<QQQI", 5_000, 2 * len(RAMP), len(RAMP), 0)),
        format_chunk(),
        chunk(b"data", RAMP.tobytes(), size=0xFFFFFFFF) + ODD,
        riff=b"RF64",
        size=0xFFFFFFFF,
    ),
    "BW64": wav(
        chunk(b"ds64", struct.pack("<QQQI", 5_000, 2 * len(RAMP), len(RAMP), 0)),
        format_chunk(),
        chunk(b"data", RAMP.tobytes(), size=0xFFFFFFFF),
        riff=b"BW64",
        size=0xFFFFFFFF,
    ),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_headers(kind: str) -> None:
    samples, _ = decode_audio(HEADERS[kind])
    assert np.array_equal(samples[0] * 2**15, RAMP)
    assert audio_info(HEADERS[kind]).frames == len(RAMP)


def test_twelve_bits_lie_at_the_top_of_sixteen() -> None:
    data = wav(format_chunk(bits=12, block=2), DATA)
    assert np.array_equal(decode_audio(data)[0][0] * 2**15, RAMP)


def test_no_samples() -> None:
    for behind in (b"", ODD):
        data = wav(format_chunk(channels=2), chunk(b"data", b""), behind)
        assert decode_audio(data)[0].shape == (2, 0)
        assert decode_audio(data, sample_rate=16_000, channels=1)[0].shape == (1, 0)


BROKEN = {
    "truncated WAV: its data chunk at byte 36 declares 600 frames, and 500 are there": (
        HEADERS["plain"][:-200]
    ),
    "no data chunk up to byte 36": wav(format_chunk()),
    "no fmt chunk before the data chunk at byte 12": wav(DATA),
    "its fmt chunk has 4 bytes": wav(chunk(b"fmt ", b"four"), DATA),
    "says 0 channels": wav(format_chunk(channels=0, block=2), DATA),
    "at 0 frames a second": wav(format_chunk(rate=0), DATA),
    "its ds64 chunk at byte 12": wav(chunk(b"ds64", b"")[:8], riff=b"RF64"),
    "more than 10,000 chunks": wav(*[chunk(b"junk", b"")] * 10_001, format_chunk(), DATA),
}


@pytest.mark.parametrize("said", BROKEN)
def test_damage_is_named_with_its_place(said: str) -> None:
    with pytest.raises(DecodeError, match=said):
        decode_audio(BROKEN[said])


def test_what_lies_before_the_cut_can_still_be_had() -> None:
    cut = HEADERS["plain"][:-200]
    samples, _ = decode_audio(cut, duration=500 / 8_000)
    assert np.array_equal(samples[0] * 2**15, RAMP[:500])
    with pytest.raises(DecodeError, match="500 are there"):
        decode_audio(cut, duration=501 / 8_000)


def test_kinds_that_are_not_plain_go_to_libsndfile() -> None:
    pytest.importorskip("soundfile")
    for container, subtype in (("WAV", "ULAW"), ("WAV", "IMA_ADPCM")):
        data = sound(container, subtype)
        samples, _ = decode_audio(data)
        assert samples.shape[0] == 2
        assert np.abs(samples[:, :4_001] - tone().T).mean() < 0.02
        assert audio_info(data).encoding == subtype
