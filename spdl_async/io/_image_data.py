"""What the picture functions take: bytes-like data, and whole files that are read without waiting."""

from __future__ import annotations

import os
from collections.abc import Mapping


def as_bytes(
    data: object, caller: str, reader: str | None = None, *, where: str | None = None
) -> memoryview[int]:
    """View ``data`` as bytes, without a copy.

    Args:
        data: any contiguous bytes-like object of one dimension.
        caller: the public function, for messages.
        reader: the function that takes a path instead, where there is one.
        where: the argument that says where in a sample the picture is, if not ``on()`` does.

    Raises:
        TypeError: it is a path, a decoded picture, or no buffer.
    """
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # what is no buffer ends below
    except TypeError:
        if isinstance(data, (str, os.PathLike)):
            instead = f"{reader}(path), or " if reader else ""
            raise TypeError(
                f"{caller} takes the content of a file as bytes, not its path "
                f"({os.fspath(data)!r}): use {instead}{caller}(path.read_bytes())"
            ) from None
        if isinstance(data, (Mapping, tuple, list)):  # a sample with the picture in it
            say = f"with {where}" if where else f"with on('field', {caller})"
            raise TypeError(
                f"{caller} takes a picture, not a {type(data).__name__} with one in it: say where it is, "
                f"{say}"
            ) from None
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


def path_text(path: str | bytes | os.PathLike[str]) -> str:
    """Return a path as text that can be printed: bytes that are no text stand as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
