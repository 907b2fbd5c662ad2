"""One member of a tar archive, with all that may stand before it: the careful way.

`iter_tar` reads plain members by itself and asks here for everything else: long names (GNU), extended
headers (PAX, POSIX.1-2017 pax), old and binary numbers, what is no file, the archive's end, and what
is wrong. The formats are those of tar(5) of libarchive and of the GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import logging
import zlib
from typing import Final

from spdl_async.errors import ArchiveError
from spdl_async.io._archive_input import Window, hint, refuse_empty
from spdl_async.io._archive_members import Skips, TarMember
from spdl_async.io._tar_fields import expected_adler, parse_number, parse_pax, text

logger = logging.getLogger("spdl_async")

BLOCK: Final = 512
ZEROS: Final = bytes(BLOCK)

MOST_EXTENDED: Final = 1 << 20
"""Bytes of an extended header or a long name; a path has at most 4,096 on Linux."""

FILES: Final = (b"0", b"\0", b"7")

KINDS: Final = {
    b"1": "hard link",
    b"2": "symbolic link",
    b"3": "character device",
    b"4": "block device",
    b"5": "directory",
    b"6": "FIFO",
    b"S": "sparse file",
    b"V": "volume label",
    b"M": "part of a file that began in another volume",
    b"D": "list of a directory (incremental backup)",
}
BODILESS: Final = (b"1", b"2", b"3", b"4", b"5", b"6")
"""Whatever the size field of these says, no body follows."""


class Extended:
    """What the headers before a member say about it."""

    __slots__ = ("long_name", "pax", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.long_name: str | None = None
        self.pax: dict[str, bytes] = {}


class HeaderReader:
    """Reads one member at a time, whatever it is.

    Attributes:
        globals: what a global header says about all members that follow.
        last: name of the last complete member, for messages.
        ended: the blocks of zeros that end an archive stand before this; another one may follow.
    """

    def __init__(self, window: Window, archive: str, skips: Skips, most: int | None) -> None:
        self.window = window
        self.archive = archive
        self.skips = skips
        self.most = None if window.lasts else most
        self.last = ""
        self.globals: dict[str, bytes] = {}
        self.ended = False

    def read(self, at: int) -> tuple[TarMember | None, int]:
        """Read the next file, whose headers begin at `at` or behind members that are passed over.

        Returns:
            It, and where the next header is; ``None``: the archive ends here.

        Raises:
            ArchiveError: the archive is damaged here.
        """
        extended = Extended(at)
        while True:
            block = self._header(at, extended)
            if block is None:
                return None, at
            if block == ZEROS:
                if extended.start != at:
                    raise self.error("ends behind an extended header without its member", at)
                self.ended = True
                at += BLOCK
                extended = Extended(at)
                continue
            member, at, complete = self._member(block, at, extended)
            if member is not None:
                return member, at
            if complete:
                extended = Extended(at)

    def _header(self, at: int, extended: Extended) -> bytes | None:
        """Return the block at `at` when it is a header or zeros; ``None``: the archive ends in order."""
        window = self.window
        if window.fill(at, BLOCK):
            start = at - window.base
            block = bytes(window.data[start : start + BLOCK])
            if block != ZEROS:
                self._verify(block, at)
            return block
        rest = window.rest(at)
        if window.why:
            raise self.error(window.why, at + len(rest))
        if rest.strip(b"\0"):
            if at == 0:
                raise self.error(f"is no tar archive: {hint(rest)}", 0)
            raise self.error(
                f"is cut short in a header, of which {len(rest)} of 512 bytes are there", at
            )
        if at == 0 and not rest:
            raise refuse_empty(self.archive)
        if extended.start != at:
            raise self.error("ends behind an extended header without its member", at)
        if not self.ended:
            logger.warning(
                "%s: the two blocks of zeros that end a tar archive are missing at byte %d, behind %r; "
                "it may have been cut between two members",
                self.archive,
                at,
                self.last,
            )
        return None

    def _verify(self, block: bytes, at: int) -> None:
        field = block[148:156]
        expected = expected_adler(field)
        if expected == zlib.adler32(block) & 0xFFFF:
            return
        if expected is not None:
            # Some old tars took the bytes as signed numbers.
            signed = sum(b - 256 if b > 127 else b for b in block) - sum(
                b - 256 if b > 127 else b for b in field
            )
            if int(field.strip(b" \0"), 8) == signed + 8 * 32:
                return
        if self.ended:
            raise self.error("has something behind its end that is no tar header", at)
        if at == 0:
            raise self.error(f"is no tar archive: {hint(block)}", 0)
        raise self.error("is damaged: a header's checksum is wrong", at)

    def _member(
        self, block: bytes, at: int, extended: Extended
    ) -> tuple[TarMember | None, int, bool]:
        """Read what one header announces: (file, next offset, a member is complete)."""
        kind = block[156:157]
        start = at + BLOCK
        size = parse_number(block[124:136])
        if kind in (b"x", b"X", b"g", b"L", b"K"):
            body = self._extension(kind, size, start, at)
            self._extend(kind, body, at, extended)
            return None, start + _padded(len(body)), False
        name, size = self._described(block, size, extended, at)
        if kind == b"\0" and name.endswith("/"):
            kind = b"5"
        pax = self.globals | extended.pax
        reason = KINDS.get(kind, f"member of unknown type {kind.decode('latin-1')!r}")
        if kind in FILES:
            if not any(key.startswith("GNU.sparse.") for key in pax):
                data = self._body(name, size, start, extended.start)
                after = start + _padded(size)
                self._pass_over(start + size, after - start - size, name, last=True)
                self.last = name
                return TarMember(name, data, extended.start, size, start), after, True
            reason = "sparse file"
            name = text(pax.get("GNU.sparse.name", b"")) or name
        if kind == b"S":
            start = self._sparse_map(block, start, name)
        if kind in BODILESS:
            size = 0
        self._pass_over(start, size, name)
        after = start + _padded(size)
        self._pass_over(start + size, after - start - size, name, last=True)
        self.skips.add(name, extended.start, reason)
        self.last = name
        return None, after, True

    def _described(
        self, block: bytes, size: int | None, extended: Extended, at: int
    ) -> tuple[str, int]:
        """Return the member's name and size, for which extended headers have the last word."""
        pax = self.globals | extended.pax
        name = extended.long_name
        if pax.get("path"):
            name = text(pax["path"])
        if name is None:
            name = text(block[:100])
            prefix = text(block[345:500])
            # GNU tar, whose magic is another one, keeps times and a sparse map there.
            if prefix and block[257:263] == b"ustar\0":
                name = f"{prefix}/{name}"
        if pax.get("size"):
            digits = pax["size"]
            size = int(digits) if digits.isdigit() and len(digits) < 20 else None
        if size is None or size < 0:
            raise self.error("is damaged: a header has no valid size", at, name)
        return name, size

    def _extension(self, kind: bytes, size: int | None, start: int, at: int) -> bytes:
        what = "long name" if kind in (b"L", b"K") else "extended header"
        if size is None or not 0 <= size <= MOST_EXTENDED:
            raise self.error(
                f"is damaged: a {what} of {size} bytes, more than {MOST_EXTENDED:,}", at
            )
        body = self.window.body(start, size)
        if body is None or not self.window.skip(start + size, _padded(size) - size):
            raise self.error(self.window.why or f"is cut short in a {what}", at)
        return bytes(body)

    def _extend(self, kind: bytes, body: bytes, at: int, extended: Extended) -> None:
        if kind == b"L":
            extended.long_name = text(body)
        elif kind != b"K":  # the target of a link, which is passed over
            records = parse_pax(body)
            if records is None:
                raise self.error("is damaged: an extended header cannot be read", at)
            if kind == b"g":
                self.globals.update(records)
            else:
                extended.pax.update(records)

    def _body(self, name: str, size: int, start: int, at: int) -> memoryview | bytes:
        if self.most is not None and size > self.most:
            raise self.error(
                f"has a member of {size:,} bytes, more than max_member_bytes={self.most:,}",
                at,
                name,
            )
        data = self.window.body(start, size)
        if data is None:
            raise self._cut(name, at)
        return data

    def _pass_over(self, at: int, count: int, name: str, *, last: bool = False) -> None:
        """Go on behind bytes that nobody needs; padding at the archive's very end may be missing."""
        if not self.window.skip(at, count) and (not last or self.window.why):
            raise self._cut(name, at)

    def _sparse_map(self, block: bytes, start: int, name: str) -> int:
        """Return where the body of a GNU sparse file begins: its map may go on in blocks of its own."""
        more = block[482]
        while more:
            if not self.window.fill(start, BLOCK):
                raise self._cut(name, start)
            more = self.window.data[start - self.window.base + 504]
            start += BLOCK
        return start

    def _cut(self, name: str, at: int) -> ArchiveError:
        return self.error(self.window.why or "is cut short in a member", at, name)

    def error(self, what: str, at: int, member: str = "") -> ArchiveError:
        """Return an error that names archive, member and byte."""
        whose = f", member {member!r}" if member else f", behind {self.last!r}" if self.last else ""
        said = f"{self.archive}: {what}" if what.startswith("the ") else f"{self.archive} {what}"
        return ArchiveError(
            f"{said} (byte {at:,}{whose})", archive=self.archive, member=member, offset=at
        )


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
