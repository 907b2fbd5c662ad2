"""What arrives on a device: every dtype and layout to the bit, every container as it was (G8, G9a, G14)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from fakes import calls, copying, inline_for, notes, sync_for

from spdl_async import DeviceError, PipelineBuilder
from spdl_async.testing import FakeDevice

pytestmark = pytest.mark.torch

DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def bits(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of bits that are all sorts of numbers, NaN among them."""
    size = torch.empty(0, dtype=dtype).element_size()
    count = int(np.prod(shape))
    if dtype is torch.bool:
        return (torch.arange(count) % 3 == 0).view(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    raw = np.random.default_rng(1).integers(0, 256, count * size, np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)


LAYOUTS: dict[str, Any] = {
    "plain": lambda dtype: bits((3, 4, 5, 6), dtype),
    "0-d": lambda dtype: bits((1,), dtype)[0],
    "empty": lambda dtype: bits((0, 3), dtype),
    "one": lambda dtype: bits((1, 1, 1), dtype),
    "transposed": lambda dtype: bits((40, 50), dtype).T,
    "permuted": lambda dtype: bits((4, 5, 6), dtype).permute(2, 0, 1),
    "channels last": lambda dtype: bits((2, 7, 5, 3), dtype).permute(0, 3, 1, 2),
    "expanded": lambda dtype: bits((4, 1), dtype).expand(4, 9),
    "every other": lambda dtype: bits((40, 6), dtype)[::2, 1::2],
    "a part": lambda dtype: bits((40, 6), dtype)[3:17],
    "large": lambda dtype: bits((70, 2, 5000), dtype),
    "large, transposed": lambda dtype: bits((700, 1000), dtype).T,
    "large, every other": lambda dtype: bits((1400, 1000), dtype)[::2],
}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.numel():
        return True
    a, b = (x.contiguous().reshape(-1).view(torch.uint8) for x in (one, other))
    return torch.equal(a, b)


@pytest.mark.parametrize("pin", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits_arrive_and_return(layout: str, pin: bool) -> None:
    """Each dtype, beside the others and alone; as it is on the device, and back on the host."""
    tensors = {str(dtype): LAYOUTS[layout](dtype) for dtype in DTYPES}
    source = [tensors, *({name: tensor} for name, tensor in tensors.items())]
    fake = FakeDevice()
    builder = PipelineBuilder().add_source(source).to_device(fake, pin=pin)
    for made, batch in zip(source, builder.build(), strict=True):
        for name, tensor in made.items():
            there = batch[name]
            assert fake.is_here(there)
            assert same_bits(fake.read(there), tensor), name
    for made, batch in zip(source, builder.to_host(pin=pin).build(), strict=True):
        for name, tensor in made.items():
            assert not fake.is_here(batch[name])
            assert same_bits(batch[name], tensor), name


def test_strides_are_kept_where_elements_are_next_to_each_other() -> None:
    fake = FakeDevice()
    made = [LAYOUTS["channels last"](torch.float32), LAYOUTS["transposed"](torch.uint8)]
    (batch,) = PipelineBuilder().add_source([made]).to_device(fake).build()
    assert [x.stride() for x in batch] == [x.stride() for x in made]
    assert batch[0].is_contiguous(memory_format=torch.channels_last)


ARRAYS: dict[str, Any] = {
    "reversed": np.arange(12, dtype=np.int16).reshape(3, 4)[::-1, ::-1],
    "big-endian": np.arange(5, dtype=">i4"),
    "read-only": np.frombuffer(b"abcdef", np.uint8),
    "Fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "0-d": np.array(7),
    "empty": np.zeros((2, 0)),
    "bool": np.array([True, False]),
    "half": np.arange(3, dtype=np.float16),
    "complex": np.array([1 + 2j]),
    "uint16": np.arange(3, dtype=np.uint16),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("device", ["fake", "cpu"])
def test_arrays_become_tensors(name: str, device: str) -> None:
    """On every device, the CPU included."""
    fake = FakeDevice()
    target: Any = fake if device == "fake" else "cpu"
    (result,) = PipelineBuilder().add_source([ARRAYS[name]]).to_device(target).build()
    assert isinstance(result, torch.Tensor)
    fake.synchronize()
    assert result.numpy().tolist() == ARRAYS[name].tolist()
    assert result.shape == ARRAYS[name].shape


def test_on_the_cpu_arrays_share_their_memory() -> None:
    """G9a, G14: nothing is copied, whatever its size."""
    array, tensor = np.zeros((4, 1 << 20), np.uint8), torch.zeros(3)
    pipeline = PipelineBuilder().add_source([{"a": array, "t": tensor}]).to_device("cpu").build()
    with pipeline.run_sync() as run:
        batch: Any
        (batch,) = run
        told = notes(run.statistics())
    array[2, 3] = 9
    assert int(batch["a"][2, 3]) == 9
    assert batch["t"] is tensor
    assert told["bytes_copied"] == told["batches_copied"] == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: [np.zeros(2, object)],
        lambda: {"x": np.array(["a"])},
        lambda: np.zeros(2, [("a", int)]),
        lambda: np.array(["2020-01-01"], "datetime64[D]"),
        lambda: np.ma.masked_array(np.zeros(2), mask=[False, True]),
        lambda: {"x": torch.zeros(2, device="meta")},
        lambda: {"model": torch.nn.Linear(1, 1)},
    ],
)
@pytest.mark.parametrize("device", ["fake", "cpu"])
def test_what_cannot_go_is_an_error_that_names_its_place(make: Any, device: str) -> None:
    target: Any = FakeDevice() if device == "fake" else "cpu"
    pipeline = PipelineBuilder().add_source([make()]).to_device(target).build()
    with pytest.raises(DeviceError, match="batch") as caught:
        list(pipeline)
    assert caught.value.field.startswith("batch")
    assert "stage 'to_device'" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_sparse_and_quantised_tensors(make: Any) -> None:
    """The fake has none, and says where the tensor is; the CPU has them already."""
    batch: dict[str, Any] = {"odd": make(), "x": torch.ones(2)}
    with pytest.raises(DeviceError, match=r"batch\['odd'\], of layout"):
        list(PipelineBuilder().add_source([batch]).to_device(FakeDevice()).build())
    (result,) = PipelineBuilder().add_source([batch]).to_device("cpu").build()
    assert result["odd"] is batch["odd"]


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    image: Any
    name: str


class Batch:
    """An object with a ``to`` of its own, and tensors in slots."""

    __slots__ = ("x",)

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        return Batch(self.x.to(device, non_blocking=non_blocking))


def test_containers_keep_their_types() -> None:
    fake = FakeDevice()
    word = "".join(["a", "b"])
    made: dict[str, Any] = {
        "pair": Pair(np.ones(2), torch.ones(2)),
        "frozen": Frozen(np.ones(2), word),
        "ordered": OrderedDict(b=np.ones(2), a=[1, (np.ones(2),)]),
        "word": word,
    }
    (batch,) = PipelineBuilder().add_source([made]).to_device(fake).build()
    assert type(batch["pair"]) is Pair
    assert type(batch["frozen"]) is Frozen
    assert type(batch["ordered"]) is OrderedDict
    assert type(batch["ordered"]["a"]) is list
    assert batch["word"] is word
    assert batch["frozen"].name is word
    there = [
        *batch["pair"],
        batch["frozen"].image,
        batch["ordered"]["b"],
        batch["ordered"]["a"][1][0],
    ]
    assert [fake.read(x).tolist() for x in there] == [[1, 1]] * 5
    assert all(fake.is_here(x) for x in there)


@pytest.mark.parametrize("consume", [sync_for, inline_for])
def test_objects_move_themselves_and_are_waited_for(consume: Any) -> None:
    fake = FakeDevice()
    seen: list[Any] = []

    def take(batch: Batch) -> None:
        assert fake.is_here(batch.x)
        fake.launch(lambda x: seen.append(x.tolist()), batch.x)

    consume(copying(fake, 30, lambda number: Batch(torch.full((2,), number))).build(), take)
    fake.synchronize()
    assert seen == [[n, n] for n in range(30)]
    assert len(calls(fake, "keep_for")) == 30


def test_a_tensor_that_appears_twice_is_copied_once() -> None:
    fake = FakeDevice()
    one = torch.ones(100)
    batch: Any
    (batch,) = PipelineBuilder().add_source([{"a": one, "b": [one]}]).to_device(fake).build()
    assert batch["a"] is batch["b"][0]
    assert [call.size for call in calls(fake, "copy")] == [400]


@pytest.mark.parametrize(
    "only",
    [("image",), [("image",)], lambda path, leaf: path == ("image",)],
    ids=["name", "path", "function"],
)
@pytest.mark.parametrize("device", ["fake", "cpu"])
def test_only_some_fields(only: Any, device: str) -> None:
    """G8: the others are the same objects."""
    fake = FakeDevice()
    target: Any = fake if device == "fake" else "cpu"
    made = {"image": np.ones(3), "mask": np.ones(3), "label": torch.ones(2), "key": ["a"]}
    (batch,) = PipelineBuilder().add_source([made]).to_device(target, only=only).build()
    assert isinstance(batch["image"], torch.Tensor)
    assert all(batch[name] is made[name] for name in ("mask", "label", "key"))


def test_only_a_name_that_is_not_there() -> None:
    pipeline = copying(FakeDevice(), 3, only=("picture",)).build()
    with pytest.raises(DeviceError, match=r"'picture'.*its fields are 'image'"):
        list(pipeline)


def test_gradients_are_left_behind() -> None:
    fake = FakeDevice()
    made = [torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.complex64).conj()]
    (batch,) = PipelineBuilder().add_source([made]).to_device(fake).build()
    assert not batch[0].requires_grad
    assert not batch[1].is_conj()
    assert fake.read(batch[1]).tolist() == [1, 1]
