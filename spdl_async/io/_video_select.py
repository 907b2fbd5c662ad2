"""Which frames of a video are wanted: what the caller says, and what it means for one video."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spdl_async.io._fit import as_height_width
from spdl_async.io._picture import MOST_PIXELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_TICKS = 1 << 24
"""Frames to draw from one video: a damaged time stamp makes a video of centuries."""

_SLACK = 1e-6
"""Seconds by which a time may miss a frame's: 0.1 as a float is no exact tenth."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the caller asked for, checked.

    Times are seconds from the presentation of the first frame that is shown.
    """

    indices: tuple[int, ...] | None = None
    every: int | None = None
    fps: float | None = None
    start: float | None = None
    end: float | None = None

    def __post_init__(self) -> None:
        others = [n for n in ("every", "fps", "start", "end") if getattr(self, n) is not None]
        if self.indices is not None:
            if others:
                raise ValueError(f"indices says which frames; {others[0]} cannot be given too")
            if not self.indices:
                raise ValueError("indices is empty: give at least one, or None for all frames")
        if self.every is not None and self.fps is not None:
            raise ValueError("give every or fps, not both")
        for name in ("fps", "start", "end"):
            value = getattr(self, name)
            try:
                math.isfinite(0.0 if value is None else value)
            except TypeError:
                raise TypeError(f"{name} must be a number, not {value!r}") from None
        if self.every is not None and self.every < 1:
            raise ValueError(f"every must be at least 1, not {self.every}")
        if self.fps is not None and not (math.isfinite(self.fps) and self.fps > 0):
            raise ValueError(f"fps must be a finite number of frames a second > 0, not {self.fps}")
        for name in ("start", "end"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number of seconds >= 0, not {value}")
        if self.end is not None and self.end <= (self.start or 0.0):
            raise ValueError(f"end={self.end} must be later than start={self.start or 0.0}")

    def among(self, times: NDArray[np.float64], duration: float) -> list[int]:
        """Return the positions of the wanted frames, by presentation, in the order asked for.

        Args:
            times: when each frame is shown, ascending from 0, seconds.
            duration: when the last one is over.

        Raises:
            IndexError: an index is out of range; the message has the number of frames.
            ValueError: no frame lies between ``start`` and ``end``.
        """
        count = len(times)
        if self.indices is not None:
            for index in self.indices:
                if not 0 <= index < count:
                    raise IndexError(
                        f"index {index} is out of range: the video has {count:,} frames, "
                        f"0 to {count - 1}"
                    )
            return list(self.indices)
        start = self.start or 0.0
        end = duration if self.end is None else min(self.end, duration)
        if start > 0 and start >= duration - _SLACK:
            raise ValueError(
                f"start={start} s lies behind the end: the video is {duration:.3f} s long"
            )
        if self.fps is not None:
            return _at_rate(times, start, end, self.fps)
        first = int(np.searchsorted(times, start - _SLACK))
        stop = count if self.end is None else int(np.searchsorted(times, end - _SLACK))
        if first == stop:
            until = "the end" if self.end is None else f"end={self.end} s"
            raise ValueError(
                f"no frame is shown first between start={start} s and {until}: frames "
                f"come every {duration / count:.3f} s; fps= takes what is on the screen"
            )
        return list(range(first, stop, self.every or 1))

    def ends_before(self, present: float) -> bool:
        """Tell whether nothing is wanted of what comes after the first ``present`` seconds."""
        return self.indices is not None or (self.end is not None and self.end <= present)


def _at_rate(times: NDArray[np.float64], start: float, end: float, fps: float) -> list[int]:
    """Return, for each tick of ``fps`` from ``start`` on, the frame that is on the screen."""
    ticks = max(1, math.ceil((end - start) * fps - _SLACK))
    if ticks > _MOST_TICKS:
        raise ValueError(f"fps={fps} gives {ticks:,} frames from {start:.3f} s to {end:.3f} s")
    moments = start + np.arange(ticks) / fps
    shown = np.searchsorted(times, moments + _SLACK, side="right") - 1
    return [int(index) for index in np.maximum(shown, 0)]


def selection(
    *,
    indices: Sequence[int] | None = None,
    every: int | None = None,
    fps: float | None = None,
    start: float | None = None,
    end: float | None = None,
) -> Selection:
    """Check types and make a `Selection`.

    Raises:
        TypeError: an index or ``every`` is no whole number.
        ValueError: a number is out of range, or two arguments contradict each other.
    """
    try:
        wanted = None if indices is None else tuple(operator.index(each) for each in indices)
        step = None if every is None else operator.index(every)
    except TypeError:
        raise TypeError(
            f"indices must be whole numbers, and every one: not {indices!r}, {every!r}"
        ) from None
    return Selection(indices=wanted, every=step, fps=fps, start=start, end=end)


def height_width(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Check ``size`` and return it as (height, width) in pixels."""
    return None if size is None else as_height_width(size, MOST_PIXELS)
