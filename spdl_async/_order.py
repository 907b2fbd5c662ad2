"""What a run is to do, and what the passes of one pipeline know of each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spdl_async._plan.steps import Plan


@dataclass
class Facts:
    """What the passes of one pipeline have shown, shared between them."""

    passes: int = 0
    dropped: bool = False
    source_used: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    pid: int = field(default_factory=os.getpid)

    def saw_drop(self) -> None:
        """Note that an op has returned DROP, so the number of results is not known any more."""
        self.dropped = True

    def next_epoch(self) -> int:
        """Return the number of the next pass."""
        with self.lock:
            epoch = self.passes
            self.passes += 1
        return epoch


@dataclass(frozen=True)
class Order:
    """What a run is to do.

    Attributes:
        devices: of each copy, by its name, the device that was meant where the run was asked for.
    """

    plan: Plan
    facts: Facts
    epoch: int | None
    shutdown_timeout: float
    stall_warning: float | None
    devices: Mapping[str, Any] = field(default_factory=dict)
