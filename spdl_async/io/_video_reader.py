"""Frames of a video through PyAV: only the groups of pictures that are needed are decoded.

Native threads share the work on one frame, never several frames: a decoder that is at work on frames
ahead when a container is closed in the middle can wait for the GIL, whose holder waits for it. With
several threads the frames are bit for bit those of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from spdl_async.errors import DecodeError
from spdl_async.io._extras import need
from spdl_async.io._media import Media
from spdl_async.io._picture import MOST_PIXELS
from spdl_async.io._video_cut import missing_end
from spdl_async.io._video_scan import FrameTable, scan

_OPTIONS = {"max_pixels": str(MOST_PIXELS), "err_detect": "explode"}
"""A damaged header cannot make a decoder allocate more for one frame than for a picture. The decoder
reports damage that it would otherwise paint over with what it has."""


MOST_THREADS = 16
"""Beyond that FFmpeg warns; no codec cuts a frame into so many parts that more would be of use."""


class VideoReader:
    """An open video; closed by `close`, also after an error.

    Args:
        media: the data.
        threads: native threads of the decoder, at least 1, at most `MOST_THREADS`.

    Attributes:
        table: the frames, by presentation.
        decoded: how many frames the decoder has given so far, wanted or not.
        missing: what the container lacks at its end; None where it is whole.
    """

    def __init__(self, media: Media, threads: int = 1) -> None:
        self._threads = threads
        self.stream: Any = None
        self._av: Any = need("av", "video")
        self._media = media
        self._container: Any = None
        self._packets: Iterator[Any] | None = None
        self._fed: int | None = None
        self._numbered = 0
        self._key_pts: int | None = None
        self._began = 0
        self._limit: int | None = None
        self._linear = False
        self.decoded = 0
        self.missing = missing_end(media)
        try:
            container = self._open()
            packets = container.demux(self.stream)
            self.table: FrameTable = scan(packets, self.stream, self._av.error.FFmpegError)
            media.check()
            if len(self.table) == 0:
                self._refuse("its video stream has no frame that can be decoded")
            self.missing = self.missing or self.table.cut
            if self.table.by_pts is None:
                self._open()
            else:
                self._fed = None
        except self._av.error.FFmpegError as error:
            self.close()
            media.check()
            self._refuse(f"{error.strerror}", error)
        except BaseException:
            self.close()
            raise

    def _refuse(self, reason: str, cause: BaseException | None = None) -> NoReturn:
        if self.missing is not None:
            raise DecodeError(f"truncated video: {self.missing} ({reason})") from cause
        start = bytes(self._media.part(0, 12)).hex(" ")
        raise DecodeError(
            f"not a video that can be decoded: {reason} "
            f"({self._media.size:,} bytes, which begin with {start})"
        ) from cause

    def close(self) -> None:
        """Close the container, and end the decoder's threads."""
        container, self._container, self._packets = self._container, None, None
        self.stream = None  # and with it the decoder, of which nothing else may keep hold
        if container is not None:
            container.close()

    def _open(self) -> Any:
        """Open the container, or open it anew, at its start; return it."""
        self.close()
        self._media.seek(0)
        self._container = self._av.open(
            self._media,
            "r",
            metadata_errors="replace",
            io_open=_open_nothing_else,
            options={"protocol_whitelist": "none"},  # for demuxers that do not ask io_open
            buffer_size=1 << 16,
        )
        self.stream = next((s for s in self._container.streams.video if not _is_cover(s)), None)
        if self.stream is None:
            kinds = ", ".join(sorted({s.type for s in self._container.streams})) or "none at all"
            self._refuse(f"no video stream (its streams: {kinds})")
        codec = self.stream.codec_context
        if codec is None:
            self._refuse("there is no decoder for its codec")
        codec.thread_count = self._threads
        codec.thread_type = "NONE" if self._threads == 1 else "SLICE"
        codec.options = dict(_OPTIONS)
        if codec.name == "libdav1d":  # else its threads work on several frames
            codec.options = {**_OPTIONS, "max_frame_delay": "1"}
        self._packets, self._fed, self._numbered = None, -1, 0
        self._key_pts, self._began = None, 0
        return self._container

    def frames(self, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield (position, frame) for ascending positions in the table, each once.

        Raises:
            DecodeError: a frame on the way to a wanted one is damaged.
        """
        if self.table.by_pts is None:
            return self._frames_by_counting(wanted)
        return self._frames_by_stamp(wanted, self.table.by_pts)

    def _frames_by_counting(self, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
        rest = list(reversed(wanted))
        try:
            for number, frame in enumerate(self._decode()):
                if rest and number == rest[-1]:
                    if frame.is_corrupt:
                        break
                    yield rest.pop(), frame
                if not rest:
                    return
        except self._av.error.FFmpegError as error:
            self._lost(rest[-1], error.with_traceback(None))
        self._lost(rest[-1])

    def _frames_by_stamp(
        self, wanted: Sequence[int], by_pts: dict[int, int]
    ) -> Iterator[tuple[int, Any]]:
        for target in wanted:
            self._go_to(self.table.entries[target])
            frame, failure = self._find(target, by_pts)
            if frame is None and self._began:
                # A key frame after which not all can be decoded: H.264 with open groups or gradual
                # refresh, where the decoder wants what lies before. It will be no better later on.
                self._open()
                self._linear = True
                frame, failure = self._find(target, by_pts)
            if failure is not None and self._fed is not None:
                # The decoder was fed beyond the frame, and lost it to damage further on: feed it
                # all that lies before the damage, and no more.
                self._limit = self._fed
                self._stand_at(0 if self._linear else self.table.entries[target])
                frame, _ = self._find(target, by_pts)
            if frame is None:
                try:
                    self._lost(target, failure)
                finally:
                    del failure  # its traceback leads here: nothing may wait for a collection
            yield target, frame

    def _find(self, target: int, by_pts: dict[int, int]) -> tuple[Any, Exception | None]:
        """Decode up to a frame: (frame, None), or (None, what went wrong if it was an error)."""
        try:
            for frame in self._decode():
                position = -1 if frame.pts is None else by_pts.get(frame.pts, -1)
                if position == target and not frame.is_corrupt:
                    return frame, None
                if position >= target:
                    break
        except self._av.error.FFmpegError as error:
            # Its traceback holds packets, these the decoder, and that its threads.
            return None, error.with_traceback(None)
        return None, None

    def _decode(self) -> Iterator[Any]:
        """Yield frames from where the reader stands, as the decoder gives them."""
        if self._packets is None:
            self._packets = self._feed()
        return self._packets

    def _feed(self, first: Any = None) -> Iterator[Any]:
        packets = self._container.demux(self.stream)
        if first is not None:
            yield from self._frames_of(first)
        for packet in packets:
            if self._limit is not None and self._fed == self._limit - 1:
                yield from self.stream.codec_context.decode(None)
                return
            yield from self._frames_of(packet)

    def _frames_of(self, packet: Any) -> Iterator[Any]:
        if packet.size:
            if packet.is_corrupt:
                return
            self._fed = self.table.ordinals.get(packet.pts, self._numbered)
            self._numbered = self._fed + 1
        try:
            frames = packet.decode()
        except self._av.error.FFmpegError:
            # Frames that are shown before the key frame refer to what was not decoded.
            if None in (self._key_pts, packet.pts) or packet.pts >= self._key_pts:
                raise
            return
        self.decoded += len(frames)
        yield from frames

    def _go_to(self, entry: int) -> None:
        """Stand so that the packet ``entry`` is fed next, unless it was, or is about to be."""
        if self._fed is None or (entry > self._fed + 1 and not self._linear):
            self._limit = None
            self._stand_at(entry)

    def _stand_at(self, entry: int) -> None:
        pts, dts = self.table.stamps[entry]
        assert pts is not None
        second = round(1 / self.stream.time_base)
        for at in (pts, (pts if dts is None else dts) - second):
            if self._seek(at) and self._skip_to(entry):
                return
        self._open()
        if not self._skip_to(entry):
            raise DecodeError(f"damaged video: its packet {entry} is there only sometimes")

    def _seek(self, at: int) -> bool:
        try:
            self._container.seek(at, stream=self.stream)
        except self._av.error.FFmpegError:
            return False
        return True

    def _skip_to(self, entry: int) -> bool:
        """Read packets up to ``entry``, decoding none; False where it was passed already."""
        for packet in self._container.demux(self.stream):
            if not packet.size:
                return False
            number = self.table.ordinals.get(packet.pts)
            if number == entry:
                self._packets, self._fed = self._feed(packet), entry - 1
                self._key_pts, self._began = packet.pts, entry
                return True
            if number is not None and number > entry:
                return False
        return False

    def _lost(self, position: int, cause: Any = None) -> NoReturn:
        reason = "" if cause is None else f": {cause.strerror}"
        raise DecodeError(
            f"damaged video: frame {position} of {len(self.table):,} "
            f"(shown at {self.table.times[position]:.3f} s) cannot be decoded{reason}; "
            f"{self.decoded:,} frames were"
        ) from cause


@contextmanager
def open_video(media: Media, threads: int = 1) -> Iterator[VideoReader]:
    """Open a video; it is closed at the end, whatever happens.

    Args:
        media: the data.
        threads: as for `VideoReader`.

    Raises:
        DecodeError: it is none, or damaged.
        ImportError: PyAV is not installed.
        OSError: the file cannot be read.
    """
    reader = VideoReader(media, threads)
    try:
        yield reader
    finally:
        reader.close()


def _is_cover(stream: Any) -> bool:
    """Tell the picture on the cover of a song from a video."""
    return bool(stream.disposition.value & 0x0400)  # AV_DISPOSITION_ATTACHED_PIC


def _open_nothing_else(url: str, *_: object) -> NoReturn:
    """Refuse what a playlist would have opened: other files, and the network."""
    raise PermissionError(1, "data that refers to other files is not followed", url)
