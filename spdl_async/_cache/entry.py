"""The file of an entry: all that came of one source item, checked when it is read.

32 bytes: ``SPDLASYN``, format (u32), length of the header (u32), CRC-32 of all that follows (u32,
zlib's), 0 (u32), length of the data (u64); little-endian. Then the header, JSON, padded with
blanks to a multiple of 64 bytes together with these 32; then the buffers, each padded to a multiple of 64.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

from spdl_async._cache.codec import Blob, Decoder

MAGIC: Final = b"SPDLASYN"
FORMAT: Final = 1
HEAD: Final = struct.Struct("<8sIIIIQ")
ALIGNMENT: Final = 64

Output = tuple[tuple[int, ...], Blob]
Loaded = tuple[tuple[int, ...], Any]


class DamagedError(Exception):
    """An entry's file is not what was written."""


def pieces(name: str, version: str, outputs: Sequence[Output]) -> list[bytes]:
    """Return the pieces of the file of an entry."""
    body: list[bytes] = []
    spans: list[tuple[int, int]] = []
    trees: list[Any] = []
    at = 0
    for path, blob in outputs:
        trees.append([path, blob.tree, len(blob.buffers)])
        for buffer in blob.buffers:
            size = len(buffer)
            spans.append((at, size))
            body.append(buffer)
            if padding := -size % ALIGNMENT:
                body.append(bytes(padding))
            at += size + padding
    header = json.dumps(
        {"entry": name, "version": version, "outputs": trees, "buffers": spans},
        separators=(",", ":"),
    ).encode()
    header += b" " * (-(HEAD.size + len(header)) % ALIGNMENT)
    check = zlib.crc32(header)
    for piece in body:
        check = zlib.crc32(piece, check)
    return [HEAD.pack(MAGIC, FORMAT, len(header), check, 0, at), header, *body]


def loaded(data: bytearray, name: str) -> list[Loaded]:
    """Return the outputs in the bytes of a file: (path, value).

    Arrays that are most of it keep its memory; others have their own, so that one small array which
    is kept for long does not keep all.

    Raises:
        DamagedError: they are not what was written; the message says why.
        ImportError: it holds tensors and torch is not installed.
    """
    if len(data) < HEAD.size:
        raise DamagedError(f"it has {len(data)} bytes")
    magic, number, length, check, zero, size = HEAD.unpack_from(data)
    if magic != MAGIC or number != FORMAT or zero:
        raise DamagedError("it is no entry, or one of another format")
    if HEAD.size + length + size != len(data):
        raise DamagedError(f"it has {len(data)} bytes, its header says {HEAD.size + length + size}")
    view = memoryview(data)
    if zlib.crc32(view[HEAD.size :]) != check:
        raise DamagedError("its checksum is wrong")
    try:
        header = json.loads(bytes(view[HEAD.size : HEAD.size + length]))
        if header["entry"] != name:
            raise DamagedError(f"it is the entry {header['entry']}")
        body = view[HEAD.size + length :]
        buffers = [body[at : at + number] for at, number in header["buffers"]]
        return _outputs(header["outputs"], buffers, size)
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        OverflowError,
    ) as error:
        raise DamagedError(f"its header cannot be used: {error}") from error


def _outputs(trees: list[Any], buffers: list[memoryview], size: int) -> list[Loaded]:
    def keep(buffer: memoryview) -> bool:
        return 2 * len(buffer) >= size

    outputs: list[Loaded] = []
    first = 0
    for path, tree, number in trees:
        value = Decoder(buffers[first : first + number], keep).value(tree)
        outputs.append((tuple(path), value))
        first += number
    return outputs
