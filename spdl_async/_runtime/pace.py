"""How many items a stage holds: few where items are slow, more where hand-overs would dominate.

By Little's law a place that holds W items and passes on r of them a second delays each by W / r
seconds. The window of a fast stage is what it passes on in ``COVER_SECONDS``: enough to make each
wake-up carry many items, and small again as soon as the stages below slow down, whatever the speed
of the stage itself. Slow stages keep their floor.
"""

from __future__ import annotations

from time import perf_counter as clock

COVER_SECONDS = 0.008
LOOK_SECONDS = 0.001
SLICE_SECONDS = 0.001  # a task of the loop that has not waited for so long lets others run


class Pace:
    """Sizes one window between ``floor`` and ``ceiling``.

    Attributes:
        window: the present size.
        least: how much room is worth asking the stage above for.
    """

    __slots__ = ("_count", "_looked", "ceiling", "floor", "least", "window")

    def __init__(self, floor: int, ceiling: int) -> None:
        self.floor = floor
        self.ceiling = ceiling
        self.window = floor
        self.least = 1
        self._count = 0
        self._looked = clock()

    def look(self, passed_on: int, quick: bool) -> bool:
        """Fit the window to the number of items passed on in sum; return whether it changed."""
        now = clock()
        spent = now - self._looked
        if spent < LOOK_SECONDS:
            return False
        rate = (passed_on - self._count) / spent
        self._count = passed_on
        self._looked = now
        wanted = int(rate * COVER_SECONDS) if quick else self.floor
        window = max(self.floor, min(self.ceiling, wanted))
        # A single look may fall into a pause: shrink step by step.
        window = max(window, self.window // 2)
        if not quick:
            window = self.floor
        changed = window != self.window
        self.window = window
        # What is not asked for yet must not keep a stage whose ops turn slow from its floor.
        self.least = max(1, min(window // 2, window - self.floor)) if quick else 1
        return changed
