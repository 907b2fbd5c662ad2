"""URLs that are sent as they are written. Imports aiohttp, so it is imported with the session."""

from __future__ import annotations

import re
from typing import Any

import aiohttp
from yarl import URL

_QUOTED = re.compile(
    r"https?://[^/?#]+(?:[/?#](?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)?",
    re.IGNORECASE,
)


def as_given(url: str) -> URL | str:
    """Return a URL such that aiohttp does not quote it anew: that would break some signatures.

    One that is not quoted yet, with blanks or letters beyond ASCII, is left to it.
    """
    if not _QUOTED.fullmatch(url):
        return url
    try:
        URL(url)
    except ValueError:  # such as a port that is none; aiohttp says so
        return url
    return URL(url, encoded=True)


class Request(aiohttp.ClientRequest):
    """A request of a session that does not quote the targets of redirects: this does, where they need it."""

    def __init__(self, method: str, url: URL, *args: Any, **options: Any) -> None:
        try:
            wanted = URL(as_given(str(url)))
        except ValueError as error:
            raise aiohttp.InvalidUrlRedirectClientError(url) from error
        super().__init__(method, wanted, *args, **options)
