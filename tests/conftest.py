"""What every test is run with: two kinds of loop, a check for leaks, and no silent trouble.

Nothing here needs torch, uvloop, hypothesis or a plugin of pytest's: a part of the suite runs without them.
"""

from __future__ import annotations

import asyncio
import asyncio.constants
import functools
import gc
import importlib
import importlib.util
import logging
import sys
import threading
import traceback
import zlib
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from spdl_async.testing import LeakCheck

MANY_CASES = 24
IMPORTED: list[int] = [0]  # how many modules there were when their objects were frozen
SETTINGS_OF_PLUGINS = {
    "asyncio": (
        "asyncio_mode",
        "asyncio_default_fixture_loop_scope",
        "asyncio_default_test_loop_scope",
    ),
    "timeout": ("timeout",),
}
LOOPS = pytest.StashKey[list[AbstractEventLoop]]()

# Loops


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    # tests/device and tests/gpu run with pytest alone, which does not know its plugins' settings.
    for plugin, names in SETTINGS_OF_PLUGINS.items():
        if not pluginmanager.hasplugin(plugin):
            for name in names:
                parser.addini(name, f"for the plugin {plugin}, which is not there")
    parser.addoption(
        "--sample",
        type=int,
        default=1,
        metavar="N",
        help="of the cases of parametrized tests run only one in N, always the same ones",
    )
    parser.addoption(
        "--all-cases",
        action="store_true",
        help="run every case; else, of a test with many, only one in two to four of them",
    )


def drawn(items: list[pytest.Item], config: pytest.Config) -> list[pytest.Item]:
    """Return the cases that run: of tests with many, a part that is chosen by their names."""
    counts = Counter(item.nodeid.partition("[")[0] for item in items)
    sample: int = config.getoption("--sample")

    def runs(item: pytest.Item) -> bool:
        name, _, case = item.nodeid.partition("[")
        every = 1 if config.getoption("--all-cases") else min(4, 1 + counts[name] // MANY_CASES)
        return not case or zlib.crc32(item.nodeid.encode()) % (every * sample) == 0

    return [item for item in items if runs(item)]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LOOPS] = []
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line(
            "markers", "timeout(seconds): for pytest-timeout, where it is there"
        )
    # In debug mode a loop keeps a piece of the stack for each callback and future, ten frames of it: a
    # third of what these tests would cost. One says who made it.
    setattr(asyncio.constants, "DEBUG_STACK_DEPTH", 1)  # noqa: B010 -- a constant to mypy


@pytest.hookimpl(optionalhook=True)  # of pytest-asyncio
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], AbstractEventLoop]]:
    """Run each async test on asyncio's loop in debug mode, and on uvloop where it is installed."""
    makers: dict[str, Callable[[], AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if importlib.util.find_spec("uvloop") is not None:
        makers["uvloop"] = importlib.import_module("uvloop").new_event_loop
    loops = config.stash[LOOPS]
    return {name: functools.partial(_remembered, loops, make) for name, make in makers.items()}


def _remembered(
    loops: list[AbstractEventLoop], make: Callable[[], AbstractEventLoop]
) -> AbstractEventLoop:
    loop = make()
    loops[:] = [loop]  # a test has one
    return loop


def _loop_of_test(item: pytest.Item) -> AbstractEventLoop | None:
    loops = item.config.stash[LOOPS]
    loop = loops.pop() if loops else None
    if loop is None or loop.is_closed():
        return None
    if isinstance(loop, asyncio.BaseEventLoop):  # uvloop's is none, and its debug mode checks less
        loop.set_debug(True)
    return loop


# Leaks and trouble


def pytest_collection_finish(session: pytest.Session) -> None:
    keep_imports()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    if len(sys.modules) > IMPORTED[-1] + 50:
        keep_imports()


def keep_imports() -> None:
    """Keep what was imported out of the collections that follow each test.

    With torch that is a million objects, and a tenth of a second each time.
    """
    IMPORTED.append(len(sys.modules))
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that leaks a task, a thread of ours, a descriptor or a run, or hides an error."""
    kind = LeaksBesideDriver if item.get_closest_marker("gpu") is not None else LeakCheck
    with trouble() as heard, kind(timeout=2.0, loop=_loop_of_test(item)):
        result = yield
    if heard:
        pytest.fail("errors that nobody saw:\n\n" + "\n".join(heard), pytrace=False)
    return result


class LeaksBesideDriver(LeakCheck):
    """Looks at files alone: a driver of GPUs opens pipes and event descriptors when it likes."""

    def _new_descriptors(self) -> list[str]:
        return [text for text in super()._new_descriptors() if "(/" in text and "memfd" not in text]


class _Listener(logging.Handler):
    """Gathers what event loops log as errors: lost exceptions, failed callbacks."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.ERROR)
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(logging.Formatter().format(record))


@contextmanager
def trouble() -> Iterator[list[str]]:
    """Gather errors that have no caller: of finalizers, of threads, of loops' callbacks."""
    heard: list[str] = []

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        text = "".join(
            traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
        )
        heard.append(f"{args.err_msg or 'Exception ignored in'} {args.object!r}\n{text}")

    def in_thread(args: threading.ExceptHookArgs) -> None:
        text = "".join(
            traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
        )
        heard.append(f"in thread {args.thread!r}\n{text}")

    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook, threading.excepthook = unraisable, in_thread
    listener = _Listener(heard)
    logging.getLogger("asyncio").addHandler(listener)
    try:
        yield heard
    finally:
        logging.getLogger("asyncio").removeHandler(listener)
        sys.unraisablehook, threading.excepthook = hooks


# Markers


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this Python, or this machine, cannot run; of a sample, leave out the rest."""
    kept = drawn(items, config)
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = kept
    for item in items:
        if item.get_closest_marker("torch") is not None and not has_torch():
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
        if item.get_closest_marker("gpu") is not None and not has_cuda():
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))


@functools.cache
def has_torch() -> bool:
    """Tell whether torch is installed, without importing it."""
    return importlib.util.find_spec("torch") is not None


@functools.cache
def has_cuda() -> bool:
    """Tell whether there is a CUDA device; asked only where a collected test needs one."""
    return has_torch() and bool(importlib.import_module("torch").cuda.is_available())
