"""Containers with other values in some places, of their own type; the given ones are not changed."""

from __future__ import annotations

import copy
from collections import UserDict
from typing import Any

from spdl_async.errors import DeviceError


def make_list(container: list[Any], keys: list[int], values: list[Any]) -> list[Any]:
    new = container.copy() if type(container) is list else copy.copy(container)
    for key, value in zip(keys, values, strict=True):
        new[key] = value
    return new


def make_tuple(container: tuple[Any, ...], keys: list[int], values: list[Any]) -> Any:
    elements = list(container)
    for key, value in zip(keys, values, strict=True):
        elements[key] = value
    return tuple(elements) if type(container) is tuple else _tuple_like(container, elements)


def make_named_tuple(container: Any, keys: list[str], values: list[Any]) -> Any:
    fields = dict(zip(container._fields, container, strict=True))
    fields.update(zip(keys, values, strict=True))
    return _tuple_like(container, list(fields.values()))


def _tuple_like(container: Any, elements: list[Any]) -> Any:
    kind = type(container)
    try:
        new = tuple.__new__(kind, elements)  # whatever arguments the type itself takes
    except TypeError:  # a structure of C, as torch.return_types.max
        return kind(elements)
    if hasattr(container, "__dict__"):
        new.__dict__.update(container.__dict__)
    return new


def make_mapping(container: Any, keys: list[Any], values: list[Any]) -> Any:
    kind = type(container)
    if kind is dict:
        new = container.copy()
        new.update(zip(keys, values, strict=True))
        return new
    # The copy of any other class may share what it holds its items in, and must not be written to.
    if issubclass(kind, dict | UserDict) or hasattr(kind, "__copy__"):
        try:
            new = copy.copy(container)
            for key, value in zip(keys, values, strict=True):
                new[key] = value
            return new
        except (TypeError, AttributeError, NotImplementedError):  # it cannot be written to
            pass
    try:
        new = kind({**container, **dict(zip(keys, values, strict=True))})
    except TypeError as error:
        raise _not_made(kind) from error
    if len(new) != len(container) or any(
        new.get(key) is not value for key, value in zip(keys, values, strict=True)
    ):
        raise _not_made(kind)
    return new


def _not_made(kind: type) -> DeviceError:
    return DeviceError(
        f"a {kind.__qualname__} with other tensors in it cannot be made: it can neither be copied and "
        f"assigned to, nor made of a dict; give the class a __copy__, or its own to() and pin_memory(), or "
        f"turn it into a dict above to_device"
    )


def make_dataclass(container: Any, keys: list[str], values: list[Any]) -> Any:
    # No __init__ runs: it may do what was done before, and InitVars are gone. Frozen ones are set as well.
    new = copy.copy(container)
    for key, value in zip(keys, values, strict=True):
        object.__setattr__(new, key, value)
    return new
