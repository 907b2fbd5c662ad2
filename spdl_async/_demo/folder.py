"""Find the pictures below a folder, and the class of each.

Nothing is opened here: a file counts as a picture when its name ends as pictures do. Whether it
is one turns out where it is decoded, in a thread of the pipeline, and there it is skipped and
counted if it is not.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from spdl_async._demo.errors import UsageError

LOOSE = "(loose)"
"""The class of pictures that lie beside the class folders instead of in one."""


class Picture(NamedTuple):
    """One picture file and the number of its class."""

    path: str
    label: int


@dataclass(frozen=True, kw_only=True)
class PictureFolder:
    """The pictures below a folder.

    Attributes:
        root: the folder.
        pictures: its pictures, in the order of their paths.
        classes: the names of the classes; ``Picture.label`` is an index into it.
        problems: folders that could not be listed, one sentence each.
    """

    root: Path
    pictures: tuple[Picture, ...]
    classes: tuple[str, ...]
    problems: tuple[str, ...] = ()


def find_pictures(root: Path) -> PictureFolder:
    """List every picture below ``root``; sub-folders are classes.

    Pictures are files with an extension that Pillow can open, whatever is in them. Hidden files
    and folders are left out. The first folder in which the paths differ gives the class, so
    ``root/cat/1.jpg`` and ``root/dog/a/1.jpg`` are of the classes ``cat`` and ``dog``, and so
    they are with ``root/train/`` in front. Without sub-folders there is one class.

    Raises:
        UsageError: ``root`` does not exist, is no folder, or holds no picture.
    """
    check_folder(root)
    problems: list[str] = []
    others: Counter[str] = Counter()
    found = sorted(_walk(root, picture_extensions(), problems, others))
    if not found:
        reason = f" ({problems[0]})" if problems else ""
        raise UsageError(
            f"no picture in {str(root)!r}, nor in the folders below it{reason}; pictures are files "
            f"with the endings that Pillow opens, as .jpg, .png, .webp or .tif; {_what_else(others)}"
        )
    names = class_names(path.relative_to(root).parent.parts for path in found)
    classes = tuple(sorted(set(names)))
    number = {name: label for label, name in enumerate(classes)}
    pictures = tuple(
        Picture(str(path), number[name]) for path, name in zip(found, names, strict=True)
    )
    return PictureFolder(root=root, pictures=pictures, classes=classes, problems=tuple(problems))


def check_folder(root: Path) -> None:
    """Look whether ``root`` is a folder.

    Raises:
        UsageError: it does not exist or is something else.
    """
    if not root.exists():
        raise UsageError(f"there is no folder {str(root)!r}")
    if not root.is_dir():
        raise UsageError(f"{str(root)!r} is not a folder; give the one that the pictures are in")


def class_names(parents: Iterator[tuple[str, ...]]) -> list[str]:
    """Name the class of each picture from the folders between the root and the file.

    >>> class_names(iter([("train", "cat"), ("train", "dog", "a"), ("train",)]))
    ['cat', 'dog', '(loose)']
    """
    folders = list(parents)
    levels = zip(*folders, strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda level: len(set(level)) == 1, levels))
    return [parts[shared] if len(parts) > shared else LOOSE for parts in folders]


def picture_extensions() -> frozenset[str]:
    """Return the file extensions, lower case with the dot, that Pillow can open."""
    from PIL import Image

    known = Image.registered_extensions()
    # Pillow registers no opener for MPO (several JPEGs in one file): its JPEG opener takes it.
    return frozenset(ext for ext, kind in known.items() if kind in Image.OPEN or kind == "MPO")


def _what_else(others: Counter[str]) -> str:
    """Say which other files there are, by their endings."""
    count = others.total()
    if not count:
        return "there is no other file either"
    endings = ", ".join(ending or "without an ending" for ending, _ in others.most_common(3))
    return f"there {'is 1 other file' if count == 1 else f'are {count:,} other files'} ({endings})"


def _walk(
    root: Path, extensions: frozenset[str], problems: list[str], others: Counter[str]
) -> Iterator[Path]:
    """Yield picture files below ``root``, through links too, each real folder once.

    Folders that cannot be listed go into ``problems``, the endings of other files into ``others``.
    """

    def note(error: OSError) -> None:
        problems.append(f"cannot list {error.filename}: {error.strerror}")

    seen: set[tuple[int, int]] = set()
    for folder, subfolders, files in os.walk(root, onerror=note, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            subfolders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in files:
            ending = os.path.splitext(name)[1].lower()
            if name.startswith("."):
                continue
            if ending in extensions:
                yield Path(folder, name)
            else:
                others[ending] += 1
