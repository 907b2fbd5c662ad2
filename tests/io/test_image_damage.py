"""decode_image and read_image: damaged data, missing decoders, and files that are none."""

from __future__ import annotations

import contextlib
import io
import os
import random
import struct
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from PIL import Image
from sample_pictures import JPEGS, by_pillow, encode, photo, psnr

from spdl_async.errors import DecodeError
from spdl_async.io import _image, decode_image, image_info, read_image, salvage_image

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("kind", JPEGS)
def test_a_truncated_jpeg_is_an_error_wherever_it_ends(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    data = JPEGS[kind]
    ends = {*range(1, len(data), len(data) // 70), *range(len(data) - 20, len(data))}
    for end in ends:
        for size in (None, 16):
            with pytest.raises(DecodeError):
                decode_image(data[:end], size=size)
    with pytest.raises(DecodeError, match="truncated"):
        decode_image(data[: len(data) * 2 // 3])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "WEBP", "PPM"])
def test_a_truncated_file_of_another_format_is_an_error(format: str) -> None:  # noqa: A002
    data = encode(photo(), format)
    for end in range(1, len(data), len(data) // 40):
        with pytest.raises(DecodeError):
            decode_image(data[:end])


def test_a_hole_in_a_jpeg_is_an_error_that_says_what() -> None:
    data = JPEGS["restarts"]
    with pytest.raises(DecodeError, match=r"damaged JPEG \([\d,]+ bytes\): "):
        decode_image(data[:3000] + data[3500:])


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "TGA"])
def test_random_damage_gives_a_picture_or_a_decode_error(format: str) -> None:  # noqa: A002
    rng = random.Random(5)
    data = encode(photo(40, 50), format)
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 4, 20))):
            damaged[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(DecodeError):
            assert decode_image(damaged, size=(20, 30)).shape == (20, 30, 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\xff\xd8\xff", r"JPEG file \(3 bytes\)"),
        (b"\x89PNG\r\n\x1a\n", r"PNG file \(8 bytes\)"),
        (b"\n<!DOCTYPE html><title>Not found</title>", "looks like HTML or XML: '<!DOCTYPE"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "HTML or XML"),
        ("404: n\u00e4chstes Mal".encode(), "looks like text: '404: n\u00e4chstes"),
        (("x" * 510 + "\u00e4\u00e4").encode(), "looks like text: 'xxx"),
        (b"%PDF-1.7", "PDF document"),
        (b"PK\x03\x04rest", "ZIP"),
        (b"\x00\x00\x00\x18ftypheic\x00\x00", "HEIC"),
        (b"\x00\x00\x00\x18ftypisom\x00\x00", "brand 'isom'"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (bytes(1000), "all zero"),
        (b"\x07\x99" * 50, "begin with 07 99 07"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "EPS"),
    ],
)
def test_what_is_no_picture_is_named(data: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode_image(data)


def test_without_simplejpeg_pillow_decodes_jpegs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_image, "installed", lambda: None)
    for kind, data in JPEGS.items():
        assert np.array_equal(decode_image(data), by_pillow(data)), kind
        assert psnr(decode_image(data, size=(30, 30)), by_pillow(data, (30, 30))) > 34
        with pytest.raises(DecodeError, match="truncated"):
            decode_image(data[: len(data) // 2])


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])
def test_a_picture_with_too_many_pixels_is_refused(
    format: str,  # noqa: A002
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = encode(photo(), format)
    with pytest.raises(DecodeError, match=r"161 x 120 pixels: more than max_pixels=19,319"):
        decode_image(data, max_pixels=161 * 120 - 1)
    # Pillow's own limit, a global, plays no part: neither its error nor its warning.
    for limit in (1000, 161 * 120 - 1) if format != "WEBP" else (161 * 120 - 1,):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert decode_image(data, max_pixels=161 * 120).shape == (120, 161, 3)
        assert limit == Image.MAX_IMAGE_PIXELS


def test_read_image(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(JPEGS["4:2:0"])
    assert np.array_equal(read_image(path, size=50), decode_image(JPEGS["4:2:0"], size=50))
    assert read_image(str(path)).shape == (120, 161, 3)


def test_read_image_errors_name_the_path(tmp_path: Path) -> None:
    path = tmp_path / "cut.jpg"
    path.write_bytes(JPEGS["4:2:0"][:2000])
    with pytest.raises(DecodeError) as caught:
        read_image(path)
    assert str(caught.value).startswith(f"{path}: truncated JPEG: the data ends after 2,000 bytes")
    assert isinstance(caught.value.__cause__, ValueError), "what libjpeg said is kept"
    with pytest.raises(FileNotFoundError) as missing:
        read_image(tmp_path / "none.jpg")
    assert missing.value.filename == str(tmp_path / "none.jpg")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_read_image_does_not_wait_for_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(OSError, match="regular file") as caught:
        read_image(tmp_path / "pipe.jpg")
    assert caught.value.filename == str(tmp_path / "pipe.jpg")
    with pytest.raises(IsADirectoryError):
        read_image(tmp_path)


def test_a_missing_pillow_is_noticed_only_when_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(JPEGS["4:2:0"])
    (tmp_path / "c.jpg").write_bytes(JPEGS["cmyk"])
    (tmp_path / "b.png").write_bytes(encode(photo(), "PNG"))
    code = """
        import sys
        sys.modules["PIL"] = None
        from spdl_async.io import read_image, encode_image, image_info
        from spdl_async.io._resize import torch_interpolate
        size = 32 if torch_interpolate() else None
        pixels = read_image(sys.argv[1], size=size)
        print(pixels.shape[2], read_image(sys.argv[2]).shape)
        print(image_info(encode_image(pixels)).format)
        try:
            read_image(sys.argv[3])
        except ImportError as error:
            print(error)
    """
    paths = [tmp_path / name for name in ("a.jpg", "c.jpg", "b.png")]
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *paths],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith("3 (120, 161, 3)\nJPEG\n")
    assert 'pip install "spdl-async[image]"' in result.stdout


@pytest.mark.parametrize("size", [1, 2])
def test_a_byte_or_two(size: int) -> None:
    with pytest.raises(
        DecodeError, match=r"not a picture of a known format: \d bytes?, which begin"
    ) as e:
        decode_image(b"\xff\xd8"[:size])
    assert "unpack" not in str(e.value)


def test_salvaging_takes_no_strictness() -> None:
    with pytest.raises(ValueError, match="leave out damaged='error'"):
        salvage_image(encode(photo(), "JPEG"), damaged="error")


@pytest.mark.parametrize("orientation", [0, 9, 10])
def test_an_orientation_of_a_tiff_that_is_none(orientation: int) -> None:
    picture = photo()
    file = io.BytesIO()
    picture.save(file, "TIFF", tiffinfo={274: orientation})
    for exif in ("apply", "ignore"):
        assert np.array_equal(decode_image(file.getvalue(), exif=exif), np.asarray(picture))


def icon(part: bytes) -> bytes:
    """An ICO whose directory says 128 x 128."""
    entry = struct.pack("<BBBBHHII", 128, 128, 0, 0, 1, 32, len(part), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + part


def mac_icon(part: bytes) -> bytes:
    """An ICNS whose part is named as one of 128 x 128."""
    whole = b"ic07" + struct.pack(">I", 8 + len(part)) + part
    return b"icns" + struct.pack(">I", 8 + len(whole)) + whole


@pytest.mark.parametrize("wrapped", [icon, mac_icon])
def test_a_picture_in_an_icon_is_checked_before_it_is_allocated(
    wrapped: Callable[[bytes], bytes],
) -> None:
    header = b"IHDR" + struct.pack(">IIBBBBB", 13_000, 14_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    bomb = wrapped(b"\x89PNG\r\n\x1a\n" + chunk + encode(Image.new("L", (9, 9)), "PNG")[33:])
    for read in (decode_image, image_info):
        with pytest.raises(DecodeError, match="13,000 x 14,000 pixels: more than max_pixels"):
            read(bomb)
    good = wrapped(encode(Image.new("RGB", (128, 128), "teal"), "PNG"))
    assert decode_image(good, max_pixels=128 * 128).shape == (128, 128, 3)


def test_a_bitmap_in_an_icon_is_checked_too() -> None:
    bitmap = struct.pack("<IiiHHIIiiII", 40, 13_000, 2 * 14_000, 1, 32, 0, 0, 0, 0, 0, 0)
    with pytest.raises(DecodeError, match="13,000 x 14,000 pixels: more than max_pixels"):
        decode_image(icon(bitmap))
