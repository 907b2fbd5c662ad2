"""What a fake device notes of each call, and what a test has asked to go wrong in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass(frozen=True, kw_only=True, slots=True)
class FakeCall:
    """One call of a method of a `FakeDevice`.

    Attributes:
        thread: the name of the thread that called.
        method: the name of the method; ``"misuse"`` for one that was refused.
        detail: what it was about, for people: ``"host to device"``, ``"pageable copy"``.
        stream: the number of the stream, where there is one.
        event: the number of the event, where there is one.
        size: in bytes, where memory is meant.
    """

    thread: str
    method: str
    detail: str = ""
    stream: int | None = None
    event: int | None = None
    size: int | None = None


class FakeHold:
    """Where threads stop in the middle of a method of a `FakeDevice`, until the test lets them go on.

    As a context manager it releases at the end of the block, so that nothing stays stuck.
    """

    def __init__(self, method: str) -> None:
        self.method = method
        self._reached = threading.Event()
        self._released = threading.Event()

    def __repr__(self) -> str:
        reached, released = self._reached.is_set(), self._released.is_set()
        return f"<FakeHold of {self.method}: reached {reached}, released {released}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def wait_reached(self, timeout: float = 30.0) -> None:
        """Wait until a thread has stopped here.

        Args:
            timeout: in seconds.

        Raises:
            TimeoutError: no thread came.
        """
        if not self._reached.wait(timeout):
            raise TimeoutError(f"no thread called {self.method} within {timeout} seconds")

    def release(self) -> None:
        """Let the threads that stopped here go on, and stop no more."""
        self._released.set()

    @property
    def released(self) -> bool:
        """Whether it stops nobody any more."""
        return self._released.is_set()

    def stop(self) -> None:
        """Stop the calling thread."""
        self._reached.set()
        self._released.wait()


@dataclass(kw_only=True, slots=True)
class _Fault:
    error: BaseException | Callable[[], BaseException]
    after: int
    times: int | None


class Script:
    """Calls, and the faults and holds that meet them."""

    def __init__(self) -> None:
        self.calls: list[FakeCall] = []
        self._lock = threading.Lock()
        self._faults: dict[str, list[_Fault]] = {}
        self._holds: dict[str, list[FakeHold]] = {}

    def fail(
        self,
        method: str,
        error: BaseException | Callable[[], BaseException],
        after: int,
        times: int | None,
    ) -> None:
        """Let ``times`` calls fail, ``after`` that many."""
        with self._lock:
            fault = _Fault(error=error, after=after, times=times)
            self._faults.setdefault(method, []).append(fault)

    def hold(self, method: str) -> FakeHold:
        """Let calls stop."""
        hold = FakeHold(method)
        with self._lock:
            self._holds.setdefault(method, []).append(hold)
        return hold

    def note(self, method: str, detail: str = "", **numbers: int | None) -> None:
        """Note a call, and do to it what was asked for."""
        thread = threading.current_thread().name
        call = FakeCall(thread=thread, method=method, detail=detail, **numbers)
        with self._lock:
            self.calls.append(call)
            error = self._error(method) if method in self._faults else None
            holds = [hold for hold in self._holds.get(method, ()) if not hold.released]
        for hold in holds:
            hold.stop()
        if error is not None:
            raise error if isinstance(error, BaseException) else error()

    def _error(self, method: str) -> BaseException | Callable[[], BaseException] | None:
        """Return what the next call of a method raises; a fault counts the calls from when it was set."""
        chosen: BaseException | Callable[[], BaseException] | None = None
        for fault in self._faults[method]:
            if fault.after:
                fault.after -= 1
            elif chosen is None and fault.times != 0:
                chosen = fault.error
                if fault.times is not None:
                    fault.times -= 1
        return chosen
