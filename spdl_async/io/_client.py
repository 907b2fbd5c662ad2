"""One HTTP session and what its requests share: made for a run, closed with it."""

from __future__ import annotations

import asyncio
import importlib
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from ssl import SSLContext
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from spdl_async import Retry
from spdl_async.errors import FetchError
from spdl_async.io import _retrying
from spdl_async.io._body import Body, Problem, described
from spdl_async.io._counters import Counters
from spdl_async.io._extras import need
from spdl_async.io._store import Store, split_url
from spdl_async.io._throttle import Throttle

if TYPE_CHECKING:
    from spdl_async.io._surroundings import Surroundings

Verify = Callable[[str, bytes], Awaitable[bool | None] | bool | None]

_READ_BUFFER = 1 << 18
"""Bytes that a connection reads ahead; aiohttp's 64 KiB cut large objects into small pieces."""


_NO_TARGET = "it is redirected to what is no URL of http"

_ORIGIN = re.compile(r"https?://[^/?#]*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """What `Fetch` was given, checked."""

    headers: Mapping[str, str]
    retry: Retry | None
    connect_timeout: float | None
    idle_timeout: float | None
    total_timeout: float | None
    max_retry_after: float
    verify: Verify | None
    max_bytes: int | None
    per_host: int
    max_redirects: int
    ssl_context: SSLContext | None
    store: Mapping[str, Any]


class Client:
    """Fetches objects on the loop on which it was made."""

    def __init__(self, options: FetchOptions, counters: Counters) -> None:
        self._options = options
        self._counters = counters
        self._stores: dict[str, Store] = {}
        self._hosts: dict[str, tuple[Throttle, dict[str, Any]]] = {}
        self._aiohttp: Any = None
        self._session: Any = None
        self._as_given: Callable[[str], Any] = str
        self._closed = False
        self._surroundings: Surroundings | None = None

    async def _open(self) -> None:
        """Open the session, at the first URL that needs it: object stores do not."""
        # Its import takes longer than the loop may be held up, and may be under way in another thread.
        aiohttp = await asyncio.to_thread(_import_client)
        if self._session is not None:
            return
        if self._closed:
            raise RuntimeError("fetch: the session is closed, its lifespan() has ended")
        from spdl_async.io._quoting import Request, as_given
        from spdl_async.io._surroundings import Surroundings

        self._as_given = as_given
        self._aiohttp = aiohttp
        options = self._options
        self._surroundings = Surroundings()
        self._session = aiohttp.ClientSession(
            # The throttle of each host bounds the connections.
            connector=aiohttp.TCPConnector(
                limit=0, ttl_dns_cache=60, ssl=options.ssl_context or True
            ),
            timeout=aiohttp.ClientTimeout(
                total=None, connect=options.connect_timeout, sock_read=options.idle_timeout
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Compressed on the way, an object could not be resumed.
            headers={"Accept-Encoding": "identity", **options.headers},
            read_bufsize=_READ_BUFFER,
            request_class=Request,
            requote_redirect_url=False,  # a signed URL must stay as it is; `Request` sees to the others
        )

    async def close(self) -> None:
        """Close the session and its connections; none is opened any more."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def get(self, url: str) -> bytes:
        """Fetch a whole object."""
        return await self.get_range(url, 0, None)

    async def get_range(self, url: str, start: int, length: int | None) -> bytes:
        """Fetch ``length`` bytes from byte ``start`` on, all of them for None."""
        if not isinstance(url, str):
            raise TypeError(
                f"a URL is fetched as str, not {type(url).__name__}; paths are read with read_file"
            )
        scheme = url.partition("://")[0].lower()
        if scheme not in ("http", "https"):
            data = await self._get_stored(url, start, length)
        else:
            data = await self._get_http(url, start, length)
        self._counters.count(objects=1, bytes=len(data))
        return data

    # Object stores

    async def _get_stored(self, url: str, start: int, length: int | None) -> bytes:
        root, key = split_url(url)
        store = self._stores.get(root)
        if store is None:
            store = self._stores[root] = Store(
                root, max_bytes=self._options.max_bytes, **self._options.store
            )
        if start or length is not None:
            return await store.get_range(key, start, length)
        data = await store.get(key)
        if self._options.verify is None:
            return data
        retry = self._options.retry
        for attempt in range(1, (retry.attempts if retry else 1) + 1):
            problem = await self._verified(url, data)
            if problem is None:
                return data
            if retry is None or attempt == retry.attempts:
                raise _failed(url, problem, attempt)
            self._counters.count(retries=1)
            await _retrying.pause(retry.wait_after(attempt, random.random()))
            data = await store.get(key)
        raise AssertionError("unreachable")

    # HTTP

    async def _get_http(self, url: str, start: int, length: int | None) -> bytes:
        body = Body(url, start, length, self._options.max_bytes)
        scope = asyncio.timeout(self._options.total_timeout)
        try:
            async with scope:
                return await self._attempts(body)
        except TimeoutError as error:
            if not scope.expired():
                raise
            problem = Problem(
                text=f"not complete after {self._options.total_timeout:g} s (total_timeout): "
                f"{body.progress()}",
                again=True,
                cause=error,
            )
            raise _failed(url, problem, body.attempts) from error

    async def _attempts(self, body: Body) -> bytes:
        """Ask until the object is complete, or there is no point in asking again."""
        retry = self._options.retry
        verify = self._options.verify
        while True:
            body.attempts += 1
            problem = await self._attempt(body)
            if problem is None:
                data = body.whole()
                if verify is None or body.is_ranged:
                    return data
                problem = await self._verified(body.url, data)
                if problem is None:
                    return data
                body.restart()
            if retry is None or not problem.again or body.attempts >= retry.attempts:
                raise _failed(body.url, problem, body.attempts) from problem.cause
            self._counters.count(retries=1)
            await _retrying.pause(self._wait(retry, body.attempts, problem))

    def _wait(self, retry: Retry, attempts: int, problem: Problem) -> float:
        """Return the seconds before the next attempt: what the server says, and some at random."""
        wait = retry.wait_after(attempts, random.random())
        said = _retrying.seconds_to_wait(problem.retry_after)
        return wait if said is None else min(said, self._options.max_retry_after) + wait

    async def _attempt(self, body: Body) -> Problem | None:
        """Make one request; return None where the body is complete now."""
        if self._session is None:
            await self._open()
        try:
            throttle, options = self._host(body.url)
        except ValueError:  # an address in brackets that is none
            return Problem(text="not a valid URL", again=False)
        generation = await throttle.acquire()
        overloaded = good = False
        try:
            problem = await self._request(body, options)
            good = problem is None or not problem.again
            overloaded = problem is not None and problem.status in _retrying.OVERLOADED
            return problem
        finally:
            if throttle.release(generation, overloaded=overloaded, good=good):
                self._counters.count(throttled=1)

    async def _request(self, body: Body, options: dict[str, Any]) -> Problem | None:
        body.resumed = False
        self._counters.count(requests=1)
        try:
            async with self._session.get(
                self._as_given(body.url),
                # aiohttp takes 0 for no limit, and raises at the last redirect that it is allowed.
                allow_redirects=self._options.max_redirects > 0,
                max_redirects=self._options.max_redirects + 1,
                **{**options, "headers": {**options["headers"], **body.request_headers()}},
            ) as response:
                problem = body.accept(response)
                if problem is None:
                    problem = await body.read(response)
        except (self._aiohttp.ClientError, OSError) as error:
            problem = self._explained(error, body)
        except UnicodeError as error:  # the name of a host that cannot be one
            problem = Problem(text=f"not a valid URL: {error}", again=False, cause=error)
        except ValueError as error:  # its own URL has been looked at before
            problem = Problem(text=f"{_NO_TARGET}: {error}", again=False, cause=error)
        if body.resumed:
            self._counters.count(resumed=1)
        return problem

    def _host(self, url: str) -> tuple[Throttle, dict[str, Any]]:
        """Return what the requests to one server share."""
        found_origin = _ORIGIN.match(url)
        assert found_origin is not None  # `get_range` has looked at the scheme
        origin = found_origin.group().lower()
        known = self._hosts.get(origin)
        if known is None:
            parts = urlsplit(origin)
            assert self._surroundings is not None  # opened with the session
            found = self._surroundings.options_for(parts.scheme.lower(), parts.hostname or "")
            if parts.username is not None or _has_authorization(self._options.headers):
                found["headers"].pop("Authorization", None)
            known = self._hosts[origin] = Throttle(self._options.per_host), found
        return known

    def _explained(self, error: Exception, body: Body) -> Problem:
        """Say what an exception of aiohttp means. Those whose text holds the URL are no causes."""
        aiohttp = self._aiohttp
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            seconds = self._options.connect_timeout
            return Problem(
                text=f"no connection after {seconds} s (connect_timeout)", again=True, cause=error
            )
        if isinstance(error, aiohttp.ServerTimeoutError):
            text = f"nothing came for {self._options.idle_timeout} s (idle_timeout)"
            return Problem(text=f"{text}: {body.progress()}", again=True, cause=error)
        if isinstance(error, aiohttp.TooManyRedirects):
            return Problem(
                text=f"more than {self._options.max_redirects} redirects (max_redirects)",
                again=False,
            )
        if isinstance(error, (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)):
            redirect = isinstance(error, aiohttp.RedirectClientError)
            what = _NO_TARGET if redirect else "not a valid URL"
            return Problem(text=what, again=False)
        if isinstance(error, aiohttp.ClientHttpProxyError):
            return Problem(
                text=f"the proxy answered {described(error.status, error.message)}",
                again=_retrying.is_worth_another_try(error.status),
                status=error.status,
            )
        if isinstance(error, aiohttp.ClientResponseError):  # its status is not the server's
            return Problem(text=f"no valid HTTP: {' '.join(error.message.split())}", again=True)
        if isinstance(error, aiohttp.ClientPayloadError):
            return Problem(text=f"the body ended early: {body.progress()}", again=True, cause=error)
        again = not isinstance(error, aiohttp.ClientConnectorCertificateError)
        return Problem(text=f"{type(error).__name__}: {error}", again=again, cause=error)

    async def _verified(self, url: str, data: bytes) -> Problem | None:
        """Ask the hook about a body; return a problem where it refuses it."""
        verify = self._options.verify
        if verify is None:
            return None
        try:
            answer = verify(url, data)
            if isinstance(answer, Awaitable):
                answer = await answer
        except ValueError as error:
            return Problem(text=f"verify= refused the body: {error}", again=True, cause=error)
        if answer is False:
            return Problem(text=f"verify= refused the body ({len(data):,} bytes)", again=True)
        return None


def _import_client() -> Any:
    """Return aiohttp, and import what is made of it."""
    aiohttp = need("aiohttp", "storage")
    importlib.import_module("spdl_async.io._quoting")
    return aiohttp


def _has_authorization(headers: Mapping[str, str]) -> bool:
    return any(name.lower() == "authorization" for name in headers)


def _failed(url: str, problem: Problem, attempts: int) -> FetchError:
    shown = _retrying.redacted(url)
    tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    why = "" if problem.again else ", not tried again"
    return FetchError(
        f"{shown}: {problem.text}; {tries}{why}",
        url=shown,
        status=problem.status,
        attempts=attempts,
    )
