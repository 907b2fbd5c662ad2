"""Train a small classifier of sounds, in ordinary code.

    python examples/audio_classification.py FOLDER [--epochs 2] [--seconds 1.0]
    python examples/audio_classification.py --smoke

FOLDER has one folder for each class, with WAV, FLAC, MP3 or Ogg files in it. ``--smoke`` makes a few
tones of three kinds of waves in a temporary folder, trains 2 epochs on them and takes a few seconds.

What it shows:

- ``read_audio`` in threads: from files of any rate and number of channels to clips of one shape,
  reading no more of a file than the clip.
- A stage of numpy behind it, fused into the same hop to a thread: clips become spectrograms.
- ``epochs(2)``: the second pass begins while the last batches of the first are trained on.
- A damaged file is skipped, counted, and named at the end.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from spdl_async import Pipeline, PipelineBuilder
from spdl_async.collate import collate
from spdl_async.io import read_audio

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXTENSIONS = frozenset({".flac", ".mp3", ".ogg", ".opus", ".wav"})
RATE = 16_000
WINDOW, STEP = 512, 256


@dataclass(frozen=True)
class Example:
    """A file and the number of its class."""

    path: Path
    label: int


def find_examples(folder: Path) -> tuple[list[Example], list[str]]:
    """List the files below a folder, and the names of the classes."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    return [
        Example(path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in EXTENSIONS
    ], classes


def load(example: Example, *, seconds: float) -> dict[str, np.ndarray | int]:
    """Read the start of a file as mono at 16 kHz; a shorter one is filled up with silence."""
    samples, _ = read_audio(example.path, sample_rate=RATE, channels=1, duration=seconds)
    clip = np.zeros(round(seconds * RATE), np.float32)
    clip[: samples.shape[1]] = samples[0]
    return {"clip": clip, "label": example.label}


def spectrogram(item: dict[str, np.ndarray | int]) -> dict[str, np.ndarray | int]:
    """Replace the clip by the logarithm of its power, of shape (frequencies, times)."""
    clip = item["clip"]
    assert isinstance(clip, np.ndarray)
    windows = np.lib.stride_tricks.sliding_window_view(clip, WINDOW)[::STEP]
    power = np.abs(np.fft.rfft(windows * np.hanning(WINDOW).astype(np.float32))) ** 2
    return {"picture": np.log1p(power.T).astype(np.float32), "label": item["label"]}


def build(
    examples: list[Example], *, seconds: float, batch_size: int, threads: int
) -> Pipeline[dict[str, Tensor]]:
    """Describe the loading: batches of pictures of sounds, and of labels."""
    return (
        PipelineBuilder()
        .add_source(examples)
        .shuffle(256, seed=0)
        .pipe(partial(load, seconds=seconds), name="load", concurrency=threads, on_error="skip")
        .pipe(spectrogram, concurrency=threads)
        .aggregate(batch_size)
        .pipe(collate)
        .build(name="sounds")
    )


def make_model(classes: int) -> nn.Module:
    """Make a small convolution over time."""
    return nn.Sequential(
        nn.Conv1d(WINDOW // 2 + 1, 32, kernel_size=3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def train(pipeline: Pipeline[dict[str, Tensor]], model: nn.Module, *, epochs: int) -> None:
    """Train, and print the loss and the share of right answers of each epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with pipeline.epochs(epochs) as passes:
        for number, run in enumerate(passes):
            total, right, seen = 0.0, 0, 0
            for batch in run:
                answers = model(batch["picture"])
                loss = nn.functional.cross_entropy(answers, batch["label"])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                seen += len(answers)
                total += loss.item() * len(answers)
                right += int((answers.argmax(1) == batch["label"]).sum())
            print(f"epoch {number}: {right} of {seen} right, mean loss {total / max(1, seen):.3f}")
    print(run.statistics())
    for failure in run.failures:
        print(f"skipped: {failure.message}")


def make_smoke_sounds(folder: Path) -> None:
    """Make tones of three kinds of waves, in two formats and at two rates; and a damaged file."""
    import soundfile

    random = np.random.default_rng(0)
    waves: dict[str, Callable[[NDArray[np.floating]], NDArray[np.floating]]] = {
        "sine": np.sin,
        "square": lambda phase: np.sign(np.sin(phase)),
        "noise": lambda phase: random.uniform(-1, 1, phase.shape),
    }
    for name, wave in waves.items():
        (folder / name).mkdir()
        for number in range(24):
            rate = 16_000 if number % 3 else 22_050
            phase = np.arange(rate) * (2 * np.pi * random.uniform(200, 800) / rate)
            path = folder / name / f"{number:02}.{'flac' if number % 2 else 'wav'}"
            soundfile.write(path, 0.3 * wave(phase), rate)
    whole = (folder / "sine" / "01.flac").read_bytes()
    (folder / "sine" / "broken.flac").write_bytes(whole[: len(whole) // 2])


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description="Train a small classifier of sounds.")
    parser.add_argument("folder", type=Path, nargs="?", help="one folder of files for each class")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a clip")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--smoke", action="store_true", help="train on a few made-up tones")
    options = parser.parse_args()
    if options.folder is None and not options.smoke:
        parser.error("give a FOLDER, or --smoke")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as made:
        if options.smoke:
            make_smoke_sounds(Path(made))
        examples, classes = find_examples(Path(made) if options.smoke else options.folder)
        if not examples:
            parser.error(f"there is no sound below the folders in {options.folder}")
        print(f"{len(examples)} files of {len(classes)} classes: {', '.join(classes)}")
        pipeline = build(
            examples,
            seconds=options.seconds,
            batch_size=options.batch_size,
            threads=options.threads,
        )
        train(pipeline, make_model(len(classes)), epochs=options.epochs)


if __name__ == "__main__":
    main()
