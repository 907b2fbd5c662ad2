"""decode_image into given memory, with named back-ends, and encode_image."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from PIL import Image
from sample_pictures import JPEGS, encode, exif, photo, psnr

from spdl_async.errors import DecodeError
from spdl_async.io import decode_image, encode_image, image_info, salvage_image

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(
    "options", [{}, {"layout": "CHW"}, {"fit": "contain"}, {"mode": "L"}, {"mode": "RGBA"}]
)
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_rows_of_a_batch(format: str, options: Any, orientation: int) -> None:  # noqa: A002
    data = encode(photo(), format, exif=exif(orientation))
    expected = decode_image(data, size=(20, 30), **options)
    batch = np.full((3, *expected.shape), 77, np.uint8)
    row = batch[1]
    assert decode_image(data, size=(20, 30), out=row, **options) is row
    assert np.array_equal(batch[1], expected)
    assert (batch[[0, 2]] == 77).all()
    tensor = torch.zeros(3, *expected.shape, dtype=torch.uint8)
    assert (
        decode_image(data, size=(20, 30), out=tensor[2], **options).data_ptr()
        == tensor[2].data_ptr()
    )
    assert np.array_equal(tensor[2].numpy(), expected)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.zeros((20, 31, 3), np.uint8), ValueError, r"out has shape \(20, 31, 3\)"),
        (np.zeros((20, 30, 3), np.float32), ValueError, "dtype float32"),
        (np.zeros((20, 30, 6), np.uint8)[:, :, ::2], ValueError, "C-contiguous"),
        (np.broadcast_to(np.uint8(0), (20, 30, 3)), ValueError, "C-contiguous"),
        ([[0]], TypeError, "not list"),
        (torch.zeros(20, 30, 3, dtype=torch.uint8, device="meta"), TypeError, "on meta"),
    ],
)
def test_memory_that_does_not_fit_is_refused_before_anything_is_decoded(
    out: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        decode_image(b"never looked at", size=(20, 30), out=out)


def test_the_shape_is_checked_where_only_the_picture_tells_it() -> None:
    with pytest.raises(ValueError, match=r"the picture has shape \(120, 161, 3\)"):
        decode_image(JPEGS["grey"], out=np.zeros((3, 3, 3), np.uint8))
    out = np.full((20, 30, 3), 5, np.uint8)
    with pytest.raises(DecodeError):
        decode_image(JPEGS["4:4:4"][:2000], size=(20, 30), out=out)
    assert (out == 5).all(), "nothing is written of data that is refused"


def test_types_of_the_results() -> None:
    row = torch.zeros(4, 4, 3, dtype=torch.uint8)
    assert_type(decode_image(JPEGS["grey"], size=4, out=row), torch.Tensor)
    assert_type(decode_image(JPEGS["grey"]), "np.ndarray[tuple[Any, ...], np.dtype[Any]]")


@pytest.mark.parametrize(
    "options",
    [{"fit": "crop"}, {"mode": "BGR"}, {"layout": "NCHW"}, {"exif": True}, {"damaged": "skip"},
     {"backend": "opencv"}, {"max_pixels": 0}, {"max_pixels": True}, {"max_pixels": None}],
)  # fmt: skip
def test_options_out_of_range(options: Any) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        decode_image(JPEGS["grey"], **options)


@pytest.mark.parametrize("size", [200_000, (1, 178_956_971), (13_378, 13_378), 10**30])
def test_a_size_that_no_picture_has(size: Any) -> None:
    with pytest.raises(ValueError, match=r"asks for .* pixels, and at most 178,956,970 are made"):
        decode_image(JPEGS["grey"], size=size)
    with pytest.raises(ValueError, match="and at most 178,956,970 are made"):
        decode_image(JPEGS["grey"], size=size, max_pixels=1)  # is about what is decoded


def test_a_size_above_the_default_limit_is_asked_for_with_max_pixels() -> None:
    side = 13_378
    with pytest.raises(DecodeError, match="0 bytes"):  # it is refused for nothing else
        decode_image(b"", size=side, max_pixels=side**2)
    with pytest.raises(ValueError, match=f"at most {side**2 - 1:,} are made"):
        decode_image(b"", size=side, max_pixels=side**2 - 1)


# Back-ends


PLAIN = {
    "jpeg": JPEGS["4:2:0"],
    "jpeg grey": JPEGS["grey"],
    "jpeg turned": encode(photo(), quality=95, exif=exif(6)),
    "png": encode(photo(), "PNG"),
    "png grey": encode(photo().convert("L"), "PNG"),
}
LEFT_TO_AUTO = {
    "cmyk": JPEGS["cmyk"],
    "ycck": JPEGS["ycck"],
    "png palette": encode(photo().quantize(20), "PNG"),
    "png 16": encode(Image.fromarray(np.full((9, 9), 40000, np.uint16)), "PNG"),
    "gif": encode(photo(), "GIF"),
}


@pytest.mark.parametrize("backend", ["cv2", "torchvision", "torchcodec"])
def test_a_named_back_end_follows_the_common_rules(
    backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(backend)
    for name, data in PLAIN.items():
        for options in (
            {},
            {"mode": "L"},
            {"mode": "RGBA"},
            {"mode": "unchanged"},
            {"size": (40, 50)},
        ):
            expected = decode_image(data, **options)
            pixels = decode_image(data, backend=backend, **options)
            # Scaled decoding is left out, and libjpeg's builds differ.
            assert psnr(pixels, expected) > (34 if "size" in options else 44), (name, options)
        stored = decode_image(data, backend=backend, exif="ignore")
        assert psnr(stored, decode_image(data, exif="ignore")) > 44, name
    for name, data in LEFT_TO_AUTO.items():
        assert np.array_equal(decode_image(data, backend=backend), decode_image(data)), name
    cut = PLAIN["jpeg"][:3000]
    with pytest.raises(DecodeError, match="truncated JPEG"):
        decode_image(cut, backend=backend)
    assert salvage_image(cut, backend=backend).damage
    with pytest.raises(DecodeError, match="max_pixels=100"):
        decode_image(PLAIN["png"], backend=backend, max_pixels=100)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("backend", ["cv2", "torchvision", "torchcodec"])
def test_a_back_end_that_is_not_installed_says_so(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (backend, f"{backend}.io", f"{backend}.decoders"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"this back-end needs [\w-]+, .*: pip install"):
        decode_image(PLAIN["jpeg"], backend=backend)


def test_simplejpeg_by_name_takes_only_jpeg() -> None:
    assert decode_image(PLAIN["jpeg"], backend="simplejpeg").shape == (120, 161, 3)
    with pytest.raises(DecodeError, match="not a JPEG"):
        decode_image(PLAIN["png"], backend="simplejpeg")


@pytest.mark.skipif("AVIF" not in Image.SAVE, reason="this Pillow has no AVIF")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts threads through /proc")
def test_avif_is_decoded_on_one_thread(tmp_path: Path) -> None:
    (tmp_path / "a.avif").write_bytes(encode(photo(900, 1200), "AVIF"))
    code = """
        import sys, threading
        from pathlib import Path
        from spdl_async.io import read_image

        seen, over = [], threading.Event()
        def watch():
            while not over.is_set():
                seen.append(sum(1 for _ in Path("/proc/self/task").iterdir()))
        watcher = threading.Thread(target=watch)
        watcher.start()
        for _ in range(8):
            read_image(sys.argv[1])
        over.set()
        watcher.join()
        print(max(seen))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path / "a.avif"],
        capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert int(done.stdout) <= 2, done.stdout


# encode_image


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("channels", [0, 1, 3, 4])
def test_what_is_encoded_comes_back(format: Any, channels: int) -> None:  # noqa: A002
    pixels = np.asarray(photo().convert({0: "L", 1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    pixels = pixels[:, :, None] if channels == 1 else pixels
    if format == "JPEG" and channels == 4:
        with pytest.raises(ValueError, match="no alpha channel"):
            encode_image(pixels)
        return
    data = encode_image(pixels, format=format, quality=97)
    assert image_info(data).format == format
    back = decode_image(data, mode={0: "L", 1: "L", 3: "RGB", 4: "RGBA"}[channels])  # type: ignore[call-overload]
    exact = format == "PNG"
    assert psnr(back, pixels.reshape(back.shape)) > (90 if exact else 30)
    with Image.open(io.BytesIO(data)) as picture:
        picture.load()


def test_encode_deep_grey_tensors_and_quality() -> None:
    deep = np.arange(60 * 80, dtype=np.uint16).reshape(60, 80) * 13
    data = encode_image(deep, format="PNG")
    assert np.array_equal(decode_image(data, mode="unchanged")[:, :, 0], deep)
    pixels = torch.from_numpy(np.array(photo()))
    sizes = [len(encode_image(pixels.numpy()[::-1], quality=q)) for q in (10, 50, 95)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] / 3
    assert encode_image(pixels) == encode_image(pixels.numpy())  # type: ignore[arg-type]  # works too


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        (np.zeros((3, 20, 30), np.uint8), {}, r"CHW is turned"),
        (np.zeros((20, 30, 2), np.uint8), {}, "1, 3 or 4 channels"),
        (np.zeros((0, 30, 3), np.uint8), {}, "shape"),
        (np.zeros((20, 30, 3), np.uint8), {"format": "GIF"}, "format must be"),
        (np.zeros((20, 30, 3), np.uint8), {"quality": 0}, "quality must be"),
        (np.zeros((20, 30, 3), np.float32), {}, "not float32"),
        (np.zeros((20, 30), np.uint16), {}, "not uint16"),
        (np.zeros((1, 16384), np.uint8), {"format": "WEBP"}, "at most 16383"),
    ],
)
def test_what_cannot_be_encoded(array: np.ndarray, options: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        encode_image(array, **options)
