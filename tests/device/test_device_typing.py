"""Arrays become tensors for a type checker too: checked by ``mypy --strict`` here, and run."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")

import torch

from spdl_async import Pipeline, PipelineBuilder

pytestmark = pytest.mark.torch

Array = NDArray[np.uint8]


class Batch:
    """A type of the user's."""


def array(number: int) -> Array:
    return np.full(2, number, np.uint8)


def two(number: int) -> tuple[Array, Array]:
    return array(number), array(number)


def several(number: int) -> list[Array]:
    return [array(number)]


def named(number: int) -> dict[str, Array]:
    return {"x": array(number)}


def mixed(number: int) -> dict[str, Any]:
    return {"x": array(number), "key": "a"}


def tensor(number: int) -> torch.Tensor:
    return torch.ones(number)


def own(number: int) -> Batch:
    return Batch()


def numbers() -> PipelineBuilder[int]:
    return PipelineBuilder().add_source([1])


def test_arrays() -> None:
    builder = numbers().pipe(array).to_device("cpu")
    assert_type(builder, PipelineBuilder[torch.Tensor])
    assert_type(list(builder.build()), list[torch.Tensor])
    assert isinstance(next(iter(builder.build())), torch.Tensor)


def test_containers_of_arrays() -> None:
    assert_type(
        numbers().pipe(two).to_device("cpu").build(), Pipeline[tuple[torch.Tensor, torch.Tensor]]
    )
    assert_type(numbers().pipe(several).to_device("cpu").build(), Pipeline[list[torch.Tensor]])
    assert_type(numbers().pipe(named).to_device("cpu").build(), Pipeline[dict[str, torch.Tensor]])
    (pair,) = numbers().pipe(two).to_device("cpu").build()
    (some,) = numbers().pipe(several).to_device("cpu").build()
    (mapping,) = numbers().pipe(named).to_device("cpu").build()
    assert all(isinstance(one, torch.Tensor) for one in (*pair, *some, *mapping.values()))


def test_what_is_not_known_stays_so() -> None:
    """Any could be an array, and anything else: no type is made up for it."""
    unknown: PipelineBuilder[Any] = numbers().pipe(mixed)
    assert_type(unknown.to_device("cpu").build(), Pipeline[Any])
    some: PipelineBuilder[list[Any]] = numbers().pipe(several)
    assert_type(some.to_device("cpu").build(), Pipeline[list[Any]])


def test_other_types_stay() -> None:
    assert_type(numbers().pipe(mixed).to_device("cpu").build(), Pipeline[dict[str, Any]])
    assert_type(numbers().pipe(tensor).to_device("cpu").build(), Pipeline[torch.Tensor])
    assert_type(numbers().pipe(own).to_device("cpu").build(), Pipeline[Batch])


def test_options_and_what_comes_below() -> None:
    builder = numbers().pipe(named).to_device("cpu", depth=3, only=("x",), pin=False).to_host()
    assert_type(builder, PipelineBuilder[dict[str, torch.Tensor]])
    below = builder.pipe(lambda batch: batch["x"].sum()).aggregate(2)
    assert_type(below.build(), Pipeline[list[torch.Tensor]])
