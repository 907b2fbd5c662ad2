"""Lifespans: what an op owns is entered before its first item and left after its last."""

from __future__ import annotations

import pytest
from faces import Face, drive, notes_of
from owners import (
    COUNT,
    STAGES,
    Managed,
    Ordinary,
    Owner,
    assert_enclosed,
    async_op,
    every_engine,
    every_face,
    every_kind,
    every_stage,
    numbers,
    sync_op,
)


@every_face
@every_kind
@every_stage
def test_entered_before_the_first_item_and_left_after_the_last(
    stage: str, kind: type[Owner], face: Face
) -> None:
    op, builder = STAGES[stage](kind)
    assert sorted(drive(builder, face).result()) == list(range(COUNT))
    assert_enclosed(op.events, COUNT)
    assert len(set(map(id, op.tasks))) == (kind is not Ordinary)  # one task enters and leaves
    assert all(task is not None for task in op.tasks)


@every_face
@every_kind
def test_each_run_enters_anew(kind: type[Owner], face: Face) -> None:
    op, builder = STAGES["sync"](kind)
    pipeline = builder.build()
    for _ in range(3):
        op.events.clear()
        assert drive(pipeline, face).result() == list(range(COUNT))
        assert_enclosed(op.events, COUNT)


@every_face
@every_kind
@every_stage
def test_left_when_the_consumer_leaves(stage: str, kind: type[Owner], face: Face) -> None:
    op, builder = STAGES[stage](kind)
    assert len(drive(builder.add_sink(1), face, take=1).outputs) == 1
    assert op.events[0] == "enter"
    assert op.events[-1] == "leave"
    assert not op.is_open


@every_face
@every_kind
@every_stage
def test_left_when_the_stage_itself_fails(stage: str, kind: type[Owner], face: Face) -> None:
    op, builder = STAGES[stage](kind)
    mine = op.fails["item 2"] = ValueError("mine")
    outcome = drive(builder, face)
    assert outcome.error is mine
    assert [record.error for record in outcome.failures] == ["ValueError"]
    assert not op.is_open
    assert op.events.count("leave") == 1


@every_face
@every_kind
@pytest.mark.parametrize("where", ["above", "below"])
def test_left_when_another_stage_fails(where: str, kind: type[Owner], face: Face) -> None:
    def bad(item: int) -> int:
        if item == 3:
            raise ValueError(item)
        return item

    op = async_op(kind)
    builder = numbers().pipe(bad) if where == "above" else numbers()
    builder = builder.pipe(op)
    outcome = drive(builder.pipe(bad) if where == "below" else builder, face)
    assert outcome.outputs == [0, 1, 2]
    assert isinstance(outcome.error, ValueError)
    assert op.events.count("enter") == op.events.count("leave") == 1
    assert not op.is_open


@every_face
@every_kind
@every_stage
def test_an_error_in_entering_ends_the_run(stage: str, kind: type[Owner], face: Face) -> None:
    """The same exception object, with a note; no policy skips it, no item is processed."""
    op, builder = STAGES[stage](kind)
    mine = op.fails["enter"] = OSError("no such server")
    outcome = drive(builder.build(on_error="skip"), face)
    assert outcome.outputs == []
    assert outcome.error is mine
    assert "entering the lifespan of stage 'owner'" in notes_of(mine)
    (record,) = outcome.failures
    assert (record.stage, record.error, record.index) == ("owner", "OSError", -1)
    assert op.events == ["enter"]


@every_face
@every_kind
@every_stage
def test_an_error_in_leaving_is_raised_after_the_last_result(
    stage: str, kind: type[Owner], face: Face
) -> None:
    """What a stage writes at its end is never lost in silence."""
    op, builder = STAGES[stage](kind)
    mine = op.fails["leave"] = OSError("disk full")
    outcome = drive(builder, face)
    assert sorted(outcome.outputs) == list(range(COUNT))
    assert outcome.error is mine
    assert "leaving the lifespan of stage 'owner'" in notes_of(mine)
    assert [record.stage for record in outcome.failures] == ["owner"]


@every_face
@every_kind
def test_an_error_in_leaving_after_a_stop_is_recorded(kind: type[Owner], face: Face) -> None:
    """As an error in closing a source is: the consumer has left."""
    op, builder = STAGES["sync"](kind)
    op.fails["leave"] = OSError("disk full")
    outcome = drive(builder.add_sink(1), face, take=1)
    assert outcome.error is None
    assert [record.error for record in outcome.failures] == ["OSError"]


@every_face
@every_kind
def test_an_error_in_leaving_does_not_replace_the_failure(kind: type[Owner], face: Face) -> None:
    op, builder = STAGES["async"](kind)
    mine = op.fails["item 1"] = ValueError("mine")
    op.fails["leave"] = OSError("disk full")
    outcome = drive(builder, face)
    assert outcome.error is mine
    assert [record.error for record in outcome.failures] == ["ValueError", "OSError"]


@every_face
def test_several_of_one_group_are_left_in_reverse_and_after_a_failed_entry(face: Face) -> None:
    first, second = sync_op(Managed), sync_op(Ordinary)
    second.events = first.events
    builder = numbers().pipe(first, concurrency=2).pipe(second, concurrency=2)
    assert drive(builder, face).result() == list(range(COUNT))
    first.events.clear()
    mine = second.fails["enter"] = OSError("second")
    outcome = drive(builder, face)
    assert outcome.error is mine
    assert first.events == ["enter", "enter", "leave"]


@every_engine
@every_kind
def test_a_stage_is_left_before_the_one_below(kind: type[Owner], face: Face) -> None:
    """Each stage leaves after its own last item, while those below still work."""
    above, below = async_op(kind), sync_op(kind)
    order: list[str] = []
    above.closed = lambda: order.append("above")
    below.closed = lambda: order.append("below")
    assert drive(numbers().pipe(above).pipe(below), face).result() == list(range(COUNT))
    assert order == ["above", "below"]
