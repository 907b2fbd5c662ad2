"""The documentation's code runs, and prints what the pages say: pages, README, docstrings."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doc_pages import DOCTEST_OPTIONS, Block, DocError, parse

import spdl_async

ROOT = Path(__file__).parent.parent
PACKAGE = Path(spdl_async.__file__).parent
RUNNER = Path(__file__).with_name("doc_pages.py")
PAGES = sorted([ROOT / "README.md", *ROOT.joinpath("docs").rglob("*.md")])
NEEDS_TORCH = re.compile(r"\btorch\b|spdl_async\.(collate|io|sources)\b")


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
    if page.name == "README.md":
        make_photos(tmp_path / "photos")
    run(page, tmp_path)


def make_photos(folder: Path) -> None:
    """Write what the README reads: 33 good pictures and a damaged one."""
    pytest.importorskip("PIL")
    from benchmarks._photos import make

    folder.mkdir()
    make(folder, count=33, width=64, height=48)
    (folder / "damaged.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")


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
            needs = {"collate", "device", "io", "sources", "_demo", "_fake_device"} & set(
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


# The reference

DIRECTIVE = re.compile(
    r"^(?P<indent> *)\.\. (?:auto(?:class|exception|function|method|property)|py:data):: "
    r"(?P<name>[\w.]+)(?:\((?P<signature>.*)\))?$",
    re.MULTILINE,
)


def described() -> dict[str, str | None]:
    """Return what the reference describes, ``Class.method`` for methods, with the written signatures."""
    found: dict[str, str | None] = {}
    for page in PAGES:
        if page.parent.name == "reference":
            owner = ""
            text = page.read_text("utf-8")
            module = re.search(r"^\.\. currentmodule:: spdl_async\.(\w+)$", text, re.MULTILINE)
            prefix = f"{module[1]}." if module else ""
            for match in DIRECTIVE.finditer(text):
                name = match["name"].removeprefix("spdl_async.")
                if match["indent"]:
                    name = f"{owner}.{name}"
                else:
                    name = owner = name if name.startswith(prefix) else prefix + name
                assert name not in found, f"{name} stands twice in the reference"
                found[name] = match["signature"]
    return found


def parameters(call: Any) -> list[tuple[str, object, object]]:
    """Return name, kind and default of what a callable takes, as it is called."""
    given = list(inspect.signature(call).parameters.values())
    return [(p.name, p.kind, p.default) for p in given if p.name != "self"]


def written(signature: str) -> list[tuple[str, object, object]]:
    """Return the same of a signature as the reference has it."""
    namespace: dict[str, Any] = {}
    exec(f"def call({signature}): ...", namespace)
    return parameters(namespace["call"])


def public_names() -> set[str]:
    names = set(spdl_async.__all__)
    for package in ("collate", "device", "io", "sources", "testing"):
        module = importlib.import_module(f"spdl_async.{package}")
        page = (ROOT / "docs" / "reference" / f"{package}.md").read_text("utf-8")
        taken = re.search(r"^\.\. automodule:: \S+\n((?: +:.*\n)*)", page, re.MULTILINE)
        left_out = set(module.__all__)
        if taken is not None and ":no-members:" not in taken[1]:  # Sphinx takes them from there
            left_out &= set(re.findall(r"\w+", taken[1]))
        names |= {f"{package}.{name}" for name in left_out}
    return names


def test_the_reference_has_every_public_name() -> None:
    assert not public_names() - described().keys()
    index = (ROOT / "docs" / "reference" / "index.md").read_text("utf-8")
    unlisted = [
        name
        for name in spdl_async.__all__
        if f"`{name}`" not in index and not is_error(getattr(spdl_async, name))
    ]
    assert not unlisted


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def test_the_reference_has_every_verb() -> None:
    verbs = {
        f"PipelineBuilder.{name}"
        for name, member in vars(spdl_async.PipelineBuilder).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }
    assert verbs <= described().keys()


@pytest.mark.parametrize("name", [name for name, text in described().items() if text])
def test_signatures_in_the_reference_are_those_of_the_code(name: str) -> None:
    value: Any = spdl_async
    for part in name.split("."):
        if inspect.ismodule(value):
            with contextlib.suppress(ImportError):  # a package of the library, or a name in one
                importlib.import_module(f"{value.__name__}.{part}")
        value = getattr(value, part)
    text = described()[name]
    assert text is not None
    assert written(text) == parameters(value)
