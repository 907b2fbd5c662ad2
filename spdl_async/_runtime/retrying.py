"""Calling an op again on an item that it has failed on, after a while.

What waits is the item alone: in its place in the window, without a thread and without a slot of the
stage's concurrency. A timer of the loop puts it back in front of the items not yet begun.
"""

from __future__ import annotations

import random
from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from spdl_async._runtime.ticket import Item, OpFailure
from spdl_async.spec.policy import Retry

UNTRIED: Final[tuple[object, int]] = (None, 0)


class Retries:
    """Says when a failed call is made again; of one op in one run.

    ``seed`` and the item decide on the random part of a wait, so a run can be repeated exactly,
    whatever the order in which its calls happen to fail.
    """

    __slots__ = ("retry", "seed")

    def __init__(self, retry: Retry, seed: str) -> None:
        self.retry = retry
        self.seed = seed

    def after(self, item: Item, failure: OpFailure, allowed: bool = True) -> float | None:
        """Count a failed call; return the seconds until the next one, ``None`` where it was the last."""
        retry = self.retry
        owner, calls = getattr(item, "tries", UNTRIED)
        calls = calls + 1 if owner is self else 1
        failure.attempts = calls
        if not allowed or calls >= retry.attempts or not isinstance(failure.exception, retry.on):
            return None
        failure.forget()
        item.tries = (self, calls)
        if not retry.jitter:
            return retry.wait_after(calls, 0.0)
        chance = random.Random(f"{self.seed}, {item.index}, {item.path}, {calls}").random()
        return retry.wait_after(calls, chance)

    def has_tried(self, item: Item) -> bool:
        """Tell whether a call on the item has failed and is to be made again."""
        return getattr(item, "tries", UNTRIED)[0] is self


class Backoff:
    """What waits for its next call: items, or the flows of a 1→n stage.

    Attributes:
        news: (what, seconds) that threads have put here; :meth:`arm` starts the timers.
        due: whose time has come.
    """

    __slots__ = ("_closed", "_loop", "_on_arm", "_on_due", "_timers", "due", "news")

    def __init__(
        self, loop: AbstractEventLoop, on_arm: Callable[[Any], None], on_due: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._on_arm = on_arm
        self._on_due = on_due
        self._timers: dict[Any, TimerHandle] = {}
        self.news: deque[tuple[Any, float]] = deque()
        self.due: deque[Any] = deque()
        self._closed = False

    def __len__(self) -> int:
        if self._closed:
            return 0
        return len(self.news) + len(self._timers) + len(self.due)

    def arm(self) -> None:
        """Start the timers of what has come, on the loop."""
        if self._closed:
            self.news.clear()
        while self.news:
            what, seconds = self.news.popleft()
            self._on_arm(what)
            self._timers[what] = self._loop.call_later(seconds, self._ripe, what)

    def _ripe(self, what: Any) -> None:
        del self._timers[what]
        self.due.append(what)
        self._on_due()

    def clear(self) -> None:
        """Let go of everything, and of what calls that still run will add: the run stops."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.news.clear()
        self.due.clear()
