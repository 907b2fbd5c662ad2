"""What comes out of archives, and what is said of members that do not."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Self

logger = logging.getLogger("spdl_async")


class TarMember(NamedTuple):
    """One file in a tar archive.

    Attributes:
        name: its path as the archive has it, in UTF-8; bytes that are none are lone surrogates
            (PEP 383). It may be absolute or hold ``..``: do not write it to disk without a look.
        data: its content: a view into the file or buffer, or bytes where the archive is a stream or
            compressed. A view keeps all of the archive mapped or in memory; ``bytes(data)`` copies.
        offset: byte in the (decompressed) archive at which its headers begin.
        size: bytes of data.
        data_offset: byte at which its content begins, for ranged reads.
    """

    name: str
    data: memoryview | bytes
    offset: int
    size: int
    data_offset: int


class SkippedMember(NamedTuple):
    """A member of an archive that was passed over.

    Attributes:
        archive: path or name of the archive.
        name: the member's path.
        offset: byte in the archive at which its header begins.
        reason: what it is: ``"directory"``, ``"symbolic link"``, ``"hidden file"``, … .
    """

    archive: str
    name: str
    offset: int
    reason: str


class Skips:
    """Tells of members that are passed over: each to `on_skip`, all of them in one log record."""

    def __init__(self, archive: str, on_skip: Callable[[SkippedMember], object] | None) -> None:
        self.archive = archive
        self.on_skip = on_skip
        self.counts: Counter[str] = Counter()
        self.first: SkippedMember | None = None

    def add(self, name: str, offset: int, reason: str) -> None:
        """Take note of one member."""
        self.counts[reason] += 1
        if self.first is None or reason != "directory" == self.first.reason:
            self.first = SkippedMember(self.archive, name, offset, reason)
        if self.on_skip is not None:
            self.on_skip(SkippedMember(self.archive, name, offset, reason))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Write the record; nearly every archive has directories, which are no news."""
        if self.first is not None:
            level = logging.WARNING if set(self.counts) != {"directory"} else logging.DEBUG
            logger.log(
                level,
                "%s: passed over %s; first %r at byte %d",
                self.archive,
                ", ".join(f"{n} × {reason}" for reason, n in self.counts.items()),
                self.first.name,
                self.first.offset,
            )
