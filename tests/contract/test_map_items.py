"""``map_items``: contract 1, 2, 6, 7, 8, 9 for the elements of batches (scenario C8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, assert_type

import pytest
from faces import FACES, PATIENCE, Face, drive
from kinds import kind_id

from spdl_async import (
    DROP,
    BuildError,
    Drop,
    Failure,
    PipelineBuilder,
    Retry,
    TooManyFailures,
    map_items,
    per_thread,
)

pytestmark = pytest.mark.timeout(30)
EACH_FACE = pytest.mark.parametrize("face", FACES, ids=kind_id)


def batches(n: int = 64, size: int = 32) -> PipelineBuilder[list[int]]:
    return PipelineBuilder().add_source(range(n)).aggregate(size)


def bad_sevens(n: int) -> int:
    if n % 32 == 7:
        raise ValueError(f"bad {n}")
    return -n


async def bad_sevens_async(n: int) -> int:
    await asyncio.sleep(0)
    return bad_sevens(n)


def awaited_sevens(n: int) -> Any:
    return bad_sevens_async(n)


OPS = pytest.mark.parametrize("op", [bad_sevens, bad_sevens_async, awaited_sevens])
GOOD = [[-n for n in range(at, at + 32) if n % 32 != 7] for at in (0, 32)]


@EACH_FACE
@OPS
@pytest.mark.parametrize("concurrency", [1, 4])
def test_contract_7_one_bad_element_leaves_the_others_of_its_batch(
    op: Any, face: Face, concurrency: int
) -> None:
    outcome = drive(batches().apply(map_items(op, on_error="skip", concurrency=concurrency)), face)
    assert outcome.result() == GOOD
    assert [(f.index, f.source, f.message) for f in outcome.failures] == [
        (7, "7", "bad 7"),
        (39, "39", "bad 39"),
    ]
    stage = outcome.statistics.stage(op.__name__)
    assert (stage.items_in, stage.items_out, stage.failed) == (64, 62, 2)  # ends are no elements


@EACH_FACE
@OPS
def test_contract_6_the_first_bad_element_ends_the_run_and_is_named(op: Any, face: Face) -> None:
    def source() -> Any:
        yield list(range(8, 16))
        yield list(range(16))

    outcome = drive(PipelineBuilder().add_source(source).apply(map_items(op)), face)
    assert outcome.outputs == [[-n for n in range(8, 16)]]  # and nothing of the second one
    assert isinstance(outcome.error, ValueError)
    [note] = outcome.error.__notes__
    assert "item 1.0.7 " in note  # the last number: the place in the batch


@EACH_FACE
def test_a_batch_of_which_nothing_is_left_is_not_emitted(face: Face) -> None:
    given: list[list[int] | tuple[int, ...]] = [[7], [], [7, 39], (1, 7), [2]]
    chain = PipelineBuilder().add_source(given).apply(map_items(bad_sevens, on_error="skip"))
    assert drive(chain, face).result() == [[-1], [-2]]


@EACH_FACE
def test_dropped_elements_are_left_out_and_counted(face: Face) -> None:
    def odd(n: int) -> int | Drop:
        return n if n % 2 else DROP

    outcome = drive(batches(10, 5).apply(map_items(odd, name="odd")), face)
    assert outcome.result() == [[1, 3], [5, 7, 9]]
    assert outcome.statistics.stage("odd").dropped == 5
    assert not outcome.failures


@EACH_FACE
def test_an_op_that_always_fails_is_an_error_whatever_the_policy(face: Face) -> None:
    def wrong(n: int) -> int:
        raise TypeError("never")

    outcome = drive(batches().apply(map_items(wrong, on_error="skip")), face)
    assert isinstance(outcome.error, TooManyFailures)
    assert "every one of its 64 calls" in str(outcome.error)


@EACH_FACE
@pytest.mark.parametrize(
    ("allowed", "good"),
    [(2, True), (1, False), (Fraction(2, 64), True), (Fraction(1, 64), False)],
)
def test_a_budget_counts_elements(allowed: int | Fraction, good: bool, face: Face) -> None:
    outcome = drive(batches().apply(map_items(bad_sevens, max_failures=allowed)), face)
    if good:
        assert outcome.result() == GOOD
    else:
        assert isinstance(outcome.error, TooManyFailures)


def test_retries_and_an_on_error_function_are_about_elements() -> None:
    seen: list[tuple[int, int]] = []
    calls: list[int] = []

    def op(n: int) -> int:
        calls.append(n)
        return bad_sevens(n)

    def note(failure: Failure) -> None:
        seen.append((failure.index, failure.attempts))

    elements = map_items(op, on_error=note, retry=Retry(2, backoff=0.0))
    assert list(batches().apply(elements).build()) == GOOD
    assert seen == [(7, 2), (39, 2)]
    assert len(calls) == 66


def test_a_batch_is_emitted_although_its_last_element_was_dropped() -> None:
    async def main() -> list[list[int]]:
        replied = asyncio.Event()

        async def requests() -> AsyncIterator[list[int]]:
            yield [1, 7]
            await replied.wait()  # the next one comes only after the answer to this one
            yield [2]

        chain = PipelineBuilder().add_source(requests)
        got: list[list[int]] = []
        async with chain.apply(map_items(bad_sevens, on_error="skip")).build().run() as run:
            async with asyncio.timeout(PATIENCE):
                async for batch in run:
                    got.append(batch)
                    replied.set()
        return got

    assert asyncio.run(main()) == [[-1], [-2]]


@EACH_FACE
def test_other_kinds_of_ops(face: Face) -> None:
    def twice(n: int) -> Generator[int, None, None]:
        yield n
        yield n

    table = {n: str(n) for n in range(6)}
    chain = batches(6, 3).apply(map_items(twice)).apply(map_items(table))
    chain = chain.apply(map_items(per_thread(lambda: str.upper), concurrency=2))
    assert drive(chain, face).result() == [
        ["0", "0", "1", "1", "2", "2"],
        ["3", "3", "4", "4", "5", "5"],
    ]


def test_an_executor_of_the_users() -> None:
    with ThreadPoolExecutor(2, "mine") as pool:
        elements = map_items(bad_sevens, executor=pool, concurrency=2, on_error="skip")
        assert list(batches().apply(elements).build()) == GOOD


def test_it_stands_several_times_in_a_chain_and_an_epoch_begins_anew() -> None:
    pipeline = batches(4, 2).apply(map_items(abs)).apply(map_items(abs)).build()
    assert [list(pipeline) for _ in range(2)] == [[[0, 1], [2, 3]]] * 2


def test_what_is_no_batch_is_a_failure() -> None:
    with pytest.raises(TypeError, match="not a list or tuple"):
        list(PipelineBuilder().add_source([1]).apply(map_items(abs)).build())  # type: ignore[arg-type]  # the point


def test_given_to_pipe_it_says_where_it_belongs() -> None:
    with pytest.raises(BuildError, match=r"write \.apply\(map_items\(abs\)\)"):
        list(batches().pipe(map_items(abs)).build())  # type: ignore[arg-type]  # the point


def test_options_are_checked_where_the_chain_is_made() -> None:
    with pytest.raises(BuildError, match="concurrency"):
        batches().apply(map_items(abs, concurrency=0))


def test_the_type_moves_along() -> None:
    async def text(n: int) -> str:
        return str(n)

    def maybe(n: int) -> str | Drop:
        return str(n)

    def many(n: int) -> Generator[str, None, None]:
        yield str(n)

    strings = batches(2, 2).apply(map_items(text))
    assert_type(strings, PipelineBuilder[list[str]])
    assert list(strings.build()) == [["0", "1"]]
    for chain in (
        assert_type(batches(2, 2).apply(map_items(maybe)), PipelineBuilder[list[str]]),
        assert_type(batches(2, 2).apply(map_items(many)), PipelineBuilder[list[str]]),
        assert_type(batches(2, 2).apply(map_items({0: "0", 1: "1"})), PipelineBuilder[list[str]]),
    ):
        assert list(chain.build()) == [["0", "1"]]
