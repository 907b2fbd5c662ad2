"""Which fields of a batch are moved."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from spdl_async.device._paths import Path
from spdl_async.errors import BuildError

Trie: TypeAlias = "dict[Any, Trie | None]"
"""Chosen names, each with those chosen below it, or None for all of it."""

_FORMS = (
    'only=("image",), only=(("image", 0), "label") or only=lambda path, leaf: path[0] == "image"'
)


class Only:
    """Checked ``only=``: either `trie` or `ask` is set."""

    __slots__ = ("ask", "trie")

    def __init__(
        self, *, trie: Trie | None = None, ask: Callable[[Path, Any], bool] | None = None
    ) -> None:
        self.trie = trie
        self.ask = ask


def chosen(only: object) -> Only | None:
    """Check what ``only=`` was given, and return it prepared.

    Args:
        only: None, for everything; or names: a tuple, list or set (``batch.keys()`` is one) of keys,
            attributes and positions of the batch itself, or of tuples of them, which lead further down
            (``("pair", 0)``; a dot in a name is part of the name); or a function of the path, a tuple of
            keys, positions and names of attributes, and of the tensor, array or object there, that returns
            whether to move it.

    Raises:
        BuildError: it is something else, a single string, or empty.
    """
    if only is None or isinstance(only, Only):
        return only
    if isinstance(only, str | bytes):
        raise BuildError(f"only={only!r} is one name; write a tuple of names: only=({only!r},)")
    if isinstance(only, tuple | list | AbstractSet):
        if not only:
            raise BuildError(
                f"only= is empty, so nothing would be moved; give {_FORMS}, or None for all"
            )
        trie: Trie = {}
        for name in only:
            path = name if isinstance(name, tuple) else (name,)
            if not path:
                raise BuildError(f"only= has an empty path, which leads nowhere; give {_FORMS}")
            below: Trie | None = None
            for step in reversed(path[1:]):
                below = {step: below}
            add(trie, path[0], below)
        return Only(trie=trie)
    if callable(only):
        return Only(ask=only)
    raise BuildError(f"only= is a {type(only).__name__}, but chooses fields: {_FORMS}")


def add(trie: Trie, name: Any, below: Trie | None) -> None:
    """Choose what is below a name too; None: all of it."""
    known = trie.setdefault(name, {})
    if known is None or below is None:
        trie[name] = None
        return
    for step, further in below.items():
        add(known, step, further)
