"""10,000 mutated pictures: decode_image and image_info raise DecodeError or return, and nothing else."""

from __future__ import annotations

import collections
import contextlib
import random
import resource
import struct
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

from PIL import Image
from sample_pictures import encode, exif, photo

from spdl_async.errors import DecodeError
from spdl_async.io import decode_frames, decode_image, image_info

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SMALL = photo(24, 30)
FRAMES = [Image.new("RGB", (16, 12), (n * 80, 20, 7)) for n in range(3)]
SEEDS = [
    encode(SMALL, quality=80, exif=exif(6)),
    encode(SMALL, progressive=True),
    encode(SMALL.convert("CMYK")),
    encode(SMALL.convert("L"), restart_marker_rows=1),
    encode(SMALL, "PNG", exif=exif(3)),
    encode(SMALL.quantize(20), "PNG", transparency=3),
    encode(FRAMES[0], "PNG", save_all=True, append_images=FRAMES[1:]),
    encode(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]),
    encode(FRAMES[0], "WEBP", save_all=True, append_images=FRAMES[1:]),
    encode(SMALL, "WEBP"),
    encode(SMALL, "BMP"),
    encode(SMALL, "TIFF"),
    encode(SMALL, "TIFF", compression="tiff_lzw"),
    encode(SMALL, "TGA"),
    encode(SMALL, "PPM"),
]
if "AVIF" in Image.SAVE:
    SEEDS.append(encode(SMALL, "AVIF"))
SPECIAL = (0, 1, 0x7F, 0x80, 0xFF)


def mutated(rng: random.Random) -> bytes:
    """Change, cut, double or splice a picture; most of it near the beginning, where headers are."""
    data = bytearray(rng.choice(SEEDS))
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        reach = len(data) if rng.random() < 0.4 else min(len(data), 120)
        at, kind = rng.randrange(max(1, reach)), rng.random()
        if kind < 0.4:
            data[at : at + 1] = bytes([rng.choice((*SPECIAL, rng.randrange(256)))])
        elif kind < 0.6:
            number = rng.choice((0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, rng.randrange(2**32)))
            data[at : at + 4] = struct.pack(rng.choice("<>") + "I", number)
        elif kind < 0.75:
            del data[at : at + rng.randrange(1, 40)]
        elif kind < 0.9:
            data[at:at] = data[rng.randrange(len(data) or 1) :][: rng.randrange(1, 60)]
        else:
            del data[max(4, rng.randrange(len(data) or 1)) :]
    return bytes(data)


def outcome(data: bytes, number: int) -> str:
    """Do one of everything with it; raise what is neither a picture nor a DecodeError."""
    options: Any = {
        "mode": ("RGB", "L", "RGBA", "unchanged")[number % 4],
        "size": None if number % 3 else (9, 13),
        "fit": ("stretch", "cover", "contain")[number % 5 % 3],
        "damaged": "error" if number % 2 else "tolerate",
        "max_pixels": 1_000_000,
    }
    with contextlib.suppress(DecodeError):
        image_info(data)
    if number % 10 == 0:
        with contextlib.suppress(DecodeError):
            decode_frames(data, max_pixels=1_000_000)
    try:
        pixels = decode_image(data, **options)
    except DecodeError as error:
        return "error" if str(error) else "no message"
    return "picture" if pixels.size else "empty"


@pytest.mark.timeout(55)
def test_mutated_pictures_give_a_picture_or_a_decode_error() -> None:
    rng = random.Random(4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen = collections.Counter(outcome(mutated(rng), number) for number in range(10_000))
    assert set(seen) == {"picture", "error"}
    assert min(seen.values()) > 2000, seen
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    unit = 1 if sys.platform == "darwin" else 1024
    assert grown * unit < 200e6, "a header made it allocate"
