"""Archives of arrays, ``.npz``: what is stored is looked at, what is deflated is inflated."""

from __future__ import annotations

import errno
import io
import struct
import zipfile
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from spdl_async.errors import DecodeError
from spdl_async.io._npy import Buffer, flat_view, load_npy

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_ENCRYPTED = 0x1
# What zipfile raises on archives that are damaged or made to harm.
_DAMAGED = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    OverflowError,
    ValueError,
    struct.error,
)


def load_npz(
    data: Buffer, names: Iterable[str] | None = None, *, max_bytes: int = 1 << 32
) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` file's bytes, by name.

    Members that are stored (``numpy.savez``) are looked at where they are, as :func:`load_npy` does, and
    can be written to only where ``data`` can. Members that are deflated (``numpy.savez_compressed``)
    are inflated, into arrays that cannot be written to. The checksum of each member that is read is verified.

    Args:
        data: the whole file; bytes, bytearray, or a contiguous memoryview.
        names: the arrays to read, without ``.npy``; the others are not looked at. Default: all.
        max_bytes: the most bytes that the deflated members together may inflate to; 4 GiB.

    Returns:
        A dict in the order of the archive, or of ``names``.

    Raises:
        DecodeError: this is no zip archive, a name is missing or twice in it, or a member is damaged, no
            array, encrypted, compressed by another method, or bigger than it says or than ``max_bytes``
            allows; the message names the member, ``offset`` is where it begins in ``data``.
        TypeError: ``data`` is a path, or no contiguous buffer, or ``names`` is a single text.
        ValueError: ``max_bytes`` is no whole number of at least 0.

    Example:
        >>> import io
        >>> import numpy as np
        >>> file = io.BytesIO()
        >>> np.savez(file, image=np.zeros((2, 2), np.uint8), label=7)
        >>> sample = load_npz(file.getvalue())
        >>> sample["image"].shape, int(sample["label"])
        ((2, 2), 7)
    """
    if isinstance(names, (str, bytes)):
        raise TypeError(f"load_npz: names must be a list, such as [{names!r:.80}]")
    if type(max_bytes) is not int or max_bytes < 0:
        raise ValueError(f"load_npz: max_bytes must be an int of at least 0, not {max_bytes!r:.80}")
    view = flat_view(data, "load_npz")
    members = _members(view)
    wanted = list(members) if names is None else list(names)
    missing = [name for name in wanted if name not in members]
    if missing:
        have = ", ".join(map(repr, members)) or "nothing"
        raise DecodeError(f"an .npz file without {missing[0]!r}; it has {have:.500}")
    left = max_bytes
    arrays: dict[str, NDArray[Any]] = {}
    for name in wanted:
        member = members[name]
        try:
            content = _content(view, member, left)
            if member.compress_type != zipfile.ZIP_STORED:
                left -= len(content)
            if zlib.crc32(content) != member.CRC:
                raise DecodeError("its checksum is wrong")
            arrays[name] = load_npy(content)
        except DecodeError as error:
            at = member.header_offset
            raise DecodeError(
                f"member {member.filename!r:.200} of an .npz file, at byte {at:,}: {error}",
                offset=at,
            ) from error.__cause__
    return arrays


def _members(view: memoryview[int]) -> dict[str, zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(_ViewFile(view)) as archive:
            found = archive.infolist()
    except _DAMAGED as error:
        hint = (
            "; this is a single array, .npy: use load_npy"
            if bytes(view[:6]) == b"\x93NUMPY"
            else ""
        )
        raise DecodeError(
            f"no .npz file, or a damaged one ({len(view):,} bytes): {error!s:.200}{hint}",
            offset=len(view),  # the list of members is read from the end
        ) from error
    members: dict[str, zipfile.ZipInfo] = {}
    for member in found:
        name = member.filename.removesuffix(".npy")
        if name in members:
            raise DecodeError(
                f"an .npz file that has {name!r:.200} twice, at bytes "
                f"{members[name].header_offset:,} and {member.header_offset:,}",
                offset=member.header_offset,
            )
        members[name] = member
    return members


def _content(view: memoryview[int], member: zipfile.ZipInfo, most: int) -> memoryview[int]:
    """Return a member's bytes: a part of the archive, or new ones.

    Raises:
        DecodeError: they cannot be had.
    """
    start = member.header_offset
    if member.flag_bits & _ENCRYPTED:
        raise DecodeError("it is encrypted")
    if start < 0 or start + _LOCAL_HEADER.size > len(view):
        raise DecodeError("it begins beyond the end of the archive")
    fields = _LOCAL_HEADER.unpack_from(view, start)
    if fields[0] != b"PK\x03\x04":
        raise DecodeError("there is no member; the archive is damaged")
    start += _LOCAL_HEADER.size + fields[-2] + fields[-1]
    if start + member.compress_size > len(view):
        raise DecodeError(f"it is cut short: the archive ends at byte {len(view):,}")
    stored = view[start : start + member.compress_size]
    if member.compress_type == zipfile.ZIP_STORED:
        if member.file_size != member.compress_size:
            raise DecodeError("it is stored, but the archive has two sizes for it")
        return stored
    if member.compress_type != zipfile.ZIP_DEFLATED:
        raise DecodeError(
            f"it is compressed by method {member.compress_type}; stored and deflated ones are read"
        )
    if member.file_size > most:
        raise DecodeError(
            f"it inflates to {member.file_size:,} bytes, where {most:,} are left of max_bytes"
        )
    return _inflated(stored, member.file_size)


def _inflated(stored: memoryview[int], size: int) -> memoryview[int]:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        # Grows as it goes, so that a false size allocates nothing.
        content = inflater.decompress(stored, size + 1)
    except zlib.error as error:
        raise DecodeError(f"its compressed bytes are damaged: {error}") from error
    if len(content) != size or not inflater.eof:
        more = "more" if len(content) > size or not inflater.eof else "less"
        raise DecodeError(f"it inflates to {more} than the {size:,} bytes that the archive says")
    return memoryview(content)


class _ViewFile(io.RawIOBase):
    """The bytes of a view as a file, for zipfile to read the list of members from; copies none else."""

    def __init__(self, view: memoryview[int]) -> None:
        self._view = view
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = (0, self._at, len(self._view))[whence]
        if start + offset < 0:
            # As files do: zipfile takes it for the end of its search.
            raise OSError(errno.EINVAL, f"negative position {start + offset}")
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._view) if size is None or size < 0 else self._at + size
        found = bytes(self._view[self._at : end])
        self._at += len(found)
        return found
