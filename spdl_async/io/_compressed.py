"""Inflate what is compressed with gzip or zstd, in pieces of bounded size: lines and archives share this."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final, Protocol

from spdl_async.errors import DecodeError
from spdl_async.io._extras import need

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = b"\x2a\x4d\x18"  # after a first byte of 0x50 to 0x5f

_READ = 1 << 18  # bytes of a stream of lines that are read at once
_MOST = 1 << 20  # bytes of a piece of inflated lines
# A block of zstd takes at least 4 bytes and holds at most 128 KiB (RFC 8878, 3.1.1.2), so what this
# many bytes inflate to is at most 32 MiB.
_ZSTD_READ = 1 << 10
_ZSTD_WINDOW = 1 << 27  # the most that zstd needs unless it was told --ultra or --long


class Readable(Protocol):
    """A binary stream."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""


class PackedError(Exception):
    """Compressed data that cannot be read on.

    Attributes:
        kind: ``"gzip"`` or ``"zstd"``.
        read: bytes of the compressed data that have been read until then.
        reason: what is wrong; None where nothing is but that the data end.
    """

    def __init__(self, kind: str, read: int, reason: Exception | None) -> None:
        super().__init__(kind, read, reason)
        self.kind = kind
        self.read = read
        self.reason = reason


class Gzip:
    """Inflates the members of a gzip file, one after the other; zlib checks length and CRC of each.

    Args:
        most: bytes of a piece of inflated data, at most.
    """

    kind = "gzip"
    error: type[Exception] = zlib.error
    padding = b"\0"  # some writers pad with zeros

    def __init__(self, most: int) -> None:
        self._most = most

    def new(self) -> None:
        self._inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data and not self._inflater.eof:
            yield self._inflater.decompress(data, self._most)
            data = self._inflater.unconsumed_tail

    def last(self) -> bytes:
        """Return what did not fit into the last piece."""
        return self._inflater.flush()

    @property
    def rest(self) -> bytes | None:
        """What follows the end of a member; None before it."""
        return self._inflater.unused_data if self._inflater.eof else None


class Zstd:
    """Inflates the frames of a zstd file, one after the other.

    Args:
        most: bytes of a piece of inflated data, at most.

    Raises:
        ImportError: zstandard is not installed.
    """

    kind = "zstd"
    padding = b""

    def __init__(self, most: int) -> None:
        zstandard = need("zstandard", "text")
        self.error: type[Exception] = zstandard.ZstdError
        self._context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._most = most

    def new(self) -> None:
        self._inflater: Any = self._context.decompressobj()
        self._after = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        most = self._most
        for at in range(0, len(data), _ZSTD_READ):
            piece = self._inflater.decompress(data[at : at + _ZSTD_READ])
            if len(piece) <= most:
                yield piece
            else:
                yield from (piece[k : k + most] for k in range(0, len(piece), most))
            if self._inflater.eof:
                self._after = data[at + _ZSTD_READ :]
                return

    def last(self) -> bytes:
        return b""

    @property
    def rest(self) -> bytes | None:
        return self._inflater.unused_data + self._after if self._inflater.eof else None


def codec_for(head: bytes, most: int) -> Gzip | Zstd | None:
    """Return what inflates data that begin like this, with at least 4 bytes; None: they are not compressed.

    Args:
        head: the beginning of the data.
        most: bytes of a piece of inflated data, at most.

    Raises:
        ImportError: they are zstd, and zstandard is not installed.
    """
    if head.startswith(_GZIP):
        return Gzip(most)
    # The second is a skippable frame, with which a file for parallel decompression may begin.
    if head.startswith(_ZSTD) or (head[1:4] == _ZSTD_SKIPPABLE and head[0] >> 4 == 5):
        return Zstd(most)
    return None


def inflated(chunks: Iterator[bytes], codec: Gzip | Zstd) -> Iterator[bytes]:
    """Yield what compressed data hold, in pieces that are not empty.

    Args:
        chunks: the data, from their beginning.
        codec: of `codec_for`.

    Raises:
        PackedError: they are damaged or cut short.
    """
    read, data, inside = 0, b"", False
    codec.new()
    try:
        while True:
            while not data:
                more = next(chunks, None)
                if more is None:
                    break
                read += len(more)
                data = more if inside else more.lstrip(codec.padding)
            if not data:
                break
            inside = True
            for piece in codec.feed(data):
                if piece:
                    yield piece
            data, rest = b"", codec.rest
            if rest is not None:
                inside = False
                codec.new()
                data = rest.lstrip(codec.padding)
        if inside and (piece := codec.last()):
            yield piece
    except codec.error as error:
        raise PackedError(codec.kind, read, error) from error
    if inside:
        raise PackedError(codec.kind, read, None)


def read_pieces(stream: Readable) -> Iterator[bytes]:
    """Yield the content of a stream, decompressed if it begins as gzip or zstd does.

    Raises:
        DecodeError: the compressed data is damaged or cut short; ``offset`` is where, in the stream.
        ImportError: it is zstd, and zstandard is not installed.
    """
    first = _read(stream)
    while first and len(first) < 4 and (more := _read(stream)):
        first += more
    codec = codec_for(first, _MOST)
    chunks = _chunks(stream, first)
    if codec is None:
        yield from chunks
        return
    try:
        yield from inflated(chunks, codec)
    except PackedError as error:
        kind, read, reason = error.kind, error.read, error.reason
        raise DecodeError(
            f"{kind} data cut short: it ends at its byte {read:,}"
            if reason is None
            else f"damaged {kind} data, at or before its byte {read:,}: {reason}",
            offset=read,
        ) from reason


def _chunks(stream: Readable, first: bytes) -> Iterator[bytes]:
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
