"""Geometry: what part of a picture is resized, to what size, and where it is put."""

from __future__ import annotations

import operator
from typing import Literal

Fit = Literal["stretch", "cover", "contain"]
Pair = tuple[int, int]


def as_height_width(size: int | Pair, limit: int) -> Pair:
    """Check ``size`` and return it as (height, width).

    Args:
        size: a number of pixels, or a pair.
        limit: the most pixels that are made of one picture.

    Raises:
        TypeError: it is neither a whole number nor a pair of them.
        ValueError: a side is smaller than 1, or there are too many pixels.
    """
    try:
        if isinstance(size, tuple | list):
            height, width = (operator.index(side) for side in size)
        else:
            height = width = operator.index(size)
    except (TypeError, ValueError):
        raise TypeError(
            f"size must be None, a number of pixels, or a pair (height, width), not {size!r}"
        ) from None
    if height < 1 or width < 1:
        raise ValueError(f"size must be at least 1 pixel along each side, not {size!r}")
    if height * width > limit:
        raise ValueError(
            f"size={size!r} asks for {height * width:,} pixels, and at most {limit:,} are made of a picture"
        )
    return height, width


def cropped(picture: Pair, size: Pair, fit: Fit) -> Pair:
    """Return (height, width) of the part in the middle of ``picture`` that is kept.

    All of it, unless it is to cover ``size``: then the largest part, in whole pixels, that has the
    aspect ratio of ``size``.
    """
    height, width = picture
    if fit != "cover":
        return picture
    if width * size[0] > height * size[1]:
        return height, max(1, round(height * size[1] / size[0]))
    return max(1, round(width * size[0] / size[1])), width


def inner(picture: Pair, size: Pair, fit: Fit) -> Pair:
    """Return the (height, width) that the kept part is resized to.

    ``size``, unless the picture is to be contained in it: then the largest size in it that has the
    picture's aspect ratio, to the nearest pixel.
    """
    height, width = picture
    if fit != "contain":
        return size
    if width * size[0] > height * size[1]:
        return max(1, round(height * size[1] / width)), size[1]
    return size[0], max(1, round(width * size[0] / height))


def margin(outer: Pair, part: Pair) -> Pair:
    """Return (top, left) of a part in the middle; of halves, Pillow takes the even pixel too."""
    return round((outer[0] - part[0]) / 2), round((outer[1] - part[1]) / 2)
