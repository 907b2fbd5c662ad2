"""decode_image: every kind of picture against Pillow, and the threads that it runs on."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from PIL import ExifTags, Image
from sample_pictures import JPEGS, by_pillow, encode, exif, photo, psnr

from spdl_async.errors import DecodeError
from spdl_async.io import _image, _resize, decode_image

pytestmark = pytest.mark.torch

ORIENTATIONS = range(1, 9)


@pytest.mark.parametrize("kind", JPEGS)
@pytest.mark.parametrize("size", [None, (97, 203), (30, 30), (400, 350)])
def test_jpeg_is_what_pillow_makes_of_it(kind: str, size: tuple[int, int] | None) -> None:
    pixels = decode_image(JPEGS[kind], size=size)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    # Scaled decoding, for 30 x 30, is a filter of its own.
    assert psnr(pixels, by_pillow(JPEGS[kind], size)) > (34 if size == (30, 30) else 44)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("size", [None, (50, 90), (24, 16)])
@pytest.mark.parametrize("kind", ["rgb", "cmyk"])
def test_jpeg_orientation(orientation: int, size: tuple[int, int] | None, kind: str) -> None:
    picture = photo() if kind == "rgb" else photo().convert("CMYK")
    data = encode(picture, quality=95, exif=exif(orientation))
    assert psnr(decode_image(data, size=size), by_pillow(data, size)) > 34


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_orientation_of_other_formats(orientation: int, format: str) -> None:  # noqa: A002
    if format == "TIFF":
        data = encode(photo(), format, tiffinfo={int(ExifTags.Base.Orientation): orientation})
    else:
        data = encode(photo(), format, exif=exif(orientation))
    for size in (None, (50, 90)):
        assert psnr(decode_image(data, size=size), by_pillow(data, size)) > 44


def test_orientation_in_motorola_byte_order_and_behind_other_segments() -> None:
    tag = b"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00"
    block = b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01" + tag + bytes(4)
    segments = b"\xff\xe1\x00\x0fhttp://ns.xm\x00" + b"\xff\xff\xe1" + _sized(block)
    data = JPEGS["4:4:4"][:2] + segments + JPEGS["4:4:4"][2:]
    assert decode_image(data).shape == (161, 120, 3)
    assert np.array_equal(decode_image(data), np.rot90(decode_image(JPEGS["4:4:4"]), -1))


def _sized(block: bytes) -> bytes:
    return (len(block) + 2).to_bytes(2, "big") + block


@pytest.mark.parametrize("cut", [0, 4, 8, 10, 14, 20])
def test_a_broken_exif_block_is_no_orientation(cut: int) -> None:
    block = exif(6)[: 6 + cut]
    data = JPEGS["4:4:4"][:2] + b"\xff\xe1" + _sized(block) + JPEGS["4:4:4"][2:]
    assert decode_image(data).shape == (120, 161, 3)


def test_orientation_out_of_range_is_ignored() -> None:
    tag = b"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x09\x00\x00"
    block = b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01" + tag + bytes(4)
    data = JPEGS["4:4:4"][:2] + b"\xff\xe1" + _sized(block) + JPEGS["4:4:4"][2:]
    assert decode_image(data).shape == (120, 161, 3)


@pytest.mark.parametrize("scale", [2, 4, 8])
def test_a_large_jpeg_is_decoded_at_a_fraction(scale: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[tuple[int, ...]] = []

    def spy(pixels: np.ndarray, size: tuple[int, int], **options: Any) -> np.ndarray:
        decoded.append(pixels.shape)
        return _resize.resize(pixels, size, **options)

    monkeypatch.setattr(_image, "resize", spy)
    data = encode(photo(401, 603), quality=95)
    wanted = (401 // (2 * scale), 603 // (2 * scale))
    small = decode_image(data, size=wanted)
    assert decoded == [(-(-401 // scale), -(-603 // scale), 3)]
    assert psnr(small, by_pillow(data, wanted)) > 34
    decode_image(data, size=(wanted[0] + 1, wanted[1]))
    assert decoded[1][0] > decoded[0][0], "it would have fewer than two rows for one"


def test_extreme_sizes() -> None:
    for height, width in ((1, 1), (1, 300), (300, 1), (2, 3)):
        data = encode(photo(height + 3, width + 3).crop((0, 0, width, height)))
        for size in (None, (1, 1), (5, 1), (1, 5), (64, 64)):
            assert decode_image(data, size=size).shape == ((*(size or (height, width)), 3))


def test_resize_agrees_with_pillow_for_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        height, width, rows, columns = rng.integers(1, 130, 4)
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        with monkeypatch.context() as patch:
            patch.setattr(_resize, "torch_interpolate", lambda: None)
            expected = _resize.resize(pixels, (rows, columns))
        result = _resize.resize(pixels, (rows, columns))
        assert result.flags.c_contiguous
        assert result.flags.writeable
        assert expected.flags.writeable
        assert np.abs(result.astype(int) - expected).max() <= 1


GREY16 = np.arange(120 * 160, dtype=np.uint16).reshape(120, 160) * 3

MODES = {
    "1": photo().convert("1"),
    "L": photo().convert("L"),
    "LA": photo().convert("LA"),
    "RGB": photo(),
    "RGBA": Image.merge("RGBA", (*photo().split(), photo().convert("L"))),
    "P": photo().quantize(50),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_png(mode: str) -> None:
    expected = np.asarray(MODES[mode].convert("RGB"))
    assert np.array_equal(decode_image(encode(MODES[mode], "PNG")), expected)


@pytest.mark.parametrize("transparency", [3, bytes(range(50))])
def test_a_palette_with_transparency_keeps_its_colors(transparency: int | bytes) -> None:
    data = encode(MODES["P"], "PNG", transparency=transparency)
    assert np.array_equal(decode_image(data), np.asarray(MODES["P"].convert("RGB")))


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_16_bit_grey_keeps_its_high_byte(format: str) -> None:  # noqa: A002
    pixels = decode_image(encode(Image.fromarray(GREY16), format))
    assert np.array_equal(pixels, np.stack([GREY16 >> 8] * 3, axis=2))


def test_numbers_without_a_scale_are_refused() -> None:
    with pytest.raises(DecodeError, match="floating-point"):
        decode_image(encode(Image.new("F", (4, 4)), "TIFF"))
    with pytest.raises(DecodeError, match="values from 70000 to 70000"):
        decode_image(encode(Image.new("I", (4, 4), 70000), "TIFF"))


@pytest.mark.parametrize("format", ["GIF", "TIFF", "WEBP", "PNG"])
def test_the_first_of_several_pictures_is_taken(format: str) -> None:  # noqa: A002
    first, second = Image.new("RGB", (20, 10), "navy"), Image.new("RGB", (20, 10), "red")
    data = encode(first, format, save_all=True, append_images=[second])
    assert np.abs(decode_image(data).astype(int) - (0, 0, 128)).max() <= 6


def test_bytes_like_objects(tmp_path: Path) -> None:
    data = JPEGS["4:2:0"]
    expected = decode_image(data)
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert np.array_equal(decode_image(mapped), expected)
    padded = memoryview(b"#" + data + b"#")
    likes: list[Any] = [bytearray(data), memoryview(data), np.frombuffer(data, np.int8)]
    for like in (*likes, padded[1:-1]):
        assert np.array_equal(decode_image(like), expected)


@pytest.mark.parametrize("data", ["a.jpg", Path("a.jpg"), None, 5, np.zeros((4, 4, 3), np.uint8)])
def test_what_is_not_bytes_is_a_type_error(data: Any) -> None:
    with pytest.raises(TypeError, match="content of a file as bytes"):
        decode_image(data)


def test_a_path_is_told_to_read_the_file() -> None:
    with pytest.raises(TypeError, match=r"read_image\(path\)"):
        decode_image("photos/a.jpg")  # type: ignore[call-overload]  # the mistake under test


@pytest.mark.parametrize("size", [0, -1, (0, 5), (5, 0)])
def test_size_below_one_is_a_value_error(size: Any) -> None:
    with pytest.raises(ValueError, match="at least 1 pixel"):
        decode_image(JPEGS["grey"], size=size)


@pytest.mark.parametrize("size", [2.5, "224", (1, 2, 3), (4,), (2.0, 3)])
def test_size_of_another_type_is_a_type_error(size: Any) -> None:
    with pytest.raises(TypeError, match=r"pair \(height, width\)"):
        decode_image(JPEGS["grey"], size=size)


def test_threads_do_not_disturb_each_other() -> None:
    files = [*JPEGS.values(), encode(photo(), "PNG"), encode(MODES["P"], "GIF")]
    expected = [decode_image(data, size=40) for data in files]
    start = threading.Barrier(8)
    wrong: list[int] = []

    def decode_all(first: int) -> None:
        start.wait()
        for turn in range(3 * len(files)):
            number = (first + turn) % len(files)
            if not np.array_equal(decode_image(files[number], size=40), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=decode_all, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts threads through /proc")
def test_decoding_and_collating_start_no_native_threads(tmp_path: Path) -> None:
    """Contract 20: OS threads are at most ours + 4, and torch's setting is left alone."""
    (tmp_path / "a.jpg").write_bytes(encode(photo(600, 800)))
    (tmp_path / "b.png").write_bytes(encode(photo(600, 800), "PNG"))
    code = """
        import sys, threading
        import numpy, torch
        from spdl_async.collate import collate
        from spdl_async.io import read_image

        def os_threads():
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("Threads"))

        # 8 of these are far beyond the size from which torch would share out the copying.
        features = torch.from_numpy(numpy.ones((300, 300), "float32"))

        def work():
            for path in sys.argv[1:]:
                for size in (None, 224, (600, 800), (700, 1000)):
                    collate([(read_image(path, size=size), features, 1)] * 8)
            ready.wait()
            done.wait()

        before, setting = os_threads(), torch.get_num_threads()
        ready, done = threading.Barrier(9), threading.Barrier(9)
        for _ in range(8):
            threading.Thread(target=work).start()
        ready.wait()
        print(before, os_threads(), setting == torch.get_num_threads())
        done.wait()
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path / "a.jpg", tmp_path / "b.png"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "4"},
    )
    before, during, setting_is_kept = result.stdout.split()
    assert int(during) <= int(before) + 8 + 4
    assert setting_is_kept == "True"
    assert result.stderr == ""
