"""What the header of a picture says, read by hand: microseconds, and no pixel is allocated.

Formats: JPEG, ITU-T T.81 annex B; PNG, W3C Recommendation (third edition) with its APNG chunks; GIF89a;
WebP, RFC 9649; BMP, the BITMAPINFOHEADER family. Pillow reads the headers of all others.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spdl_async.errors import DecodeError
from spdl_async.io._diagnosis import describe_bytes
from spdl_async.io._image_data import as_bytes
from spdl_async.io._orientation import exif_orientation, jpeg_orientation

if TYPE_CHECKING:
    from typing_extensions import Buffer

JPEG = b"\xff\xd8\xff"
PNG = b"\x89PNG\r\n\x1a\n"

_NOT_A_FRAME = (0xC4, 0xC8, 0xCC)
"""Of the markers C0 to CF those that begin no frame: Huffman tables, JPG, arithmetic conditioning."""

_PNG_MODES = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageInfo:
    """What the header of a picture says.

    Attributes:
        format: the name that Pillow has for it: "JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF" …; by the
            content, whatever the file is called.
        width: pixels of a row, as stored: before the orientation is applied.
        height: rows, as stored.
        mode: the channels: "L" (grey), "LA", "P" (palette), "RGB", "RGBA", "CMYK" (also for YCCK).
        bits: of one value: 8 mostly; 1, 2, 4 or 16 in PNG, GIF, BMP and TIFF; 8 or 12 in JPEG.
        frames: pictures in the file: animations, pages.
        orientation: of the EXIF block, 1 to 8; 1 where it says nothing.
    """

    format: str
    width: int
    height: int
    mode: str
    bits: int = 8
    frames: int = 1
    orientation: int = 1


def image_info(data: Buffer) -> ImageInfo:
    """Read the header of a picture: format, size, channels, frames, orientation.

    Allocates no picture, and does not look whether the pixels are there. Microseconds for JPEG,
    PNG, WebP and BMP; a GIF is walked through block by block, to count its frames.

    Args:
        data: the content of a file, as any contiguous bytes-like object. The beginning is enough,
            except for `frames`; how much of it depends on the format.

    Returns:
        What it says.

    Raises:
        DecodeError: the data is no picture, or its header is damaged.
        TypeError: ``data`` is not bytes-like.
        ImportError: it takes Pillow to read this format, and it is not installed.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("L", (640, 480)).save(file, "PNG")
        >>> image_info(file.getvalue())
        ImageInfo(format='PNG', width=640, height=480, mode='L', bits=8, frames=1, orientation=1)
    """
    view = as_bytes(data, "image_info")
    info = header(view, frames=True)
    if info is None:
        from spdl_async.io._pillow import info_from_pillow

        info = info_from_pillow(view)
    return info


def header(view: memoryview[int], *, frames: bool = False) -> ImageInfo | None:
    """Return the header of JPEG, PNG, GIF, WebP or BMP; None for other formats.

    Args:
        view: the file's bytes.
        frames: count the frames too, for which a GIF has to be read to its end.

    Raises:
        DecodeError: there is no data, or the header is damaged or ends too early.
    """
    if len(view) == 0:
        raise DecodeError("there is no data to decode: the file is empty (0 bytes)")
    start = bytes(view[:16])
    try:
        if start.startswith(JPEG):
            return _jpeg(view)
        if start.startswith(PNG):
            return _png(view)
        if start.startswith((b"GIF87a", b"GIF89a")):
            return _gif(view, frames)
        if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
            return _webp(view)
        if start.startswith(b"BM"):
            return _bmp(view)
    except (struct.error, IndexError):
        raise DecodeError(describe_bytes(view)) from None
    return None


def checked(info: ImageInfo, view: memoryview[int]) -> ImageInfo:
    """Return it, unless it is nonsense."""
    if info.width < 1 or info.height < 1:
        raise DecodeError(
            f"a {info.format} of {info.width} x {info.height} pixels ({len(view):,} bytes): its header "
            f"is damaged"
        )
    return info


# JPEG


def jpeg_frame(view: memoryview[int]) -> tuple[int, int, int, int, int]:
    """Return (marker, bits, height, width, components) of the frame header.

    Raises:
        IndexError: the data ends before it.
        DecodeError: what precedes it is no sequence of segments.
    """
    position = 2
    while True:
        if view[position] != 0xFF:
            raise DecodeError(f"damaged JPEG: no marker at byte {position:,}")
        marker = view[position + 1]
        if marker == 0xFF:  # a fill byte, T.81 B.1.1.2
            position += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # without a length
            position += 2
        elif 0xC0 <= marker <= 0xCF and marker not in _NOT_A_FRAME:
            return marker, *struct.unpack_from(">BHHB", view, position + 4)
        elif marker in (0xD9, 0xDA):
            raise DecodeError(f"damaged JPEG: no frame header before byte {position:,}")
        else:
            position += 2 + (view[position + 2] << 8 | view[position + 3])


def jpeg_kind(view: memoryview[int]) -> str | None:
    """Say in a word or two what keeps a JPEG from being ordinary; None where nothing does."""
    try:
        marker, bits, *_ = jpeg_frame(view)
    except (IndexError, struct.error, DecodeError):
        return None
    words = [f"{bits}-bit"] if bits != 8 else []
    if marker in (0xC3, 0xC7, 0xCB, 0xCF):
        words.append("lossless")
    elif marker in (0xC5, 0xC6, 0xCD, 0xCE):
        words.append("hierarchical")
    if marker >= 0xC9:
        words.append("arithmetic-coded")
    return " ".join(words) or None


def _jpeg(view: memoryview[int]) -> ImageInfo:
    _, bits, height, width, components = jpeg_frame(view)
    mode = {1: "L", 3: "RGB", 4: "CMYK"}.get(components)
    if mode is None:
        raise DecodeError(f"a JPEG of {components} components: only 1, 3 and 4 have a meaning")
    info = ImageInfo(
        format="JPEG",
        width=width,
        height=height,
        mode=mode,
        bits=bits,
        orientation=jpeg_orientation(view),
    )
    return checked(info, view)


# PNG


def _png(view: memoryview[int]) -> ImageInfo:
    length, kind, width, height, bits, color = struct.unpack_from(">I4sIIBB", view, 8)
    if kind != b"IHDR" or length != 13 or color not in _PNG_MODES or bits not in (1, 2, 4, 8, 16):
        raise DecodeError(f"damaged PNG ({len(view):,} bytes): its header is not one of PNG")
    frames, orientation, position = 1, 1, 33
    while position + 8 <= len(view):
        length, kind = struct.unpack_from(">I4s", view, position)
        if kind == b"acTL" and position + 12 <= len(view):
            (frames,) = struct.unpack_from(">I", view, position + 8)
        elif kind == b"eXIf":
            orientation = exif_orientation(bytes(view[position + 8 : position + 8 + length]))
        position += 12 + length
    info = ImageInfo(
        format="PNG",
        width=width,
        height=height,
        mode=_PNG_MODES[color],
        bits=bits,
        frames=max(1, frames),
        orientation=orientation,
    )
    return checked(info, view)


# GIF


def _gif(view: memoryview[int], count: bool) -> ImageInfo:
    width, height, flags = struct.unpack_from("<HHB", view, 6)
    position = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    info = ImageInfo(
        format="GIF",
        width=width,
        height=height,
        mode="P",
        frames=max(1, _gif_frames(view, position)) if count else 1,
    )
    return checked(info, view)


def _gif_frames(view: memoryview[int], position: int) -> int:
    """Count image descriptors; a file that ends early has those that began."""
    frames, end = 0, len(view)
    while position < end:
        block = view[position]
        if block == 0x2C and position + 9 < end:  # an image: descriptor, palette, code size
            frames += 1
            flags = view[position + 9]
            position += 11 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
        elif block == 0x21:  # an extension and its label
            position += 2
        else:
            break
        while position < end and view[position]:
            position += 1 + view[position]
        position += 1
    return frames


# WebP


def _webp(view: memoryview[int]) -> ImageInfo:
    kind = bytes(view[12:16])
    if kind == b"VP8X":
        return _webp_extended(view)
    if kind == b"VP8 " and bytes(view[23:26]) == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", view, 26)
        width, height, mode = width & 0x3FFF, height & 0x3FFF, "RGB"
    elif kind == b"VP8L" and view[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", view, 21)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        mode = "RGBA" if bits >> 28 & 1 else "RGB"
    else:
        raise DecodeError(f"damaged WebP ({len(view):,} bytes): no picture begins at byte 12")
    return checked(ImageInfo(format="WEBP", width=width, height=height, mode=mode), view)


def _webp_extended(view: memoryview[int]) -> ImageInfo:
    flags = view[20]
    width = 1 + int.from_bytes(view[24:27], "little")
    height = 1 + int.from_bytes(view[27:30], "little")
    view[29]  # raises where the data ends before that
    frames, orientation, position = 0, 1, 30
    while position + 8 <= len(view):
        kind, length = struct.unpack_from("<4sI", view, position)
        if kind == b"ANMF":
            frames += 1
        elif kind == b"EXIF":
            orientation = exif_orientation(bytes(view[position + 8 : position + 8 + length]))
        position += 8 + length + (length & 1)
    info = ImageInfo(
        format="WEBP",
        width=width,
        height=height,
        mode="RGBA" if flags & 0x10 else "RGB",
        frames=max(1, frames),
        orientation=orientation,
    )
    return checked(info, view)


# BMP


def _bmp(view: memoryview[int]) -> ImageInfo | None:
    (size,) = struct.unpack_from("<I", view, 14)
    if size == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", view, 18)
    elif size >= 40:
        width, height, _, bits = struct.unpack_from("<iiHH", view, 18)
    else:
        return None
    mode = {1: "P", 2: "P", 4: "P", 8: "P", 16: "RGB", 24: "RGB", 32: "RGB"}.get(bits)
    if mode is None:
        raise DecodeError(f"damaged BMP ({len(view):,} bytes): {bits} bits a pixel")
    info = ImageInfo(
        format="BMP",
        width=width,
        height=abs(height),  # negative: its rows go from top to bottom
        mode=mode,
        bits=min(bits, 8),
    )
    return checked(info, view)
