"""read_jsonl: every way in which a file of lines can be written, cut short or damaged."""

from __future__ import annotations

import gc
import gzip
import io
import json
import logging
import os
import random
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spdl_async import PipelineBuilder
from spdl_async.errors import DecodeError
from spdl_async.io import _compressed, read_jsonl

zstandard = pytest.importorskip("zstandard")

VALUES: list[Any] = [{"text": "to be"}, {"n": 1}, {"ü": "–"}, [1, 2], "or not", None]
PLAIN = b"".join(json.dumps(value, ensure_ascii=False).encode() + b"\n" for value in VALUES)


def zstd(data: bytes) -> bytes:
    found = zstandard.ZstdCompressor().compress(data)
    assert isinstance(found, bytes)
    return found


def streamed_zstd(data: bytes) -> bytes:
    """Write a frame that does not say its size, as a pipe into zstd does."""
    file = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as writer:
        writer.write(data)
    return file.getvalue()


class Dribble:
    """A stream that returns a few bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        self.file, self.step = io.BytesIO(data), step

    def read(self, size: int, /) -> bytes:
        return self.file.read(min(size, self.step))


FORMS = {
    "plain": PLAIN,
    "gzip": gzip.compress(PLAIN),
    "gzip, members": gzip.compress(PLAIN[:20]) + gzip.compress(b"") + gzip.compress(PLAIN[20:]),
    "gzip, padded": gzip.compress(PLAIN) + bytes(1000),
    "zstd": zstd(PLAIN),
    "zstd, streamed": streamed_zstd(PLAIN),
    "zstd, frames": zstd(PLAIN[:20]) + streamed_zstd(b"") + zstd(PLAIN[20:]),
    "zstd, skippable": b"\x50\x2a\x4d\x18\x03\0\0\0abc" + zstd(PLAIN),
    "BOM": b"\xef\xbb\xbf" + PLAIN,
    "CRLF": PLAIN.replace(b"\n", b"\r\n"),
    "blank lines": b"\n \n" + PLAIN.replace(b"\n", b"\n\n\t\r\n"),
    "no last end": PLAIN[:-1],
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_values_are_read_from_every_form(form: str, tmp_path: Path) -> None:
    data = FORMS[form]
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    for source in (path, str(path), data, bytearray(data), memoryview(data), io.BytesIO(data)):
        assert list(read_jsonl(source)) == VALUES
    for step in (1, 2, 7):
        assert list(read_jsonl(Dribble(data, step))) == VALUES


@pytest.mark.parametrize(
    "data", [b"", b"\n\n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0), zstd(b"")]
)
def test_nothing_is_in_an_empty_file(data: bytes) -> None:
    assert list(read_jsonl(data)) == []


def test_many_lines_over_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    values = [{"n": n, "text": "x" * rng.choice((0, 5, 3000))} for n in range(400)]
    data = "\n".join(map(json.dumps, values)).encode()
    for name, small in (("_READ", 37), ("_MOST", 100), ("_ZSTD_READ", 5)):
        monkeypatch.setattr(_compressed, name, small)
    for form in (data, gzip.compress(data), zstd(data)):
        assert list(read_jsonl(form)) == values


BAD = {
    b"{'a': 1}": "Expecting property name",
    b'{"a": 1} x': "Extra data",
    b'{"a": ': "Expecting value",
    b'{"a": "\xff"}': "not UTF-8: byte 0xff at its position 7",
    b"[" * 100_000: "nested too deep",
    b"9" * 5000: "Exceeds the limit",
    b'"' + b"x" * 6000 + b'"': "longer than max_line_bytes=5,000",
}


@pytest.mark.parametrize(("line", "says"), BAD.items(), ids=[b[:12].hex() for b in BAD])
def test_a_bad_line_is_an_error_that_says_where(line: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(b'{"a": 1}\r\n\n' + line + b"\n{}\n"))
    most = 200_000 if line.startswith(b"[") else 5000
    read = read_jsonl(path, max_line_bytes=most)
    assert next(read) == {"a": 1}
    with pytest.raises(DecodeError, match=says) as caught:
        next(read)
    assert str(caught.value).startswith(f"{path}: line 3, at byte 11: ")
    assert len(str(caught.value)) < 500
    assert (caught.value.path, caught.value.line, caught.value.offset) == (str(path), 3, 11)


def test_utf_16_is_named() -> None:
    with pytest.raises(DecodeError, match="UTF-16: convert the file"):
        list(read_jsonl('{"a": 1}\n'.encode("utf-16")))


def test_damaged_lines_are_skipped_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\nx\n\n2\n" + b"3" * 50 + b"\ny\n4")
    seen: list[DecodeError] = []
    with caplog.at_level(logging.WARNING, "spdl_async"):
        read = read_jsonl(path, damaged="skip", on_damaged=seen.append, max_line_bytes=20)
        assert list(read) == [1, 2, 4]
    assert [(error.line, error.offset) for error in seen] == [(2, 2), (5, 7), (6, 58)]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"{path}: 3 of 7 lines skipped; the first: {path}: line 2"
    )


def test_a_clean_file_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert len(list(read_jsonl(PLAIN, damaged="skip"))) == len(VALUES)
    assert not caplog.records


def test_compressed_data_cut_anywhere_is_an_error_also_when_lines_are_skipped() -> None:
    for data, what in ((FORMS["gzip, members"], "gzip"), (FORMS["zstd, frames"], "zstd")):
        whole = 0
        for end in range(5, len(data)):
            values: list[Any] = []
            try:
                for value in read_jsonl(data[:end], damaged="skip"):
                    values.append(value)
            except DecodeError as error:
                assert f"{what} data" in str(error)  # noqa: PT017 -- an end between members is none
            else:
                whole += 1
            assert values == VALUES[: len(values)]
        assert whole <= 3
    with pytest.raises(DecodeError, match="gzip data cut short: it ends at its byte 40"):
        list(read_jsonl(FORMS["gzip"][:40]))
    with pytest.raises(DecodeError, match="damaged gzip data"):
        list(read_jsonl(FORMS["gzip"] + b"garbage"))
    flipped = bytearray(FORMS["gzip"])
    flipped[-6] ^= 1  # the checksum
    with pytest.raises(DecodeError, match="incorrect data check"):
        list(read_jsonl(flipped))


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
@pytest.mark.parametrize("fill", [b"x", b"\n"])
def test_a_bomb_takes_bounded_memory(pack: Any, fill: bytes) -> None:
    data = pack(fill * ((300 if fill == b"x" else 1) << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="longer than") if fill == b"x" else _nothing():
            list(read_jsonl(data, max_line_bytes=1 << 20))
        # 32 MiB of zstd at once; the pieces of lines take less.
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()


class _nothing:  # noqa: N801 -- a context manager that expects no error
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_the_file_is_closed_however_reading_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n2\nx\n")

    def open_ones() -> list[str]:
        folder = Path("/proc/self/fd")
        found = [os.path.realpath(link) for link in folder.iterdir()]
        return [name for name in found if name == str(path)]

    read = read_jsonl(path)
    assert next(read) == 1
    assert len(open_ones()) == 1
    read.close()
    assert not open_ones()
    with pytest.raises(DecodeError):
        list(read_jsonl(path))
    assert not open_ones()
    stream = io.BytesIO(b"1\n")
    assert list(read_jsonl(stream)) == [1]
    assert not stream.closed
    gc.collect()


def test_options_that_cannot_be_are_refused() -> None:
    for options in ({"damaged": "drop"}, {"on_damaged": print}, {"max_line_bytes": 0}):
        with pytest.raises(ValueError, match="read_jsonl: "):
            next(read_jsonl(b"1", **options))
    with pytest.raises(TypeError, match="a path, bytes or a binary stream, not int"):
        next(read_jsonl(5))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="mode 'rb'"):
        next(read_jsonl(io.StringIO("1")))  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        next(read_jsonl("/nowhere.jsonl"))


def test_another_parser_may_be_given() -> None:
    assert list(read_jsonl(b"1\n2", loads=float)) == [1.0, 2.0]


def test_below_paths_and_as_a_source(tmp_path: Path) -> None:
    paths = []
    for number in range(4):
        paths.append(tmp_path / f"{number}.jsonl.gz")
        paths[-1].write_bytes(
            gzip.compress(b"".join(b"%d\n" % (10 * number + k) for k in range(5)))
        )
    expected = [10 * number + k for number in range(4) for k in range(5)]
    builder = PipelineBuilder().add_source(paths)
    assert list(builder.expand(read_jsonl, concurrency=2).build()) == expected
    assert list(PipelineBuilder().add_source(paths).pipe(read_jsonl).build()) == expected
    whole = PipelineBuilder().add_source(partial(read_jsonl, paths[1])).build()
    assert [list(whole), list(whole)] == [expected[5:10]] * 2
    paths[2].write_bytes(paths[2].read_bytes()[:-9])
    skipping = PipelineBuilder().add_source(paths).expand(read_jsonl, on_error="skip").build()
    with skipping.run_sync() as run:
        assert [v for v in run if not 20 <= v < 30] == [v for v in expected if not 20 <= v < 30]
    (failure,) = run.failures
    assert str(paths[2]) in failure.summary()
