"""A predicate as a 1→1 op that returns its item or ``DROP``."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from spdl_async._plan.steps import OpKind
from spdl_async.errors import BuildError
from spdl_async.spec.markers import DROP


def as_filter(kind: OpKind, predicate: Callable[[Any], Any], where: str) -> Callable[[Any], Any]:
    """Return the op that keeps the items for which ``predicate`` is true.

    Raises:
        BuildError: the predicate is a generator function, whose result is always true.
    """
    if kind == "async":
        return AsyncFilter(predicate)
    if kind == "sync":
        return Filter(predicate)
    raise BuildError(f"{where}: the predicate is a {kind} function; it must return true or false")


class Filter:
    """A sync predicate; picklable where the predicate is, for stages on a process pool."""

    def __init__(self, predicate: Callable[[Any], Any]) -> None:
        self.predicate = predicate

    def __call__(self, item: Any) -> Any:
        keep = self.predicate(item)
        if type(keep) is not bool and inspect.isawaitable(keep):
            return _keep_if(keep, item)
        return item if keep else DROP


class AsyncFilter:
    """An async predicate."""

    def __init__(self, predicate: Callable[[Any], Awaitable[Any]]) -> None:
        self.predicate = predicate

    async def __call__(self, item: Any) -> Any:
        return item if await self.predicate(item) else DROP


async def _keep_if(verdict: Awaitable[Any], item: Any) -> Any:
    return item if await verdict else DROP
