"""The demo: pictures → threads that read, decode and resize → batches → device → training.

It is what a user's own program looks like, on the public API only: :func:`build_pipeline`
describes the work, :func:`train_epoch` consumes one pass of it.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from spdl_async import Pipeline, PipelineBuilder
from spdl_async._demo.errors import DemoError, UsageError
from spdl_async._demo.folder import Picture, PictureFolder, find_pictures
from spdl_async._demo.model import Scores, Trainer
from spdl_async._demo.photos import default_cache_folder, make_photos
from spdl_async._demo.progress import ProgressBar
from spdl_async._limits import usable_cores
from spdl_async.collate import collate
from spdl_async.errors import SpdlAsyncError
from spdl_async.io import read_image

if TYPE_CHECKING:
    from spdl_async.statistics import FailureRecord, RunStatistics

LISTED_FAILURES = 20
DECODE = "read+decode+resize"


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What ``spdl-async demo`` was asked for.

    Attributes:
        folder: the pictures; None for the demo's own photos, which are made once.
        size: height and width of the resized pictures, in pixels.
        batch_size: pictures in a batch.
        threads: concurrent decodes; None for as many as there are usable cores.
        epochs: passes over the pictures.
        device: ``auto``, or a device as torch names it.
    """

    folder: Path | None
    size: int
    batch_size: int
    threads: int | None
    epochs: int
    device: str


class Sample(NamedTuple):
    """A picture and its class; after collate the same of a batch, as tensors."""

    image: Any
    label: Any


@dataclass(frozen=True, kw_only=True)
class EpochReport:
    """What is left of a pass once it is over."""

    scores: Scores
    statistics: RunStatistics
    failures: Sequence[FailureRecord]


def run_demo(options: DemoOptions) -> None:
    """Train on the pictures and print what the pipeline did.

    Raises:
        UsageError: no such folder or device, or no picture in the folder.
        DemoError: the run failed: no picture is readable, or memory ran out.
    """
    device = choose_device(options.device)
    folder = find_pictures(options.folder or prepare_photos())
    threads = options.threads or usable_cores()
    policy = os.environ.get("OMP_WAIT_POLICY")
    waiting = f" (OMP_WAIT_POLICY={policy})" if policy and device.type == "cpu" else ""
    _say(
        f"{_count(len(folder.pictures), 'picture', 'pictures')}, "
        f"{_count(len(folder.classes), 'class', 'classes')}, "
        f"from {folder.root}; {options.size}x{options.size}, batches of {options.batch_size}, "
        f"{_count(threads, 'thread', 'threads')}, device {device}{waiting}"
    )
    if len(folder.classes) == 1:
        _say("One class: there is nothing to tell apart, so only the speed means something.")
    for problem in folder.problems:
        _say(f"Left out: {problem}.")
    try:
        with warnings.catch_warnings():
            # Pillow's remarks on odd files would tear the progress line apart.
            warnings.filterwarnings("ignore", module=r"PIL\.")
            _train(options, folder, threads, device)
    except BrokenPipeError:
        raise  # nobody reads our output any more: no failure of the run
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise DemoError(f"out of memory; take a smaller --batch-size or --size ({error})") from None
    except (SpdlAsyncError, OSError) as error:
        raise DemoError(f"the run failed: {error}") from error


def choose_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is CUDA where there is some, else the CPU.

    Raises:
        UsageError: torch knows no such device, or cannot use it here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device {name}: torch knows no such device; take cpu or cuda") from None
    try:
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UsageError(f"--device {name}: {reason}; {_other_device(device)}") from None
    return device


def _other_device(device: torch.device) -> str:
    """Say what to do where torch cannot use a device."""
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if count:
        return f"there are {count} CUDA devices, from cuda:0; or take --device cpu"
    if device.type == "cuda" and torch.version.cuda is None:
        return "take --device cpu, or install a torch that is built for CUDA"
    if device.type == "cuda":
        return "take --device cpu; spdl-async doctor says what is wrong with CUDA here"
    return "take --device cpu or cuda"


def prepare_photos() -> Path:
    """Return the folder of the demo's own photos, which are made on the first call.

    Raises:
        DemoError: they cannot be written.
    """
    bar: ProgressBar | None = None
    with contextlib.ExitStack() as shown:

        def show(_done: int, count: int) -> None:
            nonlocal bar
            if bar is None:
                _say(f"Making the data set once: {count} photos in {folder}")
                bar = shown.enter_context(ProgressBar("photos", total=count, unit="photos"))
            bar.update(1)

        try:
            folder = default_cache_folder()
            return make_photos(folder, progress=show)
        except (OSError, RuntimeError) as error:
            raise DemoError(f"cannot make the photos: {error}; give a FOLDER instead") from error


def build_pipeline(
    pictures: Sequence[Picture], *, size: int, batch_size: int, threads: int, device: torch.device
) -> Pipeline[Sample]:
    """Describe the work; nothing starts before the pipeline is run.

    A picture that cannot be read or decoded is skipped and counted: real folders have some.
    """
    return (
        PipelineBuilder()
        .add_source(pictures)
        .pipe(partial(load, size=size), concurrency=threads, on_error="skip", name=DECODE)
        .aggregate(batch_size)
        .pipe(collate)
        .pipe(partial(move, device=device), name=f"to {device}")
        .build(name="demo")
    )


def load(picture: Picture, *, size: int) -> Sample:
    """Read, decode and resize one picture, in one go: three hops would cost more than they hide."""
    return Sample(read_image(picture.path, size=size), picture.label)


def move(batch: Sample, *, device: torch.device) -> Sample:
    """Copy a batch to the device."""
    return Sample(batch.image.to(device), batch.label.to(device))


def train_epoch(
    pipeline: Pipeline[Sample], trainer: Trainer, bar: ProgressBar, *, epoch: int
) -> EpochReport:
    """Consume one pass of the pipeline, a training step a batch.

    Raises:
        DemoError: not one picture could be read.
    """
    run = pipeline.run_sync(epoch=epoch)
    try:
        with run, bar:
            for images, labels in run:
                trainer.step(images, labels)
                bar.update(len(labels))
            scores = trainer.finish_epoch()
            bar.finish(_describe(scores))
    except (SpdlAsyncError, OSError) as error:
        decode = run.statistics().stage(DECODE)
        if decode.failed and not decode.items_out:
            what = (
                "the only picture could not be read"
                if decode.failed == 1
                else f"none of the {decode.failed:,} pictures could be read; one of them"
            )
            reason = run.failures[0].message.splitlines()[0]
            raise DemoError(f"{what}: {reason}") from error
        raise
    return EpochReport(scores=scores, statistics=run.statistics(), failures=run.failures)


def _train(options: DemoOptions, folder: PictureFolder, threads: int, device: torch.device) -> None:
    order = list(folder.pictures)
    pipeline = build_pipeline(
        order, size=options.size, batch_size=options.batch_size, threads=threads, device=device
    )
    trainer = Trainer(len(folder.classes), device)
    batches = math.ceil(len(order) / options.batch_size)
    for epoch in range(1, options.epochs + 1):
        # The pipeline reads the list anew in every pass, so each epoch sees an order of its own.
        random.Random(epoch).shuffle(order)
        bar = ProgressBar(f"epoch {epoch}/{options.epochs}", total=batches)
        report = train_epoch(pipeline, trainer, bar, epoch=epoch)
    _say(f"\nThe last epoch, stage by stage:\n{report.statistics}\n")
    if trainer.untrained is not None:
        _say(f"before training  {_describe(trainer.untrained)} (first batch)")
    _say(f"last epoch       {_describe(report.scores)} (mean)")
    _say(describe_failures(report, order, folder.root), end="")


def describe_failures(report: EpochReport, order: Sequence[Picture], root: Path) -> str:
    """List the pictures of a pass that were skipped, each with the reason; empty if none was."""
    failed = report.statistics.stage(DECODE).failed
    if not failed:
        return ""
    lines = [f"\n{failed:,} of {len(order):,} pictures could not be read and were skipped:"]
    for record in sorted(report.failures, key=lambda it: order[it.index].path)[:LISTED_FAILURES]:
        path = order[record.index].path
        reason = record.message.removeprefix(f"{path}: ") or record.error
        lines.append(f"  {Path(path).relative_to(root)}: {reason.splitlines()[0]}")
    if failed > LISTED_FAILURES:
        lines.append(f"  … and {failed - LISTED_FAILURES:,} more")
    return "\n".join(lines) + "\n"


def _describe(scores: Scores) -> str:
    return f"loss {scores.loss:.3f}  accuracy {scores.accuracy:.0%}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _say(text: str, end: str = "\n") -> None:
    # File names may hold bytes that are no text (PEP 383), and not every terminal has every
    # character; neither is a reason to fail.
    encoding = sys.stdout.encoding or "utf-8"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    # Flushed, so that it comes before the progress that standard error shows at once.
    print(shown, end=end, flush=True)
