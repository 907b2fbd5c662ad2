"""The tensors of a value that lie on a device."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from spdl_async.device._backend import DeviceBackend

_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), type, types.ModuleType)
_ATOMS = frozenset({str, bytes, int, float, complex, bool, type(None)})
"""Of these there may be ten thousands in a batch."""

_DEEPEST = 3
"""Objects in objects that are looked into: a batch that holds detections that hold boxes."""


def tensors_in(value: Any, backend: DeviceBackend) -> list[torch.Tensor]:
    """Return the tensors on a device that a value holds, as `tensors_anywhere`."""
    return [tensor for tensor in tensors_anywhere(value) if backend.is_here(tensor)]


def tensors_anywhere(value: Any) -> list[torch.Tensor]:
    """Return the tensors that a value holds, each once.

    Looked into are lists, tuples, mappings, dataclasses, and the attributes of any other object, three
    objects deep; but not of a ``torch.nn.Module``, whose weights are no part of a batch.
    """
    found: dict[int, torch.Tensor] = {}
    seen: set[int] = set()
    stack: list[tuple[Any, int]] = [(value, _DEEPEST)]
    while stack:
        inner, deep = stack.pop()
        if isinstance(inner, torch.Tensor):
            found[id(inner)] = inner
            continue
        if isinstance(inner, _LEAVES) or id(inner) in seen:
            continue
        seen.add(id(inner))
        children: Iterable[Any] = ()
        if isinstance(inner, Mapping):
            children = inner.values()
        elif isinstance(inner, (list, tuple)):
            children = inner
        elif dataclasses.is_dataclass(inner):
            children = _fields(inner)
        elif deep and not isinstance(inner, torch.nn.Module):
            children, deep = _attributes(inner), deep - 1
        stack += [(one, deep) for one in children if type(one) not in _ATOMS]
    return list(found.values())


def _fields(value: Any) -> Iterator[Any]:
    for field in dataclasses.fields(value):
        yield getattr(value, field.name, None)


def _attributes(value: Any) -> Iterator[Any]:
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(value, name, None)
