"""The bytes of a stream, inflated where they are compressed, in pieces of bounded size."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Protocol

from spdl_async.errors import DecodeError
from spdl_async.io._extras import need

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPABLE = b"\x2a\x4d\x18"  # after a first byte of 0x50 to 0x5f

_READ = 1 << 18  # bytes of the stream read at once
_MOST = 1 << 20  # bytes of a piece of inflated data
# A block of zstd takes at least 4 bytes and holds at most 128 KiB (RFC 8878, 3.1.1.2), so what this
# many bytes inflate to is at most 32 MiB.
_ZSTD_READ = 1 << 10
_ZSTD_WINDOW = 1 << 27  # the most that zstd needs unless it was told --ultra or --long


class Readable(Protocol):
    """A binary stream."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""


def read_pieces(stream: Readable) -> Iterator[bytes]:
    """Yield the content of a stream, decompressed if it begins as gzip or zstd does.

    Raises:
        DecodeError: the compressed data is damaged or cut short; ``offset`` is where, in the stream.
        ImportError: it is zstd, and zstandard is not installed.
    """
    first = _read(stream)
    while first and len(first) < 4 and (more := _read(stream)):
        first += more
    if first.startswith(GZIP):
        yield from _frames(stream, first, _Gzip(), "gzip")
    elif first.startswith(ZSTD) or (first[1:4] == ZSTD_SKIPPABLE and first[0] >> 4 == 5):
        yield from _frames(stream, first, _Zstd(), "zstd")
    else:
        while first:
            yield first
            first = _read(stream)


def _read(stream: Readable) -> bytes:
    found = stream.read(_READ)
    if not isinstance(found, bytes):
        raise TypeError(
            f"a binary stream is needed, whose read() returns bytes; this one returned "
            f"{type(found).__name__}: open it with mode 'rb'"
        )
    return found


class _Gzip:
    """Inflates the members of a gzip file, one after the other."""

    error: type[Exception] = zlib.error
    padding = b"\0"  # may follow the last member

    def new(self) -> None:
        self._inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data and not self._inflater.eof:
            yield self._inflater.decompress(data, _MOST)
            data = self._inflater.unconsumed_tail

    @property
    def rest(self) -> bytes | None:
        """What follows the end of a member; None before it."""
        return self._inflater.unused_data if self._inflater.eof else None


class _Zstd:
    """Inflates the frames of a zstd file, one after the other."""

    padding = b""

    def __init__(self) -> None:
        zstandard = need("zstandard", "text")
        self.error: type[Exception] = zstandard.ZstdError
        self._context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)

    def new(self) -> None:
        self._inflater: Any = self._context.decompressobj()
        self._after = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), _ZSTD_READ):
            piece = self._inflater.decompress(data[at : at + _ZSTD_READ])
            yield from (piece[k : k + _MOST] for k in range(0, len(piece), _MOST))
            if self._inflater.eof:
                self._after = data[at + _ZSTD_READ :]
                return

    @property
    def rest(self) -> bytes | None:
        return self._inflater.unused_data + self._after if self._inflater.eof else None


def _frames(stream: Readable, data: bytes, codec: _Gzip | _Zstd, what: str) -> Iterator[bytes]:
    read, inside = len(data), False
    codec.new()
    try:
        while data:
            inside = True
            for piece in codec.feed(data):
                if piece:
                    yield piece
            data, rest = b"", codec.rest
            if rest is not None:
                inside = False
                codec.new()
                data = rest.lstrip(codec.padding)
            while not data and (more := _read(stream)):
                read += len(more)
                data = more if inside else more.lstrip(codec.padding)
    except codec.error as error:
        raise DecodeError(
            f"damaged {what} data, at or before its byte {read:,}: {error}", offset=read
        ) from error
    if inside:
        raise DecodeError(f"{what} data cut short: it ends at its byte {read:,}", offset=read)
