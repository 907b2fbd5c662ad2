"""10,000 mutated inputs of the readers of arrays and text: documented errors only, memory bounded.

Parquet's mutations run in processes of their own, since what pyarrow does with them is C++: a crash
there is a failure that shows the seed.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import resource
import subprocess
import sys
import textwrap
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spdl_async.errors import DecodeError
from spdl_async.io import load_npy, load_npz, read_jsonl

pytest.importorskip("zstandard")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Damage a file in one to four of the ways in which files are damaged or made to harm."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            del found[at:]
        elif kind == 1:
            del found[at : at + rng.randint(1, 9)]
        elif kind == 2:
            found[at:at] = rng.randbytes(rng.randint(1, 9))
        elif kind == 3:
            found[at : at + 4] = rng.choice(
                (b"\xff\xff\xff\xff", b"\0\0\0\0", b"9999", b"\x7f\0\0\0")
            )
        elif kind == 4 and found:
            end = min(len(found), at + rng.randint(1, 30))
            found[at:at] = found[at:end]
        elif found:
            found[at % len(found)] ^= 1 << rng.randrange(8)
    return bytes(found)


def npy_files() -> list[bytes]:
    arrays: list[Any] = [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.eye(3)),
        np.array("text"),
        np.zeros(2, [("a", "<i4"), ("b", "<f4", (2,)), ("c", [("d", "S3")])]),
        np.zeros((0, 3), ">f8"),
        np.array(["2026-11-30"], "M8[D]"),
    ]
    files = []
    for array in arrays:
        file = io.BytesIO()
        np.save(file, array)
        files.append(file.getvalue())
    return files


def npz_files() -> list[bytes]:
    files = []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, image=np.arange(50, dtype=np.uint8), label=np.array(3))
        files.append(file.getvalue())
    return files


def jsonl_files() -> list[bytes]:
    import zstandard

    text = b"".join(
        json.dumps({"n": n, "text": "ü" * n, "l": [[n]]}).encode() + b"\n" for n in range(9)
    )
    return [text, gzip.compress(text), zstandard.ZstdCompressor().compress(text)]


def read_lines(data: bytes) -> None:
    for _ in read_jsonl(data, max_line_bytes=1 << 16):
        pass


READERS: dict[str, tuple[Callable[[], list[bytes]], Callable[[bytes], object], int]] = {
    "npy": (npy_files, load_npy, 4000),
    "npz": (npz_files, load_npz, 2500),
    "jsonl": (jsonl_files, read_lines, 2500),
}


@pytest.mark.parametrize("name", READERS)
def test_mutated_files_give_data_or_a_decode_error(name: str) -> None:
    make, read, rounds = READERS[name]
    files = make()
    for data in files:
        read(data)
    good = longest = 0
    tracemalloc.start(1)
    try:
        for seed in range(rounds):
            data = mutated(files[seed % len(files)], random.Random(f"{name} {seed}"))
            try:
                read(data)
                good += 1
            except DecodeError as error:
                longest = max(longest, len(str(error)))
            except BaseException as error:
                error.add_note(f"{name}, seed {seed}: {data!r}")
                raise
        # A thousand times what these files hold; a size that is believed would be far more.
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()
    assert longest < 1500
    assert 0 < good < rounds // 2  # the mutations do damage, and not only the first bytes


PARQUET = """
    import io, random, resource, sys
    import numpy as np, pyarrow as pa, pyarrow.parquet as pq
    from spdl_async.errors import DecodeError
    from spdl_async.io import read_parquet
    sys.path.insert(0, sys.argv[1])
    from test_text_fuzz import mutated

    files = []
    for options in ({}, {"compression": "zstd"}, {"compression": "none", "use_dictionary": False},
                    {"data_page_version": "2.0", "compression": "gzip"}):
        file = io.BytesIO()
        pq.write_table(pa.table({
            "n": np.arange(30), "text": [str(n) for n in range(30)], "l": [[n, n] for n in range(30)],
            "v": pa.array([[1.0, n] for n in range(30)], pa.list_(pa.float32(), 2)),
            "b": [None, True] * 15, "s": [{"a": n} for n in range(30)],
        }), file, row_group_size=10, **options)
        files.append(file.getvalue())
    good = 0
    for seed in range(int(sys.argv[2]), int(sys.argv[3])):
        data = mutated(files[seed % len(files)], random.Random(f"parquet {seed}"))
        print(seed, file=sys.stderr, flush=True)
        try:
            for batch in read_parquet(data, batch_size=4 if seed % 8 < 4 else None):
                pass
            good += 1
        except DecodeError:
            pass
    print(good, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_mutated_parquet_files_give_data_or_a_decode_error() -> None:
    pytest.importorskip("pyarrow")
    from pathlib import Path

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PARQUET), str(Path(__file__).parent), "0", "1000"],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not [line for line in done.stderr.split() if not line.isdigit()]
    good, peak = map(int, done.stdout.split())
    assert 0 < good < 1000
    assert peak < resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + (1 << 20)  # in KiB: 1 GiB
