"""Arrays from memory: `python -m benchmarks.arrays [--quick] [--rounds N]`.

The bytes of `.npy` and `.npz` files, already in memory, become arrays, in one thread and without a
pipeline. The baselines are numpy's own readers over `io.BytesIO`.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks._measure import Contestant, Race, Target, machine, missed, run_race, table
from spdl_async.io import load_npy, load_npz

NUMPY = "np.load(io.BytesIO(data))"
NUMPY_ALL = "np.load(io.BytesIO(data)), every member"


def rate(read: Callable[[bytes], object], files: Sequence[bytes], repeat: int) -> float:
    """Give how many files are read in a second."""
    started = time.perf_counter()
    for _ in range(repeat):
        for data in files:
            read(data)
    return repeat * len(files) / (time.perf_counter() - started)


def numpy_load(data: bytes) -> object:
    """Read an array as numpy does."""
    return np.load(io.BytesIO(data))


def numpy_load_all(data: bytes) -> object:
    """Read every member, as a sample needs it; `np.load` alone reads none."""
    with np.load(io.BytesIO(data)) as archive:
        return {name: archive[name] for name in archive.files}


def npy_files(shapes: int) -> list[bytes]:
    """Make 256 files of 12 to 48 KiB, of as many shapes as asked for."""
    random = np.random.default_rng(0)
    files: list[bytes] = []
    for number in range(256):
        file = io.BytesIO()
        array = random.integers(0, 255, (3, 64, 64 + number % shapes), np.uint8)
        np.save(file, array)
        files.append(file.getvalue())
    return files


def npz_files(save: Any) -> list[bytes]:
    """Make 32 files of a picture, a box and a label."""
    random = np.random.default_rng(0)
    files: list[bytes] = []
    for number in range(32):
        file = io.BytesIO()
        picture = random.integers(0, 8, (3, 64, 64), np.uint8)
        save(file, image=picture, box=random.random(4, np.float32), label=np.array(number))
        files.append(file.getvalue())
    return files


def races(quick: bool) -> list[Race]:
    """Put the rows together."""
    rows: list[Race] = []
    for key, what, shapes in (
        ("npy", "256 arrays of one shape", 1),
        ("npy-shapes", "256 arrays of 200 shapes", 200),
    ):
        files = npy_files(shapes)
        rows.append(
            Race(
                key=key,
                title=f"{what}, uint8, .npy",
                unit="arrays/s",
                baseline=NUMPY,
                contestants=[
                    Contestant(
                        name="load_npy",
                        run=partial(rate, load_npy, files, 1 if quick else 100),
                        targets=(Target(bound=30.0, reference=NUMPY),),
                    ),
                    Contestant(
                        name="load_npy, memoryview",
                        run=partial(
                            rate,
                            lambda data: load_npy(memoryview(data)),
                            files,
                            1 if quick else 100,
                        ),
                        targets=(Target(bound=300_000.0),),
                    ),
                    Contestant(
                        name=NUMPY, run=partial(rate, numpy_load, files, 1 if quick else 10)
                    ),
                ],
            )
        )
    for key, what, save in (
        ("npz", "stored", np.savez),
        ("npz-deflated", "deflated", np.savez_compressed),
    ):
        files = npz_files(save)
        rows.append(
            Race(
                key=key,
                title=f"32 archives of three {what} arrays, .npz",
                unit="archives/s",
                baseline=NUMPY_ALL,
                contestants=[
                    Contestant(
                        name="load_npz", run=partial(rate, load_npz, files, 1 if quick else 30)
                    ),
                    Contestant(
                        name=NUMPY_ALL,
                        run=partial(rate, numpy_load_all, files, 1 if quick else 30),
                    ),
                ],
            )
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run every row; the exit code is 0 whatever they show."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.arrays", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--rounds", type=int, help="rounds of each race (default 5)")
    options = parser.parse_args(argv)
    print(machine(("numpy",)), flush=True)
    if options.quick:
        print("--quick: shows that everything runs; its sizes are too small for any verdict")
    started, bad = time.perf_counter(), list[str]()
    for race in races(options.quick):
        rounds = options.rounds or (1 if options.quick else 5)
        outcome = run_race(race, rounds=rounds, warm_up=not options.quick)
        print("\n" + table(outcome), flush=True)
        bad += missed(outcome)
    print(f"\n{time.perf_counter() - started:.0f} s; missed: {', '.join(bad) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
