"""load_npy: what numpy writes is looked at in place; what it does not write is refused."""

from __future__ import annotations

import gc
import io
import mmap
import pickle
import tracemalloc
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from spdl_async import PipelineBuilder
from spdl_async.errors import DecodeError
from spdl_async.io import load_npy

if TYPE_CHECKING:
    from numpy.typing import NDArray

RNG = np.random.default_rng(3)
STRUCTURED = np.dtype(
    [("id", "<i4"), ("box", "<f4", (2, 2)), ("inner", [("a", "u1"), ("b", "S3")])], align=True
)


def saved(array: NDArray[Any], version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def with_header(text: str, body: bytes = b"", version: int = 1) -> bytes:
    raw = text.encode("utf-8")
    size = len(raw).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + raw + body


ARRAYS: dict[str, NDArray[Any]] = {
    "floats": RNG.random((3, 4, 5)).astype(np.float32),
    "fortran": np.asfortranarray(RNG.random((3, 4))),
    "0-d": np.array(7, np.int16),
    "0-d fortran": np.array(7.5, order="F"),
    "empty": np.zeros((0,), np.uint8),
    "empty, 3-d": np.zeros((2, 0, 3)),
    "big-endian": np.arange(6, dtype=">i4").reshape(2, 3),
    "booleans": np.array([True, False]),
    "complex": np.array([1 + 2j]),
    "half": np.array([0.5], np.float16),
    "text": np.array(["to", "be", "ü"]),
    "bytes": np.array([b"ab", b"c"]),
    "void": np.array([b"abc"], "V3"),
    "dates": np.array(["2026-11-30"], "M8[D]"),
    "times": np.array([3], "m8[25us]"),
    "structured": np.zeros(3, STRUCTURED),
    "fields with titles": np.zeros(2, [(("a title", "a"), "<i2"), ("ü", "<f8")]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_what_numpy_writes_is_read(name: str) -> None:
    array = ARRAYS[name]
    versions = [(2, 0), (3, 0)] if "titles" in name else [(1, 0), (2, 0), (3, 0)]
    for version in versions:
        if version == (2, 0) and "titles" in name:
            continue  # latin-1 could hold it, but numpy writes 3.0
        data = saved(array, version)
        for given in (data, bytearray(data), memoryview(data)):
            read = load_npy(given)
            assert read.dtype == array.dtype
            assert read.dtype.byteorder == array.dtype.byteorder
            assert read.shape == array.shape
            assert read.tobytes() == array.tobytes()
            assert read.flags.f_contiguous == array.flags.f_contiguous


def test_nothing_is_copied_and_only_writable_data_can_be_written_to() -> None:
    data = bytearray(saved(np.zeros(4, np.uint8)))
    array = load_npy(data)
    array[1] = 9
    assert data[-3] == 9
    with pytest.raises(BufferError):  # it would move below the array
        data.append(1)
    assert not load_npy(bytes(data)).flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        load_npy(memoryview(data).toreadonly())[0] = 1


def test_the_array_keeps_the_data_alive() -> None:
    class Data(bytearray):
        pass

    data = Data(saved(np.arange(4)))
    gone = weakref.ref(data)
    array = load_npy(data)
    del data
    assert gone() is not None
    assert array.tolist() == [0, 1, 2, 3]
    del array
    gc.collect()
    assert gone() is None


def test_a_mapped_file_is_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(5))
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = load_npy(memoryview(pages))
    with pytest.raises(BufferError):  # it is looked at
        pages.close()
    assert array.tolist() == [0, 1, 2, 3, 4]
    del array
    gc.collect()
    pages.close()


class Evil:
    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)


def test_objects_are_never_unpickled() -> None:
    file = io.BytesIO()
    np.save(file, np.array([Evil(), None], dtype=object), allow_pickle=True)
    for data in (
        file.getvalue(),
        with_header(
            str(
                np.lib.format.header_data_from_array_1_0(np.zeros(1, [("a", "i4"), ("o", object)]))
            ),
            pickle.dumps(Evil()),
        ),
    ):
        with pytest.raises(DecodeError, match=r"holds Python objects.*any code"):
            load_npy(data)


GOOD = {"descr": "<i4", "fortran_order": False, "shape": (2,)}


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({**GOOD, "shape": (10**18,)}, "cut short"),
        ({**GOOD, "shape": (10**9,) * 10}, "cut short"),
        ({**GOOD, "shape": (-1,)}, "at least 0"),
        ({**GOOD, "shape": [2]}, "a tuple of ints"),
        ({**GOOD, "shape": (2.0,)}, "a tuple of ints"),
        ({**GOOD, "shape": (True,)}, "a tuple of ints"),
        ({**GOOD, "shape": (0, 10**30)}, "makes no sense"),
        ({**GOOD, "shape": (1,) * 40}, "40 dimensions"),
        ({**GOOD, "shape": (0,) * 100}, "makes no sense"),
        ({**GOOD, "fortran_order": 1}, "fortran_order must be"),
        ({**GOOD, "descr": "O"}, "Python objects"),
        ({**GOOD, "descr": "|O8"}, "Python objects"),
        ({**GOOD, "descr": [("a", [("b", "O")])]}, "Python objects"),
        ({**GOOD, "descr": "f4,i4"}, "no dtype that can be read"),
        ({**GOOD, "descr": "a5"}, "no dtype that can be read"),
        ({**GOOD, "descr": "V999999999999"}, "no dtype that can be read"),
        ({**GOOD, "descr": "U999999999"}, "makes no sense|cut short"),
        ({**GOOD, "descr": ("<f4", (1,))}, "no dtype that an array can have"),
        ({**GOOD, "descr": [("a", "<f4", (10**9, 10**9))]}, "makes no sense"),
        ({**GOOD, "descr": ()}, "makes no sense"),
        ({**GOOD, "descr": [("a", "<i4"), ("a", "<i4")]}, "makes no sense"),
        ({**GOOD, "descr": 5}, "no dtype that can be read"),
        ({**GOOD, "descr": {"names": ["a"]}}, "no dtype that can be read"),
        ({"descr": "<i4", "shape": (2,)}, "a dict of descr"),
        ({**GOOD, "more": 1}, "a dict of descr"),
        ([], "a dict of descr"),
    ],
    ids=str,
)
def test_a_hostile_header_is_refused(header: Any, says: str) -> None:
    with pytest.raises(DecodeError, match=says) as caught:
        load_npy(with_header(repr(header), bytes(8)))
    assert caught.value.offset is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "}",
        "__import__('os')",
        "[" * 9000,
        "-" * 9000 + "1",
        "9" * 9000,
        "{**{}}",
        "\0",
        "(" * 150,
    ],
    ids=lambda text: text[:10],
)
def test_a_header_that_is_no_literal_is_refused(text: str) -> None:
    for version in (1, 2, 3):
        with pytest.raises(DecodeError, match=r"makes no sense, at byte 1[02]"):
            load_npy(with_header(text, version=version))


def test_a_false_length_allocates_nothing() -> None:
    data = with_header(repr({**GOOD, "shape": (1 << 40,)}), bytes(8))
    huge = b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100)
    tracemalloc.start()
    try:
        for bad in (data, huge):
            with pytest.raises(DecodeError):
                load_npy(bad)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_long_header_is_not_parsed() -> None:
    text = repr(GOOD)
    assert load_npy(with_header(text.ljust(10_000), bytes(8), version=2)).tolist() == [0, 0]
    with pytest.raises(DecodeError, match=r"claims 10,001 bytes, at byte 8; at most 10,000"):
        load_npy(with_header(text.ljust(10_001), bytes(8), version=2))


def test_data_cut_anywhere_says_where() -> None:
    data = saved(np.arange(6, dtype=np.int16))
    for end in range(1, len(data)):
        with pytest.raises(DecodeError, match="cut short") as caught:
            load_npy(data[:end])
        assert caught.value.offset == end
    with pytest.raises(DecodeError, match="begins with nothing at byte 0"):
        load_npy(b"")
    with pytest.raises(DecodeError, match=r"3 bytes too many.* ends at byte 140") as caught:
        load_npy(data + b"abc")
    assert caught.value.offset == len(data)


def test_what_is_no_array_is_named() -> None:
    with pytest.raises(DecodeError, match=r"no \.npy file: it begins with 50 4b .*use load_npz"):
        load_npy(b"PK\x03\x04")
    with pytest.raises(DecodeError, match=r"version 4\.0"):
        load_npy(b"\x93NUMPY\x04\x00" + bytes(100))
    with pytest.raises(TypeError, match="read the file first"):
        load_npy("a.npy")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="contiguous"):
        load_npy(memoryview(saved(np.arange(3)))[::2])


def test_in_a_pipeline_the_note_names_the_item() -> None:
    data = saved(np.arange(3))
    pipeline = PipelineBuilder().add_source([data, data[:-1]]).pipe(load_npy, concurrency=2).build()
    with pytest.raises(DecodeError, match="cut short") as caught, pipeline.run_sync() as run:
        for array in run:
            assert array.tolist() == [0, 1, 2]
    assert any("item 1" in note for note in caught.value.__notes__)
