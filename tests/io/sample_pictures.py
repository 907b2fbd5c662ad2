"""Pictures for the tests of decoding, and Pillow's view of them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps

Image.init()  # all formats are in Image.SAVE from here on


def photo(height: int = 120, width: int = 161) -> Image.Image:
    """A picture with soft and fine structure, and no symmetry that would hide a wrong turn."""
    rng = np.random.default_rng(7)
    pixels = np.zeros((height, width, 3), np.float32)
    for cells, strength in ((3, 90), (12, 30), (40, 12)):
        coarse = rng.random((cells, cells, 3), dtype=np.float32) * 255
        soft = Image.fromarray(coarse.astype(np.uint8)).resize((width, height), 3)
        pixels += (np.asarray(soft, np.float32) - 128) * (strength / 128)
    pixels += np.linspace(60, 200, width)[None, :, None]
    pixels[: height // 4, : width // 4] = (250, 20, 40)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encode(picture: Image.Image, format: str = "JPEG", **options: Any) -> bytes:  # noqa: A002
    file = io.BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


def exif(orientation: int) -> bytes:
    block = Image.Exif()
    block[ExifTags.Base.Make] = "a tag before it"
    block[ExifTags.Base.Orientation] = orientation
    return block.tobytes()


def by_pillow(data: bytes, size: tuple[int, int] | None = None) -> np.ndarray:
    """What Pillow makes of it: upright, RGB, then resized with its antialiasing filter."""
    with Image.open(io.BytesIO(data)) as opened:
        picture = ImageOps.exif_transpose(opened).convert("RGB")
    if size is not None:
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(picture)


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """Peak signal to noise ratio in dB; 48 is a difference of one grey level."""
    assert one.shape == other.shape
    error = np.mean((one.astype(np.float64) - other) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


JPEGS = {
    "4:4:4": encode(photo(), quality=92, subsampling=0),
    "4:2:0": encode(photo(), quality=92, subsampling=2),
    "progressive": encode(photo(), quality=92, progressive=True),
    "grey": encode(photo().convert("L"), quality=92),
    "cmyk": encode(photo().convert("CMYK"), quality=92),
    "restarts": encode(photo(), quality=92, restart_marker_rows=1),
}


def ycck() -> bytes:
    """A CMYK JPEG whose Adobe marker says that its first three channels are YCC."""
    data = JPEGS["cmyk"]
    at = data.index(b"Adobe") + 11
    return data[:at] + b"\x02" + data[at + 1 :]


JPEGS["ycck"] = ycck()
