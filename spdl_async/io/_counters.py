"""What fetching has done so far, counted from any thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class FetchStatistics:
    """What a `Fetch` object has done since it was made, over all runs.

    Attributes:
        objects: objects, or ranges of them, that arrived whole.
        bytes: their bytes.
        requests: HTTP requests, those that failed included. What aiohttp does by itself is part of
            one: redirects, and the repetition of a request whose connection was gone already.
        retries: how often an object was asked for once more.
        resumed: how many requests fetched the rest of an object instead of all of it.
        throttled: how often the limit for a server was lowered, since it was overloaded.
    """

    objects: int
    bytes: int
    requests: int
    retries: int
    resumed: int
    throttled: int


class Counters:
    """The numbers behind `FetchStatistics`."""

    __slots__ = ("_lock", "_numbers")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = dict.fromkeys(FetchStatistics.__dataclass_fields__, 0)

    def count(self, **numbers: int) -> None:
        """Add to some of the numbers."""
        with self._lock:
            for name, number in numbers.items():
                self._numbers[name] += number

    def snapshot(self) -> FetchStatistics:
        """Return the numbers as they are."""
        with self._lock:
            return FetchStatistics(**self._numbers)
