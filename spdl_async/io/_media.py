"""Where the bytes of a sound or a video come from: memory, or a file that is read in parts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from spdl_async.errors import DecodeError
from spdl_async.io._local import open_regular

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HEAD = 64
"""Bytes of a file that are read when it is opened."""


class Media:
    """Bytes with a position, as decoders of C want to read them: a callback never raises.

    A decoder that calls back from C cannot pass an exception on (cffi prints it and goes on), so
    what goes wrong in a read is kept, and raised by `check` when the decoder has come back.

    Attributes:
        size: how many bytes there are.
    """

    __slots__ = ("_at", "_failure", "_file", "_head", "_view", "size")

    def __init__(self, view: memoryview[int] | None, file: BinaryIO | None) -> None:
        self._view = view
        self._file = file
        self._at = 0
        self._failure: OSError | None = None
        if view is not None:
            self.size = len(view)
        else:
            assert file is not None
            self.size = os.fstat(file.fileno()).st_size
            # Who asks what kind of file it is does so a few bytes at a time.
            self._head = memoryview(file.read(_HEAD))

    def part(self, start: int, count: int) -> memoryview[int]:
        """Return up to ``count`` bytes from ``start``: a view of memory, or what a file gives.

        Raises:
            OSError: the file cannot be read.
        """
        if self._view is not None:
            return self._view[start : start + count]
        assert self._file is not None
        if start + count <= len(self._head):
            return self._head[start : start + count]
        self._file.seek(start)
        parts = list[bytes]()
        count = min(count, max(0, self.size - start))
        while count > 0:  # a raw file may give less than is asked for
            data = self._file.read(count)
            if not data:
                break
            parts.append(data)
            count -= len(data)
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes; none at the end, and where reading fails."""
        if count < 0:
            count = self.size - self._at
        try:
            data = bytes(self.part(self._at, count))
        except OSError as error:
            self._failure = error
            return b""
        self._at += len(data)
        return data

    def readinto(self, buffer: Buffer) -> int:
        """Fill ``buffer`` with the next bytes; return how many there were."""
        into = memoryview(buffer).cast("B")
        data = self.read(len(into))
        into[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a position; one outside of the data is moved to its nearer end."""
        base = (0, self._at, self.size)[whence] if 0 <= whence <= 2 else 0
        self._at = min(max(0, base + offset), self.size)
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def descriptor(self) -> int | None:
        """Return the file's descriptor, at its start, for who reads it from C; None of memory."""
        if self._file is None:
            return None
        self._file.seek(0)
        return self._file.fileno()

    def check(self) -> None:
        """Raise what went wrong in a read, if anything did."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


def media_of_bytes(data: object, function: str, instead: str) -> Media:
    """Look at a bytes-like object, without a copy.

    Raises:
        DecodeError: it is empty.
        TypeError: it is none; the message names ``function`` and what to call ``instead``.
    """
    if isinstance(data, (str, os.PathLike)):
        raise TypeError(
            f"{function} takes the content of a file as bytes, not its path "
            f"({os.fspath(data)!r}): use {instead}"
        )
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # what is no buffer ends below
    except TypeError:
        raise TypeError(
            f"{function} takes the content of a file as bytes, not {type(data).__name__}"
        ) from None
    if view.ndim != 1 or not view.contiguous:
        raise TypeError(
            f"{function} takes the content of a file as contiguous bytes, not an array of shape "
            f"{view.shape}: this seems to be decoded already"
        )
    if view.nbytes == 0:
        raise DecodeError("there is no data to decode: 0 bytes")
    return Media(view.cast("B").toreadonly(), None)


@contextmanager
def media_of_file(path: str | os.PathLike[str]) -> Iterator[Media]:
    """Open a regular file; what is wrong with its content gets the path in front.

    Raises:
        DecodeError: it is empty.
        OSError: it cannot be opened, or is no regular file (which is never waited for).
    """
    with open_regular(path) as file, errors_with(path):
        media = Media(None, file)
        if media.size == 0:
            raise DecodeError("there is no data to decode: 0 bytes")
        yield media


@contextmanager
def errors_with(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put a path in front of what is said about data or about a selection from it."""
    try:
        yield
    except (DecodeError, ValueError, IndexError) as error:
        if type(error) not in (DecodeError, ValueError, IndexError):
            raise
        text = f"{os.fspath(path)}: {error}"
        if isinstance(error, DecodeError):
            raise DecodeError(
                text, path=os.fsdecode(path), offset=error.offset
            ) from error.__cause__
        raise type(error)(text) from error.__cause__
