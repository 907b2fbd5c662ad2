"""Failures under ``on`` name the field, on every face, once; ``Exception`` and its note only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from faces import FACES, Face, drive
from kinds import kind_id

from spdl_async import PipelineBuilder, on

pytestmark = [pytest.mark.timeout(30), pytest.mark.parametrize("face", FACES, ids=kind_id)]


class Pair(NamedTuple):
    """A named tuple."""

    image: str
    label: str


@dataclass(frozen=True)
class Sample:
    """A dataclass."""

    image: str
    label: str


async def parse_async(text: str) -> int:
    return int(text)


def parse_hidden(text: str) -> Any:
    return parse_async(text)


def notes_of(item: object, op: Callable[[Any], Any], face: Face) -> list[str]:
    outcome = drive(PipelineBuilder().add_source([item]).pipe(op), face)
    assert outcome.error is not None
    return outcome.error.__notes__


@pytest.mark.parametrize("op", [int, parse_async, parse_hidden], ids=["sync", "async", "awaitable"])
def test_the_field_that_the_op_failed_on(face: Face, op: Callable[[str], Any]) -> None:
    notes = notes_of({"label": "x"}, on("label", op), face)
    assert notes[0] == "spdl_async: on field 'label'"
    assert notes[1].startswith(f"spdl_async: raised in stage {op.__name__!r} on item 0")
    assert len(notes) == 2


@pytest.mark.parametrize(
    ("item", "key", "text"),
    [
        ({"a": 1, "b": 2}, "z", "a dict with the fields 'a', 'b', has no field 'z'"),
        ({}, "z", "a dict with the fields none, has no field 'z'"),
        (dict.fromkeys(range(99)), "z", "7, 8, 9, …, has no field 'z'"),
        (Pair("a", "b"), "z", "a Pair with the fields 'image', 'label', has no field 'z'"),
        (Sample("a", "b"), "z", "a Sample with the fields 'image', 'label', has no field 'z'"),
        ((1, 2), 5, "a tuple of 2, has no field 5"),
        ([1], 5, "a list of 1, has no field 5"),
        (3, 0, "of type int, has no field 0"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_item_without_that_field(face: Face, item: object, key: object, text: str) -> None:
    notes = notes_of(item, on(key, str), face)
    assert notes[0].startswith(f"spdl_async: on({key!r}, …): the item, ")
    assert notes[0].endswith(text)
    assert notes_of(item, on(key, parse_async), face)[0] == notes[0]


def test_one_exception_object_is_noted_once(face: Face) -> None:
    error = ValueError("shared")

    def fail(value: object) -> None:
        raise error

    source = PipelineBuilder().add_source([(1,), (2,), (3,)])
    drive(source.pipe(on(0, fail), on_error="skip"), face)
    assert error.__notes__.count("spdl_async: on field 0") == 1


def test_a_cancellation_is_not_noted(face: Face) -> None:
    error = asyncio.CancelledError()

    def fail(value: object) -> None:
        raise error

    drive(PipelineBuilder().add_source([(1,)]).pipe(on(0, fail)), face)
    assert not [note for note in getattr(error, "__notes__", ()) if "on field" in note]
