"""The layers point one way (the picture is in ``spdl_async/__init__.py``)."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "spdl_async"

# What each layer may import; a module belongs to the first layer whose prefix it has.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "statistics": set(),
    "aggregators": {"spec", "errors"},
    "spec": {"errors"},
    "_cache": set(),
    "_limits": set(),
    "_plan": {"_cache", "spec", "errors"},
    "_runtime": {"_cache", "_limits", "_plan", "spec", "errors", "statistics"},
    "_loops": set(),
    "_order": {"_plan"},
    "_start": {"_order", "_loops", "_runtime", "_plan", "errors", "statistics"},
    "_wrong_face": {"errors"},
    "_run": {"_order", "_start", "_wrong_face", "errors", "statistics"},
    "_sync": {"_run", "_order", "_start", "_wrong_face", "errors", "statistics"},
    "_series": {"_order", "_start", "_loops", "_runtime", "errors"},
    "_epochs": {"_series", "_run", "_sync", "_order", "errors"},
    "pipeline": {"_epochs", "_run", "_sync", "_order", "_series", "_plan", "spec", "errors"},
    "merging": {"spec", "errors"},
    "builder": {"merging", "pipeline", "aggregators", "_plan", "spec", "errors"},
    "elements": {"builder", "spec", "errors"},
}
PUBLIC = "the public API"
# The extension packages use what ``spdl_async`` itself exports, and what stands here.
EXTENSIONS: dict[str, set[str]] = {
    "collate": set(),
    "device": set(),
    "io": {"collate"},  # ImageBatcher collates the fields beside the picture
    "sources": {"io"},
    # The virtual clock asks the live runs whether a thread has work, the fake device what is dense.
    "testing": {"_runtime", "device"},
    "_demo": {"io", "collate", "_limits"},
    "_doctor": {"_limits"},
    "__main__": {"_demo", "_doctor"},
}
TORCH = {"collate", "device", "io", "_demo", "_doctor"}
FAKE_TORCH = {"_fake_device.py", "_fake_memory.py"}  # of testing, within functions


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imports(path: Path) -> list[tuple[str, bool]]:
    """Return (dotted name, only for type checking) of every import."""
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, typing_only: bool) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            typing_only = True
        if isinstance(node, ast.Import):
            found.extend((alias.name, typing_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.append((node.module, typing_only))
        for child in ast.iter_child_nodes(node):
            visit(child, typing_only)

    visit(ast.parse(path.read_text()), False)
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_the_layers_below_its_own(path: Path) -> None:
    layer = name_of(path)
    if layer == "__init__":
        return
    allowed = (LAYERS | EXTENSIONS)[layer] | {layer}
    for target, typing_only in imports(path):
        if not target.startswith("spdl_async") or typing_only:
            continue
        below = target.split(".")[1] if "." in target else PUBLIC
        if layer in EXTENSIONS and below in {PUBLIC, "errors", "statistics"}:
            continue
        assert below in allowed, f"{path.name} imports {target}"


def test_the_modules_of_the_core_form_no_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for path in modules():
        if name_of(path) in LAYERS:
            dotted = "spdl_async." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
            graph[dotted.removesuffix(".__init__")] = {
                target for target, typing_only in imports(path) if not typing_only
            }
    for name, targets in graph.items():
        graph[name] = {target for target in targets if target in graph}
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_torch_is_imported_only_where_it_is_used(path: Path) -> None:
    if name_of(path) not in TORCH and path.name not in FAKE_TORCH:
        found = [
            t for t, typing_only in imports(path) if t.split(".")[0] == "torch" and not typing_only
        ]
        assert not found


def test_the_core_never_imports_an_extension() -> None:
    for path in modules():
        if name_of(path) in LAYERS or name_of(path) == "__init__":
            for target, _ in imports(path):
                if (path.name, target) == ("builder.py", "spdl_async.device"):
                    continue  # to_device and to_host, when they are built
                assert target.split(".")[1:2] not in [[name] for name in EXTENSIONS], path


def calls(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_only_the_plan_asks_what_kind_of_function_something_is() -> None:
    for path in modules():
        if name_of(path) not in {"_plan", "testing"}:
            asked = {
                c for c in calls(path) if c.startswith("inspect.is") and c.endswith("function")
            }
            assert not asked, path


def test_only_the_runtime_and_the_faces_make_tasks_futures_and_threads() -> None:
    makers = (
        "create_task",
        "create_future",
        "threading.Thread",
        "ThreadPoolExecutor",
        "ensure_future",
    )
    for path in modules():
        if name_of(path) in LAYERS.keys() - {
            "_runtime",
            "_run",
            "_sync",
            "_start",
            "_loops",
            "_series",
        }:
            made = {c for c in calls(path) if c.endswith(makers)}
            assert not made, path


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            doc = ast.get_docstring(node, clean=False)
            lines -= 0 if doc is None else doc.count("\n") + 1
            assert lines <= 60, f"{path.name}: {node.name} has {lines} lines"
    if path.name != "builder.py":  # whose docstrings are the reference of every verb
        assert text.count("\n") <= 400, f"{path.name} has {text.count(chr(10))} lines"
