"""A router as a 1→1 op that returns where its item goes."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Awaitable, Callable
from typing import Any

from spdl_async._plan.steps import OpKind
from spdl_async.errors import BuildError
from spdl_async.spec.markers import DROP


class Routed:
    """An item with the number of its branch; of a list, with one number for each element."""

    __slots__ = ("to", "value")

    more_bytes = 0  # that it takes besides the item

    def __init__(self, value: Any, to: Any) -> None:
        self.value = value
        self.to = to


class Table:
    """What a router may answer, and which branch each answer means."""

    def __init__(self, keys: tuple[Any, ...] | None, branches: int, *, batched: bool) -> None:
        self.keys = None if keys is None else {key: at for at, key in enumerate(keys)}
        self.branches = branches
        self.batched = batched

    def routed(self, item: Any, answer: Any) -> Any:
        """Return the item with its branch.

        Raises:
            LookupError: there is no such branch.
            TypeError: the answer cannot name one.
            ValueError: of a list, the number of answers is not that of its elements.
        """
        if answer is DROP:
            return DROP
        if not self.batched:
            return Routed(item, self.number(answer))
        if not isinstance(item, (list, tuple)):
            raise TypeError(
                f"route(batched=True): an item must be a list or tuple, not {type(item).__name__}; "
                f"put aggregate(n) above it, or leave batched out"
            )
        answers = list(answer)
        if len(answers) != len(item):
            raise ValueError(
                f"route(batched=True): the router returned {len(answers)} answers for a list of "
                f"{len(item)}; it must return one for each element"
            )
        return Routed(item, [self.number(one) for one in answers])

    def number(self, answer: Any) -> int:
        """Return the position of the branch that an answer means."""
        if self.keys is not None:
            try:
                return self.keys[answer]
            except KeyError:
                raise LookupError(
                    f"the router answered {answer!r}; there are the branches {list(self.keys)!r}"
                ) from None
        if isinstance(answer, bool) or type(answer).__name__ == "bool_":
            raise TypeError(
                f"the router answered {answer!r}; a truth value is no position: give the branches as a "
                f"mapping, route(router, {{True: …, False: …}})"
            )
        try:
            number = operator.index(answer)
        except TypeError:
            raise TypeError(
                f"the router answered {answer!r}; it must be the position of a branch, 0 to "
                f"{self.branches - 1}; for other answers give the branches as a mapping"
            ) from None
        if not 0 <= number < self.branches:
            raise LookupError(
                f"the router answered {number}; there are {self.branches} branches, 0 to "
                f"{self.branches - 1}"
            )
        return number


class Router:
    """A sync router; picklable where the router is."""

    def __init__(self, router: Callable[[Any], Any], table: Table) -> None:
        self.router = router
        self.table = table

    def __call__(self, item: Any) -> Any:
        answer = self.router(item)
        if inspect.isawaitable(answer):
            return self.later(item, answer)
        return self.table.routed(item, answer)

    async def later(self, item: Any, answer: Awaitable[Any]) -> Any:
        return self.table.routed(item, await answer)


class AsyncRouter:
    """An async router."""

    def __init__(self, router: Callable[[Any], Awaitable[Any]], table: Table) -> None:
        self.router = router
        self.table = table

    async def __call__(self, item: Any) -> Any:
        return self.table.routed(item, await self.router(item))


def as_router(
    kind: OpKind, router: Callable[[Any], Any], table: Table, where: str
) -> Callable[[Any], Any]:
    """Return the op that says where each item goes.

    Raises:
        BuildError: the router is a generator function, whose result names no branch.
    """
    if kind == "async":
        return AsyncRouter(router, table)
    if kind == "sync":
        return Router(router, table)
    raise BuildError(f"{where}: the router is a {kind} function; it must return one answer an item")
