"""Archives for the tests, made by tarfile where it can and by hand where it cannot."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any

BLOCK = 512
END = bytes(2 * BLOCK)

Content = Mapping[str, bytes] | Iterable[tuple[str, bytes]]


def pairs(content: Content) -> list[tuple[str, bytes]]:
    return list(content.items() if isinstance(content, Mapping) else content)


def tar_of(content: Content, *, kind: int = tarfile.PAX_FORMAT, **options: Any) -> bytes:
    """Return an archive that tarfile makes."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind, **options) as tar:
        for name, data in pairs(content):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def header(
    name: bytes,
    *,
    size: bytes = b"00000000000\0",
    kind: bytes = b"0",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    signed: bool = False,
    checksum: bytes | None = None,
    rest: Mapping[int, bytes] = {},
) -> bytes:
    """Return one header, field by field."""
    block = bytearray(BLOCK)
    block[: len(name)] = name
    block[124:136] = size
    block[156:157] = kind
    block[257 : 257 + len(magic)] = magic
    block[345 : 345 + len(prefix)] = prefix
    for at, data in rest.items():
        block[at : at + len(data)] = data
    block[148:156] = b" " * 8
    total = sum(b - 256 if signed and b > 127 else b for b in block)
    block[148:156] = b"%06o\0 " % total if checksum is None else checksum
    return bytes(block)


def octal(size: int) -> bytes:
    return b"%011o\0" % size


def member(name: bytes, data: bytes, **options: Any) -> bytes:
    """Return header, body and padding of one file."""
    return header(name, size=octal(len(data)), **options) + data + bytes(-len(data) % BLOCK)


def records(**pax: bytes) -> bytes:
    """Return the records of an extended header."""
    body = b""
    for key, value in pax.items():
        pair = b" " + key.replace("__", ".").encode() + b"=" + value + b"\n"
        length = len(pair)
        while len(str(length)) + len(pair) != length:
            length = len(str(length)) + len(pair)
        body += str(length).encode() + pair
    return body


def packed(data: bytes, how: str) -> bytes:
    """Return data as it is, gzipped, or as zstd."""
    if how == "gzip":
        return gzip.compress(data, mtime=0)
    if how == "zstd":
        import zstandard

        return zstandard.ZstdCompressor(write_checksum=True).compress(data)
    return data


class Dribble:
    """A stream that gives few bytes at a time, and can do nothing but read."""

    def __init__(self, data: bytes, most: int = 700) -> None:
        self._file = io.BytesIO(data)
        self._most = most

    def read(self, size: int, /) -> bytes:
        return self._file.read(min(size, self._most))
