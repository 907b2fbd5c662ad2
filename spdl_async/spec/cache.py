"""The cache stage as a frozen value."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spdl_async.errors import BuildError
from spdl_async.spec.policy import FailurePolicy, check_int
from spdl_async.spec.sizes import parse_bytes

if TYPE_CHECKING:
    from spdl_async.spec.stages import Scope

MAX_CONCURRENCY = 65_536


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """Keep what the stages above make of each source item, in memory or in a folder.

    Attributes:
        folder: where entries are files; ``None``: in memory.
        max_bytes: how much is kept; ``None``: in a folder, anything.
        key: of the source item, what identifies it; ``None``: its position.
        version: the user's, of the stages above.
        concurrency: lookups at once.
    """

    folder: str | None
    max_bytes: int | None
    key: Callable[[Any], Any] | None = None
    version: str = ""
    concurrency: int = 4
    name: str | None = None
    policy: FailurePolicy | None = None
    scope: Scope | None = None

    def __post_init__(self) -> None:
        check_int(self.concurrency, f"{self.text}: concurrency", most=MAX_CONCURRENCY)
        if not isinstance(self.version, str):
            raise BuildError(
                f"{self.text}: version must be a str, which you change when an op above changes, "
                f"not {self.version!r}"
            )

    @property
    def text(self) -> str:
        """The stage as it was written."""
        return "cache(memory)" if self.folder is None else f"cache({self.folder!r})"


def where_kept(
    folder: object, memory: int | str | None, max_bytes: int | str | None
) -> tuple[str | None, int | None]:
    """Return a cache's folder and how many bytes it keeps, from the verb's options.

    Raises:
        BuildError: they name no place, two, or one that cannot be used.
    """
    if (folder is None) == (memory is None):
        raise BuildError(
            'cache: say where: .cache(memory="2GB") keeps in this process, .cache(folder, '
            'max_bytes="50GB") in files; one of the two'
        )
    if memory is not None:
        if max_bytes is not None:
            raise BuildError(
                "cache: max_bytes= is for a folder; memory= is a number of bytes itself"
            )
        return None, parse_bytes(memory, "cache: memory")
    try:
        given = os.fsdecode(os.fspath(folder))  # type: ignore[call-overload]  # checked here
    except TypeError:
        raise BuildError(f"cache: the folder must be a path, not {folder!r}") from None
    if not given:
        raise BuildError(
            'cache: the folder is the empty text; say "." where the current folder is meant'
        )
    path = there = os.path.abspath(given)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise BuildError(
            f"cache: {there} is a file; give a folder, which is made where it is not there"
        )
    return path, None if max_bytes is None else parse_bytes(max_bytes, "cache: max_bytes")
