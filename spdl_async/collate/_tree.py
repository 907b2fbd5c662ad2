"""Samples as trees of tuples, lists, mappings and dataclasses, walked in step."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import numpy as np
import torch

from spdl_async.errors import CollateError

SAME_STRUCTURE: Final = "every sample needs the same structure"
_SAME_LENGTH: Final = "pad them to one length before they are collated"

Leaf = Callable[[Sequence[Any], str], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaves:
    """What is made of the values of one field: arrays, tensors, Python numbers, anything else."""

    arrays: Leaf
    tensors: Leaf
    numbers: Leaf
    others: Leaf


def gather(values: Sequence[Any], field: str, leaves: Leaves) -> Any:
    """Collate one field; ``field`` is how the user reaches it, such as ``sample.boxes['xy']``."""
    first = values[0]
    stack = _gatherer(first, leaves)
    for index, value in enumerate(values):
        if type(value) is not type(first) and _gatherer(value, leaves) is not stack:
            refuse(field, index, kind_of(first), kind_of(value), SAME_STRUCTURE)
    if stack in _CONTAINERS:
        return stack(values, field, leaves)
    return stack(values, field)


def _gatherer(value: object, leaves: Leaves) -> Callable[..., Any]:
    """Return the function that stacks values of this kind."""
    if isinstance(value, torch.Tensor):
        return leaves.tensors
    # numpy's strings and dates are values that no tensor can hold, as Python's are.
    if isinstance(value, np.ndarray | np.number | np.bool_):
        return leaves.arrays
    if isinstance(value, int | float):
        return leaves.numbers
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _collate_dataclass
    if isinstance(value, Mapping):
        return _collate_mapping
    if isinstance(value, tuple):
        return _collate_named_tuple if hasattr(value, "_fields") else _collate_tuple
    return _collate_list if isinstance(value, list) else leaves.others


def _collate_dataclass(values: Sequence[Any], field: str, leaves: Leaves) -> Any:
    first = values[0]
    _check_same_type(values, field)
    # Neither __init__ nor a frozen class's __setattr__ takes part: see collate().
    batch = object.__new__(type(first))
    for name in (each.name for each in dataclasses.fields(first)):
        column = [getattr(value, name) for value in values]
        object.__setattr__(batch, name, gather(column, f"{field}.{name}", leaves))
    return batch


def _collate_mapping(values: Sequence[Any], field: str, leaves: Leaves) -> Any:
    first = values[0]
    for index, value in enumerate(values):
        if value.keys() != first.keys():
            keys = [f"the keys {', '.join(sorted(map(repr, each)))}" for each in (first, value)]
            refuse(field, index, keys[0], keys[1], SAME_STRUCTURE)
    batch = {
        key: gather([value[key] for value in values], f"{field}[{key!r}]", leaves) for key in first
    }
    if type(first) is dict:
        return batch
    if isinstance(first, dict):
        # A copy keeps what the constructor does not tell, as a defaultdict's factory.
        rebuilt = copy.copy(first)
        rebuilt.update(batch)
        return rebuilt
    try:
        return type(first)(batch)
    except TypeError:
        return batch


def _collate_named_tuple(values: Sequence[Any], field: str, leaves: Leaves) -> Any:
    _check_same_type(values, field)
    kind = type(values[0])
    columns = zip(kind._fields, zip(*values, strict=True), strict=True)
    return kind._make(gather(column, f"{field}.{name}", leaves) for name, column in columns)


def _collate_tuple(values: Sequence[Any], field: str, leaves: Leaves) -> tuple[Any, ...]:
    return tuple(_collate_list(values, field, leaves))


def _collate_list(values: Sequence[Any], field: str, leaves: Leaves) -> list[Any]:
    first = values[0]
    for index, value in enumerate(values):
        if len(value) != len(first):
            refuse(field, index, f"{len(first)} elements", f"{len(value)}", _SAME_LENGTH)
    columns = enumerate(zip(*values, strict=True))
    return [gather(column, f"{field}[{position}]", leaves) for position, column in columns]


def _check_same_type(values: Sequence[Any], field: str) -> None:
    first = values[0]
    for index, value in enumerate(values):
        if type(value) is not type(first):
            refuse(field, index, kind_of(first), kind_of(value), SAME_STRUCTURE)


def refuse(field: str, index: int, first: str, other: str, advice: str) -> NoReturn:
    raise CollateError(
        f"samples 0 and {index} do not fit into one batch: {field} is {first} in sample 0 and "
        f"{other} in sample {index}; {advice}",
        samples=(0, index),
    )


def shape_of(value: Any) -> str:
    return f"{kind_of(value)} of shape {tuple(value.shape)}, dtype {value.dtype},"


def kind_of(value: object) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


_CONTAINERS: Final[frozenset[Callable[..., Any]]] = frozenset(
    (
        _collate_dataclass,
        _collate_list,
        _collate_mapping,
        _collate_named_tuple,
        _collate_tuple,
    )
)
