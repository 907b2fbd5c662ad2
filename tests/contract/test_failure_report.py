"""C5: the error of a spent budget says what failed where, and how often."""

from __future__ import annotations

import pytest

from spdl_async import PipelineBuilder, TooManyFailures


def fail_deep(item: int, depth: int) -> int:
    if depth:
        return fail_deep(item, depth - 1)
    raise ValueError(f"item {item}")


def op(item: int) -> int:
    if item % 5 == 4:
        raise KeyError(item)
    return fail_deep(item, 5) if item % 2 else item


def test_c5_each_kind_of_failure_is_counted_with_its_place() -> None:
    pipeline = PipelineBuilder().add_source(range(100)).pipe(op, max_failures=9).build()
    with pytest.raises(TooManyFailures) as caught:
        list(pipeline)
    text = str(caught.value)
    here = __file__
    raised = fail_deep.__code__.co_firstlineno + 3
    assert f"× ValueError in stage 'op' at {here}:{raised}" in text
    assert "× KeyError in stage 'op'" in text
    assert len(caught.value.records) == 10
    assert "fail_deep" in caught.value.records[0].traceback


def test_a_class_without_arguments_is_a_factory_of_sources() -> None:
    class Numbers:
        def __iter__(self) -> Numbers:
            self.next = 0
            return self

        def __next__(self) -> int:
            self.next += 1
            if self.next > 3:
                raise StopIteration
            return self.next

    pipeline = PipelineBuilder().add_source(Numbers).build()
    assert [list(pipeline), list(pipeline)] == [[1, 2, 3], [1, 2, 3]]
