"""Where things run: which executors our hops can use, and whose loop runs the stages."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Literal

_INTERPRETERS: tuple[type, ...] = tuple(
    kind
    for kind in [getattr(concurrent.futures, "InterpreterPoolExecutor", None)]
    if kind is not None
)


def drains(executor: Executor) -> bool:
    """Tell whether hops can run on an executor: a pool of threads that share our memory."""
    return isinstance(executor, ThreadPoolExecutor) and not isinstance(executor, _INTERPRETERS)


def choose_loop(async_parts: Iterable[str]) -> tuple[Literal["caller", "own"], str]:
    """Return where ``loop="auto"`` runs the stages, and why; each part is a text "… is async"."""
    parts = list(async_parts)
    if parts:
        return "caller", f"{parts[0]} and may hold resources that belong to the caller's loop"
    return "own", "nothing in it is async, so a busy caller's loop need not starve it"
