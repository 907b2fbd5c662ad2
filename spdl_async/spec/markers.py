"""The marker that drops an item."""

from __future__ import annotations

import enum
from typing import Final, Literal


class Drop(enum.Enum):
    """The type of :data:`DROP`: an enum of one member, so that ``is`` narrows it and pickling keeps it."""

    DROP = "DROP"

    def __repr__(self) -> str:
        return "DROP"

    def __bool__(self) -> bool:
        raise TypeError("DROP has no truth value: compare with `is DROP`")


DROP: Final[Literal[Drop.DROP]] = Drop.DROP
"""Returned or yielded by user code, drops the item (counted). Not looked for inside containers.

>>> from spdl_async import DROP, PipelineBuilder
>>> evens = PipelineBuilder().add_source(range(6)).pipe(lambda x: DROP if x % 2 else x).build()
>>> list(evens)
[0, 2, 4]
"""
