"""Read and decode pictures, made for threads: the heavy work releases the GIL.

The functions here are ordinary ones. Put them into a pipeline with ``.pipe(read_image,
concurrency=…)``, or call them from anywhere else. They need ``pip install 'spdl-async[image]'``.
"""

from __future__ import annotations

from spdl_async.io._batch_memory import ImageRow as ImageRow
from spdl_async.io._encode_image import encode_image as encode_image
from spdl_async.io._image import ImageOptions as ImageOptions
from spdl_async.io._image import SalvagedImage as SalvagedImage
from spdl_async.io._image import decode_frames as decode_frames
from spdl_async.io._image import decode_image as decode_image
from spdl_async.io._image import read_image as read_image
from spdl_async.io._image import salvage_image as salvage_image
from spdl_async.io._image_batcher import ImageBatcher as ImageBatcher
from spdl_async.io._image_info import ImageInfo as ImageInfo
from spdl_async.io._image_info import image_info as image_info

__all__ = [
    "ImageBatcher",
    "ImageInfo",
    "ImageOptions",
    "ImageRow",
    "SalvagedImage",
    "decode_frames",
    "decode_image",
    "encode_image",
    "image_info",
    "read_image",
    "salvage_image",
]
