"""Read and decode pictures, sounds and videos, made for threads: the heavy work releases the GIL.

The functions here are ordinary ones. Put them into a pipeline with ``.pipe(read_image,
concurrency=…)``, or call them from anywhere else. What they need is installed with an extra:
``pip install 'spdl-async[image]'``, and ``audio`` and ``video``.
"""

from __future__ import annotations

from spdl_async.io._audio import AudioInfo as AudioInfo
from spdl_async.io._audio import audio_info as audio_info
from spdl_async.io._audio import decode_audio as decode_audio
from spdl_async.io._audio import read_audio as read_audio
from spdl_async.io._image import decode_image as decode_image
from spdl_async.io._image import read_image as read_image
from spdl_async.io._video import VideoInfo as VideoInfo
from spdl_async.io._video import decode_video as decode_video
from spdl_async.io._video import stream_video as stream_video
from spdl_async.io._video import video_info as video_info

__all__ = [
    "AudioInfo",
    "VideoInfo",
    "audio_info",
    "decode_audio",
    "decode_image",
    "decode_video",
    "read_audio",
    "read_image",
    "stream_video",
    "video_info",
]
