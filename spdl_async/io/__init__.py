"""Read and decode pictures, made for threads: the heavy work releases the GIL.

The functions here are ordinary ones. Put them into a pipeline with ``.pipe(read_image,
concurrency=…)``, or call them from anywhere else. They need ``pip install 'spdl-async[image]'``.
"""

from __future__ import annotations

from spdl_async.io._image import decode_image as decode_image
from spdl_async.io._image import read_image as read_image

__all__ = ["decode_image", "read_image"]
