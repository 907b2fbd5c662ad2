"""JSON lines, read as a stream: an object a line, compressed or not."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any, Literal

from spdl_async.errors import DecodeError
from spdl_async.io._compressed import Readable, read_pieces
from spdl_async.io._local import open_regular

logger = logging.getLogger("spdl_async")

_BOM = b"\xef\xbb\xbf"
_OTHER_ENCODINGS = (b"\xff\xfe", b"\xfe\xff")
_SHOWN = 60


def read_jsonl(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | Readable,
    *,
    damaged: Literal["error", "skip"] = "error",
    on_damaged: Callable[[DecodeError], object] | None = None,
    max_line_bytes: int = 64 << 20,
    loads: Callable[[str], Any] = json.loads,
) -> Generator[Any, None, None]:
    r"""Yield the value of each line of a JSON lines file, as a stream.

    Made for ``.expand(read_jsonl, concurrency=4)`` below a stage of paths; as a source it is
    ``add_source(partial(read_jsonl, path))``. gzip and zstd are told by their first bytes, several members or
    frames in a row included. Blank lines are passed over, a byte order mark at the start and ``\r`` at the
    end of a line are no part of it, and the last line may lack its end. A line may hold any JSON value;
    as Python's ``json`` does, ``NaN`` and ``Infinity`` are accepted, and the last of equal keys counts.

    Parsing holds the GIL, so threads do not speed it up; reading and decompressing release it.

    Args:
        source: a path, the bytes of a file, or a binary stream, which is read to its end and not closed.
        damaged: ``"error"`` raises at the first line that is damaged; with it the generator ends, whatever
            the stage's ``on_error``. ``"skip"`` goes on with the next line, and logs one warning when the
            file ends that says how many lines were skipped. Compressed data that is itself damaged is an
            error in both cases, as nothing can be read behind it.
        on_damaged: is called with the error of each line that is skipped: to count or to record them.
        max_line_bytes: the longest line that is read; the memory that a file without line ends can take.
        loads: parses the text of a line; ``orjson.loads``, for example. What it raises as a ``ValueError``
            is a damaged line.

    Raises:
        DecodeError: a line is no JSON, not UTF-8 or too long, or compressed data is damaged or cut short.
            The message starts with the path; ``path``, ``line`` (from 1) and ``offset`` (of the line's first
            byte in the decompressed text) say where.
        OSError: the file cannot be opened or read, or is no regular file: a pipe is never waited for; open it
            and pass the stream.
        ImportError: the file is zstd, and ``pip install "spdl-async[text]"`` was not run.

    Example:
        >>> list(read_jsonl(b'{"text": "to be"}\n\n{"text": "or not"}'))
        [{'text': 'to be'}, {'text': 'or not'}]
    """
    _check(damaged, on_damaged, max_line_bytes)
    path, stream, ours = _opened(source)
    lines = _Lines(path, stream, max_line_bytes)
    skipped, first = 0, None
    try:
        for line in lines:
            try:
                value = lines.parse(line, loads)
            except DecodeError as error:
                if damaged == "error":
                    raise
                skipped += 1
                first = first or str(error)
                if on_damaged is not None:
                    on_damaged(error)
                continue
            yield value
    finally:
        if ours:
            stream.close()
        if skipped:
            logger.warning(
                "%s: %d of %d lines skipped; the first: %s",
                path or "read_jsonl",
                skipped,
                lines.number,
                first,
            )


def _check(damaged: object, on_damaged: object, max_line_bytes: object) -> None:
    if damaged not in ("error", "skip"):
        raise ValueError(f"read_jsonl: damaged must be 'error' or 'skip', not {damaged!r}")
    if on_damaged is not None and damaged != "skip":
        raise ValueError("read_jsonl: on_damaged is called for skipped lines: add damaged='skip'")
    if type(max_line_bytes) is not int or max_line_bytes < 1:
        raise ValueError(
            f"read_jsonl: max_line_bytes must be an int above 0, not {max_line_bytes!r}"
        )


def _opened(source: Any) -> tuple[str | None, Any, bool]:
    """Return the path if there is one, a binary stream, and whether it is ours to close."""
    if isinstance(source, (str, os.PathLike)):
        return os.fsdecode(source), open_regular(source), True
    if isinstance(source, (bytes, bytearray, memoryview)):
        return None, io.BytesIO(source), True
    if not callable(getattr(source, "read", None)):
        raise TypeError(
            f"read_jsonl takes a path, bytes or a binary stream, not {type(source).__name__}"
        )
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else None, source, False


class _Lines:
    """The lines of a stream that are not blank; knows where it is."""

    def __init__(self, path: str | None, stream: Readable, most: int) -> None:
        self.path = path
        self.stream = stream
        self.most = most
        self.number = 0  # of the present line, from 1
        self.offset = 0  # of its first byte
        self.next = 0  # of the byte behind it

    def __iter__(self) -> Iterator[bytes | None]:
        """Yield lines; None stands for one that is too long."""
        for line, size in self._split():
            self.number += 1
            self.offset, self.next = self.next, self.next + size
            if self.number == 1 and line is not None:
                line = line.removeprefix(_BOM)
            if line is None or line.strip():
                yield line

    def _split(self) -> Iterator[tuple[bytes | None, int]]:
        """Yield each line without its end, None if it is too long, and its size with its end."""
        held: list[bytes] = []  # of a line whose end was not seen yet
        size = 0
        for piece in self._pieces():
            head, *lines = piece.split(b"\n")
            held.append(head)
            size += len(head)
            if lines:
                yield (b"".join(held) if size <= self.most else None), size + 1
                tail = lines.pop()
                for line in lines:
                    yield (line if len(line) <= self.most else None), len(line) + 1
                held, size = [tail], len(tail)
            if size > self.most:
                held.clear()  # only its length matters by now
        if size:
            yield (b"".join(held) if size <= self.most else None), size

    def _pieces(self) -> Iterator[bytes]:
        try:
            yield from read_pieces(self.stream)
        except DecodeError as error:
            where = f"{self.path}: " if self.path else ""
            raise DecodeError(
                f"{where}{error} (behind line {self.number:,})",
                path=self.path,
                line=self.number + 1,
                offset=self.next,
            ) from error.__cause__

    def parse(self, line: bytes | None, loads: Callable[[str], Any]) -> Any:
        """Return the value of the present line.

        Raises:
            DecodeError: it has none.
        """
        try:
            if line is None:
                raise ValueError(
                    f"longer than max_line_bytes={self.most:,}; is this a file of JSON lines?"
                )
            return loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            where = f"{self.path}: " if self.path else ""
            raise DecodeError(
                f"{where}line {self.number:,}, at byte {self.offset:,}: {_why(error, line)}",
                path=self.path,
                line=self.number,
                offset=self.offset,
            ) from error


def _why(error: Exception, line: bytes | None) -> str:
    if line is None:
        return str(error)
    if line.startswith(_OTHER_ENCODINGS):
        return "not UTF-8 but, as it seems, UTF-16: convert the file"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: byte {line[error.start]:#04x} at its position {error.start:,}"
    shown = line[: _SHOWN + 1].decode("utf-8", "replace")
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    why = "nested too deep" if isinstance(error, RecursionError) else str(error)
    return f"no JSON that can be read: {why:.200}: {shown!r}"
