"""Object stores by their URLs: ``s3://``, ``gs://``, ``az://``, ``file://``."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

from spdl_async.errors import FetchError
from spdl_async.io._extras import need
from spdl_async.io._options import StoreOptions, check_range
from spdl_async.io._pattern import matcher, prefix_of
from spdl_async.io._retrying import redacted, redacted_text

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

SCHEMES = frozenset(
    {"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "file"}  # what obstore knows
)

_STATUSES = {
    "FileNotFoundError": 404,
    "NotFoundError": 404,
    "PermissionDeniedError": 403,
    "UnauthenticatedError": 401,
}


def split_url(url: str) -> tuple[str, str]:
    """Take the URL of an object apart: its bucket's URL, and its key as the store knows it.

    Raises:
        ValueError: the URL is of no kind that can be fetched.
    """
    scheme, colon, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if not colon or scheme.lower() not in SCHEMES:
        raise ValueError(
            f"{redacted(url)!r} is no URL of an object: it should begin with http://, https://, s3://, "
            f"gs://, az:// or file://; local paths are read with read_file(path)"
        )
    if scheme.lower() == "file":
        return "file:///", unquote(key)
    return f"{scheme}://{bucket}", key


class Store:
    """An object store, or a part of it: reads, lists and writes objects, as an op or by its methods.

    As an op it turns keys into bytes: ``.pipe(store, concurrency=64)``. A key is relative to the
    root; a complete URL below the root does as well, such as `list_files` gives.

    The client is obstore's: its tries and time-outs are not those of `Fetch`. It tries again by
    itself after 5xx, lost connections and time-outs, with growing waits; it does not read
    ``Retry-After``, nor does it count its tries. Credentials come from where the store's own tools
    take them: environment variables, the machine's or container's identity, or ``config=``; profile
    files such as ``~/.aws/credentials`` are not read.

    Nothing has to be closed: connections belong to obstore's own threads, and end when idle.

    Args:
        root: such as ``"s3://bucket/prefix"``, ``"gs://bucket"``, ``"az://container/prefix"`` (with
            ``config={"account_name": …}``) or ``"file:///data"``. Keys stand in the URL as they are;
            only ``file:`` URLs are percent-encoded, as `pathlib.Path.as_uri` writes them.
        config: obstore's settings of the store, such as ``{"region": "eu-central-1", "endpoint":
            "http://localhost:9000", "skip_signature": True}``.
        retries: how often a request is made again; 0 for never.
        retry_timeout: seconds from a request's beginning after which it is not made again.
        connect_timeout: seconds for a connection to be made; None for no limit.
        idle_timeout: seconds without a byte; None for no limit.
        total_timeout: seconds for each request and its body; None for no limit.
        max_bytes: an object larger than this many bytes is refused before it is read.
        client: more of obstore's settings of the HTTP client, such as ``{"allow_http": True}``.

    Raises:
        ValueError: ``root`` is no such URL, or an option is out of range.
        TypeError: ``root`` is no str.

    Example:
        >>> from spdl_async.io import list_files
        >>> store = Store("s3://bucket/train", config={"region": "eu-central-1"})
        >>> store.root
        's3://bucket/train/'
        >>> shards = list_files(store, "2026-*.tar")  # then .pipe(store, concurrency=16)
    """

    def __init__(
        self,
        root: str,
        *,
        config: Mapping[str, Any] | None = None,
        retries: int = 5,
        retry_timeout: float = 180.0,
        connect_timeout: float | None = 10.0,
        idle_timeout: float | None = 30.0,
        total_timeout: float | None = 600.0,
        max_bytes: int | None = None,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        given: object = root
        if not isinstance(given, str):
            advice = ": path.as_uri() makes one" if isinstance(given, os.PathLike) else ""
            raise TypeError(f"a Store's root is a URL as str, not {type(given).__name__}{advice}")
        if root.startswith(("http://", "https://")):
            raise ValueError(
                f"{redacted(root)!r} should begin with s3://, gs://, az:// or file://: an http server "
                f"is no store; fetch(url) reads its objects, and lists of them are yours"
            )
        bucket, prefix = split_url(root)
        self._is_local = bucket == "file:///"
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._bucket = bucket
        if self._prefix:
            _check_key(root, self._prefix[:-1])
        options = StoreOptions(
            config=config,
            retries=retries,
            retry_timeout=retry_timeout,
            connect_timeout=connect_timeout,
            idle_timeout=idle_timeout,
            total_timeout=total_timeout,
            max_bytes=max_bytes,
            client=client,
        )
        self._max_bytes = options.max_bytes
        self._store = self._made(options)

    @property
    def root(self) -> str:
        """The URL below which the keys are, with a slash at its end."""
        path = quote(self._prefix) if self._is_local else self._prefix
        return self._bucket.rstrip("/") + "/" + path if not self._is_local else "file:///" + path

    def __repr__(self) -> str:
        return f"Store({redacted(self.root)!r})"

    async def __call__(self, key: str) -> bytes:
        """Do as `get`; this is what a stage calls."""
        return await self.get(key)

    async def get(self, key: str) -> bytes:
        """Return an object's bytes.

        Args:
            key: the object, below the root; or its URL.

        Raises:
            FetchError: there is no such object, the credentials do not allow it, or the store did
                not answer as it should, after all tries; or it is larger than ``max_bytes``.
            ValueError: a URL that is not below the root, or what is no key: absolute, empty, or with ``..``.
        """
        path = await self._readable(key)
        client = self._store
        answer = await self._asked(path, client.get_async(path))
        limit, size = self._max_bytes, answer.meta["size"]
        if limit is not None and size > limit:
            raise FetchError(
                f"{self._shown(path)}: the object has {size:,} bytes, and max_bytes allows {limit:,}",
                url=self._shown(path),
            )
        data: bytes = (await self._asked(path, answer.bytes_async())).to_bytes()
        return data

    async def get_range(self, key: str, start: int, length: int | None = None) -> bytes:
        """Return a part of an object.

        Args:
            key: the object.
            start: its first byte; negative for that many bytes from its end on.
            length: how many bytes; None for all up to the end. Fewer come where the object ends.

        Raises:
            FetchError: as for `get`; also where ``start`` lies behind the object's end.
            ValueError: ``length`` is below 1, or given with a negative ``start``.
        """
        check_range(start, length, from_end=True)
        path = await self._readable(key)
        client = self._store
        limit = self._max_bytes
        if limit is not None and (length or -min(start, 0)) > limit:
            raise ValueError(f"a range of {length or -start:,} bytes is over max_bytes={limit:,}")
        if length is not None:
            part = await self._asked(path, client.get_range_async(path, start=start, length=length))
            return bytes(part.to_bytes())
        wanted = {"suffix": -start} if start < 0 else {"offset": start}
        answer = await self._asked(path, client.get_async(path, options={"range": wanted}))
        first, end = answer.range
        if limit is not None and end - first > limit:
            raise FetchError(
                f"{self._shown(path)}: the range has {end - first:,} bytes, and max_bytes allows "
                f"{limit:,}",
                url=self._shown(path),
            )
        data: bytes = (await self._asked(path, answer.bytes_async())).to_bytes()
        return data

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several parts of an object, fetched at the same time; near ones in one request.

        Args:
            key: the object.
            ranges: the (start, length) of each, in bytes.

        Raises:
            FetchError: as for `get_range`.
        """
        for start, length in ranges:
            check_range(start, length)
        if not ranges:
            return []
        path = await self._readable(key)
        parts = await self._asked(
            path,
            self._store.get_ranges_async(
                path, starts=[start for start, _ in ranges], lengths=[size for _, size in ranges]
            ),
        )
        return [part.to_bytes() for part in parts]

    async def size(self, key: str) -> int:
        """Return an object's size in bytes.

        Raises:
            FetchError: as for `get`.
        """
        path = self._path(key)
        head = await self._asked(path, self._store.head_async(path))
        size: int = head["size"]
        return size

    async def put(self, key: str, data: Buffer) -> None:
        """Write an object, in the place of one that may be there.

        Raises:
            FetchError: the store did not take it.
        """
        path = self._path(key)
        await self._asked(path, self._store.put_async(path, bytes(data)))

    async def urls(self, pattern: str = "**/*") -> AsyncIterator[str]:
        """Yield the URLs of the objects whose keys match a pattern, page by page.

        Args:
            pattern: as for `list_files`; the store is asked for the folders that stand before the
                first wildcard, ``train/`` for ``"train/2024-*.tar"``, and all below them.

        Raises:
            FetchError: the store did not answer as it should.
        """
        matches = matcher(pattern)
        start = self._prefix + prefix_of(pattern)
        # Stores take whole folders as prefixes; the pattern does the rest.
        folder = start.rpartition("/")[0]
        stream = self._store.list(folder or None, chunk_size=1000)
        cut = len(self._prefix)
        while True:
            try:
                page = await self._asked(folder, stream.__anext__())
            except StopAsyncIteration:
                return
            for entry in page:
                path: str = entry["path"]
                if path.startswith(self._prefix) and matches(path[cut:]):
                    yield self._url(path)

    # Inside

    def _made(self, options: StoreOptions) -> Any:
        """Make obstore's client, which asks nobody for anything yet."""
        stores = need("obstore.store", "storage")
        if self._is_local:
            if options.config or options.client:
                raise ValueError("Store: config= and client= are not for file: URLs")
            return stores.LocalStore("/")
        limits = {
            "connect_timeout": options.connect_timeout,
            "read_timeout": options.idle_timeout,
            "timeout": options.total_timeout,
        }
        times = {
            name: timedelta(seconds=seconds)
            for name, seconds in limits.items()
            if seconds is not None
        }
        try:
            return stores.from_url(
                self._bucket,
                config=dict(options.config or {}) or None,
                client_options={**times, **(options.client or {})},
                retry_config={
                    "max_retries": options.retries,
                    "retry_timeout": timedelta(seconds=options.retry_timeout),
                },
            )
        # A TypeError is about a setting of a type that obstore does not take.
        except (TypeError, need("obstore.exceptions", "storage").BaseError) as error:
            reason = redacted_text(str(error).partition("\n")[0])
            raise ValueError(f"Store({redacted(self._bucket)!r}): {reason}") from error

    def _path(self, key: str) -> str:
        """Return a key as the bucket has it."""
        if not isinstance(key, str):
            raise TypeError(f"a Store's keys are str, not {type(key).__name__}")
        if "://" not in key:
            _check_key(key, key)
            return self._prefix + key
        bucket, path = split_url(key)
        if bucket != self._bucket or not path.startswith(self._prefix):
            raise ValueError(f"{redacted(key)} is not below the root of this store, {self.root}")
        _check_key(key, path)
        return path

    async def _readable(self, key: str) -> str:
        """Return a key as the bucket has it; of local files, only what is one."""
        path = self._path(key)
        if self._is_local and not await asyncio.to_thread(_may_be_read, "/" + path):
            shown = self._shown(path)
            raise FetchError(f"{shown}: not a regular file (a pipe or a device)", url=shown)
        return path

    def _url(self, path: str) -> str:
        return "file:///" + quote(path) if self._is_local else f"{self._bucket}/{path}"

    def _shown(self, path: str) -> str:
        return redacted(self._url(path))

    async def _asked(self, path: str, answer: Awaitable[T]) -> T:
        """Wait for obstore; its errors become ours."""
        try:
            return await answer
        except (OSError, ValueError, need("obstore.exceptions", "storage").BaseError) as error:
            shown = self._shown(path)
            status = _STATUSES.get(type(error).__name__)
            reason = redacted_text(str(error).partition("\n")[0])
            named = "there is no such object" if status == 404 else reason
            raise FetchError(
                f"{shown}: {named} (after the store client's own tries)"
                if status is None
                else f"{shown}: {status} ({named})",
                url=shown,
                status=status,
            ) from error


def _check_key(given: str, key: str) -> None:
    """Refuse what no store has: obstore would leave a slash at the end out, and then read something else.

    Raises:
        ValueError: a part of the key is empty, ``.`` or ``..``.
    """
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise ValueError(
            f"{redacted(given)!r} is no key of a store: keys are paths below its root, such as "
            f"'train/0.tar', without a slash at either end and without empty parts, '.' and '..'"
        )


def _may_be_read(path: str) -> bool:
    """Tell whether opening a path would not wait for ever, as it does for a pipe."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # which the store says in its own words
        return True
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
