"""Where the bytes of an archive come from: a mapped file, a buffer, or a stream that is read once.

The reader of tar archives sees a window onto the archive: bytes from `base` on, which grow at the
end and go away at the front. Of a file or a buffer all bytes are there from the beginning and
slices of them are views; of a stream there is a quarter of a megabyte, and slices are copies.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from spdl_async.errors import ArchiveError
from spdl_async.io._compressed import PackedError, codec_for, inflated

if TYPE_CHECKING:
    from typing_extensions import Buffer

CHUNK: Final = 1 << 18
"""Bytes that are read from a stream at a time: many small members, and little enough to stay in a cache."""

LARGE: Final = 1 << 15
"""Bytes from which on a member is read by itself."""

PIECE: Final = 1 << 20
"""Most bytes that are asked for at once: a file allocates what it is asked for before it reads."""

PACKED_CHUNK: Final = 1 << 16
"""Compressed bytes that are read at a time; pieces of what they hold are bounded by ``CHUNK``."""

_OTHERS: Final = {
    b"PK\x03\x04": "a zip archive: use iter_zip",
    b"PK\x05\x06": "a zip archive: use iter_zip",
    b"BZh": "compressed with bzip2, which is not read here: pass bz2.open(path)",
    b"\xfd7zXZ\0": "compressed with xz, which is not read here: pass lzma.open(path)",
    b"<!": "a web page; what answered the download?",
    b"<htm": "a web page; what answered the download?",
    b"<?xml": "an XML document; what answered the download?",
}


class BinaryStream(Protocol):
    """An open binary file or the like, read from its front to its end."""

    def read(self, size: int, /) -> bytes: ...


class Mapped:
    """All bytes of a file or a buffer; slices are views that keep them alive."""

    __slots__ = ("base", "data", "length")

    def __init__(self, data: memoryview) -> None:
        self.base = 0
        self.data: memoryview | bytes = data
        self.length = len(data)

    why = ""
    lasts = True  # what is given out costs no memory of its own

    def fill(self, at: int, count: int) -> bool:
        """Tell whether the archive has ``count`` bytes at offset ``at``."""
        return at + count <= self.length

    def body(self, at: int, count: int) -> memoryview | bytes | None:
        """Return bytes of the archive, ``None`` where it ends before."""
        return self.data[at : at + count] if at + count <= self.length else None

    def skip(self, at: int, count: int) -> bool:
        """Tell whether the archive has those bytes, of which nothing is needed."""
        return at + count <= self.length

    def rest(self, at: int) -> bytes:
        """Return what there is of a header at the archive's end."""
        return bytes(self.data[at : at + 512])


class Streamed:
    """A part of a stream; slices are bytes of their own.

    Small members are read by many at a time. A large one is read into bytes of its own, and nothing
    behind it, which would have to be copied again.

    ``why`` says what ended the stream before its time: what was read until then is used first.
    """

    __slots__ = ("_ahead", "_read", "base", "data", "why")

    lasts = False

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._ahead = CHUNK
        self.base = 0
        self.data: memoryview | bytes = b""
        self.why = ""

    def _next(self, count: int) -> bytes:
        try:
            return self._read(count)
        except PackedError as error:
            reason = error.reason
            what = "cut short" if reason is None else f"damaged ({reason})"
            self.why = f"the {error.kind} data is {what}"
            self._read = bytes_of_nothing
            return b""

    def fill(self, at: int, count: int) -> bool:
        """Have ``count`` bytes at offset ``at``, or tell that the stream ends before."""
        kept = self.data[at - self.base :]
        parts, have = [kept], len(kept)
        while have < count:
            chunk = self._next(max(count - have, self._ahead))
            if not chunk:
                break
            self._ahead = min(CHUNK, 4 * self._ahead + 512)
            parts.append(chunk)
            have += len(chunk)
        self.base, self.data = at, b"".join(parts)
        return have >= count

    def body(self, at: int, count: int) -> memoryview | bytes | None:
        """Return bytes of the archive, ``None`` where the stream ends before.

        A count that the stream does not have allocates no more than what it has and one piece.
        """
        start = at - self.base
        kept = self.data[start : start + count]
        if len(kept) == count:
            return kept
        if count >= LARGE:
            self._ahead = 0
        parts, missing = [kept] if kept else [], count - len(kept)
        while missing > 0:
            chunk = self._next(min(PIECE, max(missing, self._ahead)))
            if not chunk:
                self.base, self.data = at, b""
                return None
            parts.append(chunk[:missing])
            self.base, self.data = at + count, chunk[missing:]
            missing -= len(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip(self, at: int, count: int) -> bool:
        """Read over bytes that nobody needs, holding a chunk at a time."""
        end = at + count
        while (have := self.base + len(self.data)) < end:
            chunk = self._next(min(CHUNK, max(end - have, self._ahead)))
            if not chunk:
                return False
            self.base, self.data = have, chunk
        return True

    def rest(self, at: int) -> bytes:
        """Return what there is of a header at the archive's end."""
        return bytes(self.data[at - self.base :][:512])


Window = Mapped | Streamed


def bytes_of_nothing(_: int) -> bytes:
    """Read from a stream that has ended."""
    return b""


def name_of(source: object) -> str:
    """Return what messages call a source that was given without a name."""
    if isinstance(source, (str, os.PathLike)):
        return os.fsdecode(source)
    name = getattr(source, "name", None)
    return name if isinstance(name, str) and name else f"<{type(source).__name__}>"


def check_source(source: object, where: str) -> None:
    """Refuse what is neither path, bytes-like nor a binary stream.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(source, (str, os.PathLike)) or callable(getattr(source, "read", None)):
        return
    try:
        memoryview(source)  # type: ignore[arg-type]  # the question is whether it is one
    except TypeError:
        raise TypeError(
            f"{where} takes a path, a bytes-like object or a binary stream, "
            f"not {type(source).__name__}"
        ) from None


@contextmanager
def open_window(source: str | os.PathLike[str] | Buffer | BinaryStream) -> Generator[Window]:
    """Open a source for one reading; closes what it opened, never what it was given."""
    if isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as file:
            status = os.fstat(file.fileno())
            whole = stat.S_ISREG(status.st_mode) and status.st_size > 0
            if not whole or codec_for(
                file.peek(8)[:8], CHUNK
            ):  # what /proc shows has no size to map
                yield _streamed(_reader(file))
                return
            # The views that are given out keep the mapping alive, and the last one ends it.
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        yield Mapped(view)
    elif hasattr(source, "read"):
        yield _streamed(_reader(source))
    else:
        view = memoryview(source).cast("B")
        if codec := codec_for(bytes(view[:8]), CHUNK):
            pieces = (bytes(view[i : i + PACKED_CHUNK]) for i in range(0, len(view), PACKED_CHUNK))
            yield Streamed(_one_after_another(inflated(pieces, codec)))
        else:
            yield Mapped(view)


def _reader(stream: Any) -> Callable[[int], bytes]:
    """Return the stream's ``read``, which may return fewer bytes and none at its end."""
    stream_read = stream.read

    def read(count: int) -> bytes:
        chunk = stream_read(count)
        if type(chunk) is bytes:
            return chunk
        if isinstance(chunk, (bytearray, memoryview)):
            return bytes(chunk)
        if hasattr(chunk, "close") and hasattr(chunk, "send"):
            chunk.close()  # a coroutine, which would warn that nobody awaited it
        raise TypeError(
            f"read() of {type(stream).__name__} returned {type(chunk).__name__} and not bytes: "
            f"the stream must be binary, blocking and not async"
        )

    return read


def _one_after_another(chunks: Iterator[bytes]) -> Callable[[int], bytes]:
    def read(_: int) -> bytes:
        return next(chunks, b"")

    return read


def _streamed(read: Callable[[int], bytes]) -> Streamed:
    head = b""
    while len(head) < 8 and (chunk := read(8 - len(head))):  # a read may be as short as one byte
        head += chunk
    codec = codec_for(head, CHUNK)
    if codec is None:
        window = Streamed(read)
        window.data = head
        return window

    def again() -> Iterator[bytes]:
        yield head
        while chunk := read(PACKED_CHUNK):
            yield chunk

    return Streamed(_one_after_another(inflated(again(), codec)))


def hint(head: bytes) -> str:
    """Say what begins with these bytes where that is known, else show them."""
    for magic, text in _OTHERS.items():
        if head.lower().startswith(magic.lower()):
            return f"it is {text}"
    return f"it begins with {head[:8]!r}"


def refuse_empty(archive: str) -> ArchiveError:
    """Return the error for an archive of zero bytes."""
    return ArchiveError(
        f"{archive} is empty, 0 bytes: an archive without members has at least 1,024",
        archive=archive,
        offset=0,
    )
