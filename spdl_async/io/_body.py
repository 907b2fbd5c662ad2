"""The body of one object while it is fetched, perhaps in several parts by several answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spdl_async.io._retrying import is_worth_another_try

if TYPE_CHECKING:
    from aiohttp import ClientResponse

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)$")

_MEANINGS = {
    **dict.fromkeys((301, 302, 303, 307, 308), "a redirect, which is not followed"),
    400: "the server does not understand the request",
    401: "credentials are missing: give headers=, or an entry in ~/.netrc",
    403: "forbidden: the credentials do not allow it, or a signed URL is too old",
    404: "there is no such object",
    407: "the proxy wants a password",
    410: "the object is gone",
    416: "the range lies behind the end of the object",
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why an attempt has not brought the whole object.

    Attributes:
        text: what went wrong.
        again: whether another attempt may bring it.
        status: the HTTP status, where one said so.
        retry_after: the server's header of that name.
        cause: the exception behind it, where it has one that may be shown.
    """

    text: str
    again: bool
    status: int | None = None
    retry_after: str | None = None
    cause: BaseException | None = None


class Body:
    """What has come of one object, and what is still to be asked for.

    Args:
        url: the object.
        start: the first wanted byte.
        length: how many bytes are wanted; None is all up to the end.
        max_bytes: more than this is refused.
    """

    __slots__ = (
        "attempts",
        "etag",
        "got",
        "length",
        "max_bytes",
        "parts",
        "resumed",
        "start",
        "url",
        "wanted",
    )

    def __init__(self, url: str, start: int, length: int | None, max_bytes: int | None) -> None:
        self.url = url
        self.start = start
        self.length = length
        self.max_bytes = max_bytes
        self.attempts = 0
        self.resumed = False
        self.restart()

    def restart(self) -> None:
        """Forget what has come."""
        self.parts: list[bytes] = []
        self.got = 0
        self.etag: str | None = None
        self.wanted = self.length  # None as long as nobody has said how long the object is

    def whole(self) -> bytes:
        """Return what has come, in one piece."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    @property
    def is_ranged(self) -> bool:
        """Whether only a part of the object is wanted."""
        return self.start > 0 or self.length is not None

    def request_headers(self) -> dict[str, str]:
        """Return the headers that ask for what is missing, none for the whole object."""
        if self.got and self.etag is None:
            self.restart()  # without a validator, the rest could be that of another version
        if not self.got and not self.is_ranged:
            return {}
        end = "" if self.length is None else str(self.start + self.length - 1)
        headers = {"Range": f"bytes={self.start + self.got}-{end}"}
        if self.got and self.etag is not None:
            headers["If-Range"] = self.etag
        return headers

    def accept(self, response: ClientResponse) -> Problem | None:
        """Look at the head of an answer; return a problem where its body is not what was asked for."""
        status = response.status
        if status == 200:
            return self._accept_all(response)
        if status == 206:
            return self._accept_part(response)
        if status == 416 and self.got:
            self.restart()
            return Problem(text="the object has changed while it was fetched", again=True)
        return Problem(
            text=described(status, response.reason),
            again=is_worth_another_try(status),
            status=status,
            retry_after=response.headers.get("Retry-After"),
        )

    def _accept_all(self, response: ClientResponse) -> Problem | None:
        if self.is_ranged:
            return Problem(
                text="the server does not support ranges: it answered 200, with the whole object; "
                "fetch(url) fetches that",
                again=False,
                status=200,
            )
        self.restart()
        encoded = response.headers.get("Content-Encoding", "identity") != "identity"
        if not encoded:
            self._remember(response)
            self.wanted = response.content_length
        return self._too_long(self.wanted)

    def _accept_part(self, response: ClientResponse) -> Problem | None:
        found = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        begin = self.start + self.got
        if found is None or int(found[1]) != begin:
            said = response.headers.get("Content-Range", "nothing about which")
            self.restart()
            return Problem(text=f"asked for byte {begin} and on, got {said}", again=True)
        if self.got and response.headers.get("ETag") != self.etag:
            self.restart()
            return Problem(text="the object has changed while it was fetched", again=True)
        self.resumed = self.got > 0
        self._remember(response)
        if found[3] != "*":
            left = max(0, int(found[3]) - self.start)
            self.wanted = left if self.length is None else min(self.length, left)
        return self._too_long(self.wanted)

    def _remember(self, response: ClientResponse) -> None:
        etag = response.headers.get("ETag")
        # If-Range takes strong validators only (RFC 9110, 13.1.5).
        self.etag = etag if etag is not None and etag.startswith('"') else None

    async def read(self, response: ClientResponse) -> Problem | None:
        """Take in an answer's body; return a problem where it is too long or too short."""
        limit = self.max_bytes
        async for chunk in response.content.iter_any():
            self.parts.append(chunk)
            self.got += len(chunk)
            if limit is not None and self.got > limit:
                return self._too_long(self.got)
        wanted = self.wanted
        if wanted is not None and self.got < wanted:
            return Problem(text=f"short body: {self.got:,} of {wanted:,} bytes", again=True)
        if wanted is not None and self.got > wanted:
            got = self.got
            self.restart()
            return Problem(text=f"long body: {got:,} bytes instead of {wanted:,}", again=True)
        return None

    def _too_long(self, size: int | None) -> Problem | None:
        if size is None or self.max_bytes is None or size <= self.max_bytes:
            return None
        return Problem(
            text=f"the object has {size:,} bytes or more, and max_bytes allows {self.max_bytes:,}",
            again=False,
        )

    def progress(self) -> str:
        """Say how much has come."""
        total = "" if self.wanted is None else f" of {self.wanted:,}"
        return f"{self.got:,}{total} bytes"


def described(status: int, reason: str | None) -> str:
    """Say what an HTTP status means, where more than its name can be said."""
    named = f"{status} {reason}" if reason else str(status)
    meaning = _MEANINGS.get(status)
    return f"{named} ({meaning})" if meaning else named
