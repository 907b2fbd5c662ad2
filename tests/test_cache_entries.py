"""What a cache keeps: values as bytes and back, keys, and files that are damaged."""

from __future__ import annotations

import collections
import dataclasses
import math
import random
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

from spdl_async._cache.codec import Decoder, encode
from spdl_async._cache.entry import FORMAT, HEAD, MAGIC, DamagedError, loaded, pieces
from spdl_async._cache.keys import canonical, entry_name, indexed, namespace_of

Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024 -- it is refused


@dataclasses.dataclass
class Sample:
    image: int


def through_memory(value: Any) -> Any:
    blob = encode(value)
    return Decoder(blob.buffers).value(blob.tree)


def through_file(value: Any) -> Any:
    data = bytearray(b"".join(pieces("name", "v", [((0, 1), encode(value))])))
    ((path, back),) = loaded(data, "name")
    assert path == (0, 1)
    return back


WAYS = pytest.mark.parametrize("through", [through_memory, through_file])

PLAIN: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    2**63,
    -(10**50),
    0.1,
    -0.0,
    math.inf,
    "",
    "ü\n\x00",
    "\udcff",
    "\ud83d\ude00",  # not the one character U+1F600
    "\ud83d\ude00 and \U0001f600",
    {"\udbff\udfff": Path("\ud83d\ude00")},
    b"",
    b"\x00\xff" * 40,
    Path("a/b.jpg"),
    [],
    (),
    {},
    [1, [2, (3, {"k": b"x"})]],
    {"a": 1, 2: (3,), ("t", 1): None, b"b": [], None: True},
]


@WAYS
@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_as_they_were(value: Any, through: Any) -> None:
    back = through(value)
    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value)


@WAYS
def test_views_of_bytes_come_back_as_views(through: Any) -> None:
    archive = bytearray(b"0123456789")
    back = through({"txt": memoryview(archive)[2:5]})["txt"]
    assert type(back) is memoryview
    assert bytes(back) == b"234"
    assert back.readonly
    with pytest.raises(TypeError, match="cannot store memoryview"):
        encode(memoryview(bytearray(8)).cast("d"))  # of numbers: an array is meant


def test_a_field_of_a_dtype_whose_name_would_change_is_refused() -> None:
    assert through_file(np.zeros(1, [("\U0001f600", "<f4")])).dtype.names == ("\U0001f600",)
    with pytest.raises(TypeError, match="cannot store an array of dtype"):
        encode(np.zeros(1, [("\ud83d\ude00", "<f4")]))


ARRAYS: list[Any] = [
    np.arange(6, dtype=np.uint8).reshape(2, 3),
    np.arange(24.0).reshape(2, 3, 4)[:, ::2],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array(3.5, np.float32),
    np.zeros((0, 4), np.int16),
    np.zeros((2, 3), "V0"),
    np.arange(3, dtype=">i4"),
    np.array([True, False]),
    np.array([1 + 2j]),
    np.array(["ab", "c"]),
    np.array([b"ab", b"c"]),
    np.array(["2026-01-01"], "datetime64[D]"),
    np.zeros(2, [("x", "<f4"), ("y", "<i8", (2,)), ("z", [("w", "u1")])]),
    np.array([np.nan, np.inf], np.float16),
]


@WAYS
@pytest.mark.parametrize("value", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_arrays_come_back_fresh_and_writable(value: Any, through: Any) -> None:
    back = through({"x": value})["x"]
    assert back.dtype == value.dtype
    assert back.shape == value.shape
    assert back.tobytes() == value.tobytes()
    assert back.flags.writeable
    assert back.flags.aligned
    assert not np.shares_memory(back, value)
    assert through(value).flags.f_contiguous == value.flags.f_contiguous or not value.flags.forc


@WAYS
@pytest.mark.parametrize(
    "value", [np.float32(1.5), np.int64(-3), np.bool_(True), np.float64(2.0), np.str_("")]
)
def test_numpy_numbers_keep_their_type(value: Any, through: Any) -> None:
    back = through([value])[0]
    assert type(back) is type(value)
    assert back == value


@pytest.mark.torch
@WAYS
@pytest.mark.parametrize(
    "name", ["uint8", "int64", "float16", "bfloat16", "float32", "complex64", "bool"]
)
@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3)])
def test_tensors_come_back_fresh(name: str, shape: tuple[int, ...], through: Any) -> None:
    torch = pytest.importorskip("torch")
    value = torch.ones(shape, dtype=getattr(torch, name))
    (back,) = through((value,))
    assert back.dtype == value.dtype
    assert back.shape == value.shape
    assert torch.equal(back, value)
    back.zero_()
    assert value.numel() == 0 or bool(value.any())
    turned = torch.arange(6).reshape(2, 3).t()
    assert torch.equal(through(turned), turned)


@pytest.mark.torch
def test_tensors_that_cannot_be_kept_say_what_to_do() -> None:
    torch = pytest.importorskip("torch")
    for value, match in [
        (torch.zeros(2, device="meta"), r"is on meta: put \.cache\(\) above to_device"),
        (torch.zeros(2, requires_grad=True), r"value\.detach\(\)"),
        (torch.eye(2).to_sparse(), r"to_dense\(\)"),
    ]:
        with pytest.raises(TypeError, match=match):
            encode(value)


REFUSED: list[tuple[Any, str]] = [
    (object(), r"cannot store object\. It stores numpy arrays.*put \.cache\(\) above"),
    ({"image": [1, {2}]}, r"cannot store set at value\['image'\]\[1\]"),
    (Pair(1, 2), r"the named tuple Pair.*value\._asdict\(\)"),
    ([Sample(1)], r"the dataclass Sample at value\[0\].*vars\(value\)"),
    (np.array([object()]), r"array of dtype object"),
    (np.ma.masked_array([1]), r"cannot store MaskedArray"),
    (1j, r"cannot store complex"),
]


@pytest.mark.parametrize(("value", "match"), REFUSED, ids=lambda v: str(v)[:20])
def test_what_cannot_be_kept_is_an_error_that_says_where_it_is(value: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        encode(value)


def test_a_value_that_holds_itself_is_an_error() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(TypeError, match="does it hold itself"):
        encode(value)


def test_a_small_array_does_not_keep_the_memory_of_the_whole_entry() -> None:
    small, large = through_file((np.zeros(4), np.zeros(10_000)))
    assert not np.shares_memory(small, large)
    base = small
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert len(base) == 32


def test_no_mutation_of_a_file_gives_wrong_values() -> None:
    value = {"image": np.arange(50, dtype=np.int16), "label": 3, "path": "a.jpg"}
    whole = b"".join(pieces("name", "", [((), encode(value)), ((1,), encode(b"more"))]))
    draw = random.Random(5)
    for _ in range(10_000):
        data = bytearray(whole)
        how = draw.randrange(4)
        at = draw.randrange(len(data))
        if how == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            del data[at:]
        elif how == 2:
            data[at:at] = draw.randbytes(draw.randrange(1, 9))
        else:
            data[at : at + 4] = draw.randbytes(4)
        if data == whole:
            continue
        with pytest.raises(DamagedError):
            loaded(data, "name")


def test_a_header_that_somebody_has_made_up_is_damage_and_nothing_worse() -> None:
    value = {"image": np.arange(50, dtype=np.int16), "z": np.zeros((0, 3)), "g": np.float32(1)}
    whole = b"".join(pieces("name", "", [((), encode(value)), ((1,), encode([b"more", 2**70]))]))
    length = int.from_bytes(whole[12:16], "little")
    draw = random.Random(7)
    damaged = 0
    for _ in range(5_000):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            at = HEAD.size + draw.randrange(length)
            data[at] = draw.choice(b'0123456789[]{}",:abdglptTBi<>|-. ')
        data[16:20] = zlib.crc32(data[HEAD.size :]).to_bytes(4, "little")
        try:
            loaded(data, "name")
        except DamagedError:
            damaged += 1
    assert damaged > 1000
    deep = (
        b'{"entry":"name","outputs":[[[],' + b"[" * 100_000 + b"]" * 100_000 + b',0]],"buffers":[]}'
    )
    made = HEAD.pack(MAGIC, FORMAT, len(deep), zlib.crc32(deep), 0, 0) + deep
    with pytest.raises(DamagedError):
        loaded(bytearray(made), "name")


def test_an_entry_under_another_name_is_not_taken() -> None:
    data = bytearray(b"".join(pieces("one", "", [])))
    assert loaded(data, "one") == []
    with pytest.raises(DamagedError, match="it is the entry one"):
        loaded(data, "two")


# Keys


def test_different_keys_are_different_bytes() -> None:
    keys: list[Any] = [
        "",
        "a",
        b"a",
        Path("a"),
        1,
        "1",
        -1,
        (),
        ("a",),
        (("a",), "b"),
        ("a", ("b",)),
        ("a", "b"),
        ("ab",),
        None,
    ]
    assert len({canonical(key) for key in keys}) == len(keys)
    assert canonical(np.int64(7)) == canonical(7)
    assert canonical(PurePosixPath("a/b")) == canonical(Path("a/b"))
    spaces = [namespace_of(("cache", "1")), namespace_of(("cache", "2"))]
    assert len({entry_name(space, canonical(key)) for space in spaces for key in keys}) == 2 * len(
        keys
    )


def test_keys_of_other_kinds_are_errors_that_say_which_there_are() -> None:
    for key in (1.5, [1], {"a": 1}, ("a", 1.5), object()):
        with pytest.raises(TypeError, match="a key must be a str, int, bytes, path, or a tuple"):
            canonical(key)


def test_the_position_is_joined_by_the_item_where_that_can_be_a_key() -> None:
    assert indexed(1, "a") != indexed(1, "b")
    assert indexed(1, "a") != indexed(2, "a")
    assert indexed(1, [1]) == indexed(1, [2])
    assert indexed(1, b"x" * 100_000) == indexed(1, b"y" * 100_000)
