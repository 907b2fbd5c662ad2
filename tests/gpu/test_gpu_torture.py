"""Two thousand batches, late copies, too little staging memory: no element is wrong.

On the fake device these are fewer batches, and there the torture itself is tested: it notices each mistake.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gpu_devices import each_device, open_rig

from benchmarks._rigs import FakeRig
from benchmarks._torture import Torture, torture
from spdl_async.testing import FakeDevice

pytestmark = pytest.mark.torch

SMALL = {"batches": 80, "most_bytes": 1 << 19, "pin": "1MB"}


def planned(kind: str, **changes: Any) -> Torture:
    plan = Torture() if kind == "cuda" else Torture(**SMALL)  # type: ignore[arg-type]  # the right ones
    return replace(plan, **changes)


@each_device
def test_every_element_of_2000_batches_is_right(kind: str) -> None:
    plan = planned(kind)
    result = torture(open_rig(kind), plan)
    assert result.wrong == 0
    notes = result.notes
    assert notes["batches_copied"] == plan.batches
    assert notes["slot_waits"] > 0, "the staging memory was not too small for this to be a test"
    assert notes["pageable_batches"] == 0


@each_device
@pytest.mark.parametrize("streams", [0, 1, 2])
def test_consumer_on_its_default_stream_on_another_and_on_two(kind: str, streams: int) -> None:
    few = 400 if kind == "cuda" else 40
    assert torture(open_rig(kind), planned(kind, streams=streams, batches=few)).wrong == 0


@each_device
@pytest.mark.parametrize("face", ["async for", "async for, own loop"])
def test_consumer_in_async_code(kind: str, face: str) -> None:
    few = 400 if kind == "cuda" else 40
    assert torture(open_rig(kind), planned(kind, face=face, batches=few)).wrong == 0


@each_device
def test_page_locked_memory_of_others_that_they_overwrite_when_it_is_dropped(kind: str) -> None:
    few = 1_000 if kind == "cuda" else 40
    result = torture(open_rig(kind), planned(kind, foreign=True, batches=few))
    assert result.wrong == 0
    assert result.notes["pageable_batches"] == 0


@each_device
@pytest.mark.parametrize("pin", [False, "1KB"])
def test_pageable_memory_and_batches_larger_than_the_staging_memory(
    kind: str, pin: bool | str
) -> None:
    few = 200 if kind == "cuda" else 40
    result = torture(open_rig(kind), planned(kind, pin=pin, batches=few))
    assert result.wrong == 0
    found = result.notes["pageable_batches"], result.notes["oversized_batches"]
    assert found == ((few, 0) if pin is False else (0, few))


@each_device
@pytest.mark.parametrize("depth", [1, 5])
def test_other_depths(kind: str, depth: int) -> None:
    few = 200 if kind == "cuda" else 40
    assert torture(open_rig(kind), planned(kind, depth=depth, batches=few)).wrong == 0


# The torture notices


class NeverWaits(FakeDevice):
    def wait(self, stream: Any, event: Any) -> None:
        """Forget that the consumer's stream has to wait for the copy."""


class NeverKeeps(FakeDevice):
    def keep_for(self, tensor: Any, stream: Any) -> None:
        """Forget that the consumer's stream uses the memory."""


class AlwaysDone(FakeDevice):
    def is_done(self, event: Any) -> bool:
        """Take each copy for done when it was queued."""
        return True


@pytest.mark.parametrize(
    ("mistaken", "changes"),
    [
        pytest.param(NeverWaits, {}, id="no wait"),
        pytest.param(NeverKeeps, {}, id="memory freed under kernels"),
        pytest.param(AlwaysDone, {}, id="staging written too early"),
        pytest.param(AlwaysDone, {"foreign": True}, id="source dropped too early"),
    ],
)
def test_the_torture_notices_each_mistake(
    mistaken: type[FakeDevice], changes: dict[str, Any]
) -> None:
    result = torture(FakeRig(mistaken()), planned("fake", batches=40, **changes))
    assert result.wrong > 0
