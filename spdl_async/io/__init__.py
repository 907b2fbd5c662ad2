"""Read and decode data, made for pipelines: plain functions for threads, coroutines for the loop.

Put them into a pipeline with ``.pipe(read_image, concurrency=…)``, or call them from anywhere else. What a
function needs besides NumPy is installed with an extra: pictures ``pip install "spdl-async[image]"``,
URLs ``[storage]``, Parquet and zstd ``[text]``.
"""

from __future__ import annotations

from spdl_async.io._archive_members import SkippedMember as SkippedMember
from spdl_async.io._archive_members import TarMember as TarMember
from spdl_async.io._checksums import Checksums as Checksums
from spdl_async.io._counters import FetchStatistics as FetchStatistics
from spdl_async.io._fetch import Fetch as Fetch
from spdl_async.io._fetch import fetch as fetch
from spdl_async.io._fetch import fetch_range as fetch_range
from spdl_async.io._fields import SampleDecoder as SampleDecoder
from spdl_async.io._fields import default_decoders as default_decoders
from spdl_async.io._image import decode_image as decode_image
from spdl_async.io._image import read_image as read_image
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
from spdl_async.io._zip import ZipMember as ZipMember
from spdl_async.io._zip import iter_zip as iter_zip

__all__ = [
    "Checksums",
    "Fetch",
    "FetchStatistics",
    "LocalFiles",
    "PackedTokens",
    "SampleDecoder",
    "SkippedMember",
    "Store",
    "StoredFiles",
    "TarMember",
    "TarWriter",
    "TokenFile",
    "ZipMember",
    "decode_image",
    "default_decoders",
    "fetch",
    "fetch_range",
    "iter_tar",
    "iter_zip",
    "list_files",
    "load_npy",
    "load_npz",
    "pack_tokens",
    "read_file",
    "read_image",
    "read_jsonl",
    "read_parquet",
    "split_name",
    "stream_file",
    "tar_samples",
    "write_tokens",
]
