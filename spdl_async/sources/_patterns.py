"""Names of shards: braces and wildcards."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterable
from typing import Final

MOST_SHARDS: Final = 10_000_000
"""A pattern with more names than this is a slip of the pen."""

_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)")
_WILD: Final = re.compile(r"[*?[]")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def expand_shards(
    urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> list[str]:
    """Write out the names of shards: ``{000..099}``, ``{a,b}``, and wildcards in paths.

    Braces are expanded as a shell does it, numbers with as many digits as the first one has. Wildcards
    (``*``, ``?``, ``[…]``, ``**``) are looked up in the file system, in sorted order; a path that exists as
    it is written is taken so, whatever it has in it, and wildcards in URLs are left as they are.

    Args:
        urls: a path, URL or pattern, or several, whose order is kept.

    Raises:
        FileNotFoundError: a wildcard matches nothing.
        ValueError: a range that runs backwards, or more than ten million names.

    Example:
        >>> expand_shards("s3://bucket/train-{008..010}.tar")
        ['s3://bucket/train-008.tar', 's3://bucket/train-009.tar', 's3://bucket/train-010.tar']
    """
    given = [urls] if isinstance(urls, (str, os.PathLike)) else urls
    found: list[str] = []
    for each in given:
        if not isinstance(each, (str, os.PathLike)):
            raise TypeError(f"a shard is named by a str or a path, not by {type(each).__name__}")
        pattern = os.fspath(each)
        if not is_url(pattern) and os.path.lexists(pattern):
            found.append(pattern)
            continue
        for name in _braces(pattern):
            found.extend(_matches(name))
    return found


def is_url(name: str) -> bool:
    """Tell whether a name begins with a scheme, as ``s3://``."""
    return _SCHEME.match(name) is not None


def _matches(name: str) -> list[str]:
    if is_url(name) or not _WILD.search(name) or os.path.lexists(name):
        return [name]
    found = sorted(glob.glob(name, recursive=True))
    if not found:
        raise FileNotFoundError(f"no file matches {name!r} (in {os.getcwd()})")
    return found


def _braces(pattern: str) -> Iterable[str]:
    pieces = _BRACES.split(pattern)  # text, inner, text, inner, …, text
    choices = [
        [piece] if number % 2 == 0 else _choices(piece, pattern)
        for number, piece in enumerate(pieces)
    ]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MOST_SHARDS:
        raise ValueError(f"{pattern!r} stands for {count:,} names, more than {MOST_SHARDS:,}")
    return map("".join, itertools.product(*choices))


def _choices(inner: str, pattern: str) -> list[str]:
    if span := _RANGE.fullmatch(inner):
        first, last = int(span[1]), int(span[2])
        if last < first:
            raise ValueError(f"{pattern!r}: {{{inner}}} runs backwards")
        if last - first >= MOST_SHARDS:
            raise ValueError(f"{pattern!r} stands for more than {MOST_SHARDS:,} names")
        return [f"{number:0{len(span[1])}d}" for number in range(first, last + 1)]
    return inner.split(",") if "," in inner else [f"{{{inner}}}"]
