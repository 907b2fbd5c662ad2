"""Batches as trees: the tensors in them, and the same batch with other tensors in their places.

A batch is any tree of lists, tuples, named tuples, mappings and dataclasses. The type of each part decides:

================================  =========================================================================
tensor, numpy array               a leaf; an array is converted as by ``torch.from_numpy``
own ``pin_memory()`` or ``to()``  a leaf as a whole; but a mapping with ``to()`` alone is taken apart, so that
                                  its fields are staged and can be chosen (``BatchEncoding`` is one)
mapping, list, tuple, dataclass   taken apart; rebuilt, where a leaf below it is replaced, with its own type
``torch.nn.Module``               an error: a model is no batch
anything else                     untouched, numpy's numbers and Python's among it
================================  =========================================================================

The first line that fits counts: a mapping that is a dataclass too, as transformers' ``ModelOutput``, is a
mapping.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from spdl_async.device._leaves import Leaf, array_leaf, object_leaf, plain_leaf, tensor_leaf
from spdl_async.device._only import Only, Trie, add, chosen
from spdl_async.device._paths import Attribute, Path, show
from spdl_async.device._rebuild import (
    make_dataclass,
    make_list,
    make_mapping,
    make_named_tuple,
    make_tuple,
)
from spdl_async.errors import DeviceError

_DEEPEST: Final = 200
"""Levels of a batch; more are a mistake, and would meet Python's limit on recursion."""

_OPEN: Final = object()
"""Stands for a container that is being walked: to meet it again is a cycle."""

_SEQUENCES: Final = frozenset({list, tuple})
_ATOMS: Final = frozenset({bool, bytes, complex, float, int, str, type(None)})
"""Types that are left alone; what is said here again is said for speed."""

Items = Callable[[Any], Iterable[tuple[Any, Any]]]


class _Container(NamedTuple):
    """How one type of container is taken apart, and put together from (container, keys, values)."""

    items: Items
    make: Callable[[Any, list[Any], list[Any]], Any]


_LeafOf = Callable[[Any, Path], Leaf]


@functools.lru_cache(maxsize=1024)
def _kind_of(kind: type) -> _Container | _LeafOf | None:
    """Tell what values of a type are: containers, leaves, or None for what is left alone."""
    if issubclass(kind, torch.Tensor):
        return tensor_leaf
    if issubclass(kind, np.ndarray):
        return array_leaf
    if issubclass(kind, torch.nn.Module):
        return _refuse_module
    moves, pins = (callable(getattr(kind, name, None)) for name in ("to", "pin_memory"))
    if pins or (moves and not issubclass(kind, Mapping)):
        return object_leaf
    if issubclass(kind, Mapping):
        return _Container(kind.items, make_mapping)
    if dataclasses.is_dataclass(kind):
        names = tuple(Attribute(field.name) for field in dataclasses.fields(kind))
        return _Container(functools.partial(_fields_of, names), make_dataclass)
    if issubclass(kind, tuple):
        fields = getattr(kind, "_fields", None)
        if fields is None:
            return _Container(enumerate, make_tuple)
        named = tuple(map(Attribute, fields))
        return _Container(functools.partial(zip, named), make_named_tuple)
    return _Container(enumerate, make_list) if issubclass(kind, list) else None


def _fields_of(names: tuple[Attribute, ...], value: Any) -> Iterable[tuple[Any, Any]]:
    # A field without a default, of init=False, may never have been set.
    return [(name, getattr(value, name)) for name in names if hasattr(value, name)]


def _refuse_module(value: Any, path: Path) -> Leaf:
    raise DeviceError(
        f"{show(path)} is a {type(value).__name__}, a torch.nn.Module: a model is not part of a batch; "
        f"move it once, by model.to(device), and keep it out of the items",
        field=show(path),
    )


class _Node:
    """A container in which something is replaced; `slots` are numbers of leaves, or nodes."""

    __slots__ = ("container", "keys", "make", "shared", "slots")

    def __init__(self, container: Any, make: Callable[[Any, list[Any], list[Any]], Any]) -> None:
        self.container = container
        self.make = make
        self.keys: list[Any] = []
        self.slots: list[int | _Node] = []
        self.shared = False

    def build(self, values: Sequence[Any], built: dict[_Node, Any]) -> Any:
        if self.shared and self in built:
            return built[self]
        new = [
            values[slot] if type(slot) is int else slot.build(values, built)  # type: ignore[union-attr]  # no int
            for slot in self.slots
        ]
        result = self.make(self.container, self.keys, new)
        if self.shared:
            built[self] = result
        return result


class Found:
    """The leaves of one batch.

    It holds on to the batch.

    Attributes:
        leaves: each tensor, array and object once, however often it appears, in the order of the batch.
    """

    __slots__ = ("_batch", "_root", "_wrapped", "leaves")

    def __init__(self, batch: Any, root: int | _Node | None, leaves: list[Leaf]) -> None:
        self.leaves = leaves
        self._batch = batch
        self._root = root
        self._wrapped = [number for number, leaf in enumerate(leaves) if leaf.like is not None]

    def rebuild(self, values: Sequence[Any]) -> Any:
        """Return the batch with other values in the places of its leaves.

        What holds no leaf is the same object as in the batch, which is itself not changed. A tensor that
        stands for one of a subclass (``leaf.like``) gets its class and attributes; ``requires_grad`` is off.

        Args:
            values: one for each of `leaves`, in their order.

        Raises:
            DeviceError: a mapping of the batch can neither be copied nor made of a dict.
        """
        if len(values) != len(self.leaves):
            raise ValueError(f"there are {len(self.leaves)} leaves, but {len(values)} values")
        root = self._root
        if root is None:
            return self._batch
        if self._wrapped:
            values = list(values)
            for number in self._wrapped:
                values[number] = self.leaves[number].wrap(values[number])
        return values[root] if isinstance(root, int) else root.build(values, {})


def find(batch: Any, only: object = None, *, strict: bool = True) -> Found:
    """Find the tensors, arrays and objects of a batch that are to be moved.

    Args:
        batch: the batch; it is only read.
        only: which of its fields, see `chosen`; None: all. Where there are many batches give what `chosen`
            returned.
        strict: whether a name in ``only`` that the batch does not have is an error, as it should be with the
            first batch.

    Raises:
        DeviceError: something in the chosen fields is not for a device (an array of text, a module), the
            batch holds itself, or is nested too deep.
        BuildError: ``only`` is nothing that chooses fields.
    """
    which = only if only is None or isinstance(only, Only) else chosen(only)
    walk = _Walk(which, strict)
    root = walk.visit(batch, (), None if which is None else which.trie)
    return Found(batch, root, walk.leaves)


class _Walk:
    """One walk over one batch."""

    __slots__ = ("alive", "ask", "leaves", "nodes", "seen", "strict")

    def __init__(self, only: Only | None, strict: bool) -> None:
        self.ask = None if only is None else only.ask
        self.strict = strict
        self.leaves: list[Leaf] = []
        self.seen: dict[int, int] = {}
        self.nodes: dict[int, Any] = {}
        self.alive: list[Any] = []  # while it lasts no id is given out again

    def visit(self, value: Any, path: Path, trie: Trie | None) -> int | _Node | None:
        """Return the number of a leaf, the node of a container, or None where nothing is replaced."""
        kind = _kind_of(type(value))  # type: ignore[arg-type]  # mypy takes no type for hashable
        if isinstance(kind, _Container):
            if trie is not None:
                return self._some(value, kind, path, trie)
            return self._all(value, kind, path)
        if trie is not None:
            self._missed(trie, value, path, ())
            return None
        return None if kind is None else self._leaf(value, kind, path)

    def _leaf(self, value: Any, leaf_of: _LeafOf, path: Path) -> int | None:
        if self.ask is not None and not self.ask(path, value):
            return None
        number = self.seen.get(id(value))
        if number is None:
            leaf = leaf_of(value, path)
            number = self.seen[id(value)] = len(self.leaves)
            self.leaves.append(leaf)
        return number

    def _all(self, value: Any, kind: _Container, path: Path) -> _Node | None:
        """Walk a container of which all is chosen."""
        if type(value) in _SEQUENCES and _ATOMS.issuperset(map(type, value)):
            return None  # ten thousand labels, say; or it is empty
        known = self.nodes.get(id(value), self)
        if known is not self:
            return self._met_again(known, path)
        if len(path) >= _DEEPEST:
            raise DeviceError(
                f"the batch is nested more than {_DEEPEST} levels deep, at {show(path[:3])}…; "
                f"make it flatter, or choose its fields by only=…"
            )
        self.nodes[id(value)] = _OPEN
        self.alive.append(value)
        node = _Node(value, kind.make)
        keys, slots, leaves, seen, ask = node.keys, node.slots, self.leaves, self.seen, self.ask
        slot: int | _Node | None
        for key, child in kind.items(value):
            if type(child) in _ATOMS:
                continue
            if type(child) is torch.Tensor and ask is None:  # as _leaf, without its calls
                slot = seen.get(id(child))
                if slot is None:
                    slot = seen[id(child)] = len(leaves)
                    leaves.append(plain_leaf(child, path, key))
            else:
                slot = self.visit(child, (*path, key), None)
                if slot is None:
                    continue
            keys.append(key)
            slots.append(slot)
        found = node if keys else None
        if ask is None:
            self.nodes[id(value)] = found
        else:  # at another path the answer may be another one
            del self.nodes[id(value)]
        return found

    def _met_again(self, known: _Node | object | None, path: Path) -> _Node | None:
        if known is _OPEN:
            raise DeviceError(
                f"{show(path)} is a container in which it lies itself: a batch cannot be a cycle",
                field=show(path),
            )
        if isinstance(known, _Node):
            known.shared = True
            return known
        return None

    def _some(self, value: Any, kind: _Container, path: Path, trie: Trie) -> _Node | None:
        """Walk a container of which some children are chosen by their names."""
        node = _Node(value, kind.make)
        items = list(kind.items(value))
        wanted = trie
        if kind.make is not make_mapping:  # positions, of named tuples and from the end too
            wanted = {}
            for name, below in trie.items():
                add(wanted, _name_of(name, items, kind), below)
        for key, child in items:
            if key in wanted:
                slot = self.visit(child, (*path, key), wanted[key])
                if slot is not None:
                    node.keys.append(key)
                    node.slots.append(slot)
        present = [key for key, _ in items]
        self._missed({n: b for n, b in wanted.items() if n not in present}, value, path, present)
        return node if node.keys else None

    def _missed(self, names: Trie, value: Any, path: Path, present: Sequence[Any]) -> None:
        if not names or not self.strict:
            return
        missing = ", ".join(repr(name) for name in names)
        there = ", ".join(repr(name) for name in present)
        raise DeviceError(
            f"only=… names {missing}, which {show(path)}, a {type(value).__name__}, does not have; "
            + (f"its fields are {there}" if present else "it has no fields that can be chosen"),
            field=show(path),
        )


def _name_of(name: Any, items: Sequence[tuple[Any, Any]], kind: _Container) -> Any:
    """Return the key that a position stands for."""
    if kind.make is make_dataclass or type(name) is not int:
        return name
    return items[name][0] if -len(items) <= name < len(items) else name
