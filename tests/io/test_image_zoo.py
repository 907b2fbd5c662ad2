"""Every kind of picture that the issue names, against Pillow: one rule for colours, turns and damage."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

pytest.importorskip("torch")

from PIL import Image, ImageOps
from sample_pictures import JPEGS, by_pillow, encode, exif, photo, psnr

from spdl_async.errors import DecodeError
from spdl_async.io import decode_frames, decode_image, image_info, salvage_image

pytestmark = pytest.mark.torch

ALPHA = photo().convert("L").rotate(180)
RGBA = Image.merge("RGBA", (*photo().split(), ALPHA))
LA = Image.merge("LA", (photo().convert("L"), ALPHA))
PALETTE = photo().quantize(50)


def png(
    width: int, height: int, bits: int, color: int, rows: bytes, *, interlaced: bool = False
) -> bytes:
    """A PNG out of unfiltered rows, each with a zero before it: what Pillow cannot write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, int(interlaced))
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def deep(channels: int) -> tuple[np.ndarray, bytes]:
    """A 16-bit PNG with a ramp over all values, and its values."""
    values = np.linspace(0, 65535, 60 * 80 * channels).astype(np.uint16)
    values = np.random.default_rng(1).permutation(values).reshape(60, 80, channels)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return values, png(80, 60, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], rows)


def deep_tiff(order: str, *, channels: int = 3) -> tuple[np.ndarray, bytes]:
    """An uncompressed 16-bit TIFF, in Intel's ("<") or Motorola's (">") byte order."""
    values, _ = deep(channels)
    data = values.astype(order + "u2").tobytes()
    bits_at = 8 + len(data)
    bits = struct.pack(f"{order}{channels}H", *([16] * channels))
    tags = [(256, 4, 1, 80), (257, 4, 1, 60), (258, 3, channels, bits_at), (259, 3, 1, 1)]
    tags += [(262, 3, 1, 2), (273, 4, 1, 8), (277, 3, 1, channels), (278, 4, 1, 60)]
    tags += [(279, 4, 1, len(data))]
    entries = b"".join(
        struct.pack(f"{order}HHI", *tag[:3])
        + (
            struct.pack(f"{order}HH", tag[3], 0)
            if tag[1:3] == (3, 1)
            else struct.pack(f"{order}I", tag[3])
        )
        for tag in tags
    )
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", bits_at + len(bits))
    return values, start + data + bits + struct.pack(f"{order}H", len(tags)) + entries + bytes(4)


GREYS = {
    bits: png(16, 2, bits, 0, b"\0" + bytes(range(0, 256, 9))[: 2 * bits] + b"\0" + bytes(2 * bits))
    for bits in (1, 2, 4)
}

ZOO: dict[str, bytes] = {
    **{f"jpeg {name}": data for name, data in JPEGS.items()},
    "jpeg 4:2:2": encode(photo(), subsampling=1),
    "jpeg 4:2:0 progressive": encode(photo(), subsampling=2, progressive=True),
    "jpeg from palette": encode(PALETTE.convert("RGB"), quality=30),
    "png rgb": encode(photo(), "PNG"),
    "png rgba": encode(RGBA, "PNG"),
    "png la": encode(LA, "PNG"),
    "png palette": encode(PALETTE, "PNG"),
    "png palette with alphas": encode(PALETTE, "PNG", transparency=bytes(range(0, 250, 5))),
    "png rgb with a transparent color": encode(photo(), "PNG", transparency=(250, 20, 40)),
    **{f"png grey of {bits} bits": data for bits, data in GREYS.items()},
    "webp": encode(photo(), "WEBP", lossless=True),
    "webp rgba": encode(RGBA, "WEBP", lossless=True, exact=True),
    "gif": encode(PALETTE, "GIF"),
    "gif transparent": encode(PALETTE, "GIF", transparency=3),
    "gif in rows": encode(PALETTE, "GIF", interlace=0),
    "bmp": encode(photo(), "BMP"),
    "bmp palette": encode(PALETTE, "BMP"),
    "tiff": encode(photo(), "TIFF"),
    "tiff lzw": encode(photo(), "TIFF", compression="tiff_lzw"),
    "tiff cmyk": encode(photo().convert("CMYK"), "TIFF"),
    "tga": encode(RGBA, "TGA"),
    "ppm": encode(photo(), "PPM"),
    "jpeg 2000": encode(photo(), "JPEG2000"),
}  # fmt: skip
if "AVIF" in Image.SAVE:
    ZOO["avif"] = encode(photo(), "AVIF")


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_agrees_with_pillow(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """JPEG within 44 dB (libjpeg-turbo's builds differ in upsampling), all others exactly."""
    for mode in ("RGB", "L", "RGBA"):
        agrees_with_pillow(name, mode)
    assert capfd.readouterr() == ("", "")


def agrees_with_pillow(name: str, mode: Literal["RGB", "L", "RGBA"]) -> None:
    with Image.open(io.BytesIO(ZOO[name])) as picture:
        if mode != "RGBA":
            picture.load()
            picture.info.pop("transparency", None)
        if mode == "L" and picture.mode == "CMYK":
            picture = picture.convert("RGB")  # type: ignore[assignment]  # no file any more
        expected = np.asarray(picture.convert(mode)).reshape(picture.height, picture.width, -1)
    pixels = decode_image(ZOO[name], mode=mode)
    assert pixels.shape == expected.shape
    assert pixels.dtype == np.uint8
    if name.startswith("jpeg ") and name != "jpeg 2000":
        assert psnr(pixels, expected) > 44
        by_name = decode_image(ZOO[name], mode=mode, backend="pillow")
        assert np.array_equal(by_name, expected)
    else:
        assert np.array_equal(pixels, expected)
    turned = decode_image(ZOO[name], mode=mode, layout="CHW")
    assert np.array_equal(turned, pixels.transpose(2, 0, 1))
    assert turned.flags.c_contiguous


def test_the_header_agrees_with_pillow() -> None:
    for name, data in ZOO.items():
        header_agrees(name, data)


def header_agrees(name: str, data: bytes) -> None:
    info = image_info(data)
    with Image.open(io.BytesIO(data)) as picture:
        assert (info.format, info.width, info.height) == (picture.format, *picture.size), name
        mode = {"1": "L", "RGBX": "RGB"}.get(picture.mode, picture.mode)
        assert info.mode == ("P" if info.format == "GIF" else mode)
        assert info.frames == getattr(picture, "n_frames", 1)
    assert info.orientation == 1


@pytest.mark.parametrize(
    ("kind", "channels"),
    [("png", 1), ("png", 2), ("png", 3), ("png", 4), ("tiff <", 3), ("tiff >", 3)],
)
def test_16_bits_are_kept_or_scaled_and_never_clipped(kind: str, channels: int) -> None:
    values, data = deep(channels) if kind == "png" else deep_tiff(kind[-1])
    assert image_info(data).bits == 16
    assert np.array_equal(decode_image(data, mode="unchanged"), values)
    assert decode_image(data, mode="unchanged").dtype == np.uint16
    colors = values[:, :, : 1 if channels < 3 else 3]
    assert np.array_equal(decode_image(data), np.broadcast_to(colors >> 8, (60, 80, 3)))
    small = decode_image(data, mode="unchanged", size=(6, 8))
    assert small.dtype == np.uint16
    assert abs(small.mean() - values.mean()) < 2000
    alpha = decode_image(data, mode="RGBA")[:, :, 3]
    assert np.array_equal(
        alpha, values[:, :, -1] >> 8 if channels in (2, 4) else np.full((60, 80), 255)
    )


def test_unchanged_keeps_channels_and_palette_indices() -> None:
    for name, channels in (("png rgb", 3), ("png rgba", 4), ("png la", 2), ("jpeg grey", 1)):
        assert decode_image(ZOO[name], mode="unchanged").shape == (120, 161, channels)
    indices = decode_image(ZOO["png palette"], mode="unchanged")
    assert np.array_equal(indices[:, :, 0], np.asarray(PALETTE))
    smaller = decode_image(ZOO["png palette"], mode="unchanged", size=(50, 70))
    assert set(smaller.ravel()) <= set(indices.ravel()), "indices are never mixed"
    ink = decode_image(JPEGS["cmyk"], mode="unchanged")
    with Image.open(io.BytesIO(JPEGS["cmyk"])) as picture:
        assert np.array_equal(ink, np.asarray(picture))


def test_alpha_weighs_the_colors_when_it_is_resized() -> None:
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:, :4] = (200, 100, 50, 255)  # the other half is transparent black
    small = decode_image(encode(Image.fromarray(pixels), "PNG"), size=(4, 3), mode="RGBA")
    seen = small[small[:, :, 3] > 8]
    assert np.abs(seen[:, :3].astype(int) - (200, 100, 50)).max() <= 4, "no black bleeds in"


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_orientation_can_be_ignored(format: str) -> None:  # noqa: A002
    for orientation in range(1, 9):
        turns_or_not(orientation, format)


def turns_or_not(orientation: int, format: str) -> None:  # noqa: A002
    if format not in Image.SAVE:
        pytest.skip("this Pillow has no AVIF")
    if format == "TIFF":
        data = encode(photo(), format, tiffinfo={274: orientation})
    else:
        data = encode(photo(), format, exif=exif(orientation))
    assert image_info(data).orientation == orientation
    assert (image_info(data).height, image_info(data).width) == (120, 161)
    stored = decode_image(data, exif="ignore")
    assert psnr(stored, np.asarray(photo())) > 30
    assert psnr(decode_image(data), np.asarray(photo_turned(orientation))) > 30
    assert decode_image(data, exif="ignore", size=(20, 30)).shape == (20, 30, 3)


def photo_turned(orientation: int) -> Image.Image:
    picture = photo()
    picture.getexif()[274] = orientation
    return ImageOps.exif_transpose(picture)


@pytest.mark.parametrize(
    "damage",
    [b"", b"\xff" * 40, b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"],
)
def test_a_corrupt_exif_block_is_no_orientation(damage: bytes) -> None:
    block = b"\xff\xe1" + struct.pack(">H", len(damage) + 2) + damage
    data = JPEGS["4:4:4"][:2] + block + JPEGS["4:4:4"][2:]
    assert image_info(data).orientation == 1
    assert np.array_equal(decode_image(data), decode_image(JPEGS["4:4:4"]))


# Fitting


@pytest.mark.parametrize("size", [(60, 60), (40, 90), (90, 40), (33, 35), (300, 200)])
@pytest.mark.parametrize("name", ["jpeg 4:4:4", "png rgb", "webp rgba"])
def test_cover_and_contain_are_those_of_pillow(name: str, size: tuple[int, int]) -> None:
    with Image.open(io.BytesIO(ZOO[name])) as picture:
        whole = picture.convert("RGB")
    filtered = Image.Resampling.BILINEAR
    cover = np.asarray(ImageOps.fit(whole, (size[1], size[0]), filtered))
    # Cut to whole pixels, where Pillow cuts between them: up to half a pixel apart.
    assert psnr(decode_image(ZOO[name], size=size, fit="cover"), cover) > 40
    contain = np.asarray(ImageOps.pad(whole, (size[1], size[0]), filtered, color="black"))
    assert psnr(decode_image(ZOO[name], size=size, fit="contain"), contain) > 44


def test_contain_leaves_the_rest_black_or_transparent() -> None:
    data = encode(Image.new("RGB", (40, 20), "white"), "PNG")
    pixels = decode_image(data, size=(40, 40), fit="contain")
    assert (pixels[10:30] == 255).all()
    assert not pixels[:10].any()
    assert not pixels[30:].any()
    alpha = decode_image(data, size=(40, 40), fit="contain", mode="RGBA", layout="CHW")[3]
    assert (alpha[10:30] == 255).all()
    assert not alpha[:10].any()
    sideways = encode(Image.new("RGB", (40, 20), "white"), "JPEG", exif=exif(6))
    pixels = decode_image(sideways, size=(40, 40), fit="contain")
    assert (pixels[:, 10:30] == 255).all()
    assert not pixels[:, :10].any()


def test_extreme_aspect_ratios_take_no_memory() -> None:
    data = encode(Image.new("RGB", (20000, 1), "white"), "PNG")
    for fit in ("stretch", "cover", "contain"):
        assert decode_image(data, size=64, fit=fit).shape == (64, 64, 3)


# Several pictures in a file


def animation(format: str, count: int = 5, **options: Any) -> bytes:  # noqa: A002
    frames = [Image.new("RGB", (40, 30), (50 * n, 255 - 50 * n, 7)) for n in range(count)]
    return encode(frames[0], format, save_all=True, append_images=frames[1:], **options)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF", "AVIF"])
def test_all_frames_when_asked_for(format: str) -> None:  # noqa: A002
    if format not in Image.SAVE:
        pytest.skip("this Pillow has no AVIF")
    data = animation(format)
    assert image_info(data).frames == 5
    assert decode_image(data).shape == (30, 40, 3), "the first one, in three dimensions"
    frames = decode_frames(data)
    assert frames.shape == (5, 30, 40, 3)
    with Image.open(io.BytesIO(data)) as picture:
        for number in range(5):
            picture.seek(number)
            assert np.array_equal(frames[number], np.asarray(picture.convert("RGB")))
    assert decode_frames(data, max_frames=2, size=10, layout="CHW").shape == (2, 3, 10, 10)
    with pytest.raises(DecodeError, match="5 frames of 40 x 30 pixels"):
        decode_frames(data, max_pixels=5 * 40 * 30 - 1)
    with pytest.raises(DecodeError, match="5 frames of 8,000 x 8,000 pixels: more than max_pixels"):
        decode_frames(data, size=8_000)


@pytest.mark.parametrize("disposal", [1, 2, 3])
def test_gif_frames_of_other_sizes_are_whole_pictures(disposal: int) -> None:
    frames = [Image.new("P", (40, 30), n) for n in range(55)]
    for n, frame in enumerate(frames):
        frame.putpalette([n % 7 * 40, n % 5 * 50, 9] * 256)
        frame.paste(3, (n % 20, n % 10, n % 20 + 8, n % 10 + 9))
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:], disposal=disposal)
    with Image.open(io.BytesIO(data)) as picture:
        count = picture.n_frames  # type: ignore[attr-defined]  # GIFs have it
    assert image_info(data).frames == count
    assert decode_frames(data).shape == (count, 30, 40, 3)


def test_pages_of_different_sizes_need_a_size() -> None:
    pages = [Image.new("RGB", (40, 30)), Image.new("RGB", (20, 30))]
    data = encode(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    with pytest.raises(DecodeError, match=r"different shapes, \(30, 40, 3\) and \(30, 20, 3\)"):
        decode_frames(data)
    assert decode_frames(data, size=16).shape == (2, 16, 16, 3)


# Damage


@pytest.mark.parametrize("share", [0.3, 0.5, 0.99])
@pytest.mark.parametrize(
    "name", ["jpeg 4:2:0", "jpeg progressive", "jpeg cmyk", "png rgb", "bmp", "gif in rows"]
)
def test_what_is_tolerated_is_returned_and_told(
    name: str, share: float, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, cut = decode_image(ZOO[name]), ZOO[name][: int(len(ZOO[name]) * share)]
    with pytest.raises(DecodeError) as refused:
        decode_image(cut)
    pixels = decode_image(cut, damaged="tolerate")
    assert pixels.shape == whole.shape
    top = slice(0, 10) if name != "bmp" else slice(-10, None)  # whose rows begin at the bottom
    assert psnr(pixels[top], whole[top]) > 20, "the beginning is there"
    salvaged = salvage_image(cut)
    assert np.array_equal(salvaged.pixels, pixels)
    assert salvaged.damage == str(refused.value)
    assert salvage_image(ZOO[name]).damage is None
    assert capfd.readouterr() == ("", "")


def test_a_flipped_bit_in_a_png_is_noticed() -> None:
    data = bytearray(ZOO["png rgb"])
    data[len(data) // 2] ^= 4
    with pytest.raises(
        DecodeError, match=r"the checksum of the part at byte [\d,]+ \(IDAT\) is wrong"
    ):
        decode_image(data)
    assert "checksum" in str(salvage_image(data).damage)


def test_nothing_to_salvage_is_an_error() -> None:
    for data in (b"", b"\xff\xd8\xff", b"no picture", JPEGS["4:4:4"][:100]):
        with pytest.raises(DecodeError):
            salvage_image(data)
    with pytest.raises(DecodeError, match=r"WebP|picture"):
        decode_image(encode(photo(), "WEBP")[:1000], damaged="tolerate")


@pytest.mark.parametrize(
    ("marker", "bits", "words"),
    [(0xC1, 12, "12-bit"), (0xC3, 8, "lossless"), (0xCA, 12, "12-bit arithmetic-coded")],
)
def test_unusual_jpegs_are_named(marker: int, bits: int, words: str) -> None:
    data = bytearray(JPEGS["4:4:4"])
    at = data.index(b"\xff\xc0")
    data[at + 1], data[at + 4] = marker, bits
    with pytest.raises(DecodeError, match=words):
        decode_image(data)
    assert image_info(data).bits == bits


def test_a_wrong_extension_does_not_matter(tmp_path: Any) -> None:
    from spdl_async.io import read_image

    for name, data in (
        ("a.jpg", ZOO["png rgb"]),
        ("a.png", JPEGS["4:4:4"]),
        ("a.gif", ZOO["webp"]),
    ):
        (tmp_path / name).write_bytes(data)
        assert np.array_equal(read_image(tmp_path / name), decode_image(data))


@pytest.mark.parametrize("width", [30_000, 2**31 - 1])
def test_a_bomb_is_refused_by_its_header(width: int) -> None:
    bombs = [png(width, 30_000, 8, 2, b"\0")]
    jpeg = bytearray(JPEGS["4:4:4"])
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = struct.pack(">HH", 30_000, min(width, 65_000))
    gif = bytearray(encode(PALETTE, "GIF"))
    gif[6:10] = struct.pack("<HH", min(width, 65_000), 65_000)
    for data in (*bombs, bytes(jpeg), bytes(gif)):
        with pytest.raises(DecodeError, match="more than max_pixels=178,956,970"):
            decode_image(data)
        assert image_info(data).height >= 30_000


def test_pillow_agrees_on_all_orientations_and_sizes_of_a_jpeg_in_cover() -> None:
    data = encode(photo(401, 603), quality=95, exif=exif(6))
    upright = Image.fromarray(by_pillow(data))
    expected = np.asarray(ImageOps.fit(upright, (64, 48), Image.Resampling.BILINEAR))
    assert psnr(decode_image(data, size=(48, 64), fit="cover"), expected) > 28


def test_pictures_of_all_channels_stack_into_one_batch() -> None:
    """Scenario F5: one, three and four channels; sizes that differ are an error that names both."""
    from spdl_async.collate import collate
    from spdl_async.errors import CollateError

    mixed = [
        ZOO[name] for name in ("png rgb", "png rgba", "png la", "jpeg grey", "jpeg cmyk", "gif")
    ]
    assert collate([decode_image(data) for data in mixed]).shape == (6, 120, 161, 3)
    with pytest.raises(CollateError, match=r"samples 0 and 1 .*\(20, 21, 3\)"):
        collate([decode_image(mixed[0], size=20), decode_image(mixed[1], size=(20, 21))])


def test_the_first_pictures_of_a_process_may_be_decoded_in_many_threads(tmp_path: Path) -> None:
    """Pillow loads its plugins at its first picture; nothing is lost when eight threads do so."""
    kinds = ["png rgb", "webp", "gif", "bmp", "tiff", "tga", "ppm", "jpeg 2000"]
    for name in kinds:
        (tmp_path / name).write_bytes(ZOO[name])
    code = """
        import sys, threading
        from spdl_async.io import read_image

        start, shapes = threading.Barrier(16), []
        def work(path):
            start.wait()
            shapes.append(read_image(path).shape)

        threads = [threading.Thread(target=work, args=(path,)) for path in sys.argv[1:] * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(len(shapes), set(shapes))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *(tmp_path / name for name in kinds)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "16 {(120, 161, 3)}\n", done.stderr
