"""Where the last step of a branch writes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spdl_async._plan.steps import MAX_WINDOW
from spdl_async._runtime.channel import nobody
from spdl_async._runtime.ticket import Item

if TYPE_CHECKING:
    from spdl_async._runtime.route_step import RouteStep


class End:
    """Where the last step of a branch writes to."""

    __slots__ = ("branch", "held", "on_close", "on_demand", "on_taken", "quorum", "route")

    def __init__(self, route: RouteStep, branch: int) -> None:
        self.route = route
        self.branch = branch
        self.on_taken: Callable[[int], None] = nobody
        self.on_demand: Callable[[], None] | None = None
        self.on_close: Callable[[BaseException | None], bool] | None = None
        self.quorum = 1
        self.held = 0

    def room(self) -> int:
        # What is on its way is bounded by the route's window, so there is always room for it.
        return MAX_WINDOW if self.route.by_ways else self.route.out.room()

    def push(self, items: list[Item]) -> None:
        self.route.arrived(self, items)

    def close(self, failure: BaseException | None = None) -> None:
        if self.on_close is not None and self.on_close(failure):
            return
        self.route.branch_ended(self.branch, failure)
