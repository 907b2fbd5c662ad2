"""Sizes in bytes: as a user writes them, and of values, as far as that can be told cheaply."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from spdl_async.errors import BuildError

SizeOf = Callable[[Any], int]

UNITS: Final[Mapping[str, int]] = {
    "B": 1,
    **{f"{prefix}B": 1000**k for k, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}IB": 1024**k for k, prefix in enumerate("KMGT", 1)},
}
MANY: Final = 1000
SAMPLED: Final = 100


def parse_bytes(value: int | str, where: str) -> int:
    """Return a number of bytes, at least 1, given as an int or as text such as ``"500MB"``.

    Units are powers of 1000 (``B KB MB GB TB``) or of 1024 (``KiB MiB GiB TiB``, IEC 80000-13), in any
    case; a fraction such as ``"1.5GB"`` is allowed.

    Raises:
        BuildError: it is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        text = value.strip() if isinstance(value, str) else ""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)", text)
        unit = UNITS.get(found[2].upper()) if found else None
        if found is None or unit is None:
            raise BuildError(
                f'{where} must be a number of bytes or a text such as "500MB" or "2GiB", not {value!r}'
            )
        number = int(float(found[1]) * unit)
    if number < 1:
        raise BuildError(f"{where} must be at least 1 byte, not {value!r}")
    return number


def bytes_text(number: float) -> str:
    """Return a number of bytes in words, such as ``1.5 MB``."""
    for unit, factor in (("TB", 1000**4), ("GB", 1000**3), ("MB", 1000**2), ("KB", 1000)):
        if number >= factor:
            return f"{number / factor:.4g} {unit}"
    return f"{number:.0f} B"


def estimate_bytes(value: Any) -> int:
    """Return about how many bytes of memory a value takes.

    Arrays and tensors count their elements (a view: what it shows, not the array that it keeps alive),
    bytes their length, pictures of Pillow width × height × bands. Containers, dataclasses and plain
    objects count what they hold, each object once; of a list, tuple or set of more than 1,000 elements
    the size is extrapolated from 100 of them. Anything else counts as ``sys.getsizeof`` says.
    """
    return _measure(value, set())


def _measure(value: Any, seen: set[int]) -> int:
    size = getattr(value, "nbytes", None)
    if type(size) is int:
        return size
    kind = type(value)
    if kind in (bytes, bytearray):
        return len(value)
    if kind in (str, int, float, bool, complex, type(None)) or isinstance(value, type):
        return sys.getsizeof(value)
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + sum(
            _measure(key, seen) + _measure(inner, seen) for key, inner in value.items()
        )
    if isinstance(value, (list, tuple, set, frozenset)):
        return sys.getsizeof(value) + _measure_many(value, seen)
    bands = getattr(value, "getbands", None)
    if bands is not None and callable(bands):
        return int(value.width * value.height * len(bands()))
    return _measure_object(value, seen)


def _measure_many(values: Any, seen: set[int]) -> int:
    if len(values) <= MANY:
        return sum(_measure(inner, seen) for inner in values)
    some = list(values)[:: len(values) // SAMPLED]
    return sum(_measure(inner, seen) for inner in some) * len(values) // len(some)


def _measure_object(value: Any, seen: set[int]) -> int:
    size = sys.getsizeof(value)
    if dataclasses.is_dataclass(value):
        inner = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    else:
        inner = list(getattr(value, "__dict__", {}).values())
    return size + sum(_measure(each, seen) for each in inner)
