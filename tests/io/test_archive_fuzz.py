"""10,000 damaged archives: whatever stands in them, the documented errors and nothing else."""

from __future__ import annotations

import gzip
import io
import logging
import random
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sample_tars import END, Dribble, header, member, packed, records, tar_of

from spdl_async.errors import ArchiveError
from spdl_async.io import iter_tar, iter_zip, tar_samples

pytestmark = pytest.mark.torch

MOST = 1 << 20  # of a member; no archive here is larger than 20 kB
EACH = 2500
INTERESTING = [
    b"\0",
    b"\xff",
    b"\x80",
    b"7",
    b"/",
    b" ",
    b"\xff" * 12,
    b"\x80" + b"\0" * 6 + b"\xff" * 5,
]


def tars() -> list[bytes]:
    """Return small archives that have everything in them that the reader knows."""
    names = {"a/1.jpg": b"J" * 700, "a/1.json": b"{}", "n" * 150 + ".txt": b"x", "é.cls": b"7"}
    sparse = header(b"s", kind=b"S", rest={482: b"\1"}) + bytes(512)
    pax = member(b"g", records(path=b"all.txt"), kind=b"g") + member(
        b"p", records(size=b"3"), kind=b"x"
    )
    found = [tar_of(names, kind=kind) for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    found.append(pax + member(b"x", b"abc") + sparse + header(b"l", kind=b"2") + END)
    return found


def zips() -> list[bytes]:
    found: list[bytes] = []
    for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", how) as archive:
            archive.mkdir("d")
            with archive.open("d/é.txt", "w", force_zip64=True) as opened:
                opened.write(b"text" * 50)
            archive.writestr("b", bytes(3000))
        found.append(file.getvalue())
    return found


def resealed(data: bytearray) -> bytes:
    """Give every block that looks like a header its right checksum, so that more is read of it."""
    for at in range(0, len(data) - 511, 512):
        if data[at + 257 : at + 262] == b"ustar":
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


def mutated(draw: random.Random, data: bytes) -> bytearray:
    """Return data with a few bytes changed, a piece moved, or an end cut off."""
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 8])):
        if not changed:
            break
        at = draw.randrange(len(changed))
        match draw.randrange(6):
            case 0:
                changed[at] ^= 1 << draw.randrange(8)
            case 1:
                piece = draw.choice(INTERESTING)
                changed[at : at + len(piece)] = piece
            case 2:
                del changed[at:]
            case 3:
                del changed[at : at + draw.choice([1, 100, 512])]
            case 4:
                other = draw.randrange(len(changed))
                changed[at:at] = changed[other : other + 512]
            case 5:  # where headers have sizes, kinds and maps
                at = at // 512 * 512 + draw.choice([0, 124, 135, 148, 156, 257, 345, 482])
                changed[at : at + 1] = draw.choice(INTERESTING)
    return changed


def damaged_tars(draw: random.Random) -> Iterator[Any]:
    originals = tars()
    for number in range(EACH):
        changed = mutated(draw, draw.choice(originals))
        data = resealed(changed) if number % 2 else bytes(changed)
        yield Dribble(data, 997) if number % 3 == 0 else data


def damaged_packed(draw: random.Random) -> Iterator[Any]:
    originals = [packed(data, how) for data in tars() for how in ("gzip", "zstd")]
    inner = tars()
    for number in range(EACH):
        if number % 3 == 0:
            yield gzip.compress(resealed(mutated(draw, draw.choice(inner))), 1)
        else:
            yield bytes(mutated(draw, draw.choice(originals)))


def damaged_zips(draw: random.Random) -> Iterator[Any]:
    originals = zips()
    for number in range(EACH):
        data = bytes(mutated(draw, draw.choice(originals)))
        yield io.BytesIO(data) if number % 2 else data


def read_tar(source: Any) -> None:
    for found in iter_tar(source, max_member_bytes=MOST):
        assert found.size == len(found.data)
        assert isinstance(found.name, str)


def read_samples(source: Any) -> None:
    for sample in tar_samples(source, duplicates="last", max_member_bytes=MOST):
        assert len(sample) > 3


def read_zip(source: Any) -> None:
    for found in iter_zip(source, max_member_bytes=MOST):
        assert found.size == len(found.data)


@pytest.mark.parametrize(
    ("make", "read"),
    [
        pytest.param(damaged_tars, read_tar, id="iter_tar"),
        pytest.param(damaged_packed, read_tar, id="iter_tar-packed"),
        pytest.param(damaged_tars, read_samples, id="tar_samples"),
        pytest.param(damaged_zips, read_zip, id="iter_zip"),
    ],
)
def test_2500_damaged_archives(
    make: Callable[[random.Random], Iterator[Any]], read: Callable[[Any], None]
) -> None:
    """Four times 2,500; the memory that one takes stays below a few megabytes."""
    pytest.importorskip("zstandard")
    logging.getLogger("spdl_async").setLevel(logging.CRITICAL)
    whole = damaged = 0
    tracemalloc.start()
    try:
        for source in make(random.Random(f"{make.__name__} {read.__name__}")):
            try:
                read(source)
                whole += 1
            except ArchiveError:
                damaged += 1
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
        logging.getLogger("spdl_async").setLevel(logging.NOTSET)
    assert whole + damaged == EACH
    assert min(whole, damaged) > EACH // 20  # the mutations are neither too kind nor too wild
