"""What the picture functions take: bytes-like data, and whole files that are read without waiting."""

from __future__ import annotations

import errno
import os
import stat


def as_bytes(data: object, caller: str, reader: str | None = None) -> memoryview[int]:
    """View ``data`` as bytes, without a copy.

    Args:
        data: any contiguous bytes-like object of one dimension.
        caller: the public function, for messages.
        reader: the function that takes a path instead, where there is one.

    Raises:
        TypeError: it is a path, a decoded picture, or no buffer.
    """
    if isinstance(data, (str, os.PathLike)):
        instead = f"{reader}(path), or " if reader else ""
        raise TypeError(
            f"{caller} takes the content of a file as bytes, not its path "
            f"({os.fspath(data)!r}): use {instead}{caller}(path.read_bytes())"
        )
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # what is no buffer ends below
    except TypeError:
        raise TypeError(
            f"{caller} takes the content of a file as bytes, not {type(data).__name__}: "
            f"read the file first, as with open(path, 'rb').read()"
        ) from None
    if view.ndim != 1:
        raise TypeError(
            f"{caller} takes the content of a file as bytes, not an array of shape "
            f"{view.shape}: this picture seems to be decoded already"
        )
    if not view.contiguous:
        raise TypeError(f"{caller} takes contiguous bytes: copy them first, as with bytes(data)")
    return view.cast("B")


def read_regular_file(path: str | bytes | os.PathLike[str]) -> bytes:
    """Read a whole file, and refuse what is no regular file without ever waiting for it.

    Raises:
        OSError: it cannot be opened or read, or is a folder, a pipe or a device.
    """
    with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file (a pipe or a device)", path_text(path))
        # readall() reads to the end, also where one read() returns less than was asked for.
        return file.readall()


def path_text(path: str | bytes | os.PathLike[str]) -> str:
    """Return a path as text that can be printed: bytes that are no text stand as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _open_without_waiting(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe waits until somebody writes into it.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
