"""Chaos: random programs with random faults and stops, against plain loops.

    python tests/chaos.py --rounds 2000
    python tests/chaos.py --seconds 1800 --soak
    python tests/chaos.py --seed 1234567 --rounds 1

A round draws a program from its seed (a chain, a merge of chains, or chains with routes), runs it on one
of the faces, to its end or stopped somewhere, and compares what came with plain loops. A failure prints
the seed and the program.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from chaos_drawing import draw
from chaos_faces import Outcome, on_loop, play_async, play_sync
from chaos_kinds import start_pools
from fuzz_ops import BoomError
from in_time import Hang, in_time

from spdl_async import TooManyFailures
from spdl_async.testing import check_leaks

if TYPE_CHECKING:
    from chaos_programs import Program
    from chaos_reference import Expectation
    from chaos_reference import Expectation as Expected

T = TypeVar("T")
PATIENCE = 60.0  # seconds after which a round hangs
TRIES = 3  # of a program with timeouts: on a busy machine quick calls may exceed theirs
AT_ONCE = 25  # rounds between two searches for leaks
MEBI = 2**20


# Judging


def leaves(value: Any) -> list[Any]:
    """Return what is in nested lists and tuples."""
    if isinstance(value, (list, tuple)):
        return [leaf for element in value for leaf in leaves(element)]
    return [value]


def same_error(
    seen: BaseException | None, wanted: BaseException | None, *, copied: bool = False
) -> bool:
    """Tell whether a pass failed as it must: with the same object where an op raised a given one.

    ``copied``: unless that came from another process.
    """
    if copied and isinstance(wanted, BoomError):
        return isinstance(seen, BoomError) and seen.args == wanted.args
    if isinstance(wanted, TooManyFailures):
        return isinstance(seen, TooManyFailures)
    return seen is wanted or type(seen) is type(wanted) is TypeError  # a new one each time


def judge(program: Program, outcome: Outcome, expected: Expectation, epoch: int) -> str | None:
    """Say what is wrong with a pass."""
    wanted, got = expected.outputs, outcome.outputs
    if program.shared is not None and program.limit is not None:
        # Which failure spends the budget of all stages depends on the schedule; whether one does, not,
        # unless something ends the pass early while stages above are ahead.
        spent = expected.spent > program.limit
        early = program.cut or expected.error is not None
        if isinstance(outcome.error, TooManyFailures) and (spent or early):
            return None
        if outcome.ended and spent and not program.cut:
            return f"ended with {expected.spent} failures, max_failures={program.limit}"
    if program.split:
        return judge_split(program, outcome, expected) or in_numbers(program, outcome, expected)
    if program.exact:
        known = got == wanted[: len(got)]
        if not known or (outcome.ended and len(got) != len(wanted)):
            return f"results: {got}\nexpected: {wanted}"
        errors = [expected.error, *expected.also]
        if outcome.error is not None and not any(
            same_error(outcome.error, one, copied=program.copied) for one in errors
        ):
            return f"failed with {outcome.error!r}, expected {expected.error!r}"
        if outcome.error is not None and len(got) != len(wanted):
            return f"{len(got)} results before the failure, expected {len(wanted)}"
        if outcome.ended and expected.error is not None:
            return f"ended, but {expected.error!r} was expected"
    else:
        # In completion order another failure may come first, and what precedes it is not determined.
        all_of_it = expected if expected.error is None else program.expected(epoch, "skip")
        if outcome.ended and expected.error is not None:
            return f"ended, but a failure was expected: {expected.error!r}"
        if outcome.error is not None and expected.error is None:
            return f"failed with {outcome.error!r}, nothing fails in plain loops"
        left = Counter(leaves(got))
        # Below a shuffle that a failure has cut off, lists are others than without any failure.
        foreign = left - (Counter(leaves(all_of_it.outputs)) | Counter(leaves(expected.outputs)))
        left.subtract(leaves(all_of_it.outputs))
        if all_of_it.error is None and foreign:
            return f"results that are not in plain loops: {foreign}"
        if outcome.ended and any(left.values()):
            return f"missing results: {-left}"
    return in_numbers(program, outcome, expected)


def judge_split(program: Program, outcome: Outcome, expected: Expected) -> str | None:
    """Say what is wrong with lists that any moment may have ended."""
    got, wanted = leaves(outcome.outputs), leaves(expected.outputs)
    if not all(0 < len(batch) <= program.split for batch in outcome.outputs):
        return f"lists of a wrong length: {outcome.outputs}"
    if got != wanted[: len(got)] or (outcome.ended and len(got) != len(wanted)):
        return f"results: {got}\nexpected: {wanted}"
    if outcome.ended and expected.error is not None:
        return f"ended, but {expected.error!r} was expected"
    if outcome.error is None:
        return None
    if not same_error(outcome.error, expected.error, copied=program.copied):
        return f"failed with {outcome.error!r}, expected {expected.error!r}"
    if len(expected.outputs) - sum(map(len, outcome.outputs)) >= program.split:
        return "more than the open list is missing"
    return None


def in_numbers(program: Program, outcome: Outcome, expected: Expected) -> str | None:
    """Say what is wrong with the statistics of a pass that ended by itself."""
    if not outcome.ended or outcome.run is None or program.stop is not None or program.cut:
        return None
    numbers = outcome.run.statistics()
    if numbers.in_flight:
        return f"{numbers.in_flight} items in flight after the end"
    if program.exact and numbers.failures != expected.failed:
        return f"{numbers.failures} failures counted, expected {expected.failed}"
    return None


def faults(program: Program) -> str | None:
    """Run a program once; say what is wrong."""
    expected = [program.expected(epoch) for epoch in range(program.epochs)]
    program.anew()
    is_async = program.face in ("caller", "own", "short async", "epochs async")
    played = functools.partial(on_loop, uvloop=program.uvloop)
    outcomes = played(play_async(program)) if is_async else play_sync(program)
    if program.stop is None and len(outcomes) != program.epochs:
        return f"{len(outcomes)} epochs"
    for epoch, outcome in enumerate(outcomes):
        wrong = judge(program, outcome, expected[epoch], epoch)
        if program.stop is None and not outcome.ended and outcome.error is None:
            wrong = wrong or "neither results nor an end"
        if wrong:
            return f"epoch {epoch}: {wrong}"
    for crowd in program.crowds:
        if crowd.most > crowd.limit:
            return f"{crowd.most} calls at once, concurrency={crowd.limit}"
    if not program.face.startswith("short") and program.stop not in ("drop", "any time"):
        for session in program.sessions:
            if session.entered != session.left:
                return f"an op was entered {session.entered} times and left {session.left} times"
    return None


def one_round(seed: int) -> None:
    """Run the program of a seed.

    Raises:
        AssertionError: it did not do what plain loops do.
    """
    program = draw(seed)
    for _ in range(TRIES if program.timed else 1):
        try:
            wrong = in_time(functools.partial(faults, program), program, patience=PATIENCE)
        except Exception as error:
            error.add_note(str(program))
            raise
        if wrong is None:
            return
        program = draw(seed)
    raise AssertionError(f"{wrong}\n{program}")


def several(first: int, count: int) -> None:
    """Run the programs of several seeds in a row, and look for what they have left behind."""
    start_pools()
    for start in range(first, first + count, AT_ONCE):
        with check_leaks(timeout=60.0):  # a virtual machine may stand still for a while
            for seed in range(start, min(start + AT_ONCE, first + count)):
                one_round(seed)


# Soak


@dataclass(frozen=True)
class Reading:
    """What the process uses."""

    memory: int
    threads: int
    descriptors: int


def reading() -> Reading:
    """Read it after a collection; Linux only."""
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    size = pages * os.sysconf("SC_PAGE_SIZE")
    return Reading(size, threading.active_count(), len(os.listdir("/proc/self/fd")))


def growth(readings: list[Reading]) -> str | None:
    """Say what has grown between the second quarter of the readings and the last one."""
    quarter = max(1, len(readings) // 4)
    early, late = readings[quarter : 2 * quarter] or readings[:1], readings[-quarter:]
    before = statistics.median(one.memory for one in early)
    after = statistics.median(one.memory for one in late)
    if after > 1.1 * before + 8 * MEBI:
        return f"memory grew from {before / MEBI:.0f} to {after / MEBI:.0f} MiB"
    for name in ("threads", "descriptors"):
        most = max(getattr(one, name) for one in early)
        now = min(getattr(one, name) for one in late)
        if now > most:
            return f"{name} grew from {most} to {now}"
    return None


def soak(seed: int, seconds: float) -> int:
    """Run rounds for a time, write a line a minute; return how many."""
    began = time.monotonic()
    every = min(60.0, seconds / 20)
    readings: list[Reading] = []
    rounds = 0
    while (now := time.monotonic() - began) < seconds:
        several(seed + rounds, AT_ONCE)
        rounds += AT_ONCE
        if now >= every * (len(readings) + 1):
            readings.append(one := reading())
            print(
                f"{now:6.0f} s {rounds:8} rounds {one.memory / MEBI:6.0f} MiB "
                f"{one.threads:3} threads {one.descriptors:3} descriptors",
                flush=True,
            )
    if len(readings) < 8:
        raise SystemExit("too short to tell whether anything grows: give it more seconds")
    if (grown := growth(readings)) is not None:
        raise SystemExit(grown)
    return rounds


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seconds", type=float, help="instead of rounds: how long to run")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first round; the next counts on"
    )
    parser.add_argument("--soak", action="store_true", help="also fail where memory grows")
    given = parser.parse_args()
    rounds = given.rounds
    try:
        if given.soak:
            rounds = soak(given.seed, given.seconds or 1800.0)
        elif given.seconds is not None:
            rounds, end = 0, time.monotonic() + given.seconds
            while time.monotonic() < end:
                several(given.seed + rounds, AT_ONCE)
                rounds += AT_ONCE
        else:
            several(given.seed, rounds)
    except Hang as hang:
        print(hang, file=sys.stderr, flush=True)
        os._exit(1)  # a thread that hangs must not hold up the exit
    print(f"{rounds} rounds, nothing wrong")


if __name__ == "__main__":
    main()
