"""The tensors, arrays and objects of a batch, each as what a copy needs of it."""

from __future__ import annotations

from typing import Any, Final, Literal, NoReturn

import numpy as np
import torch

from spdl_async.device._paths import Path, show
from spdl_async.errors import DeviceError

_STRIDED: Final = torch.strided
_INTEGER, _FLOATING, _COMPLEX, _QUANTISED = range(4)
_DTYPES: Final = {
    dtype: _COMPLEX if dtype.is_complex else _FLOATING if dtype.is_floating_point else _INTEGER
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.quint"))
}
"""Whether there may be a gradient, or a view that negates or conjugates."""

_NO_KEY: Final = object()
"""Stands beside a path that is complete: one of its own for each of 2,000 tensors costs too much."""
_NO_DISPATCH: Final = torch.Tensor.__torch_dispatch__

KindOfLeaf = Literal["tensor", "odd", "object"]


class Leaf:
    """One tensor, array or object of a batch.

    Attributes:
        path: keys, positions and names of attributes that lead to it, where it appears first.
        kind: ``"tensor"``: `tensor` is dense and strided, and its bytes are its numbers. ``"odd"``: `tensor`
            is sparse, quantised, nested or of a subclass that wraps others, and can only be moved by its own
            ``to``. ``"object"``: `source` is an object with its own ``to`` or ``pin_memory``.
        tensor: a tensor without gradient, which shares the memory of `source` where that is possible. None
            for objects.
        source: what stands in the batch.
        like: `source` where it is of a subclass of tensor, as which `wrap` returns the moved tensor; else
            None.
    """

    __slots__ = ("_above", "_key", "source", "tensor")

    kind: KindOfLeaf = "tensor"

    def __init__(self, above: Path, key: Any, source: Any, tensor: Any) -> None:
        self._above = above
        self._key = key
        self.source = source
        self.tensor = tensor

    @property
    def path(self) -> Path:
        """Where it appears first."""
        return _joined(self._above, self._key)

    @property
    def like(self) -> Any:
        """What the moved tensor is to be like."""
        return None

    @property
    def where(self) -> str:
        """Where it is, for people: ``batch['image'][0].mask``."""
        return show(self.path)

    @property
    def thing(self) -> Any:
        """The object, where `kind` is ``"object"``; else None."""
        return None

    def wrap(self, value: Any) -> Any:
        """Return a moved tensor as one of the class of `like`, with its attributes; else the value itself."""
        return value


class _Wrapped(Leaf):
    __slots__ = ()

    @property
    def like(self) -> Any:
        return self.source

    def wrap(self, value: Any) -> Any:
        like = self.source
        if value is self.tensor and not like.requires_grad:
            return like
        with torch._C.DisableTorchFunctionSubclass():
            wrapped = value.as_subclass(type(like))
        wrapped.__dict__.update(like.__dict__)
        return wrapped


class _Odd(Leaf):
    __slots__ = ()
    kind = "odd"


class _Object(Leaf):
    __slots__ = ()
    kind = "object"

    @property
    def thing(self) -> Any:
        return self.source


def _joined(above: Path, key: Any) -> Path:
    return above if key is _NO_KEY else (*above, key)


def plain_leaf(value: torch.Tensor, above: Path, key: Any) -> Leaf:
    """Return the leaf of a tensor that is of no subclass."""
    # Each question costs 0.1 µs, and of 2,000 tensors in a batch all are asked: see the order.
    kind = _DTYPES.get(value.dtype, _QUANTISED)
    if kind is _QUANTISED or value.layout is not _STRIDED or value.is_nested:
        return _Odd(above, key, value, _detached(value))
    if value.is_meta:
        where = show(_joined(above, key))
        raise DeviceError(
            f"{where} is a meta tensor, of shape {tuple(value.shape)}: it has no data that could be copied; "
            f"leave it out by only=…",
            field=where,
        )
    if kind is _INTEGER:
        return Leaf(above, key, value, value)
    if kind is _COMPLEX or value.requires_grad or value.is_neg():
        return Leaf(above, key, value, _detached(value).resolve_conj().resolve_neg())
    return Leaf(above, key, value, value)


def _detached(value: torch.Tensor) -> torch.Tensor:
    return value.detach() if value.requires_grad else value


def tensor_leaf(value: torch.Tensor, path: Path) -> Leaf:
    """Return the leaf of any tensor."""
    kind = type(value)
    if kind is torch.Tensor:
        return plain_leaf(value, path, _NO_KEY)
    if kind.__torch_dispatch__ is not _NO_DISPATCH:  # it has other tensors in it, and no bytes
        return _Odd(path, _NO_KEY, value, _detached(value))
    with torch._C.DisableTorchFunctionSubclass():
        if value.layout is not _STRIDED or value.is_quantized or value.is_nested:
            return _Odd(path, _NO_KEY, value, _detached(value))
        leaf = plain_leaf(value.as_subclass(torch.Tensor), path, _NO_KEY)
    return _Wrapped(path, _NO_KEY, value, leaf.tensor)


def object_leaf(value: Any, path: Path) -> Leaf:
    """Return the leaf of an object that knows how it is moved."""
    return _Object(path, _NO_KEY, value, None)


def array_leaf(value: np.ndarray[Any, Any], path: Path) -> Leaf:
    """Return the leaf of an array.

    Raises:
        DeviceError: torch has no such dtype, or the array has a mask.
    """
    return Leaf(path, _NO_KEY, value, _tensor_of(value, path))


def _tensor_of(array: np.ndarray[Any, Any], path: Path) -> torch.Tensor:
    if isinstance(array, np.ma.MaskedArray):
        _refuse(path, "a masked array", "fill it first, as with array.filled(0)")
    try:
        # torch warns of read-only memory, once in a process, and the tensor could be written to.
        return torch.from_numpy(array if array.flags.writeable else _native(array))
    except ValueError:  # negative strides, another byte order, fields of a structure
        return _tensor_of(_native(array), path)
    except TypeError:
        return _unknown_dtype(array, path)


def _unknown_dtype(array: np.ndarray[Any, Any], path: Path) -> torch.Tensor:
    dtype = array.dtype
    if dtype.name == "bfloat16" or dtype.name.startswith("float8_"):  # of the package ml_dtypes
        same: torch.dtype | None = getattr(torch, dtype.name, None)
        if same is not None:
            bits = array.view(f"u{dtype.itemsize}")
            return _tensor_of(bits, path).view(same)
    return _refuse(
        path,
        f"a numpy array of dtype {dtype}, which torch does not have",
        "convert it first, as with array.astype(…)",
    )


def _native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy in a form that torch can share."""
    return np.array(array, array.dtype.newbyteorder("="), copy=True, order="K", subok=False)


def _refuse(path: Path, what: str, advice: str) -> NoReturn:
    raise DeviceError(
        f"{show(path)} is {what}, and cannot go to a device: {advice}, turn it into a list above "
        f"to_device, or choose the fields that are moved by only=…",
        field=show(path),
    )
