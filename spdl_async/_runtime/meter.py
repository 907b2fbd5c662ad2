"""Counters of a stage: plain numbers, written by one thread each, read by anyone."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from time import perf_counter as clock
from types import MappingProxyType

from spdl_async.statistics import NO_NOTES, StageStatistics


class Meter:
    """What one stage did.

    ``busy``, ``calls`` and the other numbers are written on the loop only; hops keep their own
    numbers in their thread and hand them over when they end. What ops say themselves (``tally``,
    ``note``) is added from any thread.
    """

    __slots__ = (
        "abandoned", "blocked_since", "busy", "bytes", "calls", "concurrency", "dropped", "failed",
        "items_in", "items_out", "kind", "lock", "name", "notes", "peak", "peak_bytes", "queue",
        "retried", "said", "waiting_input", "waiting_room",
    )  # fmt: skip

    def __init__(self, name: str, kind: str, concurrency: int) -> None:
        self.name = name
        self.kind = kind
        self.concurrency = concurrency
        self.items_in = 0
        self.items_out = 0
        self.dropped = 0
        self.failed = 0
        self.calls = 0
        self.busy = 0.0
        self.waiting_input = 0.0
        self.waiting_room = 0.0
        self.blocked_since = 0.0  # since when finished items wait for room, 0 while none do
        self.queue = 0
        self.peak = 0
        self.notes: Mapping[str, object] = NO_NOTES
        self.retried = 0
        self.abandoned = 0
        self.bytes = 0
        self.peak_bytes = 0
        self.said: dict[str, object] = {}
        # Reentrant: a finalizer that runs while it is held may have something to say, too.
        self.lock = threading.RLock()

    def add(self, name: str, n: float) -> None:
        """Add to a counter that an op keeps.

        Raises:
            TypeError: the name was given to something else.
        """
        with self.lock:
            before = self.said.get(name, 0)
            if not isinstance(before, (int, float)):
                raise TypeError(
                    f"tally({name!r}): note() has set this name to {before!r}, which is no number"
                )
            self.said[name] = before + n

    def set(self, name: str, value: object) -> None:
        """Set what an op says."""
        with self.lock:
            self.said[name] = value

    def all_notes(self) -> Mapping[str, object]:
        """Return the notes, and what ops have said, which goes first where both use a name."""
        if not self.said:
            return self.notes
        with self.lock:
            return MappingProxyType({**self.notes, **self.said})

    def unblock(self) -> None:
        """Count the time since finished items began to wait for room; now none do."""
        since, self.blocked_since = self.blocked_since, 0.0
        if since:
            self.waiting_room += clock() - since

    def snapshot(self, busy: float = 0.0) -> StageStatistics:
        """Return a frozen copy; ``busy`` seconds of calls that still run are added.

        So is a wait for room that goes on: that of a stuck run is what its user looks for.
        """
        since = self.blocked_since  # read first: the loop may end the wait meanwhile
        blocked = clock() - since if since else 0.0
        return StageStatistics(
            name=self.name,
            kind=self.kind,
            concurrency=self.concurrency,
            items_in=self.items_in,
            items_out=self.items_out,
            dropped=self.dropped,
            failed=self.failed,
            busy=self.busy + busy,
            waiting_input=self.waiting_input,
            waiting_room=self.waiting_room + blocked,
            queue=self.queue,
            peak_queue=self.peak,
            notes=self.all_notes(),
            retried=self.retried,
            abandoned=self.abandoned,
            bytes_held=self.bytes,
            peak_bytes=self.peak_bytes,
        )


__all__ = ["Meter", "clock"]
