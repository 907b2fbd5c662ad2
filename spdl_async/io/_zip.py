"""Read zip archives, with zipfile, under limits."""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from spdl_async.errors import ArchiveError
from spdl_async.io._archive_input import check_source, name_of
from spdl_async.io._archive_members import SkippedMember, Skips
from spdl_async.io._local import open_regular
from spdl_async.io._tar import MOST_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

    ZipSource = str | os.PathLike[str] | Buffer | BinaryIO

CHUNK: Final = 1 << 20
ENCRYPTED: Final = 0x1
METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
"""LZMA is none of them: a member of a few bytes can have its decoder take a dictionary of 4 GiB."""

LOCAL_HEADER: Final = 30
"""Bytes of a local header without its name."""

_DAMAGE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    IndexError,
    OverflowError,
)
"""What zipfile and the decompressors raise over bytes that are no zip archive."""


class ZipMember(NamedTuple):
    """One file in a zip archive.

    Attributes:
        name: its path as the archive has it. It may be absolute or hold ``..``: do not write it to
            disk without a look.
        data: its content.
        offset: byte in the archive at which its local header begins.
        size: bytes of data.
    """

    name: str
    data: bytes
    offset: int
    size: int


def iter_zip(
    source: ZipSource,
    *,
    name: str | None = None,
    on_skip: Callable[[SkippedMember], object] | None = None,
    max_member_bytes: int | None = MOST_BYTES,
) -> Iterator[ZipMember]:
    """Iterate over the files in a zip archive, in the order of its directory.

    Stored, deflated and bzip2 members and zip64 are read, and the CRC of each member is verified.
    Directories and symbolic links are passed over: one log record counts them, and ``on_skip`` hears of
    each. Nothing is ever written to disk. The directory of a zip archive stands at its end, so that one
    that was cut short gives nothing but an error; tar archives are what lasts when it is read in order.

    Args:
        source: a path, a bytes-like object, or a binary stream that can seek, which is not closed.
        name: what errors and log records call the archive; default: the path or the stream's ``name``.
        on_skip: called with each :class:`SkippedMember`.
        max_member_bytes: largest member in bytes, uncompressed, which stops what was made to fill the
            memory; ``None``: any.

    Yields:
        A :class:`ZipMember` for each file.

    Raises:
        ArchiveError: the archive is damaged, encrypted, compressed in another way, hostile (members that
            overlap or are larger than the limit), or no zip archive.
        OSError: the file cannot be opened or read.
        TypeError: ``source`` is something else.
        ValueError: ``max_member_bytes`` is negative.

    Example:
        >>> import io, zipfile
        >>> file = io.BytesIO()
        >>> with zipfile.ZipFile(file, "w") as archive:
        ...     archive.writestr("a/0001.txt", "hello")
        >>> [(member.name, member.data) for member in iter_zip(file.getvalue())]
        [('a/0001.txt', b'hello')]
    """
    check_source(source, "iter_zip")
    if hasattr(source, "read") and not hasattr(source, "seek"):
        raise TypeError(
            "iter_zip reads streams that can seek, because the directory of a zip archive stands at its "
            "end: pass stream.read()"
        )
    if max_member_bytes is not None and max_member_bytes < 0:
        raise ValueError(f"max_member_bytes must not be negative, but is {max_member_bytes}")
    archive = name_of(source) if name is None else name
    return _members(source, archive, Skips(archive, on_skip), max_member_bytes)


def _members(
    source: ZipSource, archive: str, skips: Skips, most: int | None
) -> Iterator[ZipMember]:
    with _opened(source) as file, skips:
        with _damage(archive, "", -1):
            opened = zipfile.ZipFile(file)
        with opened:
            _check_overlaps(opened, archive)
            for info in opened.infolist():
                reason = _reason_to_skip(info)
                if reason:
                    skips.add(info.filename, info.header_offset, reason)
                    continue
                data = _read(opened, info, archive, most)
                yield ZipMember(info.filename, data, info.header_offset, len(data))


@contextmanager
def _opened(source: Any) -> Iterator[Any]:
    if isinstance(source, (str, os.PathLike)):
        with io.BufferedReader(open_regular(source)) as file:
            yield file
    elif hasattr(source, "read"):
        yield source
    else:
        yield io.BytesIO(source)


@contextmanager
def _damage(archive: str, member: str, offset: int) -> Iterator[None]:
    """Turn what is raised over bad bytes into ArchiveError."""
    try:
        yield
    except ArchiveError:
        raise
    except OSError as error:
        # bz2 has no other word for bad data; errors of the file have a number.
        if error.errno not in (None, errno.EINVAL):  # which seeking to before the front gives
            raise
        raise _error(archive, member, offset, str(error)) from error
    except _DAMAGE as error:
        raise _error(archive, member, offset, str(error) or type(error).__name__) from error


def _error(archive: str, member: str, offset: int, what: str) -> ArchiveError:
    whose = f", member {member!r} at byte {offset:,}" if member else ""
    return ArchiveError(f"{archive}{whose}: {what}", archive=archive, member=member, offset=offset)


def _check_overlaps(opened: zipfile.ZipFile, archive: str) -> None:
    """Refuse members that share compressed bytes: a small file would have petabytes of content."""
    infos = sorted(opened.infolist(), key=lambda info: info.header_offset)
    for info, after in pairwise(infos):
        if info.header_offset + LOCAL_HEADER + info.compress_size > after.header_offset:
            raise _error(
                archive,
                info.filename,
                info.header_offset,
                f"overlaps member {after.filename!r} at byte {after.header_offset:,}: no program that "
                f"writes archives does that",
            )


def _reason_to_skip(info: zipfile.ZipInfo) -> str:
    if info.filename.endswith("/"):
        return "directory"
    # The upper half has the mode of Unix where the archive was made there.
    return "symbolic link" if stat.S_ISLNK(info.external_attr >> 16) else ""


def _read(opened: zipfile.ZipFile, info: zipfile.ZipInfo, archive: str, most: int | None) -> bytes:
    name, offset = info.filename, info.header_offset
    if info.flag_bits & ENCRYPTED:
        raise _error(archive, name, offset, "is encrypted, and iter_zip takes no password")
    if info.compress_type not in METHODS:
        raise _error(
            archive,
            name,
            offset,
            f"is compressed by method {info.compress_type}, which is not read here: stored, deflated and "
            f"bzip2 members are",
        )
    if most is not None and info.file_size > most:
        raise _error(
            archive,
            name,
            offset,
            f"has {info.file_size:,} bytes, more than max_member_bytes={most:,}",
        )
    parts: list[bytes] = []
    with _damage(archive, name, offset), opened.open(info) as member:
        # By pieces, so that a size that is a lie allocates nothing.
        while part := member.read(CHUNK):
            parts.append(part)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(data) != info.file_size:
            raise _error(
                archive, name, offset, f"is cut short: {len(data):,} of {info.file_size:,} bytes"
            )
        return data
