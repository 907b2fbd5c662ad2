"""The tensors of a value that lie on a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from spdl_async.device._backend import DeviceBackend

_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), type)


def tensors_in(value: Any, backend: DeviceBackend) -> list[torch.Tensor]:
    """Return the tensors on a device that a value holds, as `tensors_anywhere`."""
    return [tensor for tensor in tensors_anywhere(value) if backend.is_here(tensor)]


def tensors_anywhere(value: Any) -> list[torch.Tensor]:
    """Return the tensors that a value holds, each once.

    Looked into are lists, tuples, mappings, dataclasses, and the attributes of any other object, but not
    those of objects inside of that.
    """
    found: dict[int, torch.Tensor] = {}
    seen: set[int] = set()
    stack: list[tuple[Any, bool]] = [(value, True)]
    while stack:
        inner, look_into = stack.pop()
        if isinstance(inner, torch.Tensor):
            found[id(inner)] = inner
            continue
        if isinstance(inner, _LEAVES) or id(inner) in seen:
            continue
        seen.add(id(inner))
        if isinstance(inner, Mapping):
            stack += [(one, look_into) for one in inner.values()]
        elif isinstance(inner, (list, tuple)):
            stack += [(one, look_into) for one in inner]
        elif dataclasses.is_dataclass(inner):
            stack += [(one, look_into) for one in _fields(inner)]
        elif look_into:
            stack += [(one, False) for one in _attributes(inner)]
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
