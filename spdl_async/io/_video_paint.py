"""From decoded frames to upright RGB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spdl_async.io._extras import need

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TURNS = {
    (1, 0, 0, 1): (0, False),
    (0, -1, 1, 0): (1, False),
    (-1, 0, 0, -1): (2, False),
    (0, 1, -1, 0): (3, False),
    (-1, 0, 0, 1): (0, True),
    (0, 1, 1, 0): (1, True),
    (1, 0, 0, -1): (2, True),
    (0, -1, -1, 0): (3, True),
}
"""Signs of a, b, c, d of a display matrix: quarter turns counterclockwise, after a mirror or not."""


class Painter:
    """Turns the frames of one video into upright RGB of one size.

    Args:
        first: a frame of the video; it says how all of them are turned, and their size.
        size: the wanted (height, width), None for the video's own.

    Attributes:
        shape: (height, width) of what is painted.
        turns: quarter turns counterclockwise that make a frame upright.
        mirrored: whether it is mirrored from left to right before.
    """

    def __init__(self, first: Any, size: tuple[int, int] | None) -> None:
        self.turns, self.mirrored = _upright(first)
        sides = (first.height, first.width)
        self.shape = size or (sides[::-1] if self.turns % 2 else sides)
        # One for all frames: it keeps the scaler that it has set up.
        self._reformatter: Any = need("av.video.reformatter", "video").VideoReformatter()

    def paint(self, frame: Any, out: NDArray[np.uint8]) -> None:
        """Write a frame into ``out`` of shape (height, width, 3)."""
        height, width = self.shape[::-1] if self.turns % 2 else self.shape
        rgb = self._reformatter.reformat(
            frame, width=width, height=height, format="rgb24", threads=1
        )
        pixels = rgb.to_ndarray()
        if self.mirrored:
            pixels = pixels[:, ::-1]
        out[...] = np.rot90(pixels, self.turns) if self.turns else pixels


def _upright(frame: Any) -> tuple[int, bool]:
    """Return how a frame is to be turned: quarters counterclockwise, and mirrored before or not.

    The display matrix (ISO/IEC 14496-12, 6.2.2) takes a point (x, y) of the stored picture, with y
    downwards, to (a x + c y, b x + d y). Frames with another matrix than the eight of quarter
    turns and mirrors are left as they are stored.
    """
    # PyAV's side data and its frame refer to each other, so they stay until the next collection:
    # a small copy, not the frame.
    small = frame.reformat(width=16, height=16, format="rgb24", threads=1)
    data = small.side_data.get("DISPLAYMATRIX")
    if data is None or data.buffer_size < 36:
        return 0, False
    matrix = np.frombuffer(bytes(data)[:36], np.int32)
    a, b, c, d = (int(np.sign(matrix[at])) for at in (0, 1, 3, 4))
    return _TURNS.get((a, b, c, d), (0, False))
