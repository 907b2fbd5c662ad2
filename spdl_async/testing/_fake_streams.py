"""Streams of work that is done as late as it can be: nothing runs before somebody waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class FakeStream:
    """Work in the order in which it was queued.

    Attributes:
        number: 0 for the default stream of its device.
        queued: how many operations were ever queued; also read by finalizers, without a lock.
        done: how many of them have run.
    """

    __slots__ = ("device", "done", "number", "operations", "queued")

    def __init__(self, device: str, number: int) -> None:
        self.device = device
        self.number = number
        self.queued = 0
        self.done = 0
        self.operations: deque[Callable[[], object] | FakeEvent | None] = deque()

    def __repr__(self) -> str:
        waiting = self.queued - self.done
        return f"<stream {self.number} of {self.device}, {waiting} operations to be run>"


class FakeEvent:
    """A point in the work of a stream: done when its first ``position`` operations are.

    Attributes:
        number: of the event, counted from 1 on its device.
    """

    __slots__ = ("number", "position", "stream")

    def __init__(self, number: int, stream: FakeStream, position: int) -> None:
        self.number = number
        self.stream = stream
        self.position = position

    @property
    def done(self) -> bool:
        """Whether the event has completed."""
        return self.stream.done >= self.position

    def __repr__(self) -> str:
        return f"<event {self.number} of stream {self.stream.number}, done: {self.done}>"


class Streams:
    """The streams of a device.

    Args:
        device: its name.
        lazy: whether work waits until it is needed.
    """

    # One lock for all devices: a stream of one may wait for an event of another.
    lock = threading.RLock()

    def __init__(self, device: str, lazy: bool) -> None:
        self._device = device
        self._lazy = lazy
        self.all = [FakeStream(device, 0)]
        self._events = 0

    def new(self) -> FakeStream:
        """Make another stream."""
        with self.lock:
            stream = FakeStream(self._device, len(self.all))
            self.all.append(stream)
            return stream

    def queue(self, stream: FakeStream, operation: Callable[[], object] | FakeEvent | None) -> None:
        """Put work at the end of a stream: a call, an event to wait for, or nothing."""
        with self.lock:
            stream.operations.append(operation)
            stream.queued += 1
            if not self._lazy:
                self.run(stream, stream.queued)

    def next_event(self) -> int:
        """Return the number of another event."""
        with self.lock:
            self._events += 1
            return self._events

    def record(self, stream: FakeStream, number: int) -> FakeEvent:
        """Return an event behind all that is queued."""
        with self.lock:
            event = FakeEvent(number, stream, stream.queued + 1)
            self.queue(stream, None)
            return event

    def run(self, stream: FakeStream, position: int) -> None:
        """Run the first ``position`` operations of a stream that have not run, and what they wait for.

        What an operation waits for was queued before it, so this goes no deeper than there are streams.
        """
        with self.lock:
            while stream.done < position:
                operation = stream.operations.popleft()
                try:
                    if isinstance(operation, FakeEvent):
                        self.run(operation.stream, operation.position)
                    elif operation is not None:
                        operation()
                finally:
                    stream.done += 1

    def run_all(self) -> None:
        """Run all that is queued on any stream."""
        with self.lock:
            for stream in self.all:
                self.run(stream, stream.queued)


class CurrentStream(threading.local):
    """What is current in each thread.

    Attributes:
        stream: where work is queued; None for the default stream.
        entered: whether the thread has made the device its current one.
    """

    stream: Any = None
    entered = False
