"""Padding the values of one field to their longest, into one tensor that is allocated once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from spdl_async.collate._stack import (
    SAME_DEVICE,
    SAME_DTYPE,
    STACKED,
    dtype_for_numpy,
    is_plain,
    stack_arrays,
    stack_tensors,
)
from spdl_async.collate._tree import Leaves, refuse, shape_of
from spdl_async.errors import CollateError

_KEEPS_LENGTH: Final = "resize or crop them, or pad this field by an op of its own"


def padded(axis: int, value: float) -> Leaves:
    """Return what makes padded tensors of arrays and tensors that have the axis."""

    def arrays(values: Sequence[Any], field: str) -> Any:
        if not _has(values[0], axis):
            return stack_arrays(values, field)
        _check(values, field, axis)
        return _pad_arrays(values, field, axis, value)

    def tensors(values: Sequence[Any], field: str) -> Any:
        if not _has(values[0], axis):
            return stack_tensors(values, field)
        _check(values, field, axis)
        return _pad_tensors(values, field, axis, value)

    return Leaves(arrays=arrays, tensors=tensors, numbers=STACKED.numbers, others=STACKED.others)


def lengths_of(axis: int) -> Leaves:
    """Return what makes a tensor of their lengths of arrays that have the axis, else None."""

    def lengths(values: Sequence[Any], field: str) -> Any:
        del field
        if not _has(values[0], axis):
            return None
        return torch.from_numpy(np.array([value.shape[axis] for value in values], np.int64))

    def nothing(values: Sequence[Any], field: str) -> None:
        del values, field

    return Leaves(arrays=lengths, tensors=lengths, numbers=nothing, others=nothing)


def checked_axis(axis: object) -> int:
    """Return the axis.

    Raises:
        CollateError: it is no int.
    """
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise CollateError(f"pad: axis must be an int, not {axis!r}")
    return axis


def checked_value(value: object) -> float:
    """Return the value of the padding.

    Raises:
        CollateError: it is no number.
    """
    if not isinstance(value, (int, float)):
        raise CollateError(f"pad: value must be a number, not {value!r}")
    return value


def _has(array: Any, axis: int) -> bool:
    return bool(-array.ndim <= axis < array.ndim)


def _check(values: Sequence[Any], field: str, axis: int) -> None:
    """Check that the values differ in the padded axis only."""
    first = values[0]
    others = _without(first.shape, axis)
    for index, value in enumerate(values):
        if value.ndim != first.ndim or _without(value.shape, axis) != others:
            advice = f"only axis {axis} is padded: {_KEEPS_LENGTH}"
            refuse(field, index, shape_of(first), shape_of(value), advice)


def _without(shape: Sequence[int], axis: int) -> list[int]:
    sizes = list(shape)
    if -len(sizes) <= axis < len(sizes):
        del sizes[axis]
    return sizes


def _pad_arrays(values: Sequence[Any], field: str, axis: int, value: float) -> torch.Tensor:
    """Pad numpy arrays."""
    first = values[0]
    dtype = first.dtype.newbyteorder("=")
    for index, array in enumerate(values):
        if array.dtype != dtype and array.dtype.newbyteorder("=") != dtype:
            refuse(field, index, f"dtype {dtype}", f"dtype {array.dtype}", SAME_DTYPE)
        if isinstance(array, np.ma.MaskedArray):
            raise CollateError(
                f"{field} of sample {index} is a masked array, and a tensor has no mask: fill "
                f"it first, as with array.filled(0)",
                samples=(index,),
            )
    filling = _fitting(value, dtype, field)
    batch = np.empty((len(values), *_longest(values, axis)), dtype)
    try:
        tensor = torch.from_numpy(batch)
    except TypeError:
        raise CollateError(
            f"{field} has dtype {dtype}, which torch does not have: convert it first, as with "
            f"array.astype(…)"
        ) from None
    rows = np.moveaxis(batch, axis if axis < 0 else axis + 1, 1)
    for row, array in zip(rows, values, strict=True):
        length = array.shape[axis]
        row[:length] = np.moveaxis(array, axis, 0)
        row[length:] = filling
    return tensor


def _pad_tensors(values: Sequence[Any], field: str, axis: int, value: float) -> torch.Tensor:
    """Pad tensors; those that are nothing but numbers in memory by numpy, which starts no threads."""
    first = values[0]
    for index, tensor in enumerate(values):
        if tensor.dtype is not first.dtype:
            refuse(field, index, f"dtype {first.dtype}", f"dtype {tensor.dtype}", SAME_DTYPE)
        if tensor.device != first.device:
            refuse(field, index, f"device {first.device}", f"device {tensor.device}", SAME_DEVICE)
    if all(map(is_plain, values)):
        view_as = dtype_for_numpy(first)
        if view_as is first.dtype:
            return _pad_arrays([tensor.numpy() for tensor in values], field, axis, value)
        # numpy has no such dtype: what it pads are integers of the same width, bit by bit.
        bits = torch.tensor([value]).to(first.dtype).view(view_as).item()
        arrays = [tensor.contiguous().view(view_as).numpy() for tensor in values]
        return _pad_arrays(arrays, field, axis, bits).view(first.dtype)
    shape = _longest(values, axis)
    rows = []
    for tensor in values:
        row = tensor.new_full(shape, value)
        row.narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
        rows.append(row)
    return torch.stack(rows)


def _longest(values: Sequence[Any], axis: int) -> tuple[int, ...]:
    shape = list(values[0].shape)
    shape[axis] = max(value.shape[axis] for value in values)
    return tuple(shape)


def _fitting(value: float, dtype: np.dtype[Any], field: str) -> Any:
    """Return the value in a dtype.

    Raises:
        CollateError: the dtype has no such number.
    """
    if dtype.kind not in "iub":
        return value
    with np.errstate(invalid="ignore"):
        fitting = np.array(value).astype(dtype)
    if fitting != value:
        raise CollateError(
            f"{field} has dtype {dtype}, which cannot hold the padding value {value!r}: give "
            f"another value, or convert the arrays first"
        )
    return fitting
