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

from collections.abc import Mapping, Sequence
from typing import Any

from spdl_async.collate._pad import checked_axis, checked_value, lengths_of, padded
from spdl_async.collate._stack import STACKED
from spdl_async.collate._tree import gather
from spdl_async.errors import CollateError

__all__ = ["collate", "pad"]


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
        TypeError: this is one sample, and no list of them.

    Example:
        >>> import numpy as np
        >>> images, labels = collate([(np.zeros((64, 48, 3), np.uint8), n) for n in (4, 7)])
        >>> images.shape, images.dtype, labels
        (torch.Size([2, 64, 48, 3]), torch.uint8, tensor([4, 7]))
    """
    _check_list(samples, "collate")
    if len(samples) == 0:
        raise CollateError("there are no samples to collate: the list is empty")
    return gather(samples, "sample", STACKED)


def pad(samples: Sequence[object], /, *, axis: int = 0, value: float = 0) -> tuple[Any, Any]:
    """Stack samples whose arrays differ in length along one axis, padding them to the longest.

    Use it after `aggregate`, best after `aggregate(BucketBy(…))`, which keeps the padding small:
    ``.pipe(functools.partial(pad, value=-1))``. Samples may be trees, as with :func:`collate`.

    Args:
        samples: the samples, at least one, all of the same structure. They are only read.
        axis: the axis of each sample's arrays that is padded, at its end; negative: from the last
            one. Arrays and tensors that have no such axis (numbers above all) are stacked as by
            ``collate``, and everything else comes out as there too.
        value: what the padding holds. It must be exact in arrays of integers and booleans.

    Returns:
        The pair (batch, lengths), both with the structure of one sample. Where a sample has an array of
        shape ``(…, length, …)``, the batch has a tensor of shape ``(len(samples), …, longest, …)``
        of the same dtype, and ``lengths`` an int64 tensor of shape ``(len(samples),)``. Where nothing
        is padded ``lengths`` has None.

    Raises:
        CollateError: there are no samples, two of them differ in structure, dtype or in another
            axis than the padded one, or ``value`` does not fit; the message names the samples'
            positions, their shapes and the field.
        TypeError: this is one sample, and no list of them.

    Example:
        >>> import numpy as np
        >>> batch, lengths = pad([np.array([1, 2, 3]), np.array([4])], value=-1)
        >>> batch, lengths
        (tensor([[ 1,  2,  3],
                [ 4, -1, -1]]), tensor([3, 1]))
        >>> (tokens, labels), (token_lengths, _) = pad([(np.array([5, 6]), 0), (np.array([7]), 1)])
        >>> tokens, labels, token_lengths
        (tensor([[5, 6],
                [7, 0]]), tensor([0, 1]), tensor([2, 1]))
    """
    _check_list(samples, "pad")
    if len(samples) == 0:
        raise CollateError("there are no samples to pad: the list is empty")
    axis, value = checked_axis(axis), checked_value(value)
    batch = gather(samples, "sample", padded(axis, value))
    return batch, gather(samples, "sample", lengths_of(axis))


def _check_list(samples: object, caller: str) -> None:
    if isinstance(samples, (list, tuple)):
        return
    a_sample = isinstance(samples, (Mapping, str, bytes, bytearray))
    if a_sample or not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
        raise TypeError(
            f"{caller} takes a list of samples, not {type(samples).__name__}: put .aggregate(n) above it, "
            f"which makes lists"
        )
