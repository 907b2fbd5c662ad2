"""The stages that choose, number and reorder items, as frozen values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spdl_async.errors import BuildError
from spdl_async.spec.policy import FailurePolicy, check_int, is_number

if TYPE_CHECKING:
    from spdl_async.spec.stages import Scope


@dataclass(frozen=True, kw_only=True)
class ShuffleSpec:
    """A random order within a window of ``buffer_size`` items."""

    buffer_size: int
    seed: int | None = None
    name: str | None = None
    policy: FailurePolicy | None = None
    scope: Scope | None = None

    def __post_init__(self) -> None:
        check_int(self.buffer_size, "shuffle: buffer_size", least=1)
        if self.seed is not None:
            check_int(self.seed, "shuffle: seed", least=0)

    @property
    def text(self) -> str:
        """The stage as it was written."""
        return f"shuffle({self.buffer_size})"


@dataclass(frozen=True, kw_only=True)
class TakeSpec:
    """The first ``count`` items."""

    count: int
    name: str | None = None
    policy: FailurePolicy | None = None
    scope: Scope | None = None

    def __post_init__(self) -> None:
        check_int(self.count, "take: the number of items", least=0)

    @property
    def text(self) -> str:
        """The stage as it was written."""
        return f"take({self.count})"


@dataclass(frozen=True, kw_only=True)
class SkipSpec:
    """All but the first ``count`` items."""

    count: int
    name: str | None = None
    policy: FailurePolicy | None = None
    scope: Scope | None = None

    def __post_init__(self) -> None:
        check_int(self.count, "skip: the number of items", least=0)

    @property
    def text(self) -> str:
        """The stage as it was written."""
        return f"skip({self.count})"


@dataclass(frozen=True, kw_only=True)
class EnumerateSpec:
    """Each item with its number, from ``start`` on."""

    start: int = 0
    name: str | None = None
    policy: FailurePolicy | None = None
    scope: Scope | None = None

    def __post_init__(self) -> None:
        if isinstance(self.start, bool) or not isinstance(self.start, int):
            raise BuildError(f"enumerate: start must be an int, not {self.start!r}")

    @property
    def text(self) -> str:
        """The stage as it was written."""
        return f"enumerate({self.start})" if self.start else "enumerate()"


SHAPE_SPECS = (ShuffleSpec, TakeSpec, SkipSpec, EnumerateSpec)
ShapeSpec = ShuffleSpec | TakeSpec | SkipSpec | EnumerateSpec


def check_within(value: object) -> None:
    """Raise ``BuildError`` unless ``within`` is a finite number of seconds above 0, or ``None``."""
    if value is None:
        return
    if not is_number(value) or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type, operator]  # a number by now
        raise BuildError(
            f"aggregate: within is in seconds, a finite number above 0, not {value!r}; to wait for "
            f"full batches leave it out"
        )
