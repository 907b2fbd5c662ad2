"""Stacking the values of one field into one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import numpy as np
import torch

from spdl_async.collate._tree import SAME_STRUCTURE, Leaves, kind_of, refuse, shape_of
from spdl_async.errors import CollateError

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""For each width in bytes a dtype that numpy has too."""

_SAME_SHAPE: Final = (
    "bring them to one shape before they are collated: cut them, or pad them with "
    "spdl_async.collate.pad"
)
_SAME_SIZE: Final = (
    "bring them to one size before they are collated: resize them, as with "
    "decode_image(data, size=(224, 224)), or pad them with spdl_async.collate.pad"
)
SAME_DTYPE: Final = "convert them to one dtype before they are collated"
SAME_DEVICE: Final = "move them to one device before they are collated"


def _to_one_shape(value: Any) -> str:
    """Return the advice for arrays of different shapes; what looks like a picture can be resized."""
    is_picture = value.ndim == 3 and str(value.dtype) in ("uint8", "torch.uint8")
    return _SAME_SIZE if is_picture else _SAME_SHAPE


def stack_arrays(values: Sequence[Any], field: str) -> torch.Tensor:
    """Stack numpy arrays or numpy numbers of one shape and dtype."""
    first = values[0]
    shape = first.shape
    dtype = first.dtype.newbyteorder("=")
    for index, value in enumerate(values):
        if value.shape != shape:
            refuse(field, index, shape_of(first), shape_of(value), _to_one_shape(first))
        if value.dtype != dtype and value.dtype.newbyteorder("=") != dtype:
            refuse(field, index, f"dtype {dtype}", f"dtype {value.dtype}", SAME_DTYPE)
        if isinstance(value, np.ma.MaskedArray):
            refuse_mask(field, index)
    stacked, batch = new_batch((len(values), *shape), dtype, field)
    for index, value in enumerate(values):
        stacked[index] = value
    return batch


def refuse_mask(field: str, index: int) -> NoReturn:
    """Raise the error for a masked array."""
    raise CollateError(
        f"{field} of sample {index} is a masked array, and a tensor has no mask: fill "
        f"it first, as with array.filled(0)",
        samples=(index,),
    )


def new_batch(
    shape: tuple[int, ...], dtype: np.dtype[Any], field: str
) -> tuple[np.ndarray[Any, Any], torch.Tensor]:
    """Return an array that is yet to be filled, and the tensor that shares its memory.

    Raises:
        CollateError: torch has no such dtype.
    """
    array = np.empty(shape, dtype)
    try:
        return array, torch.from_numpy(array)
    except TypeError:
        raise CollateError(
            f"{field} has dtype {dtype}, which torch does not have: convert it first, as with "
            f"array.astype(…), or leave it as a list of Python values"
        ) from None


def stack_tensors(values: Sequence[Any], field: str) -> torch.Tensor:
    """Stack tensors of one shape, dtype and device."""
    first = values[0]
    for index, value in enumerate(values):
        if value.shape != first.shape:
            refuse(field, index, shape_of(first), shape_of(value), _to_one_shape(first))
        if value.dtype is not first.dtype:
            refuse(field, index, f"dtype {first.dtype}", f"dtype {value.dtype}", SAME_DTYPE)
        if value.device != first.device:
            refuse(field, index, f"device {first.device}", f"device {value.device}", SAME_DEVICE)
    if not all(is_plain(value) for value in values):
        return torch.stack(list(values))
    view_as = dtype_for_numpy(first)
    if view_as is first.dtype:
        return stack_arrays([value.numpy() for value in values], field)
    arrays = [value.view(view_as).numpy() for value in values]
    return stack_arrays(arrays, field).view(first.dtype)


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is nothing but numbers in this process's memory."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def dtype_for_numpy(tensor: torch.Tensor) -> torch.dtype:
    """Return as what numpy can see a plain tensor: its own dtype, or integers as wide."""
    try:
        tensor.numpy()
    except TypeError:  # bfloat16, float8, complex32
        return _INTEGERS[tensor.dtype.itemsize]
    return tensor.dtype


def stack_numbers(values: Sequence[Any], field: str) -> torch.Tensor:
    """Stack Python numbers: bool, int64, or float64 where there is a float among them."""
    first = values[0]
    kinds = set(map(type, values))
    if bool in kinds and len(kinds) > 1:
        is_bool = type(first) is bool
        index = next(i for i, value in enumerate(values) if (type(value) is bool) is not is_bool)
        refuse(field, index, kind_of(first), kind_of(values[index]), SAME_STRUCTURE)
    if kinds == {bool}:
        dtype: type[np.generic] = np.bool_
    else:
        dtype = np.float64 if any(issubclass(kind, float) for kind in kinds) else np.int64
    try:
        return torch.from_numpy(np.array(values, dtype))
    except OverflowError as error:
        raise CollateError(
            f"{field} holds an integer that {dtype.__name__} cannot: {error}"
        ) from error


def list_values(values: Sequence[Any], field: str) -> list[Any]:
    del field
    return list(values)


STACKED: Final = Leaves(
    arrays=stack_arrays, tensors=stack_tensors, numbers=stack_numbers, others=list_values
)
