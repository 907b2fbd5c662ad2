"""Fetching objects by their URLs: the op `fetch`, and `Fetch`, which makes one with other options."""

from __future__ import annotations

import asyncio
import contextlib
import math
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from ssl import SSLContext
from typing import Any, Final

from spdl_async import Retry
from spdl_async.io._client import Client, FetchOptions, Verify
from spdl_async.io._counters import Counters, FetchStatistics
from spdl_async.io._options import (
    check_count,
    check_range,
    check_seconds,
    header_options,
    store_options,
)

_PATIENCE: Final = Retry(5, backoff=0.5, factor=2.0, max_backoff=30.0, jitter=1.0)


class Fetch:
    """Turns URLs into bytes, on the loop: ``.pipe(Fetch(…), concurrency=64)``.

    For ``http://`` and ``https://`` it uses aiohttp; each run opens one session before the stage's
    first item and closes it after the last. ``s3://``, ``gs://``, ``az://`` and ``file://`` go to a
    `Store` for each bucket.

    *Tries.* What may be better next time is tried again after a random wait that grows: the
    statuses 408, 425, 429 and 5xx, connections that fail, break or stay silent, and bodies that are
    too short or that ``verify=`` refuses. ``Retry-After`` is honoured. What has arrived of an object
    is kept, and the rest asked for (``Range`` with ``If-Range``), where the server names a strong
    ``ETag``. Other statuses of 4xx are final. A stage's own ``retry=`` comes on top, and is seldom
    useful here.

    *Load.* At most ``per_host`` requests run on one server. Each 429 or 503 halves that limit, and good
    answers raise it again, one by one.

    *Secrets.* Proxies and passwords are those of the environment and of ``~/.netrc``, read when a
    session is opened. Errors show URLs without userinfo and without values of parameters that sound
    like secrets. What a pipeline prints of its own items is another matter: give keys to the
    source, and sign URLs in the stage that fetches.

    Called outside of a stage that owns it, as in a function of yours, or by ``await fetch(url)``, it
    uses a session that all calls at that time on the loop share, and that is closed when none is
    left. Calls one after the other make a connection each: use ``async with fetch.lifespan() as get``.

    Args:
        headers: sent with each HTTP request.
        retry: how often, and with which waits; None for one attempt. Its ``on`` is not used.
        connect_timeout: seconds for a connection, with name look-up and TLS; None for no limit.
        idle_timeout: seconds without a byte of the answer; None for no limit.
        total_timeout: seconds for an object with all attempts and the waits between them; None for
            no limit.
        max_retry_after: the longest wait in seconds that a server may ask for.
        verify: called with (url, data) of each whole object; ``False`` or a ``ValueError`` means
            that it is damaged, and it is fetched again. Sync or async, on the loop. See `Checksums`.
        max_bytes: larger objects are refused, at the latest when so much has arrived.
        per_host: requests at the same time to one server, at most.
        max_redirects: how many redirects are followed for one object.
        ssl_context: which certificates are trusted, as from ``ssl.create_default_context(cafile=…)``;
            None for those of the system.
        store: options of the `Store` for other URLs, but ``max_bytes``.

    Raises:
        ValueError: an option that is out of range, or of another type.

    Example:
        >>> from spdl_async import Retry
        >>> patient = Fetch(retry=Retry(10, backoff=1.0, jitter=1.0), total_timeout=None)
        >>> patient.statistics().retries
        0
    """

    def __init__(
        self,
        *,
        headers: Mapping[str, str] | None = None,
        retry: Retry | None = _PATIENCE,
        connect_timeout: float | None = 10.0,
        idle_timeout: float | None = 30.0,
        total_timeout: float | None = 600.0,
        max_retry_after: float = 60.0,
        verify: Verify | None = None,
        max_bytes: int | None = None,
        per_host: int = 100,
        max_redirects: int = 10,
        ssl_context: SSLContext | None = None,
        store: Mapping[str, Any] | None = None,
    ) -> None:
        if retry is not None and not isinstance(retry, Retry):
            raise ValueError(f"retry must be a Retry or None, not {retry!r}")
        if retry is not None and retry.on != (Exception,):
            raise ValueError(
                "retry: what is tried again, Fetch decides by itself: leave out Retry(on=)"
            )
        if verify is not None and not callable(verify):
            raise ValueError(f"verify must be a function of (url, data), not {verify!r}")
        if ssl_context is not None and not isinstance(ssl_context, SSLContext):
            raise ValueError(f"ssl_context must be an ssl.SSLContext, not {ssl_context!r}")
        number = (
            isinstance(max_retry_after, (int, float))
            and not isinstance(max_retry_after, bool)
            and math.isfinite(max_retry_after)
        )
        if not number or max_retry_after < 0:
            raise ValueError(f"max_retry_after must be seconds, from 0, not {max_retry_after!r}")
        self._options = FetchOptions(
            headers=header_options(headers),
            retry=retry,
            connect_timeout=check_seconds("connect_timeout", connect_timeout),
            idle_timeout=check_seconds("idle_timeout", idle_timeout),
            total_timeout=check_seconds("total_timeout", total_timeout),
            max_retry_after=max_retry_after,
            verify=verify,
            max_bytes=max_bytes if max_bytes is None else check_count("max_bytes", max_bytes),
            per_host=check_count("per_host", per_host),
            max_redirects=check_count("max_redirects", max_redirects, at_least=0),
            ssl_context=ssl_context,
            store=store_options(store),
        )
        self._counters = Counters()
        self._shared: dict[AbstractEventLoop, _Shared] = {}

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[Callable[[str], Awaitable[bytes]]]:
        """Open a session; entered by each run, or by ``async with fetch.lifespan() as get``."""
        client = Client(self._options, self._counters)
        try:
            yield client.get
        finally:
            await client.close()

    async def __call__(self, url: str) -> bytes:
        """Fetch an object.

        Args:
            url: where it is.

        Raises:
            FetchError: it did not come, after all attempts; ``status`` and ``attempts`` say more.
            ValueError: ``url`` is no URL of an object.
            ImportError: the client for such URLs is not installed.
        """
        async with self._client() as client:
            return await client.get(url)

    async def range(self, url: str, start: int, length: int | None = None) -> bytes:
        """Fetch a part of an object. ``verify=`` does not apply.

        Args:
            url: where it is.
            start: its first byte, from 0.
            length: how many bytes; None for all up to the end. Fewer come where the object ends.

        Raises:
            FetchError: as for the whole object; also where ``start`` lies behind its end, or where
                the server does not support ranges: it is not read to be thrown away.
            ValueError: a negative ``start``, a ``length`` below 1, or no URL of an object.
        """
        check_range(start, length)
        async with self._client() as client:
            return await client.get_range(url, start, length)

    def statistics(self) -> FetchStatistics:
        """Return what has been fetched so far, over all runs; from any thread."""
        return self._counters.snapshot()

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        """Give the client that the calls of this time on this loop share."""
        loop = asyncio.get_running_loop()
        shared = self._shared.get(loop)
        if shared is None:
            shared = self._shared[loop] = _Shared(Client(self._options, self._counters))
        shared.users += 1
        try:
            yield shared.client
        finally:
            shared.users -= 1
            if not shared.users:
                del self._shared[loop]
                await shared.client.close()


class _Shared:
    """A client and how many calls use it."""

    __slots__ = ("client", "users")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.users = 0


fetch: Final = Fetch()
"""Turns a URL into bytes: `Fetch` with its defaults, as an op and as ``await fetch(url)``."""


async def fetch_range(url: str, start: int, length: int | None = None) -> bytes:
    """Fetch a part of an object: ``fetch.range(url, start, length)``.

    Raises:
        FetchError: as for `Fetch.range`.
        ValueError: a negative ``start``, a ``length`` below 1, or no URL of an object.
    """
    return await fetch.range(url, start, length)
