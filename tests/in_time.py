"""Call something that may hang, as pytest's own timeout cannot interrupt uvloop."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Hang(BaseException):
    """A round did not come to its end."""


def in_time(work: Callable[[], T], about: object, *, patience: float) -> T:
    """Call ``work`` in a thread; raise with every thread's stack where it does not come back."""
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, name="in time", daemon=True)
    thread.start()
    thread.join(patience)
    if thread.is_alive():
        frames = sys._current_frames()
        stacks = [
            f"{other.name}:\n{''.join(traceback.format_stack(frames[other.ident]))}"
            for other in threading.enumerate()
            if other.ident in frames
        ]
        raise Hang(f"no end after {patience:g} s of\n{about}\n" + "\n".join(stacks))
    if errors:
        raise errors[0]
    return results[0]
