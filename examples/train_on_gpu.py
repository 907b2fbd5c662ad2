"""Train on a GPU inside async code, and score a part that was held back; on a CPU where there is no GPU.

    python examples/train_on_gpu.py FOLDER [--device cuda:1] [--epochs 2] [--batch-size 64]
    python examples/train_on_gpu.py --smoke

FOLDER holds a folder of pictures for each class. ``--smoke`` makes a tiny one; that takes a few seconds.

What it shows:

- Pictures are decoded straight into page-locked batches, which ``to_device`` copies without staging, while
  the network works on earlier ones. What is not for the GPU, the paths, stays as it is.
- Augmentation on the device, as a stage below ``to_device``.
- A training loop that waits for the device once an epoch: losses stay there until then.
- Scoring by ``inference``, whose results ``to_host`` brings back.
- The same program without a GPU: only the name of the device is another one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from spdl_async import Pipeline, PipelineBuilder
from spdl_async.device import inference, pinned_empty
from spdl_async.io import ImageBatcher

SMOKE_COLOURS = {"blue": (60, 60, 200), "green": (60, 200, 60), "red": (200, 60, 60)}


class Sample(NamedTuple):
    """A picture, its class and its path; of a batch, the first two as tensors."""

    image: Any
    label: Any
    path: Any


class Pictures:
    """The pictures of a folder of folders, shuffled anew for each epoch."""

    def __init__(self, samples: list[Sample], *, shuffled: bool) -> None:
        self._samples = samples
        self._shuffled = shuffled
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Hear the number of the pass that comes."""
        self._epoch = epoch

    def __iter__(self) -> Any:
        samples = list(self._samples)
        if self._shuffled:
            random.Random(self._epoch).shuffle(samples)
        return iter(samples)


def find(folder: Path) -> tuple[list[str], list[Sample]]:
    """Return the names of the classes, and a sample for each picture."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    files = [
        (label, path) for label, name in enumerate(classes) for path in (folder / name).iterdir()
    ]
    return classes, [Sample(path, label, str(path)) for label, path in sorted(files)]


def batches(
    samples: list[Sample], device: str, *, size: int, batch_size: int, threads: int, train: bool
) -> PipelineBuilder[Any]:
    """Describe the way from paths to batches on the device."""
    batcher = ImageBatcher(batch_size, size=size, field="image", allocate=pinned_empty)
    return (
        PipelineBuilder()
        .add_source(Pictures(samples, shuffled=train), name="pictures")
        .apply(
            batcher.stages(
                concurrency=threads, drop_last=train, max_failures=Fraction(1, 10), on_error="skip"
            )
        )
        .to_device(device, only=("image", "label"))
        .pipe(augmented if train else scaled)
    )


def scaled(batch: Any) -> Sample:
    """Make floats of a uint8 batch of shape (n, height, width, 3): on the device, where it is quick."""
    return Sample(batch[0].permute(0, 3, 1, 2).float() / 127.5 - 1.0, batch[1], batch[2])


def augmented(batch: Any) -> Sample:
    """Scale, and mirror each second picture, by chance; nothing here waits for the device."""
    images, labels, paths = scaled(batch)
    mirrored = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return Sample(torch.where(mirrored, images.flip(3), images), labels, paths)


class Trainer:
    """A network and its optimizer."""

    def __init__(self, classes: int, device: str) -> None:
        self.network = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, classes),
        ).to(device)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=5e-3)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Queue a step of training; return its loss, which is on the device and not there yet."""
        loss = functional.cross_entropy(self.network(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.detach()


async def train(trainer: Trainer, training: Pipeline[Sample], epochs: int) -> None:
    """Train for some epochs; the loop stays free for whatever else the program does on it."""
    async with training.epochs(epochs) as runs:
        async for run in runs:
            trainer.network.train()
            losses: list[Tensor] = []
            async for images, labels, _ in run:
                losses.append(await asyncio.to_thread(trainer.step, images, labels))
            mean = torch.stack(losses).mean().item()  # the one wait for the device
            print(f"epoch {run.epoch}: {len(losses)} batches, mean loss {mean:.3f}")
    print(run.statistics())
    for failure in run.failures:
        print(f"skipped: {failure.summary()}")


async def score(trainer: Trainer, held_back: PipelineBuilder[Any], classes: list[str]) -> None:
    """Score what was held back; the results come back to the host."""

    def forward(network: nn.Module, batch: Any) -> dict[str, Any]:
        images, labels, paths = batch
        return {"scores": network(images).softmax(1), "labels": labels, "paths": paths}

    right = 0
    seen = 0
    last = ""
    async with (
        held_back.pipe(inference(trainer.network, call=forward)).to_host().build().run() as run
    ):
        async for batch in run:
            found = batch["scores"].argmax(1)
            right += int((found == batch["labels"]).sum())
            seen += len(found)
            last = f"{Path(batch['paths'][-1]).name} is {classes[int(found[-1])]}"
    print(f"held back: {right} of {seen} right; {last}")


def make_smoke_folder(folder: Path, *, count: int = 100) -> Path:
    """Make pictures whose colour tells their class, and a damaged file."""
    noise = np.random.default_rng(0)
    for number in range(count):
        name, colour = list(SMOKE_COLOURS.items())[number % len(SMOKE_COLOURS)]
        pixels = np.clip(np.array(colour) + noise.integers(-50, 50, (60, 80, 3)), 0, 255)
        path = folder / name / f"{number:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    (folder / "red" / "broken.jpg").write_bytes(b"no picture")
    return folder


def main() -> None:
    """Read the options, train and score."""
    parser = argparse.ArgumentParser(description="Train on a folder of pictures for each class.")
    parser.add_argument("folder", type=Path, nargs="?", help="a folder of folders")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=96, help="height and width in pixels")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--smoke", action="store_true", help="train on a few made-up pictures")
    options = parser.parse_args()
    if options.folder is None and not options.smoke:
        parser.error("give a FOLDER, or --smoke")
    with tempfile.TemporaryDirectory() as made:
        classes, samples = find(make_smoke_folder(Path(made)) if options.smoke else options.folder)
        size, batch_size = (32, 8) if options.smoke else (options.size, options.batch_size)
        ways = [
            batches(
                part,
                options.device,
                size=size,
                batch_size=batch_size,
                threads=options.threads,
                train=training,
            )
            for part, training in (
                ([s for n, s in enumerate(samples) if n % 10 != 5], True),
                (samples[5::10], False),
            )
        ]
        print(f"on {options.device}: {len(samples)} pictures, classes {', '.join(classes)}")
        trainer = Trainer(len(classes), options.device)
        asyncio.run(train(trainer, ways[0].build(name="training"), options.epochs))
        asyncio.run(score(trainer, ways[1], classes))


if __name__ == "__main__":
    main()
