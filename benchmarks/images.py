"""Pictures to batches: `python -m benchmarks.images [--quick] [--folder F] [--threads N] [--cpu] …`.

JPEG files become uint8 batches of shape (32, 224, 224, 3). The reference is what threads can do
without any framework: N threads over one shared iterator, the same read and decode, a plain
`queue.Queue`, and the main thread that stacks. Without `--folder` there are two sets, of 500x375
and of 1600x1200 pixels, made in a temporary folder.
"""

from __future__ import annotations

import argparse
import asyncio
import queue
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks import _photos
from benchmarks._measure import Contestant, Race, Target, machine, missed, run_race, table
from spdl_async import Pipeline, PipelineBuilder
from spdl_async.errors import DecodeError
from spdl_async.io import ImageBatcher, decode_image

Pixels = NDArray[np.uint8]
SIDE = 224
BATCH = 32
BARE = "bare threads, queue.Queue"
SPDL = "SPDL load_image_batch"


@dataclass(frozen=True, kw_only=True)
class Work:
    """One set of pictures and the number of threads or processes that may decode."""

    paths: Sequence[str]
    threads: int
    clock: Callable[[], float] = time.perf_counter

    def rate(self, batches: Iterable[Any]) -> float:
        """Give pictures a second, from the first request to the last batch."""
        started = self.clock()
        taken = sum(len(batch) for batch in batches)
        return self._checked(taken, self.clock() - started)

    async def arate(self, batches: AsyncIterable[Any]) -> float:
        """Do the same in async code."""
        started, taken = self.clock(), 0
        async for batch in batches:
            taken += len(batch)
        return self._checked(taken, self.clock() - started)

    def _checked(self, taken: int, seconds: float) -> float:
        if taken != len(self.paths):
            raise AssertionError(f"{taken} pictures arrived of {len(self.paths)}")
        return taken / seconds


def read(path: str) -> bytes:
    """Read a whole file: one open, read, close."""
    with open(path, "rb") as file:
        return file.read()


def decode(data: bytes) -> Pixels:
    """Decode and resize, as every contestant that does not bring its own decoder."""
    return decode_image(data, size=SIDE)


def load(path: str) -> Pixels:
    """Read and decode in one op."""
    return decode(read(path))


def stack(pictures: list[Pixels]) -> Pixels:
    """Copy the pictures of a batch into one array."""
    return np.stack(pictures)


def _bare_batches(work: Work) -> Iterator[Pixels]:
    """Decode with threads alone; a thread that fails is printed and missed in the count."""
    shared, lock = iter(work.paths), threading.Lock()
    done: queue.Queue[Pixels | None] = queue.Queue(2 * BATCH)

    def worker() -> None:
        try:
            while True:
                with lock:
                    path = next(shared, None)
                if path is None:
                    break
                done.put(load(path))
        finally:
            done.put(None)

    workers = [threading.Thread(target=worker) for _ in range(work.threads)]
    for thread in workers:
        thread.start()
    running, batch = len(workers), list[Pixels]()
    while running:
        picture = done.get()
        if picture is None:
            running -= 1
            continue
        batch.append(picture)
        if len(batch) == BATCH:
            yield stack(batch)
            batch = []
    if batch:
        yield stack(batch)
    for thread in workers:
        thread.join()


def bare(work: Work) -> float:
    """Give the rate of threads without a framework."""
    return work.rate(_bare_batches(work))


def build(work: Work, *, split: bool) -> Pipeline[Pixels]:
    """Build the pipeline; `split` has read and decode as two ops, which are fused into one hop."""
    builder = PipelineBuilder().add_source(work.paths)
    if split:
        pictures = builder.pipe(read, concurrency=work.threads).pipe(
            decode, concurrency=work.threads
        )
    else:
        pictures = builder.pipe(load, concurrency=work.threads)
    return pictures.aggregate(BATCH).pipe(stack).build()


def build_in_place(work: Work) -> Pipeline[Any]:
    """Build the pipeline that decodes into the rows of preallocated batches: nothing is stacked."""
    batcher = ImageBatcher(BATCH, size=SIDE)
    stages = batcher.stages(concurrency=work.threads)
    return PipelineBuilder().add_source(work.paths).apply(stages).build()


def ours_in_place(work: Work) -> float:
    """Give the rate of spdl_async with `ImageBatcher` in ordinary code."""
    with build_in_place(work).run_sync() as run:
        return work.rate(run)


def ours_sync(work: Work, *, split: bool = False) -> float:
    """Give the rate of spdl_async in ordinary code."""
    with build(work, split=split).run_sync() as run:
        return work.rate(run)


async def ours_async(work: Work, loop: Literal["caller", "own"]) -> float:
    """Give the rate of spdl_async in async code."""
    async with build(work, split=False).run(loop=loop) as run:
        return await work.arate(run)


def spdl(work: Work) -> tuple[Callable[[], float] | None, str]:
    """Give SPDL's fast way: `load_image_batch` on lists of paths; or why it cannot run."""
    try:
        import spdl.io
        from spdl.pipeline import PipelineBuilder as Builder

        load_images, to_numpy = spdl.io.load_image_batch, spdl.io.to_numpy
    except ImportError:
        return None, "not installed"
    except Exception as error:  # noqa: BLE001 -- it needs the system's FFmpeg at its first use
        return None, f"does not load ({type(error).__name__})"

    def load_batch(paths: list[str]) -> Any:
        return to_numpy(load_images(paths, width=SIDE, height=SIDE, pix_fmt="rgb24"))

    def run() -> float:
        lists = [work.paths[at : at + BATCH] for at in range(0, len(work.paths), BATCH)]
        builder = Builder().add_source(lists)
        builder = builder.pipe(load_batch, concurrency=work.threads, output_order="input")
        pipeline = builder.add_sink().build(num_threads=work.threads)
        with pipeline.auto_stop():
            return work.rate(pipeline.get_iterator())

    try:
        load_batch(list(work.paths[:1]))
    except Exception as error:  # noqa: BLE001 -- whatever it is, the others can still be compared
        return None, f"does not run ({type(error).__name__})"
    return run, ""


class PillowFiles:
    """A map-style data set that decodes with Pillow, as most people's does."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Pixels:
        with Image.open(self._paths[index]) as picture:
            small = picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return np.array(small)


def dataloader(work: Work) -> Callable[[], float]:
    """Give torch's DataLoader; its processes start here, before any thread, and stay."""
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(
        PillowFiles(work.paths),  # type: ignore[arg-type]  # any object with these two methods
        batch_size=BATCH,
        num_workers=work.threads,
        persistent_workers=True,
    )
    work.rate(loader)
    return lambda: work.rate(loader)


def _uvloop_run(work: Work) -> float:
    import uvloop

    rate: float = uvloop.run(ours_async(work, "caller"))
    return rate


def race(key: str, what: str, work: Work) -> Race:
    """Put the contestants for one set of pictures together."""
    is_cpu = work.clock is not time.perf_counter
    processes = None if is_cpu else dataloader(work)
    run_spdl, why_not = spdl(work)
    pillow = f"torch DataLoader + Pillow, {work.threads} processes"
    rivals = {"large": (2.5, 2.5)}.get(key, (2.0, 2.3))
    targets = (
        Target(bound=0.95, reference=BARE),
        Target(bound=rivals[0], reference=SPDL),
        Target(bound=rivals[1], reference=pillow),
    )
    ours: list[tuple[str, Callable[[], float] | None]] = [
        ("spdl_async, for", partial(ours_sync, work)),
        ("spdl_async, for, read and decode fused", partial(ours_sync, work, split=True)),
        ("spdl_async, for, ImageBatcher", partial(ours_in_place, work)),
        ("spdl_async, async for, loop='own'", lambda: asyncio.run(ours_async(work, "own"))),
        ("spdl_async, async for, asyncio.run", lambda: asyncio.run(ours_async(work, "caller"))),
        (
            "spdl_async, async for, uvloop.run",
            (lambda: _uvloop_run(work)) if find_spec("uvloop") else None,
        ),
    ]
    return Race(
        key=key,
        title=f"{len(work.paths)} {what} to {SIDE}x{SIDE}x3, {work.threads} threads",
        unit="images per second of processor time" if is_cpu else "images/s",
        baseline=BARE,
        contestants=[
            Contestant(name=BARE, run=partial(bare, work)),
            *(Contestant(name=name, run=run, targets=targets) for name, run in ours),
            Contestant(name=SPDL, run=run_spdl, absent=why_not),
            Contestant(name=pillow, run=processes, absent="not with --cpu"),
        ],
    )


def _readable(paths: Sequence[str]) -> list[str]:
    """Leave out what cannot be decoded: contestants differ in what they do with it."""
    good: list[str] = []
    for path in paths:
        try:
            load(path)
        except (DecodeError, OSError) as error:
            print(f"left out: {error}")
        else:
            good.append(path)
    return good


def _sets(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Give (key, description, paths) of each set of pictures."""
    if options.folder is not None:
        yield "folder", "files of the folder", _readable(_photos.find(options.folder))
        return
    small, large = (4, 2) if options.quick else (48, 12)
    repeat = 2 if options.quick else 16
    for key, count, width, height in (("small", small, 500, 375), ("large", large, 1600, 1200)):
        paths = _photos.make(
            folder, count=count, width=width, height=height, quality=options.quality
        )
        kilobytes = sum(Path(path).stat().st_size for path in paths) / count / 1e3
        yield key, f"JPEG files of {width}x{height}, {kilobytes:.0f} kB,", paths * repeat


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.images", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--folder", type=Path, help="use the JPEG files of this folder")
    parser.add_argument("--threads", type=int, default=2, help="threads or processes that decode")
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="count processor time of this process instead of time: for a machine that is busy",
    )
    parser.add_argument("--quality", type=int, default=94, help="of the JPEG files that are made")
    parser.add_argument("--rounds", type=int, help="rounds of each race (default 5)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run both sets, or the folder that was given; the exit code is 0 whatever they show."""
    options = _arguments(argv)
    rounds = options.rounds or (1 if options.quick else 5)
    print(machine(("uvloop", "simplejpeg", "pillow", "torch", "spdl_io")), flush=True)
    if options.quick:
        print("--quick: shows that everything runs; its sizes are too small for any verdict")
    started, bad = time.perf_counter(), list[str]()
    with tempfile.TemporaryDirectory(prefix="spdl-async-bench-") as folder:
        for key, what, paths in _sets(options, Path(folder)):
            clock = time.process_time if options.cpu else time.perf_counter
            work = Work(paths=paths, threads=options.threads, clock=clock)
            outcome = run_race(race(key, what, work), rounds=rounds, warm_up=not options.quick)
            print("\n" + table(outcome), flush=True)
            bad += missed(outcome)
    print(f"\n{time.perf_counter() - started:.0f} s; missed: {', '.join(bad) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
