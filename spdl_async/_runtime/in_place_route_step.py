"""A route in input order whose branches make of an item one or none: the items themselves go through.

No ticket is needed for the way, as nothing else is ever made of an item: it has come back when the
branch's last step hands it on, and is gone when a step of the branch drops it. Both is marked in the
item, where the route looks when the item is the first that it holds.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any, Final

from spdl_async._runtime.branch_end import End
from spdl_async._runtime.route_step import RouteStep
from spdl_async._runtime.ticket import GONE, Item

MARKS: Final = itertools.count(GONE - 1, -1)


class InPlaceRouteStep(RouteStep):
    """Keeps the items in input order, with the numbers of their branches."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.held_items: deque[Item] = deque()
        self.held_in: deque[int] = deque()
        self.back = next(MARKS)  # its own: an item may go through routes within a branch

    def holds_any(self) -> bool:
        return bool(self.held_items)

    def let_go(self) -> None:
        super().let_go()
        self.held_items.clear()

    def send(self, items: list[Item]) -> None:
        bundles: list[list[Item]] = [[] for _ in self.inlets]
        held_in = self.held_in
        self.held_items += items
        for item in items:
            routed = item.value
            to = routed.to
            item.value = routed.value
            held_in.append(to)
            bundles[to].append(item)
        for inlet, bundle in zip(self.inlets, bundles, strict=True):
            if bundle:
                inlet.push(bundle)

    def arrived(self, end: End, items: list[Item]) -> None:
        for item in items:
            item.at = self.back
        end.on_taken(len(items))
        self.advance_soon()

    def gather(self) -> None:
        held, held_in, ready, back = self.held_items, self.held_in, self.ready, self.back
        count = 0
        while held:
            item = held[0]
            if item.at == back:
                item.at = 0
                ready.append(item)
            elif item.at != GONE:
                self.look_for_failure((held_in[0],))
                break
            held.popleft()
            held_in.popleft()
            count += 1
        if count:
            self.accepted -= count
            self.meters[0].queue = self.accepted
            self.room.set()
