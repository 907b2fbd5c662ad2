"""decode_video and stream_video: exactly the frames that were asked for, and no more work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("av")

from sample_media import cached_video as video
from sample_media import numbers, picture, sound, threads_beside

from spdl_async import PipelineBuilder
from spdl_async.errors import DecodeError
from spdl_async.io import decode_video, stream_video, video_info
from spdl_async.io._media import media_of_bytes
from spdl_async.io._video_reader import VideoReader

pytestmark = pytest.mark.torch

QUIET_265 = (("x265-params", "open-gop=1:log-level=none"),)
KINDS: dict[str, Callable[[], bytes]] = {
    "h264 in mp4, B-frames": video,
    "h264 in mp4, open groups": partial(video, options=(("x264-params", "open-gop=1"),)),
    "h264 in Matroska": partial(video, container="matroska"),
    "h264 in MPEG-TS": partial(video, container="mpegts"),
    "h264 alone, no time stamps": partial(video, container="h264"),
    "h264, 10 bit": partial(video, pixels="yuv420p10le"),
    "h264, odd size": partial(video, height=47, width=63, pixels="yuv444p"),
    "hevc, open groups": partial(video, codec="libx265", options=QUIET_265),
    "vp8": partial(
        video,
        codec="libvpx",
        container="webm",
        b_frames=None,
    ),
    "vp9": partial(video, codec="libvpx-vp9", container="webm", b_frames=None),
    "mpeg2 in MPEG-TS": partial(video, codec="mpeg2video", container="mpegts"),
    "mpeg4 in AVI, B-frames": partial(video, codec="mpeg4", container="avi"),
    "jpeg in AVI": partial(video, codec="mjpeg", container="avi", pixels="yuvj420p", b_frames=None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_frames_in_the_order_in_which_they_are_shown(kind: str) -> None:
    data = KINDS[kind]()
    frames = decode_video(data)
    info = video_info(data)
    assert numbers(frames) == list(range(48))
    assert frames.dtype == np.uint8
    assert frames.flags.c_contiguous
    assert frames.flags.writeable
    assert frames.shape == (48, *info.size, 3)
    assert (info.frames, info.rotation, info.complete) == (48, 0, True)
    assert info.fps == pytest.approx(25, rel=1e-3)
    assert info.duration == pytest.approx(48 / 25, rel=1e-3)
    expected = picture(20, *info.size).astype(int)
    assert np.abs(frames[20].astype(int) - expected)[4:12, 4:12].max() <= 16
    assert info.codec == kind.split()[0].rstrip(",").replace("jpeg", "mjpeg").replace(
        "mpeg2", "mpeg2video"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_indices_are_those_frames_in_the_order_given(kind: str) -> None:
    data = KINDS[kind]()
    whole = decode_video(data)
    for indices in ([47], [13], [0], [40, 3, 3, 17, 47, 0], range(30, 20, -1)):
        assert np.array_equal(decode_video(data, indices=indices), whole[list(indices)])


def decoded(data: bytes, wanted: list[int]) -> int:
    reader = VideoReader(media_of_bytes(data, "", ""))
    try:
        assert [place for place, _ in reader.frames(wanted)] == wanted
        return reader.decoded
    finally:
        reader.close()


@pytest.mark.parametrize(
    "kind",
    [
        "h264 in mp4, B-frames",
        "h264 in Matroska",
        "h264 in MPEG-TS",
        "vp9",
        "hevc, open groups",
        "mpeg4 in AVI, B-frames",
    ],
)
def test_only_the_needed_groups_of_pictures_are_decoded(kind: str) -> None:
    data = KINDS[kind]()
    reader = VideoReader(media_of_bytes(data, "", ""))
    starts = sorted({reader.table.packets.index(entry) for entry in reader.table.entries})
    reader.close()
    assert len(starts) >= 4  # groups of at most 12 frames
    longest = max(after - before for before, after in pairwise([*starts, 48]))
    for index in range(48):
        assert decoded(data, [index]) <= longest
    assert decoded(data, [0, 47]) <= 1 + longest
    assert decoded(data, list(range(48))) == 48
    assert decoded(data, [12, 13, 14, 15]) <= 3 * longest


def test_without_time_stamps_or_key_frames_all_before_are_decoded() -> None:
    assert decoded(KINDS["h264 alone, no time stamps"](), [30]) == 31


def test_an_open_group_is_decoded_from_the_start() -> None:
    data = KINDS["h264 in mp4, open groups"]()
    assert numbers(decode_video(data, indices=[30, 31, 40])) == [30, 31, 40]
    assert decoded(data, list(range(0, 48, 2))) <= 48 + 12


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every": 10}, [0, 10, 20, 30, 40]),
        ({"every": 4, "start": 0.4, "end": 1.0}, [10, 14, 18, 22]),
        ({"start": 1.8}, [45, 46, 47]),
        ({"end": 0.1}, [0, 1, 2]),
        ({"start": 0.12, "end": 0.2}, [3, 4]),
        ({"start": 0.3, "end": 0.34}, [8]),
        ({"fps": 5}, [0, 5, 10, 15, 20, 25, 30, 35, 40, 45]),
        ({"fps": 10, "start": 0.2, "end": 0.8}, [5, 7, 10, 12, 15, 17]),
        ({"fps": 50, "start": 1.84}, [46, 46, 47, 47]),
        ({"fps": 1000, "start": 0.039, "end": 0.042}, [0, 1, 1]),
        ({"end": 99.0, "every": 47}, [0, 47]),
    ],
)
@pytest.mark.parametrize("kind", ["h264 in mp4, B-frames", "h264 in MPEG-TS", "vp9"])
def test_selections_by_time(options: dict[str, Any], expected: list[int], kind: str) -> None:
    data = KINDS[kind]()
    assert numbers(decode_video(data, **options)) == expected
    assert numbers(np.concatenate(list(stream_video(data, chunk=3, **options)))) == expected


TIMES = (0, 10, 200, 210, 220, 500, 900, 910)


def test_variable_rate() -> None:
    data = video(8, milliseconds=TIMES, container="matroska")
    assert numbers(decode_video(data)) == list(range(8))
    assert numbers(decode_video(data, start=0.2, end=0.6)) == [2, 3, 4, 5]
    assert numbers(decode_video(data, fps=10, end=0.95)) == [0, 1, 2, 4, 4, 5, 5, 5, 5, 6]


def test_time_counts_from_the_first_frame() -> None:
    late = tuple(3_000 + 40 * number for number in range(24))
    for container in ("mp4", "matroska", "mpegts"):
        data = video(24, milliseconds=late, container=container)
        assert numbers(decode_video(data, start=0.2, end=0.4)) == [5, 6, 7, 8, 9]
        assert video_info(data).duration == pytest.approx(0.96, abs=0.05)


def test_frames_that_an_edit_list_hides_are_not_there() -> None:
    data = bytearray(video(group=24))
    at = data.index(b"elst") + 8
    assert int.from_bytes(data[at : at + 4], "big") == 1
    hidden = int.from_bytes(data[at + 8 : at + 12], "big") + 10 * 512
    data[at + 8 : at + 12] = hidden.to_bytes(4, "big")
    data[at + 4 : at + 8] = (20 * 40).to_bytes(4, "big")  # and it shows 20 frames only
    assert numbers(decode_video(data)) == list(range(10, 30))
    assert numbers(decode_video(data, indices=[19, 0])) == [29, 10]
    assert numbers(decode_video(data, start=0.4, end=0.48)) == [20, 21]
    assert video_info(data).frames == 20


def test_a_stream_that_begins_between_key_frames_begins_at_the_next() -> None:
    data = video(container="mpegts")
    packets = [data[at : at + 188] for at in range(0, len(data), 188)]
    cut = b"".join(packets[:3] + packets[20:])
    found = numbers(decode_video(cut))
    assert 0 < found[0] <= 24
    assert found == list(range(found[0], 48))
    assert numbers(decode_video(cut, indices=[1])) == [found[1]]


def test_a_vp8_frame_that_is_not_to_be_shown_is_not_counted() -> None:
    import io

    av: Any = pytest.importorskip("av")
    data = video(codec="libvpx", container="webm", b_frames=None)
    with av.open(io.BytesIO(data)) as container:
        packet = list(container.demux(video=0))[20]
        at = data.index(bytes(packet), packet.pos)
    hidden = data[:at] + bytes([data[at] & ~0x10]) + data[at + 1 :]
    assert numbers(decode_video(hidden)) == [n for n in range(48) if n != 20]
    assert numbers(decode_video(hidden, indices=[20, 46])) == [21, 47]
    assert video_info(hidden).frames == 47


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("rotation", [0, 90, 180, 270, -90])
def test_frames_are_upright(rotation: int, mirrored: bool) -> None:
    data = video(4, rotation=rotation, mirrored=mirrored)
    plain = decode_video(video(4))
    found = decode_video(data)
    turns = rotation // 90 % 4
    # The encoder writes the mirror before the turn, as the matrix has it.
    expected = np.rot90(plain[:, :, ::-1] if mirrored else plain, turns, axes=(1, 2))
    if mirrored and turns % 2:
        expected = np.rot90(plain, turns, axes=(1, 2))[:, :, ::-1]
    assert found.shape == expected.shape
    either = [expected, expected[:, ::-1, ::-1]] if mirrored else [expected]
    assert any(np.array_equal(found, each) for each in either)
    assert video_info(data).size == found.shape[1:3]
    if not mirrored:
        assert video_info(data).rotation == rotation % 360
    small = decode_video(data, size=(30, 20))
    assert small.shape == (4, 30, 20, 3)


def test_other_angles_are_left_alone() -> None:
    data = video(2, rotation=30)
    assert np.array_equal(decode_video(data), decode_video(video(2)))


def test_size() -> None:
    data = video()
    small = decode_video(data, size=(12, 16), indices=[40, 41])
    assert small.shape == (2, 12, 16, 3)
    assert numbers(small) == [40, 41]
    assert decode_video(data, size=100, end=0.1).shape == (3, 100, 100, 3)


def test_full_range_and_limited_range_give_the_same_colours() -> None:
    limited = decode_video(video(20))
    full = decode_video(video(20, codec="mjpeg", container="avi", pixels="yuvj420p", b_frames=None))
    assert np.abs(limited[:, 40:, 40:].astype(int) - full[:, 40:, 40:]).max() <= 3


def test_stream_yields_chunks_of_the_whole() -> None:
    data = video()
    chunks = list(stream_video(data, chunk=20))
    assert [len(chunk) for chunk in chunks] == [20, 20, 8]
    assert np.array_equal(np.concatenate(chunks), decode_video(data))
    assert not np.shares_memory(chunks[0], chunks[1])


class Containers:
    """Remembers what was opened, through PyAV's own ``open``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import av

        self.opened = list[Any]()
        opens = av.open

        def remember(*args: Any, **options: Any) -> Any:
            self.opened.append(opens(*args, **options))
            return self.opened[-1]

        monkeypatch.setattr(av, "open", remember)

    def all_closed(self) -> bool:
        return bool(self.opened) and not any(each.input_was_opened for each in self.opened)


def test_a_stream_that_is_closed_early_closes_the_video(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(video())
    containers = Containers(monkeypatch)
    chunks = stream_video(path, chunk=2)
    assert isinstance(chunks, Iterator)
    next(chunks)
    assert not containers.all_closed()
    chunks.close()
    assert containers.all_closed()


def test_containers_are_closed_after_work_and_after_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    containers = Containers(monkeypatch)
    decode_video(video(), indices=[30])
    video_info(video())
    with pytest.raises(IndexError):
        decode_video(video(), indices=[48])
    damaged = bytearray(video())
    middle = damaged.index(b"mdat") + 1_000
    damaged[middle : middle + 60] = b"\x5a" * 60
    with pytest.raises(DecodeError):
        decode_video(damaged)
    with pytest.raises(DecodeError):
        decode_video(sound("FLAC"))
    assert containers.all_closed()


def test_in_a_pipeline_one_video_gives_many_chunks(tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"{number}.mp4")
        paths[-1].write_bytes(video(10 + number))
    builder = PipelineBuilder().add_source(paths)
    pipeline = builder.pipe(partial(stream_video, chunk=4, size=16), concurrency=2).build()
    with pipeline.run_sync() as run:
        assert [len(frames) for frames in run] == [4, 4, 2, 4, 4, 3, 4, 4, 4]
    with pipeline.run_sync() as run:
        next(iter(run))  # left in the middle: the leak checks of every test see open files


def test_eight_threads_get_what_one_gets() -> None:
    jobs: list[tuple[bytes, dict[str, Any]]] = [
        (KINDS[kind](), options)
        for kind in ("h264 in mp4, B-frames", "h264 in MPEG-TS", "vp9", "h264, 10 bit")
        for options in ({}, {"indices": [33, 2]}, {"fps": 7, "size": 30})
    ]
    expected = [decode_video(data, **options) for data, options in jobs]
    together = threading.Barrier(8)

    def work(_: int) -> bool:
        together.wait()
        found = [decode_video(data, **options) for data, options in jobs]
        return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_one_native_thread_where_there_is_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario H11; with more cores: test_decoders_tell.py."""
    monkeypatch.setattr("spdl_async._runtime.native.cores_within", lambda _: 1)
    clips = [
        video(24, height=240, width=320, codec=codec, container=container, b_frames=None)
        for codec, container in (("libx264", "mp4"), ("libvpx-vp9", "webm"))
    ]

    def work() -> None:
        for clip in clips:
            decode_video(clip, size=(200, 200))

    assert threads_beside(work) == 0


def test_more_than_one_native_thread_would_be_seen() -> None:
    import io

    av: Any = pytest.importorskip("av")
    clip = video(24, height=240, width=320)

    def work() -> None:
        with av.open(io.BytesIO(clip)) as container:
            container.streams.video[0].codec_context.thread_type = "FRAME"
            container.streams.video[0].codec_context.thread_count = 4
            for frame in container.decode(video=0):
                frame.to_ndarray(format="rgb24")

    assert threads_beside(work) > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"indices": []}, "indices is empty"),
        ({"indices": [0], "every": 2}, "every cannot be given too"),
        ({"every": 2, "fps": 3}, "every or fps, not both"),
        ({"every": 0}, "every must be at least 1"),
        ({"fps": 0}, "fps must be a finite number"),
        ({"start": -1.0}, "start must be a finite number"),
        ({"start": 1.0, "end": 1.0}, "end=1.0 must be later than start=1.0"),
        ({"start": 1.92}, r"start=1.92 s lies behind the end: the video is 1.920 s long"),
        ({"start": 0.01, "end": 0.03}, "no frame is shown first between"),
        ({"size": 0}, "at least 1 pixel"),
        ({"size": 200_000}, "asks for 40,000,000,000 pixels, and at most 178,956,970"),
        ({"backend": "cv2"}, 'backend must be "auto", "pyav" or "torchcodec"'),
    ],
)
def test_arguments_out_of_range(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode_video(video(), **options)


def test_indices_out_of_range_name_the_number_of_frames(tmp_path: Path) -> None:
    for index in (48, -1):
        with pytest.raises(IndexError, match=f"index {index} .* the video has 48 frames, 0 to 47"):
            decode_video(video(), indices=[0, index])
    path = tmp_path / "clip.mp4"
    path.write_bytes(video())
    with pytest.raises(IndexError, match=r"clip\.mp4: index 99 is out of range"):
        decode_video(path, indices=[99])


def test_types_are_checked() -> None:
    with pytest.raises(TypeError, match="whole numbers"):
        decode_video(video(), indices=[0.5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="size must be None"):
        decode_video(video(), size="big")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not NoneType"):
        decode_video(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chunk must be at least 1"):
        next(stream_video(video(), chunk=0))


@pytest.mark.parametrize("name", ["é 中文 %20.mp4", "concat:b.mp4", b"\xff\xfe.mp4"])
def test_files_of_any_name(name: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(name)
    path.write_bytes(video())
    for given in (path, str(path)):
        assert numbers(decode_video(given, indices=[7])) == [7]


def test_a_song_with_a_cover_has_no_video() -> None:
    with pytest.raises(DecodeError, match=r"no video stream \(its streams: audio\)"):
        decode_video(sound("MP3"))


def test_torchcodec_is_asked_for_by_name() -> None:
    pytest.importorskip("torchcodec")
    data = video()
    found = decode_video(data, indices=[40, 3], backend="torchcodec")
    assert numbers(found) == [40, 3]


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> Any:
        if name.split(".")[0] in ("av", "torchcodec"):
            raise ModuleNotFoundError(name, name=name.split(".")[0])
        return real(name, package)

    monkeypatch.setattr("spdl_async.io._extras.importlib.import_module", missing)
    with pytest.raises(ImportError, match=r'pip install "spdl-async\[video\]"'):
        decode_video(video())
