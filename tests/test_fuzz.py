"""Random pipelines against plain loops: the same results, the same failure, nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("hypothesis")

from fuzz_ops import LAZY
from fuzz_programs import PATIENCE, Outcome, Program, on_loop, one_pass, programs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from in_time import in_time

from spdl_async import TooManyFailures
from spdl_async.testing import Expected, check_leaks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

# The same examples every time in CI, where a red build must mean a change; new ones elsewhere.
settings.register_profile(
    "spdl_async",
    deadline=None,
    derandomize="CI" in os.environ,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
PROFILE = settings.get_profile("spdl_async")
EXAMPLES = int(os.environ.get("SPDL_ASYNC_FUZZ_EXAMPLES", "100"))


def leaves(value: Any) -> list[Any]:
    """Return what is in nested lists."""
    if isinstance(value, list):
        return [leaf for element in value for leaf in leaves(element)]
    return [value]


def same_error(seen: BaseException | None, wanted: BaseException | None) -> bool:
    """Tell whether a pass failed as it must: with the same object where an op raised a given one."""
    if seen is wanted:
        return True
    if isinstance(wanted, TooManyFailures):
        return isinstance(seen, TooManyFailures)
    return type(seen) is type(wanted) is TypeError  # a new one each time


def assert_as_expected(seen: Outcome, expected: Expected, program: Program) -> None:
    """Compare a pass with plain loops."""
    about = f"{program!r}\nerror {seen.error!r}, expected {expected.error!r}"
    if program.exact or program.face == "inline":
        assert seen.outputs == expected.outputs, about
        assert same_error(seen.error, expected.error), about
        return
    got = Counter(leaves(seen.outputs))
    if expected.error is None:
        assert seen.error is None, about
        assert got == Counter(leaves(expected.outputs)), about
        return
    # In completion order another failure may come first, and what precedes it is not determined.
    assert seen.error is not None, about
    # Nor are the members of a batch, so only a run that skips to its end knows all that may come.
    everything = program.expected("skip")
    if everything.error is None:
        assert got <= Counter(leaves(everything.outputs)), about


@settings(PROFILE, max_examples=EXAMPLES)
@given(program=programs(failures=False))
def test_contract_1_2_results_are_those_of_plain_loops(program: Program) -> None:
    expected = program.expected()
    with check_leaks():
        seen = in_time(lambda: one_pass(program), program, patience=PATIENCE)
    assert expected.error is None
    assert_as_expected(seen, expected, program)


@settings(PROFILE, max_examples=2 * EXAMPLES)
@given(program=programs(failures=True))
def test_contract_5_6_7_failures_are_those_of_plain_loops(program: Program) -> None:
    expected = program.expected()
    with check_leaks():
        seen = in_time(lambda: one_pass(program), program, patience=PATIENCE)
    assert_as_expected(seen, expected, program)
    cut = any(
        step.verb == "take" for step in program.chain.steps
    )  # stages may have run ahead of it
    if seen.run is not None and program.exact and expected.error is None and not cut:
        statistics = seen.run.statistics()
        assert statistics.failures == expected.failed
        assert sum(stage.retried for stage in statistics.stages) == expected.retried


TAKEN = st.integers(0, 12)
HOW = st.sampled_from(("leave", "close", "raise", "cancel"))


@settings(PROFILE, max_examples=EXAMPLES)
@given(
    program=programs(failures=False, endless=True),
    kind=st.sampled_from(LAZY),
    taken=TAKEN,
    how=HOW,
)
def test_contract_13_14_an_endless_source_stops_at_any_point(
    program: Program, kind: str, taken: int, how: str
) -> None:
    program.source_kind, program.count = kind, 10**9
    with check_leaks():
        seen = in_time(
            lambda: STOPS[program.face](program, taken, how),
            (program, taken, how),
            patience=PATIENCE,
        )
    assert seen.error is None
    assert len(seen.outputs) == taken


@settings(PROFILE, max_examples=EXAMPLES)
@given(program=programs(failures=True), taken=TAKEN, how=HOW)
def test_contract_13_14_a_stop_at_any_point_leaves_nothing(
    program: Program, taken: int, how: str
) -> None:
    expected = program.expected()
    with check_leaks():
        seen = in_time(
            lambda: STOPS[program.face](program, taken, how),
            (program, taken, how),
            patience=PATIENCE,
        )
    if program.exact or program.face == "inline":
        assert seen.outputs == expected.outputs[:taken], f"{program!r} {how}"
        if seen.error is not None:
            assert same_error(seen.error, expected.error), f"{program!r} {how}"


class BodyError(Exception):
    """Raised by the consumer."""


def stop_async(program: Program, taken: int, how: str) -> Outcome:
    return on_loop(_stop_async(program, taken, how), uvloop=program.uvloop)


async def _stop_async(program: Program, taken: int, how: str) -> Outcome:
    outcome = Outcome()

    async def consume() -> None:
        async with program.pipeline().run(loop="own" if program.face == "own" else "caller") as run:
            outcome.run = run
            try:
                while len(outcome.outputs) < taken:
                    outcome.outputs.append(await anext(run))
            except (Exception, StopAsyncIteration) as error:
                outcome.error = None if isinstance(error, StopAsyncIteration) else error
            if how == "close":
                await run.aclose()
            elif how == "raise":
                raise BodyError
            elif how == "cancel":
                asyncio.get_running_loop().call_soon(consumer.cancel)
                await asyncio.Event().wait()

    consumer = asyncio.create_task(consume())
    await asyncio.wait([consumer])
    assert consumer.cancelled() == (how == "cancel")
    if not consumer.cancelled():
        assert isinstance(consumer.exception(), BodyError) == (how == "raise"), consumer
        assert how == "raise" or consumer.exception() is None, consumer
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"after {how}: {left}"
    return outcome


def stop_short_async(program: Program, taken: int, how: str) -> Outcome:
    return on_loop(_stop_short_async(program, taken, how), uvloop=program.uvloop)


async def _stop_short_async(program: Program, taken: int, how: str) -> Outcome:
    outcome = Outcome()
    try:
        if taken:
            async for value in program.pipeline():
                outcome.outputs.append(value)
                if len(outcome.outputs) == taken:
                    if how == "raise":
                        raise BodyError
                    break
    except BodyError:
        pass
    except Exception as error:
        outcome.error = error
    gc.collect()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        await asyncio.wait(left)
    return outcome


def stop_sync(program: Program, taken: int, how: str) -> Outcome:
    outcome = Outcome()
    try:
        with program.pipeline().run_sync(inline=program.face == "inline") as run:
            outcome.run = run
            try:
                while len(outcome.outputs) < taken:
                    outcome.outputs.append(next(run))
            except (Exception, StopIteration) as error:
                outcome.error = None if isinstance(error, StopIteration) else error
            if how == "close":
                run.close()
            elif how == "raise":
                raise BodyError
    except BodyError:
        pass
    return outcome


def stop_short_sync(program: Program, taken: int, how: str) -> Outcome:
    outcome = Outcome()
    iterator = iter(program.pipeline())
    try:
        while len(outcome.outputs) < taken:
            outcome.outputs.append(next(iterator))
    except StopIteration:
        pass
    except Exception as error:
        outcome.error = error
    del iterator
    gc.collect()
    return outcome


STOPS: dict[str, Callable[[Program, int, str], Outcome]] = {
    "caller": stop_async,
    "own": stop_async,
    "sync": stop_sync,
    "inline": stop_sync,
    "short async": stop_short_async,
    "short sync": stop_short_sync,
}
