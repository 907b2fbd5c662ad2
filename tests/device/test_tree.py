"""Batches as trees: what is found and what is rebuilt, with every kind of container and of tensor."""

from __future__ import annotations

import copy
import types
import warnings
from collections import Counter, OrderedDict, UserDict, defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pytest

import spdl_async

pytest.importorskip("torch")

import torch

from spdl_async.device._leaves import Leaf
from spdl_async.device._only import chosen
from spdl_async.device._tree import Found, find

pytestmark = pytest.mark.torch


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """Stand for the copy on a device."""
    return tensor + 100


def rebuilt(batch: Any, only: object = None) -> Any:
    found = find(batch, only)
    return found.rebuild([moved(leaf.tensor) for leaf in found.leaves])


def one(number: int) -> torch.Tensor:
    return torch.full((2,), number)


def is_moved(value: Any, number: int) -> bool:
    return isinstance(value, torch.Tensor) and value.tolist() == [100 + number] * 2


def leaf_of(value: Any) -> Leaf:
    (leaf,) = find({"x": value}).leaves
    return leaf


def paths(found: Found) -> list[str]:
    return [leaf.where for leaf in found.leaves]


# Containers


class Pair(NamedTuple):
    image: Any
    label: Any


class NoisyPair(Pair):
    def __new__(cls, image: Any, label: Any, *, noise: float) -> Self:
        made = super().__new__(cls, image, label)
        made.noise = noise
        return made

    noise: float


class Names(list[Any]):
    def __init__(self, first: Any, *, of: str) -> None:
        super().__init__([first])
        self.of = of


class Fields(dict[str, Any]):
    def __init__(self, *, image: Any, of: str) -> None:
        super().__init__(image=image)
        self.of = of


class Encoding(UserDict[str, Any]):
    """As transformers' BatchEncoding: `to` moves it in place."""

    def to(self, device: Any) -> Encoding:
        raise AssertionError("its fields are moved one by one")


class Frozendict(Mapping[str, Any]):
    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Mutable(Frozendict, MutableMapping[str, Any]):
    """Its copy, which nobody has written, shares the dict inside."""

    def __setitem__(self, key: str, value: Any) -> None:
        self._items[key] = value

    def __delitem__(self, key: str) -> None:
        del self._items[key]


@dataclass
class Output(OrderedDict[str, Any]):
    """As transformers' ModelOutput: its items are attributes too."""

    image: Any = None
    loss: Any = None

    def __post_init__(self) -> None:
        for name in ("image", "loss"):
            if self.__dict__[name] is not None:
                super().__setitem__(name, self.__dict__[name])

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __reduce__(self) -> Any:
        return Output, (self.__dict__["image"], self.__dict__["loss"])


@dataclass
class Plain:
    image: Any
    count: InitVar[int]
    label: str = "cat"
    twice: int = field(init=False, default=0)
    unset: Any = field(init=False)

    def __post_init__(self, count: int) -> None:
        assert isinstance(self.image, torch.Tensor)
        assert count
        self.twice = 2 * count


@dataclass(frozen=True)
class Frozen:
    image: Any
    label: str = "cat"


@dataclass(slots=True)
class Slotted:
    image: Any
    label: str = "cat"
    later: Any = field(init=False, repr=False)


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    image: Any
    label: str = "cat"


def test_a_list_a_tuple_and_a_dict_are_rebuilt_around_new_tensors() -> None:
    label = ["cat", object()]
    batch = {"pair": (one(1), label), "more": [label, {"deep": one(2)}], 3: one(3)}
    before = copy.copy(batch)
    found = find(batch)
    assert paths(found) == ["batch['pair'][0]", "batch['more'][1]['deep']", "batch[3]"]
    assert [leaf.path for leaf in found.leaves] == [("pair", 0), ("more", 1, "deep"), (3,)]
    new = found.rebuild([moved(leaf.tensor) for leaf in found.leaves])
    assert list(new) == ["pair", "more", 3]
    assert type(new["pair"]) is tuple
    assert is_moved(new["pair"][0], 1)
    assert is_moved(new["more"][1]["deep"], 2)
    assert is_moved(new[3], 3)
    assert new["pair"][1] is label
    assert new["more"][0] is label
    assert all(batch[key] is before[key] for key in batch)


def test_a_batch_that_is_one_tensor() -> None:
    found = find(one(4))
    assert paths(found) == ["batch"]
    assert found.leaves[0].path == ()
    assert is_moved(rebuilt(one(4)), 4)


@pytest.mark.parametrize("batch", [{"a": [1, ("b", None)]}, [], "text", None, {}, np.float32(3)])
def test_a_batch_without_tensors_is_the_same_object(batch: Any) -> None:
    found = find(batch)
    assert found.leaves == []
    assert found.rebuild([]) is batch


def test_subtrees_without_tensors_keep_their_identity() -> None:
    batch = {"image": one(1), "names": [["a"], {"b": ()}], "other": Frozen(7)}
    new = rebuilt(batch)
    assert new["names"] is batch["names"]
    assert new["other"] is batch["other"]


def test_a_tensor_that_appears_twice_is_one_leaf() -> None:
    tensor, array = one(1), np.array([2, 2])
    found = find({"a": tensor, "b": [tensor, array], "c": {"d": array}})
    assert paths(found) == ["batch['a']", "batch['b'][1]"]
    new = found.rebuild([moved(leaf.tensor) for leaf in found.leaves])
    assert new["a"] is new["b"][0]
    assert new["b"][1] is new["c"]["d"]


def test_equal_tensors_are_two_leaves() -> None:
    assert len(find([one(1), one(1)]).leaves) == 2


def test_a_container_that_appears_twice_is_rebuilt_once() -> None:
    shared = [one(1)]
    new = rebuilt({"a": shared, "b": (shared,), "c": [[], []]})
    assert new["a"] is new["b"][0]
    assert is_moved(new["a"][0], 1)


def test_sharing_does_not_multiply_the_work() -> None:
    batch: Any = [one(1)]
    for _ in range(100):
        batch = [batch, batch]
    new = rebuilt(batch)
    while isinstance(new, list):
        new = new[-1]
    assert is_moved(new, 1)


def test_values_that_a_mapping_makes_when_asked_are_not_confused() -> None:
    class Made(UserDict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return Slotted(super().__getitem__(key))

    # One that is freed while the walk goes on gives its id to one of the next.
    items = {str(i): one(i) if i % 3 == 0 else object() for i in range(12)}
    found = find(Made(items))
    assert [leaf.tensor[0].item() for leaf in found.leaves] == [0, 3, 6, 9]


def test_named_tuples_keep_their_type_and_attributes() -> None:
    new = rebuilt(Pair(one(1), "cat"))
    assert type(new) is Pair
    assert is_moved(new.image, 1)
    assert new.label == "cat"
    noisy = rebuilt(NoisyPair(one(1), "cat", noise=0.5))
    assert type(noisy) is NoisyPair
    assert (noisy.label, noisy.noise) == ("cat", 0.5)
    assert paths(find([Pair("cat", one(1))])) == ["batch[0].label"]


def test_the_tuples_that_torch_returns() -> None:
    new = rebuilt(torch.max(torch.tensor([[1, 3], [5, 4]]), 1))
    assert type(new) is torch.return_types.max
    assert new.values.tolist() == [103, 105]


def test_subclasses_of_list_keep_their_attributes() -> None:
    batch = Names(one(1), of="cats")
    new = rebuilt(batch)
    assert type(new) is Names
    assert is_moved(new[0], 1)
    assert new.of == "cats"
    assert is_moved(moved(batch[0]), 1)  # it was not written to


@pytest.mark.parametrize(
    "batch",
    [
        OrderedDict(label="cat", image=one(1)),
        defaultdict(list, label="cat", image=one(1)),
        Counter({"label": "cat", "image": one(1)}),
        UserDict(label="cat", image=one(1)),
        Encoding(label="cat", image=one(1)),
        Frozendict({"label": "cat", "image": one(1)}),
        Mutable({"label": "cat", "image": one(1)}),
        types.MappingProxyType({"label": "cat", "image": one(1)}),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_mappings_keep_their_type_and_order(batch: Any) -> None:
    image = batch["image"]
    new = rebuilt(batch)
    assert type(new) is type(batch)
    assert list(new) == ["label", "image"]
    assert new["label"] == "cat"
    assert is_moved(new["image"], 1)
    assert batch["image"] is image
    if isinstance(batch, defaultdict):
        assert new.default_factory is list


def test_a_subclass_of_dict_keeps_its_attributes() -> None:
    new = rebuilt(Fields(image=one(1), of="cats"))
    assert type(new) is Fields
    assert is_moved(new["image"], 1)
    assert new.of == "cats"


def test_a_mapping_whose_items_are_attributes_too() -> None:
    batch = Output(image=one(1))
    new = rebuilt(batch)
    assert type(new) is Output
    assert is_moved(new["image"], 1)
    assert new.image is new["image"]
    assert batch.image is not new.image


def test_a_mapping_that_cannot_be_made_is_an_error() -> None:
    class Locked(Frozendict):
        def __init__(self, path: str, size: int) -> None:
            super().__init__({"image": one(1)})

    with pytest.raises(spdl_async.DeviceError, match=r"Locked with other tensors.* cannot be made"):
        rebuilt(Locked("x", 3))


@pytest.mark.parametrize("kind", [Frozen, Slotted, FrozenSlotted])
def test_dataclasses_of_every_kind(kind: Any) -> None:
    batch: Any = kind(one(1))
    new: Any = rebuilt([batch])[0]
    assert type(new) is kind
    assert is_moved(new.image, 1)
    assert new.label == "cat"
    assert not is_moved(batch.image, 1)
    assert paths(find(batch)) == ["batch.image"]


def test_no_init_of_a_dataclass_runs() -> None:
    batch = Plain(one(1), count=4)
    batch.extra = "kept"  # type: ignore[attr-defined]
    found = find(batch)
    new = found.rebuild(["not a tensor"])
    assert (new.image, new.twice, new.extra) == ("not a tensor", 8, "kept")
    assert not hasattr(new, "unset")


# Objects, modules, and what is left alone


class Graph:
    def __init__(self) -> None:
        self.edges = one(1)

    def to(self, device: Any, non_blocking: bool = False) -> Graph:
        return self


class Pinned:
    def pin_memory(self) -> Pinned:
        return self


@dataclass
class OwnWay:
    image: Any

    def to(self, device: Any) -> OwnWay:
        return self


class TensorMapping(UserDict[str, Any]):
    """As tensordict's: a mapping that knows its device."""

    def pin_memory(self) -> TensorMapping:
        return self

    def to(self, device: Any) -> TensorMapping:
        return self


@pytest.mark.parametrize(
    "thing",
    [
        Graph(),
        Pinned(),
        OwnWay(one(1)),
        TensorMapping(image=one(1)),
        torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_objects_that_move_themselves_are_leaves(thing: Any) -> None:
    found = find({"a": thing, "b": [thing]})
    (leaf,) = found.leaves
    assert leaf.kind == "object"
    assert leaf.thing is thing
    assert leaf.tensor is None
    new = found.rebuild(["there"])
    assert new == {"a": "there", "b": ["there"]}


def test_a_module_is_an_error() -> None:
    with pytest.raises(
        spdl_async.DeviceError, match=r"batch\['m'\] is a Linear.*model\.to\(device\)"
    ):
        find({"m": torch.nn.Linear(1, 1)})


@pytest.mark.parametrize(
    "thing",
    [np.float32(3), np.datetime64("2024-01-01"), Path("x"), object(), Graph, torch.float32, {1}],
)
def test_everything_else_is_untouched(thing: Any) -> None:
    assert rebuilt([one(1), thing])[1] is thing


@pytest.mark.parametrize("through", ["list", "dict", "dataclass"])
def test_a_cycle_is_an_error(through: str) -> None:
    inner: Any = [one(1)]
    inner.append({"list": inner, "dict": {"x": inner}, "dataclass": Frozen(inner)}[through])
    for only in (None, lambda path, leaf: True):
        with pytest.raises(spdl_async.DeviceError, match=r"batch\['a'\]\[1\].*cycle"):
            find({"a": inner}, only)


def test_deep_nesting_is_an_error_and_shallow_is_not() -> None:
    batch: Any = one(1)
    for _ in range(100):
        batch = [batch]
    new = rebuilt(batch)
    while isinstance(new, list):
        (new,) = new
    assert is_moved(new, 1)
    for _ in range(10_000):
        batch = (batch,)
    with pytest.raises(spdl_async.DeviceError, match="more than 200 levels deep"):
        find(batch)
    while isinstance(batch, tuple):  # freeing it at once would be deep too
        (batch,) = batch


def test_values_have_to_be_as_many_as_leaves() -> None:
    with pytest.raises(ValueError, match="1 leaves, but 2 values"):
        find([one(1)]).rebuild([one(1), one(2)])


# Arrays


@pytest.mark.parametrize(
    "dtype",
    ["?", "u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"],
)
@pytest.mark.parametrize("order", ["=", "<", ">"])
def test_arrays_of_every_dtype_become_tensors(dtype: str, order: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(np.dtype(order + dtype))
    leaf = leaf_of(array)
    assert leaf.kind == "tensor"
    assert leaf.source is array
    np.testing.assert_array_equal(leaf.tensor.numpy(), array)
    assert leaf.tensor.numpy().dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(12.0)[::2],
        np.array(5.0),
        np.zeros((0, 3)),
        np.zeros((3,), "i4,f8")["f0"][:0],
    ],
    ids=["plain", "fortran", "strided", "zero-dimensional", "empty", "empty field"],
)
def test_memory_is_shared_where_it_can_be(array: np.ndarray[Any, Any]) -> None:
    tensor = leaf_of(array).tensor
    assert tuple(tensor.shape) == array.shape
    if array.size:
        assert tensor.data_ptr() == array.ctypes.data
        array[...] = 9
    assert tensor.tolist() == array.tolist()


def read_only() -> np.ndarray[Any, Any]:
    return np.frombuffer(b"\x01\x02\x03\x04", np.uint8)


@pytest.mark.parametrize(
    "array",
    [
        read_only(),
        np.broadcast_to(np.arange(2.0), (3, 2)),
        np.arange(6)[::-1],
        np.arange(6).reshape(2, 3)[:, ::-1],
        np.array([(1, 2.5), (3, 4.5)], "u1,>f4")["f1"],
        np.zeros((0, 3))[::-1],
    ],
    ids=["read-only", "broadcast", "reversed", "mirrored", "field", "empty"],
)
def test_what_cannot_be_shared_is_copied_without_a_warning(array: np.ndarray[Any, Any]) -> None:
    # Torch warns once in a process: the flag, and not only the warning, is looked at.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = leaf_of(array).tensor
    assert tensor.tolist() == array.tolist()
    if tensor.numel() and not array.flags.writeable:
        before = array.tolist()
        tensor.add_(1)
        assert array.tolist() == before


def test_memory_maps(tmp_path: Path) -> None:
    np.arange(4, dtype=np.int32).tofile(tmp_path / "numbers")
    for mode in ("r", "c", "r+"):
        array = np.memmap(tmp_path / "numbers", np.int32, mode)
        assert leaf_of(array).tensor.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "b"]),
        np.array([b"a"]),
        np.array([object()]),
        np.array(["2024-01-01"], "M8[D]"),
        np.array([3], ">m8[s]"),
        np.zeros(2, "i4,f4"),
        np.zeros(2, "V3"),
        np.zeros(2, np.longdouble),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_that_torch_does_not_have_are_an_error(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(spdl_async.DeviceError) as caught:
        find({"meta": [one(1), array]})
    message = str(caught.value)
    assert caught.value.field == "batch['meta'][1]"
    assert message.startswith("batch['meta'][1] is a numpy array of dtype ")
    assert str(array.dtype) in message
    assert "only=" in message
    new = rebuilt({"meta": array, "image": one(1)}, ("image",))
    assert new["meta"] is array


def test_a_masked_array_is_an_error() -> None:
    masked = np.ma.masked_array([1, 2], [True, False])
    with pytest.raises(spdl_async.DeviceError, match=r"masked array.*filled\(0\)"):
        find({"x": masked})


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_arrays_of_ml_dtypes(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.5, -2, 0.25], getattr(ml_dtypes, name))
    for each in (array, array[::-1]):
        tensor = leaf_of(each).tensor
        assert tensor.dtype is getattr(torch, name)
        assert tensor.float().tolist() == each.astype(np.float32).tolist()


# Tensors


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.ones(1).expand(4),
        torch.tensor(3),
        torch.empty(0, 3),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2).to(torch.float8_e4m3fn),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2, dtype=torch.bool),
        torch.ones(2, dtype=torch.uint16),
    ],
)
def test_dense_tensors_are_themselves(tensor: torch.Tensor) -> None:
    leaf = leaf_of(tensor)
    assert leaf.kind == "tensor"
    assert leaf.tensor is tensor


def test_views_that_conjugate_or_negate_are_resolved() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    for view in (numbers.conj(), numbers.conj().imag):
        assert view.is_conj() or view.is_neg()
        tensor = leaf_of(view).tensor
        assert not tensor.is_conj()
        assert not tensor.is_neg()
        assert tensor.tolist() == view.tolist()


def test_gradients_stay_behind() -> None:
    for tensor in (
        torch.ones(2, requires_grad=True),
        torch.ones(2, requires_grad=True) * 2,
        torch.ones(2, dtype=torch.complex64, requires_grad=True),
        torch.ones(2, requires_grad=True).to_sparse(),
    ):
        leaf = leaf_of(tensor)
        assert not leaf.tensor.requires_grad
        assert torch.equal(leaf.tensor.to_dense(), tensor.detach().to_dense())


@pytest.mark.filterwarnings("ignore")  # torch's, of prototypes
def test_tensors_without_plain_bytes_are_odd() -> None:
    matrix = torch.eye(2)
    parts = [torch.ones(2), torch.ones(3)]
    for tensor in (
        matrix.to_sparse(),
        matrix.to_sparse_csr(),
        torch.quantize_per_tensor(matrix, 0.1, 0, torch.quint8),
        torch.nested.nested_tensor(parts),
        torch.nested.nested_tensor(parts, layout=torch.jagged),
        matrix.to_mkldnn(),
        torch.nn.Parameter(matrix.to_sparse(), requires_grad=False),
    ):
        leaf = leaf_of(tensor)
        assert leaf.kind == "odd"
        assert leaf.tensor is tensor
        assert leaf.like is None
        assert find([tensor]).rebuild(["there"]) == ["there"]


def test_a_meta_tensor_is_an_error() -> None:
    with pytest.raises(
        spdl_async.DeviceError, match=r"batch\['x'\]\[0\] is a meta tensor.*\(2, 3\)"
    ):
        find({"x": [torch.ones(2, 3, device="meta")]})
    with pytest.raises(spdl_async.DeviceError, match=r"^batch is a meta tensor"):
        find(torch.ones(2, 3, device="meta"))


class Boxes(torch.Tensor):
    """As torchvision's: a tensor with attributes, whose class survives operations."""

    format: str


def test_subclasses_of_tensor_keep_their_class_and_attributes() -> None:
    boxes = one(1).as_subclass(Boxes)
    boxes.format = "xywh"
    leaf = leaf_of(boxes)
    assert leaf.kind == "tensor"
    assert type(leaf.tensor) is torch.Tensor
    assert leaf.tensor.data_ptr() == boxes.data_ptr()
    assert leaf.like is boxes
    new = rebuilt({"boxes": boxes, "again": boxes})["boxes"]
    assert type(new) is Boxes
    assert new.format == "xywh"
    assert is_moved(new.as_subclass(torch.Tensor), 1)


def test_a_parameter_stays_one_without_gradient() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    new = rebuilt([parameter])[0]
    assert isinstance(new, torch.nn.Parameter)
    assert not new.requires_grad
    assert new.tolist() == [101, 101]
    same = find([parameter])
    assert not same.rebuild([leaf.tensor for leaf in same.leaves])[0].requires_grad
    assert parameter.requires_grad


def test_a_tensor_that_is_there_already_is_the_same_object() -> None:
    boxes = one(1).as_subclass(Boxes)
    found = find([boxes, one(2)])
    new = found.rebuild([leaf.tensor for leaf in found.leaves])
    assert new[0] is boxes


# Chosen fields


def test_only_the_named_fields_are_found() -> None:
    batch = {"image": [one(1)], "label": np.array([2]), "meta": {"image": one(3)}, "a.b": one(4)}
    for only in (("image", "a.b"), ["image", "a.b"], {"image", "a.b"}, frozenset(["image", "a.b"])):
        new = rebuilt(batch, only)
        assert is_moved(new["image"][0], 1)
        assert is_moved(new["a.b"], 4)
        assert new["label"] is batch["label"]
        assert new["meta"] is batch["meta"]


def test_fields_may_be_attributes_and_positions() -> None:
    for at in (1, -1):
        first, second = rebuilt((one(1), one(2)), only=(at,))
        assert is_moved(second, 2)
        assert not is_moved(first, 1)
    for name in ("label", 1, -1):
        pair = Pair(one(1), one(2))
        new = rebuilt(pair, (name,))
        assert is_moved(new.label, 2)
        assert new.image is pair.image
    frozen = rebuilt(Frozen(one(1), "x"), ("image",))
    assert is_moved(frozen.image, 1)
    assert is_moved(rebuilt({1: one(1), -1: one(2)}, (-1,))[-1], 2)


def test_paths_lead_further_down() -> None:
    batch = {"pair": [one(1), one(2)], "views": Pair({"a": one(3), "b": one(4)}, one(5))}
    only = (("pair", 0), ("views", "image", "b"), ("views", 1))
    found = find(batch, only)
    assert paths(found) == ["batch['pair'][0]", "batch['views'].image['b']", "batch['views'].label"]
    new = found.rebuild([moved(leaf.tensor) for leaf in found.leaves])
    assert new["pair"][1] is batch["pair"][1]
    assert is_moved(new["views"].image["b"], 4)


def test_a_field_that_is_chosen_whole_and_in_part_is_whole() -> None:
    batch = {"pair": [one(1), one(2)]}
    for only in (["pair", ("pair", 0)], [("pair", 0), "pair"], [("pair", 0), ("pair", -1)]):
        assert len(find(batch, only).leaves) == 2
    assert len(find([one(1), [one(2), one(3)]], [(1, 0), (-1, 1)]).leaves) == 2


def test_a_tensor_in_a_chosen_and_in_another_field_stays_in_the_other() -> None:
    shared = one(1)
    new = rebuilt({"image": shared, "kept": shared, "list": [shared]}, ("image",))
    assert is_moved(new["image"], 1)
    assert new["kept"] is shared


def test_a_name_that_no_field_has_is_an_error_with_the_first_batch() -> None:
    batch = {"image": one(1), "label": one(2)}
    with pytest.raises(
        spdl_async.DeviceError,
        match=r"names 'imgae', which batch, a dict.*fields are 'image', 'label'",
    ):
        find(batch, ("image", "imgae"))
    found = find(batch, ("image", "imgae"), strict=False)
    assert paths(found) == ["batch['image']"]
    with pytest.raises(
        spdl_async.DeviceError, match=r"names 2, which batch\['pair'\], a list.* 0, 1"
    ):
        find({"pair": [one(1), one(2)]}, (("pair", 2),))
    with pytest.raises(spdl_async.DeviceError, match=r"batch, a Frozen.*'image', 'label'"):
        find(Frozen(one(1)), ("mask",))
    with pytest.raises(spdl_async.DeviceError, match=r"batch, a Tensor.* no fields"):
        find(one(1), ("image",))
    with pytest.raises(spdl_async.DeviceError, match=r"batch\['name'\], a str.* no fields"):
        find({"name": "x"}, (("name", 0),))


def test_a_function_chooses() -> None:
    asked: list[tuple[Any, Any]] = []
    image, text, module = one(1), np.array(["a"]), torch.nn.Linear(1, 1)
    batch = {"image": [image], "text": text, "module": module, "name": "x", "graph": Graph()}

    def is_image(path: tuple[Any, ...], leaf: Any) -> bool:
        asked.append((path, leaf))
        return bool(path[0] == "image")

    new = rebuilt(batch, is_image)
    assert is_moved(new["image"][0], 1)
    assert all(new[key] is batch[key] for key in ("text", "module", "name", "graph"))
    expected = [(("image", 0), image), (("text",), text), (("module",), module)]
    assert [path for path, _ in asked] == [*(path for path, _ in expected), ("graph",)]
    assert all(leaf is value for (_, leaf), (_, value) in zip(asked, expected, strict=False))


def test_a_function_may_choose_one_of_two_places() -> None:
    shared, tensor = [one(1)], one(2)
    batch = {"a": shared, "b": shared, "c": tensor, "d": tensor}
    new = rebuilt(batch, lambda path, leaf: path[0] in ("b", "d"))
    assert new["a"] is shared
    assert is_moved(new["b"][0], 1)
    assert new["c"] is tensor
    assert is_moved(new["d"], 2)


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("image", r"one name; write a tuple of names: only=\('image',\)"),
        (b"image", r"only=\(b'image',\)"),
        ((), "empty, so nothing would be moved"),
        ([("a", 1), ()], "empty path"),
        (3, r"a int, but chooses fields: only=\(\"image\",\)"),
        ({"image": 1}, "a dict, but chooses fields"),
    ],
)
def test_what_chooses_nothing_is_an_error(only: object, message: str) -> None:
    with pytest.raises(spdl_async.BuildError, match=message):
        chosen(only)
