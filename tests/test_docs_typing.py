"""The pages' code passes ``mypy --strict``, as readers who copy it will want it to.

Each block becomes a module of its own, which imports from those above it on its page what it uses of
them. So a page may define a name anew, as one does in a notebook. Torch, numpy, Pillow and pyarrow are not
followed: reading them would take longer than everything else.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import parse

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    ROOT / "docs" / "quickstart.md",
    *sorted(ROOT.joinpath("docs", "concepts").glob("*.md")),
    *sorted(ROOT.joinpath("docs", "guides").glob("*.md")),
]
CONFIG = """
[mypy]
strict = true
implicit_reexport = true

[mypy-torch.*,numpy.*,PIL.*,pyarrow.*]
follow_imports = skip
ignore_missing_imports = true

[mypy-spdl_async.*]
follow_imports = silent
"""


def bound(tree: ast.Module) -> set[str]:
    """Return the names that a block's own statements bind, outside of functions and classes."""
    found: set[str] = set()
    inner = (
        *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
        *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    )

    def visit(node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        if not isinstance(node, inner):
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(tree)
    return found


def modules_of(page: Path) -> dict[str, str]:
    """Return the modules of a page's blocks, by their names; each line is where it is on the page."""
    stem = page.stem.replace("-", "_")
    owners: dict[str, str] = {}
    made: dict[str, str] = {}
    for block in parse(page.read_text("utf-8")):
        if block.kind != "python":
            continue
        tree = ast.parse(block.code)
        own = bound(tree)
        used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - own
        imports = "; ".join(
            f"from {owners[name]} import {name}" for name in sorted(used) if name in owners
        )
        name = f"{stem}_{block.line}"
        # The imports stand in the line of the fence, so that the lines are those of the page.
        made[name] = "\n" * (block.line - 1) + imports + "\n" + block.code
        owners.update(dict.fromkeys(own, name))
    return made


def check(folder: Path, modules: dict[str, str]) -> str:
    """Return what mypy says of modules."""
    for name, code in modules.items():
        folder.joinpath(f"{name}.py").write_text(code, "utf-8")
    folder.joinpath("mypy.ini").write_text(CONFIG, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", os.devnull, "."],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_code_of_the_pages_is_typed(tmp_path: Path) -> None:
    modules: dict[str, str] = {}
    for page in PAGES:
        modules.update(modules_of(page))
    assert len(modules) > 30
    modules["wrong"] = "x: int = ''\n"  # what mypy must find, so that its silence means something
    said = check(tmp_path, modules).splitlines()
    assert len(said) == 1, "\n".join(said)
    assert said[0].startswith("wrong.py:1: error: Incompatible types in assignment")
