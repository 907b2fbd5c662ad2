"""Back-ends that are used only when asked for by name: torchvision, cv2, torchcodec.

Each decodes what it does by the common rules: JPEG and PNG of 8-bit grey or RGB. All other pictures go
the way of ``backend="auto"``, so a name never changes what a picture becomes. These libraries tell
damage less well than simplejpeg, and some print about it; so the data is checked before they see it, and
where it is damaged, what to do is decided as for "auto".
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from spdl_async.io._colors import as_mode
from spdl_async.io._extras import need
from spdl_async.io._image_info import ImageInfo, header
from spdl_async.io._picture import Decoded, Wanted, check_pixels
from spdl_async.io._pillow import png_damage

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EXIF_SEGMENT = b"\xff\xe1"


def decode_with(name: str, view: memoryview[int], wanted: Wanted) -> Decoded | None:
    """Decode with the back-end of that name; None where the picture is left to "auto".

    Raises:
        ImportError: the back-end is not installed.
        DecodeError: the picture has more pixels than is allowed.
    """
    decode = _BACKENDS[name]()
    info = header(view)
    if info is None or not _is_plain(info, view):
        return None
    check_pixels(info.height, info.width, wanted.max_pixels)
    data = _without_exif(view) if info.orientation != 1 else view
    pixels = decode(data, info.format, info.mode == "L")
    mode = "RGB" if wanted.mode == "RGBA" else wanted.mode
    if mode != "unchanged":
        pixels = as_mode(pixels, mode)
    full = (info.height, info.width)
    return Decoded(pixels=pixels, full=full, orientation=info.orientation)


def _is_plain(info: ImageInfo, view: memoryview[int]) -> bool:
    """Tell whether all back-ends agree on a picture: undamaged 8-bit grey or RGB."""
    if info.bits != 8 or info.mode not in ("L", "RGB") or info.frames != 1:
        return False
    if info.format == "PNG":
        return png_damage(view) is None and info.orientation == 1 and b"tRNS" not in bytes(view)
    return info.format == "JPEG" and _is_undamaged_jpeg(view)


def _is_undamaged_jpeg(view: memoryview[int]) -> bool:
    """Decode at an eighth of the size, which reads all the data, and has libjpeg's say."""
    library = need("simplejpeg", "image")
    try:
        library.decode_jpeg(view, colorspace="GRAY", min_factor=8, strict=True)
    except (ValueError, KeyError):
        return False
    return True


def _without_exif(view: memoryview[int]) -> memoryview[int]:
    """Leave a JPEG's EXIF blocks out, so that no back-end turns it by itself."""
    position, kept = 2, bytearray(view[:2])
    while view[position] == 0xFF and view[position + 1] != 0xDA:
        if view[position + 1] == 0xFF:
            position += 1
            continue
        after = position + 2 + (view[position + 2] << 8 | view[position + 3])
        if bytes(view[position : position + 2]) != _EXIF_SEGMENT:
            kept += view[position:after]
        position = after
    kept += view[position:]
    return memoryview(kept)


def _library(module: str, package: str) -> Any:
    """Return a module that is no part of our extras.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"this back-end needs {package}, which is not installed: pip install {package}; or leave "
            f"backend= out",
            name=error.name,
        ) from error


def _cv2() -> Callable[[memoryview[int], str, bool], NDArray[np.uint8]]:
    cv2 = _library("cv2", "opencv-python-headless")

    def decode(view: memoryview[int], kind: str, grey: bool) -> NDArray[np.uint8]:
        flags = cv2.IMREAD_GRAYSCALE if grey else cv2.IMREAD_COLOR
        pixels = cv2.imdecode(np.frombuffer(view, np.uint8), flags | cv2.IMREAD_IGNORE_ORIENTATION)
        if pixels is None:
            raise ValueError(f"cv2 does not decode this {kind}, and does not say why")
        picture: NDArray[np.uint8] = pixels[:, :, np.newaxis] if grey else pixels[:, :, ::-1]
        return np.ascontiguousarray(picture)

    return decode


def _of_tensors(module: str, *, by_name: bool) -> Callable[[], Callable[..., NDArray[np.uint8]]]:
    """Make the back-end of torchvision or torchcodec, which have functions of the same names."""

    def make() -> Callable[..., NDArray[np.uint8]]:
        library = _library(module, module.partition(".")[0])
        torch = _library("torch", "torch")

        def decode(view: memoryview[int], kind: str, grey: bool) -> NDArray[np.uint8]:
            mode: Any = "GRAY" if grey else "RGB"
            if not by_name:
                mode = library.ImageReadMode[mode]
            # A copy: torch takes no read-only memory without a warning.
            data = torch.from_numpy(np.array(view, np.uint8))
            decoder = library.decode_jpeg if kind == "JPEG" else library.decode_png
            pixels = decoder(data, mode=mode).permute(1, 2, 0)
            return np.ascontiguousarray(pixels.numpy())

        return decode

    return make


_BACKENDS: dict[str, Callable[[], Callable[..., NDArray[np.uint8]]]] = {
    "cv2": _cv2,
    "torchvision": _of_tensors("torchvision.io", by_name=False),
    "torchcodec": _of_tensors("torchcodec.decoders", by_name=True),
}
NAMES = tuple(_BACKENDS)
