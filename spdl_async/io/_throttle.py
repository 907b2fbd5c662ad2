"""How many requests one server gets at a time: a limit that gives way where the server is overloaded.

Additive increase, multiplicative decrease, as TCP does it: an answer 429 or 503 halves the limit,
each good answer raises it by 1 / limit, so that it grows by about one for every round of requests.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque


class Throttle:
    """Counts the requests to one server."""

    __slots__ = ("active", "generation", "limit", "most", "waiting")

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = float(most)
        self.active = 0
        self.generation = 0
        self.waiting: deque[Future[None]] = deque()

    async def acquire(self) -> int:
        """Wait for a place; return what `release` wants to be told."""
        if self.active + 1 <= self.limit and not self.waiting:
            self.active += 1
            return self.generation
        place = asyncio.get_running_loop().create_future()
        self.waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.active -= 1
                self._admit()
            elif place in self.waiting:
                self.waiting.remove(place)
            raise
        return self.generation

    def release(self, generation: int, *, overloaded: bool, good: bool = True) -> bool:
        """Give a place back; tell whether the limit went down.

        Requests that were under way when the limit went down do not lower it again: they say
        nothing about the new one. Those that failed or were given up (not ``good``) do not raise it.
        """
        lowered = overloaded and generation == self.generation
        if lowered:
            self.limit = max(1.0, min(self.limit, self.active) / 2)
            self.generation += 1
        elif good and not overloaded:
            self.limit = min(float(self.most), self.limit + 1.0 / self.limit)
        self.active -= 1
        self._admit()
        return lowered

    def _admit(self) -> None:
        while self.waiting and self.active + 1 <= self.limit:
            place = self.waiting.popleft()
            if not place.done():
                self.active += 1
                place.set_result(None)
