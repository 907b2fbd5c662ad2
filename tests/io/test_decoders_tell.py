"""What the decoders tell the statistics of their stage. Scenarios H8 and H11."""

from __future__ import annotations

import gc
import importlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("av")
pytest.importorskip("simplejpeg")

from sample_media import cached_video as video
from sample_pictures import JPEGS, by_pillow, encode, photo

from spdl_async import PipelineBuilder
from spdl_async._runtime import native
from spdl_async.errors import DecodeError
from spdl_async.io import (
    ImageBatcher,
    decode_frames,
    decode_image,
    decode_video,
    read_image,
    salvage_image,
    stream_video,
    video_info,
)
from spdl_async.io._media import media_of_bytes
from spdl_async.io._video_reader import VideoReader

pytestmark = pytest.mark.torch

FELL_BACK = "decoded by Pillow instead of simplejpeg"
DAMAGED = "damaged, tolerated"


def notes(op: Any, items: list[Any], **options: Any) -> dict[str, object]:
    """Return the notes of a stage that has decoded all the items."""
    chain = PipelineBuilder().add_source(items).pipe(op, name="decode", **options)
    with chain.build().run_sync() as run:
        assert len(list(run)) >= len(items)
    return dict(run.statistics().stage("decode").notes)


# Pictures


def refused() -> bytes:
    """A JPEG with a colour transform that Adobe never had, of which libjpeg warns and Pillow does not."""
    data = JPEGS["cmyk"]
    at = data.index(b"Adobe") + 11
    return data[:at] + b"\x07" + data[at + 1 :]


GOOD, FALLS_BACK, CUT = JPEGS["4:2:0"], refused(), JPEGS["4:2:0"][:-400]
PNG = encode(photo(), "PNG")


def test_pictures_that_fall_back_to_pillow_are_counted() -> None:
    """Scenario H8."""
    assert notes(decode_image, [GOOD, FALLS_BACK, PNG, FALLS_BACK]) == {FELL_BACK: 2}
    assert np.abs(decode_image(FALLS_BACK).astype(int) - by_pillow(FALLS_BACK)).max() <= 1


def test_what_is_decoded_as_it_should_be_is_not_counted() -> None:
    assert notes(decode_image, [GOOD, PNG, *JPEGS.values()]) == {}
    assert notes(partial(decode_image, backend="pillow"), [GOOD, FALLS_BACK, PNG]) == {}


def test_without_simplejpeg_every_jpeg_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spdl_async.io._image.installed", lambda: None)
    assert notes(decode_image, [GOOD, PNG]) == {FELL_BACK: 1}


def test_files_count_too(tmp_path: Path) -> None:
    paths = [tmp_path / "good.jpg", tmp_path / "odd.jpg"]
    for path, data in zip(paths, (GOOD, FALLS_BACK), strict=True):
        path.write_bytes(data)
    assert notes(read_image, list(paths), concurrency=2) == {FELL_BACK: 1}


def test_a_back_end_that_was_named_and_leaves_a_picture_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spdl_async.io._backends.decode_with", lambda *_: None)
    assert notes(partial(decode_image, backend="cv2"), [GOOD, FALLS_BACK, PNG]) == {
        "decoded by Pillow instead of cv2": 2,
        "decoded by simplejpeg instead of cv2": 1,
    }


def test_tolerated_damage_is_counted() -> None:
    tolerant = partial(decode_image, damaged="tolerate")
    assert notes(tolerant, [GOOD, CUT, CUT, PNG, PNG[:-40]]) == {DAMAGED: 3}
    assert notes(salvage_image, [GOOD, CUT]) == {DAMAGED: 1}
    assert notes(partial(decode_frames, damaged="tolerate"), [GOOD, PNG[:-40]]) == {DAMAGED: 1}


def test_damage_that_is_an_error_is_no_note() -> None:
    chain = PipelineBuilder().add_source([GOOD, CUT]).pipe(decode_image, on_error="skip")
    with chain.build().run_sync() as run:
        assert len(list(run)) == 1
    assert not run.statistics().stage("decode_image").notes


def test_the_batcher_counts_where_it_decodes() -> None:
    batcher = ImageBatcher(2, size=32, damaged="tolerate")
    samples = PipelineBuilder().add_source([GOOD, FALLS_BACK, CUT])
    with samples.apply(batcher.stages(concurrency=2)).build().run_sync() as run:
        assert [len(batch) for batch in run] == [2, 1]
    told = {s.name: dict(s.notes) for s in run.statistics().stages if FELL_BACK in s.notes}
    assert list(told.values()) == [{FELL_BACK: 1, DAMAGED: 1}]


# Videos

H264 = partial(video, 24, height=240, width=320, b_frames=None)


def av1() -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SVT_LOG", "-1")  # else the encoder prints what it is
        return H264(codec="libsvtav1", options=(("preset", "12"),))


CODECS: dict[str, Callable[[], bytes]] = {
    "h264": H264,
    "h264 in slices": partial(H264, options=(("slices", "4"),)),
    "h264 without time stamps": partial(H264, container="h264"),
    "h264, B-frames": partial(H264, b_frames=2),
    "hevc": partial(H264, codec="libx265", options=(("x265-params", "log-level=none"),)),
    "vp9": partial(H264, codec="libvpx-vp9", container="webm"),
    "mpeg2": partial(H264, codec="mpeg2video", container="mpegts"),
    "mpeg4": partial(H264, codec="mpeg4"),
    "av1": av1,
}
every_codec = pytest.mark.parametrize("codec", CODECS)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Any:
    def pretend(number: int) -> None:
        monkeypatch.setattr(native, "cores_within", lambda _: number)

    return pretend


def test_native_threads_are_noted(cores: Any) -> None:
    """Scenario H11."""
    cores(8)
    clips = [H264()] * 2
    for concurrency, threads in ((1, 8), (2, 4), (3, 2), (8, 1), (20, 1)):
        for op in (decode_video, stream_video):
            assert notes(op, clips, concurrency=concurrency) == {"native threads": threads}
    cores(64)
    assert notes(decode_video, clips) == {"native threads": 16}
    assert notes(video_info, clips) == {}


def test_torchcodec_has_one_native_thread(cores: Any) -> None:
    pytest.importorskip("torchcodec")
    cores(8)
    try:
        importlib.import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError):
        pytest.skip("torchcodec finds no FFmpeg here")
    op = partial(decode_video, backend="torchcodec")
    assert notes(op, [H264()]) == {"native threads": 1}


@every_codec
def test_frames_are_the_same_with_any_number_of_threads(codec: str, cores: Any) -> None:
    data = CODECS[codec]()
    cores(1)
    alone = decode_video(data)
    for number in (2, 3, 16):
        cores(number)
        assert np.array_equal(decode_video(data), alone)
        assert np.array_equal(decode_video(data, indices=[17, 3]), alone[[17, 3]])
        assert np.array_equal(np.concatenate(list(stream_video(data, chunk=5))), alone)


@pytest.mark.parametrize("codec", ["vp9", "av1"])
def test_no_frame_is_decoded_ahead(codec: str) -> None:
    """A decoder that is at work when nobody waits for it is what hangs in a closing."""
    reader = VideoReader(media_of_bytes(CODECS[codec](), "", ""), 16)
    frames = reader.frames(range(24))
    for number in range(24):
        assert next(frames)[0] == number
        assert reader._fed == number
    reader.close()


def os_threads() -> int:
    if not os.path.exists("/proc/self/task"):
        pytest.skip("needs /proc")
    return len(os.listdir("/proc/self/task"))


def ended(before: int) -> bool:
    """Tell whether there are only so many threads; the system may list one a moment after it ended."""
    until = time.monotonic() + 5
    while os_threads() > before and time.monotonic() < until:
        time.sleep(0.001)
    return os_threads() <= before


@pytest.fixture
def no_collection() -> Iterator[None]:
    """What ends only when garbage is collected does not end here."""
    for make in CODECS.values():
        make()  # the encoders have threads, too
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@every_codec
@pytest.mark.usefixtures("no_collection")
def test_no_thread_outlives_the_closing(codec: str, cores: Any) -> None:
    data = CODECS[codec]()
    cores(4)
    before = os_threads()
    for chunks_taken in (1, 2, 24):
        chunks = stream_video(data, chunk=2)
        taken = [frames for frames, _ in zip(chunks, range(chunks_taken), strict=False)]
        assert taken
        if chunks_taken < 24 and codec != "mpeg4":  # whose decoder knows no threads
            assert os_threads() > before
        chunks.close()
        assert ended(before)
    decode_video(data)
    assert ended(before)


@every_codec
@pytest.mark.usefixtures("no_collection")
def test_no_thread_outlives_an_error(codec: str, cores: Any) -> None:
    data = bytearray(CODECS[codec]())
    for at in range(len(data) // 2, len(data) - 60, 97):
        data[at : at + 8] = b"\x5a\xa5" * 4
    cores(4)
    before = os_threads()
    with pytest.raises(DecodeError) as caught:
        decode_video(data)
    assert ended(before), "the error keeps the decoder alive"
    assert caught.value is not None


def test_closing_early_never_hangs(cores: Any) -> None:
    """In eight threads at once, at different places, while others decode; the time limit is the test's."""
    clips = [make() for make in CODECS.values()]
    together = threading.Barrier(8)
    cores(3)

    def work(number: int) -> int:
        together.wait(30)
        for round_ in range(6):
            for clip in clips:
                chunks = stream_video(clip, chunk=1 + number)
                for _ in range((number + round_) % 3):
                    next(chunks)
                chunks.close()
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))


@pytest.mark.parametrize("codec", ["h264", "vp9", "av1"])
@pytest.mark.parametrize("share", [1, 2, 3])
def test_eight_concurrent_decoders_have_the_threads_that_were_given_them(
    codec: str, share: int, cores: Any
) -> None:
    """Scenario H11: as many OS threads as there are cores, and a few that mostly wait."""
    clip = CODECS[codec]()
    cores(8 * share)
    open_, counted = threading.Barrier(8), threading.Barrier(8)
    counts = list[int]()

    def decode(data: bytes) -> Generator[int, None, None]:
        chunks: Generator[Any, None, None] = stream_video(data, chunk=2)
        next(chunks)
        open_.wait(30)  # all eight decoders are at work now, and none has ended
        counts.append(os_threads())
        counted.wait(30)
        chunks.close()
        yield 1

    before = os_threads()
    pipeline = PipelineBuilder().add_source([clip] * 8).pipe(decode, concurrency=8).build()
    with pipeline.run_sync() as run:
        assert sum(run) == 8
    assert dict(run.statistics().stage("decode").notes) == {"native threads": share}
    most = max(counts) - before - 8 - 1  # the stage's own, and that of the loop
    # A decoder's first thread is the stage's own; some codecs start that many beside it. The thread of
    # the source may be there still.
    assert most <= (8 * share if share > 1 else 0) + 1
    assert most >= 8 * (share - 1)
