"""Read and decode data, made for pipelines: plain functions for threads, coroutines for the loop.

Put them into a pipeline with ``.pipe(read_image, concurrency=…)``, or call them from anywhere else.
Pictures need ``pip install 'spdl-async[image]'``, URLs ``'spdl-async[storage]'``.
"""

from __future__ import annotations

from spdl_async.io._checksums import Checksums as Checksums
from spdl_async.io._counters import FetchStatistics as FetchStatistics
from spdl_async.io._fetch import Fetch as Fetch
from spdl_async.io._fetch import fetch as fetch
from spdl_async.io._fetch import fetch_range as fetch_range
from spdl_async.io._image import decode_image as decode_image
from spdl_async.io._image import read_image as read_image
from spdl_async.io._listing import LocalFiles as LocalFiles
from spdl_async.io._listing import StoredFiles as StoredFiles
from spdl_async.io._listing import list_files as list_files
from spdl_async.io._local import read_file as read_file
from spdl_async.io._local import stream_file as stream_file
from spdl_async.io._store import Store as Store

__all__ = [
    "Checksums",
    "Fetch",
    "FetchStatistics",
    "LocalFiles",
    "Store",
    "StoredFiles",
    "decode_image",
    "fetch",
    "fetch_range",
    "list_files",
    "read_file",
    "read_image",
    "stream_file",
]
