"""Interleaved measurements, medians of ratios, and the tables in which they are printed.

A `Race` is one row of the speed targets: several contestants that do the same work, each a function
without arguments that does the work once and returns one number. All of them run once in each
round, forwards in even rounds and backwards in odd ones, so that a machine that slows down for a
while slows down all of them. The ratio to a reference is taken within each round, and its median
over the rounds is what is compared with the target.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a contestant must reach: a bound on its number, or on its ratio to `reference`."""

    bound: float
    reference: str | None = None
    at_most: bool = False

    def met_by(self, value: float) -> bool:
        """Tell whether `value` (a ratio where there is a reference) is on the right side."""
        return value <= self.bound if self.at_most else value >= self.bound


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One way to do the work; `run` does it once and returns the number, None when absent."""

    name: str
    run: Callable[[], float] | None
    targets: tuple[Target, ...] = ()
    absent: str = "not installed"


@dataclass(frozen=True, kw_only=True)
class Race:
    """Contestants for the same work.

    Attributes:
        key: what `--only` selects.
        baseline: the contestant that all the others are divided by in the column "measured".
        lower_wins: for times, so that a ratio still reads as "that many times better".
    """

    key: str
    title: str
    unit: str
    contestants: Sequence[Contestant]
    baseline: str | None = None
    lower_wins: bool = False
    note: str = ""


@dataclass
class Outcome:
    """The numbers of one race: one list for each contestant, one number for each round."""

    race: Race
    values: dict[str, list[float]] = field(default_factory=dict)

    def median(self, name: str) -> float:
        """Give the median of a contestant's numbers."""
        return statistics.median(self.values[name])

    def ratio(self, name: str, reference: str) -> float | None:
        """Give the median over the rounds of how many times better `name` is."""
        if name not in self.values or reference not in self.values:
            return None
        pairs = zip(self.values[name], self.values[reference], strict=True)
        if self.race.lower_wins:
            return statistics.median(theirs / mine for mine, theirs in pairs)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def run_race(race: Race, *, rounds: int, warm_up: bool = True) -> Outcome:
    """Run all contestants round-robin and collect their numbers."""
    outcome = Outcome(race)
    present = [(each.name, each.run) for each in race.contestants if each.run is not None]
    if warm_up:
        for _, run in present:
            run()
    for number in range(rounds):
        for name, run in present if number % 2 == 0 else reversed(present):
            gc.collect()
            outcome.values.setdefault(name, []).append(run())
    return outcome


def number(value: float) -> str:
    """Write a number with the digits that can be trusted: 27,939 · 91.4 · 4.02 · 0.961."""
    for least, digits in ((100.0, 0), (10.0, 1), (1.0, 2)):
        if abs(value) >= least:
            return f"{value:,.{digits}f}"
    return f"{value:.3f}"


_HEAD = ("target", "measured", "verdict", "contestant", "median", "min", "max")


def table(outcome: Outcome) -> str:
    """Lay out one race: target ratio, measured ratio, verdict, then the numbers behind them."""
    race = outcome.race
    rows: list[tuple[str, ...]] = [_HEAD]
    for each in race.contestants:
        if each.run is None:
            rows.append(("", "", "", f"{each.name}: {each.absent}", "", "", ""))
        else:
            rows.extend(_lines(outcome, each))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    rounds = max((len(values) for values in outcome.values.values()), default=0)
    lines = [f"[{race.key}] {race.title}: {race.unit}, {rounds} rounds"]
    for row in rows:
        cells = [
            cell.ljust(width) if column in (2, 3) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    if race.note:
        lines.append(f"  ({race.note})")
    return "\n".join(lines)


def _lines(outcome: Outcome, each: Contestant) -> list[tuple[str, ...]]:
    """Give a contestant's line, and one more for each further target."""
    values = outcome.values[each.name]
    numbers = tuple(
        number(value) for value in (outcome.median(each.name), min(values), max(values))
    )
    baseline = outcome.race.baseline
    targets = [target for target in each.targets if _applies(outcome, target)]
    lines: list[tuple[str, ...]] = []
    if not targets or targets[0].reference not in (None, baseline):
        # The column "measured" of a contestant's own line is against the baseline, in every line.
        ratio = outcome.ratio(each.name, baseline) if baseline is not None else None
        measured = "" if ratio is None else f"{number(ratio)} x"
        lines.append(("", measured, "", each.name, *numbers))
    for target in targets:
        first = not lines
        name = each.name if first else f"  against {target.reference}"
        lines.append(
            (*_judge(outcome, each.name, target), name, *(numbers if first else ("",) * 3))
        )
    return lines


def _applies(outcome: Outcome, target: Target) -> bool:
    return target.reference is None or target.reference in outcome.values


def _judge(outcome: Outcome, name: str, target: Target) -> tuple[str, str, str]:
    sign = "<=" if target.at_most else ">="
    value = outcome.median(name) if target.reference is None else None
    unit = "" if target.reference is None else " x"
    if target.reference is not None:
        value = outcome.ratio(name, target.reference)
    assert value is not None
    verdict = "ok" if target.met_by(value) else "MISSED"
    return f"{sign} {target.bound:g}{unit}", f"{number(value)}{unit}", verdict


def missed(outcome: Outcome) -> list[str]:
    """Name the contestants that missed a target, for the last line of the output."""
    names: list[str] = []
    for each in outcome.race.contestants:
        if each.run is None:
            continue
        judged = [_judge(outcome, each.name, t)[2] for t in each.targets if _applies(outcome, t)]
        if "MISSED" in judged:
            names.append(f"[{outcome.race.key}] {each.name}")
    return names


def percentile(values: Sequence[float], share: float) -> float:
    """Give the value below which `share` (0 to 1) of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rss_mib() -> float:
    """Give the resident memory of this process in MiB (the peak where the system has no /proc)."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak / 1024


def version(distribution: str) -> str | None:
    """Give an installed distribution's version, None when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def machine(distributions: Sequence[str]) -> str:
    """Describe in two lines what the numbers were read on: they mean nothing without it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gil = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else " free-threaded"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    versions = [f"{name} {version(name) or '-'}" for name in distributions]
    python = f"{platform.python_implementation()} {platform.python_version()}{gil}"
    system = f"{platform.machine()}, {platform.system()} {platform.release()}"
    return (
        f"machine: {cores} cores, {system}, load {load}\nversions: {python}, {', '.join(versions)}"
    )
