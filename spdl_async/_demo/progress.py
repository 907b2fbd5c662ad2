"""A progress bar for batches: one line that is rewritten on a terminal, else a line now and then.

Other than the usual bars it counts two things, batches (the steps of training) and items (what
the pipeline's speed is measured in), and its speed is that of the last seconds, so that a
pipeline that slows down is seen to.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TextIO

RECENT_SECONDS = 5.0
"""The span over which the speed is measured: steadier than one batch, fresher than the whole."""

REDRAW_SECONDS = 0.1
"""How often a terminal's line is rewritten at most."""

LOG_SECONDS = 2.0
"""How often a line is written where nothing can be rewritten: a file, a pipe, a CI log."""

BAR_WIDTH = 24


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one line of progress says.

    Attributes:
        label: what goes on, such as ``epoch 1/2``.
        batches: batches done.
        total: batches expected, or None where the length is unknown.
        items: items in those batches.
        unit: what is counted where it is not batches of items, such as ``photos``; else None.
        items_per_s: the recent speed, or None before it can be known.
        seconds_left: the time left at that speed, or None where it is unknown.
    """

    label: str
    batches: int
    total: int | None
    items: int
    unit: str | None
    items_per_s: float | None
    seconds_left: float | None


def format_duration(seconds: float) -> str:
    """Write whole seconds as a clock does.

    >>> format_duration(7.4), format_duration(83), format_duration(3725)
    ('0:07', '1:23', '1:02:05')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def format_speed(items_per_s: float | None, unit: str = "items") -> str:
    """Write a speed with the digits that mean something.

    >>> format_speed(1234.5), format_speed(3.21), format_speed(None)
    ('1,234 items/s', '3.2 items/s', '? items/s')
    """
    if items_per_s is None:
        return f"? {unit}/s"
    digits = 0 if items_per_s >= 10 else 1
    return f"{items_per_s:,.{digits}f} {unit}/s"


def format_bar(fraction: float, width: int = BAR_WIDTH) -> str:
    """Draw how much is done, ``width`` characters wide.

    >>> format_bar(0.5, 8)
    '████░░░░'
    """
    full = int(min(max(fraction, 0.0), 1.0) * width)
    return "█" * full + "░" * (width - full)


def format_line(now: Snapshot, *, width: int) -> str:
    """Write a snapshot in at most ``width`` characters; the bar is the first thing to go."""
    done = f"{now.batches:,}" if now.total is None else f"{now.batches:,}/{now.total:,}"
    if now.unit is None:
        parts = [f"{done} batches", f"{now.items:,} items", format_speed(now.items_per_s)]
    else:
        parts = [f"{done} {now.unit}", format_speed(now.items_per_s, now.unit)]
    if now.seconds_left is not None:
        parts.append(f"{format_duration(now.seconds_left)} left")
    text = "  ".join([now.label, *parts])
    if now.total:
        with_bar = "  ".join([now.label, format_bar(now.batches / now.total), *parts])
        text = with_bar if len(with_bar) <= width else text
    return text[:width]


class ProgressBar:
    """Show the progress of one epoch while its batches are consumed.

    ::

        with ProgressBar("epoch 1/2", total=16) as bar:
            for images, labels in run:
                train(images, labels)
                bar.update(len(labels))
            bar.finish("loss 1.23")

    Args:
        label: what goes on; the line begins with it.
        total: batches expected, or None where the pipeline has no length.
        unit: what is counted where it is not batches of items, such as ``photos``.
        stream: where to write; standard error unless given, as results go to standard output.
        live: rewrite one line (True) or write a new one now and then (False); None looks whether
            the stream is a terminal that can.
        clock: seconds that never run backwards; tests give their own.
    """

    def __init__(
        self,
        label: str,
        *,
        total: int | None,
        unit: str | None = None,
        stream: TextIO | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._total = total
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._live = _can_rewrite(self._stream) if live is None else live
        self._clock = clock
        self._batches = 0
        self._items = 0
        self._closed = False
        self._started = clock()
        self._shown = self._started
        self._recent: deque[tuple[float, int, int]] = deque([(self._started, 0, 0)])

    def __enter__(self) -> Self:
        self._started = self._shown = self._clock()
        self._recent = deque([(self._started, 0, 0)])
        if self._live:
            self._show()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.abandon()

    def update(self, items: int) -> None:
        """Count one more batch, of ``items`` items; shows it if it is time to."""
        now = self._clock()
        self._batches += 1
        self._items += items
        self._recent.append((now, self._batches, self._items))
        while len(self._recent) > 2 and self._recent[1][0] <= now - RECENT_SECONDS:
            self._recent.popleft()
        if now - self._shown >= (REDRAW_SECONDS if self._live else LOG_SECONDS):
            self._shown = now
            self._show()

    def snapshot(self) -> Snapshot:
        """Return what the line says now."""
        then, batches_then, items_then = self._recent[0]
        seconds = self._recent[-1][0] - then
        speed = left = None
        if seconds > 0:
            speed = (self._items - items_then) / seconds
            batch_speed = (self._batches - batches_then) / seconds
            if self._total is not None and batch_speed > 0:
                left = max(self._total - self._batches, 0) / batch_speed
        return Snapshot(
            label=self._label,
            batches=self._batches,
            total=self._total,
            items=self._items,
            unit=self._unit,
            items_per_s=speed,
            seconds_left=left,
        )

    def finish(self, note: str = "") -> None:
        """Write the last line: what was done, at which speed over the whole, and ``note``."""
        if self._closed:
            return
        self._closed = True
        seconds = self._clock() - self._started
        speed = self._items / seconds if seconds > 0 else None
        if self._unit is None:
            batches = _count(self._batches, "batch", "batches")
            done = f"{batches}  {_count(self._items, 'item', 'items')}"
        else:
            done = f"{self._batches:,} {self._unit}"
        parts = [
            self._label,
            done,
            format_speed(speed, self._unit or "items"),
            f"in {seconds:.1f} s",
        ]
        line = "  ".join([*parts, note] if note else parts)
        self._write(f"\r\x1b[K{line}\n" if self._live else f"{line}\n")

    def abandon(self) -> None:
        """Stop showing progress, as after an error; what is written next begins a line."""
        if not self._closed and self._live:
            self._write("\n")
        self._closed = True

    def _show(self) -> None:
        # The last column is left free: a full line would make some terminals wrap.
        width = shutil.get_terminal_size().columns - 1 if self._live else 1_000
        line = format_line(self.snapshot(), width=width)
        self._write(f"\r\x1b[K{line}" if self._live else f"{line}\n")

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            plain = text.translate(str.maketrans("█░", "#."))
            text = plain.encode(encoding, "replace").decode(encoding)
        self._stream.write(text)
        self._stream.flush()


def _can_rewrite(stream: TextIO) -> bool:
    """Tell whether a line on this stream can be rewritten: a terminal that is not ``dumb``."""
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
