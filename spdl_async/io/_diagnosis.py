"""Say in words what data is that is no picture, from its first bytes."""

from __future__ import annotations

_PICTURES = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
)

_OTHER_FILES = (
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"\x93NUMPY", "a NumPy array file"),
    (b"\xff\x0a", "a JPEG XL picture"),
    (b"\x00\x00\x00\x0cJXL ", "a JPEG XL picture"),
    (b"\x1a\x45\xdf\xa3", "a Matroska or WebM video"),
    (b"version https://git-lfs", "a Git LFS pointer: fetch the file that it stands for"),
)

_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")

_SHOWN = 40


def describe_bytes(data: memoryview[int]) -> str:
    """Return a sentence on why ``data`` cannot be opened as a picture.

    >>> describe_bytes(memoryview(b"<!DOCTYPE html><title>404</title>"))
    "not a picture: it looks like HTML or XML: '<!DOCTYPE html><title>404</title>'"
    """
    start = bytes(data[:512])
    size = f"{len(data):,} byte{'s' * (len(data) != 1)}"
    picture = _picture_format(start)
    if picture is not None:
        return (
            f"a {picture} file ({size}) that cannot be opened: its header is damaged or cut "
            f"short, or it is of a kind that Pillow does not know"
        )
    other = _other_format(start)
    if other is not None:
        return f"not a picture that can be decoded: it looks like {other}"
    if not any(start):
        return f"not a picture: its first {len(start)} bytes of {len(data):,} are all zero"
    text = _as_text(start)
    if text is None:
        return f"not a picture of a known format: {size}, which begin with {start[:12].hex(' ')}"
    kind = "HTML or XML" if text.lstrip().startswith("<") else "text"
    shown = text.strip()
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return f"not a picture: it looks like {kind}: {shown!r}"


def _picture_format(start: bytes) -> str | None:
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "WebP"
    if start[4:12] in (b"ftypavif", b"ftypavis"):
        return "AVIF"
    return next((name for magic, name in _PICTURES if start.startswith(magic)), None)


def _other_format(start: bytes) -> str | None:
    if start[4:8] == b"ftyp":
        brand = start[8:12]
        if brand in _HEIF_BRANDS:
            return "a HEIF/HEIC picture: convert it to JPEG or PNG"
        return f"an MP4-like file of brand {brand.decode('latin-1')!r}"
    return next((name for magic, name in _OTHER_FILES if start.startswith(magic)), None)


def _as_text(start: bytes) -> str | None:
    """Decode ``start`` if it is text that a person could read."""
    for cut in range(4):  # 512 bytes may end inside a character, of up to four bytes
        try:
            text = start[: len(start) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        if not text:  # all of it is the beginning of a character that does not come
            return None
        readable = all(character.isprintable() or character.isspace() for character in text)
        return text if readable else None
    return None
