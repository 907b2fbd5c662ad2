"""Read and decode data, made for pipelines: plain functions for threads, coroutines for the loop.

Put them into a pipeline with ``.pipe(read_image, concurrency=…)``, or call them from anywhere else. What a
function needs besides NumPy is installed with an extra: pictures ``pip install "spdl-async[image]"``,
sounds ``[audio]``, videos ``[video]``, URLs ``[storage]``, Parquet and zstd ``[text]``.
"""

from __future__ import annotations

from spdl_async.io._archive_members import SkippedMember as SkippedMember
from spdl_async.io._archive_members import TarMember as TarMember
from spdl_async.io._audio import AudioInfo as AudioInfo
from spdl_async.io._audio import audio_info as audio_info
from spdl_async.io._audio import decode_audio as decode_audio
from spdl_async.io._audio import read_audio as read_audio
from spdl_async.io._batch_memory import ImageRow as ImageRow
from spdl_async.io._checksums import Checksums as Checksums
from spdl_async.io._counters import FetchStatistics as FetchStatistics
from spdl_async.io._encode_image import encode_image as encode_image
from spdl_async.io._fetch import Fetch as Fetch
from spdl_async.io._fetch import fetch as fetch
from spdl_async.io._fetch import fetch_range as fetch_range
from spdl_async.io._fields import SampleDecoder as SampleDecoder
from spdl_async.io._fields import default_decoders as default_decoders
from spdl_async.io._image import ImageOptions as ImageOptions
from spdl_async.io._image import SalvagedImage as SalvagedImage
from spdl_async.io._image import decode_frames as decode_frames
from spdl_async.io._image import decode_image as decode_image
from spdl_async.io._image import read_image as read_image
from spdl_async.io._image import salvage_image as salvage_image
from spdl_async.io._image_batcher import ImageBatcher as ImageBatcher
from spdl_async.io._image_info import ImageInfo as ImageInfo
from spdl_async.io._image_info import image_info as image_info
from spdl_async.io._jsonl import read_jsonl as read_jsonl
from spdl_async.io._listing import LocalFiles as LocalFiles
from spdl_async.io._listing import StoredFiles as StoredFiles
from spdl_async.io._listing import list_files as list_files
from spdl_async.io._local import read_file as read_file
from spdl_async.io._local import stream_file as stream_file
from spdl_async.io._npy import load_npy as load_npy
from spdl_async.io._npz import load_npz as load_npz
from spdl_async.io._pack import PackedTokens as PackedTokens
from spdl_async.io._pack import pack_tokens as pack_tokens
from spdl_async.io._parquet import read_parquet as read_parquet
from spdl_async.io._samples import split_name as split_name
from spdl_async.io._samples import tar_samples as tar_samples
from spdl_async.io._store import Store as Store
from spdl_async.io._tar import iter_tar as iter_tar
from spdl_async.io._tar_writer import TarWriter as TarWriter
from spdl_async.io._tokens import TokenFile as TokenFile
from spdl_async.io._tokens import write_tokens as write_tokens
from spdl_async.io._video import VideoInfo as VideoInfo
from spdl_async.io._video import decode_video as decode_video
from spdl_async.io._video import stream_video as stream_video
from spdl_async.io._video import video_info as video_info
from spdl_async.io._zip import ZipMember as ZipMember
from spdl_async.io._zip import iter_zip as iter_zip

__all__ = [
    "AudioInfo",
    "Checksums",
    "Fetch",
    "FetchStatistics",
    "ImageBatcher",
    "ImageInfo",
    "ImageOptions",
    "ImageRow",
    "LocalFiles",
    "PackedTokens",
    "SalvagedImage",
    "SampleDecoder",
    "SkippedMember",
    "Store",
    "StoredFiles",
    "TarMember",
    "TarWriter",
    "TokenFile",
    "VideoInfo",
    "ZipMember",
    "audio_info",
    "decode_audio",
    "decode_frames",
    "decode_image",
    "decode_video",
    "default_decoders",
    "encode_image",
    "fetch",
    "fetch_range",
    "image_info",
    "iter_tar",
    "iter_zip",
    "list_files",
    "load_npy",
    "load_npz",
    "pack_tokens",
    "read_audio",
    "read_file",
    "read_image",
    "read_jsonl",
    "read_parquet",
    "salvage_image",
    "split_name",
    "stream_file",
    "stream_video",
    "tar_samples",
    "video_info",
    "write_tokens",
]
