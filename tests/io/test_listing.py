"""Listing: patterns, order, links, laziness."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from spdl_async import PipelineBuilder
from spdl_async.io import Store, list_files
from spdl_async.io._pattern import matcher, prefix_of

pytest.importorskip("obstore")

TREE = [
    "a-b/1.jpg",
    "a/1.jpg",
    "a/b/2.jpg",
    "a/b/c/3.JPG",
    "a/b/c/4.jpg",
    "a/.hidden/5.jpg",
    "top.jpg",
    ".dot.jpg",
    "é/中 文.jpg",
    "x[1]/p%20q#.jpg",
    "new\nline.jpg",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def listed(root: Path, pattern: str = "**/*") -> list[str]:
    return [os.path.relpath(path, root) for path in list_files(root, pattern)]


PATTERNS = [
    ("**/*.jpg", [n for n in TREE if n.endswith(".jpg") and "/." not in n and n[0] != "."]),
    ("**/*", [n for n in TREE if "/." not in n and n[0] != "."]),
    ("**", [n for n in TREE if "/." not in n and n[0] != "."]),
    ("*.jpg", ["new\nline.jpg", "top.jpg"]),
    ("a/*.jpg", ["a/1.jpg"]),
    ("a/**/*.jpg", ["a/1.jpg", "a/b/2.jpg", "a/b/c/4.jpg"]),
    ("a/b/**", ["a/b/2.jpg", "a/b/c/3.JPG", "a/b/c/4.jpg"]),
    ("*/*/?.jpg", ["a/b/2.jpg"]),
    ("**/[!13].jpg", ["a/b/2.jpg", "a/b/c/4.jpg"]),
    ("**/[1-3].[Jj][Pp][Gg]", ["a-b/1.jpg", "a/1.jpg", "a/b/2.jpg", "a/b/c/3.JPG"]),
    ("x[[]1]/*", ["x[1]/p%20q#.jpg"]),
    (".*", [".dot.jpg"]),
    ("**/.*/*", ["a/.hidden/5.jpg"]),
    ("top.jpg", ["top.jpg"]),
    ("no/such/**", None),
    ("top.jpg/*", None),
]


@pytest.mark.parametrize(("pattern", "expected"), PATTERNS)
def test_patterns_of_folders(pattern: str, expected: list[str] | None, tree: Path) -> None:
    if expected is None:
        with pytest.raises(OSError):
            listed(tree, pattern)
    else:
        assert listed(tree, pattern) == sorted(expected)


async def test_patterns_of_stores(tree: Path) -> None:
    """The same names; a store has no folders, so there is none that is missing."""
    (tree / "new\nline.jpg").unlink()  # object_store takes no control characters
    store = Store(tree.as_uri())
    for pattern, expected in PATTERNS:
        names = [name for name in expected or [] if "\n" not in name]
        found = [url async for url in list_files(store, pattern)]
        assert sorted(found) == sorted((tree / name).as_uri() for name in names), pattern
        for url in found:
            assert (tree / (await store.get(url)).decode()).as_uri() == url


def test_the_order_is_that_of_whole_paths(tree: Path) -> None:
    found = listed(tree)
    assert found == sorted(found)
    assert found.index("a-b/1.jpg") < found.index("a/1.jpg")


def test_links(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "file").write_bytes(b"")
    (tmp_path / "again").symlink_to("real")
    (real / "circle").symlink_to(tmp_path)
    (real / "self").symlink_to("self")
    (real / "nothing").symlink_to("gone")
    os.mkfifo(real / "pipe")
    names = ["file", "nothing", "self"]
    assert listed(tmp_path) == [
        f"{folder}/{name}" for folder in ("again", "real") for name in names
    ]


def test_every_pass_lists_again_and_lazily(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = list_files(tree, "**/*.jpg")
    pipeline = PipelineBuilder().add_source(files).pipe(os.path.basename).build()
    before = list(pipeline)
    (tree / "é" / "~.jpg").write_bytes(b"")
    assert list(pipeline) == [*before[:-1], "~.jpg", before[-1]]

    scanned: list[str] = []
    scandir = os.scandir

    def scan(path: str) -> Any:
        scanned.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert next(iter(files)).endswith("a-b/1.jpg")
    assert len(scanned) == 2


def test_a_missing_folder_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        list(list_files(tmp_path / "gone"))
    assert caught.value.filename == str(tmp_path / "gone")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        list(list_files(tmp_path / "file"))


@pytest.mark.parametrize("pattern", ["", "/a", "a/", "../a", "a/../b", "./a", "a//b"])
def test_wrong_patterns_are_refused_at_once(pattern: str, tmp_path: Path) -> None:
    for root in (tmp_path, "file:///data", "s3://bucket"):
        with pytest.raises(ValueError, match="pattern must be"):
            list_files(root, pattern)


def test_wrong_roots_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="should begin with"):
        list_files("https://example.org/data", "*")
    for root in (b"bytes", None, 3):
        with pytest.raises(TypeError):
            list_files(root)  # type: ignore[call-overload]  # the mistake


@pytest.mark.parametrize(
    ("pattern", "prefix"), [("a/b*", "a/b"), ("**", ""), ("a?", "a"), ("a/b", "a/b"), ("x[1]", "x")]
)
def test_prefixes(pattern: str, prefix: str) -> None:
    assert prefix_of(pattern) == prefix


@pytest.mark.parametrize(
    "pattern", ["[", "a[b", "[]", "[]]", "[!]]", "[\\]x", "[^a]", "a+b(c", "[a-"]
)
def test_odd_patterns_are_taken_literally_where_they_are_none(pattern: str) -> None:
    matches = matcher(pattern)
    assert matches(pattern) or pattern in {"[]]", "[!]]", "[\\]x", "[^a]"}
    assert matcher("[]]")("]")
    assert matcher("[!]]")("x")
    assert not matcher("[!]]")("]")
    assert matcher("[\\]x")("\\x")
    assert matcher("[^a]")("^")
    assert not matcher("[!a]b")("/b")
