"""decode_audio: formats, ranges, rates and channels, from memory and from files, in threads."""

from __future__ import annotations

import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("soundfile")
pytest.importorskip("soxr")

import soundfile
from sample_media import sound, threads_beside, tone

from spdl_async import PipelineBuilder
from spdl_async.errors import DecodeError
from spdl_async.io import audio_info, decode_audio, read_audio

pytestmark = pytest.mark.torch

FORMATS = {
    "FLAC": sound("FLAC", "PCM_24"),
    "OGG": sound("OGG", "VORBIS"),
    "OPUS": sound("OGG", "OPUS"),
    "MP3": sound("MP3"),
    "AIFF": sound("AIFF", "PCM_16"),
    "WAV": sound("WAV", "PCM_16"),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_samples_are_those_of_libsndfile(kind: str) -> None:
    data = FORMATS[kind]
    expected, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    samples, ours = decode_audio(data)
    assert np.array_equal(samples, expected.T)
    assert ours == rate == 48_000
    assert samples.dtype == np.float32
    assert samples.flags.c_contiguous
    info = audio_info(data)
    assert (info.sample_rate, info.channels, info.frames) == (48_000, 2, 4_001)
    assert info.duration == pytest.approx(4_001 / 48_000)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_range_is_that_part_of_the_whole(kind: str) -> None:
    whole, _ = decode_audio(FORMATS[kind])
    part, _ = decode_audio(FORMATS[kind], offset=0.02, duration=0.03)
    assert part.shape == (2, 1_440)
    # A lossy decoder that starts in the middle needs a few frames to be where it would be.
    slack = 0.0 if kind in ("WAV", "FLAC", "AIFF") else 2e-2
    assert np.abs(part - whole[:, 960:2_400]).max() <= slack
    tail, _ = decode_audio(FORMATS[kind], offset=0.08, duration=9.0)
    assert tail.shape == (2, 4_001 - 3_840)
    assert decode_audio(FORMATS[kind], offset=4_001 / 48_000)[0].shape == (2, 0)


def test_only_the_wanted_part_of_a_file_is_read(tmp_path: Path) -> None:
    if not Path("/proc/self/io").exists():
        pytest.skip("needs /proc")
    long = np.random.default_rng(0).uniform(-0.5, 0.5, (2_000_000, 1)).astype(np.float32)
    for container in ("WAV", "FLAC"):
        path = tmp_path / f"long.{container.lower()}"
        path.write_bytes(sound(container, "PCM_16", samples=long))
        read_audio(path, duration=0.001)
        before = bytes_read()
        samples, _ = read_audio(path, offset=3.0, duration=0.1)
        assert np.abs(samples - long[144_000:148_800].T).max() < 1e-4
        # FLAC searches for the place, at halves of what is left.
        assert bytes_read() - before < path.stat().st_size / 5


def bytes_read() -> int:
    """What this process has read so far, of files also."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_mean_of_channels_and_repeated_mono() -> None:
    for kind in ("WAV", "FLAC"):
        both, _ = decode_audio(FORMATS[kind])
        one, _ = decode_audio(FORMATS[kind], channels=1)
        assert np.allclose(one, both.mean(axis=0, keepdims=True), atol=1e-7)
        assert np.array_equal(decode_audio(FORMATS[kind], channels=2)[0], both)
        mono = sound(kind, "PCM_16", samples=tone(channels=1))
        three, _ = decode_audio(mono, channels=3)
        assert np.array_equal(three, np.repeat(decode_audio(mono)[0], 3, axis=0))
        with pytest.raises(ValueError, match="channels=3 of a sound with 2"):
            decode_audio(FORMATS[kind], channels=3)


def test_resampled_is_what_soxr_makes_of_it() -> None:
    import soxr

    for kind in ("WAV", "FLAC"):
        samples, rate = decode_audio(FORMATS[kind], sample_rate=16_000)
        whole, _ = decode_audio(FORMATS[kind])
        assert rate == 16_000
        assert samples.shape == (2, 1_334)
        assert np.array_equal(samples, soxr.resample(whole.T.copy(), 48_000, 16_000).T)
        assert samples.flags.c_contiguous
    assert decode_audio(FORMATS["WAV"], sample_rate=48_000)[0].shape == (2, 4_001)


def test_clips_of_one_duration_have_one_length() -> None:
    for rate in (8_000, 11_025, 22_050, 44_100, 47_999):
        data = sound("WAV", "PCM_16", rate=rate, samples=tone(rate, 1))
        for duration in (0.1, 0.1003, 1 / 3):
            samples, _ = decode_audio(data, offset=0.2, duration=duration, sample_rate=16_000)
            assert samples.shape == (1, round(duration * 16_000))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sample_rate": 0}, "sample_rate must be at least 1"),
        ({"channels": 0}, "channels must be at least 1"),
        ({"offset": -1.0}, "offset must be a finite number"),
        ({"duration": float("nan")}, "duration must be a finite number"),
        ({"offset": 1.0}, r"offset=1.0 s lies behind the end: the sound is 0.083 s long"),
    ],
)
def test_arguments_out_of_range(options: dict[str, Any], said: str) -> None:
    for kind in ("WAV", "FLAC"):
        with pytest.raises(ValueError, match=said):
            decode_audio(FORMATS[kind], **options)
    with pytest.raises(TypeError, match="must be a whole number"):
        decode_audio(FORMATS["WAV"], sample_rate=16e3)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rate", [1, 119, 48_000 * 400 + 1, 2**31, 10**30])
def test_a_rate_too_far_from_the_sounds_own_is_refused(kind: str, rate: int) -> None:
    with pytest.raises(ValueError, match=f"^sample_rate={rate:,} of a sound that has 48,000"):
        decode_audio(FORMATS[kind], sample_rate=rate)


def test_a_header_that_claims_a_frame_a_second_makes_no_gigabytes() -> None:
    data = bytearray(FORMATS["WAV"])
    data[24:28] = (1).to_bytes(4, "little")
    assert decode_audio(data)[1] == 1
    with pytest.raises(ValueError, match="of a sound that has 1 frames a second, as its header"):
        decode_audio(data, sample_rate=48_000)
    assert decode_audio(data, sample_rate=400)[0].shape == (2, 4_001 * 400)


def test_mono_is_repeated_so_often_and_no_more() -> None:
    mono = sound("WAV", "PCM_16", samples=tone()[:, :1])
    assert decode_audio(mono, channels=1024)[0].shape == (1024, 4_001)
    for channels in (1025, 2**40):
        with pytest.raises(ValueError, match="repeated at most 1,024 times"):
            decode_audio(mono, channels=channels)


@pytest.mark.parametrize("kind", FORMATS)
def test_times_beyond_all_numbers(kind: str) -> None:
    whole, _ = decode_audio(FORMATS[kind])
    assert np.array_equal(decode_audio(FORMATS[kind], duration=1e308)[0], whole)
    resampled, _ = decode_audio(FORMATS[kind], duration=1e308, sample_rate=16_000)
    assert resampled.shape[1] == pytest.approx(len(whole[0]) / 3, abs=1)
    with pytest.raises(ValueError, match="lies behind the end"):
        decode_audio(FORMATS[kind], offset=1e308)


def test_what_is_no_data() -> None:
    with pytest.raises(TypeError, match="use read_audio"):
        decode_audio("a.wav")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not NoneType"):
        decode_audio(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="decoded already"):
        decode_audio(np.zeros((2, 100), np.float32))  # type: ignore[arg-type]
    with pytest.raises(DecodeError, match="0 bytes"):
        decode_audio(b"")


def test_data_may_be_any_buffer() -> None:
    whole, _ = decode_audio(FORMATS["FLAC"])
    for data in (bytearray(FORMATS["FLAC"]), memoryview(FORMATS["FLAC"])):
        assert np.array_equal(decode_audio(data)[0], whole)


@pytest.mark.parametrize(
    "name", ["é 中文 %20.wav", "a:b.flac", "\N{MUSICAL NOTE}.mp3", b"\xff.ogg"]
)
def test_files_of_any_name(name: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(name)
    data = FORMATS[path.suffix[1:].upper()]
    path.write_bytes(data)
    for given in (path, str(path)):
        assert np.array_equal(read_audio(given)[0], decode_audio(data)[0])


def test_errors_of_files_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.flac"
    path.write_bytes(FORMATS["FLAC"][:2_000])
    with pytest.raises(DecodeError, match=r"broken\.flac: "):
        read_audio(path)
    path.write_bytes(b"")
    with pytest.raises(DecodeError, match=r"broken\.flac: there is no data"):
        read_audio(path)
    path.write_bytes(FORMATS["FLAC"])
    with pytest.raises(ValueError, match=r"broken\.flac: offset=5"):
        read_audio(path, offset=5)
    with pytest.raises(FileNotFoundError):
        read_audio(tmp_path / "none.wav")
    os.mkfifo(tmp_path / "pipe.wav")
    with pytest.raises(OSError, match="Not a regular file"):
        read_audio(tmp_path / "pipe.wav")


def test_eight_threads_get_what_one_gets() -> None:
    jobs = [
        (kind, options)
        for kind in FORMATS
        for options in ({}, {"sample_rate": 16_000, "channels": 1}, {"offset": 0.02})
    ]
    expected = [decode_audio(FORMATS[kind], **options)[0] for kind, options in jobs]
    together = threading.Barrier(8)

    def work(_: int) -> bool:
        together.wait()
        found = [decode_audio(FORMATS[kind], **options)[0] for kind, options in jobs]
        return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_no_native_thread_is_started() -> None:
    def work() -> None:
        for data in FORMATS.values():
            for _ in range(5):
                decode_audio(data, sample_rate=16_000)

    assert threads_beside(work) == 0


def test_a_pipeline_names_each_broken_file(tmp_path: Path) -> None:
    """Scenario C9: which files were bad, of all, as records and as lines of JSON."""
    paths = list[Path]()
    for number in range(40):
        kind = ("FLAC", "MP3", "WAV")[number % 3]
        paths.append(tmp_path / f"{number:02}.{kind.lower()}")
        data = FORMATS[kind]
        paths[-1].write_bytes(data[: len(data) - 400] if number in (7, 20, 33) else data)
    builder = PipelineBuilder().add_source(paths)
    pipeline = builder.pipe(read_audio, concurrency=4, on_error="skip").build()
    with pipeline.run_sync() as run:
        assert sum(1 for _ in run) == 37
    assert sorted(record.index for record in run.failures) == [7, 20, 33]
    for record in run.failures:
        assert str(paths[record.index]) in record.message
        assert record.stage == "read_audio"
    lines = tmp_path / "failures.jsonl"
    run.failures.to_jsonl(lines)
    assert all(str(paths[at]) in lines.read_text() for at in (7, 20, 33))


def test_a_flac_that_does_not_say_how_long_it_is() -> None:
    """As ffmpeg writes it to a pipe: the count of frames in its header is 0."""
    whole = bytearray(sound("FLAC", rate=16_000, samples=tone(9_000)))
    whole[21] &= 0xF0  # STREAMINFO: 36 bits at bit 108
    whole[22:26] = bytes(4)
    data = bytes(whole)
    samples, rate = decode_audio(data)
    assert rate == 16_000
    assert np.array_equal(samples, decode_audio(sound("FLAC", rate=16_000, samples=tone(9_000)))[0])
    assert np.array_equal(decode_audio(data, offset=0.1, duration=9)[0], samples[:, 1_600:])
    assert audio_info(data).frames == 0
    with pytest.raises(DecodeError):
        decode_audio(data[:-9])


def test_the_error_has_the_path(tmp_path: Path) -> None:
    path = tmp_path / "cut.flac"
    path.write_bytes(sound("FLAC", rate=16_000, samples=tone(9_000))[:5_000])
    with pytest.raises(DecodeError) as raised:
        read_audio(path)
    assert raised.value.path == str(path)


@pytest.mark.parametrize("wrong", [{"offset": None}, {"offset": "1"}, {"duration": "1"}])
def test_what_is_no_number_of_seconds_is_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(TypeError, match=f"{name} must be a number of seconds"):
        decode_audio(sound("WAV"), **wrong)
