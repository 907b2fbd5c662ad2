"""The readers leave nothing behind, also where they fail in the middle."""

from __future__ import annotations

import gzip
import io
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spdl_async.errors import DecodeError
from spdl_async.io import TokenFile, load_npy, load_npz, read_jsonl, read_parquet, write_tokens


def lines(folder: Path) -> Callable[[], object]:
    path = folder / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 100 + b"x\n"))
    return lambda: list(read_jsonl(path))


def parquet(folder: Path) -> Callable[[], object]:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = folder / "a.parquet"
    table = pa.table({"n": np.arange(1000), "t": ["x"] * 1000})
    pq.write_table(table, path, row_group_size=300)
    return lambda: list(read_parquet(path, columns=["t", "n"], row_groups=[0, 2, 9]))


def parquet_left(folder: Path) -> Callable[[], object]:
    parquet(folder)
    return lambda: next(read_parquet(folder / "a.parquet"))


def arrays(folder: Path) -> Callable[[], object]:
    file = io.BytesIO()
    np.savez_compressed(file, a=np.zeros(5000), b=np.zeros(3))
    data = bytearray(file.getvalue())
    data[-60] ^= 1  # in the list of members
    good = io.BytesIO()
    np.save(good, np.zeros(100))

    def read() -> None:
        load_npy(good.getvalue())
        load_npz(data)

    return read


def tokens(folder: Path) -> Callable[[], object]:
    path = folder / "a.npy"
    write_tokens(path, [range(1000)])
    return lambda: TokenFile(path, length=10)[5].sum()


@pytest.mark.parametrize("make", [lines, parquet, parquet_left, arrays, tokens])
def test_many_reads_leave_nothing_behind(
    make: Callable[[Path], Callable[[], object]], tmp_path: Path
) -> None:
    read = make(tmp_path)

    def often(times: int) -> None:
        for _ in range(times):
            try:
                read()
            except DecodeError:
                pass

    often(20)
    descriptors = len(os.listdir("/proc/self/fd"))
    tracemalloc.start()
    try:
        often(20)
        before = tracemalloc.get_traced_memory()[0]
        often(200)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 200 * 100  # bytes; one object a read would be more
    assert len(os.listdir("/proc/self/fd")) == descriptors
