"""What chaos draws besides the ops of the fuzz: processes, lifespans in threads, costs, budgets."""

from __future__ import annotations

import contextlib
import functools
import inspect
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fuzz_ops import Op, digest

from spdl_async import BatchBy, BucketBy, Failure, TooManyFailures

GIVEN = ThreadPoolExecutor(3, thread_name_prefix="given")  # shared by all that draw it
NARROW = ThreadPoolExecutor(1, thread_name_prefix="given")


@functools.cache
def processes() -> ProcessPoolExecutor:
    """Return the one pool of processes."""
    # Never forked: other threads of this process run.
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


@functools.cache
def start_pools() -> None:
    """Start the threads and processes of the given pools, which stay."""
    for pool in (GIVEN, NARROW, processes()):
        list(pool.map(time.sleep, [0.05] * 4))


@dataclass(frozen=True)
class Sent:
    """An op that can be sent to another process; nothing of it comes back but results and errors."""

    op: Op

    def __call__(self, value: Any) -> Any:
        self.op.shake(value)
        return self.op.result(value)


class Spanning:
    """An op with a lifespan() in a thread."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.entered = self.left = 0

    @contextlib.contextmanager
    def lifespan(self) -> Iterator[None]:
        self.entered += 1
        try:
            yield
        finally:
            self.left += 1

    def __call__(self, value: Any) -> Any:
        if self.entered <= self.left:
            raise AssertionError("called outside of its lifespan")
        self.op.shake(value)
        return self.op.result(value)


def by_cost(op: Op, kind: str, size: int) -> Any:
    """Return an aggregator whose costs fail at some values."""

    def cost(value: Any) -> int:
        op.check(value)
        return 1 + digest("cost", op.key, value) % 5

    if kind == "cost":
        return BatchBy(cost, 2 * size, max_items=size)
    return BucketBy(cost, [1, 3], batch_size=size, max_cost=4 * size)


# Budgets


class Spending:
    """The policy of plain loops for a stage with ``max_failures``: counts, and raises when it is spent.

    Attributes:
        calls: the items that have come to the stage.
        failures: those that nothing was tried against any more.
    """

    def __init__(self, policy: Any, limit: int | Fraction | None) -> None:
        self.policy = policy
        self.limit = limit
        self.anew()

    def __repr__(self) -> str:
        return f"Spending({self.policy}, {self.limit})"

    def anew(self) -> None:
        """Forget the calls so far."""
        self.calls = self.failures = 0

    def __call__(self, failure: Failure) -> Any:
        answer = self.policy(failure) if callable(self.policy) else None
        if inspect.isawaitable(answer):
            return self.later(answer)
        self.count()
        return None

    async def later(self, answer: Any) -> None:
        await answer
        self.count()

    def count(self) -> None:
        """Count a failure that was let pass."""
        self.failures += 1
        is_share = isinstance(self.limit, Fraction)
        if not is_share or self.calls >= 100:
            self.look()

    def look(self) -> None:
        """Raise where the budget is spent."""
        limit = self.limit
        if limit is None:
            return
        allowed = limit * self.calls if isinstance(limit, Fraction) else limit
        if self.failures > allowed:
            raise TooManyFailures("spent")
