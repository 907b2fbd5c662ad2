"""Read and decode pictures, text and arrays, made for threads: the heavy work releases the GIL.

The functions here are ordinary ones. Put them into a pipeline with ``.pipe(read_image,
concurrency=…)``, or call them from anywhere else. Pictures need ``pip install 'spdl-async[image]'``,
Parquet and zstd ``'spdl-async[text]'``.
"""

from __future__ import annotations

from spdl_async.io._image import decode_image as decode_image
from spdl_async.io._image import read_image as read_image
from spdl_async.io._jsonl import read_jsonl as read_jsonl
from spdl_async.io._npy import load_npy as load_npy
from spdl_async.io._npz import load_npz as load_npz
from spdl_async.io._pack import PackedTokens as PackedTokens
from spdl_async.io._pack import pack_tokens as pack_tokens
from spdl_async.io._parquet import read_parquet as read_parquet
from spdl_async.io._tokens import TokenFile as TokenFile
from spdl_async.io._tokens import write_tokens as write_tokens

__all__ = [
    "PackedTokens",
    "TokenFile",
    "decode_image",
    "load_npy",
    "load_npz",
    "pack_tokens",
    "read_image",
    "read_jsonl",
    "read_parquet",
    "write_tokens",
]
