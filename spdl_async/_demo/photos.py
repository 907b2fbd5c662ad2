"""Make the demo's own data set: JPEG photos as a real folder has them, damaged ones included.

The pictures are painted (`scenes`), so nothing has to be downloaded. They are made once and kept
in the user's cache folder.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spdl_async._limits import usable_cores

if TYPE_CHECKING:
    from PIL import Image

    from spdl_async._demo.scenes import Textures

VERSION = 1
"""Changes with the pictures, so that a data set of another version is not taken for this one."""

MARKER = ".spdl_async-photos.json"
"""A file in the folder that tells that the data set is complete, and which one it is."""

CLASSES = ("city", "coast", "desert", "forest", "meadow")
"""The sub-folders: the scenes that `scenes` can paint."""

KINDS = (
    *("plain", "grey", "progressive", "turned", "cmyk", "plain", "plain", "plain"),
    *("plain", "grey", "progressive", "turned", "plain", "plain", "plain", "plain"),
)
"""Kinds of JPEG, dealt in turn."""

SIZES = (
    *((500, 375),) * 4,
    *((640, 480),) * 3,
    *((800, 600),) * 2,
    (320, 240),
    (1024, 768),
    (1280, 960),
    (1600, 1200),
)
"""Widths and heights in pixels, dealt in turn; a third of the photos are upright.

Of classes, kinds, sizes and upright ones no two numbers (5, 16, 13, 3) have a common divisor, so
all combinations come up.
"""

DAMAGED = 2
"""How many of the files are damaged: the last ones."""

LEAST = 8
"""The smallest data set that has a file of each kind."""

_ABANDONED_AFTER = 3600.0
"""Seconds after which a half-made data set is that of a process that was killed."""


@dataclass(frozen=True, kw_only=True)
class Photo:
    """What one file of the data set is to be.

    Attributes:
        index: its number; with the seed it decides the picture.
        scene: its class, a key of `scenes.SCENES`.
        kind: one of `KINDS`, or ``truncated``, or ``not a picture``.
        width: of the upright picture, in pixels.
        height: of the upright picture, in pixels.
    """

    index: int
    scene: str
    kind: str
    width: int
    height: int

    @property
    def path(self) -> Path:
        """Where it lies, relative to the data set's folder."""
        return Path(self.scene, f"{self.index:04}.jpg")


def default_cache_folder() -> Path:
    """Return the folder in which the demo keeps its photos.

    It is below ``~/.cache`` (or ``$XDG_CACHE_HOME``), on macOS below ``~/Library/Caches``, on
    Windows below ``%LOCALAPPDATA%``. Nothing is created.
    """
    if sys.platform == "win32":
        given, usual = os.environ.get("LOCALAPPDATA"), Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        given, usual = None, Path.home() / "Library" / "Caches"
    else:
        given, usual = os.environ.get("XDG_CACHE_HOME"), Path.home() / ".cache"
    # A relative path is to be ignored, says the XDG base directory specification.
    cache = Path(given) if given and os.path.isabs(given) else usual
    return cache / "spdl_async" / f"photos-v{VERSION}"


def make_photos(
    folder: str | os.PathLike[str],
    *,
    count: int = 512,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Make a data set of JPEG photos, unless it is there already.

    The classes are sub-folders: ``city``, ``coast``, ``desert``, ``forest``, ``meadow``. Of each
    16 files 2 are grey, 2 progressive, 2 turned by their EXIF orientation and 1 is CMYK. The
    last two are damaged: one ends too early, one is a web page.

    The files are written to a folder beside ``folder`` that takes its name when they are
    complete: after an interruption there is no half data set, and of several processes that
    make it at once the first one wins.

    Args:
        folder: the data set's own folder; it is created, with the folders above it.
        count: how many files, at least 8.
        seed: which pictures: the same seed gives the same ones.
        progress: called with (files done, count) after each file, in the calling thread.

    Returns:
        ``folder``, as a path.

    Raises:
        ValueError: ``count`` is less than 8.
        FileExistsError: ``folder`` holds something else.
        ImportError: Pillow is not installed.
    """
    if count < LEAST:
        raise ValueError(
            f"count must be at least {LEAST}, to have a file of each kind; got {count}"
        )
    target = Path(folder)
    identity = {"version": VERSION, "count": count, "seed": seed}
    if _is_complete(target, identity):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target)
    draft = target.with_name(f".{target.name}.draft-{secrets.token_hex(6)}")
    draft.mkdir()
    try:
        _write_all(draft, list(plan_photos(count)), seed, progress)
        (draft / MARKER).write_text(json.dumps(identity), encoding="utf-8")
        _publish(draft, target, identity)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def plan_photos(count: int) -> Iterator[Photo]:
    """Yield what a data set of ``count`` files consists of."""
    for index in range(count):
        width, height = SIZES[index % len(SIZES)]
        if 320 < width < 1600:  # sides that are no multiples of JPEG's blocks
            width, height = width - index % 11, height - index % 7
        if index % 3 == 2:
            width, height = height, width
        kind = KINDS[index % len(KINDS)]
        if index >= count - DAMAGED:
            kind = "truncated" if index == count - 1 else "not a picture"
        scene = CLASSES[index % len(CLASSES)]
        yield Photo(index=index, scene=scene, kind=kind, width=width, height=height)


def _write_all(
    folder: Path,
    photos: list[Photo],
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    try:
        import numpy as np

        from spdl_async._demo.scenes import make_textures
    except ImportError as error:
        raise ImportError(
            f"the demo's photos are made with Pillow ({error}): "
            f"pip install 'spdl-async[image]', or give a folder of pictures",
            name=error.name,
        ) from error
    textures = make_textures(np.random.default_rng(seed))
    for scene in CLASSES:
        (folder / scene).mkdir()
    write = partial(_write, folder, textures, seed)
    pool = ThreadPoolExecutor(usable_cores(), thread_name_prefix="spdl_async-photos")
    try:
        for done, _ in enumerate(pool.map(write, photos), 1):
            if progress is not None:
                progress(done, len(photos))
    finally:
        pool.shutdown(cancel_futures=True)


def _write(folder: Path, textures: Textures, seed: int, photo: Photo) -> None:
    (folder / photo.path).write_bytes(_encode(photo, textures, seed))


def _encode(photo: Photo, textures: Textures, seed: int) -> bytes:
    """Paint one photo and encode it as what it is to be."""
    import numpy as np

    from spdl_async._demo.scenes import paint

    if photo.kind == "not a picture":
        return b"<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head></html>\n"
    rng = np.random.default_rng([seed, photo.index])
    picture = paint(photo.scene, photo.height, photo.width, textures, rng)
    quality = int(rng.integers(82, 95))
    if photo.kind == "truncated":
        data = _jpeg(picture, quality)
        return data[: len(data) * 6 // 10]
    if photo.kind == "turned":
        return _turned_jpeg(picture, quality, orientation=int(rng.integers(2, 9)))
    if photo.kind in ("grey", "cmyk"):
        picture = picture.convert("L" if photo.kind == "grey" else "CMYK")
    return _jpeg(picture, quality, progressive=photo.kind == "progressive")


def _turned_jpeg(picture: Image.Image, quality: int, orientation: int) -> bytes:
    """Store a picture so that only its EXIF orientation makes it upright again."""
    from PIL import ExifTags
    from PIL.Image import Exif, Transpose

    stored_as = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_90,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_270,
    }
    exif = Exif()
    exif[ExifTags.Base.Orientation] = orientation
    exif[ExifTags.Base.Make] = "spdl_async"
    return _jpeg(picture.transpose(stored_as[orientation]), quality, exif=exif)


def _jpeg(picture: Image.Image, quality: int, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, **options)
    return file.getvalue()


def _is_complete(folder: Path, identity: dict[str, int]) -> bool:
    """Tell whether the folder is this data set; False where nothing is in the way.

    Raises:
        FileExistsError: the folder is something else.
    """
    try:
        found = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        found = None
    if found == identity:
        return True
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    what = "another data set of this kind" if found else "something else"
    raise FileExistsError(
        f"{folder} is there already and holds {what} ({found or 'no ' + MARKER} instead of "
        f"{identity}): choose another folder, or remove this one"
    )


def _publish(draft: Path, target: Path, identity: dict[str, int]) -> None:
    """Give the complete data set its name, unless another process was faster."""
    try:
        target.rmdir()  # an empty folder: Windows does not rename over one
    except OSError:
        pass
    try:
        draft.rename(target)
    except OSError:
        if not _is_complete(target, identity):
            raise


def _remove_abandoned(target: Path) -> None:
    """Remove what killed processes have left behind, but nothing that may be in use."""
    for draft in target.parent.glob(f".{target.name}.draft-*"):
        try:
            age = time.time() - draft.stat().st_mtime
        except OSError:  # another process was faster
            continue
        if age > _ABANDONED_AFTER:
            shutil.rmtree(draft, ignore_errors=True)
