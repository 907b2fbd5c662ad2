"""Listing files, on disks and in object stores, one after the other."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any, overload

from spdl_async.io._pattern import matcher, prefix_of
from spdl_async.io._store import Store


class LocalFiles:
    """The files below a folder that match a pattern: what `list_files` returns for folders."""

    def __init__(self, root: str, pattern: str) -> None:
        self._root = root
        self._pattern = pattern
        self._matches = matcher(pattern)

    def __repr__(self) -> str:
        return f"list_files({self._root!r}, {self._pattern!r})"

    def __iter__(self) -> Iterator[str]:
        """Look again, and yield the paths in order."""
        fixed = prefix_of(self._pattern).rpartition("/")[0]
        below = f"{fixed}/" if fixed else ""
        return self._walk(os.path.join(self._root, fixed) if fixed else self._root, below)

    def _may_hold(self, folder: str) -> bool:
        """Tell whether something below a folder, with a slash at its end, may match."""
        parts = self._pattern.split("/")
        if folder.rpartition("/")[0].rpartition("/")[2].startswith("."):
            return any(part.startswith(".") for part in parts[:-1])
        return "**" in parts or folder.count("/") < len(parts)

    def _walk(self, top: str, below: str) -> Iterator[str]:
        """Walk depth first, in the order of the whole paths, with a stack instead of recursion."""
        matches = self._matches
        stack: list[Iterator[tuple[str, os.DirEntry[str]]]] = [_sorted_entries(top)]
        belows, within = [below], [_identity(top)]
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop(), belows.pop(), within.pop()
                continue
            name, entry = step
            relative = belows[-1] + name
            if not name.endswith("/"):
                if matches(relative):
                    yield entry.path
            elif self._may_hold(relative):
                identity = _identity(entry.path)
                if identity not in within:  # a link to a folder that it is in itself
                    stack.append(_sorted_entries(entry.path))
                    belows.append(relative)
                    within.append(identity)


class StoredFiles:
    """The objects of a store that match a pattern: what `list_files` returns for URLs."""

    def __init__(self, store: Store, pattern: str) -> None:
        self._store = store
        self._pattern = pattern
        matcher(pattern)

    def __repr__(self) -> str:
        return f"list_files({self._store.root!r}, {self._pattern!r})"

    def __aiter__(self) -> AsyncIterator[str]:
        """Ask again, and yield the URLs in the store's order."""
        return self._store.urls(self._pattern)


@overload
def list_files(root: os.PathLike[str], pattern: str = "**/*") -> LocalFiles: ...
@overload
def list_files(root: Store, pattern: str = "**/*") -> StoredFiles: ...
@overload
def list_files(root: str, pattern: str = "**/*") -> LocalFiles | StoredFiles: ...
def list_files(root: str | os.PathLike[str] | Store, pattern: str = "**/*") -> Any:
    """List the files below a folder, or the objects below a URL, that match a pattern; a source.

    Nothing is listed before a run asks, and each pass lists again. Folders are read one at a time,
    so the first path comes early; a sync source runs in a thread of its own, and URLs are listed on
    the loop. Paths come in the order of their names as a whole, ``a-b`` before ``a/b``, so that two
    machines with the same files see the same order; stores list in this order too, except those
    that promise none (``file:``, S3 Express).

    Links are followed, also to folders, but not in a circle. A link to nothing is listed, so that
    who reads it hears of it; pipes, sockets and devices are not.

    Args:
        root: a folder; a URL of a kind that `Store` knows; or a `Store`, where it needs options.
        pattern: a path relative to the root with wildcards: ``*`` and ``?`` within one name, ``[…]``
            for letters, ``**`` for any number of folders. Names that begin with a dot match only
            where the pattern writes the dot. Capital letters matter.

    Returns:
        An iterable of paths, or an async iterable of URLs, for ``add_source``. Type checkers know which
        one it is where the root is a ``Path`` or a `Store`.

    Raises:
        ValueError: a pattern that is no relative path, or a URL of another kind.
        OSError: while it is read: the root, or a folder below it, cannot be.
        FetchError: while it is read: the store does not answer as it should.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("b.txt", "a.txt", ".hidden.txt"):
        ...         _ = pathlib.Path(folder, name).write_text(name)
        ...     [pathlib.Path(path).name for path in list_files(folder, "**/*.txt")]
        ['a.txt', 'b.txt']
    """
    if isinstance(root, Store):
        return StoredFiles(root, pattern)
    if isinstance(root, str) and "://" in root:
        return StoredFiles(Store(root), pattern)
    path: object = os.fspath(root)
    if not isinstance(path, str):
        raise TypeError(f"list_files takes the root as str or Path: os.fsdecode({path!r})")
    return LocalFiles(path, pattern)


def _sorted_entries(folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Return (name, entry) of what a folder holds; the names of folders end with a slash."""
    found: list[tuple[str, os.DirEntry[str]]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():
                found.append((f"{entry.name}/", entry))
            elif _is_file(entry):
                found.append((entry.name, entry))
    found.sort(key=lambda pair: pair[0])
    return iter(found)


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Tell whether this is a regular file, or a link to one, or to nothing."""
    if entry.is_symlink():
        return os.path.isfile(entry.path) or not os.path.exists(entry.path)
    return entry.is_file()


def _identity(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino
