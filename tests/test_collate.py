"""collate: every kind of value, nested, and every mismatch with a message that locates it."""

from __future__ import annotations

import enum
import types
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from spdl_async.collate import collate, pad
from spdl_async.errors import CollateError

pytestmark = pytest.mark.torch

NUMPY_DTYPES = ["?", "u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
TORCH_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex32,
    torch.complex64,
]


class Color(enum.IntEnum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclass
class Plain:
    image: Any
    label: Any


@dataclass(frozen=True)
class Frozen:
    image: Any
    label: Any


@dataclass(frozen=True, slots=True)
class Slotted:
    image: Any
    label: Any


@dataclass
class Checked:
    """One whose rules hold for a sample only, and with a field that __init__ does not take."""

    label: int
    doubled: int = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.label, int):
            raise TypeError("label must be an int")
        self.doubled = 2 * self.label


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 5)])
def test_arrays_of_every_dtype(dtype: str, shape: tuple[int, ...]) -> None:
    samples = [np.full(shape, number, dtype) for number in range(3)]
    batch = collate(samples)
    assert batch.shape == (3, *shape)
    assert np.array_equal(batch.numpy(), np.stack(samples))
    assert batch.numpy().dtype == np.dtype(dtype)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 5)])
def test_tensors_of_every_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    samples = [torch.full(shape, number, dtype=torch.float32).to(dtype) for number in range(3)]
    batch = collate(samples)
    assert batch.dtype is dtype
    assert batch.is_contiguous()
    assert torch.equal(batch.to(torch.complex64), torch.stack(samples).to(torch.complex64))


def test_a_batch_shares_no_memory_with_its_samples() -> None:
    array, tensor = np.zeros(3), torch.zeros(3)
    arrays, tensors = collate([(array, tensor)])
    arrays += 1
    tensors += 1
    assert array.sum() == 0
    assert tensor.sum() == 0


def test_arrays_as_they_come() -> None:
    """Read-only, sliced, Fortran-ordered, mapped backwards, and in the other byte order."""
    read_only = np.arange(6.0).reshape(2, 3)
    read_only.flags.writeable = False
    swapped = np.arange(6.0).astype(">f8").reshape(2, 3)
    kinds = [
        read_only,
        np.arange(24.0).reshape(4, 6)[::2, ::2],
        np.asfortranarray(read_only),
        read_only[::-1, ::-1],
        swapped,
    ]
    batch = collate(kinds)
    assert batch.dtype is torch.float64
    assert np.array_equal(batch.numpy(), np.stack(kinds))
    assert np.array_equal(collate(kinds[::-1]).numpy(), np.stack(kinds[::-1]))


def test_tensors_as_they_come() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    kinds = [base[::2, ::2], base.T[:2, :3], base[0, 0].expand(2, 3)]
    assert torch.equal(collate(kinds), torch.stack(kinds))
    half = [each.to(torch.bfloat16) for each in kinds]
    assert torch.equal(collate(half), torch.stack(half))


def test_tensors_that_are_more_than_numbers_are_left_to_torch() -> None:
    weights = [torch.ones(2, requires_grad=True), torch.zeros(2)]
    batch = collate(weights)
    assert batch.requires_grad
    conjugates = [torch.tensor([1 + 2j]).conj(), torch.tensor([3 + 4j]).conj()]
    assert torch.equal(collate(conjugates), torch.tensor([[1 - 2j], [3 - 4j]]))
    assert collate([torch.empty(2, device="meta")] * 2).device.type == "meta"
    sparse = [torch.eye(2).to_sparse()] * 2
    assert torch.equal(collate(sparse).to_dense(), torch.stack([torch.eye(2)] * 2))


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([1, 2], torch.tensor([1, 2])),
        ([-(2**63), 2**63 - 1], torch.tensor([-(2**63), 2**63 - 1])),
        ([1.5, 2.0], torch.tensor([1.5, 2.0], dtype=torch.float64)),
        ([1, 2.5], torch.tensor([1, 2.5], dtype=torch.float64)),
        ([0.5, 1], torch.tensor([0.5, 1], dtype=torch.float64)),
        ([True, False], torch.tensor([True, False])),
        ([np.float32(1), np.float32(2)], torch.tensor([1.0, 2.0])),
        ([np.float64(1), np.float64(2)], torch.tensor([1.0, 2.0], dtype=torch.float64)),
        ([np.bool_(True)], torch.tensor([True])),
        ([np.uint8(1), np.array(2, np.uint8)], torch.tensor([1, 2], dtype=torch.uint8)),
        ([Color.RED, Color.BLUE], torch.tensor([1, 2])),
    ],
)
def test_numbers(samples: list[Any], expected: torch.Tensor) -> None:
    batch = collate(samples)
    assert batch.dtype is expected.dtype
    assert torch.equal(batch, expected)


@pytest.mark.parametrize("samples", [[1, 2], [1.5, 2.5], [np.float32(1)], [np.zeros(3, "i2")] * 2])
def test_dtypes_are_those_of_torch(samples: list[Any]) -> None:
    from torch.utils.data import default_collate

    expected = default_collate(samples)
    assert collate(samples).dtype is expected.dtype
    assert torch.equal(collate(samples), expected)


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        [b"a", b"b"],
        [None, None],
        [Path("a"), Path("b")],
        [None, "a"],
        [range(2), {3}],
        [np.str_("a"), np.str_("b")],
        [int, Plain],
        [1j, 2j],
    ],
)
def test_what_no_tensor_can_hold_becomes_a_list(values: list[Any]) -> None:
    assert collate(values) == values
    assert collate(tuple(values)) == values


@pytest.mark.parametrize("kind", [Pair, Plain, Frozen, Slotted])
def test_records_come_back_as_what_they_are(kind: Any) -> None:
    batch = collate([kind(np.full((2, 2), number), number) for number in range(3)])
    assert type(batch) is kind
    assert batch.image.shape == (3, 2, 2)
    assert torch.equal(batch.label, torch.tensor([0, 1, 2]))


def test_a_dataclass_is_rebuilt_without_its_checks() -> None:
    batch = collate([Checked(1), Checked(2)])
    assert type(batch) is Checked
    assert torch.equal(torch.as_tensor(batch.doubled), torch.tensor([2, 4]))


def test_tuples_and_lists_stay_what_they_are() -> None:
    batch = collate([(1, [np.zeros(2), "a"]), (2, [np.ones(2), "b"])])
    assert type(batch) is tuple
    assert type(batch[1]) is list
    assert batch[1][0].shape == (2, 2)
    assert batch[1][1] == ["a", "b"]
    assert collate([(), ()]) == ()
    assert collate([[], []]) == []


class FixedMapping(Mapping[str, Any]):
    """A mapping that cannot be made from a dict."""

    def __init__(self, *, x: int) -> None:
        self.x = x

    def __getitem__(self, key: str) -> Any:
        return {"x": self.x}[key]

    def __iter__(self) -> Iterator[str]:
        return iter("x")

    def __len__(self) -> int:
        return 1


def test_mappings() -> None:
    ordered = collate([OrderedDict(b=1, a=2), OrderedDict(a=4, b=3)])
    assert type(ordered) is OrderedDict
    assert list(ordered) == ["b", "a"]
    assert ordered["a"].tolist() == [2, 4]

    sample: defaultdict[str, Any] = defaultdict(list, x=1)
    batch = collate([sample, sample])
    assert type(batch) is defaultdict
    assert batch.default_factory is list
    assert sample == {"x": 1}, "samples are only read"

    user = UserDict(x=1)
    assert type(collate([user, user])) is UserDict
    assert user == {"x": 1}
    assert type(collate([types.MappingProxyType({"x": 1})])) is types.MappingProxyType
    assert type(collate([{"x": 1}, OrderedDict(x=2)])) is dict
    assert type(collate([FixedMapping(x=1)])) is dict


def test_deep_nesting() -> None:
    def sample(number: int) -> Any:
        return {"pairs": [Pair(np.zeros((number and 3) or 3), {"name": str(number)})], "id": number}

    batch = collate([sample(0), sample(1)])
    assert batch["pairs"][0].image.shape == (2, 3)
    assert batch["pairs"][0].label == {"name": ["0", "1"]}
    assert batch["id"].tolist() == [0, 1]


def test_nothing_to_collate() -> None:
    with pytest.raises(CollateError, match="no samples"):
        collate([])


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (
            np.zeros((2, 3), "u1"),
            np.zeros((2, 4), "u1"),
            r"numpy.ndarray of shape \(2, 3\).*shape \(2, 4\).*to one shape.*pad them",
        ),
        (np.zeros(2, "f4"), np.zeros(2, "f8"), "dtype float32.*dtype float64.*one dtype"),
        (torch.zeros(2), torch.zeros(3), r"torch.Tensor of shape \(2,\).*\(3,\).*pad them"),
        (torch.zeros(2), torch.zeros(2).int(), "dtype torch.float32.*dtype torch.int32"),
        (torch.zeros(2), torch.zeros(2, device="meta"), "device cpu.*device meta.*one device"),
        (np.zeros(2), torch.zeros(2), "numpy.ndarray.*torch.Tensor.*same structure"),
        (1, None, "int.*NoneType"),
        (1, True, "int.*bool"),
        (False, 0.5, "bool.*float"),
        (1, np.int64(1), r"int .*numpy.int64"),
        ("a", 1, "str.*int"),
        ({"a": 1}, {"b": 1}, "the keys 'a' in sample 0 and the keys 'b' in"),
        ({"a": 1}, {"a": 1, "b": 1}, "the keys"),
        ((1, 2), (1,), "2 elements.*1 in sample 3.*pad them to one length"),
        ((1,), [1], "tuple.*list"),
        (Pair(1, 2), (1, 2), "Pair.*tuple"),
        (Plain(1, 2), Frozen(1, 2), "Plain.*Frozen"),
    ],
)
def test_mismatches_name_both_samples_and_what_differs(good: Any, bad: Any, message: str) -> None:
    with pytest.raises(CollateError, match=f"samples 0 and 3 .*: sample is .*{message}"):
        collate([good, good, good, bad, good])
    with pytest.raises(CollateError, match=f"sample.image is .*{message}"):
        collate([Plain(good, 0)] * 3 + [Plain(bad, 0)])


def test_the_field_is_named_as_one_reaches_it() -> None:
    def sample(length: int) -> Any:
        return (0, Plain({"boxes": [np.zeros(2), np.zeros(length)]}, 0))

    with pytest.raises(CollateError) as caught:
        collate([sample(2), sample(3)])
    assert "sample[1].image['boxes'][1] is" in str(caught.value)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(["a"]), "dtype <U1, which torch does not have"),
        (np.array([object()]), "dtype object"),
        (np.array(["2020-01-01"], "M8[D]"), "datetime64"),
        (np.zeros(1, [("x", "i4")]), "which torch does not have"),
        (np.ma.masked_array([1, 2], [True, False]), "masked array.*filled"),
    ],
)
def test_arrays_that_torch_cannot_hold_are_refused(array: Any, message: str) -> None:
    with pytest.raises(CollateError, match=rf"sample\['x'\].*{message}"):
        collate([{"x": array}, {"x": array}])


def test_integers_that_are_too_large_are_refused() -> None:
    with pytest.raises(CollateError, match="sample holds an integer that int64 cannot"):
        collate([1, 2**63])


@pytest.mark.parametrize(
    "make", [lambda *a: np.zeros(*a), lambda s, d: torch.from_numpy(np.zeros(s, d))]
)
@pytest.mark.parametrize(
    ("shape", "other", "dtype", "is_picture"),
    [
        ((8, 6, 3), (9, 6, 3), "u1", True),
        ((8, 6, 3), (9, 6, 3), "f4", False),
        ((8, 6), (9, 6), "u1", False),
        ((8,), (9,), "f8", False),
    ],
)
def test_only_what_looks_like_a_picture_is_told_to_be_resized(
    make: Any, shape: tuple[int, ...], other: tuple[int, ...], dtype: str, is_picture: bool
) -> None:
    with pytest.raises(CollateError) as caught:
        collate([make(shape, dtype), make(other, dtype)])
    assert ("decode_image" in str(caught.value)) is is_picture
    assert "pad them" in str(caught.value)


@pytest.mark.parametrize("function", [collate, pad])
@pytest.mark.parametrize("sample", [{"a": 1}, "text", b"bytes", 3, None, Path("a.jpg"), {1, 2}])
def test_one_sample_in_place_of_a_list_is_refused(function: Any, sample: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"a list of samples, not {type(sample).__name__}.*aggregate"
    ):
        function(sample)
