"""What the statistics say of waiting, while it goes on and when the run is over."""

from __future__ import annotations

import itertools
import time

import pytest
from faces import PATIENCE, Gate

from spdl_async import PipelineBuilder

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_stage_that_is_blocked_says_so_while_it_is(concurrency: int) -> None:
    """The consumer takes one result and no other: that is when its user looks at the table."""
    blocked = Gate()

    def source() -> itertools.count[int]:
        return itertools.count()

    def op(item: int) -> int:
        if item >= 2:
            blocked.open()
        return item

    built = PipelineBuilder().add_source(source).pipe(op, concurrency=concurrency).add_sink(1)
    with built.build().run_sync() as run:
        next(run)
        blocked.wait()

        def waited() -> float:
            return run.statistics().stage("op").waiting_room

        deadline = time.monotonic() + PATIENCE
        while not 0 < waited() < waited():  # soon: the loop has the results already
            assert time.monotonic() < deadline, "the blocked stage says that it waits for nothing"
            time.sleep(0.001)
        second = waited()
        assert second < run.statistics().elapsed
    over = run.statistics().stage("op").waiting_room
    assert over >= second
    assert run.statistics().stage("op").waiting_room == over  # it holds up nothing any more
