"""Stack a list of samples into one batch of torch tensors.

The stacking is numpy's, into an array that is allocated once: it stays on the calling thread and
releases the GIL for large samples. Torch's own ``stack`` would start a team of OpenMP threads for
every thread that calls it.

====================================  =====================================================
value in each sample                  in the batch
====================================  =====================================================
numpy array, numpy number             tensor with a new first dimension, same dtype
torch tensor                          tensor with a new first dimension, same dtype
``bool`` / ``int`` / ``float``        tensor of shape (n,), dtype bool / int64 / float64
tuple, list, named tuple              the same, of collated elements
mapping                               the same type, of collated values
dataclass (frozen, slotted too)       the same type, of collated fields
anything else (str, bytes, None …)    a list of the n values
====================================  =====================================================
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from spdl_async.errors import CollateError

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""For each width in bytes a dtype that numpy has too."""

_SAME_STRUCTURE = "every sample needs the same structure"
_SAME_SHAPE = "bring them to one shape before they are collated: pad them, or cut them"
_SAME_SIZE = (
    "bring them to one size before they are collated: resize them, as with "
    "decode_image(data, size=(224, 224)), or pad them"
)
_SAME_LENGTH = "pad them to one length before they are collated"
_SAME_DTYPE = "convert them to one dtype before they are collated"


def collate(samples: Sequence[object]) -> Any:
    """Stack samples of equal structure into one batch.

    Use it after `aggregate`: ``.aggregate(32).pipe(collate)``. Numbers come out as with torch's
    ``default_collate``: Python floats as float64, integers as int64. Other than there, tuples
    stay tuples, dataclasses are taken apart, and what cannot be a tensor (text, bytes, None,
    paths …) becomes a list instead of an error. Integers and floats may be mixed in one field,
    which is then float64.

    A dataclass is rebuilt from its fields alone: ``__init__`` and ``__post_init__`` do not run,
    since they may check what holds for a sample and not for a batch.

    Args:
        samples: the samples, at least one, all of the same structure. They are only read, so
            they may be read-only, non-contiguous or big-endian; the tensors of the batch are
            new.

    Returns:
        The batch: the structure of one sample, each tensor in it with a new first dimension of
        ``len(samples)``.

    Raises:
        CollateError: there are no samples, two of them differ in structure, shape or dtype, or
            torch has no such dtype; the message names the samples' positions and the field.

    Example:
        >>> import numpy as np
        >>> images, labels = collate([(np.zeros((64, 48, 3), np.uint8), n) for n in (4, 7)])
        >>> images.shape, images.dtype, labels
        (torch.Size([2, 64, 48, 3]), torch.uint8, tensor([4, 7]))
    """
    if len(samples) == 0:
        raise CollateError("there are no samples to collate: the list is empty")
    return _collate(samples, "sample")


def _collate(values: Sequence[Any], field: str) -> Any:
    """Collate one field; ``field`` is how the user reaches it, such as ``sample.boxes['xy']``."""
    first = values[0]
    stack = _stacker(first)
    for index, value in enumerate(values):
        if type(value) is not type(first) and _stacker(value) is not stack:
            _refuse(field, index, _kind(first), _kind(value), _SAME_STRUCTURE)
    return stack(values, field)


def _stacker(value: object) -> Callable[[Sequence[Any], str], Any]:
    """Return the function that stacks values of this kind."""
    if isinstance(value, torch.Tensor):
        return _stack_tensors
    # numpy's strings and dates are values that no tensor can hold, as Python's are.
    if isinstance(value, np.ndarray | np.number | np.bool_):
        return _stack_arrays
    if isinstance(value, int | float):
        return _stack_numbers
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _collate_dataclass
    if isinstance(value, Mapping):
        return _collate_mapping
    if isinstance(value, tuple):
        return _collate_named_tuple if hasattr(value, "_fields") else _collate_tuple
    return _collate_list if isinstance(value, list) else _list_values


def _stack_arrays(values: Sequence[Any], field: str) -> torch.Tensor:
    """Stack numpy arrays or numpy numbers of one shape and dtype."""
    first = values[0]
    shape = first.shape
    dtype = first.dtype.newbyteorder("=")
    for index, value in enumerate(values):
        if value.shape != shape:
            _refuse(field, index, _shape(first), _shape(value), _to_one_shape(first))
        if value.dtype != dtype and value.dtype.newbyteorder("=") != dtype:
            _refuse(field, index, f"dtype {dtype}", f"dtype {value.dtype}", _SAME_DTYPE)
        if isinstance(value, np.ma.MaskedArray):
            raise CollateError(
                f"{field} of sample {index} is a masked array, and a tensor has no mask: fill "
                f"it first, as with array.filled(0)"
            )
    stacked = np.empty((len(values), *shape), dtype)
    try:
        batch = torch.from_numpy(stacked)
    except TypeError:
        raise CollateError(
            f"{field} has dtype {dtype}, which torch does not have: convert it first, as with "
            f"array.astype(…), or leave it as a list of Python values"
        ) from None
    for index, value in enumerate(values):
        stacked[index] = value
    return batch


def _stack_tensors(values: Sequence[Any], field: str) -> torch.Tensor:
    """Stack tensors of one shape, dtype and device."""
    first = values[0]
    for index, value in enumerate(values):
        if value.shape != first.shape:
            _refuse(field, index, _shape(first), _shape(value), _to_one_shape(first))
        if value.dtype is not first.dtype:
            _refuse(field, index, f"dtype {first.dtype}", f"dtype {value.dtype}", _SAME_DTYPE)
        if value.device != first.device:
            advice = "move them to one device before they are collated"
            _refuse(field, index, f"device {first.device}", f"device {value.device}", advice)
    if not all(_is_plain(value) for value in values):
        return torch.stack(list(values))
    view_as = _dtype_for_numpy(first)
    if view_as is first.dtype:
        return _stack_arrays([value.numpy() for value in values], field)
    arrays = [value.view(view_as).numpy() for value in values]
    return _stack_arrays(arrays, field).view(first.dtype)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is nothing but numbers in this process's memory."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _dtype_for_numpy(tensor: torch.Tensor) -> torch.dtype:
    """Return as what numpy can see a plain tensor: its own dtype, or integers as wide."""
    try:
        tensor.numpy()
    except TypeError:  # bfloat16, float8, complex32
        return _INTEGERS[tensor.dtype.itemsize]
    return tensor.dtype


def _stack_numbers(values: Sequence[Any], field: str) -> torch.Tensor:
    """Stack Python numbers: bool, int64, or float64 where there is a float among them."""
    first = values[0]
    kinds = set(map(type, values))
    if bool in kinds and len(kinds) > 1:
        is_bool = type(first) is bool
        index = next(i for i, value in enumerate(values) if (type(value) is bool) is not is_bool)
        _refuse(field, index, _kind(first), _kind(values[index]), _SAME_STRUCTURE)
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


def _collate_dataclass(values: Sequence[Any], field: str) -> Any:
    first = values[0]
    _check_same_type(values, field)
    # Neither __init__ nor a frozen class's __setattr__ takes part: see collate().
    batch = object.__new__(type(first))
    for name in (each.name for each in dataclasses.fields(first)):
        column = [getattr(value, name) for value in values]
        object.__setattr__(batch, name, _collate(column, f"{field}.{name}"))
    return batch


def _collate_mapping(values: Sequence[Any], field: str) -> Any:
    first = values[0]
    for index, value in enumerate(values):
        if value.keys() != first.keys():
            keys = [f"the keys {sorted(map(repr, each))}" for each in (first, value)]
            _refuse(field, index, keys[0], keys[1], _SAME_STRUCTURE)
    batch = {key: _collate([value[key] for value in values], f"{field}[{key!r}]") for key in first}
    if type(first) is dict:
        return batch
    if isinstance(first, dict):
        # A copy keeps what the constructor does not tell, as a defaultdict's factory.
        rebuilt = copy.copy(first)
        rebuilt.update(batch)
        return rebuilt
    try:
        return type(first)(batch)
    except TypeError:
        return batch


def _collate_named_tuple(values: Sequence[Any], field: str) -> Any:
    _check_same_type(values, field)
    kind = type(values[0])
    columns = zip(kind._fields, zip(*values, strict=True), strict=True)
    return kind._make(_collate(column, f"{field}.{name}") for name, column in columns)


def _collate_tuple(values: Sequence[Any], field: str) -> tuple[Any, ...]:
    return tuple(_collate_list(values, field))


def _collate_list(values: Sequence[Any], field: str) -> list[Any]:
    first = values[0]
    for index, value in enumerate(values):
        if len(value) != len(first):
            _refuse(field, index, f"{len(first)} elements", f"{len(value)}", _SAME_LENGTH)
    columns = enumerate(zip(*values, strict=True))
    return [_collate(column, f"{field}[{position}]") for position, column in columns]


def _list_values(values: Sequence[Any], field: str) -> list[Any]:
    del field
    return list(values)


def _check_same_type(values: Sequence[Any], field: str) -> None:
    first = values[0]
    for index, value in enumerate(values):
        if type(value) is not type(first):
            _refuse(field, index, _kind(first), _kind(value), _SAME_STRUCTURE)


def _refuse(field: str, index: int, first: str, other: str, advice: str) -> NoReturn:
    raise CollateError(
        f"samples 0 and {index} do not fit into one batch: {field} is {first} in sample 0 and "
        f"{other} in sample {index}; {advice}"
    )


def _to_one_shape(value: Any) -> str:
    """Return the advice for arrays of different shapes; what looks like a picture can be resized."""
    is_picture = value.ndim == 3 and str(value.dtype) in ("uint8", "torch.uint8")
    return _SAME_SIZE if is_picture else _SAME_SHAPE


def _shape(value: Any) -> str:
    return f"{_kind(value)} of shape {tuple(value.shape)}, dtype {value.dtype},"


def _kind(value: object) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
