"""Tar archives: `python -m benchmarks.archives [--quick] [--rounds N]`.

Members of 2 KB and of 100 KB, each from memory, from a file, and from a stream of which every content
becomes bytes. The baseline is the standard library's tarfile, which makes bytes of every content in
all three. `iter_tar` and SPDL's `iter_tarfile` give views where all of the archive is there; SPDL's is
written in C++ and verifies no checksums, and neither does the bare parser, which knows nothing but
plain members: it shows what Python allows.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._measure import Contestant, Race, Target, machine, missed, run_race, table
from spdl_async.io import iter_tar, tar_samples

BASELINE = "tarfile"
SPDL = "SPDL iter_tarfile, no checksums"


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One archive, on disk and in memory."""

    path: Path
    data: bytes
    members: int

    def rate(self, run: Callable[[], Iterable[Any]], members_each: int = 1) -> float:
        """Give members a second."""
        started = time.perf_counter()
        taken = 0
        for _ in run():
            taken += members_each
        seconds = time.perf_counter() - started
        if taken != self.members:
            raise AssertionError(f"{taken} members came of {self.members}")
        return taken / seconds


def make(path: Path, *, samples: int, size: int) -> Archive:
    """Write samples of two members, whose sizes differ a little."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(samples):
            for extension in ("jpg", "cls"):
                info = tarfile.TarInfo(f"train/{number:08d}.{extension}")
                info.size = size - number % 97
                info.mtime = 1_700_000_000 + number
                tar.addfile(info, io.BytesIO(bytes([number % 251]) * info.size))
    return Archive(path=path, data=path.read_bytes(), members=2 * samples)


def with_tarfile(**how: Any) -> Iterator[bytes]:
    """Read all members as most people's code does."""
    with tarfile.open(**how) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is not None:
                yield file.read()


def bare_parser(data: bytes) -> Iterator[tuple[str, memoryview]]:
    """Read plain members with the fewest steps, and verify nothing."""
    view, at = memoryview(data), 0
    while data[at]:
        size = int(data[at + 124 : at + 135], 8)
        yield data[at : data.index(0, at)].decode(), view[at + 512 : at + 512 + size]
        at += 512 + size + (-size & 511)


def spdl(run: Callable[[Any], Iterable[Any]], archive: Archive) -> tuple[Any, str]:
    """Give what runs SPDL's reader, or why it cannot run."""
    try:
        from spdl.io import iter_tarfile
    except ImportError:
        return None, "not installed"
    try:
        next(iter(iter_tarfile(archive.data)))
    except Exception as error:  # noqa: BLE001 -- whatever it is, the others can still be compared
        return None, f"does not run ({type(error).__name__})"
    return lambda: archive.rate(lambda: run(iter_tarfile)), ""


def copied(members: Iterable[Any]) -> Iterator[bytes]:
    """Make bytes of each content."""
    for member in members:
        yield bytes(member[1])


def opened(path: Path, read: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    """Read a file as a stream."""
    with path.open("rb") as file:
        yield from read(file)


def _race(
    key: str, title: str, archive: Archive, runs: Sequence[tuple[str, Any, str, Target | None]]
) -> Race:
    """Put contestants together; `runs` has name, what is run, why it is absent, target."""
    return Race(
        key=key,
        title=f"{archive.members} members {title}",
        unit="members/s",
        baseline=BASELINE,
        contestants=[
            Contestant(name=name, run=run, absent=absent, targets=(target,) if target else ())
            for name, run, absent, target in runs
        ],
    )


def races(key: str, what: str, archive: Archive) -> Iterator[Race]:
    """Give the three races over one archive."""
    path, data, rate = archive.path, archive.data, archive.rate
    # Of large members the copies are what takes time, whoever makes them.
    thrice = Target(bound=3.0, reference=BASELINE) if key == "small" else None
    run, absent = spdl(lambda read: read(data), archive)
    yield _race(
        f"{key}-memory",
        f"{what}, from memory",
        archive,
        [
            (BASELINE, lambda: rate(lambda: with_tarfile(fileobj=io.BytesIO(data))), "", None),
            ("iter_tar", lambda: rate(lambda: iter_tar(data)), "", thrice),
            ("tar_samples", lambda: rate(lambda: tar_samples(data), 2), "", None),
            (SPDL, run, absent, None),
            ("a bare parser, no checksums", lambda: rate(lambda: bare_parser(data)), "", None),
        ],
    )
    run, absent = spdl(lambda read: read(path.read_bytes()), archive)
    yield _race(
        f"{key}-file",
        f"{what}, from a file",
        archive,
        [
            (BASELINE, lambda: rate(lambda: with_tarfile(name=path)), "", None),
            ("iter_tar, mapped", lambda: rate(lambda: iter_tar(path)), "", thrice),
            (
                "iter_tar, mapped, then bytes",
                lambda: rate(lambda: copied(iter_tar(path))),
                "",
                None,
            ),
            (f"{SPDL}, of path.read_bytes()", run, absent, None),
        ],
    )
    run, absent = spdl(lambda read: opened(path, read), archive)
    yield _race(
        f"{key}-stream",
        f"{what}, from a stream, as bytes",
        archive,
        [
            (BASELINE, lambda: rate(lambda: with_tarfile(name=path, mode="r|")), "", None),
            ("iter_tar", lambda: rate(partial(opened, path, iter_tar)), "", thrice),
            (SPDL, run, absent, None),
        ],
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.archives", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--rounds", type=int, help="rounds of each race (default 5)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run all races; the exit code is 0 whatever they show."""
    options = _arguments(argv)
    rounds = options.rounds or (1 if options.quick else 5)
    print(machine(("spdl_io",)), flush=True)
    if options.quick:
        print("--quick: shows that everything runs; its sizes are too small for any verdict")
    started, bad = time.perf_counter(), list[str]()
    sizes = [("small", "of 2 KB", 10_000, 2048), ("large", "of 100 KB", 1_000, 100_000)]
    with tempfile.TemporaryDirectory(prefix="spdl-async-bench-") as folder:
        for key, what, samples, size in sizes:
            samples = samples // 200 if options.quick else samples
            archive = make(Path(folder) / f"{key}.tar", samples=samples, size=size)
            for race in races(key, what, archive):
                outcome = run_race(race, rounds=rounds, warm_up=not options.quick)
                print("\n" + table(outcome), flush=True)
                bad += missed(outcome)
    print(f"\n{time.perf_counter() - started:.0f} s; missed: {', '.join(bad) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
