"""Keys as bytes: the same in every process, different for different keys."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, Final

DIGITS: Final = 40
MAX_COMPARED: Final = 65_536
KINDS: Final = "a str, int, bytes, path, or a tuple of these"


def canonical(key: Any) -> bytes:
    """Return a key as bytes.

    Raises:
        TypeError: it is of another kind, so that two processes might not agree on it.
    """
    kind = type(key)
    if kind is str:
        text = key.encode("utf-8", "surrogatepass")
        return b"s%d:%b" % (len(text), text)
    if kind is int or kind is bool:
        return b"i%d;" % key
    if kind is bytes:
        return b"b%d:%b" % (len(key), key)
    if isinstance(key, PurePath):
        text = os.fsencode(key)
        return b"p%d:%b" % (len(text), text)
    if kind is tuple:
        return b"t%d:%b" % (len(key), b"".join(map(canonical, key)))
    if key is None:
        return b"n"
    index = getattr(kind, "__index__", None)
    if index is not None:  # numpy's integers
        return b"i%d;" % index(key)
    raise TypeError(
        f"cache: a key must be {KINDS}, not {kind.__name__}; key= takes what the source gave and "
        f"returns what identifies it, such as its path or number"
    )


def indexed(index: int, value: Any) -> bytes:
    """Return the key of the source item number ``index``.

    Where the item itself can be a key it is a part of it: a list that has changed misses then, in
    place of giving what belongs to another item.
    """
    own = b""
    if not isinstance(value, (str, bytes)) or len(value) <= MAX_COMPARED:
        try:
            own = canonical(value)
        except TypeError:
            own = b""
    return b"#%d;%b" % (index, own)


def namespace_of(parts: Iterable[Any]) -> bytes:
    """Return what keeps the entries of different caches in one folder apart."""
    return hashlib.sha256(canonical(tuple(parts))).digest()


def entry_name(namespace: bytes, key: bytes) -> str:
    """Return the name of an entry: hexadecimal digits."""
    return hashlib.sha256(namespace + key).hexdigest()[:DIGITS]
