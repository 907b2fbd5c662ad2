"""TokenFile and write_tokens: windows of a mapped file, raw or with a header."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spdl_async import PipelineBuilder
from spdl_async.errors import DecodeError
from spdl_async.io import TokenFile, write_tokens

DOCUMENTS: list[Any] = [[1, 2, 3], np.array([4, 5], np.uint8), [], (600, 7)]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    assert write_tokens(path, DOCUMENTS) == 7
    expected = [1, 2, 3, 4, 5, 600, 7]
    assert np.load(path, mmap_mode="r").tolist() == expected
    file = TokenFile(path, length=3)
    assert file.tokens.tolist() == expected
    assert file.tokens.dtype == np.uint16
    assert [window.tolist() for window in (file[0], file[1], file[-1])] == [
        [1, 2, 3],
        [4, 5, 600],
        [4, 5, 600],
    ]
    assert len(file) == 2
    for index in (2, -3):
        with pytest.raises(IndexError, match=f"no window {index} of 2"):
            file[index]
    assert "7 tokens of uint16, 2 windows of 3" in repr(file)


def test_a_raw_file_needs_its_dtype(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    assert write_tokens(path, DOCUMENTS, raw=True, separator=9) == 11
    stored = [1, 2, 3, 9, 4, 5, 9, 9, 600, 7, 9]
    assert np.fromfile(path, "<u2").tolist() == stored
    assert TokenFile(path, length=4, dtype=np.uint16).tokens.tolist() == stored
    with pytest.raises(ValueError, match="its dtype must be given"):
        TokenFile(path, length=4)
    with pytest.raises(DecodeError, match=r"22 bytes are no whole number of tokens of uint32"):
        TokenFile(path, length=4, dtype=np.uint32)


@pytest.mark.parametrize(
    ("length", "stride", "starts"),
    [(4, None, [0, 4]), (4, 3, [0, 3, 6]), (10, None, [0]), (11, None, []), (1, 4, [0, 4, 8])],
)
def test_windows(length: int, stride: int | None, starts: list[int], tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    write_tokens(path, [range(10)])
    file = TokenFile(path, length=length, stride=stride)
    found = [file[n].tolist() for n in range(len(file))]
    assert found == [list(range(start, start + length)) for start in starts]


def test_windows_are_views_that_keep_the_file_open_and_cannot_be_written_to(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    write_tokens(path, [range(100)])

    def is_mapped() -> bool:
        return str(path) in Path("/proc/self/maps").read_text()

    file = TokenFile(path, length=10)
    window = file[3]
    assert np.shares_memory(window, file.tokens)
    with pytest.raises(ValueError, match="read-only"):
        window[0] = 1
    del file
    gc.collect()
    assert window[0] == 30
    assert is_mapped()
    del window
    gc.collect()
    assert not is_mapped()


@pytest.mark.parametrize("raw", [False, True])
def test_pickled_it_is_mapped_anew(raw: bool, tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_tokens(path, [range(10_000)], raw=raw)
    file = TokenFile(path, length=100, stride=50, dtype=np.uint16)
    data = pickle.dumps(file)
    assert len(data) < 1000
    again = pickle.loads(data)
    assert len(again) == len(file)
    np.testing.assert_array_equal(again[7], file[7])


def test_an_empty_file(tmp_path: Path) -> None:
    for raw in (False, True):
        path = tmp_path / str(raw)
        assert write_tokens(path, [], raw=raw) == 0
        file = TokenFile(path, length=3, dtype=np.uint16)
        assert (len(file), len(file.tokens)) == (0, 0)


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    write_tokens(path, [range(10)])
    good = path.read_bytes()
    for end in range(6, len(good)):
        path.write_bytes(good[:end])
        with pytest.raises(DecodeError, match=f"^{path}: ") as caught:
            TokenFile(path, length=2)
        assert (caught.value.path, caught.value.offset) == (str(path), end)
    path.write_bytes(good + b"x")
    with pytest.raises(DecodeError, match="would end at byte 148, the file ends at byte 149"):
        TokenFile(path, length=2)
    for array in (np.zeros((2, 2), int), np.zeros(3), np.zeros((), int)):
        np.save(path, array)
        with pytest.raises(DecodeError, match="not of one dimension and integers"):
            TokenFile(path, length=2)
    np.save(path, np.zeros(4, ">u2"))
    assert TokenFile(path, length=2)[0].dtype == np.dtype(">u2")
    with pytest.raises(DecodeError, match="its tokens are >u2, not uint16"):
        TokenFile(path, length=2, dtype=np.uint16)
    with pytest.raises(FileNotFoundError):
        TokenFile(tmp_path / "nowhere", length=2)


@pytest.mark.parametrize(
    "options", [{"length": 0}, {"length": 2.0}, {"stride": 0}, {"dtype": float}], ids=str
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="TokenFile: "):
        TokenFile(tmp_path / "a", **{"length": 4, **options})


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    write_tokens(path, [[1]])
    bad: list[tuple[Any, type[Exception], str]] = [
        ([[1], [70_000]], ValueError, "token 70000 of document 1 does not fit into uint16"),
        ([[1], [-1]], ValueError, "token -1 of document 1"),
        ([[1.5]], TypeError, "document 0 must be a 1-D array"),
        ([[[1]]], TypeError, "document 0 must be a 1-D array"),
        (["text"], TypeError, "document 0 must be a 1-D array"),
    ]
    for documents, error, says in bad:
        with pytest.raises(error, match=says):
            write_tokens(path, documents)
    with pytest.raises(ValueError, match="separator"):
        write_tokens(path, [], separator=1 << 20)
    with pytest.raises(ValueError, match="one of integers"):
        write_tokens(path, [], dtype=float)
    assert os.listdir(tmp_path) == ["a.npy"]
    assert TokenFile(path, length=1)[0].tolist() == [1]


def test_as_a_source_and_as_a_lookup(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    pipeline = PipelineBuilder().add_source(range(20)).pipe(lambda n: [n] * 5).build()
    write_tokens(path, pipeline)  # a pipeline is an iterable of documents
    file = TokenFile(path, length=5)
    source = PipelineBuilder().add_source(file).build()
    assert len(source) == 20
    assert [window.tolist() for window in source] == [[n] * 5 for n in range(20)]
    chosen = PipelineBuilder().add_source([7, 3]).pipe(file).build()
    assert [int(window[0]) for window in chosen] == [7, 3]


def test_several_threads_read_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    write_tokens(path, [range(50_000)])
    file = TokenFile(path, length=100)
    wrong: list[int] = []

    def read(step: int) -> None:
        wrong.extend(n for n in range(0, len(file), step) if file[n][0] != n * 100)

    threads = [threading.Thread(target=read, args=(step,)) for step in (1, 2, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int16, np.int64])
def test_indices_of_any_integer_kind(tmp_path: Path, kind: Any) -> None:
    """A sampler's numpy integers: 100 windows of stride 4 overflow 8 bits."""
    path = tmp_path / "t.npy"
    write_tokens(path, [range(400)])
    file = TokenFile(path, length=4)
    assert file[kind(99)].tolist() == [396, 397, 398, 399]
    if np.iinfo(kind).min < 0:
        assert file[kind(-1)].tolist() == [396, 397, 398, 399]
    with pytest.raises(TypeError, match="slice"):
        file[0:2]  # type: ignore[index]
