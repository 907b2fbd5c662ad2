"""The code in the documentation: taking it out of a page, and running it.

What a fence's info string says about it:

======================  =======================================================================
``python``              runs after those above it on the page, in the same namespace
``python broken``       code that the page warns of: runs in a process of its own, after the
                        page's ``python`` blocks above it
``pycon``               a session, compared as a doctest
``text output``         what the block right above it prints; ``...`` stands for anything
======================  =======================================================================

A broken block begins with a comment that says what is wrong, and is followed by its output, which
shows it; an exception that ends it counts as output. ``<!-- not run: reason -->`` above a block
leaves it alone.

As a script it runs one page in the current directory: ``doc_pages.py PAGE [LINE]``; with the line
of a broken block it runs that one.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import sys
import traceback
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DOCTEST_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

FENCE = re.compile(
    r"^(?P<ticks>`{3,})(?P<info>[^`\n]*)\n(?P<code>.*?)^(?P=ticks)`*[ ]*$", re.MULTILINE | re.DOTALL
)
NOT_RUN = re.compile(r"<!-- not run: \S[^>]*-->\s*\Z")

Kind = Literal["python", "broken", "pycon"]
KINDS: dict[tuple[str, ...], Kind] = {
    ("python",): "python",
    ("python", "broken"): "broken",
    ("pycon",): "pycon",
}


class DocError(AssertionError):
    """The documentation says something else than the code does."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fence that is run.

    Attributes:
        kind: how it is run.
        code: its text.
        line: the line of its fence, from 1.
        output: what it is to print; None where the page does not say.
    """

    kind: Kind
    code: str
    line: int
    output: str | None = None


def parse(text: str) -> list[Block]:
    """Return the blocks of a page that are run, in order.

    Raises:
        DocError: a fence has an info string like none above, or an output belongs to no block.
    """
    return list(_parse(text))


def _parse(text: str) -> Iterator[Block]:
    last: Block | None = None
    end = 0
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        info = tuple(fence["info"].split())
        if info == ("text", "output"):
            if last is None or text[end : fence.start()].strip():
                raise DocError(f"line {line}: this output does not stand right below a block")
            yield _with_output(last, fence["code"])
            last = None
        else:
            if last is not None:
                yield _with_output(last, None)
            last = _block(info, fence["code"], line, text[: fence.start()])
        end = fence.end()
    if last is not None:
        yield _with_output(last, None)


def _block(info: tuple[str, ...], code: str, line: int, above: str) -> Block | None:
    if not info or info[0] not in ("python", "pycon") or NOT_RUN.search(above):
        return None
    if info not in KINDS:
        raise DocError(f"line {line}: {' '.join(info)!r} is no kind of block; see doc_pages.py")
    if KINDS[info] == "broken" and not code.startswith("# "):
        raise DocError(f"line {line}: a broken block begins with a comment that says what is wrong")
    return Block(kind=KINDS[info], code=code, line=line)


def _with_output(block: Block, output: str | None) -> Block:
    if block.kind == "broken" and output is None:
        raise DocError(f"line {block.line}: a broken block needs its output right below it")
    if block.kind == "pycon" and output is not None:
        raise DocError(f"line {block.line}: a session shows its output itself")
    return Block(kind=block.kind, code=block.code, line=block.line, output=output)


def run_page(path: Path, broken: int | None = None) -> None:
    """Run a page's blocks in order, or the broken one at a line after those above it.

    Raises:
        DocError: a block printed something else than the page says.
    """
    # A module that processes forked from this one find by its name, as they would a script's.
    page = types.ModuleType("__main__")
    sys.modules["__main__"] = page
    for block in parse(path.read_text("utf-8")):
        if block.line == broken:
            check_output(block, run_broken(block, path, page.__dict__))
            return
        if block.kind == "python":
            check_output(block, run_python(block, path, page.__dict__))
        elif block.kind == "pycon":
            run_session(block, path, page.__dict__)


def run_python(block: Block, path: Path, namespace: dict[str, object]) -> str:
    """Run a block; return what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        # The empty lines give tracebacks the line numbers of the page.
        exec(
            compile("\n" * block.line + block.code, str(path), "exec", dont_inherit=True), namespace
        )
    return printed.getvalue()


def run_broken(block: Block, path: Path, namespace: dict[str, object]) -> str:
    """Run a block that goes wrong; return what it printed, warned, logged and raised."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            exec(
                compile("\n" * block.line + block.code, str(path), "exec", dont_inherit=True),
                namespace,
            )
        except Exception as error:
            printed.write("".join(traceback.format_exception_only(error)))
    return printed.getvalue()


def run_session(block: Block, path: Path, namespace: dict[str, object]) -> None:
    """Run a session as a doctest.

    Raises:
        DocError: it printed something else.
    """
    test = doctest.DocTestParser().get_doctest(
        block.code, namespace, path.name, str(path), block.line
    )
    report = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=DOCTEST_OPTIONS)
    runner.run(test, out=report.write, clear_globs=False)
    namespace.update(test.globs)
    if runner.failures:
        raise DocError(report.getvalue())


def check_output(block: Block, printed: str) -> None:
    """Compare what a block printed, as a doctest does, to what the page says.

    Raises:
        DocError: they differ.
    """
    checker = doctest.OutputChecker()
    if block.output is None or checker.check_output(block.output, printed, DOCTEST_OPTIONS):
        return
    raise DocError(f"line {block.line}: the page says\n{block.output}\nbut it is\n{printed}")


if __name__ == "__main__":
    run_page(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
