"""What a sync op returned: plain data, or something that needs the loop."""

from __future__ import annotations

import inspect
import types
from typing import Any

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
