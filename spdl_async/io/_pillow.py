"""Decode with Pillow what the fast path does not take: every format but ordinary JPEG.

Nothing of Pillow's global state is read for a limit or changed, and no picture stays open after a call.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from spdl_async.errors import DecodeError
from spdl_async.io._colors import as_mode, to_8_bits, to_16_bits
from spdl_async.io._diagnosis import describe_bytes
from spdl_async.io._extras import need
from spdl_async.io._icons import sizes_in_icon
from spdl_async.io._image_info import JPEG, PNG, ImageInfo, checked, header, jpeg_kind
from spdl_async.io._orientation import as_stored, exif_orientation
from spdl_async.io._picture import MOST_PIXELS, Decoded, Wanted, check_pixels, decoding_scale
from spdl_async.io._sixteen_bits import SIXTEEN_BIT, has_16_bit_colors, load_16_bit_colors

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

_REFUSED = {
    "EPS": "a PostScript (EPS) file: decoding it would start Ghostscript; convert it to PNG or JPEG",
}

_ORIENTATION = 274
_ALPHA = ("LA", "RGBA", "PA", "La", "RGBa")


def decode_with_pillow(view: memoryview[int], wanted: Wanted) -> Decoded:
    """Decode the first picture of any format that Pillow knows.

    Raises:
        DecodeError: the data cannot be decoded.
        ImportError: Pillow is not installed.
    """
    with opened(view, wanted.max_pixels) as picture:
        return loaded(picture, view, wanted)


def decode_all(view: memoryview[int], wanted: Wanted, limit: int | None) -> Iterator[Decoded]:
    """Decode one picture after the other: the frames of an animation, the pages of a document."""
    with opened(view, wanted.max_pixels) as picture:
        count = getattr(picture, "n_frames", 1)
        count = count if limit is None else min(count, limit)
        width, height = picture.size
        check_pixels(height, width, wanted.max_pixels, frames=count)
        if wanted.size is not None:
            check_pixels(*wanted.size, max(wanted.max_pixels, MOST_PIXELS), frames=count)
        for number in range(count):
            picture.seek(number)
            check_pixels(picture.height, picture.width, wanted.max_pixels)
            yield loaded(picture, view, wanted)


def info_from_pillow(view: memoryview[int]) -> ImageInfo:
    """Return the header of any format that Pillow knows, without loading the picture."""
    with opened(view, None) as picture:
        tags = getattr(picture, "tag_v2", None)
        if tags is None:
            orientation, (width, height), bits = _orientation(picture), picture.size, 8
        else:
            # Pillow's size of a TIFF is upright already.
            orientation, width, height = tags.get(_ORIENTATION, 1), tags[256], tags[257]
            bits = max(tags.get(258, (1,)))
        mode = picture.mode
        if mode in SIXTEEN_BIT or mode == "F":
            mode, bits = "L", {"I": 32, "F": 32}.get(mode, 16)
        elif mode == "1":
            mode, bits = "L", 1
        info = ImageInfo(
            format=str(picture.format),
            width=width,
            height=height,
            mode=mode,
            bits=bits,
            frames=getattr(picture, "n_frames", 1),
            orientation=orientation if orientation in range(1, 9) else 1,
        )
    return checked(info, view)


@contextmanager
def opened(view: memoryview[int], max_pixels: int | None) -> Iterator[ImageFile]:
    """Open a picture, its header read and its size checked; whatever goes wrong is a DecodeError."""
    image = need("PIL.Image", "image")
    try:
        for height, width in sizes_in_icon(view):
            check_pixels(height, width, MOST_PIXELS if max_pixels is None else max_pixels)
        if max_pixels is not None:
            # Before Pillow opens it: some of its plugins allocate the picture then.
            info = header(view)
            if info is not None:
                check_pixels(info.height, info.width, max_pixels)
        with _identified(image, view) as picture:
            if max_pixels is not None:
                check_pixels(picture.height, picture.width, max_pixels)
            yield picture
    except (DecodeError, MemoryError):
        raise
    except Exception as error:
        # Pillow's format readers let through whatever their parsing of damaged data meets.
        raise DecodeError(_damaged(view, error)) from error


def _identified(image: Any, view: memoryview[int]) -> ImageFile:
    """Find the plugin of the format, as `PIL.Image.open` does.

    That itself is not called: it compares the size with a limit of its own, which is a global
    variable, and warns above half of it, whatever ``max_pixels`` says.
    """
    prefix = bytes(view[:16])
    tried: set[str] = set()
    for load_plugins in (image.preinit, image.init):
        load_plugins()
        for name in [name for name in image.ID if name not in tried]:
            factory, accepts = image.OPEN.get(name, (None, None))
            if factory is None:  # another thread is just loading this plugin
                continue
            tried.add(name)
            try:  # of one to three bytes some plugins cannot tell
                accepted = accepts is None or accepts(prefix)
                if isinstance(accepted, str) or not accepted:  # a text says what is not supported
                    continue
                if name in _REFUSED:
                    raise DecodeError(_REFUSED[name])
                picture: ImageFile = factory(io.BytesIO(view), "")
            except (SyntaxError, IndexError, TypeError, struct.error):
                continue
            return _on_one_thread(picture, view)
    raise DecodeError(_unknown(view))


def _on_one_thread(picture: ImageFile, view: memoryview[int]) -> ImageFile:
    """Replace Pillow's AVIF decoder, which would start a thread for each core."""
    if picture.format == "AVIF" and hasattr(picture, "_decoder"):
        plugin = need("PIL.AvifImagePlugin", "image")
        picture._decoder = plugin._avif.AvifDecoder(bytes(view), plugin.DECODE_CODEC_CHOICE, 1)
    return picture


def loaded(picture: ImageFile, view: memoryview[int], wanted: Wanted) -> Decoded:
    """Load an opened picture, and convert it as is wanted."""
    full, orientation = (picture.height, picture.width), _tiff_orientation(picture)
    if picture.format in ("JPEG", "MPO"):
        scale = decoding_scale(full, _orientation(picture), wanted)
        picture.draft(None, (-(-full[1] // scale), -(-full[0] // scale)))
    damage = png_damage(view) if picture.format == "PNG" else None
    if damage is not None and not wanted.tolerate:
        raise DecodeError(damage)
    if wanted.mode == "unchanged" and has_16_bit_colors(picture, view):
        pixels, reason = load_16_bit_colors(
            picture,
            lambda: _identified(need("PIL.Image", "image"), view),
            lambda one: _load(one, view, wanted),
        )
        damage = damage or reason
        decoded = Decoded(pixels=pixels, full=full, alpha=pixels.shape[2] in (2, 4))
    else:
        reason = _load(picture, view, wanted)
        damage = damage or reason
        decoded = _converted(picture, wanted.mode)
        decoded.full = full if picture.format in ("JPEG", "MPO") else decoded.full
    decoded.damage = damage
    if orientation is None:
        decoded.orientation = _orientation(picture)
    elif not wanted.turn:  # Pillow turns a TIFF upright when it is loaded
        decoded.pixels = as_stored(decoded.pixels, orientation)
        decoded.full = decoded.pixels.shape[0], decoded.pixels.shape[1]
    return decoded


def _allocate_tiff(picture: ImageFile, max_pixels: int) -> None:
    """Allocate a TIFF's memory, which Pillow would not do without comparing it with its own limit."""
    size = getattr(picture, "_tile_size", None)
    if size is not None:
        check_pixels(size[1], size[0], max_pixels)
        picture.im = need("PIL.Image", "image").new(picture.mode, size).im


def _load(picture: ImageFile, view: memoryview[int], wanted: Wanted) -> str | None:
    """Load the pixels; return what is wrong with them, where that is tolerated."""
    _allocate_tiff(picture, wanted.max_pixels)
    try:
        picture.load()
    except MemoryError:
        raise
    except Exception as error:
        # What was decoded until then is in the picture's memory, which Pillow allocates first.
        if not wanted.tolerate or getattr(picture, "_im", None) is None:
            raise
        picture.tile = []  # nothing more to load
        picture.load()
        return _damaged(view, error)
    return None


def _converted(picture: ImageFile, mode: str) -> Decoded:
    """Convert a loaded picture of any of Pillow's modes."""
    full = (picture.height, picture.width)
    if picture.mode == "F":
        raise DecodeError(
            "a picture of floating-point numbers: there is no rule which of them are black and "
            "white; convert it to 8 or 16 bits first"
        )
    if picture.mode in SIXTEEN_BIT:
        values = np.asarray(picture)[:, :, np.newaxis]
        if mode == "unchanged":
            return Decoded(pixels=to_16_bits(values), full=full)
        return Decoded(pixels=as_mode(to_8_bits(values), "L" if mode == "L" else "RGB"), full=full)
    if mode == "unchanged":
        target = _unchanged(picture.mode)
    elif mode == "RGBA" and (picture.mode in _ALPHA or "transparency" in picture.info):
        target = "RGBA"
    else:
        target = "L" if mode == "L" else "RGB"
        # With a transparent colour noted, Pillow warns that RGB cannot express it; the pixels of
        # the result are the same.
        picture.info.pop("transparency", None)
    if target == "L" and picture.mode not in ("1", "L", "LA", "RGB", "RGBA", "P"):
        pixels = np.asarray(picture.convert("RGB").convert("L"))
    else:
        pixels = np.array(picture if picture.mode == target else picture.convert(target))
    pixels = pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]
    return Decoded(pixels=pixels, full=full, alpha=target in ("LA", "RGBA"), indices=target == "P")


def _unchanged(mode: str) -> str:
    """Return the mode with the same channels among those that have an array of their own."""
    same = {"1": "L", "La": "LA", "PA": "RGBA", "RGBa": "RGBA"}
    return mode if mode in ("L", "LA", "P", "RGB", "RGBA", "CMYK") else same.get(mode, "RGB")


def _orientation(picture: ImageFile) -> int:
    """Return the EXIF orientation. Pillow's own ``getexif`` warns of damaged blocks."""
    exif = picture.info.get("exif")
    return exif_orientation(exif) if isinstance(exif, bytes) else 1


def _tiff_orientation(picture: ImageFile) -> int | None:
    """Return the orientation that Pillow applies by itself; None for all formats but TIFF."""
    tags = getattr(picture, "tag_v2", None)
    if tags is None:
        return None
    orientation = tags.get(_ORIENTATION, 1)
    return orientation if orientation in range(1, 9) else 1


# What is wrong with a picture


def png_damage(view: memoryview[int]) -> str | None:
    """Check the sums of the chunks that the pixels depend on; Pillow leaves out the data's own."""
    if bytes(view[:8]) != PNG:
        return None
    position, end = 8, len(view)
    while position + 12 <= end:
        length, kind = struct.unpack_from(">I4s", view, position)
        after = position + 8 + length
        if after + 4 > end:
            break
        if kind == b"IEND":
            return None
        if kind in (b"IHDR", b"PLTE", b"IDAT", b"tRNS"):
            (told,) = struct.unpack_from(">I", view, after)
            if zlib.crc32(view[position + 4 : after]) != told:
                return (
                    f"damaged PNG ({end:,} bytes): the checksum of the part at byte {position:,} "
                    f"({kind.decode()}) is wrong"
                )
        position = after + 4
    return f"truncated PNG: the data ends after {end:,} bytes, before the picture does"


def _unknown(view: memoryview[int]) -> str:
    kind = jpeg_kind(view) if bytes(view[:3]) == JPEG else None
    if kind is not None:
        return (
            f"a JPEG of a kind ({kind}) that neither simplejpeg nor Pillow decodes: convert it to an "
            f"8-bit JPEG, or to PNG"
        )
    return describe_bytes(view)


def _damaged(view: memoryview[int], error: Exception) -> str:
    reason = str(error) if isinstance(error, OSError) and str(error) else f"{error!r}"
    kind = jpeg_kind(view) if bytes(view[:3]) == JPEG else None
    what = (
        f"damaged picture ({len(view):,} bytes)" if kind is None else f"a JPEG of a kind ({kind})"
    )
    return f"{what}: {reason}" if kind is None else f"{what} that Pillow does not decode: {reason}"
