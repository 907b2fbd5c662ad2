"""What a cache saves: `python -m benchmarks.cache [--quick] [--rounds N]`.

Two rows. `[photos]`: images per second of one pass over 500x375 JPEG files, decoded to 224x224: the
pass without a cache is the baseline; then the first pass, which also stores, and the second one, which
finds all, with a cache in a folder and in memory. `[small]`: arrays of 1 KB that are loaded from files;
the baseline is bare `np.load` of as many `.npy` files in `ThreadPoolExecutor(4).map`, 4 threads in both.
The files are in the operating system's page cache, so the numbers are the library's and not the disk's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _photos
from benchmarks._measure import Contestant, Race, Target, machine, missed, run_race, table
from spdl_async import Pipeline, PipelineBuilder
from spdl_async.io import read_image

WITHOUT = "spdl_async without a cache"
NPY = "bare np.load, ThreadPoolExecutor(4).map"
THREADS = 2
_folders = count()


def rate(pipeline: Pipeline[Any], expected: int) -> float:
    """Give the items per second of one pass."""
    began = time.perf_counter()
    with pipeline.run_sync() as run:
        taken = sum(1 for _ in run)
    seconds = time.perf_counter() - began
    if taken != expected:
        raise AssertionError(f"{taken} items arrived of {expected}")
    return taken / seconds


def decoded(paths: Sequence[str]) -> PipelineBuilder[Any]:
    """Give the stages that a cache saves."""
    return (
        PipelineBuilder().add_source(paths).pipe(partial(read_image, size=224), concurrency=THREADS)
    )


def first_pass(paths: Sequence[str], folder: Path | None) -> float:
    """Give the rate of a pass that finds nothing and stores everything."""
    builder = decoded(paths)
    if folder is None:
        cached = builder.cache(memory="4GB", concurrency=THREADS)
    else:
        cached = builder.cache(folder / f"{next(_folders)}", max_bytes="20GB", concurrency=THREADS)
    return rate(cached.build(), len(paths))


def photos(folder: Path, quick: bool) -> Race:
    """Put the passes over pictures together."""
    made = _photos.make(folder, count=4 if quick else 48, width=500, height=375)
    paths = made * (2 if quick else 8)
    in_folder = decoded(paths).cache(folder / "kept", concurrency=THREADS).build()
    in_memory = decoded(paths).cache(memory="4GB", concurrency=THREADS).build()
    rate(in_folder, len(paths))
    rate(in_memory, len(paths))
    return Race(
        key="photos",
        title=f"{len(paths)} JPEG files of 500x375 to 224x224x3, {THREADS} threads",
        unit="images/s",
        baseline=WITHOUT,
        contestants=[
            Contestant(name=WITHOUT, run=lambda: rate(decoded(paths).build(), len(paths))),
            Contestant(name="first pass, folder", run=lambda: first_pass(paths, folder)),
            Contestant(name="first pass, memory", run=lambda: first_pass(paths, None)),
            Contestant(
                name="second pass, folder",
                run=lambda: rate(in_folder, len(paths)),
                targets=(Target(bound=3, reference=WITHOUT),),
            ),
            Contestant(
                name="second pass, memory",
                run=lambda: rate(in_memory, len(paths)),
                targets=(Target(bound=3, reference=WITHOUT),),
            ),
        ],
    )


def small(folder: Path, quick: bool) -> Race:
    """Put the ways to load small arrays together."""
    number = 50 if quick else 5000
    plain = folder / "npy"
    plain.mkdir()
    for n in range(number):
        np.save(plain / f"{n}.npy", np.full(1024, n % 256, np.uint8))
    paths = [str(plain / f"{n}.npy") for n in range(number)]

    def bare() -> float:
        began = time.perf_counter()
        with ThreadPoolExecutor(4) as pool:
            taken = sum(1 for _ in pool.map(np.load, paths))
        return taken / (time.perf_counter() - began)

    builder = PipelineBuilder().add_source(range(number)).pipe(partial(np.full, 1024))
    in_folder = builder.cache(folder / "small", concurrency=4).build()
    in_memory = builder.cache(memory="1GB", concurrency=4).build()
    loading = PipelineBuilder().add_source(paths).pipe(np.load, concurrency=4).build()
    rate(in_folder, number)
    rate(in_memory, number)
    return Race(
        key="small",
        title=f"{number} arrays of 1 KB, loaded by 4 threads",
        unit="items/s",
        baseline=NPY,
        contestants=[
            Contestant(name=NPY, run=bare),
            Contestant(name="spdl_async, np.load as an op", run=lambda: rate(loading, number)),
            Contestant(
                name="second pass, folder",
                run=lambda: rate(in_folder, number),
                targets=(Target(bound=1, reference=NPY),),
            ),
            Contestant(name="second pass, memory", run=lambda: rate(in_memory, number)),
        ],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run both rows; the exit code is 0 whatever they show."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--rounds", type=int, help="rounds of each race (default 5)")
    options = parser.parse_args(argv)
    rounds = options.rounds or (1 if options.quick else 5)
    print(machine(("numpy", "simplejpeg", "pillow")), flush=True)
    if options.quick:
        print("--quick: shows that everything runs; its sizes are too small for any verdict")
    started, bad = time.perf_counter(), list[str]()
    for make in (photos, small):
        with tempfile.TemporaryDirectory(prefix="spdl-async-bench-") as folder:
            outcome = run_race(
                make(Path(folder), options.quick), rounds=rounds, warm_up=not options.quick
            )
        print("\n" + table(outcome), flush=True)
        bad += missed(outcome)
    print(f"\n{time.perf_counter() - started:.0f} s; missed: {', '.join(bad) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
