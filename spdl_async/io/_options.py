"""What may be given to `Fetch` and `Store`, and what is said of other things."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The options of a `Store`, checked; for their meaning see there.

    Raises:
        ValueError: one is out of range, or of another type.
    """

    config: Mapping[str, Any] | None = None
    retries: int = 5
    retry_timeout: float = 180.0
    connect_timeout: float | None = 10.0
    idle_timeout: float | None = 30.0
    total_timeout: float | None = 600.0
    max_bytes: int | None = None
    client: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_mapping("config", self.config)
        check_mapping("client", self.client)
        check_count("retries", self.retries, at_least=0)
        if self.retry_timeout is None:
            raise ValueError(
                "retry_timeout must be a time in seconds above 0; retries=0 is for never"
            )
        for name in ("retry_timeout", "connect_timeout", "idle_timeout", "total_timeout"):
            check_seconds(name, getattr(self, name))
        if self.max_bytes is not None:
            check_count("max_bytes", self.max_bytes)


def store_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check what `Fetch` was given for its stores.

    Raises:
        ValueError: there is no such option, it is out of range, or it is `Fetch`'s own.
    """
    check_mapping("store", options)
    given = dict(options or {})
    known = {field.name for field in fields(StoreOptions)} - {"max_bytes"}
    for name in given:
        if name == "max_bytes":
            raise ValueError("store: give max_bytes= to Fetch itself, which tells its stores")
        if name not in known:
            raise ValueError(
                f"store: a Store has no option {name!r}; it has {', '.join(sorted(known))}"
            )
    StoreOptions(**given)
    return given


def header_options(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Check the headers that `Fetch` was given.

    Raises:
        ValueError: they are no mapping of str to str, or hold the end of a line. Values are not shown,
            as they may be secrets.
    """
    check_mapping("headers", headers)
    given = dict(headers or {})
    for name, value in given.items():
        if not isinstance(value, str):
            raise ValueError(
                f"headers: the value of {name!r} must be a str, not {type(value).__name__}"
            )
        if any(sign in text for text in (name, value) for sign in "\r\n\0"):
            raise ValueError(f"headers: {name!r} or its value has a line end or a zero byte in it")
    return given


def check_mapping(name: str, value: object) -> None:
    """Say what is wrong with a mapping of names, if anything is; None is none."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping such as a dict, not {type(value).__name__}")
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"{name}: its names must be str, not {key!r:.80}")


def check_count(name: str, value: object, *, at_least: int = 1) -> int:
    """Return a whole number, or say what is wrong with it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be a whole number of at least {at_least}, not {value!r}")
    return value


def check_seconds(name: str, value: object) -> float | None:
    """Return a time that is longer than none, None for no limit, or say what is wrong with it."""
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value < float("inf"):  # type: ignore[operator]  # a number
        raise ValueError(f"{name} must be a time in seconds above 0, or None, not {value!r}")
    return float(value)  # type: ignore[arg-type]  # a number


def check_range(start: object, length: object, *, from_end: bool = False) -> None:
    """Say what is wrong with a range of bytes, if anything is."""
    if isinstance(start, bool) or not isinstance(start, int) or (start < 0 and not from_end):
        raise ValueError(f"start must be a byte's position, from 0, not {start!r}")
    if length is not None:
        check_count("length", length)
        if start < 0:
            raise ValueError("length and a start from the end do not go together: leave length out")
