"""Pictures to decode: synthetic JPEG files with the spectrum of photos."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def photo(rng: np.random.Generator, width: int, height: int, quality: int = 94) -> bytes:
    """Make one JPEG whose detail falls off with frequency as in photos.

    Noise of octaves 256, 128, … 2 pixels apart, each enlarged smoothly and weaker than the one
    before, and a little sensor noise. The size of the file, which is what the entropy decoder
    works on, is near that of ImageNet's: about 80 KB at 500x375.
    """
    total = np.zeros((height, width, 3), np.float32)
    cell, weight = 256, 40.0
    while cell >= 2:
        small = rng.normal(0.0, 1.0, (height // cell + 2, width // cell + 2, 3)).astype(np.float32)
        small -= small.mean(axis=2, keepdims=True) * 0.3
        for channel in range(3):
            plane = Image.fromarray(small[:, :, channel])
            big = plane.resize((width, height), Image.Resampling.BICUBIC)
            total[:, :, channel] += weight * np.asarray(big)
        cell, weight = cell // 2, weight * 0.82
    total += 128.0 + rng.normal(0.0, 3.0, (height, width, 1)).astype(np.float32)
    stream = io.BytesIO()
    Image.fromarray(total.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def make(
    folder: Path, *, count: int, width: int, height: int, seed: int = 0, quality: int = 94
) -> list[str]:
    """Write `count` pictures into `folder` and give their paths."""
    rng = np.random.default_rng(seed)
    paths = [folder / f"{width}x{height}-{number:04d}.jpg" for number in range(count)]
    for path in paths:
        path.write_bytes(photo(rng, width, height, quality))
    return [str(path) for path in paths]


def find(folder: Path) -> list[str]:
    """Give a folder's JPEG files, at any depth, sorted."""
    suffixes = {".jpg", ".jpeg"}
    return sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in suffixes)
