"""The fields of tar headers: names, numbers, checksums, and the records of extended headers (PAX)."""

from __future__ import annotations

from typing import Final

ADLER_BASE: Final = 65521

PAX_KEYS: Final = frozenset(
    ["path", "size"]
    + [f"GNU.sparse.{key}" for key in ("major", "map", "name", "numblocks", "realsize", "size")]
)
"""What is looked at in extended headers; the rest (times, owners, attributes) is read over."""


def expected_adler(field: bytes) -> int | None:
    """Return what the low half of a header's Adler-32 is where this is its checksum field.

    That half is 1 + the sum of all bytes, modulo 65521; the stored sum counts the field itself as
    eight spaces. The modulus hides nothing: a sum of 65,521 needs bytes of 128 on the average in
    a header that is zeros for the most part.

    Returns:
        ``None``: the field is no octal number.
    """
    digits = field.strip(b" \0")
    if not digits.isdigit():
        return None
    try:
        stored = int(digits, 8)
    except ValueError:
        return None
    return (stored - 8 * 32 + sum(field) + 1) % ADLER_BASE


def parse_number(field: bytes) -> int | None:
    """Return the number of a header's field: octal digits, or binary with a marking first byte (GNU).

    Returns:
        ``None``: it is no number; negative binary numbers are returned as they are.
    """
    if field[:1] in (b"\x80", b"\xff"):
        number = int.from_bytes(field[1:], "big")
        return number if field[0] == 0x80 else number - (1 << 8 * (len(field) - 1))
    digits = field.partition(b"\0")[0].strip(b" ")
    if not digits:
        return 0
    try:
        return int(digits, 8) if digits.isdigit() else None
    except ValueError:
        return None


def parse_pax(body: bytes) -> dict[str, bytes] | None:
    """Return the known records of an extended header, "length key=value\\n" each.

    Returns:
        ``None``: it is damaged.
    """
    found: dict[str, bytes] = {}
    at = 0
    while at < len(body) and body[at]:
        digits, space, _ = body[at : at + 9].partition(b" ")
        if not space or not digits.isdigit():
            return None
        end = at + int(digits)
        key, equals, value = body[at + len(digits) + 1 : end].partition(b"=")
        if end > len(body) or not key or not equals or value[-1:] != b"\n":
            return None
        if (word := key.decode("latin-1")) in PAX_KEYS:
            found[word] = value[:-1]
        at = end
    return found


def text(raw: bytes) -> str:
    """Decode a name up to its first NUL."""
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")
