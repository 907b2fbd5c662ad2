"""What is finished reaches the consumer though the next call blocks (contract 15: no polling,
no waiting for company), in every kind of stage and after any number of fast items."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator

import pytest
from witness import PATIENCE, our_threads, until, wait_until

from spdl_async import Pipeline, PipelineBuilder


class Holder:
    """User code that is fast up to an item and then blocks until it is let out."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.opened = threading.Event()

    def op(self, item: int) -> int:
        if item == self.at:
            assert self.opened.wait(PATIENCE)
        return item

    def source(self) -> Iterator[int]:
        for number in range(self.at + 3):
            yield self.op(number)

    async def async_op(self, item: int) -> int:
        if item == self.at:
            await until(self.opened.is_set)
        return item

    async def async_source(self) -> AsyncIterator[int]:
        for number in range(self.at + 3):
            yield await self.async_op(number)

    def generator(self, item: int) -> Generator[int, None, None]:
        yield self.op(item)

    def generator_of_all(self, item: int) -> Generator[int, None, None]:
        yield from self.source()

    async def async_generator(self, item: int) -> AsyncGenerator[int, None]:
        yield await self.async_op(item)

    def keep(self, item: int) -> bool:
        return self.op(item) >= 0

    # As an aggregator

    def accumulate(self, item: int) -> list[int]:
        return [self.op(item)]

    def flush(self) -> list[int]:
        return []


def numbers(holder: Holder) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(holder.at + 3))


CHAINS: dict[str, Callable[[Holder], Pipeline[int]]] = {
    "source": lambda h: PipelineBuilder().add_source(h.source).build(),
    "async source": lambda h: PipelineBuilder().add_source(h.async_source).build(),
    "op": lambda h: numbers(h).pipe(h.op).build(),
    "op below": lambda h: numbers(h).pipe(lambda x: x).pipe(h.op).pipe(lambda x: x).build(),
    "op, 4 at once": lambda h: numbers(h).pipe(h.op, concurrency=4).build(),
    "completion": lambda h: numbers(h).pipe(h.op, output_order="completion").build(),
    "fused": lambda h: (
        numbers(h).pipe(lambda x: x, concurrency=2).pipe(h.op, concurrency=2).build()
    ),
    "filter": lambda h: numbers(h).filter(h.keep).build(),
    "async op": lambda h: numbers(h).pipe(h.async_op).build(),
    "async op, 4 at once": lambda h: numbers(h).pipe(h.async_op, concurrency=4).build(),
    "generator": lambda h: numbers(h).pipe(h.generator).build(),
    "one generator": lambda h: PipelineBuilder().add_source([0]).pipe(h.generator_of_all).build(),
    "async generator": lambda h: numbers(h).pipe(h.async_generator).build(),
    "aggregator": lambda h: numbers(h).aggregate(h).build(),
}


@pytest.mark.parametrize("fast", [1, 5, 3000])
@pytest.mark.parametrize("chain", CHAINS)
def test_finished_results_are_not_withheld(
    chain: str, fast: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All results before the one that blocks arrive while it blocks."""
    holder = Holder(fast)
    if chain == "aggregator":  # it is copied for each run, an event cannot be
        monkeypatch.setattr(Holder, "__deepcopy__", lambda self, memo: self, raising=False)
    with CHAINS[chain](holder).run_sync() as run:
        got: list[int] = []

        def take() -> None:
            got.extend(next(run) for _ in range(fast))

        taker = threading.Thread(target=take)
        taker.start()
        taker.join(5)
        arrived = len(got)
        holder.opened.set()
        taker.join(PATIENCE)
        assert list(run) == [fast, fast + 1, fast + 2]
    assert got == list(range(fast))
    assert arrived == fast, f"only {arrived} of {fast} came while the next call was blocked"
    wait_until(lambda: not our_threads())
