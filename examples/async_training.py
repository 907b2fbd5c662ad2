"""Train a small network inside async code, on pictures that a manifest lists.

    python examples/async_training.py MANIFEST --classes 10 [--epochs 2] [--batch-size 32]
    python examples/async_training.py --smoke

A manifest is a text file with a line for each picture: its path, a tab, and the number of its class.
``--smoke`` makes a tiny one, with its pictures, in a temporary folder; that takes a few seconds.

What it shows:

- An async source. The manifest is read piece by piece with aiofiles, so it may be long, and training
  starts with its first lines. As the source is async, the stages run on the caller's loop.
- Reading and decoding a picture in one plain function, in threads. A damaged file is skipped and
  counted; the run ends where more than one in ten are.
- The training step in a thread, ``await asyncio.to_thread(step, …)``. So the loop stays free: the
  stages go on with the next batches, and so does whatever else the program does on its loop, here a
  task that reports once in a while.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiofiles
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from spdl_async import Pipeline, PipelineBuilder, PipelineRun
from spdl_async.collate import collate
from spdl_async.io import read_image

SMOKE_COLOURS = ((200, 60, 60), (60, 200, 60), (60, 60, 200))
REPORT_SECONDS = 1.0


class Entry(NamedTuple):
    """A line of the manifest."""

    path: Path
    label: int


class Sample(NamedTuple):
    """A picture, uint8 of shape (height, width, 3), and its class; of a batch, both as tensors."""

    image: Any
    label: Any


async def read_manifest(manifest: Path) -> AsyncIterator[Entry]:
    """Yield the entries of a manifest as its lines come in."""
    async with aiofiles.open(manifest, encoding="utf-8") as lines:
        async for line in lines:
            path, _, label = line.rstrip("\n").rpartition("\t")
            yield Entry(manifest.parent / path, int(label))


def load(entry: Entry, *, size: int) -> Sample:
    """Read and decode one picture: open, read, close and decode are one call in one thread."""
    return Sample(read_image(entry.path, size=size), entry.label)


def build(manifest: Path, *, size: int, batch_size: int, threads: int) -> Pipeline[Sample]:
    """Describe the loading; nothing starts before the pipeline is run."""
    return (
        PipelineBuilder()
        .add_source(partial(read_manifest, manifest), name="manifest")
        .pipe(partial(load, size=size), concurrency=threads, max_failures=Fraction(1, 10))
        .aggregate(batch_size)
        .pipe(collate)
        .build(name="training")
    )


class Trainer:
    """A network and its optimizer; ``step`` is ordinary blocking code."""

    def __init__(self, classes: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, classes),
        ).to(self.device)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=3e-3)

    def step(self, images: Tensor, labels: Tensor) -> float:
        """Train on one batch; return its loss."""
        scaled = images.to(self.device).permute(0, 3, 1, 2).float() / 127.5 - 1.0
        loss = functional.cross_entropy(self.network(scaled), labels.to(self.device))
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.item()


async def report(run: PipelineRun[Sample]) -> None:
    """Say now and then how far the run is; proof that the loop is free."""
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        print(f"  {run.statistics().delivered} batches so far", flush=True)


async def train(pipeline: Pipeline[Sample], *, classes: int, epochs: int) -> None:
    """Train for some epochs, each of them one pass of the pipeline."""
    trainer = Trainer(classes)
    async with pipeline.epochs(epochs) as runs:  # the next begins while this one is consumed
        async for run in runs:
            losses: list[float] = []
            reporter = asyncio.create_task(report(run))
            try:
                async for images, labels in run:
                    losses.append(await asyncio.to_thread(trainer.step, images, labels))
            finally:
                reporter.cancel()
            mean = sum(losses) / max(1, len(losses))
            print(f"epoch {run.epoch}: {len(losses)} batches, mean loss {mean:.3f}")
    print(run.statistics())
    for failure in run.failures:
        print(f"skipped: {failure.summary()}")


def make_smoke_manifest(folder: Path, *, count: int = 60) -> Path:
    """Make pictures whose colour tells their class, one damaged file, and their manifest."""
    random = np.random.default_rng(0)
    lines: list[str] = []
    for number in range(count):
        label = number % len(SMOKE_COLOURS)
        noise = random.integers(-50, 50, (120, 160, 3))
        pixels = np.clip(np.array(SMOKE_COLOURS[label]) + noise, 0, 255).astype(np.uint8)
        path = folder / f"{number:03}.jpg"
        Image.fromarray(pixels).save(path)
        lines.append(f"{path.name}\t{label}\n")
    broken = folder / f"{count - 1:03}.jpg"
    broken.write_bytes(broken.read_bytes()[:500])
    manifest = folder / "manifest.tsv"
    manifest.write_text("".join(lines), encoding="utf-8")
    return manifest


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description="Train on the pictures of a manifest.")
    parser.add_argument("manifest", type=Path, nargs="?", help="lines of path, tab, class")
    parser.add_argument("--classes", type=int, default=10, help="how many classes there are")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=96, help="height and width in pixels")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--smoke", action="store_true", help="train on a few made-up pictures")
    options = parser.parse_args()
    if options.manifest is None and not options.smoke:
        parser.error("give a MANIFEST, or --smoke")
    with tempfile.TemporaryDirectory() as folder:
        manifest = make_smoke_manifest(Path(folder)) if options.smoke else options.manifest
        batch_size = 8 if options.smoke else options.batch_size
        pipeline = build(
            manifest, size=options.size, batch_size=batch_size, threads=options.threads
        )
        classes = len(SMOKE_COLOURS) if options.smoke else options.classes
        asyncio.run(train(pipeline, classes=classes, epochs=options.epochs))


if __name__ == "__main__":
    main()
