"""What an aggregator tells about itself, for the statistics of its stage."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def has_notes(aggregator: Any) -> bool:
    """Tell whether an aggregator has the optional method ``statistics()``."""
    return callable(getattr(aggregator, "statistics", None))


def notes_of(aggregator: Any) -> Mapping[str, object]:
    """Return a copy of what an aggregator's ``statistics()`` returns; of a failure, its text.

    Statistics never end a pass.
    """
    try:
        return MappingProxyType(dict(aggregator.statistics()))
    except Exception as error:  # noqa: BLE001 -- shown instead
        return MappingProxyType({"statistics() failed:": f"{type(error).__name__}: {error}"})
