"""``on``: an op on one field of an item."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Any

from spdl_async._plan.classify import classify_op
from spdl_async.errors import BuildError, note_once
from spdl_async.spec.markers import DROP
from spdl_async.spec.stages import op_name

MAX_NAMES = 10


def on(key: Any, op: Any, /) -> Callable[[Any], Any]:
    """Return an op that applies ``op`` to one field of a tuple, list, dict or dataclass.

    The item is copied, not changed: a new one of the same type holds the op's result in place of
    the field. Where ``op`` returns ``DROP`` the whole item is dropped.

    Args:
        key: index of a tuple's or list's element, key of a dict, name of a named tuple's or
            dataclass's field.
        op: sync or async function of the field, or an object to look it up in.

    Failures of the op, or of an item that has no such field, carry a note that names the field. To
    a type checker the item is ``Any`` from here on, since the type of a field may have changed.

    Raises:
        BuildError: ``op`` is a generator function, or can neither be called nor be indexed.

    >>> from spdl_async import PipelineBuilder, on
    >>> samples = PipelineBuilder().add_source([("a", 1), ("b", 2)])
    >>> list(samples.pipe(on(1, lambda x: x * 10)).build())
    [('a', 10), ('b', 20)]
    """
    where = f"on({key!r}, {op_name(op)})"
    kind, call = classify_op(op, where)
    if kind == "async":
        return AsyncOnField(key, op, call)
    if kind == "sync":
        return OnField(key, op, call)
    raise BuildError(
        f"{where}: a {kind} function makes several items of one; put it into pipe itself"
    )


class OnField:
    """A sync op on one field; picklable where the op is."""

    def __init__(self, key: Any, op: Any, call: Callable[[Any], Any]) -> None:
        self.key = key
        self.__wrapped_op__ = op
        self._call = call
        self.__name__ = op_name(op)

    def with_call(self, call: Callable[[Any], Any]) -> OnField:
        """Return the same with another callable in the op's place."""
        return OnField(self.key, self.__wrapped_op__, call)

    def __call__(self, item: Any, /) -> Any:
        field = get(item, self.key)
        try:
            value = self._call(field)
            if inspect.isawaitable(value):
                return _put_awaited(item, self.key, value)
        except Exception as error:
            note_once(error, f"spdl_async: on field {self.key!r}")
            raise
        return value if value is DROP else put(item, self.key, value)


class AsyncOnField:
    """An async op on one field."""

    def __init__(self, key: Any, op: Any, call: Callable[[Any], Awaitable[Any]]) -> None:
        self.key = key
        self.__wrapped_op__ = op
        self._call = call
        self.__name__ = op_name(op)

    def with_call(self, call: Callable[[Any], Awaitable[Any]]) -> AsyncOnField:
        """Return the same with another callable in the op's place."""
        return AsyncOnField(self.key, self.__wrapped_op__, call)

    async def __call__(self, item: Any, /) -> Any:
        field = get(item, self.key)
        try:
            value = await self._call(field)
        except Exception as error:
            note_once(error, f"spdl_async: on field {self.key!r}")
            raise
        return value if value is DROP else put(item, self.key, value)


async def _put_awaited(item: Any, key: Any, value: Awaitable[Any]) -> Any:
    try:
        result = await value
    except Exception as error:
        note_once(error, f"spdl_async: on field {key!r}")
        raise
    return result if result is DROP else put(item, key, result)


def get(item: Any, key: Any) -> Any:
    """Return one field of an item.

    Raises:
        LookupError | AttributeError | TypeError: it has none; a note says which it has.
    """
    try:
        if isinstance(key, str) and not isinstance(item, Mapping):
            return getattr(item, key)
        return item[key]
    except Exception as error:
        note_once(
            error, f"spdl_async: on({key!r}, …): the item, {_fields(item)}, has no field {key!r}"
        )
        raise


def _fields(item: Any) -> str:
    """Say what a value is and which fields it has, shortened."""
    kind = type(item).__name__
    names: list[Any] | None = None
    if isinstance(item, Mapping):
        names = list(islice(item, MAX_NAMES + 1))
    elif dataclasses.is_dataclass(item):
        names = [field.name for field in dataclasses.fields(item)]
    elif isinstance(item, tuple) and hasattr(item, "_fields"):
        names = list(item._fields)
    elif isinstance(item, (tuple, list)):
        return f"a {kind} of {len(item)}"
    if names is None:
        return f"of type {kind}"
    shown = ", ".join(map(repr, names[:MAX_NAMES])) + (", …" if len(names) > MAX_NAMES else "")
    return f"a {kind} with the fields {shown or 'none'}"


def put(item: Any, key: Any, value: Any) -> Any:
    """Return a copy of an item with another value in one field.

    Raises:
        TypeError: the item is of a type that has no such fields.
    """
    if isinstance(item, tuple):
        if hasattr(item, "_replace"):
            named: Any = item
            name = key if isinstance(key, str) else named._fields[key]
            return named._replace(**{name: value})
        at = range(len(item))[key]
        return type(item)((*item[:at], value, *item[at + 1 :]))
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return dataclasses.replace(item, **{key: value})
    if isinstance(item, (list, dict)) or (
        isinstance(item, Mapping) and hasattr(item, "__setitem__")
    ):
        changed: Any = copy.copy(item)
        changed[key] = value
        return changed
    raise TypeError(
        f"on({key!r}, …): the item is a {type(item).__name__}; fields are those of tuples, lists, dicts "
        f"and dataclasses"
    )
