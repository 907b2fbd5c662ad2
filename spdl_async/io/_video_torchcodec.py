"""Frames of a video through torchcodec, for those who ask for it by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spdl_async.errors import DecodeError
from spdl_async.io._extras import need
from spdl_async.io._media import Media
from spdl_async.io._video_paint import Painter
from spdl_async.io._video_reader import VideoReader

if TYPE_CHECKING:
    from numpy.typing import NDArray


def decode_with_torchcodec(
    media: Media, reader: VideoReader, places: list[int], size: tuple[int, int] | None
) -> NDArray[np.uint8]:
    """Decode frames by their positions, which were found by PyAV.

    Raises:
        DecodeError: torchcodec refuses the video, or counts other frames.
        ImportError: torchcodec is not installed.
        ValueError: the video is to be turned to be upright: versions of torchcodec differ in that.
    """
    decoders = need("torchcodec.decoders", "video")
    _, first = next(reader.frames([0]))
    painter = Painter(first, None)
    if painter.turns or painter.mirrored:
        raise ValueError('a rotated or mirrored video is decoded by backend="pyav" only')
    try:
        decoder = decoders.VideoDecoder(
            bytes(media.part(0, media.size)),
            dimension_order="NHWC",
            num_ffmpeg_threads=1,
            seek_mode="exact",
        )
        frames = decoder.get_frames_at(indices=places).data.numpy()
    except (RuntimeError, ValueError, IndexError) as error:
        raise DecodeError(f"torchcodec cannot decode this video: {error}") from error
    if size is None or frames.shape[1:3] == size:
        return np.ascontiguousarray(frames)
    from spdl_async.io._resize import resize

    return np.stack([resize(np.ascontiguousarray(frame), size) for frame in frames])
