"""Chaos in CI: 2,000 random programs with faults and stops; ``tests/chaos.py`` says what they are."""

from __future__ import annotations

import itertools

import chaos
import pytest
from chaos_drawing import FACES, STOPS, draw
from chaos_kinds import start_pools
from chaos_programs import Program
from chaos_reference import Expectation, Merged, Route, Work

ROUNDS = 250
PARTS = 8

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def pools() -> None:
    start_pools()


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_do_what_plain_loops_do(part: int) -> None:
    """Fixed seeds: a red build means a change. A failure prints the seed and the program."""
    chaos.several(part * ROUNDS, ROUNDS)


def test_the_programs_of_ci_have_everything_in_them() -> None:
    seen: set[str] = set()

    def look(stages: list[Work | Route]) -> None:
        for stage in stages:
            if isinstance(stage, Route):
                seen.add(f"route {'lists' if stage.batched else stage.options['output_order']}")
                for branch in stage.branches:
                    seen.update("nested route" for one in branch if isinstance(one, Route))
                    look(branch)
                continue
            seen.add(stage.verb)
            seen.update(set(stage.options) & {"retry", "timeout", "within"})
            seen.add(" ".join(stage.text.split(" ")[:2]))
            seen.add(f"max_failures {type(stage.options.get('max_failures')).__name__}")
            seen.update(["in a hurry"] if stage.text.endswith("in a hurry") else [])

    for seed in range(300):
        program = draw(seed)
        seen.update((program.face, f"stop {program.stop}", f"epochs {program.overlap}"))
        seen.update(program.build)
        trees = [program.tree]
        for tree in trees:
            look(tree.stages)
            if isinstance(tree.source, Merged):
                seen.add(f"merge {tree.source.turns}")
                trees.extend(tree.source.branches)
            else:
                seen.add(f"source {tree.source.kind}")
    wanted = {"nested route", "route lists", "route input", "route completion", "retry", "timeout"}
    wanted |= {"within", "shuffle", "take", "skip", "enumerate", "disaggregate", "expand", "filter"}
    wanted |= {"pipe process", "pipe session", "pipe spanning", "pipe stuck", "max_failures"}
    wanted |= {"aggregate cost", "aggregate bucket", "in a hurry"}
    wanted |= {"max_failures int", "max_failures Fraction"}
    wanted |= {f"merge {turns}" for turns in ("turns", "first", "only", "weights", "zip", "mix")}
    wanted |= {f"stop {stop}" for stop in (None, *STOPS)} | set(FACES)
    assert not wanted - seen


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Expectation(outputs=["wrong"])
    monkeypatch.setattr(Program, "expected", lambda *_: wrong)
    seed = next(seed for seed in itertools.count() if draw(seed).stop is None)
    with pytest.raises(AssertionError, match=f"seed {seed}: "):
        chaos.one_round(seed)


def test_growth_is_found() -> None:
    flat = [chaos.Reading(100 * chaos.MEBI, 5, 9)] * 8
    assert chaos.growth(flat) is None
    grown = [
        (chaos.Reading(150 * chaos.MEBI, 5, 9), "memory"),
        (chaos.Reading(100 * chaos.MEBI, 6, 9), "threads"),
        (chaos.Reading(100 * chaos.MEBI, 5, 10), "descriptors"),
    ]
    for end, what in grown:
        assert what in (chaos.growth([*flat, end, end, end]) or "")
