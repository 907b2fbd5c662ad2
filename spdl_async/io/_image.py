"""Turn the bytes of a picture into an array: the public functions.

A JPEG is decoded by simplejpeg (libjpeg-turbo, without the GIL), at a half, a quarter or an
eighth of its size where the wanted size allows, and then resized by `resize`. All other formats,
and JPEGs that simplejpeg does not take, go through Pillow.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

import numpy as np

from spdl_async import tally
from spdl_async.errors import DecodeError
from spdl_async.io import _backends, _fit
from spdl_async.io._colors import as_mode
from spdl_async.io._image_data import as_bytes, path_text
from spdl_async.io._image_info import JPEG
from spdl_async.io._jpeg import decode_jpeg, installed
from spdl_async.io._local import read_file
from spdl_async.io._orientation import stored_size, upright
from spdl_async.io._out import check_out, own, pixels_of, write
from spdl_async.io._picture import MOST_PIXELS, Decoded, Mode, Wanted
from spdl_async.io._pillow import decode_all, decode_with_pillow
from spdl_async.io._resize import resize

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

OutT = TypeVar("OutT")

_DAMAGED = "damaged, tolerated"

_CHOICES = {
    "fit": ("stretch", "cover", "contain"),
    "mode": ("RGB", "L", "RGBA", "unchanged"),
    "layout": ("HWC", "CHW"),
    "exif": ("apply", "ignore"),
    "damaged": ("error", "tolerate"),
    "backend": ("auto", "simplejpeg", "pillow", *_backends.NAMES),
}


class ImageOptions(TypedDict, total=False):
    """The keyword arguments of `decode_image`, but ``out``."""

    size: int | tuple[int, int] | None
    fit: _fit.Fit
    mode: Mode
    layout: Literal["HWC", "CHW"]
    exif: Literal["apply", "ignore"]
    damaged: Literal["error", "tolerate"]
    max_pixels: int
    backend: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SalvagedImage:
    """What `salvage_image` returns.

    Attributes:
        pixels: the array, as of `decode_image`.
        damage: what was wrong with the data; None where it was whole.
    """

    pixels: NDArray[Any]
    damage: str | None


@overload
def decode_image(
    data: Buffer, *, out: None = None, **options: Unpack[ImageOptions]
) -> NDArray[Any]: ...
@overload
def decode_image(data: Buffer, *, out: OutT, **options: Unpack[ImageOptions]) -> OutT: ...
def decode_image(
    data: Buffer,
    *,
    size: int | tuple[int, int] | None = None,
    fit: _fit.Fit = "stretch",
    mode: Mode = "RGB",
    layout: Literal["HWC", "CHW"] = "HWC",
    exif: Literal["apply", "ignore"] = "apply",
    damaged: Literal["error", "tolerate"] = "error",
    max_pixels: int = MOST_PIXELS,
    backend: str = "auto",
    out: Any = None,
) -> Any:
    """Decode a picture into an array.

    Runs on the calling thread alone, most of the time without the GIL, so that N threads decode
    on N cores. Give ``size`` where you can: a large JPEG is then decoded at a fraction of its
    size, and what comes out can be stacked into batches.

    Of animations and multi-page files the first picture is taken; for all of them there is
    `decode_frames`. CMYK and YCCK are converted as Pillow does it, without colour profiles.

    In a pipeline the statistics of the stage count the pictures that were ``decoded by Pillow instead
    of simplejpeg`` (or of the ``backend`` that was named), and those that were ``damaged, tolerated``.

    Args:
        data: the content of a file, as any contiguous bytes-like object.
        size: ``None`` keeps the picture's own size; a number makes a square of it; a pair is
            (height, width) in pixels, after the orientation is applied. The filter is bilinear and
            antialiasing.
        fit: what becomes of another aspect ratio: ``"stretch"`` distorts it; ``"cover"`` keeps it and
            cuts off what is too much, evenly at both ends; ``"contain"`` keeps it, shows all of the
            picture and leaves the rest 0 (black; in RGBA transparent).
        mode: the channels. ``"RGB"`` repeats grey, and drops alpha without blending. ``"L"`` is grey by
            ITU-R BT.601. ``"RGBA"`` has the alpha channel, 255 where the picture has none. In
            these, 16-bit values keep their high byte. ``"unchanged"`` keeps the picture's own 1 (grey), 2
            (grey, alpha), 3 (RGB) or 4 (RGBA, CMYK) channels, 16 bits as uint16, and the indices of
            a palette, which are then resized by taking the nearest one.
        layout: ``"HWC"`` is (height, width, channels), ``"CHW"`` (channels, height, width).
        exif: apply the orientation of the EXIF block (or TIFF's tag), or ignore it.
        damaged: raise on damaged data, or return what could be decoded of it, the rest grey, black or
            wrong. Whether there was damage `salvage_image` says.
        max_pixels: refuse pictures that have more, by their header, before anything is allocated. It
            bounds ``size`` too where it is above its default, else the default does.
        backend: ``"auto"`` (simplejpeg for JPEG, Pillow for all others), or by name ``"simplejpeg"`` (which
            refuses all but JPEG), ``"pillow"``, ``"cv2"``, ``"torchvision"``, ``"torchcodec"``. The
            last three decode JPEG and PNG of 8-bit grey or RGB, and leave the others to ``"auto"``.
        out: an array, or a CPU tensor, to write into: a row of a batch. Of exactly the result's shape
            and dtype, C-contiguous. Nothing is written where the data is refused.

    Returns:
        ``out``, or a new, writable, C-contiguous array of three dimensions; uint8, in mode
        ``"unchanged"`` also uint16.

    Raises:
        DecodeError: the data is damaged, cut short, too large or no picture; the message says which.
        TypeError: ``data`` is not bytes-like, such as a path: use `read_image`.
        ValueError: an option is out of range, or ``out`` does not fit.
        ImportError: the picture needs Pillow, or the back-end, and it is not installed.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (640, 480), "teal").save(file, "JPEG")
        >>> decode_image(file.getvalue(), size=(120, 160)).shape
        (120, 160, 3)
        >>> decode_image(file.getvalue(), size=128, fit="contain", layout="CHW").shape
        (3, 128, 128)
    """
    wanted = as_wanted(
        size=size,
        fit=fit,
        mode=mode,
        layout=layout,
        exif=exif,
        damaged=damaged,
        max_pixels=max_pixels,
        backend=backend,
    )
    return decoded(as_bytes(data, "decode_image", "read_image"), wanted, out)[0]


@overload
def read_image(
    path: str | bytes | os.PathLike[str], *, out: None = None, **options: Unpack[ImageOptions]
) -> NDArray[Any]: ...
@overload
def read_image(
    path: str | bytes | os.PathLike[str], *, out: OutT, **options: Unpack[ImageOptions]
) -> OutT: ...
def read_image(
    path: str | bytes | os.PathLike[str], *, out: Any = None, **options: Unpack[ImageOptions]
) -> Any:
    """Read and decode a picture file in one call: open, read, close, decode.

    One call is one hop to a thread, which is what small files want: reading and decoding on the
    thread that has the file is faster than handing its bytes around.

    Args:
        path: the file; any name that the system takes, as text, bytes or a path object.
        out: as for `decode_image`.
        options: as for `decode_image`.

    Returns:
        An array, as of `decode_image`.

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
    return read_decoded(path, as_wanted(**options), out)


def salvage_image(data: Buffer, **options: Unpack[ImageOptions]) -> SalvagedImage:
    """Decode what there is of a picture, and say what was wrong with it.

    For data sets in which half a picture is better than none, but is to be known for what it is. The
    damage is judged as by `decode_image`; of whole data the result is the same.

    Args:
        data: the content of a file, as any contiguous bytes-like object.
        options: as for `decode_image`; ``damaged`` is ``"tolerate"``.

    Returns:
        The array, and what was wrong.

    Raises:
        DecodeError: nothing could be decoded: the data is no picture, its header is damaged, or its format
            (WebP, AVIF) allows no part to be decoded.
        ValueError: as `decode_image`, or ``damaged`` is ``"error"``.

    Example:
        >>> import numpy as np
        >>> from spdl_async.io import encode_image
        >>> data = encode_image(np.zeros((60, 80, 3), np.uint8), format="JPEG")
        >>> salvage_image(data).damage is None
        True
        >>> salvage_image(data[:-20]).damage
        'truncated JPEG: the data ends after 687 bytes, before the picture does'
    """
    if options.setdefault("damaged", "tolerate") == "error":
        raise ValueError(
            "salvage_image tolerates damage: leave out damaged='error', or use decode_image"
        )
    wanted = as_wanted(**options)
    pixels, damage = decoded(as_bytes(data, "salvage_image"), wanted, None)
    return SalvagedImage(pixels=pixels, damage=damage)


def decode_frames(
    data: Buffer, *, max_frames: int | None = None, **options: Unpack[ImageOptions]
) -> NDArray[Any]:
    """Decode all frames of an animation (GIF, WebP, APNG, AVIF), or all pages of a TIFF.

    Args:
        data: the content of a file, as any contiguous bytes-like object; a single picture is one frame.
        max_frames: decode no more than these, from the first one on.
        options: as for `decode_image`. ``max_pixels`` limits the pixels of all frames together, as they
            are stored and as ``size`` makes them. The back-end is always Pillow. Pages of different sizes
            need ``size``.

    Returns:
        An array of shape (frames, height, width, channels), or (frames, channels, height, width) in
        the layout "CHW". The frames are whole ones, as they are to be shown.

    Raises:
        DecodeError: as `decode_image`; or the frames differ in shape.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> frames = [Image.new("L", (8, 6), shade) for shade in (0, 80, 160)]
        >>> file = io.BytesIO()
        >>> frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
        >>> decode_frames(file.getvalue(), mode="L").shape
        (3, 6, 8, 1)
    """
    if max_frames is not None and (type(max_frames) is not int or max_frames < 1):
        raise ValueError(f"max_frames must be None or a number of at least 1, not {max_frames!r}")
    wanted = as_wanted(**options)
    if wanted.backend not in ("auto", "pillow"):
        raise ValueError(f"decode_frames decodes with Pillow alone, not backend={wanted.backend!r}")
    view = as_bytes(data, "decode_frames")
    frames, damaged = [], False
    for picture in decode_all(view, wanted, max_frames):
        frames.append(finished(picture, wanted, None))
        damaged = damaged or picture.damage is not None
    if damaged:
        tally(_DAMAGED)
    different = next((frame for frame in frames if frame.shape != frames[0].shape), None)
    if different is not None:
        raise DecodeError(
            f"frames of different shapes, {frames[0].shape} and {different.shape}: give size= and a "
            f"mode= with a fixed number of channels"
        )
    return np.stack(frames)


# What they share


def as_wanted(
    *,
    size: int | tuple[int, int] | None = None,
    fit: _fit.Fit = "stretch",
    mode: Mode = "RGB",
    layout: Literal["HWC", "CHW"] = "HWC",
    exif: Literal["apply", "ignore"] = "apply",
    damaged: Literal["error", "tolerate"] = "error",
    max_pixels: int = MOST_PIXELS,
    backend: str = "auto",
    **unknown: object,
) -> Wanted:
    """Check the options of `decode_image`; the same ones are checked once."""
    for name in unknown:
        raise TypeError(f"there is no option {name!r}")
    most = max(max_pixels, MOST_PIXELS) if isinstance(max_pixels, int) else MOST_PIXELS
    pair = None if size is None else _fit.as_height_width(size, most)
    options = (pair, fit, mode, layout, exif, damaged, max_pixels, backend)
    try:
        return _wanted(*options)
    except TypeError:  # what cannot be hashed is none of the choices
        return _wanted.__wrapped__(*options)


@functools.lru_cache(maxsize=256, typed=True)
def _wanted(
    size: tuple[int, int] | None,
    fit: _fit.Fit,
    mode: Mode,
    layout: Literal["HWC", "CHW"],
    exif: str,
    damaged: str,
    max_pixels: int,
    backend: str,
) -> Wanted:
    choices = {"fit": fit, "mode": mode, "layout": layout, "exif": exif}
    choices |= {"damaged": damaged, "backend": backend}
    for name, value in choices.items():
        allowed = _CHOICES[name]
        if value not in allowed:
            raise ValueError(
                f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}"
            )
    if isinstance(max_pixels, bool) or not isinstance(max_pixels, int) or max_pixels < 1:
        raise ValueError(f"max_pixels must be a whole number of at least 1, not {max_pixels!r}")
    return Wanted(
        size=size,
        fit=fit,
        mode=mode,
        layout=layout,
        turn=exif == "apply",
        tolerate=damaged == "tolerate",
        max_pixels=max_pixels,
        backend=backend,
    )


def read_decoded(path: str | bytes | os.PathLike[str], wanted: Wanted, out: Any) -> Any:
    """Read and decode a file; a refusal names it."""
    data = read_file(path)
    try:
        return decoded(memoryview(data), wanted, out)[0]
    except DecodeError as error:
        raise DecodeError(
            f"{path_text(path)}: {error}", path=path_text(path), offset=error.offset
        ) from error.__cause__


def decoded(view: memoryview[int], wanted: Wanted, out: Any) -> tuple[Any, str | None]:
    """Decode, resize, turn; return the array, and what was wrong with the data.

    What is out of the ordinary is told to the stage that runs this, where there is one.
    """
    check_out(out, wanted)
    if len(view) == 0:
        raise DecodeError("there is no data to decode: the file is empty (0 bytes)")
    picture = _with_backend(view, wanted)
    pixels = finished(picture, wanted, out)
    if picture.damage is not None:
        tally(_DAMAGED)
    return pixels, picture.damage


def _with_backend(view: memoryview[int], wanted: Wanted) -> Decoded:
    backend, is_jpeg = wanted.backend, bytes(view[:3]) == JPEG
    wished = "simplejpeg" if is_jpeg and backend != "pillow" else "Pillow"
    if backend in _backends.NAMES:
        picture, wished = _backends.decode_with(backend, view, wanted), backend
        if picture is not None:
            return picture
    elif backend == "simplejpeg":
        if not is_jpeg:
            raise DecodeError(
                "not a JPEG, and backend='simplejpeg' decodes nothing else: leave it out"
            )
        if installed() is None:
            raise ImportError(
                "simplejpeg is not installed: pip install 'spdl-async[image]'", name="simplejpeg"
            )
    picture, by = None, "simplejpeg"
    if is_jpeg and backend != "pillow" and installed() is not None:
        picture = decode_jpeg(view, wanted)
    if picture is None:
        picture, by = decode_with_pillow(view, wanted), "Pillow"
    if by != wished:  # slower, as a rule, so whoever looks for the time should see how often
        tally(f"decoded by {by} instead of {wished}")
    return picture


def finished(picture: Decoded, wanted: Wanted, out: Any) -> Any:
    """Crop, resize, turn, and bring it into the layout; write it into ``out`` where that is given."""
    pixels, orientation = picture.pixels, picture.orientation if wanted.turn else 1
    size = stored_size(wanted.size, orientation)
    if size is not None:
        if wanted.fit == "cover":
            part = _fit.cropped((pixels.shape[0], pixels.shape[1]), size, wanted.fit)
            top, left = _fit.margin((pixels.shape[0], pixels.shape[1]), part)
            pixels = pixels[top : top + part[0], left : left + part[1]]
        target = _fit.inner(picture.full, size, wanted.fit)
        pixels = resize(pixels, target, alpha=picture.alpha, nearest=picture.indices)
    if wanted.mode == "RGBA" and pixels.shape[2] != 4:
        pixels = as_mode(pixels, "RGBA")
    pixels = upright(pixels, orientation)
    if out is None and wanted.layout == "HWC" and wanted.size in (None, pixels.shape[:2]):
        return own(pixels)
    height, width = wanted.size or (pixels.shape[0], pixels.shape[1])
    shape = (height, width, pixels.shape[2])
    if wanted.layout == "CHW":
        shape = (shape[2], height, width)
    result = np.empty(shape, pixels.dtype) if out is None else pixels_of(out, shape, pixels.dtype)
    write(pixels, result if wanted.layout == "HWC" else result.transpose(1, 2, 0))
    return result if out is None else out
