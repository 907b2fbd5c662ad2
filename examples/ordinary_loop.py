"""Compute the mean and the standard deviation of the colours of your pictures, in ordinary code.

    python examples/ordinary_loop.py FOLDER [--size 224] [--batch-size 32]
    python examples/ordinary_loop.py --smoke

These six numbers are what pictures are normalized with before training. ``--smoke`` makes a few
pictures in a temporary folder and takes a few seconds.

What it shows:

- ``for batch in pipeline``: a plain loop, no ``async`` anywhere. The stages work in the background,
  on a loop and threads of the library's own.
- The same pipeline run twice, as the deviation needs the mean: every loop is a new pass.
- Pictures of any format; what cannot be read is skipped, counted, and listed at the end, which is
  what the handle of the second pass is for.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from spdl_async import Pipeline, PipelineBuilder
from spdl_async.collate import collate
from spdl_async.io import read_image

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


def find_pictures(folder: Path) -> list[Path]:
    """List the pictures below a folder, by their names."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS)


def build(paths: list[Path], *, size: int, batch_size: int, threads: int) -> Pipeline[Tensor]:
    """Describe the loading: batches of shape (batch, size, size, 3), uint8."""
    return (
        PipelineBuilder()
        .add_source(paths)
        .pipe(partial(read_image, size=size), concurrency=threads, on_error="skip")
        .aggregate(batch_size)
        .pipe(collate)
        .build(name="colours")
    )


def measure(pipeline: Pipeline[Tensor]) -> None:
    """Make two passes, and print what they found."""
    count = 0
    sums = torch.zeros(3, dtype=torch.float64)
    for images in pipeline:
        count += images[..., 0].numel()
        sums += images.double().sum(dim=(0, 1, 2))
    mean = sums / max(1, count)

    squares = torch.zeros(3, dtype=torch.float64)
    with pipeline.run_sync() as run:
        for images in run:
            squares += (images.double() - mean).square().sum(dim=(0, 1, 2))
    deviation = (squares / max(1, count)).sqrt()

    print("mean     ", " ".join(f"{value / 255:.4f}" for value in mean.tolist()))
    print("deviation", " ".join(f"{value / 255:.4f}" for value in deviation.tolist()))
    print(run.statistics())
    for failure in run.failures:
        print(f"skipped: {failure.message}")


def make_smoke_pictures(folder: Path) -> None:
    """Make a few grey and coloured pictures in two formats, and a file that is none."""
    random = np.random.default_rng(0)
    for number in range(24):
        shape = (90, 120) if number % 6 == 0 else (90, 120, 3)
        pixels = random.integers(0, 256, shape, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.{'png' if number % 2 else 'jpg'}")
    (folder / "broken.jpg").write_bytes(b"not a picture")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description="Mean and deviation of the colours of pictures.")
    parser.add_argument("folder", type=Path, nargs="?", help="pictures, also in sub-folders")
    parser.add_argument("--size", type=int, default=224, help="height and width in pixels")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--smoke", action="store_true", help="measure a few made-up pictures")
    options = parser.parse_args()
    if options.folder is None and not options.smoke:
        parser.error("give a FOLDER, or --smoke")
    with tempfile.TemporaryDirectory() as made:
        if options.smoke:
            make_smoke_pictures(Path(made))
        paths = find_pictures(Path(made) if options.smoke else options.folder)
        if not paths:
            parser.error(f"there is no picture below {options.folder}")
        measure(
            build(paths, size=options.size, batch_size=options.batch_size, threads=options.threads)
        )


if __name__ == "__main__":
    main()
