"""A thousand damaged files for each reader; `make fuzz` takes 10,000. The mechanism itself can fail."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import fuzz_files
from fuzz_files import damaged_file, fuzz, mutated, readers

pytestmark = pytest.mark.torch

FILES = 1_000


@pytest.mark.parametrize("name", readers())
def test_damaged_files_give_data_or_the_documented_error(name: str) -> None:
    missing = readers()[name].missing()
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    outcome = fuzz(name, files=FILES)
    assert not outcome.wrong
    assert outcome.whole + outcome.refused == FILES


def test_a_number_gives_the_same_file_each_time() -> None:
    for reader in (readers()["tar"], readers()["npz"]):
        files = reader.files()
        first = [damaged_file(reader, files, number) for number in range(20)]
        assert [damaged_file(reader, files, number) for number in range(20)] == first
        assert len(set(first)) > 15


def test_whatever_is_mutated_there_is_a_result() -> None:
    for data in (b"", b"x", bytes(700)):
        assert len({mutated(data, random.Random(seed)) for seed in range(300)}) > 100 * bool(data)


BAD = """
import ctypes, os, sys
import numpy as np
sys.path.insert(0, {folder!r})
from fuzz_files import Reader

kept = []

def other(data, number):
    if number == 3:
        raise KeyError("not documented")

def crash(data, number):
    if number == 3:
        ctypes.string_at(0)

def grow(data, number):
    kept.append(np.ones(1_000_000))

def claim(data, number):
    np.empty(1 << 30, np.uint8)

def talk(data, number):
    os.write(2, b"a library speaks\\n")

def files():
    return [b"content" * 30]

def reader(read, **options):
    return Reader(files=files, read=read, error=ValueError, growth=20_000_000, **options)

READERS = {{"other": reader(other), "crash": reader(crash), "grow": reader(grow), "talk": reader(talk)}}
READERS["claim"] = reader(claim, traced=1 << 20)
READERS["quiet"] = reader(talk, said=("a library",))
READERS["kind"] = reader(lambda data, number: None)
"""


@pytest.fixture
def bad_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(fuzz_files.__file__).parent
    (tmp_path / "fuzz_readers.py").write_text(BAD.format(folder=str(here)))
    (tmp_path / "fuzz_files.py").write_text((here / "fuzz_files.py").read_text())
    monkeypatch.setattr(fuzz_files, "__file__", str(tmp_path / "fuzz_files.py"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "fuzz_readers", raising=False)
    monkeypatch.setattr(os, "environ", {**os.environ, "PYTHONFAULTHANDLER": "1"})


@pytest.mark.usefixtures("bad_readers")
@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        ("other", 9, "KeyError: 'not documented'"),
        ("other", 9, "exit status 1 at file 3"),
        ("crash", 9, "exit status -11 at file 3"),
        ("grow", 30, "the process grew by"),
        ("claim", 2, "Python and numpy had 1,07"),
        ("talk", 2, "a library speaks"),
        ("kind", 200, "the damage is too kind, or too wild"),
        ("quiet", 2, ""),
    ],
)
def test_what_is_wrong_is_found(name: str, files: int, said: str) -> None:
    outcome = fuzz(name, files=files)
    assert said in "\n".join(outcome.wrong)
    assert bool(outcome.wrong) == bool(said)
