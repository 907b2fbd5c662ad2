"""Rows whose subject is how a number grows: cost an item and resident memory; and the sizes."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from benchmarks import _ours
from benchmarks._measure import number


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much work a run of the benchmarks does."""

    items: int
    rounds: int
    starts: int
    calls: int
    requests: int
    growth: tuple[int, ...]
    concurrencies: tuple[int, ...]
    memory: int
    warm_up: bool


FULL = Sizes(
    items=50_000,
    rounds=5,
    starts=20,
    calls=150,
    requests=150,
    growth=(1_000, 10_000, 100_000, 1_000_000),
    concurrencies=(1, 4, 16, 64, 256),
    memory=1_000_000,
    warm_up=True,
)
QUICK = Sizes(
    items=1_000,
    rounds=1,
    starts=2,
    calls=5,
    requests=5,
    growth=(100, 1_000),
    concurrencies=(1, 4),
    memory=10_000,
    warm_up=False,
)

LIMIT = 1.25


def _repeats(items: int) -> int:
    """Read short passes more often: 9 times 1,000 items, once a million."""
    return {1_000: 9, 10_000: 5, 100_000: 3}.get(items, 1)


def growth(sizes: Sizes, kind: Literal["thread", "async"]) -> tuple[str, list[str]]:
    """Row 7: cost an item as the number of items and the concurrency grow; two verdicts."""
    cost: dict[tuple[int, int], list[float]] = {}
    for round_number in range(9 if sizes.warm_up else 1):
        for items in sizes.growth:
            if round_number < _repeats(items):
                for width in sizes.concurrencies:
                    value = _ours.cost_per_item(items, width, kind)
                    cost.setdefault((items, width), []).append(value)
    cell = {key: statistics.median(values) for key, values in cost.items()}
    head = "  concurrency" + "".join(f"{items:>12,}" for items in sizes.growth)
    lines = [
        f"[growth] one no-op {kind} stage, batches of 32: us an item, by number of items",
        head,
    ]
    for width in sizes.concurrencies:
        lines.append(f"  {width:>11}" + "".join(f"{cell[n, width]:12.2f}" for n in sizes.growth))
    first, last = sizes.growth[0], sizes.growth[-1]
    thin, wide = sizes.concurrencies[0], sizes.concurrencies[-1]
    by_items = max(cell[last, width] / cell[first, width] for width in sizes.concurrencies)
    by_width = max(cell[n, wide] / cell[n, thin] for n in sizes.growth)
    bad: list[str] = []
    for what, value in (
        (f"{first:,} -> {last:,} items, worst concurrency", by_items),
        (f"concurrency {thin} -> {wide}, worst number of items", by_width),
    ):
        verdict = "ok" if value <= LIMIT else "MISSED"
        lines.append(f"  <= {LIMIT} x  {number(value)} x  {verdict}  {what}")
        if verdict == "MISSED":
            bad.append(f"[growth] {kind} stage, {what}")
    return "\n".join(lines), bad


def memory(sizes: Sizes) -> tuple[str, list[str]]:
    """Row 8: resident memory over many items."""
    _ours.memory_growth(sizes.memory // 10)
    warm, most, after = _ours.memory_growth(sizes.memory)
    grown = max(most, after) - warm
    verdict = "ok" if grown <= 4 else "MISSED"
    text = (
        f"[memory] resident memory over {sizes.memory:,} items: MiB\n"
        f"  <= 4  {number(grown)}  {verdict}  "
        f"growth: {warm:.1f} after a tenth, at most {most:.1f} later, {after:.1f} after the run"
    )
    return text, [] if verdict == "ok" else ["[memory] growth"]
