"""load_npz: stored members in place, deflated ones bounded, and every checksum verified."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spdl_async.errors import DecodeError
from spdl_async.io import load_npz

ARRAYS = {"image": np.arange(12, dtype=np.uint8).reshape(3, 4), "label": np.array(7)}


def stored() -> bytes:
    file = io.BytesIO()
    np.savez(file, **ARRAYS)  # type: ignore[arg-type]
    return file.getvalue()


def deflated(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **(arrays or ARRAYS))
    return file.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize("make", [stored, deflated])
def test_all_arrays_come_back(make: Any) -> None:
    for given in (make(), bytearray(make()), memoryview(make())):
        arrays = load_npz(given)
        assert list(arrays) == ["image", "label"]
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(arrays[name], array)
            assert arrays[name].dtype == array.dtype


def test_stored_members_are_looked_at_in_place() -> None:
    data = bytearray(stored())
    load_npz(data)["image"][0, 0] = 99
    assert load_npz(stored())["image"].flags.writeable is False
    with pytest.raises(DecodeError, match="checksum"):  # which shows that the data has changed
        load_npz(data)
    assert not load_npz(bytearray(deflated()))["image"].flags.writeable


def test_only_the_names_that_are_wanted_are_read() -> None:
    data = bytearray(stored())
    at = data.index(bytes(range(12)))
    data[at] ^= 1
    assert list(load_npz(data, ["label"])) == ["label"]
    with pytest.raises(DecodeError, match=r"member 'image\.npy' .* at byte 0: its checksum"):
        load_npz(data, ["label", "image"])
    with pytest.raises(DecodeError, match="without 'mask'; it has 'image', 'label'"):
        load_npz(data, ["mask"])


def test_a_member_that_inflates_to_too_much_is_refused() -> None:
    data = deflated(zeros=np.zeros(1 << 22))
    assert len(data) < 1 << 16
    with pytest.raises(DecodeError, match=r"'zeros\.npy'.*where 1,000,000 are left of max_bytes"):
        load_npz(data, max_bytes=1_000_000)
    twice = deflated(a=np.zeros(1000), b=np.zeros(1000))
    with pytest.raises(DecodeError, match=r"'b\.npy'"):  # together
        load_npz(twice, max_bytes=10_000)


def test_a_false_size_allocates_nothing() -> None:
    data = bytearray(deflated(a=np.zeros(1 << 23)))
    entry = data.rindex(b"PK\x01\x02")
    for size in (100, 1 << 31):  # what the archive says is less, and more, than there is
        data[entry + 24 : entry + 28] = size.to_bytes(4, "little")
        tracemalloc.start()
        with pytest.raises(DecodeError, match=r"inflates to (more|less)"):
            load_npz(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < (1 << 20 if size == 100 else 1 << 28)


def test_what_is_damaged_or_unknown_is_named() -> None:
    good = stored()
    for end in range(0, len(good), 7):
        with pytest.raises(DecodeError):
            load_npz(good[:end])
    with pytest.raises(DecodeError, match=r"use load_npy"):
        file = io.BytesIO()
        np.save(file, np.zeros(3))
        load_npz(file.getvalue())
    with pytest.raises(DecodeError, match=r"'a\.npy'.*compressed by method 14"):
        load_npz(zipped({"a.npy": bytes(100)}, zipfile.ZIP_LZMA))
    with pytest.raises(DecodeError, match=r"'notes\.txt'.*no \.npy file"):
        load_npz(zipped({"notes.txt": b"hello"}))
    with pytest.raises(DecodeError, match="'a' twice, at bytes 0 and"):
        load_npz(zipped({"a.npy": b"", "a": b""}))
    encrypted = bytearray(good)
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(DecodeError, match="encrypted"):
        load_npz(encrypted)
    objects = io.BytesIO()
    np.savez(objects, o=np.array([None], object))
    with pytest.raises(DecodeError, match="Python objects"):
        load_npz(objects.getvalue())


def test_an_archive_of_many_kinds_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, f=np.asfortranarray(np.eye(3)), e=np.zeros((0, 2)))
    arrays = load_npz(path.read_bytes())
    assert arrays["f"].flags.f_contiguous
    assert arrays["e"].shape == (0, 2)


def test_arguments_that_are_no_names_and_no_number() -> None:
    file = io.BytesIO()
    np.savez(file, image=np.zeros(3))
    with pytest.raises(TypeError, match=r"names must be a list, such as \['image'\]"):
        load_npz(file.getvalue(), "image")
    for most in (-1, "4GB", 1.5):
        with pytest.raises(ValueError, match="max_bytes must be an int"):
            load_npz(file.getvalue(), max_bytes=most)  # type: ignore[arg-type]


def test_an_archive_of_nothing() -> None:
    file = io.BytesIO()
    np.savez(file)
    assert load_npz(file.getvalue()) == {}
