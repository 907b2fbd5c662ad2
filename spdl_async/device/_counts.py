"""What the copies to a device come to."""

from __future__ import annotations

import threading


class Counts:
    """What the copies of a run came to; claims count from any thread."""

    def __init__(self) -> None:
        self.batches = 0
        self.bytes = 0
        self.seconds = 0.0
        self.timed_bytes = 0
        self.pageable = 0
        self.waits = 0
        self.waited = 0.0
        self._claimed = 0
        self._ready = 0
        self._lock = threading.Lock()

    def claimed(self, ready: bool) -> None:
        """Count a batch that was taken, and whether its copy was done by then."""
        with self._lock:
            self._claimed += 1
            self._ready += ready

    @property
    def overlapped(self) -> float:
        """The share of the batches taken whose copy was done by then."""
        return self._ready / self._claimed if self._claimed else 0.0
