"""Checksums of what is fetched, for ``Fetch(verify=)``."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping

from spdl_async.io._retrying import redacted

_PIECE = 1 << 20
"""Bytes that are hashed between two turns of the loop: about a millisecond."""


class Checksums:
    """Compare fetched bytes with digests that are known beforehand; a hook for ``Fetch(verify=)``.

    Args:
        algorithm: a name that `hashlib.new` knows, such as ``"sha256"`` or ``"md5"``.
        digests: the digest of each URL, in hexadecimal, small or capital letters.

    Raises:
        ValueError: an unknown algorithm, or a digest that is none of it.

    Example:
        >>> import hashlib
        >>> from spdl_async.io import Fetch
        >>> known = {"https://example.org/a.tar": hashlib.sha256(b"shard").hexdigest()}
        >>> verified = Fetch(verify=Checksums("sha256", known))
    """

    def __init__(self, algorithm: str, digests: Mapping[str, str]) -> None:
        letters = 2 * hashlib.new(algorithm).digest_size
        self._algorithm = algorithm
        self._digests = {url: digest.lower() for url, digest in digests.items()}
        for url, digest in self._digests.items():
            if letters and (len(digest) != letters or set(digest) - set("0123456789abcdef")):
                raise ValueError(
                    f"Checksums: {digest!r} of {redacted(url)} is no {algorithm} digest, which has {letters} "
                    f"hexadecimal digits"
                )

    async def __call__(self, url: str, data: bytes) -> None:
        """Check the bytes of a URL.

        Raises:
            ValueError: they have another digest.
            KeyError: no digest is known for the URL.
        """
        if url not in self._digests:
            raise KeyError(f"Checksums has no {self._algorithm} digest for {redacted(url)}")
        hashed = hashlib.new(self._algorithm)
        view = memoryview(data)
        for start in range(0, len(view), _PIECE):
            hashed.update(view[start : start + _PIECE])
            if start + _PIECE < len(view):
                await asyncio.sleep(0)  # a large shard would hold up the loop
        found = hashed.hexdigest()
        if found != self._digests[url]:
            raise ValueError(f"{self._algorithm} {found} instead of {self._digests[url]}")
