"""What user code returned: plain data, or something that needs the loop."""

from __future__ import annotations

import inspect
import types
from collections.abc import AsyncIterable
from typing import Any, TypeGuard

from spdl_async.spec.markers import DROP

MAX_TYPES = 1_000


def is_plain(value: Any, plain: set[type]) -> bool:
    """Tell whether ``value`` is data, and remember its type when that alone decides.

    ``False`` for ``DROP`` and for awaitables.
    """
    if value is DROP or inspect.isawaitable(value):
        return False
    kind = type(value)
    # Generators made by types.coroutine are awaitable, others are not: the type does not decide.
    if kind is not types.GeneratorType and len(plain) < MAX_TYPES:
        plain.add(kind)
    return True


def is_async_iterable(value: Any) -> TypeGuard[AsyncIterable[Any]]:
    """Tell whether ``value`` is read by ``async for``; a run of ``run_sync()`` only refuses it."""
    return isinstance(value, AsyncIterable) and not getattr(type(value), "refuses_async", False)
