"""Damaged videos: the documented error, no file but the one, flat memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("av")

from sample_media import cached_video as video
from sample_media import numbers

from spdl_async.errors import DecodeError
from spdl_async.io import decode_video, stream_video, video_info

pytestmark = pytest.mark.torch

FAST = (("movflags", "faststart"),)


def fast_start() -> bytes:
    """An mp4 file whose index lies in front of its frames, as files for the web have it."""
    data = video()
    moov = data.index(b"moov") - 4
    size = int.from_bytes(data[moov : moov + 4], "big")
    index = bytearray(data[moov : moov + size])
    first = data.index(b"mdat") - 4
    at = 0
    while (at := index.find(b"stco", at)) >= 0:
        count = int.from_bytes(index[at + 8 : at + 12], "big")
        for entry in range(at + 12, at + 12 + 4 * count, 4):
            moved = int.from_bytes(index[entry : entry + 4], "big") + size
            index[entry : entry + 4] = moved.to_bytes(4, "big")
        at += 4
    return data[:first] + bytes(index) + data[first:moov] + data[moov + size :]


def test_the_helper_makes_a_good_file() -> None:
    assert numbers(decode_video(fast_start())) == list(range(48))


CUT = {
    "mp4": (fast_start, 0.8),
    "matroska": (lambda: video(container="matroska"), 0.7),
    "avi": (lambda: video(codec="mpeg4", container="avi"), 0.8),
}


@pytest.mark.parametrize("container", CUT)
def test_truncated(container: str) -> None:
    make, share = CUT[container]
    whole = make()
    data = whole[: int(share * len(whole))]
    info = video_info(data)
    assert not info.complete
    assert 5 < info.frames < 48
    for options in ({}, {"every": 5}, {"start": 0.1}, {"fps": 4}, {"end": 1.9}):
        with pytest.raises(DecodeError, match=f"truncated video: .*; {info.frames} frames are"):
            decode_video(data, **options)
    with pytest.raises(DecodeError, match="truncated video"):
        decode_video(data, indices=[47])
    assert numbers(decode_video(data, indices=[5, 2])) == [5, 2]
    assert numbers(decode_video(data, end=0.2)) == [0, 1, 2, 3, 4]
    chunks = []
    with pytest.raises(DecodeError, match="truncated video"):
        for chunk in stream_video(data, chunk=4):
            chunks.append(chunk)
    assert numbers(np.concatenate(chunks)) == list(range(info.frames))


def test_truncated_before_the_index() -> None:
    data = video()
    with pytest.raises(DecodeError, match=r"truncated video: its box 'mdat' at byte \d+ reaches"):
        decode_video(data[:1_000])


def test_an_error_of_a_file_names_it(tmp_path: Path) -> None:
    path = tmp_path / "cut.mp4"
    path.write_bytes(fast_start()[:-1_000])
    for use in (decode_video, video_info, lambda p: list(stream_video(p))):
        if use is video_info:
            continue
        with pytest.raises(DecodeError, match=r"cut\.mp4: truncated video"):
            use(path)
    path.write_bytes(b"<html>no</html>")
    with pytest.raises(DecodeError, match=r"cut\.mp4: not a video"):
        video_info(path)
    path.write_bytes(b"")
    with pytest.raises(DecodeError, match=r"cut\.mp4: there is no data"):
        video_info(path)


def test_a_damaged_frame_is_an_error_and_those_of_other_groups_are_not() -> None:
    data = bytearray(video(group=12, options=(("x264-params", "scenecut=0"),)))
    at = data.index(b"mdat") + 4
    size = int.from_bytes(data[at - 8 : at - 4], "big") - 8
    middle = at + size // 2
    data[middle : middle + 60] = b"\x5a" * 60
    with pytest.raises(DecodeError, match="damaged video"):
        decode_video(data)
    assert numbers(decode_video(data, indices=[0, 5])) == [0, 5]
    assert numbers(decode_video(data, indices=[47])) == [47]
    chunks = []
    with pytest.raises(DecodeError, match="damaged video"):
        for chunk in stream_video(data, chunk=5):
            chunks.append(chunk)
    found = numbers(np.concatenate(chunks))
    assert found == list(range(len(found)))
    assert len(found) == 12  # also those that the decoder held when it met the damage
    assert numbers(decode_video(data, indices=[11, 10, 47])) == [11, 10, 47]


PLAYLISTS = (
    "ffconcat version 1.0\nfile {name}\n",
    "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{name}\n#EXT-X-ENDLIST\n",
    "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{path}\n#EXT-X-ENDLIST\n",
)


@pytest.mark.parametrize("text", PLAYLISTS)
def test_data_cannot_make_the_library_open_other_files(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.ts"
    other.write_bytes(video(container="mpegts"))
    monkeypatch.chdir(tmp_path)
    data = text.format(name="other.ts", path=other).encode()
    with pytest.raises(DecodeError):
        decode_video(data)
    (tmp_path / "list.txt").write_bytes(data)
    with pytest.raises(DecodeError):
        decode_video(tmp_path / "list.txt")


LEAK = """
import os, sys
sys.path.insert(0, sys.argv[1])
from sample_media import video
from spdl_async.errors import DecodeError
from spdl_async.io import decode_video, stream_video
data = video(12, group=4)
damaged = bytearray(data)
at = data.index(b"mdat") + 4 + 800
damaged[at : at + 60] = b"\\x5a" * 60

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def decode():
    decode_video(data, indices=[9, 2])
    next(stream_video(data, chunk=2))
    for bad in (damaged, data[:-300], b"no video"):
        try:
            decode_video(bad)
        except (DecodeError, IndexError):
            pass

count = int(sys.argv[2])
for _ in range(60):
    decode()
before = rss()
for _ in range(count):
    decode()
print(rss() - before, len(os.listdir("/proc/self/fd")))
"""


def leak(count: int) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, "-c", LEAK, str(Path(__file__).parent), str(count)],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    grown, descriptors = map(int, done.stdout.split())
    return grown, descriptors


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_is_flat_over_many_decodes() -> None:
    """Scenario H12: also where a stream is dropped in the middle, and where decoding fails."""
    count = 200
    grown, descriptors = leak(count)
    # Five decodes a turn, of which one frame that stayed would be 9 MB, a container 100 MB. The
    # allocator itself, of two native threads, takes up to three; ten thousand decodes grow by 4.6 MB.
    assert grown < 5_000_000
    assert descriptors < 20


def test_a_picture_that_is_painted_over_is_an_error() -> None:
    """The decoder of motion JPEG goes on behind damage; only when asked does it tell."""
    data = video(24, codec="mjpeg", container="avi", pixels="yuvj420p", b_frames=None)
    silent = 0
    for seed in range(20):
        damaged = bytearray(data)
        at = len(data) // 4 + 300 * seed
        damaged[at : at + 4] = b"\x13\x57\x9b\xdf"
        try:
            silent += not np.array_equal(decode_video(damaged), decode_video(data))
        except DecodeError:
            pass
    assert silent <= 4


def test_a_stream_that_begins_behind_the_cut_is_damage_and_no_wrong_argument() -> None:
    data = video(50, container="matroska")
    cut = data[: len(data) * 6 // 10]
    for read in (decode_video, lambda *a, **k: next(stream_video(*a, **k))):
        with pytest.raises(DecodeError, match="truncated video"):
            read(cut, start=1.9)


@pytest.mark.parametrize("wrong", [{"fps": "5"}, {"start": "1"}, {"end": [1]}, {"chunk": 1.5}])
def test_what_is_no_number_is_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(TypeError, match=f"{name} must be a"):
        next(stream_video(video(12), **wrong))
