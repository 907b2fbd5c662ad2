"""Reading local files: a whole one in one call, or piece by piece on the loop."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import AsyncGenerator, Mapping


def read_file(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> bytes:
    """Read a whole file: open, read, close, in one call, which is one hop to a thread.

    It is an ordinary function, so ``.pipe(read_file, concurrency=8).pipe(decode, concurrency=8)``
    reads and decodes a file in one hop. Any path that the system takes will do: all letters,
    bytes, names that are no valid Unicode.

    Args:
        path: a regular file. What is something else (a folder, a pipe, a socket, a device) is
            refused at once; opening a pipe does not wait for who writes into it.

    Returns:
        The file's bytes; of an empty file there are none.

    Raises:
        OSError: the file cannot be opened or read: ``FileNotFoundError``, also for a link to
            nothing, ``PermissionError``, ``IsADirectoryError``, or with ``errno.EINVAL`` what is no
            file. ``filename`` is the path.
        TypeError: ``path`` is no path; numbers of open files are none.
        ValueError: ``path`` has a zero byte in it, as the content of a file has.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     _ = file.write(b"content")
        ...     file.flush()
        ...     read_file(file.name)
        b'content'
    """
    name = path_of(path)
    try:
        with open(name, "rb", buffering=0, opener=_open_without_waiting) as file:
            _check_regular(file.fileno(), name)
            return file.readall()
    except OSError as error:
        if error.filename is None:  # reading failed, not opening
            error.filename = name
        raise


async def stream_file(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes], *, chunk_size: int = 1 << 20
) -> AsyncGenerator[bytes, None]:
    """Read a file piece by piece on the loop, for what is too large for memory or read in part.

    Each piece is read in a thread of the loop's default executor (by aiofiles), so the loop goes
    on meanwhile. For whole files `read_file` is faster.

    Args:
        path: as for `read_file`.
        chunk_size: bytes of each piece; the last one is what is left.

    Yields:
        Pieces of at least one byte.

    Raises:
        OSError: as for `read_file`.
        ValueError: ``chunk_size`` is below 1.

    Example:
        >>> import asyncio, tempfile
        >>> async def sizes(path: str) -> list[int]:
        ...     return [len(piece) async for piece in stream_file(path, chunk_size=4)]
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     _ = file.write(b"0123456789")
        ...     file.flush()
        ...     asyncio.run(sizes(file.name))
        [4, 4, 2]
    """
    import aiofiles

    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1 byte, not {chunk_size!r}")
    name = path_of(path)
    try:
        async with aiofiles.open(name, "rb", buffering=0, opener=_open_without_waiting) as file:
            _check_regular(file.fileno(), name)
            while piece := await file.read(chunk_size):
                yield piece
    except OSError as error:
        if error.filename is None:
            error.filename = name
        raise


def open_regular(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> io.FileIO:
    """Open a regular file to read it, unbuffered; refuse all else, and never wait for a pipe.

    Raises:
        OSError: as for `read_file`.
    """
    name = path_of(path)
    file = open(name, "rb", buffering=0, opener=_open_without_waiting)  # noqa: SIM115 -- returned
    try:
        _check_regular(file.fileno(), name)
    except BaseException:
        file.close()
        raise
    return file


def path_of(path: object) -> str | bytes:
    """Return what the system is asked for.

    Raises:
        TypeError: it is no path.
        ValueError: it has a zero byte in it, as the content of a file has.
    """
    try:
        name: str | bytes = os.fspath(path)  # type: ignore[call-overload]  # what is none ends below
    except TypeError:
        sample = isinstance(path, (Mapping, tuple, list))
        raise TypeError(
            f"the path of a file is str, bytes or os.PathLike, not {type(path).__name__}"
            + ("; where it is a field of a sample, write on('field', function)" if sample else "")
        ) from None
    if type(name) is bytes and b"\0" in name:
        raise ValueError(
            f"no path has zero bytes in it: these {len(name):,} bytes look like the content of a file; "
            f"give that to decode_image or its like, and a path to read_image"
        )
    return name


def _open_without_waiting(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe waits until somebody writes into it.
    try:
        return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError as error:
        if isinstance(path, str) and "://" in path:
            error.add_note("this is a URL, and a file is read here: fetch it first, .pipe(fetch)")
        raise


def _check_regular(descriptor: int, name: str | bytes) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "Not a regular file (a pipe or a device)", name)
