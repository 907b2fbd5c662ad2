"""What looks entries up and keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spdl_async._cache.entry import Loaded, Output


@dataclass(frozen=True, kw_only=True)
class Read:
    """What looking up an entry gave; ``outputs`` is ``None`` where there is none that is whole."""

    outputs: Sequence[Loaded] | None = None
    damaged: bool = False


@dataclass(frozen=True, kw_only=True)
class Written:
    """What storing an entry did: whether it is there now, and how many others had to go."""

    stored: bool
    evicted: int = 0


class Store(Protocol):
    """Keeps entries by name, at most so many bytes; called from any thread."""

    def open(self) -> int:
        """Look at what is there already, at the first call; return how many entries had to go."""

    def read(self, name: str) -> Read:
        """Look an entry up."""

    def write(self, name: str, outputs: Sequence[Output]) -> Written:
        """Store an entry."""

    @property
    def bytes(self) -> int:
        """About how many bytes are kept."""
