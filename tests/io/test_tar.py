"""`iter_tar`: formats, sources, compression, what is passed over, and damage."""

from __future__ import annotations

import gzip
import io
import logging
import os
import pickle
import random
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any, assert_type

import pytest
from sample_tars import (
    END,
    Dribble,
    header,
    member,
    octal,
    packed,
    records,
    tar_of,
)

from spdl_async import Pipeline, PipelineBuilder
from spdl_async.errors import ArchiveError
from spdl_async.io import SampleDecoder, SkippedMember, TarMember, iter_tar, tar_samples
from spdl_async.sources import TarShards

pytestmark = pytest.mark.torch

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
THREE = {"a.txt": b"one", "b/c.bin": bytes(range(256)) * 4, "d": b""}


def contents(source: Any, **options: Any) -> list[tuple[str, bytes]]:
    return [(m.name, bytes(m.data)) for m in iter_tar(source, **options)]


def until_error(source: Any, **options: Any) -> tuple[list[tuple[str, bytes]], ArchiveError]:
    found: list[tuple[str, bytes]] = []
    with pytest.raises(ArchiveError) as caught:
        for each in iter_tar(source, **options):
            found.append((each.name, bytes(each.data)))
    return found, caught.value


# Formats


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("how", ["plain", "gzip", "zstd"])
def test_every_format_from_every_source(kind: int, how: str, tmp_path: Path) -> None:
    if how == "zstd":
        pytest.importorskip("zstandard")
    content = {**THREE, "folder/" * 13 + "n" * 90: b"ustar has a prefix for it", "ü/é.txt": b"x"}
    data = packed(tar_of(content, kind=kind), how)
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    with path.open("rb") as file:
        sources = [path, str(path), data, bytearray(data), memoryview(data), file, Dribble(data)]
        for source in [*sources, Dribble(data, 1)]:
            assert contents(source) == list(content.items())


def test_data_are_views_where_all_is_there_and_bytes_where_it_is_not(tmp_path: Path) -> None:
    data = tar_of(THREE)
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    whole: list[Any] = [path, data]
    assert all(type(m.data) is memoryview for source in whole for m in iter_tar(source))
    parts: list[Any] = [io.BytesIO(data), gzip.compress(data)]
    assert all(type(m.data) is bytes for source in parts for m in iter_tar(source))


def test_views_outlive_the_iteration_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(tar_of(THREE))
    kept = list(iter_tar(path))
    path.unlink()
    assert [bytes(m.data) for m in kept] == list(THREE.values())


def test_offsets_are_where_tarfile_finds_the_members() -> None:
    content = {"n" * 120: b"pax", "plain": b"1234", "ü": b"5"}
    for kind in FORMATS.values():
        data = tar_of({"a": b"x"} if kind == tarfile.USTAR_FORMAT else content, kind=kind)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            wanted = [(m.offset, m.size, m.offset_data) for m in tar]
        assert [m[2:] for m in iter_tar(data)] == wanted
        for each in iter_tar(data):
            assert data[each.data_offset : each.data_offset + each.size] == each.data


def test_old_archives_without_magic() -> None:
    data = member(b"a", b"v7", kind=b"\0", magic=b"") + header(b"dir/", kind=b"\0", magic=b"") + END
    skipped: list[SkippedMember] = []
    assert contents(data, name="x.tar", on_skip=skipped.append) == [("a", b"v7")]
    assert skipped == [SkippedMember("x.tar", "dir/", 1024, "directory")]


def test_numbers_in_all_their_spellings() -> None:
    sizes = [
        b"00000000003\0",
        b"         3 \0",
        b"3\0garbage   ",
        b"000000000003",
        b"\x80" + bytes(10) + b"\x03",
    ]
    body = b"abc" + bytes(509)
    data = b"".join(header(b"x", size=size) + body for size in sizes) + END
    assert contents(data) == [("x", b"abc")] * 5
    spellings = [b"%06o\0 ", b"%07o\0", b" %06o\0", b"%6o \0"]
    plain = header(b"x")
    total = int(plain[148:154], 8)
    blocks = [plain[:148] + text % total + plain[156:] for text in spellings]
    assert len(contents(b"".join(blocks) + END)) == 4


def test_checksums_of_signed_bytes() -> None:
    data = member("é".encode(), b"x", signed=True)
    assert data != member("é".encode(), b"x")
    assert contents(data + END) == [("é", b"x")]


def test_names_that_are_no_utf8_keep_their_bytes() -> None:
    ((name, _),) = contents(member(b"caf\xe9", b"") + END)
    assert os.fsencode(name) == b"caf\xe9"
    pax = records(hdrcharset=b"BINARY", path=b"caf\xe9.txt")
    data = member(b"pax", pax, kind=b"x") + member(b"short", b"1") + END
    ((name, _),) = contents(data)
    assert os.fsencode(name) == b"caf\xe9.txt"


def test_pax_size_and_empty_values_and_global_headers() -> None:
    local = member(b"pax", records(size=b"3", path=b""), kind=b"x")
    first = local + header(b"named") + b"abc" + bytes(509)
    globals_ = member(b"pax", records(path=b"all", comment=b"x"), kind=b"g")
    data = first + globals_ + member(b"b", b"1") + member(b"c", b"2")
    data += member(b"pax", records(path=b"mine"), kind=b"x") + member(b"d", b"3") + END
    assert contents(data) == [("named", b"abc"), ("all", b"1"), ("all", b"2"), ("mine", b"3")]


def test_prefix_is_read_in_ustar_only() -> None:
    posix = member(b"b", b"1", prefix=b"a/x")
    gnu = member(b"b", b"1", prefix=b"14371", magic=b"ustar  \0")
    assert [name for name, _ in contents(posix + gnu + END)] == ["a/x/b", "b"]


def test_archives_one_behind_the_other() -> None:
    one, two = tar_of({"a": b"1"}), tar_of({"b": b"2"})
    assert contents(one + two) == [("a", b"1"), ("b", b"2")]
    assert contents(gzip.compress(one) + gzip.compress(two)) == [("a", b"1"), ("b", b"2")]
    cut = gzip.compress(one[:700]) + gzip.compress(one[700:]) + bytes(100)
    assert contents(cut) == [("a", b"1")]
    pytest.importorskip("zstandard")
    skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    frames = skippable + packed(one[:700], "zstd") + packed(one[700:], "zstd")
    assert contents(frames) == [("a", b"1")]


# What is no file


def special() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for kind in (
            tarfile.DIRTYPE,
            tarfile.SYMTYPE,
            tarfile.LNKTYPE,
            tarfile.CHRTYPE,
            tarfile.FIFOTYPE,
        ):
            info = tarfile.TarInfo(f"kind-{kind.decode()}")
            info.type, info.linkname = kind, "../../etc/passwd" if kind in b"12" else ""
            tar.addfile(info)
        info = tarfile.TarInfo("file")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    return file.getvalue()


def test_what_is_no_file_is_passed_over_and_told(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for source in (special(), io.BytesIO(special())):
        skipped: list[SkippedMember] = []
        caplog.clear()
        assert contents(source, name="x.tar", on_skip=skipped.append) == [("file", b"x")]
        reasons = ["directory", "symbolic link", "hard link", "character device", "FIFO"]
        assert [each.reason for each in skipped] == reasons
        assert [each.archive for each in skipped] == ["x.tar"] * 5
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "x.tar: passed over 1 × directory, 1 × symbolic link" in record.message
        assert "'kind-2' at byte 512" in record.message
    assert not list(tmp_path.iterdir())


def test_directories_alone_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    data = header(b"a/", kind=b"5") + member(b"a/b", b"1") + END
    with caplog.at_level(logging.INFO):
        assert contents(data) == [("a/b", b"1")]
    assert not caplog.records


def test_the_size_of_a_link_is_not_believed() -> None:
    for kind in (b"1", b"2", b"5"):
        data = header(b"link", kind=kind, size=octal(700)) + member(b"a", b"1") + END
        assert contents(data) == contents(Dribble(data)) == [("a", b"1")]


def test_sparse_and_unknown_members_are_passed_over_with_their_bodies() -> None:
    old = (
        header(b"old", kind=b"S", size=octal(5), rest={482: b"\1"}) + bytes(504) + b"\1" + bytes(7)
    )
    old += bytes(512) + b"12345" + bytes(507)
    pax = member(b"pax", records(GNU__sparse__major=b"1", GNU__sparse__name=b"real"), kind=b"x")
    pax += member(b"GNUSparseFile.0/real", b"map")
    data = old + pax + member(b"what", b"body" * 200, kind=b"Z") + member(b"b", b"1") + END
    for source in (data, Dribble(data)):
        skipped: list[SkippedMember] = []
        assert contents(source, on_skip=skipped.append) == [("b", b"1")]
        assert [(s.name, s.reason) for s in skipped] == [
            ("old", "sparse file"),
            ("real", "sparse file"),
            ("what", "member of unknown type 'Z'"),
        ]


# Damage (scenario I1): what was whole comes first, then an error that says where


def plain_end(data: bytes) -> int:
    """Return where the blocks of zeros begin."""
    return len(data.rstrip(b"\0")) + 511 & -512


WHOLE = tar_of({"a": b"1" * 600, "b": b"2" * 600, "c": b"3" * 600}, kind=tarfile.USTAR_FORMAT)
C_AT = 2 * 1536


@pytest.mark.parametrize("how", ["bytes", "path", "stream", "gzip", "zstd"])
@pytest.mark.parametrize(
    ("data", "what", "name", "offset"),
    [
        pytest.param(WHOLE[: C_AT + 100], "cut short in a header", "", C_AT, id="header"),
        pytest.param(WHOLE[: C_AT + 700], "cut short in a member", "c", C_AT, id="body"),
        pytest.param(
            WHOLE[:C_AT] + b"garbage" * 200, "checksum is wrong", "", C_AT, id="garbage"
        ),
        pytest.param(
            WHOLE[:C_AT] + END + b"garbage" * 200, "behind its end", "", C_AT + 1024, id="tail"
        ),
        pytest.param(WHOLE[:C_AT] + END + b"x", "cut short in a header", "", C_AT + 1024, id="one"),
        pytest.param(
            WHOLE[:C_AT] + header(b"c", size=b"\xff" * 12) + END, "no valid size", "c", C_AT, id="size"
        ),
        pytest.param(
            WHOLE[:C_AT] + header(b"c", size=b"-0000000001\0") + END, "no valid size", "c", C_AT, id="minus"
        ),
        pytest.param(
            WHOLE[:C_AT] + member(b"x", b"no record", kind=b"x") + END, "cannot be read", "", C_AT, id="pax"
        ),
        pytest.param(
            WHOLE[:C_AT] + member(b"x", records(path=b"p"), kind=b"x") + END,
            "without its member", "", C_AT + 1024, id="alone",
        ),
        pytest.param(
            WHOLE[:C_AT] + header(b"L", size=octal(1 << 30), kind=b"L"), "a long name of", "", C_AT, id="name"
        ),
    ],
)  # fmt: skip
def test_members_before_damage_come_first(
    how: str, data: bytes, what: str, name: str, offset: int, tmp_path: Path
) -> None:
    if how == "zstd":
        pytest.importorskip("zstandard")
    path = tmp_path / "shard.tar"
    path.write_bytes(packed(data, how))
    source = {"path": path, "stream": Dribble(data)}.get(how, path.read_bytes())
    found, error = until_error(source, name="s3://b/shard.tar")
    assert found == [("a", b"1" * 600), ("b", b"2" * 600)]
    assert what in str(error)
    assert str(error).startswith("s3://b/shard.tar ")
    assert (error.archive, error.member, error.offset) == ("s3://b/shard.tar", name, offset)
    assert f"{offset:,}" in str(error)


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_compressed_data_that_are_cut_or_damaged(how: str) -> None:
    if how == "zstd":
        pytest.importorskip("zstandard")
    noise = random.Random(0)
    content = {f"{n:03}": noise.randbytes(3000) for n in range(200)}
    data = packed(tar_of(content), how)
    found, error = until_error(data[: len(data) // 2])
    assert found == list(content.items())[: len(found)]
    assert len(found) > 50  # what could be decompressed has been used
    assert f"the {how} data is cut short" in str(error)
    assert error.offset > len(found) * 3000
    found, error = until_error(data[:-3])
    assert found == list(content.items())
    assert f"the {how} data is cut short" in str(error)
    wrong = bytearray(data)
    wrong[-6 if how == "gzip" else -2] ^= 1  # the checksum of all
    found, error = until_error(wrong)
    assert found == list(content.items())[: len(found)]
    assert len(found) > 150  # the last 64 KiB, which did not pass, are not used
    assert f"the {how} data is damaged" in str(error)
    _, error = until_error(data + b"behind it")
    assert f"the {how} data is damaged" in str(error)


@pytest.mark.parametrize("at", [0, 99, 107, 125, 145, 200, 340, 360, 511])
def test_one_wrong_byte_in_a_plain_header_is_found(at: int) -> None:
    content = {f"{n:03}.txt": b"x" for n in range(50)}
    data = bytearray(tar_of(content, kind=tarfile.USTAR_FORMAT))
    data[20 * 1024 + at] ^= 4
    for source in (bytes(data), Dribble(bytes(data), 5000)):
        found, error = until_error(source)
        assert len(found) == 20
        assert "checksum is wrong (byte 20,480, behind '019.txt')" in str(error)


def test_more_checksums_than_are_remembered() -> None:
    blocks = [
        member(b"%c%c%c" % (n % 13 + 65, n // 13 % 200 + 1, n // 2600 + 1), b"")
        for n in range(9000)
    ]
    names = [name for name, _ in contents(b"".join(blocks) + END)]
    assert len(names) == 9000
    assert len(set(names)) == 9000


def test_missing_end_is_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    data = tar_of(THREE)
    for source in (data[: plain_end(data)], Dribble(data[: plain_end(data)])):
        caplog.clear()
        assert contents(source, name="x.tar") == list(THREE.items())
        (record,) = caplog.records
        assert "x.tar: the two blocks of zeros that end a tar archive are missing" in record.message
        assert "behind 'd'" in record.message
    caplog.clear()
    assert contents(data) == list(THREE.items())
    assert not caplog.records


def test_padding_of_the_last_member_may_be_missing() -> None:
    data = member(b"a", b"123")[:515]
    assert contents(data) == [("a", b"123")] == contents(io.BytesIO(data))
    assert until_error(data[:514])[1].member == "a"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty, 0 bytes"),
        (b"PK\x03\x04" + bytes(600), "iter_zip"),
        (b"<!DOCTYPE html><html>" + bytes(600), "a web page"),
        (b"<html>Not found</html>", "a web page"),
        (b"BZh9" + bytes(600), "bz2.open"),
        (b"\xfd7zXZ\0" + bytes(600), "lzma.open"),
        (b"\xff\xd8\xff\xe0" + bytes(600), r"b'\xff\xd8\xff\xe0"),
    ],
)
def test_what_is_no_tar_is_named(data: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    for source in (data, path, Dribble(data)):
        found, error = until_error(source)
        assert not found
        assert what in str(error)
        assert error.offset == 0


def test_a_size_that_is_a_lie_allocates_nothing(tmp_path: Path) -> None:
    huge = header(b"huge", size=b"\x80" + bytes(3) + b"\x7f" + b"\xff" * 7)  # 8 EiB less one byte
    pax = member(b"pax", records(size=b"9223372036854775807"), kind=b"x") + header(b"huge")
    for data in (huge, pax):
        path = tmp_path / "x.tar"
        path.write_bytes(data)
        for make in (bytes, Dribble, gzip.compress, lambda _: path.open("rb")):  # noqa: B023 -- called here
            for most in (1 << 30, None):
                source = make(data)
                tracemalloc.start()
                _, error = until_error(source, max_member_bytes=most)
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert peak < 2_000_000
                assert error.member == "huge"
                if hasattr(source, "close"):
                    source.close()


def test_large_members_are_refused_only_where_they_cost_memory() -> None:
    data = tar_of({"a": b"1", "large": bytes(5000)})
    assert len(contents(data, max_member_bytes=4999)) == 2
    for source in (io.BytesIO(data), gzip.compress(data)):
        found, error = until_error(source, max_member_bytes=4999)
        assert found == [("a", b"1")]
        assert "5,000 bytes, more than max_member_bytes=4,999" in str(error)
    assert len(contents(io.BytesIO(data), max_member_bytes=5000)) == 2
    with pytest.raises(ValueError, match="negative"):
        iter_tar(data, max_member_bytes=-1)


def test_decompression_is_bounded() -> None:
    bomb = gzip.compress(header(b"bomb", size=octal(1 << 26)) + bytes(1 << 26))
    tracemalloc.start()
    until_error(bomb, max_member_bytes=1000)
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()


# Sources


def test_wrong_sources_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="not int"):
        iter_tar(3)  # type: ignore[arg-type]  # the point
    with pytest.raises(TypeError, match="must be binary"):
        list(iter_tar(io.StringIO("text")))  # type: ignore[arg-type]  # the point
    with pytest.raises(FileNotFoundError):
        list(iter_tar("/nowhere/x.tar"))


def test_an_async_stream_is_refused() -> None:
    class Response:
        async def read(self, size: int, /) -> bytes:
            raise AssertionError

    with pytest.raises(TypeError, match="not async"):
        list(iter_tar(Response()))  # type: ignore[arg-type]  # the point


def test_a_pipe_is_read_by_its_path(tmp_path: Path) -> None:
    import threading

    path = tmp_path / "pipe"
    os.mkfifo(path)
    data = tar_of(THREE)
    writer = threading.Thread(target=path.write_bytes, args=(data,))
    writer.start()
    assert contents(path) == list(THREE.items())
    writer.join()


def test_an_errors_own_attributes_survive_pickling() -> None:
    _, error = until_error(WHOLE[: C_AT + 700], name="x.tar")
    again = pickle.loads(pickle.dumps(error))
    assert (again.archive, again.member, again.offset) == ("x.tar", "c", C_AT)
    assert str(again) == str(error)


def test_types() -> None:
    assert_type(list(iter_tar(WHOLE)), list[TarMember])
    shards = PipelineBuilder().add_source([WHOLE])
    assert_type(shards.expand(iter_tar).build(), Pipeline[TarMember])
    assert_type(shards.expand(tar_samples).build(), Pipeline[dict[str, Any]])
    decoded = shards.expand(tar_samples).pipe(SampleDecoder(), concurrency=2)
    assert_type(decoded.build(), Pipeline[dict[str, Any]])
    source = PipelineBuilder().add_source(TarShards("mem://", open=lambda _: WHOLE))
    assert_type(source.build(), Pipeline[dict[str, Any]])


def test_a_member_is_a_tuple() -> None:
    name, data, offset, size, data_offset = next(iter(iter_tar(member(b"a", b"1") + END)))
    assert (name, bytes(data), offset, size, data_offset) == ("a", b"1", 0, 1, 512)
    assert TarMember._fields == ("name", "data", "offset", "size", "data_offset")


def test_random_archives_are_read_as_tarfile_reads_them() -> None:
    draw = random.Random(7)
    for _ in range(60):
        content = [
            ("".join(draw.choices("ab/.é", k=draw.choice([1, 5, 99, 100, 101, 300]))).strip("/") or "x",
             draw.randbytes(draw.choice([0, 1, 511, 512, 513, 5000, 300_000])))
            for _ in range(draw.randrange(12))
        ]  # fmt: skip
        data = tar_of(content, kind=draw.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
        for source in (
            data,
            io.BytesIO(data),
            Dribble(data, draw.choice([513, 70_000])),
            gzip.compress(data, 1),
        ):
            assert contents(source) == content
