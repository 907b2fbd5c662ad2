"""What may enclose a step: a protocol, so that steps need not know of lifespans."""

from __future__ import annotations

from asyncio import Task
from typing import Protocol

from spdl_async._runtime.ticket import Item


class Span(Protocol):
    """What encloses a step: see :class:`~spdl_async._runtime.lifespan.Keeper`."""

    name: str
    task: Task[None] | None

    def start(self) -> None:
        """Start the step as soon as its ops are entered."""

    def stop(self) -> None:
        """Hear that the step is stopped."""

    def running(self) -> list[tuple[str, int, Item | None]]:
        """Return (stage, thread ident, None) where it enters or leaves in a thread."""
