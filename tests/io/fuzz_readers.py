"""What `fuzz_files` damages: whole files for every decoder and archive reader, and how each reads them."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import random
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fuzz_files import PIECES, Reader, mutated

from spdl_async.errors import ArchiveError, DecodeError
from spdl_async.io import (
    audio_info,
    decode_audio,
    decode_frames,
    decode_image,
    decode_video,
    image_info,
    iter_tar,
    iter_zip,
    load_npy,
    load_npz,
    read_jsonl,
    read_parquet,
    stream_video,
    tar_samples,
    video_info,
)

# Pictures


@functools.cache
def pictures() -> Sequence[bytes]:
    from PIL import Image
    from sample_pictures import encode, exif, photo

    small = photo(24, 30)
    frames = [Image.new("RGB", (16, 12), (n * 80, 20, 7)) for n in range(3)]
    moving: dict[str, Any] = {"save_all": True, "append_images": frames[1:]}
    found = [
        *jpegs(),
        encode(small, "PNG", exif=exif(3)),
        encode(small.quantize(20), "PNG", transparency=3),
        *(encode(frames[0], name, **moving) for name in ("PNG", "GIF", "WEBP")),
        encode(small, "TIFF", compression="tiff_lzw"),
        *(encode(small, name) for name in ("WEBP", "BMP", "TIFF", "TGA", "PPM")),
    ]
    return [*found, encode(small, "AVIF")] if "AVIF" in Image.SAVE else found


@functools.cache
def jpegs() -> Sequence[bytes]:
    from sample_pictures import encode, exif, photo

    small = photo(24, 30)
    return [
        encode(small, quality=80, exif=exif(6)),
        encode(small, progressive=True),
        encode(small.convert("CMYK")),
        encode(small.convert("L"), restart_marker_rows=1),
    ]


def read_picture(data: bytes, number: int, *, backend: str = "auto") -> None:
    """Decode with one of everything."""
    options: Any = {
        "mode": ("RGB", "L", "RGBA", "unchanged")[number % 4],
        "size": None if number % 3 else (9, 13),
        "fit": ("stretch", "cover", "contain")[number % 5 % 3],
        "damaged": "error" if number % 2 else "tolerate",
        "max_pixels": 1_000_000,
    }
    if backend == "auto":
        with contextlib.suppress(DecodeError):
            image_info(data)
    if backend == "pillow" and number % 10 == 0:
        with contextlib.suppress(DecodeError):
            decode_frames(data, max_pixels=1_000_000)
    assert decode_image(data, backend=backend, **options).size


LIBTIFF = (
    "tempfile.tif: ",  # so Pillow calls what it gives to it
    "TIFFFetchNormalTag: ",
    "TIFFFillStrip: ",
    "_TIFFGetStrile",
    "Decode: Not enough data at scanline",
)
"""What the lines of libtiff, which Pillow does not silence, contain."""


def picture_reader(backend: str, *needs: str) -> Reader:
    return Reader(
        files=jpegs if backend == "simplejpeg" else pictures,
        read=functools.partial(read_picture, backend=backend),
        error=DecodeError,
        needs=("PIL", *needs),
        said=LIBTIFF,
    )


# Sounds and videos

SOUNDS = (
    ("WAV", "PCM_16"),
    ("WAVEX", "PCM_24"),
    ("RF64", "FLOAT"),
    ("FLAC", "PCM_16"),
    ("OGG", "VORBIS"),
    ("OGG", "OPUS"),
    ("MP3", "MPEG_LAYER_III"),
    ("AIFF", "PCM_24"),
    ("CAF", "ALAC_16"),
    ("WAV", "IMA_ADPCM"),
)


def sounds() -> Sequence[bytes]:
    from sample_media import sound

    return [sound(*kind) for kind in SOUNDS]


def read_sound(data: bytes, number: int) -> None:
    if number % 8 == 0:
        with contextlib.suppress(DecodeError):
            audio_info(data)
    samples, rate = decode_audio(data)
    assert samples.ndim == 2
    assert rate > 0


def videos() -> Sequence[bytes]:
    from sample_media import video

    kinds: list[dict[str, Any]] = [{"container": name} for name in ("mp4", "matroska", "mpegts")]
    kinds += [
        {"codec": "mpeg4", "container": "avi"},
        {"codec": "libvpx-vp9", "container": "webm", "b_frames": None},
        {"codec": "mjpeg", "container": "avi", "pixels": "yuvj420p", "b_frames": None},
        {"codec": "gif", "container": "gif", "pixels": "rgb8", "b_frames": None},
    ]
    return [video(6, group=3, **kind) for kind in kinds]


def read_video(data: bytes, number: int, *, backend: Any = "auto") -> None:
    """Decode all; of some files also pieces, and the header."""
    if backend == "auto" and number % 4 == 0:
        with contextlib.suppress(DecodeError):
            video_info(data)
        with contextlib.suppress(DecodeError):
            for chunk in stream_video(data, chunk=2, size=16):
                assert len(chunk)
    frames = decode_video(data, size=16, backend=backend)
    assert frames.shape[1:] == (16, 16, 3)


# Arrays and text


def npy_files() -> Sequence[bytes]:
    arrays: list[Any] = [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.eye(3)),
        np.array("text"),
        np.zeros(2, [("a", "<i4"), ("b", "<f4", (2,)), ("c", [("d", "S3")])]),
        np.zeros((0, 3), ">f8"),
        np.array(["2026-11-30"], "M8[D]"),
    ]
    return [_saved(np.save, array) for array in arrays]


def npz_files() -> Sequence[bytes]:
    arrays = {"image": np.arange(50, dtype=np.uint8), "label": np.array(3)}
    return [_saved(save, **arrays) for save in (np.savez, np.savez_compressed)]


def _saved(save: Callable[..., None], *arrays: Any, **named: Any) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


def jsonl_files() -> Sequence[bytes]:
    import zstandard

    lines = [json.dumps({"n": n, "text": "ü" * n, "l": [[n]]}) + "\n" for n in range(9)]
    text = "".join(lines).encode()
    return [text, gzip.compress(text, mtime=0), zstandard.ZstdCompressor().compress(text)]


def read_lines(data: bytes, number: int) -> None:
    for _ in read_jsonl(data, max_line_bytes=1 << 16):
        pass


def parquet_files() -> Sequence[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "n": np.arange(30),
        "text": [str(n) for n in range(30)],
        "l": [[n, n] for n in range(30)],
        "v": pa.array([[1.0, n] for n in range(30)], pa.list_(pa.float32(), 2)),
        "b": [None, True] * 15,
        "s": [{"a": n} for n in range(30)],
    }
    kinds: list[dict[str, Any]] = [
        {},
        {"compression": "zstd"},
        {"compression": "none", "use_dictionary": False},
        {"data_page_version": "2.0", "compression": "gzip"},
    ]
    files = []
    for kind in kinds:
        file = io.BytesIO()
        pq.write_table(pa.table(columns), file, row_group_size=10, **kind)
        files.append(file.getvalue())
    return files


def read_rows(data: bytes, number: int) -> None:
    for _ in read_parquet(data, batch_size=4 if number % 8 < 4 else None):
        pass


# Archives

MOST = 1 << 20  # of a member; no archive here is larger than 20 kB


def tars() -> Sequence[bytes]:
    """Small archives that have everything in them that the reader knows."""
    from sample_tars import END, header, member, records, tar_of

    names = {"a/1.jpg": b"J" * 700, "a/1.json": b"{}", "n" * 150 + ".txt": b"x", "é.cls": b"7"}
    sparse = header(b"s", kind=b"S", rest={482: b"\1"}) + bytes(512)
    pax = member(b"g", records(path=b"all.txt"), kind=b"g") + member(
        b"p", records(size=b"3"), kind=b"x"
    )
    found = [tar_of(names, kind=kind) for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    return [*found, pax + member(b"x", b"abc") + sparse + header(b"l", kind=b"2") + END]


def packed_tars() -> Sequence[bytes]:
    from sample_tars import packed

    return [packed(data, how) for data in tars() for how in ("gzip", "zstd")]


def damaged_tar(data: bytes, rng: random.Random) -> bytes:
    """Damage an archive; of half of them in headers' fields, and with check sums that are right."""
    changed = bytearray(mutated(data, rng))
    if rng.random() < 0.5:
        return bytes(changed)
    for _ in range(rng.choice((0, 1, 2))):  # where headers have sizes, kinds and maps
        at = rng.randrange(len(changed) // 512 + 1) * 512
        at += rng.choice((0, 124, 135, 148, 156, 257, 345, 482))
        changed[at : at + 1] = rng.choice(PIECES)
    for at in range(0, len(changed) - 511, 512):
        if changed[at + 257 : at + 262] == b"ustar":
            changed[at + 148 : at + 156] = b" " * 8
            changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + 512])
    return bytes(changed)


def damaged_packed(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return gzip.compress(damaged_tar(rng.choice(tars()), rng), 1)
    return mutated(data, rng)


def zips() -> Sequence[bytes]:
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


def read_tar(data: bytes, number: int) -> None:
    from sample_tars import Dribble

    source: Any = Dribble(data, 997) if number % 3 == 0 else data
    for found in iter_tar(source, max_member_bytes=MOST):
        assert found.size == len(found.data)
        assert isinstance(found.name, str)


def read_samples(data: bytes, number: int) -> None:
    for sample in tar_samples(data, duplicates="last", max_member_bytes=MOST):
        assert len(sample) > 3


def read_zip(data: bytes, number: int) -> None:
    source: Any = io.BytesIO(data) if number % 2 else data
    for found in iter_zip(source, max_member_bytes=MOST):
        assert found.size == len(found.data)


archive = functools.partial(Reader, error=ArchiveError, traced=24 << 20)
# A thousand times what these files hold; a size that is believed would be far more.
text = functools.partial(Reader, error=DecodeError, traced=48 << 20)

READERS: dict[str, Reader] = {
    "image": picture_reader("auto", "simplejpeg"),
    "image-simplejpeg": picture_reader("simplejpeg", "simplejpeg"),
    "image-pillow": picture_reader("pillow"),
    "image-cv2": picture_reader("cv2", "cv2"),
    "image-torchvision": picture_reader("torchvision", "torchvision"),
    "image-torchcodec": picture_reader("torchcodec", "torchcodec"),
    # libmpg123 says on stderr when it meets impossible values inside a frame whose form is right; there is no
    # way to stop it.
    "audio": Reader(
        files=sounds,
        read=read_sound,
        error=DecodeError,
        needs=("soundfile",),
        said=("libmpg123/layer3.c",),
    ),
    # FFmpeg allocates a few frames of the size that a header claims, up to the largest that it takes.
    "video": Reader(
        files=videos, read=read_video, error=DecodeError, needs=("av",), growth=600_000_000
    ),
    "video-torchcodec": Reader(
        files=videos,
        read=functools.partial(read_video, backend="torchcodec"),
        error=DecodeError,
        needs=("av", "torchcodec"),
        growth=600_000_000,
    ),
    "npy": text(files=npy_files, read=lambda data, number: load_npy(data)),
    "npz": text(files=npz_files, read=lambda data, number: load_npz(data)),
    "jsonl": text(files=jsonl_files, read=read_lines, needs=("zstandard",)),
    "parquet": Reader(
        files=parquet_files,
        read=read_rows,
        error=DecodeError,
        needs=("pyarrow",),
        growth=1 << 30,
    ),
    "tar": archive(files=tars, read=read_tar, damage=damaged_tar),
    "tar-packed": archive(
        files=packed_tars, read=read_tar, damage=damaged_packed, needs=("zstandard",)
    ),
    "tar-samples": archive(files=tars, read=read_samples, damage=damaged_tar),
    "zip": archive(files=zips, read=read_zip),
}
