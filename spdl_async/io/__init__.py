"""Read and decode pictures, made for threads: the heavy work releases the GIL.

The functions here are ordinary ones. Put them into a pipeline with ``.pipe(read_image,
concurrency=…)``, or call them from anywhere else. They need ``pip install 'spdl-async[image]'``.
"""

from __future__ import annotations

from spdl_async.io._archive_members import SkippedMember as SkippedMember
from spdl_async.io._archive_members import TarMember as TarMember
from spdl_async.io._fields import SampleDecoder as SampleDecoder
from spdl_async.io._fields import default_decoders as default_decoders
from spdl_async.io._image import decode_image as decode_image
from spdl_async.io._image import read_image as read_image
from spdl_async.io._samples import split_name as split_name
from spdl_async.io._samples import tar_samples as tar_samples
from spdl_async.io._tar import iter_tar as iter_tar
from spdl_async.io._tar_writer import TarWriter as TarWriter
from spdl_async.io._zip import ZipMember as ZipMember
from spdl_async.io._zip import iter_zip as iter_zip

__all__ = [
    "SampleDecoder",
    "SkippedMember",
    "TarMember",
    "TarWriter",
    "ZipMember",
    "decode_image",
    "default_decoders",
    "iter_tar",
    "iter_zip",
    "read_image",
    "split_name",
    "tar_samples",
]
