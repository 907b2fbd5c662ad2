"""What is told to the allocator of a GPU about tensors that are made of others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from spdl_async.device._cuda import CudaDevice, parts_of

pytestmark = pytest.mark.torch


def test_parts_of_a_plain_tensor_are_itself() -> None:
    tensor = torch.ones(3)
    assert parts_of(tensor) == [tensor]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_parts_of_sparse_tensors(layout: str) -> None:
    dense = torch.eye(4)
    made: dict[str, Callable[[], torch.Tensor]] = {
        "coo": dense.to_sparse,
        "csr": dense.to_sparse_csr,
        "csc": dense.to_sparse_csc,
        "bsr": lambda: dense.to_sparse_bsr((2, 2)),
        "bsc": lambda: dense.to_sparse_bsc((2, 2)),
    }
    tensor = made[layout]()
    parts = parts_of(tensor)
    assert len(parts) == (2 if layout == "coo" else 3)
    assert all(part.layout == torch.strided for part in parts)
    values = tensor._values() if layout == "coo" else tensor.values()
    assert parts[-1].data_ptr() == values.data_ptr()


@pytest.mark.parametrize("jagged", [False, True])
def test_parts_of_nested_tensors(jagged: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layout = torch.jagged if jagged else torch.strided
        tensor = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    parts = parts_of(tensor)
    assert all(type(part) is torch.Tensor and not part.is_nested for part in parts)
    assert sum(part.nbytes for part in parts) >= 5 * 4


def test_the_part_of_a_quantised_tensor_is_its_memory() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.quantize_per_tensor(torch.ones(5), 0.1, 0, torch.quint8)
    (part,) = parts_of(tensor)
    assert (part.dtype, part.nbytes) == (torch.uint8, 5)
    assert part.data_ptr() == tensor.data_ptr()


def test_each_part_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Any, Any]] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *args: told.append(args))
    backend = CudaDevice(torch.device("cuda", 0))
    plain, sparse, stream = torch.ones(2), torch.eye(2).to_sparse(), object()
    backend.keep_for(plain, stream)  # type: ignore[arg-type]  # no stream here
    backend.keep_for(sparse, stream)  # type: ignore[arg-type]
    assert told[0][0] is plain
    assert [(part.data_ptr(), where) for part, where in told[1:]] == [
        (sparse._indices().data_ptr(), stream),
        (sparse._values().data_ptr(), stream),
    ]
