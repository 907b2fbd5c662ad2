"""Contract 8, 9 and 12 for routers, branches and merged sources."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from faces import ENGINE_FACES, FACES, Face, drive
from kinds import ORDERS, Order, kind_id, same
from test_on_error_functions import EACH_HOW, Handler, HandlerError
from test_timeouts import SHORT, Stuck

from spdl_async import BuildError, Merge, PipelineBuilder, Retry

pytestmark = pytest.mark.timeout(60)
EACH_FACE = pytest.mark.parametrize("face", FACES, ids=kind_id)
EACH_ENGINE_FACE = pytest.mark.parametrize("face", ENGINE_FACES, ids=kind_id)
EACH_ORDER = pytest.mark.parametrize("order", ORDERS)


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


def untouched(branch: PipelineBuilder[int]) -> PipelineBuilder[int]:
    return branch


@EACH_FACE
@EACH_ORDER
@pytest.mark.parametrize("is_async", [False, True])
def test_contract_8_a_router_is_called_again(is_async: bool, order: Order, face: Face) -> None:
    calls: Counter[int] = Counter()

    def router(item: int) -> int:
        calls[item] += 1
        if item % 3 == 0 and calls[item] == 1:
            raise OSError("busy")
        return item % 2

    async def later(item: int) -> int:
        await asyncio.sleep(0)
        return router(item)

    chosen: Any = later if is_async else router
    retry = Retry(2, backoff=0.001)
    built = numbers(20).route(chosen, untouched, untouched, output_order=order, retry=retry)
    outcome = drive(built, face)
    assert sorted(outcome.result()) == list(range(20))
    if order == "input":
        assert outcome.outputs == list(range(20))
    assert all(calls[n] == 1 + (n % 3 == 0) for n in range(20))


@EACH_ENGINE_FACE
def test_contract_8_a_router_has_a_time(face: Face) -> None:
    stuck = Stuck(4)
    with stuck.gate.opened_at_end():
        built = numbers(9).route(
            lambda item: stuck(item) % 2, untouched, untouched, timeout=SHORT, on_error="skip"
        )
        outcome = drive(built, face)
    assert outcome.result() == [n for n in range(9) if n != 4]
    assert outcome.failures[0].error == "StageTimeout"


@EACH_FACE
def test_contract_8_stages_of_branches_have_policies_of_their_own(face: Face) -> None:
    calls: Counter[int] = Counter()
    handler = Handler()

    def flaky(item: int) -> int:
        calls[item] += 1
        if item % 4 == 0 and calls[item] < 3:
            raise OSError(item)
        return item

    def fail(item: int) -> int:
        if item % 3 == 0:
            raise ValueError(item)
        return item

    built = numbers(24).route(
        lambda item: item % 2,
        lambda branch: branch.pipe(flaky, concurrency=2, retry=Retry(3, backoff=0.001)),
        lambda branch: branch.pipe(fail, concurrency=2, on_error=handler.acall),
    )
    outcome = drive(built, face)
    assert outcome.result() == [n for n in range(24) if n % 2 == 0 or n % 3]
    assert handler.indices == [3, 9, 15, 21]
    assert outcome.statistics.stage("flaky").retried == 12


@EACH_FACE
@EACH_ORDER
@EACH_HOW
def test_contract_9_12_a_router_s_failures_are_asked_about(
    how: str, order: Order, face: Face
) -> None:
    """The router raises on item 2 and answers nonsense on item 5; a batch comes back too short."""

    def router(item: int) -> int:
        if item == 2:
            raise ValueError("no")
        return 7 if item == 5 else 0

    handler = Handler()
    built = numbers(9).route(router, untouched, output_order=order, on_error=handler.of(how))
    outcome = drive(built, face)
    assert sorted(outcome.result()) == [0, 1, 3, 4, 6, 7, 8]
    assert handler.indices == [2, 5]
    raised = HandlerError()
    handler = Handler({5: raised})
    built = numbers(9).route(router, untouched, output_order=order, on_error=handler.of(how))
    outcome = drive(built, face)
    assert outcome.error is raised
    assert isinstance(raised.__context__, LookupError)


@EACH_FACE
@EACH_ORDER
@EACH_HOW
def test_contract_9_12_a_batch_that_comes_back_too_short_is_asked_about(
    how: str, order: Order, face: Face
) -> None:
    def shorten(batch: list[int]) -> list[int]:
        return batch[1:] if 4 in batch else batch

    for raises in (False, True):
        raised = HandlerError()
        handler = Handler({3: raised} if raises else {})
        built: Any = numbers(12).aggregate(3)
        routed = built.route(
            lambda batch: [0] * len(batch),
            lambda branch: branch.pipe(shorten),
            batched=True,
            output_order=order,
            on_error=handler.of(how),
        )
        outcome = drive(routed, face)
        assert handler.indices == [3]
        if raises:
            assert outcome.error is raised
            assert outcome.outputs == [[0, 1, 2]]
        else:
            assert sorted(outcome.result()) == [[0, 1, 2], [6, 7, 8], [9, 10, 11]]


@EACH_FACE
@EACH_HOW
def test_contract_9_branches_of_a_merge_keep_their_policies(how: str, face: Face) -> None:
    def fail(item: int) -> int:
        if item % 3 == 0:
            raise ValueError(item)
        return item

    handler = Handler()
    one = numbers(9).pipe(fail, on_error=handler.of(how))
    two = numbers(9).pipe(same)
    outcome = drive(PipelineBuilder().add_source(Merge(one, two)), face)
    assert Counter(outcome.result()) == Counter([*range(9), 1, 2, 4, 5, 7, 8])
    assert handler.indices == [0, 3, 6]
    with pytest.raises(BuildError, match="timeout to the add_source of its branches"):
        PipelineBuilder().add_source(Merge(numbers(1), numbers(1)), timeout=1)


def test_contract_8_inline_refuses_the_timeout_of_a_branch() -> None:
    built = numbers(9).route(lambda item: 0, lambda branch: branch.pipe(same, timeout=1))
    with pytest.raises(BuildError, match=r"inline=True.*'same' has timeout=1"):
        built.build().run_sync(inline=True)
    merged = PipelineBuilder().add_source(Merge(numbers(1).pipe(same, timeout=1), numbers(1)))
    with pytest.raises(BuildError, match=r"inline=True.*'same' has timeout=1"):
        merged.build().run_sync(inline=True)
