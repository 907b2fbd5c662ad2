"""Read tar archives: a quick loop over plain members, and `HeaderReader` for all the others."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from spdl_async.io._archive_input import (
    BinaryStream,
    check_source,
    name_of,
    open_window,
)
from spdl_async.io._archive_members import SkippedMember, Skips, TarMember
from spdl_async.io._tar_fields import expected_adler
from spdl_async.io._tar_header import HeaderReader

if TYPE_CHECKING:
    from typing_extensions import Buffer

    TarSource = str | os.PathLike[str] | Buffer | BinaryStream

_FIELDS: Final = struct.Struct("100s24x11sc12x8sc188xc")
"""Of a header: name, eleven digits of the size and what follows them, checksum, kind, first byte of the
name's prefix."""

MOST_SUMS: Final = 4096
"""Checksum fields of which the meaning is kept; those of real archives differ in few hundreds."""

MOST_BYTES: Final = 1 << 30
"""Default of ``max_member_bytes``."""


def iter_tar(
    source: TarSource,
    *,
    name: str | None = None,
    on_skip: Callable[[SkippedMember], object] | None = None,
    max_member_bytes: int | None = MOST_BYTES,
) -> Iterator[TarMember]:
    """Iterate over the files in a tar archive, in the order in which they stand there.

    Reads V7, ustar, GNU (long names, binary sizes) and PAX archives, also one behind the other, plain
    or compressed with gzip or zstd, which is seen by their first bytes. The checksum of each header is
    verified. What is no file (directories, links, devices, sparse files) is passed over: one log
    record counts it, and ``on_skip`` hears of each. Nothing is ever written to disk.

    A path is mapped into memory and a buffer is used as it is: ``data`` is then a view, and no
    content is copied or even read before you look at it. A file that another process shortens while it
    is mapped kills the process that reads it (SIGBUS); where that can happen, pass ``open(path, "rb")``.
    A stream is read in order and to its end, by 256 KiB at a time; it may be a pipe or a
    response. It is not closed.

    Args:
        source: a path, a bytes-like object with the whole archive, or a binary stream.
        name: what errors and log records call the archive; default: the path or the stream's ``name``.
        on_skip: called with each :class:`SkippedMember`.
        max_member_bytes: largest member in bytes where members have to be held in memory, which is
            in streams and compressed archives; ``None``: any.

    Yields:
        A :class:`TarMember` for each file.

    Raises:
        ArchiveError: the archive is damaged, cut short or no tar archive. All members before have been
            yielded by then. Missing blocks of zeros at its end are only a warning in the log.
        OSError: the file cannot be opened or read.
        TypeError: ``source`` is something else.
        ValueError: ``max_member_bytes`` is negative.
        ImportError: the archive is compressed with zstd, and zstandard is not installed.

    Example:
        >>> import io, tarfile
        >>> file = io.BytesIO()
        >>> with tarfile.open(fileobj=file, mode="w") as tar:
        ...     info = tarfile.TarInfo("a/0001.txt")
        ...     info.size = 5
        ...     tar.addfile(info, io.BytesIO(b"hello"))
        >>> [(member.name, bytes(member.data)) for member in iter_tar(file.getvalue())]
        [('a/0001.txt', b'hello')]
    """
    check_source(source, "iter_tar")
    if max_member_bytes is not None and max_member_bytes < 0:
        raise ValueError(f"max_member_bytes must not be negative, but is {max_member_bytes}")
    archive = name_of(source) if name is None else name
    return read_members(source, archive, Skips(archive, on_skip), max_member_bytes)


def read_members(
    source: TarSource, archive: str, skips: Skips, most: int | None
) -> Iterator[TarMember]:
    """Read plain members in one quick loop, and leave each header that is not to `HeaderReader`.

    Plain is a file (kind 0) that the window has all of, whose name is in the header's own field and
    whose size is octal. In an archive of small files nearly all are.
    """
    unpack, adler, new, cls = _FIELDS.unpack_from, zlib.adler32, tuple.__new__, TarMember
    sums: dict[bytes, int] = {}  # what `expected_adler` says of fields that have been met
    at = 0
    with open_window(source) as window, skips:
        reader = HeaderReader(window, archive, skips, most)
        while True:
            data, base = window.data, window.base
            p, end = at - base, len(data) - 511
            last = ""
            # What global headers say changes plain members; and none here is larger than the window.
            if reader.globals or (reader.most is not None and reader.most < len(data)):
                end = p
            while p < end:
                raw, digits, twelfth, field, kind, prefix = unpack(data, p)
                if kind != b"0" or prefix != b"\0" or twelfth > b" ":
                    break
                start = p + 512
                try:
                    if adler(data[p:start]) & 0xFFFF != sums[field]:
                        break
                    size = int(digits, 8)
                    name = raw.partition(b"\0")[0].decode()
                except KeyError:
                    if not _learn(sums, field):
                        break
                    continue
                except ValueError:  # no number, or no UTF-8
                    break
                stop = start + size
                if not start <= stop <= end:  # at the archive's end the padding may be missing
                    break
                yield new(cls, (name, data[start:stop], base + p, size, base + start))
                p, last = stop + (-size & 511), name
            if base + p > at:
                reader.last, reader.ended = last, False
            found, at = reader.read(base + p)
            if found is None:
                return
            reader.ended = False
            yield found


def _learn(sums: dict[bytes, int], field: bytes) -> bool:
    """Note what a checksum field stands for; ``False``: it is no number."""
    expected = expected_adler(field)
    if expected is None:
        return False
    if len(sums) >= MOST_SUMS:
        sums.clear()
    sums[field] = expected
    return True
