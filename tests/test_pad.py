"""pad: every kind of array, nested, and every mismatch with a message that locates it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spdl_async import BucketBy, PipelineBuilder
from spdl_async.collate import pad
from spdl_async.errors import CollateError

pytestmark = pytest.mark.torch

LENGTHS = st.lists(st.integers(0, 7), min_size=1, max_size=6)


class Pair(NamedTuple):
    tokens: Any
    label: Any


@dataclass(frozen=True)
class Sample:
    tokens: Any
    key: str


@settings(deadline=None)  # the first use of torch takes its time
@given(LENGTHS, st.sampled_from(["?", "u1", "i4", ">i8", "f2", "f4", "c8"]), st.integers(0, 1))
def test_arrays_are_padded_with_the_value(lengths: list[int], dtype: str, value: int) -> None:
    arrays = [(np.arange(n * 3) % 5).reshape(n, 3).astype(dtype) for n in lengths]
    batch, seen = pad(arrays, value=value)
    assert batch.shape == (len(lengths), max(lengths), 3)
    assert seen.dtype is torch.int64
    assert seen.tolist() == lengths
    whole = batch.numpy()
    assert whole.dtype == np.dtype(dtype).newbyteorder("=")
    for row, array in zip(whole, arrays, strict=True):
        assert (row[: len(array)] == array).all()
        assert (row[len(array) :] == value).all()


@settings(deadline=None)  # the first use of torch takes its time
@given(LENGTHS, st.sampled_from([0, 1, 2, -1, -2, -3]))
def test_any_axis_can_be_padded(lengths: list[int], axis: int) -> None:
    shapes = []
    for length in lengths:
        shape = [2, 3, 4]
        shape[axis] = length
        shapes.append(shape)
    arrays = [np.random.default_rng(0).random(shape) for shape in shapes]
    for values in (arrays, [torch.from_numpy(array) for array in arrays]):
        batch, seen = pad(values, axis=axis, value=-7)
        assert seen.tolist() == lengths
        for row, array in zip(batch.numpy(), arrays, strict=True):
            kept = np.take(row, range(array.shape[axis]), axis=axis)
            assert (kept == array).all()
            assert (row == -7).sum() == row.size - array.size


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.bfloat16],
)
def test_tensors_are_padded_whatever_their_dtype(dtype: torch.dtype) -> None:
    tensors = [torch.ones(n, 2).to(dtype) for n in (3, 0, 1)]
    batch, lengths = pad(tensors, value=0)
    assert batch.dtype is dtype
    assert lengths.tolist() == [3, 0, 1]
    assert batch.float().sum(dim=(1, 2)).tolist() == [6, 0, 2]
    with_ones, _ = pad(tensors, value=1)
    assert with_ones.float().sum() == 18


def test_tensors_that_need_gradients_keep_them() -> None:
    tensor = torch.ones(2, requires_grad=True)
    batch, _ = pad([tensor, torch.zeros(3)], value=5)
    assert batch.tolist() == [[1, 1, 5], [0, 0, 0]]
    batch.sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.tolist() == [1, 1]


def test_float_values_need_not_be_exact_but_those_of_integers_must() -> None:
    batch, _ = pad([np.zeros(1, "f4"), np.zeros(2, "f4")], value=0.1)
    assert batch[0, 1] == pytest.approx(0.1)
    for dtype, value in (("u1", -1), ("u1", 256), ("i8", 0.5), ("i4", float("nan")), ("?", 2)):
        with pytest.raises(CollateError, match=f"sample has dtype .*, which cannot hold .*{value}"):
            pad([np.zeros(1, dtype), np.zeros(2, dtype)], value=value)


def test_trees_give_trees_of_lengths() -> None:
    samples = [
        {"pair": Pair(np.arange(2), 7), "sample": Sample(np.arange(1), "a"), "xs": [np.float32(1)]},
        {"pair": Pair(np.arange(3), 8), "sample": Sample(np.arange(2), "b"), "xs": [np.float32(2)]},
    ]
    batch, lengths = pad(samples)
    assert batch["pair"].tokens.tolist() == [[0, 1, 0], [0, 1, 2]]
    assert batch["pair"].label.tolist() == [7, 8]
    assert batch["sample"].tokens.tolist() == [[0, 0], [0, 1]]
    assert batch["sample"].key == ["a", "b"]
    assert batch["xs"][0].tolist() == [1, 2]
    assert lengths["pair"] == Pair(lengths["pair"].tokens, None)
    assert lengths["pair"].tokens.tolist() == [2, 3]
    assert lengths["sample"].key is None
    assert lengths["sample"].tokens.tolist() == [1, 2]
    assert lengths["xs"] == [None]


def test_arrays_without_the_axis_are_stacked() -> None:
    batch, lengths = pad([(np.zeros((1, 2)), np.zeros(3)), (np.zeros((1, 5)), np.ones(3))], axis=1)
    assert batch[0].shape == (2, 1, 5)
    assert batch[1].shape == (2, 3)
    assert lengths[1] is None
    with pytest.raises(CollateError, match=r"sample\[1\] is .*shape \(3,\).*shape \(4,\)"):
        pad([(np.zeros((1, 2)), np.zeros(3)), (np.zeros((1, 2)), np.zeros(4))], axis=1)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (np.zeros((1, 4), "f4"), r"shape \(2, 3\).* in sample 0 and .*shape \(1, 4\).*only axis 0"),
        (np.zeros((2, 3, 1), "f4"), r"shape \(2, 3\).*shape \(2, 3, 1\)"),
        (np.zeros(2, "f4"), r"shape \(2,\).* in sample 1"),
        (np.zeros((1, 3), "f8"), "dtype float32 in sample 0 and dtype float64 in sample 1"),
        (torch.zeros(1, 3), "numpy.ndarray in sample 0 and torch.Tensor in sample 1"),
        (np.ma.masked_array(np.zeros((1, 3), "f4")), "masked array"),
        ("text", "str in sample 1"),
    ],
)
def test_mismatches_name_the_samples_and_their_shapes(other: Any, text: str) -> None:
    with pytest.raises(CollateError, match=text):
        pad([np.zeros((2, 3), "f4"), other])


def test_tensors_that_do_not_fit_name_the_samples() -> None:
    with pytest.raises(
        CollateError, match=r"dtype torch.float32 in sample 0 and dtype torch.int64"
    ):
        pad([torch.zeros(1), torch.zeros(2, dtype=torch.int64)])
    with pytest.raises(CollateError, match=r"device cpu in sample 0 and device meta in sample 1"):
        pad([torch.zeros(1), torch.zeros(2, device="meta")])


def test_arrays_that_torch_cannot_hold_are_refused() -> None:
    with pytest.raises(CollateError, match="which torch does not have"):
        pad([np.array(["a"]), np.array(["b", "c"])], value=0)


def test_arguments_are_checked() -> None:
    with pytest.raises(CollateError, match="no samples to pad"):
        pad([])
    with pytest.raises(CollateError, match="axis must be an int"):
        pad([np.zeros(1)], axis="0")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(CollateError, match="value must be a number"):
        pad([np.zeros(1)], value=None)  # type: ignore[arg-type]  # that is the point


def test_it_goes_with_buckets() -> None:
    words = [np.arange(n) for n in (1, 9, 2, 8, 1)]
    pipeline = (
        PipelineBuilder()
        .add_source(words)
        .aggregate(BucketBy(len, [4], batch_size=2))
        .pipe(partial(pad, value=-1))
        .build()
    )
    shapes = [(tuple(batch.shape), lengths.tolist()) for batch, lengths in pipeline]
    assert shapes == [((2, 2), [1, 2]), ((2, 9), [9, 8]), ((1, 1), [1])]
