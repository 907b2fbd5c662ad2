"""Frozen snapshots of a run: what each stage did, what failed, and which stage is the bottleneck."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol, Self

NO_NOTES: Final[Mapping[str, object]] = MappingProxyType({})

SHORT_SECONDS = 0.2
"""Runs below this are mostly their own start: what the table says of them says little."""

NO_ITEMS = "The source had no items."

FULL = 0.8
"""The share of its calls that a stage has to have running before a higher concurrency can help."""


@dataclass(frozen=True, kw_only=True)
class FailureRecord:
    """One failure of user code, as text: it keeps no exception, frame or tensor alive.

    Attributes:
        stage: the stage's name.
        index: index of the source item, from 0; -1 where no item is concerned.
        path: ordinals below each 1→n stage.
        source: short text of the source item when it is small, else of its type.
        error: qualified name of the exception's type.
        message: the exception's message.
        where: ``file:line`` of the innermost frame.
        traceback: the whole formatted traceback.
        attempts: how often the op was tried.
    """

    stage: str
    index: int
    path: tuple[int, ...]
    source: str
    error: str
    message: str
    where: str
    traceback: str
    attempts: int = 1

    def summary(self) -> str:
        """Return one line: stage, item, exception."""
        text = f"{self.error}: {self.message}" if self.message else self.error
        if self.index < 0:
            return f"stage {self.stage!r}: {text}"
        path = "".join(f".{k}" for k in self.path)
        source = f" ({self.source})" if self.source else ""
        return f"stage {self.stage!r}, item {self.index}{path}{source}: {text}"


class TextFile(Protocol):
    """An open text file, as far as it is written to."""

    def write(self, text: str, /) -> object: ...


class Failures(tuple[FailureRecord, ...]):
    """The failures of a run: an immutable sequence of records, at most the first 1,000.

    >>> from spdl_async import PipelineBuilder
    >>> texts = PipelineBuilder().add_source(["1", "x"])
    >>> with texts.pipe(int, on_error="skip").build().run_sync() as run:
    ...     numbers = list(run)
    >>> run.failures.total, run.failures[0].source
    (1, "'x'")
    """

    _total: int

    def __new__(cls, records: Iterable[FailureRecord] = (), total: int | None = None) -> Self:
        made = super().__new__(cls, records)
        made._total = len(made) if total is None else total
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self), self._total

    @property
    def total(self) -> int:
        """How many failures there were, those included that are not written out."""
        return self._total

    def to_jsonl(self, file: str | os.PathLike[str] | TextFile) -> None:
        """Write one JSON object a line, in UTF-8: the attributes of :class:`FailureRecord`.

        Args:
            file: a path, whose file is overwritten, or an open text file, which is left open.

        Raises:
            OSError: the file cannot be written.
        """
        if isinstance(file, (str, os.PathLike)):
            with open(file, "w", encoding="utf-8", newline="\n") as opened:
                self.to_jsonl(opened)
            return
        for record in self:
            line = json.dumps(dataclasses.asdict(record), ensure_ascii=False)
            # File names may hold lone surrogates (PEP 383), which JSON can write as escapes.
            file.write(line.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")


@dataclass(frozen=True, kw_only=True)
class StageStatistics:
    """What one stage did so far.

    Attributes:
        name: the stage's name.
        kind: ``source``, ``thread``, ``async``, ``generator``, ``batch``, … .
        concurrency: the most ops that run at once.
        items_in: items accepted.
        items_out: items handed on.
        dropped: items that ended here: a filter, ``DROP``, ``skip``, ``drop_last``, an aggregator's
            or a merge's rest.
        failed: items on which the op failed.
        busy: seconds in user code, summed over the concurrent calls.
        waiting_input: seconds in which the stage had nothing to do.
        waiting_room: seconds in which finished items waited for room below.
        queue: items that the stage holds now.
        peak_queue: the most that it held.
        notes: what the stage has to say besides: an aggregator's own ``statistics()``, and what ops
            say by `tally` and `note`, which goes first where both use a name.
        retried: calls that failed and were made again.
        abandoned: calls in threads that were left to themselves when their time was over.
        bytes_held: estimated bytes of the values that the stage holds now; 0 without ``max_bytes``.
        peak_bytes: the most that it held.
    """

    name: str
    kind: str
    concurrency: int
    items_in: int
    items_out: int
    dropped: int
    failed: int
    busy: float
    waiting_input: float
    waiting_room: float
    queue: int
    peak_queue: int
    notes: Mapping[str, object] = field(default_factory=lambda: NO_NOTES)
    retried: int = 0
    abandoned: int = 0
    bytes_held: int = 0
    peak_bytes: int = 0

    def utilization(self, elapsed: float) -> float:
        """Return how fully the stage was used, 0 to 1.

        That is the time in user code over ``elapsed`` × concurrency; of a thread stage over
        ``elapsed`` × cores, where it has more threads than there are cores.
        """
        if elapsed <= 0:
            return 0.0
        slots = self.concurrency
        if self.kind in ("thread", "generator"):
            slots = min(slots, _cores())  # more threads than cores is no more capacity
        return min(1.0, self.busy / (elapsed * slots))


@dataclass(frozen=True, kw_only=True)
class ByteStatistics:
    """The estimated bytes of all values in flight, under ``build(max_bytes=)``.

    Attributes:
        held: bytes held now, by the stages and by what waits for the consumer.
        in_sink: bytes of the results that wait for the consumer now.
        peak: the most that were held.
        limit: the budget.
        overdrawn: how often something was begun although the budget was spent, because nothing else
            could go on: for an item larger than the budget, or to fill a batch.
    """

    held: int
    in_sink: int
    peak: int
    limit: int
    overdrawn: int


@dataclass(frozen=True, kw_only=True)
class RunStatistics:
    """A snapshot of a run; ``str()`` gives the table and the sentence on the bottleneck.

    Attributes:
        name: the pipeline's name.
        epoch: number of the pass.
        elapsed: seconds since the run started, up to its end.
        stages: one entry a stage, in order, the source first.
        delivered: results that the consumer has taken.
        consumer_waiting: seconds in which the consumer waited for a result.
        in_flight: source items that are read and not yet delivered or dropped.
        peak_in_flight: the most of these seen.
        failures: number of failures of user code.
        threads: size of the thread pool.
        ended: whether the consumer has come to the end of the data; not so where the run failed or
            was left before.
        bytes: what is held under ``build(max_bytes=)``; ``None`` without it.
    """

    name: str
    epoch: int
    elapsed: float
    stages: Sequence[StageStatistics]
    delivered: int
    consumer_waiting: float
    in_flight: int
    peak_in_flight: int
    failures: int
    threads: int
    ended: bool = False
    bytes: ByteStatistics | None = None

    @property
    def consumer_busy(self) -> float:
        """The share of the time in which the consumer did not wait for us, 0 to 1."""
        if self.elapsed <= 0:
            return 0.0
        return max(0.0, 1.0 - self.consumer_waiting / self.elapsed)

    def stage(self, name: str) -> StageStatistics:
        """Return one stage's statistics.

        Raises:
            KeyError: there is no stage of that name; the message lists those there are.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(f"no stage {name!r}; there are {[s.name for s in self.stages]}")

    def bottleneck(self) -> str:
        """Say in a sentence what limits the rate."""
        if self.ended and not self.delivered:
            return why_nothing(self.stages)
        if not self.delivered or self.elapsed <= 0:
            return "Nothing was delivered, so there is no bottleneck to name."
        sentence = self._limit()
        if self.elapsed < SHORT_SECONDS:
            sentence += f" (A run of {self.elapsed:.2f} s is too short to say much.)"
        return sentence

    def _limit(self) -> str:
        if self.consumer_busy >= 0.9:
            wait = self.consumer_waiting / self.delivered * 1e3
            return (
                f"The consumer (your loop) is the bottleneck: results wait for it; it waits "
                f"{wait:.2f} ms for one, on average."
            )
        busiest = max(self.stages, key=lambda s: (s.utilization(self.elapsed), s.busy))
        share = busiest.utilization(self.elapsed)
        in_threads = [s for s in self.stages if s.kind in ("thread", "generator", "aggregator")]
        pool_share = sum(s.busy for s in in_threads) / (self.elapsed * max(1, self.threads))
        if pool_share >= 0.8 and pool_share > share:
            most = max(in_threads, key=lambda s: s.busy)
            return (
                f"The thread pool is the bottleneck: its {self.threads} threads are "
                f"{min(1.0, pool_share):.0%} busy, most of all with {most.name!r}; a larger "
                f"num_threads helps where there are idle cores."
            )
        if busiest.kind == "source" and share >= 0.5:
            return f"The source is the bottleneck: it is busy {share:.0%} of the time."
        if busiest.kind == "copy" and share >= 0.5:
            return (
                f"Stage {busiest.name!r} is the bottleneck: it copies {share:.0%} of the time; smaller "
                f"dtypes, such as uint8 pictures that become floats on the device, are less to copy."
            )
        if share >= 0.5:
            running = busiest.busy / self.elapsed
            slots = f"{running:.1f} of {busiest.concurrency} calls running"
            advice = (
                "a higher concurrency helps where there are idle cores or it waits for I/O."
                if running >= FULL * busiest.concurrency
                else "it does not use the concurrency that it has, so more of it would not help."
            )
            return f"Stage {busiest.name!r} is the bottleneck: {slots}; {advice}"
        if self.consumer_busy >= 0.5:
            return (
                f"The consumer is the bottleneck: it is busy {self.consumer_busy:.0%} of the time."
            )
        return (
            f"No stage is busy all the time; {busiest.name!r} is the busiest ({share:.0%}). Small "
            f"items or few of them: larger batches or items cost less in hand-overs."
        )

    def __str__(self) -> str:
        head: tuple[str, ...] = (
            "stage", "kind", "conc", "in", "out", "dropped", "failed",
            "busy s", "wait in s", "wait out s", "queue", "peak",
        )  # fmt: skip
        rows: list[tuple[str, ...]] = [
            (
                s.name, s.kind, str(s.concurrency), str(s.items_in), str(s.items_out),
                str(s.dropped), str(s.failed), f"{s.busy:.2f}", f"{s.waiting_input:.2f}",
                f"{s.waiting_room:.2f}", str(s.queue), str(s.peak_queue),
            )
            for s in self.stages
        ]  # fmt: skip
        # Only where there is something to tell.
        for column in ("retried", "abandoned", "bytes_held", "peak_bytes"):
            if any(getattr(s, column) for s in self.stages):
                head = (*head, column)
                rows = [
                    (*row, str(getattr(s, column)))
                    for row, s in zip(rows, self.stages, strict=True)
                ]
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        lines = [_line(head, widths), _line(tuple("-" * w for w in widths), widths)]
        lines += [_line(row, widths) for row in rows]
        lines += [f"{s.name}: {_notes(s.notes)}" for s in self.stages if s.notes]
        rate = self.delivered / self.elapsed if self.elapsed > 0 else 0.0
        lines.append(
            f"{self.name}, epoch {self.epoch}: {self.delivered} delivered in {self.elapsed:.2f} s "
            f"({rate:.1f}/s), {self.failures} failed, {self.in_flight} in flight "
            f"(peak {self.peak_in_flight}), {self.threads} threads"
        )
        if self.bytes is not None:
            held = self.bytes
            lines.append(
                f"bytes held: {held.held:,} (peak {held.peak:,}) of at most {held.limit:,}, "
                f"overdrawn {held.overdrawn} times"
            )
        lines.append(self.bottleneck())
        return "\n".join(lines)


def why_nothing(stages: Sequence[StageStatistics]) -> str:
    """Say why a pass that came to its end has delivered nothing."""
    sources = [s for s in stages if s.kind == "source"]
    read = sum(s.items_in + s.dropped + s.failed for s in sources)
    if not read:
        return NO_ITEMS
    items = "1 item was" if read == 1 else f"{read:,} items were"
    return f"{items} read, none was delivered: {_loss(stages)}."


def _loss(stages: Sequence[StageStatistics]) -> str:
    """Name the stages that items were lost in, the one that lost most first."""
    parts = []
    for stage in sorted(stages, key=lambda s: -s.dropped - s.failed):
        losses = [
            f"{verb} {count:,}"
            for verb, count in (("dropped", stage.dropped), ("failed on", stage.failed))
            if count
        ]
        if losses:
            why = " (the last batch was not full)" if stage.kind == "batch" else ""
            parts.append(f"stage {stage.name!r} {' and '.join(losses)}{why}")
    if not parts:  # a 1→n op or an aggregator that made nothing of what it got
        barren = next((s for s in stages if s.items_in and not s.items_out), None)
        if barren is None:  # as behind a Merge that ends with the first of its branches
            return "they were left behind when the data ended"
        return f"stage {barren.name!r} made nothing of the {barren.items_in:,} that it got"
    return "; ".join(parts)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _notes(notes: Mapping[str, object]) -> str:
    return ", ".join(
        f"{what} {value:.3g}" if isinstance(value, float) else f"{what} {value}"
        for what, value in notes.items()
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    left = [
        c.ljust(w) if i < 2 else c.rjust(w)
        for i, (c, w) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(left).rstrip()
