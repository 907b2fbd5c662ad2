"""What is to run on any machine with a GPU needs torch, numpy, aiofiles and pytest, and nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
FOLDERS = ("gpu", "device")
FILES = sorted(path for folder in FOLDERS for path in (TESTS / folder).glob("*.py"))
RIGS = [
    ROOT / "benchmarks" / name
    for name in ("_gpu_rows.py", "_measure.py", "_rigs.py", "_torture.py", "gpu.py")
]
THERE = {"aiofiles", "numpy", "pytest", "torch", "spdl_async", "benchmarks", "gpu_devices", "fakes"}


@pytest.mark.parametrize("path", [*FILES, *RIGS], ids=lambda path: path.name)
def test_nothing_else_is_imported_and_no_plugin_is_needed(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.AsyncFunctionDef):
            assert not node.name.startswith("test_"), f"{node.name}: needs pytest-asyncio"
    assert imported - THERE - set(sys.stdlib_module_names) == set()


@pytest.mark.torch
def test_they_are_collected_without_plugins() -> None:
    without = [f"-pno:{name}" for name in ("asyncio", "timeout", "xdist", "cacheprovider")]
    folders = [f"tests/{folder}" for folder in FOLDERS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *without, "--collect-only", "-q", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_every_element_of_2000_batches_is_right" in done.stdout
