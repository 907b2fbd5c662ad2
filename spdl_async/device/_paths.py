"""Where in a batch something is."""

from __future__ import annotations

from typing import Any

Path = tuple[Any, ...]
"""Keys, positions and `Attribute` names, from the batch down; empty for the batch itself."""


class Attribute(str):
    """A step of a path that is an attribute; equal to its name."""

    __slots__ = ()


def show(path: Path) -> str:
    """Return a path as it is written in Python: ``batch['image'][0].mask``."""
    steps = [f".{step}" if isinstance(step, Attribute) else f"[{step!r}]" for step in path]
    return "batch" + "".join(steps)
