"""Damaged files for every decoder and archive reader: the documented error or data, and nothing else.

    python tests/io/fuzz_files.py                            # 10,000 for each reader that can run here
    python tests/io/fuzz_files.py video --first 4711 --files 1   # one of them again

Most of the readers are C and C++ inside, so each runs in a process of its own: a crash, a hang, a word on
stderr, or memory that grows is a failure that names the file's number, and the number gives the file.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import json
import logging
import os
import random
import re
import resource
import struct
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FILES = 10_000
HANG = 300.0
"""Seconds for a hundred files, after which the process ends and shows where it stands. They take less than
one, but a machine that others use may stand still for minutes."""

PIECES = (
    b"\0",
    b"\xff",
    b"\x80",
    b"7",
    b"/",
    b" ",
    b"9999",
    b"\x7f\0\0\0",
    b"\xff" * 12,
    b"\x80" + b"\0" * 6 + b"\xff" * 5,
)
NUMBERS = (0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Damage a file in one or several of the ways in which files are damaged, or made to harm.

    Half of it is near the beginning, where headers are.
    """
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not found:
            break
        reach = len(found) if rng.random() < 0.5 else min(len(found), 160)
        at, kind = rng.randrange(reach), rng.randrange(11)
        if kind < 3:
            found[at] ^= 1 << rng.randrange(8)
        elif kind < 5:
            found[at] = rng.randrange(256)
        elif kind == 5:
            number = rng.choice((*NUMBERS, rng.randrange(2**32)))
            found[at : at + 4] = struct.pack(rng.choice("<>") + "I", number)
        elif kind == 6:
            piece = rng.choice(PIECES)
            found[at : at + len(piece)] = piece
        elif kind == 7:
            del found[at : at + rng.choice((1, rng.randrange(1, 40), 512))]
        elif kind == 8:
            found[at:at] = rng.randbytes(rng.randint(1, 9))
        elif kind == 9:
            other = rng.randrange(len(found))
            found[at:at] = found[other : other + rng.choice((rng.randrange(1, 60), 512))]
        else:
            del found[max(4, rng.randrange(len(found))) :]
    return bytes(found)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Something that reads files.

    Attributes:
        files: whole files of every kind that it knows; all are read before the first damaged one.
        read: reads one; the second argument is its number, for options to vary by.
        error: the documented exception.
        needs: modules without which it cannot run.
        damage: makes a damaged file of a whole one.
        growth: bytes by which the process may grow, beyond what the whole files took.
        traced: bytes that Python and numpy may have allocated at once; None where only C code allocates.
        said: what lines on stderr may contain, of a library that cannot be silenced.
        fewest: at least one in so many is refused, and one in so many is read.
    """

    files: Callable[[], Sequence[bytes]]
    read: Callable[[bytes, int], object]
    error: type[Exception]
    needs: tuple[str, ...] = ()
    damage: Callable[[bytes, random.Random], bytes] = mutated
    growth: int = 200_000_000
    traced: int | None = None
    said: tuple[str, ...] = ()
    fewest: int = 50

    def missing(self) -> list[str]:
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


@dataclass(kw_only=True)
class Outcome:
    """What came of it; ``wrong`` is empty where all is well."""

    whole: int = 0
    refused: int = 0
    grown: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def readers() -> dict[str, Reader]:
    sys.path.insert(0, str(Path(__file__).parent))
    from fuzz_readers import READERS

    return READERS


def damaged_file(reader: Reader, files: Sequence[bytes], number: int) -> bytes:
    return reader.damage(files[number % len(files)], random.Random(f"file {number}"))


def work(name: str, first: int, count: int) -> None:
    """Read damaged files in this process; print each one's number before, and what came of it at the end."""
    reader = readers()[name]
    files = reader.files()
    # Logs and warnings are the program's to show or not.
    for library in ("spdl_async", "PIL"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="PIL")
    for number, data in enumerate(files):
        reader.read(data, number)
    if reader.traced is not None:
        tracemalloc.start(1)
    before, whole, refused, longest = _peak(), 0, 0, 0
    for number in range(first, first + count):
        if (number - first) % 100 == 0:
            faulthandler.dump_traceback_later(HANG, exit=True)
        os.write(1, b"%d\n" % number)
        data = damaged_file(reader, files, number)
        try:
            reader.read(data, number)
            whole += 1
        except reader.error as error:
            refused += 1
            longest = max(longest, len(str(error)))
    faulthandler.cancel_dump_traceback_later()
    assert longest < 2_000, f"a message of {longest:,} characters"
    traced = tracemalloc.get_traced_memory()[1] if reader.traced is not None else 0
    print(json.dumps([whole, refused, _peak() - before, traced]), flush=True)


def _peak() -> int:
    """Return the most bytes that this process has had in memory.

    What ``getrusage`` says begins with what the parent had when it forked.
    """
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found is not None:
            return 1024 * int(found[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def fuzz(name: str, *, first: int = 0, files: int = FILES) -> Outcome:
    """Read damaged files in a process of its own, and judge what it did."""
    reader, started = readers()[name], time.perf_counter()
    numbers = ["--first", str(first), "--files", str(files)]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", __file__, "--work", name, *numbers],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    outcome = Outcome(seconds=time.perf_counter() - started)
    said = [
        line
        for line in done.stderr.splitlines()
        if line.strip() and not any(known in line for known in reader.said)
    ]
    last = done.stdout.splitlines()[-1:] or ["none"]
    if done.returncode != 0:
        outcome.wrong.append(f"exit status {done.returncode} at file {last[0]}")
    if said:
        outcome.wrong.append("on stderr:\n" + "\n".join(said[-40:]))
    if done.returncode == 0:
        whole, refused, outcome.grown, traced = json.loads(last[0])
        outcome.whole, outcome.refused = whole, refused
        if files >= 200 and min(whole, refused) < files // reader.fewest:
            outcome.wrong.append("the damage is too kind, or too wild")
        if outcome.grown > reader.growth:
            outcome.wrong.append(f"the process grew by {outcome.grown:,} bytes")
        if reader.traced is not None and traced > reader.traced:
            outcome.wrong.append(f"Python and numpy had {traced:,} bytes at once")
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"readers, of {', '.join(readers())}")
    parser.add_argument("--files", type=int, default=FILES, help="damaged files for each reader")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.work:
        work(options.names[0], options.first, options.files)
        return 0
    failed = list[str]()
    for name in options.names or readers():
        missing = readers()[name].missing()
        if missing:
            print(f"{name:20} not here: needs {', '.join(missing)}", flush=True)
            continue
        outcome = fuzz(name, first=options.first, files=options.files)
        print(
            f"{name:20} {outcome.whole:6,} read {outcome.refused:6,} refused"
            f" {outcome.grown / 1e6:6.0f} MB more {outcome.seconds:5.0f} s",
            *outcome.wrong,
            flush=True,
        )
        failed += [name] * bool(outcome.wrong)
    print(f"failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
