"""A byte budget that has to be overrun, where branches come together."""

from __future__ import annotations

import numpy as np
import pytest

from spdl_async import PipelineBuilder, Zip

pytestmark = pytest.mark.timeout(30)


def test_branches_take_turns_where_each_item_is_larger_than_the_budget() -> None:
    large = PipelineBuilder().add_source(range(60)).pipe(lambda _: np.zeros(6_000, np.uint8))
    small = PipelineBuilder().add_source(range(60)).pipe(lambda _: np.zeros(3_000, np.uint8))
    pipeline = PipelineBuilder().add_source(Zip(large, small)).build(max_bytes=2_000)
    with pipeline.run_sync() as run:
        assert sum(1 for _ in run) == 60
    held = run.statistics().bytes
    assert held is not None
    # A pair of each: one that waits for the consumer, one that is being made. Not a window full.
    assert held.peak <= 3 * 9_000 + 2_000
