"""Turn videos into RGB arrays: the public functions."""

from __future__ import annotations

import operator
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from spdl_async import native_threads, note
from spdl_async.errors import DecodeError
from spdl_async.io._media import Media, media_of_bytes, media_of_file
from spdl_async.io._video_paint import Painter
from spdl_async.io._video_reader import MOST_THREADS, VideoReader, open_video
from spdl_async.io._video_select import Selection, height_width, selection
from spdl_async.io._video_torchcodec import decode_with_torchcodec

if TYPE_CHECKING:
    from typing_extensions import Buffer

Pixels = NDArray[np.uint8]
Backend = Literal["auto", "pyav", "torchcodec"]


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    """What a video is, from its packets and its first frame.

    Attributes:
        frames: how many frames are shown; those that are there, where the file is cut short.
        fps: mean frames a second: ``frames / duration``.
        duration: seconds from the first frame's presentation to the end of the last one's.
        size: (height, width) in pixels, upright.
        codec: FFmpeg's name, as ``h264``, ``hevc``, ``vp9`` or ``av1``.
        rotation: degrees, counterclockwise, by which the stored frames are turned to be upright:
            0, 90, 180 or 270.
        complete: False where the container says that there is more than the file has.
    """

    frames: int
    fps: float
    duration: float
    size: tuple[int, int]
    codec: str
    rotation: int
    complete: bool


def decode_video(
    data_or_path: Buffer | str | os.PathLike[str],
    *,
    indices: Sequence[int] | None = None,
    every: int | None = None,
    fps: float | None = None,
    start: float | None = None,
    end: float | None = None,
    size: int | tuple[int, int] | None = None,
    backend: Backend = "auto",
) -> NDArray[np.uint8]:
    """Decode frames of a video into one RGB array.

    First the packets are read, without decoding, which gives each frame's exact place: frames
    count in the order in which they are shown, also where they are stored in another (B-frames),
    come at varying intervals, or are hidden by an edit list. Then, for the wanted frames, only the
    groups of pictures that hold them are decoded.

    Runs on the calling thread, mostly without the GIL, and with as many native threads as
    `spdl_async.native_threads` allows, up to 16: in a stage of a pipeline the cores divided by its
    ``concurrency``, elsewhere all cores. The frames do not depend on it. These threads share the
    work on one frame, as far as its codec and encoder allow that: some in AV1, VP9 and MPEG-2, next
    to nothing in H.264, which mostly has one slice a frame. They end with the call. The statistics
    of the stage show their number as ``native threads``.

    Frames are shown upright: rotation and mirroring in the file's display matrix are applied when
    they are quarter turns, and ignored when not. Colours are converted by the matrix and the range
    that the video names; where it names none, by BT.601 and the limited range. More than 8 bits
    are reduced to 8. Pixels that are not square stay so.

    Args:
        data_or_path: the content of a file as bytes-like object, or the path of one (``str`` or
            path object; never a URL), which is then read in parts.
        indices: positions of frames, from 0, in any order, also several times; the result has
            them in this order. Cannot be combined with the next four.
        every: take each n-th frame of those between ``start`` and ``end``, beginning with the
            first.
        fps: take what is on the screen at ``start``, and then every ``1 / fps`` seconds: frames
            are repeated or left out as it needs.
        start: seconds; frames that are shown from then on. The first frame is shown at 0.
        end: seconds; frames that are shown before.
        size: ``None`` keeps the video's own; a number makes a square of it; a pair is
            (height, width) in pixels. Stretched, by FFmpeg's bilinear filter.
        backend: ``"auto"`` and ``"pyav"`` decode with PyAV; ``"torchcodec"`` with torchcodec,
            where it is installed, on one native thread (PyAV is needed, too: it reads the packets).

    Returns:
        A new array of shape (frames, height, width, 3), dtype uint8. All frames have the size of
        the first one, also where the video changes its size.

    Raises:
        DecodeError: the data is damaged on the way to a wanted frame, or no video; or it is cut
            short and the wanted part reaches to its end. The message says how far it is intact.
        IndexError: an index is out of range; the message has the number of frames.
        TypeError: an argument is of the wrong type.
        ValueError: arguments contradict each other, or no frame lies between ``start`` and ``end``.
        OSError: the file cannot be opened or read, or is no regular file.
        ImportError: the backend is not installed.

    Example:
        >>> import io, av, numpy as np
        >>> file = io.BytesIO()
        >>> with av.open(file, "w", format="mp4") as container:
        ...     stream = container.add_stream("mpeg4", rate=10)
        ...     stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        ...     for number in range(20):
        ...         grey = np.full((48, 64, 3), 10 * number, np.uint8)
        ...         frame = av.VideoFrame.from_ndarray(grey, format="rgb24")
        ...         container.mux(stream.encode(frame))
        ...     container.mux(stream.encode(None))
        >>> decode_video(file.getvalue(), indices=[15, 3]).mean(axis=(1, 2, 3)).round(-1)
        array([150.,  30.])
        >>> decode_video(file.getvalue(), start=1.0, fps=5, size=(24, 32)).shape
        (5, 24, 32, 3)
    """
    wanted = selection(indices=indices, every=every, fps=fps, start=start, end=end)
    target = height_width(size)
    _check_backend(backend)
    threads = _threads(backend)
    with _media(data_or_path, "decode_video") as media, open_video(media, threads) as reader:
        places = _places(reader, wanted)
        if backend == "torchcodec":
            return decode_with_torchcodec(media, reader, places, target)
        return _decode(reader, places, target)


def stream_video(
    data_or_path: Buffer | str | os.PathLike[str],
    *,
    chunk: int = 16,
    every: int | None = None,
    fps: float | None = None,
    start: float | None = None,
    end: float | None = None,
    size: int | tuple[int, int] | None = None,
) -> Generator[NDArray[np.uint8], None, None]:
    """Decode a video in pieces: a generator of arrays of up to ``chunk`` frames each.

    For ``.pipe(stream_video)``, one video to many chunks, with no more than one chunk in memory for
    each call. Closing the generator early, which a pipeline does when it is left, closes the video.
    Arguments are checked at the first ``next``, as in every generator. Native threads are as for
    `decode_video`; they end with the generator.

    Args:
        data_or_path: as for `decode_video`, and so are the others.
        chunk: frames of each array but the last, which may have fewer.

    Yields:
        New arrays of shape (n, height, width, 3), dtype uint8, 1 <= n <= ``chunk``.

    Raises:
        DecodeError: as for `decode_video`, but when the damage is reached: what lies before it
            was yielded, in full chunks and a short one.
        IndexError, TypeError, ValueError, OSError, ImportError: as for `decode_video`.

    Example:
        >>> import io, av, numpy as np
        >>> file = io.BytesIO()
        >>> with av.open(file, "w", format="mp4") as container:
        ...     stream = container.add_stream("mpeg4", rate=10)
        ...     stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        ...     for number in range(20):
        ...         frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8))
        ...         container.mux(stream.encode(frame))
        ...     container.mux(stream.encode(None))
        >>> [len(frames) for frames in stream_video(file.getvalue(), chunk=8)]
        [8, 8, 4]
    """
    wanted = selection(every=every, fps=fps, start=start, end=end)
    target = height_width(size)
    try:
        chunk = operator.index(chunk)
    except TypeError:
        raise TypeError(f"chunk must be a whole number of frames, not {chunk!r}") from None
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1 frame, not {chunk}")
    threads = _threads("pyav")
    with _media(data_or_path, "stream_video") as media, open_video(media, threads) as reader:
        yield from _chunks(reader, wanted, target, chunk)


def video_info(data_or_path: Buffer | str | os.PathLike[str]) -> VideoInfo:
    """Return what a video is, after reading its packets and decoding its first frame.

    Args:
        data_or_path: the content of a file as bytes-like object, or the path of one.

    Raises:
        DecodeError: it is no video, or damaged in its header or its first frame. A file that is
            cut short is no error here: ``complete`` is False.
        TypeError: it is neither bytes-like nor a path.
        OSError: the file cannot be opened or read, or is no regular file.
        ImportError: PyAV is not installed.

    Example:
        >>> import io, av, numpy as np
        >>> file = io.BytesIO()
        >>> with av.open(file, "w", format="mp4") as container:
        ...     stream = container.add_stream("mpeg4", rate=10)
        ...     stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        ...     for number in range(20):
        ...         frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8))
        ...         container.mux(stream.encode(frame))
        ...     container.mux(stream.encode(None))
        >>> info = video_info(file.getvalue())
        >>> info.frames, info.fps, info.size, info.codec
        (20, 10.0, (48, 64), 'mpeg4')
    """
    with _media(data_or_path, "video_info") as media, open_video(media) as reader:
        _, first = next(reader.frames([0]))
        painter = Painter(first, None)
        frames, duration = len(reader.table), reader.table.duration
        return VideoInfo(
            frames=frames,
            fps=frames / duration,
            duration=duration,
            size=painter.shape,
            codec=reader.stream.codec_context.codec.canonical_name,
            rotation=90 * painter.turns,
            complete=reader.missing is None,
        )


@contextmanager
def _media(data_or_path: object, function: str) -> Iterator[Media]:
    if isinstance(data_or_path, (str, os.PathLike)):
        with media_of_file(data_or_path) as media:
            yield media
    else:
        yield media_of_bytes(data_or_path, function, "a path")


def _threads(backend: str) -> int:
    """Return how many native threads to decode with, and tell the statistics of the stage."""
    # torchcodec's threads would work on several frames at a time.
    threads = 1 if backend == "torchcodec" else min(native_threads(), MOST_THREADS)
    note("native threads", threads)
    return threads


def _check_backend(backend: str) -> None:
    if backend not in ("auto", "pyav", "torchcodec"):
        raise ValueError(f'backend must be "auto", "pyav" or "torchcodec", not {backend!r}')


def _places(reader: VideoReader, wanted: Selection) -> list[int]:
    """Return the positions of the wanted frames, if all of them are there.

    Raises:
        DecodeError: the file is cut short, and wanted frames lie behind the cut.
    """
    table = reader.table
    if reader.missing is None:
        return wanted.among(table.times, table.duration)
    try:
        places = wanted.among(table.times, table.duration)
    except (IndexError, ValueError) as error:
        _cut_short(reader, error)
    if not wanted.ends_before(table.duration):
        _cut_short(reader, None)
    return places


def _cut_short(reader: VideoReader, cause: Exception | None) -> Any:
    raise DecodeError(
        f"truncated video: {reader.missing}; {len(reader.table):,} frames are there, up to "
        f"{reader.table.duration:.3f} s"
    ) from cause


def _decode(reader: VideoReader, places: list[int], size: tuple[int, int] | None) -> Pixels:
    rows = dict[int, list[int]]()
    for row, place in enumerate(places):
        rows.setdefault(place, []).append(row)
    painter, out = None, None
    for place, frame in reader.frames(sorted(rows)):
        if painter is None or out is None:
            painter = Painter(frame, size)
            out = np.empty((len(places), *painter.shape, 3), np.uint8)
        first, *others = rows[place]
        painter.paint(frame, out[first])
        for other in others:
            out[other] = out[first]
    assert out is not None
    return out


def _chunks(
    reader: VideoReader, wanted: Selection, size: tuple[int, int] | None, chunk: int
) -> Iterator[Pixels]:
    """Yield chunks up to damage, or up to where the file is cut short, and raise then."""
    table = reader.table
    cut = reader.missing is not None and not wanted.ends_before(table.duration)
    try:
        places = wanted.among(table.times, table.duration)
    except ValueError as error:
        if reader.missing is None:
            raise
        _cut_short(reader, error)
    failure: DecodeError | None = None
    painter, out, filled = None, None, 0
    frames = reader.frames(sorted(set(places)))
    at = -1
    frame: Any = None
    for number, place in enumerate(places):
        if place != at:
            try:
                at, frame = next(frames)
            except DecodeError as error:
                failure = error
                break
        painter = painter or Painter(frame, size)
        if out is None:
            out = np.empty((min(chunk, len(places) - number), *painter.shape, 3), np.uint8)
        painter.paint(frame, out[filled])
        filled += 1
        if filled == len(out):
            yield out
            out, filled = None, 0
    if out is not None:
        yield out[:filled].copy()
    if failure is not None:
        raise failure
    if cut:
        _cut_short(reader, None)
