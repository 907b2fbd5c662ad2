"""When a request is worth another try, how long to wait before it, and URLs fit to be shown."""

from __future__ import annotations

import asyncio
import email.utils
import re
import time
from typing import Final
from urllib.parse import urlsplit, urlunsplit

pause = asyncio.sleep
"""What waits between two tries; a name of its own, so that tests need not wait."""

OVERLOADED: Final = frozenset({429, 503})
"""Answers of a server that wants fewer requests."""

_AGAIN: Final = frozenset({408, 425, 429})

_SECRET = re.compile(r"sig|token|key|secret|passw|auth|credential|session|code", re.IGNORECASE)

_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)


def is_worth_another_try(status: int) -> bool:
    """Tell whether an HTTP status may be another one next time."""
    return status in _AGAIN or 500 <= status <= 599


def seconds_to_wait(header: str | None, *, now: float | None = None) -> float | None:
    """Read a ``Retry-After`` header (RFC 9110, 10.2.3): seconds or a date.

    Args:
        header: the header's value.
        now: seconds since the epoch; the clock's where it is not given.

    Returns:
        Seconds from now, at least 0; None where there is no header, or one that says nothing.
    """
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    return max(0.0, date.timestamp() - (time.time() if now is None else now))


def redacted(url: str) -> str:
    """Return a URL without what must not get into logs: userinfo, signatures, tokens, keys."""
    try:
        parts = urlsplit(url)
        userinfo, at, host = parts.netloc.rpartition("@")
    except ValueError:  # such as an address in brackets that is none
        return url.partition("?")[0].rpartition("@")[2]
    if userinfo:  # in abfss://container@account it is no secret
        shown = "***" if parts.scheme.lower() in {"http", "https"} else userinfo
        host = f"{shown}{at}{host}"
    pairs = [
        f"{name}=***" if equals and _SECRET.search(name) else name + equals + value
        for name, equals, value in (pair.partition("=") for pair in parts.query.split("&"))
    ]
    return urlunsplit((parts.scheme, host, parts.path, "&".join(pairs), parts.fragment))


def redacted_text(text: str) -> str:
    """Return a text with every URL in it redacted."""
    return _URL.sub(lambda match: redacted(match.group()), text)
