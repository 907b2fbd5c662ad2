"""Turn the bytes of a picture into an RGB array: the public functions and the fast JPEG path.

A JPEG is decoded by simplejpeg (libjpeg-turbo, without the GIL), at a half, a quarter or an
eighth of its size where the wanted size allows, and then resized by `resize`. All other formats,
and JPEGs that simplejpeg does not take (CMYK, 12 bits a sample …), go through Pillow.
"""

from __future__ import annotations

import errno
import operator
import os
import stat
from typing import TYPE_CHECKING

from spdl_async.errors import DecodeError
from spdl_async.io._orientation import jpeg_orientation, stored_size, upright
from spdl_async.io._pillow import check_pixel_count, load_with_pillow
from spdl_async.io._resize import resize

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

_JPEG = b"\xff\xd8\xff"

_OVERSAMPLING = 2
"""A scaled JPEG decode keeps at least this many pixels for each wanted one, along both sides.

At 2 the result differs from that of a full decode by about one grey level in the mean; at 1 it is
10 to 25 % faster, but differs by two and up to five. Pillow's advice on ``reducing_gap`` is 2 too.
"""

_LEFT_TO_PILLOW = ("CMYK", "YCCK")
"""Colour spaces that simplejpeg would convert without a look at Adobe's inversion mark."""

_SCALES = (8, 4, 2)
"""Denominators of the scaled decode. The scales between them, as 3/8, have no SIMD code in
libjpeg-turbo and take longer than the next larger power of two."""

_DAMAGE = ("Corrupt JPEG data", "Premature end of JPEG file")
"""How libjpeg's warnings start when part of the picture is made up. Its other warnings (an
unknown Adobe transform, an odd JFIF revision …) and its refusals are left to Pillow."""

_NO_DAMAGE = "ICC"
"""A broken colour profile does not touch the pixels."""


def decode_image(data: Buffer, *, size: int | tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Decode a picture into an RGB array.

    Runs on the calling thread alone, most of the time without the GIL, so that N threads decode
    on N cores. Give ``size`` where you can: a large JPEG is then decoded at a fraction of its
    size, and what comes out can be stacked into batches.

    What becomes of what is not 8-bit RGB: alpha is dropped, not blended; grey is repeated into
    the three channels; 16-bit values keep their high byte; CMYK is converted as Pillow does it,
    without colour profiles. Of animations and multi-page files the first picture is taken. The
    EXIF orientation is applied, so the array is upright.

    Args:
        data: the content of a file, as any contiguous bytes-like object.
        size: ``None`` keeps the picture's own size; a number makes a square of it; a pair is
            (height, width) in pixels. The picture is stretched to exactly that, with an
            antialiasing bilinear filter.

    Returns:
        A new, writable, C-contiguous array of shape (height, width, 3), dtype uint8.

    Raises:
        DecodeError: the data is damaged, cut short or no picture; the message says which.
        TypeError: ``data`` is not bytes-like, such as a path: use `read_image`.
        ValueError: ``size`` is smaller than 1.
        ImportError: the picture needs Pillow, and it is not installed.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (640, 480), "teal").save(file, "JPEG")
        >>> decode_image(file.getvalue(), size=(120, 160)).shape
        (120, 160, 3)
    """
    target = None if size is None else _as_height_width(size)
    view = _as_bytes(data)
    if len(view) == 0:
        raise DecodeError("there is no data to decode: 0 bytes")
    if bytes(view[:3]) == _JPEG:
        orientation = jpeg_orientation(view)
        stored = stored_size(target, orientation)
        pixels = _decode_jpeg(view, stored)
    else:
        pixels, orientation = load_with_pillow(view)
        stored = stored_size(target, orientation)
    if stored is not None:
        pixels = resize(pixels, stored)
    return upright(pixels, orientation)


def read_image(
    path: str | os.PathLike[str], *, size: int | tuple[int, int] | None = None
) -> NDArray[np.uint8]:
    """Read and decode a picture file in one call: open, read, close, decode.

    One call is one hop to a thread, which is what small files want: reading and decoding on the
    thread that has the file is faster than handing its bytes around.

    Args:
        path: the file.
        size: as for `decode_image`.

    Returns:
        An array of shape (height, width, 3), dtype uint8.

    Raises:
        DecodeError: as `decode_image`; the message starts with the path.
        OSError: the file cannot be opened or read, or is no regular file (a folder, a pipe, a
            device: they are refused at once and never waited for); ``filename`` is the path.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.NamedTemporaryFile(suffix=".png") as file:
        ...     Image.new("L", (8, 6)).save(file, "PNG")
        ...     _ = file.flush()
        ...     read_image(file.name).shape
        (6, 8, 3)
    """
    data = _read_regular_file(path)
    try:
        return decode_image(data, size=size)
    except DecodeError as error:
        raise DecodeError(f"{os.fspath(path)}: {error}") from error.__cause__


def _decode_jpeg(view: memoryview[int], target: tuple[int, int] | None) -> NDArray[np.uint8]:
    """Decode a JPEG as it is stored, scaled down as far as ``target`` allows.

    Args:
        view: the file's bytes.
        target: the wanted (height, width), before the orientation is applied.
    """
    at_least = None if target is None else (_OVERSAMPLING * target[0], _OVERSAMPLING * target[1])
    pixels = None if simplejpeg is None else _decode_with_simplejpeg(view, at_least)
    if pixels is None:
        pixels, _ = load_with_pillow(view, at_least=at_least)
    return pixels


def _decode_with_simplejpeg(
    view: memoryview[int], at_least: tuple[int, int] | None
) -> NDArray[np.uint8] | None:
    """Decode to no less than ``at_least`` = (height, width), or return None if Pillow should.

    Raises:
        DecodeError: libjpeg reports damage, or the picture has more pixels than is allowed.
    """
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(view)
        if colors in _LEFT_TO_PILLOW:
            return None
        check_pixel_count(height, width)
        scale = 1 if at_least is None else _scale(height, width, at_least)
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            view,
            colorspace="RGB",
            # simplejpeg takes the smallest scale that gives this much: exactly ours.
            min_height=-(-height // scale),
            min_width=-(-width // scale),
            strict=True,
        )
        return pixels
    except DecodeError:
        raise
    except (ValueError, KeyError) as error:
        # simplejpeg raises ValueError for every refusal, and KeyError for a colour space or
        # subsampling that it has no name for.
        reason = str(error)
        if reason.startswith(_DAMAGE) and _NO_DAMAGE not in reason:
            raise DecodeError(_describe_damage(reason, len(view))) from error
        return None


def _describe_damage(reason: str, size: int) -> str:
    if reason.startswith("Premature end"):
        return f"truncated JPEG: the data ends after {size:,} bytes, before the picture does"
    return f"damaged JPEG ({size:,} bytes): {reason.removeprefix('Corrupt JPEG data: ')}"


def _scale(height: int, width: int, at_least: tuple[int, int]) -> int:
    """Choose by how much libjpeg may shrink while it decodes: 1, 2, 4 or 8."""
    for scale in _SCALES:
        if height >= scale * at_least[0] and width >= scale * at_least[1]:
            return scale
    return 1


def _as_bytes(data: object) -> memoryview[int]:
    """View ``data`` as bytes, without a copy."""
    if isinstance(data, (str, os.PathLike)):
        raise TypeError(
            f"decode_image takes the content of a file as bytes, not its path "
            f"({os.fspath(data)!r}): use read_image(path), or decode_image(path.read_bytes())"
        )
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # what is no buffer ends below
    except TypeError:
        raise TypeError(
            f"decode_image takes the content of a file as bytes, not {type(data).__name__}: "
            f"read the file first, as with open(path, 'rb').read()"
        ) from None
    if view.ndim != 1:
        raise TypeError(
            f"decode_image takes the content of a file as bytes, not an array of shape "
            f"{view.shape}: this picture seems to be decoded already"
        )
    return view.cast("B")


def _as_height_width(size: int | tuple[int, int]) -> tuple[int, int]:
    """Check ``size`` and return it as (height, width)."""
    try:
        if isinstance(size, tuple | list):
            height, width = (operator.index(side) for side in size)
        else:
            height = width = operator.index(size)
    except (TypeError, ValueError):
        raise TypeError(
            f"size must be None, a number of pixels, or a pair (height, width), not {size!r}"
        ) from None
    if height < 1 or width < 1:
        raise ValueError(f"size must be at least 1 pixel along each side, not {size!r}")
    return height, width


def _read_regular_file(path: str | os.PathLike[str]) -> bytes:
    """Read a whole file, and refuse what is no regular file without ever waiting for it."""
    with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file (a pipe or a device)", os.fspath(path))
        # readall() reads to the end, also where one read() returns less than was asked for.
        return file.readall()


def _open_without_waiting(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe waits until somebody writes into it.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
