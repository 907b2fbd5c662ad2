"""Patterns of paths: what ``*``, ``?``, ``[…]`` and ``**`` stand for, alike on disks and in stores."""

from __future__ import annotations

import re
from collections.abc import Callable

_WILD = re.compile(r"[*?\[]")


def prefix_of(pattern: str) -> str:
    """Return what every path that matches begins with."""
    found = _WILD.search(pattern)
    return pattern if found is None else pattern[: found.start()]


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a relative path, with slashes, matches a pattern.

    Raises:
        ValueError: the pattern is empty, absolute, or has ``..`` in it.
    """
    parts = pattern.split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        raise ValueError(
            f"pattern must be a relative path with wildcards, such as '**/*.jpg', not {pattern!r}"
        )
    last = len(parts) - 1
    regex = ""
    for at, part in enumerate(parts):
        if part == "**":
            regex += r"(?:[^./][^/]*/)*" if at < last else r"(?:[^./][^/]*/)*[^./][^/]*"
        else:
            regex += _part(part) + ("/" if at < last else "")
    compiled = re.compile(regex, re.DOTALL)
    return lambda path: compiled.fullmatch(path) is not None


def _part(part: str) -> str:
    """Translate what stands between two slashes."""
    regex = "" if part.startswith(".") else r"(?!\.)"  # hidden names only where asked for
    at = 0
    while at < len(part):
        letter = part[at]
        at += 1
        if letter == "*":
            regex += "[^/]*"
        elif letter == "?":
            regex += "[^/]"
        elif letter == "[" and (end := part.find("]", at + 1 + (part[at : at + 1] == "!"))) > 0:
            inside = part[at:end]
            negated = inside.startswith("!")
            letters = inside[negated:].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
            regex += f"(?!/)[{'^' if negated else ''}{letters}]"
            at = end + 1
        else:
            regex += re.escape(letter)
    return regex
