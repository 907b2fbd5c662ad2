"""Values as a tree of plain JSON values and the raw bytes of arrays, and back; without pickle.

A node is a scalar (``None``, a bool, float, str or int below 2**63) as it is, or a list whose first
element says what it is::

    ["i", hex]                            a larger int
    ["s", buffer]                         a str that JSON would change, in UTF-8 with lone surrogates
    ["p", text node]                      a path
    ["l", node, …]  ["t", node, …]        a list, a tuple
    ["d", [key node, node], …]            a dict, in its order
    ["b", buffer]   ["B", buffer]         bytes, bytearray
    ["v", buffer]                         a memoryview of bytes, as archives give them
    ["a", dtype, shape, order, buffer]    a numpy array; order "C" or "F"
    ["g", dtype, buffer]                  a numpy scalar
    ["T", dtype, shape, buffer]           a torch tensor, in C order

``buffer`` is a position in the list of buffers. A dtype is numpy's ``descr`` or torch's name.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np

MAX_DEPTH: Final = 100
NODE_BYTES: Final = 64  # about what a node of the tree takes in memory
KINDS: Final = (
    "numpy arrays, torch tensors, bytes, str, numbers, None, paths, and lists, tuples and dicts of "
    "them"
)
# Two lone surrogates that look like one character in UTF-16, which JSON's escapes are.
PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")
DTYPE: Final = re.compile(r"[<>|=][a-zA-Z?]\d{0,9}(\[\d{0,9}[a-zA-Z]{1,2}(/\d{1,9})?\])?")
At = tuple[Any, Any] | None


class Blob:
    """One value: its tree, its buffers, and about how many bytes of memory they take."""

    __slots__ = ("buffers", "size", "tree")

    def __init__(self, tree: Any, buffers: Sequence[bytes], size: int) -> None:
        self.tree = tree
        self.buffers = buffers
        self.size = size


def encode(value: Any) -> Blob:
    """Return a copy of a value as a blob: what is done to the value later does not matter.

    Raises:
        TypeError: something in it cannot be stored; the message says what, where, and what to do.
    """
    encoder = Encoder()
    tree = encoder.node(value, None, 0)
    return Blob(tree, encoder.buffers, encoder.size)


class Encoder:
    """Gathers the buffers of one value."""

    __slots__ = ("buffers", "size")

    def __init__(self) -> None:
        self.buffers: list[bytes] = []
        self.size = 0

    def buffer(self, data: bytes) -> int:
        """Take in a buffer; return its number."""
        self.buffers.append(data)
        self.size += len(data) + NODE_BYTES
        return len(self.buffers) - 1

    def node(self, value: Any, at: At, depth: int) -> Any:
        """Return a value's node. ``at``: (that of what holds it, its key or position there)."""
        kind = type(value)
        self.size += NODE_BYTES
        if kind is float or kind is bool or value is None:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**63 else ["i", hex(value)]
        if kind is str:
            self.size += len(value)
            if value.isascii() or PAIR.search(value) is None:
                return value
            return ["s", self.buffer(value.encode("utf-8", "surrogatepass"))]
        if kind is bytes:
            return ["b", self.buffer(value)]
        if kind is np.ndarray or kind is np.memmap:
            return self.array(value, at)
        if kind is list or kind is tuple or kind is dict:
            return self.container(value, at, depth)
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.Tensor:
            return self.tensor(torch, value, at)
        if isinstance(value, np.generic):
            dtype = described(value.dtype)
            if dtype is not None:
                return ["g", dtype, self.buffer(value.tobytes())]
        if kind is bytearray:
            return ["B", self.buffer(bytes(value))]
        if kind is memoryview and value.format == "B" and value.ndim == 1:
            return ["v", self.buffer(bytes(value))]
        if isinstance(value, PurePath):
            return ["p", self.node(str(value), at, depth)]
        raise refusal(value, at)

    def container(self, value: Any, at: At, depth: int) -> Any:
        """Return the node of a list, tuple or dict."""
        if depth > MAX_DEPTH:
            raise TypeError(
                f"cache: a value is nested more than {MAX_DEPTH} deep; does it hold itself?"
            )
        depth += 1
        if type(value) is dict:
            return [
                "d",
                *(
                    [self.node(key, (at, key), depth), self.node(inner, (at, key), depth)]
                    for key, inner in value.items()
                ),
            ]
        tag = "l" if type(value) is list else "t"
        return [tag, *(self.node(inner, (at, k), depth) for k, inner in enumerate(value))]

    def array(self, value: Any, at: At) -> Any:
        """Return the node of a numpy array, whose elements are copied."""
        dtype = described(value.dtype)
        if dtype is None:
            raise TypeError(
                f"cache: cannot store an array of dtype {value.dtype}{where(at)}: its elements are "
                f"objects of Python, or its dtype is another library's; convert it, or put .cache() "
                f"above the stage that makes it"
            )
        flags = value.flags
        order = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
        return ["a", dtype, list(value.shape), order, self.buffer(value.tobytes(order=order))]

    def tensor(self, torch: Any, value: Any, at: At) -> Any:
        """Return the node of a torch tensor, whose elements are copied."""
        wrong = None
        if value.device.type != "cpu":
            wrong = f"is on {value.device}: put .cache() above to_device, or return value.cpu()"
        elif value.layout is not torch.strided or value.is_quantized:
            wrong = "is sparse or quantized: return value.to_dense() or its parts"
        elif value.requires_grad:
            wrong = "requires grad, which a cache does not keep: return value.detach()"
        if wrong is not None:
            raise TypeError(f"cache: a tensor{where(at)} {wrong}")
        plain = value.resolve_conj().resolve_neg().contiguous().reshape(-1)
        data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        dtype = str(value.dtype).removeprefix("torch.")
        return ["T", dtype, list(value.shape), self.buffer(data)]


def refusal(value: Any, at: At) -> TypeError:
    """Return the error for a value of a kind that is not stored."""
    kind = type(value).__name__
    fix = "put .cache() above the stage that makes it, or return one of these from it"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        kind, fix = f"the named tuple {kind}", "return a plain tuple, or value._asdict()"
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind, fix = f"the dataclass {kind}", "return a dict of its fields: vars(value)"
    return TypeError(
        f"cache: cannot store {kind}{where(at)}. It stores {KINDS}, without pickle; {fix}"
    )


def where(at: At) -> str:
    """Return where in the value something stands, such as `` at value['image'][0]``."""
    text = ""
    while at is not None:
        at, key = at
        text = f"[{key!r}]{text}"
    return f" at value{text}" if text else ""


@functools.lru_cache(maxsize=256)
def described(dtype: Any) -> Any:
    """Return a numpy dtype as JSON values that give the same dtype again, else ``None``."""
    if dtype.hasobject:
        return None
    descr = dtype.str if dtype.fields is None else np.lib.format.dtype_to_descr(dtype)
    made = json.loads(json.dumps(as_lists(descr)))  # as it will be read: names may change in JSON
    try:
        return made if dtype_of(made) == dtype else None
    except (TypeError, ValueError):
        return None


def as_lists(descr: Any) -> Any:
    """Return a dtype's description with lists for tuples, as JSON has it."""
    return list(map(as_lists, descr)) if isinstance(descr, (list, tuple)) else descr


def dtype_of(made: Any) -> Any:
    """Return the numpy dtype that :func:`described` has described."""
    made = _descr(made)
    return np.dtype(made) if isinstance(made, str) else np.lib.format.descr_to_dtype(made)


def _descr(made: Any) -> Any:
    if isinstance(made, str):
        if not DTYPE.fullmatch(made):  # numpy would evaluate other texts
            raise ValueError(f"a dtype {made!r}")
        return made
    return [
        (tuple(name) if isinstance(name, list) else name, _descr(inner), *map(tuple, shape))
        for name, inner, *shape in made
    ]


class Decoder:
    """Makes a fresh value of a blob.

    Args:
        buffers: the buffers, by number.
        keep: tells of a buffer whether an array may keep it, as its own writable memory; else its bytes
            are copied.
    """

    __slots__ = ("buffers", "keep")

    def __init__(self, buffers: Sequence[Any], keep: Callable[[Any], bool] | None = None) -> None:
        self.buffers = buffers
        self.keep = keep

    def value(self, node: Any) -> Any:
        """Return the value of a node."""
        if type(node) is not list:
            return node
        tag = node[0]
        if tag == "a":
            return self.array(*node[1:])
        if tag == "T":
            return self.tensor(*node[1:])
        if tag == "b":
            return bytes(self.buffers[node[1]])
        if tag == "d":
            return {self.value(key): self.value(inner) for key, inner in node[1:]}
        if tag == "l":
            return [self.value(inner) for inner in node[1:]]
        if tag == "t":
            return tuple([self.value(inner) for inner in node[1:]])
        if tag == "g":
            dtype = dtype_of(node[1])
            return np.ndarray((), dtype, bytearray(self.buffers[node[2]]) or None)[()]
        if tag == "B":
            return bytearray(self.buffers[node[1]])
        if tag == "v":
            return memoryview(bytes(self.buffers[node[1]]))
        if tag == "p":
            return Path(self.value(node[1]))
        if tag == "s":
            return str(self.buffers[node[1]], "utf-8", "surrogatepass")
        if tag == "i":
            return int(node[1], 16)
        raise ValueError(f"a node of kind {tag!r}")

    def array(self, made: Any, shape: list[int], order: Any, number: int) -> Any:
        """Return an array with memory of its own, writable."""
        dtype = dtype_of(made)
        data = self.own(self.buffers[number])
        if not dtype.itemsize:  # such as "V0": any number of elements has no bytes
            return np.empty(shape, dtype, order=order)
        if not len(data):
            return np.empty(0, dtype).reshape(shape, order=order)
        return np.frombuffer(data, dtype).reshape(shape, order=order)

    def tensor(self, name: str, shape: list[int], number: int) -> Any:
        """Return a tensor with memory of its own."""
        torch = importlib.import_module("torch")  # only where an entry holds one
        dtype = getattr(torch, name)
        data = self.own(self.buffers[number])
        if not len(data):
            return torch.empty(0, dtype=dtype).reshape(shape)
        return torch.frombuffer(data, dtype=dtype).reshape(shape)

    def own(self, buffer: Any) -> Any:
        """Return writable memory with a buffer's bytes, which nobody else has."""
        if self.keep is not None and self.keep(buffer):
            return buffer
        return bytearray(buffer)
