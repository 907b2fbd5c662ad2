"""C5: the error of a spent budget says what failed where, and how often. C9: what a run keeps."""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import json
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest

from spdl_async import Failures, PipelineBuilder, Retry, TooManyFailures


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


# What a run keeps of its failures


class Tensor:
    """Stands for something big."""


class HeavyError(Exception):
    """Holds something big, as the errors of some libraries do."""


def test_c9_records_keep_no_exception_frame_or_value_alive() -> None:
    refs: list[weakref.ref[Any]] = []

    def fail(item: int) -> int:
        tensor = Tensor()
        error = HeavyError(tensor)
        refs.extend([weakref.ref(tensor), weakref.ref(error)])
        raise error

    def give(item: int) -> Any:
        value = Tensor()
        refs.append(weakref.ref(value))
        return value if item else 0

    retry = Retry(2, backoff=0.0)
    built = PipelineBuilder().add_source(range(9)).pipe(give, concurrency=2)
    below = built.pipe(lambda item: fail(1) if item else 0, retry=retry, on_error="skip")
    for inline in (False, True):
        refs.clear()
        with below.build().run_sync(inline=inline) as run:
            assert list(run) == [0]
        gc.collect()
        assert len(refs) == 9 + 8 * 2 * 2
        assert [ref for ref in refs if ref() is not None] == []
        assert run.failures.total == 8
        assert run.failures[0].attempts == 2
        assert "fail" in run.failures[0].traceback


def failures_of(items: list[Any]) -> Failures:
    def op(item: Any) -> int:
        if item != "good":
            raise ValueError(f"bad item:\n{item} ü")
        return 1

    built = PipelineBuilder().add_source(["good", *items]).pipe(op, on_error="skip")
    with built.build().run_sync() as run:
        assert list(run) == [1]
    return run.failures


def test_c9_failures_as_json_lines(tmp_path: Path) -> None:
    """Every record carries its key, whatever is in that: new lines, lone surrogates of file names."""
    items = [
        Path("a/b.jpg"),
        ("s.tar", "c.jpg", 4096),
        "http://x/ü",
        "line\nline",
        "\udc80.jpg",
        None,
    ]
    failures = failures_of(items)
    path = tmp_path / "failures.jsonl"
    failures.to_jsonl(path)
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    read = [json.loads(line) for line in lines]
    assert len(read) == len(items)
    for record, failure, index in zip(read, failures, range(1, 7), strict=True):
        assert set(record) == {field.name for field in dataclasses.fields(failure)}
        expected = dataclasses.asdict(failure)
        assert record == {**expected, "path": list(expected["path"])}
        assert (record["index"], record["stage"]) == (index, "op")
    assert "ü" in path.read_bytes().decode("utf-8")  # readable: no escapes where none are needed
    assert [record["source"] for record in read[:2]] == ["a/b.jpg", "('s.tar', 'c.jpg', 4096)"]
    opened = io.StringIO()
    failures.to_jsonl(opened)
    assert opened.getvalue().encode() == path.read_bytes()
    failures_of([]).to_jsonl(str(path))
    assert path.read_bytes() == b""


def test_c9_failures_are_an_immutable_sequence() -> None:
    failures = failures_of(list(range(5)))
    assert isinstance(failures, tuple)
    assert failures == tuple(failures)
    assert [record.index for record in failures[1:3]] == [2, 3]
    assert failures.total == len(failures) == 5
    for again in (pickle.loads(pickle.dumps(failures)), copy.copy(failures)):
        assert again == failures
        assert again.total == 5
    with pytest.raises(AttributeError):
        failures.total = 6  # type: ignore[misc]  # that is what is tested
    assert failures_of([]) == ()


def test_c9_a_thousand_are_written_out_and_all_are_counted() -> None:
    failures = failures_of(list(range(1200)))
    assert len(failures) == 1000
    assert failures.total == 1200
