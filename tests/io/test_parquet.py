"""read_parquet: columns as arrays, by row group, on the calling thread, and closed at the end."""

from __future__ import annotations

import datetime
import decimal
import io
import os
import resource
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spdl_async import PipelineBuilder
from spdl_async.errors import DecodeError
from spdl_async.io import _parquet, read_parquet

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

BIG = 2**60 + 1  # no float64 holds it


def written(columns: dict[str, Any], rows: int | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, row_group_size=rows, **options)
    return file.getvalue()


TEN = {"n": np.arange(10), "text": [f"t{n}" for n in range(10)]}

COLUMNS: dict[str, tuple[Any, str, Any]] = {
    "ints": ([1, 2, BIG], "int64", [1, 2, BIG]),
    "small": (pa.array([1, 2, 3], pa.uint8()), "uint8", [1, 2, 3]),
    "booleans": ([True, False, True], "bool", [True, False, True]),
    "floats": (pa.array([1.5, 2, 3], pa.float32()), "float32", [1.5, 2.0, 3.0]),
    "ints, null": ([1, None, BIG], "object", [1, None, BIG]),
    "booleans, null": ([True, None, False], "object", [True, None, False]),
    "text": (["a", None, "ü"], "object", ["a", None, "ü"]),
    "bytes": ([b"a", b"", b"c"], "object", [b"a", b"", b"c"]),
    "dictionary": (pa.array(["x", "y", "x"]).dictionary_encode(), "object", ["x", "y", "x"]),
    "decimals": ([decimal.Decimal("1.5")] * 3, "object", [decimal.Decimal("1.5")] * 3),
    "dates": (
        [datetime.date(2026, 11, 30)] * 3,
        "datetime64[D]",
        [datetime.date(2026, 11, 30)] * 3,
    ),
    "structs": ([{"a": 1}, None, {"a": BIG}], "object", [{"a": 1}, None, {"a": BIG}]),
    "nulls": (pa.nulls(3), "object", [None] * 3),
    "lists, null": ([[1], None, [BIG, None]], "object", [[1], None, [BIG, None]]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_become_arrays(name: str) -> None:
    column, dtype, values = COLUMNS[name]
    (batch,) = read_parquet(written({name: column}))
    array = batch[name]
    assert array.dtype == np.dtype(dtype)
    assert array.shape == (3,)
    assert array.tolist() == values


def test_floats_with_nulls_and_lists_of_numbers() -> None:
    (batch,) = read_parquet(
        written(
            {
                "floats": [1.0, None],
                "stamps": pa.array([1, None], pa.timestamp("us")),
                "lists": [[1, 2], []],
                "vectors": pa.array([[1.0, 2], [3, 4]], pa.list_(pa.float32(), 2)),
            }
        )
    )
    np.testing.assert_array_equal(batch["floats"], [1.0, np.nan])
    assert np.isnat(batch["stamps"]).tolist() == [False, True]
    assert [part.tolist() for part in batch["lists"]] == [[1, 2], []]
    assert batch["vectors"].dtype == np.float32
    assert batch["vectors"].tolist() == [[1, 2], [3, 4]]


def test_nulls_are_looked_at_in_each_batch_and_can_be_filled() -> None:
    batches = [b["n"] for b in read_parquet(written({"n": [1, BIG, None, 4]}), batch_size=2)]
    assert [b.dtype for b in batches] == [np.int64, object]
    filled = [np.where(b == None, -1, b).astype(np.int64) for b in batches]  # noqa: E711 -- of elements
    assert [b.tolist() for b in filled] == [[1, BIG], [-1, 4]]


def test_batches_columns_and_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(written(TEN, rows=4))
    for source in (path, str(path), path.read_bytes(), memoryview(path.read_bytes())):
        assert [b["n"].tolist() for b in read_parquet(source)] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
            [8, 9],
        ]
    sizes = [len(b["n"]) for b in read_parquet(path, batch_size=3)]
    assert sizes == [3, 1, 3, 1, 2]
    (batch,) = read_parquet(path, columns=["text"], row_groups=[2], batch_size=100)
    assert {name: array.tolist() for name, array in batch.items()} == {"text": ["t8", "t9"]}
    backwards = list(read_parquet(path, columns=["text", "n"], row_groups=[1, 0]))
    assert [list(b) for b in backwards] == [["text", "n"]] * 2
    assert [b["n"][0] for b in backwards] == [4, 0]
    assert list(read_parquet(path, row_groups=[])) == []
    assert list(read_parquet(written({"n": pa.array([], pa.int8())}))) == []


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(written(TEN, rows=4))
    with pytest.raises(DecodeError, match=r"no column 'label'; it has n, text") as caught:
        next(read_parquet(path, columns=["n", "label"]))
    assert str(caught.value).startswith(f"{path}: ")
    assert caught.value.path == str(path)
    with pytest.raises(DecodeError, match="no row group 3; it has 3, from 0"):
        next(read_parquet(path, row_groups=[0, 3]))
    with pytest.raises(FileNotFoundError):
        next(read_parquet(tmp_path / "nowhere"))
    for options in ({"batch_size": 0}, {"columns": ["n", "n"]}, {"row_groups": [1, 1]}):
        with pytest.raises(ValueError, match="read_parquet: "):
            next(read_parquet(path, **options))
    with pytest.raises(TypeError, match=r"such as \['n'\]"):
        next(read_parquet(path, columns="n"))


def test_damage_names_the_path_and_the_row_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {"n": np.random.default_rng(0).integers(0, 1 << 60, 1000)}
    data = bytearray(written(columns, rows=500, write_page_checksum=True, use_dictionary=False))
    at = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(1).column(0).data_page_offset
    data[at + 1000] ^= 1
    path.write_bytes(data)
    read = read_parquet(path)
    assert len(next(read)["n"]) == 500
    with pytest.raises(DecodeError, match=f"^{path}: row group 1: damaged") as caught:
        next(read)
    assert "CRC" in str(caught.value)
    for bad in (b"", b"PAR1", b"no parquet at all" * 10, bytes(data[:-100])):
        with pytest.raises(DecodeError, match="no Parquet file that can be read"):
            next(read_parquet(bad))


def varint(number: int) -> bytes:
    """Encode as Thrift's compact protocol does."""
    number, out = number << 1, b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


@pytest.mark.parametrize("claimed", [10**9, 1 << 40, 776, 0])
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_false_number_of_rows_allocates_nothing(claimed: int, everywhere: bool) -> None:
    data = written({"n": np.arange(777)}, compression="none", use_dictionary=False)
    size = int.from_bytes(data[-8:-4], "little")
    body, footer = data[: -8 - size], data[-8 - size : -8]
    places = [at for at in range(size) if footer[at:].startswith(varint(777))]
    # The first is the file's, the last the row group's; those between are the column's.
    for at in (places[-1], places[0]) if everywhere else places[-1:]:
        footer = footer[:at] + varint(claimed) + footer[at + 2 :]
    bad = body + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    says = f"it has 777 rows.* claims {claimed:,}" if everywhere else f"have {claimed:,} rows"
    for batch_size in (None, 10, 100_000):
        if everywhere and claimed < 777:
            # Nothing in the file says that there are more.
            found = sum(len(batch["n"]) for batch in read_parquet(bad, batch_size=batch_size))
            assert found == claimed
            continue
        with pytest.raises(DecodeError, match=says):
            list(read_parquet(bad, batch_size=batch_size))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_a_row_group_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(
        {
            "n": [*range(5), None, 6],
            "text": pa.array([f"t{n}" for n in range(7)]).dictionary_encode(),
            "v": pa.array([[n, n] for n in range(7)], pa.list_(pa.int32(), 2)),
        }
    )
    (whole,) = read_parquet(data)
    monkeypatch.setattr(_parquet, "_PIECE", 3)
    (pieced,) = read_parquet(data)
    assert {name: array.tolist() for name, array in pieced.items()} == {
        name: array.tolist() for name, array in whole.items()
    }
    assert whole["n"].tolist()[4:] == [4, None, 6]
    assert pieced["v"].shape == (7, 2)


def test_the_file_is_closed_however_reading_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(written(TEN, rows=4))

    def is_open() -> bool:
        links = Path("/proc/self/fd").iterdir()
        return str(path) in [os.path.realpath(link) for link in links]

    read = read_parquet(path)
    next(read)
    assert is_open()
    read.close()
    assert not is_open()
    list(read_parquet(path))
    assert not is_open()
    path.write_bytes(b"PAR1" * 10)
    with pytest.raises(DecodeError) as caught:  # whose traceback keeps the frames alive
        list(read_parquet(path))
    assert not is_open()
    assert caught.value.path == str(path)


def test_one_native_thread(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(written({str(n): np.arange(2000) for n in range(20)}, rows=100))
    code = """
        import os, sys
        import pyarrow.parquet
        from spdl_async.io import _parquet, read_parquet
        before = len(os.listdir("/proc/self/task"))
        assert sum(len(b["3"]) for b in read_parquet(sys.argv[1], batch_size=30)) == 2000
        print(len(os.listdir("/proc/self/task")) - before)
    """
    if not Path("/proc/self/task").exists():
        pytest.skip("needs /proc")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert done.stdout.strip() == "0"
    assert not done.stderr


def test_below_paths_and_as_a_source(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.parquet" for number in range(4)]
    for number, path in enumerate(paths):
        path.write_bytes(written({"n": np.arange(10) + 10 * number}, rows=4))
    read = partial(read_parquet, columns=["n"], batch_size=2)
    pipeline = PipelineBuilder().add_source(paths).expand(read, concurrency=3).build()
    assert [int(n) for batch in pipeline for n in batch["n"]] == list(range(40))
    source = PipelineBuilder().add_source(partial(read_parquet, paths[1])).build()
    assert [len(batch["n"]) for batch in source] == [4, 4, 2]


def test_lists_of_any_kind_and_what_is_none() -> None:
    data = written({"a": [1, 2, 3], "b": [4, 5, 6]}, rows=1)
    share = np.array_split(np.arange(3), 2)[0]  # as ranks share row groups out
    batches = list(read_parquet(data, columns=(name for name in "a"), row_groups=share))  # type: ignore[arg-type]
    assert [batch["a"].tolist() for batch in batches] == [[1], [2]]
    assert [*batches[0]] == ["a"]
    for wrong in ({"columns": "a"}, {"columns": 1}, {"columns": [1]}):
        with pytest.raises(TypeError, match="columns must be a list of names"):
            next(read_parquet(data, **wrong))
    for numbers in (1, ["a"], "1"):
        with pytest.raises(TypeError, match="row_groups must be a list of whole numbers"):
            next(read_parquet(data, row_groups=numbers))  # type: ignore[arg-type]
