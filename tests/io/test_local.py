"""Reading local files (H6, H10)."""

from __future__ import annotations

import errno
import functools
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spdl_async import PipelineBuilder
from spdl_async.io import read_file, read_image, stream_file


async def stream(path: Any, **options: Any) -> bytes:
    return b"".join([piece async for piece in stream_file(path, **options)])


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path must be short
    try:
        server.bind(path.name)
    finally:
        os.chdir(here)
        server.close()


def make_closed(path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path.write_bytes(b"x")
    path.chmod(0)


BAD: list[tuple[str, Callable[[Path], object], type[OSError], int]] = [
    ("missing", lambda path: None, FileNotFoundError, errno.ENOENT),
    ("folder", lambda path: path.mkdir(), IsADirectoryError, errno.EISDIR),
    ("link to nothing", lambda path: path.symlink_to("gone"), FileNotFoundError, errno.ENOENT),
    ("link to itself", lambda path: path.symlink_to(path), OSError, errno.ELOOP),
    ("pipe", make_fifo, OSError, errno.EINVAL),
    ("socket", make_socket, OSError, errno.ENXIO),
    ("device", lambda path: path.symlink_to("/dev/null"), OSError, errno.EINVAL),
    ("below a file", lambda path: path.symlink_to(f"{__file__}/x"), NotADirectoryError, 20),
    ("no permission", make_closed, PermissionError, errno.EACCES),
]


@pytest.mark.parametrize(("name", "make", "kind", "number"), BAD, ids=[row[0] for row in BAD])
async def test_what_is_no_file_is_refused_with_its_path(
    name: str, make: Callable[[Path], object], kind: type[OSError], number: int, tmp_path: Path
) -> None:
    path = tmp_path / name
    make(path)
    with pytest.raises(kind) as caught:
        read_file(path)
    assert (caught.value.errno, caught.value.filename) == (number, str(path))
    with pytest.raises(kind) as caught:
        await stream(path)
    assert (caught.value.errno, caught.value.filename) == (number, str(path))


async def test_sizes(tmp_path: Path) -> None:
    for size in (0, 1, 4095, 4096, 1_000_000):
        data = os.urandom(size)
        path = tmp_path / "file"
        path.write_bytes(data)
        assert read_file(path) == data
        assert await stream(path) == data
        assert await stream(str(path), chunk_size=10_000) == data


NAMES = [
    "é",
    "中文",
    "🙂 and spaces",
    "100%41",
    "new\nline",
    "e\u0301",
    "\u00e9",
    "#?&",
    "'\"",
    "-x",
]


async def test_names(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).write_bytes(name.encode())
    for name in NAMES:
        path = tmp_path / name
        for form in (path, str(path), os.fsencode(path)):
            assert read_file(form) == name.encode()
            assert await stream(form) == name.encode()


async def test_names_that_are_no_unicode_and_long_paths(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path) + b"/\xff\xfe.bin"
    (tmp_path / os.fsdecode(b"\xff\xfe.bin")).write_bytes(b"raw")
    assert read_file(raw) == read_file(os.fsdecode(raw)) == await stream(os.fsdecode(raw)) == b"raw"
    deep = tmp_path.joinpath(*["d" * 200] * 4)
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"deep")
    assert read_file(deep / "file") == b"deep"
    with pytest.raises(OSError, match="too long") as caught:
        read_file(tmp_path / ("n" * 300))
    assert caught.value.errno == errno.ENAMETOOLONG


async def test_a_url_is_no_file_and_says_what_fetches_it() -> None:
    for read in (read_file, read_image):
        with pytest.raises(FileNotFoundError) as caught:
            read("https://127.0.0.1/a.jpg")
        assert [note for note in caught.value.__notes__ if ".pipe(fetch)" in note]
    with pytest.raises(FileNotFoundError) as caught:
        read_file("missing.jpg")
    assert not hasattr(caught.value, "__notes__")


async def test_what_is_no_path_is_an_error(tmp_path: Path) -> None:
    for wrong in (0, None, 1.5):
        with pytest.raises(TypeError):
            read_file(wrong)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ValueError, match="null byte"):
        read_file("a\0b")
    with pytest.raises(
        ValueError, match="4 bytes look like the content of a file; give that to decode_"
    ):
        read_file(b"\xff\xd8\0\0")
    with pytest.raises(
        TypeError, match=r"not dict; where it is a field .* on\('field', function\)"
    ):
        read_file({"path": "a"})  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ValueError, match="chunk_size must be at least 1"):
        await stream(tmp_path, chunk_size=0)


def test_an_error_while_reading_has_the_path() -> None:
    if not os.path.exists("/proc/self/mem"):
        pytest.skip("Linux only")
    with pytest.raises(OSError, match="/proc/self/mem") as caught:  # address 0 cannot be read
        read_file("/proc/self/mem")
    assert caught.value.filename == "/proc/self/mem"


def test_reading_and_decoding_are_one_hop(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}").write_bytes(b"x" * number)
    (tmp_path / "pipe").symlink_to("gone")
    pipeline = (
        PipelineBuilder()
        .add_source(sorted(tmp_path.iterdir()))
        .pipe(read_file, concurrency=4, on_error="skip")
        .pipe(len, concurrency=4, on_error="skip")
        .build()
    )
    assert "read_file → len" in str(pipeline.describe()) or "fused" in str(pipeline.describe())
    with pipeline.run_sync() as run:
        assert list(run) == list(range(20))
    (failure,) = run.failures
    assert str(tmp_path / "pipe") in failure.message


async def test_a_stream_that_is_left_closes_its_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    pipeline = (
        PipelineBuilder()
        .add_source([path])
        .pipe(functools.partial(stream_file, chunk_size=10))
        .build()
    )
    async with pipeline.run() as run:
        async for piece in run:
            assert piece == bytes(10)
            break
    # The check of the suite finds a descriptor that is left open.
