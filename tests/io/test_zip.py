"""`iter_zip`: what is read, what is passed over, what is refused."""

from __future__ import annotations

import io
import logging
import stat
import struct
import tracemalloc
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spdl_async.errors import ArchiveError
from spdl_async.io import SkippedMember, iter_zip

pytestmark = pytest.mark.torch

THREE = {"a.txt": b"one" * 100, "b/ü.bin": bytes(range(256)) * 4, "d": b""}


def zip_of(content: Mapping[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return file.getvalue()


def contents(source: Any, **options: Any) -> list[tuple[str, bytes]]:
    return [(m.name, m.data) for m in iter_zip(source, **options)]


def error_of(source: Any, **options: Any) -> ArchiveError:
    with pytest.raises(ArchiveError) as caught:
        contents(source, name="x.zip", **options)
    assert caught.value.archive == "x.zip"
    assert str(caught.value).startswith("x.zip")
    return caught.value


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_every_method_from_every_source(how: int, tmp_path: Path) -> None:
    data = zip_of(THREE, how)
    path = tmp_path / "x.zip"
    path.write_bytes(data)
    with path.open("rb") as file:
        sources: list[Any] = [path, str(path), data, memoryview(data), io.BytesIO(data), file]
        for source in sources:
            assert contents(source) == list(THREE.items())


def test_offsets_and_sizes() -> None:
    data = zip_of(THREE)
    for each in iter_zip(data):
        assert data[each.offset : each.offset + 4] == b"PK\x03\x04"
        assert each.size == len(each.data)
    assert [m.offset for m in iter_zip(b"#!/bin/sh\n" + data)] == [
        m.offset + 10 for m in iter_zip(data)
    ]


def test_data_descriptors_and_zip64() -> None:
    class Forward(io.RawIOBase):
        """A file that cannot seek: sizes are written behind the data."""

        def __init__(self) -> None:
            self.data = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any, /) -> int:
            self.data += bytes(data)
            return len(data)

    file = Forward()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("large", "w", force_zip64=True) as member:
            member.write(b"x" * 1000)
        archive.writestr("b", b"y")
    assert b"PK\x07\x08" in file.data
    assert contents(file.data) == [("large", b"x" * 1000), ("b", b"y")]


def test_directories_and_links_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.mkdir("dir")
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("a", b"1")
    skipped: list[SkippedMember] = []
    assert contents(file.getvalue(), on_skip=skipped.append) == [("a", b"1")]
    assert [(s.name, s.reason) for s in skipped] == [
        ("dir/", "directory"),
        ("link", "symbolic link"),
    ]
    (record,) = caplog.records
    assert (record.levelno, "1 × symbolic link" in record.message) == (logging.WARNING, True)


def test_encrypted_members_are_refused() -> None:
    data = bytearray(zip_of({"a": b"1", "b": b"2"}))
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.rindex(magic) + at] |= 1
    error = error_of(bytes(data))
    assert "member 'b' at byte 34: is encrypted" in str(error)
    assert (error.member, error.offset) == ("b", 34)


def test_other_methods_are_refused() -> None:
    error = error_of(zip_of({"a": b"1"}, zipfile.ZIP_LZMA))
    assert "member 'a' at byte 0: is compressed by method 14, which is not read here" in str(error)


def test_the_checksum_is_verified() -> None:
    data = bytearray(zip_of({"a": b"1" * 100, "b": b"2" * 100}, zipfile.ZIP_STORED))
    data[data.index(b"222")] ^= 1
    found = iter_zip(bytes(data), name="x.zip")
    assert next(found).name == "a"
    with pytest.raises(ArchiveError, match="member 'b' at byte 131: Bad CRC-32"):
        next(found)


def test_large_members_are_refused_before_they_are_read() -> None:
    bomb = zip_of({"a": b"1", "bomb": bytes(50_000_000)})
    tracemalloc.start()
    error = error_of(bomb, max_member_bytes=1_000_000)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    assert "'bomb' at byte" in str(error)
    assert "50,000,000 bytes, more than max_member_bytes=1,000,000" in str(error)
    assert len(contents(zip_of({"a": bytes(1000)}), max_member_bytes=1000)) == 1


@pytest.mark.parametrize("claim", [10, 1 << 29])
def test_a_size_that_is_a_lie_is_an_error_and_allocates_little(claim: int) -> None:
    data = bytearray(zip_of({"a": bytes(100_000)}))
    struct.pack_into("<L", data, data.index(b"PK\x01\x02") + 24, claim)
    tracemalloc.start()
    error = error_of(bytes(data))
    assert tracemalloc.get_traced_memory()[1] < 8_000_000
    tracemalloc.stop()
    assert error.member == "a"


def test_members_that_overlap_are_refused() -> None:
    data = bytearray(zip_of({"a": b"1" * 100, "b": b"2" * 100}, zipfile.ZIP_STORED))
    second = data.rindex(b"PK\x01\x02")
    struct.pack_into("<L", data, second + 42, 0)  # both directory entries point at the first
    assert "overlaps member 'b' at byte 0" in str(error_of(bytes(data)))


@pytest.mark.parametrize("cut", [0, 1, 30, 200, -1, -22])
def test_cut_archives_give_nothing(cut: int) -> None:
    error_of(zip_of(THREE)[:cut])


def test_wrong_sources_are_refused_at_once() -> None:
    class Pipe:
        def read(self, size: int, /) -> bytes:
            raise AssertionError

    with pytest.raises(TypeError, match="can seek"):
        iter_zip(Pipe())  # type: ignore[arg-type]  # the point
    with pytest.raises(TypeError, match="iter_zip takes a path"):
        iter_zip(3)  # type: ignore[arg-type]  # the point
    with pytest.raises(ValueError, match="negative"):
        iter_zip(b"", max_member_bytes=-1)
    with pytest.raises(FileNotFoundError):
        contents("/nowhere/x.zip")
