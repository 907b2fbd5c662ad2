"""The way of a routed item through a branch, and how elements of lists find their places again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from spdl_async._runtime.ticket import Item


class Route(Protocol):
    """Who wants to know when a way is done."""

    def way_done(self, way: Way) -> None:
        """Hear that nothing of a routed item is left in the branches."""


class Way(Item):
    """The ticket of an item on its way through the branches; ``open`` counts what is left there.

    Attributes:
        origin: the item that was routed.
        branch: the number of its branch; of a list, -1.
        results: what has come back and not left yet.
        places: of a list, for each branch the places of the elements that it was given.
        parts: of a list, what each branch has made of its elements.
        waiting: of a list, the branches that have not answered.
    """

    root: Item
    places: dict[int, list[int]]
    parts: dict[int, Any]
    waiting: set[int]

    __slots__ = ("branch", "origin", "parts", "places", "results", "step", "waiting")

    def __init__(self, step: Route, origin: Item, branch: int) -> None:
        # Of an item only what a ticket needs: there is one for each that is routed.
        self.root = origin if origin.root is None else origin.root
        self.open = 1
        self.step = step
        self.origin = origin
        self.branch = branch
        self.results: list[Item] = []

    def left(self) -> None:
        """Hear that nothing of the item is in a branch any more."""
        self.step.way_done(self)


class Part(Way):
    """The ticket of a list's elements on their way through one branch.

    Attributes:
        whole: the way of the list.
    """

    __slots__ = ("whole",)

    def __init__(self, whole: Way, branch: int) -> None:
        super().__init__(whole.step, whole.origin, branch)
        self.whole = whole

    def left(self) -> None:
        whole = self.whole
        whole.waiting.discard(self.branch)
        whole.open -= 1
        if not whole.open:
            whole.left()


class Member(Way):
    """The ticket of one member of a batch on its way through a branch, where it may be taken out.

    Attributes:
        whole: the way of the batch.
    """

    __slots__ = ("whole",)

    def __init__(self, whole: Way, member: Item) -> None:
        super().__init__(whole.step, member, whole.branch)
        self.whole = whole

    def spoilt(self) -> None:
        self.whole.spoilt()

    def left(self) -> None:
        self.whole.open -= 1
        if not self.whole.open:
            self.whole.left()


def inside(item: Item, way: Way, value: Any) -> Item:
    """Return the item that goes through a branch in the place of a routed one."""
    members = item.members
    if not members:  # also of what an aggregator has made of nothing
        return Item(value, item.index, item.source, way, item.path)
    way.open = len(members)
    own = [Item(None, m.index, m.source, Member(way, m), m.path) for m in members]
    return Item(value, item.index, item.source, way, item.path, own)


def way_of(item: Item) -> Way:
    """Return the way on which an item has come."""
    way = item.members[0].root if item.members else item.root
    assert isinstance(way, Way)
    return way


def in_places(
    places: dict[int, list[int]],
    parts: dict[int, Any],
    labels: tuple[str, ...],
    opened: Callable[[Any], Any] | None = None,
) -> list[Any] | ValueError | None:
    """Return the elements that branches have returned, in their original places.

    ``None``: the branches have dropped all. An error: one has not returned as many as it was given.
    """
    found: dict[int, Any] = {}
    for branch, own in places.items():
        if branch not in parts:  # dropped or skipped in the branch
            continue
        part = parts[branch] if opened is None else opened(parts[branch])
        if not isinstance(part, (list, tuple)) or len(part) != len(own):
            got = f"a list of {len(part)}" if isinstance(part, list) else type(part).__name__
            return ValueError(
                f"route(batched=True): branch {labels[branch]} was given a list of {len(own)} and "
                f"returned {got}; it must return a list or tuple of as many elements, so that they "
                f"come back in their places"
            )
        found.update(zip(own, part, strict=True))
    if not found and places:
        return None
    return [found[place] for place in sorted(found)]
