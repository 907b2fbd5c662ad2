"""The documentation's code runs, and prints what the pages say: pages, README, docstrings."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_pages import DOCTEST_OPTIONS, Block, DocError, parse

import spdl_async

ROOT = Path(__file__).parent.parent
PACKAGE = Path(spdl_async.__file__).parent
RUNNER = Path(__file__).with_name("doc_pages.py")
PAGES = sorted([ROOT / "README.md", *ROOT.joinpath("docs").rglob("*.md")])
NEEDS_TORCH = re.compile(r"\btorch\b|spdl_async\.(collate|io)\b")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# Pages


def pages() -> list[object]:
    """One parameter for each page that has something to run."""
    found: list[object] = []
    for page in PAGES:
        blocks = [block for block in parse(page.read_text("utf-8")) if block.kind != "broken"]
        if blocks:
            found.append(pytest.param(page, id=name_of(page), marks=marks(blocks)))
    return found


def broken_blocks() -> list[object]:
    """One parameter for each broken block."""
    found: list[object] = []
    for page in PAGES:
        blocks = parse(page.read_text("utf-8"))
        for at, block in enumerate(blocks):
            if block.kind == "broken":
                above = [b for b in blocks[:at] if b.kind != "broken"]
                name = f"{name_of(page)}:{block.line}"
                param = pytest.param(page, block.line, id=name, marks=marks([*above, block]))
                found.append(param)
    return found


def marks(blocks: list[Block]) -> list[pytest.MarkDecorator]:
    needs = any(NEEDS_TORCH.search(block.code) for block in blocks)
    return [pytest.mark.torch] if needs else []


@pytest.mark.parametrize("page", pages())
def test_page_runs(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path)


@pytest.mark.parametrize(("page", "line"), broken_blocks())
def test_broken_version_goes_wrong_as_the_page_says(page: Path, line: int, tmp_path: Path) -> None:
    run(page, tmp_path, line)


def run(page: Path, folder: Path, line: int | None = None) -> None:
    arguments = [str(page)] if line is None else [str(page), str(line)]
    # Warnings are errors in what readers copy; a broken block may show one.
    warnings = ["-W", "error"] if line is None else ["-W", "default"]
    done = subprocess.run(
        [sys.executable, *warnings, str(RUNNER), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    if line is None:
        assert "Exception ignored" not in said, said
        assert "Warning" not in said, said


# What the pages are made of


def test_a_page_is_taken_apart() -> None:
    text = (
        "```python\nprint(1)\n```\n\n```text output\n1\n```\n"
        "````python broken\n# no\n```\n````\n```text output\nSyntaxError\n```\n"
        "<!-- not run: it never ends -->\n```python\nwhile True: pass\n```\n```bash\nls\n```\n"
        "```pycon\n>>> 1\n1\n```\n"
    )
    assert parse(text) == [
        Block(kind="python", code="print(1)\n", line=1, output="1\n"),
        Block(kind="broken", code="# no\n```\n", line=8, output="SyntaxError\n"),
        Block(kind="pycon", code=">>> 1\n1\n", line=22),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "```python borken\n```\n",
        "```python broken\n# no\n1/0\n```\nno output\n",
        "```python broken\n1/0\n```\n```text output\nZeroDivisionError\n```\n",
        "```python\nprint(1)\n```\nand\n```text output\n1\n```\n",
    ],
)
def test_a_page_with_a_mistake_in_its_fences_is_refused(text: str) -> None:
    with pytest.raises(DocError):
        parse(text)


def test_a_wrong_output_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for fences in (
        "```python\nprint(1)\n```\n```text output\n2\n```\n",
        "```pycon\n>>> 1\n2\n```\n",
        "```python\n1/0\n```\n",
    ):
        page.write_text(fences)
        with pytest.raises(AssertionError):
            run(page, tmp_path)
    page.write_text(
        "```python broken\n# no\nprint(1)\n```\n```text output\nZeroDivisionError\n```\n"
    )
    with pytest.raises(AssertionError):
        run(page, tmp_path, 1)


# Docstrings


def modules() -> list[object]:
    """One parameter for each module whose docstrings hold examples."""
    found: list[object] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text("utf-8"):
            needs = {"collate", "io", "_demo"} & set(
                path.relative_to(PACKAGE).with_suffix("").parts
            )
            name = path.relative_to(PACKAGE).as_posix()
            found.append(pytest.param(path, id=name, marks=[pytest.mark.torch] if needs else []))
    return found


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring, those below constants included."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value


@pytest.mark.parametrize("path", modules())
def test_docstring_examples(path: Path) -> None:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    module = importlib.import_module(name)
    parser = doctest.DocTestParser()
    said: list[str] = []
    for line, text in docstrings(path):
        test = parser.get_doctest(text, vars(module), name, str(path), line - 1)
        doctest.DocTestRunner(optionflags=DOCTEST_OPTIONS).run(test, out=said.append)
    assert not said, "".join(said)


def test_the_reference_lists_every_public_name() -> None:
    reference = "\n".join(
        page.read_text("utf-8") for page in PAGES if page.parent.name == "reference"
    )
    missing = [name for name in spdl_async.__all__ if not re.search(rf"\b{name}\b", reference)]
    assert not missing
