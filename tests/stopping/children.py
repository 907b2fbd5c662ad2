"""Scripts in a process of their own, with a watchdog that shows where they hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

WATCHDOG = 25.0

PRELUDE = f"""
import faulthandler
faulthandler.dump_traceback_later({WATCHDOG}, exit=True)
import asyncio, gc, itertools, os, sys, threading, time
from spdl_async import PipelineBuilder

def say(word):
    print(word, flush=True)
"""

NOISE = (
    "Exception ignored",
    "never retrieved",
    "never awaited",
    "Fatal Python error",
    "Task was destroyed",
    "Exception in thread",
    "Exception in callback",
    "Timeout (",
)


@dataclass(frozen=True)
class Finished:
    """What became of a script.

    Attributes:
        status: its exit status; negative where a signal ended it.
        out: what it printed.
        err: what it wrote to stderr.
        seconds: from the event of interest (the last signal, or the word "LEAVING") to its end.
    """

    status: int
    out: str
    err: str
    seconds: float

    def assert_quiet(self) -> None:
        """Check that nothing came to stderr that no caller asked for."""
        for words in NOISE:
            assert words not in self.err, self.err


def run_script(
    body: str,
    *,
    signals: tuple[float, ...] = (),
    options: tuple[str, ...] = ("-W", "error::ResourceWarning"),
) -> Finished:
    """Run a script; after it has said READY send SIGINT after each of the pauses."""
    process = subprocess.Popen(
        [sys.executable, *options, "-c", PRELUDE + textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        # A suite that was started in the background ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    errors: list[str] = []
    listener = threading.Thread(target=lambda: errors.append(process.stderr.read()))  # type: ignore[union-attr]  # checked above
    listener.start()
    out = []
    began = time.monotonic()
    for line in process.stdout:
        out.append(line)
        if line == "LEAVING\n":
            began = time.monotonic()
        if line == "READY\n":
            for pause in signals:
                time.sleep(pause)
                began = time.monotonic()
                process.send_signal(signal.SIGINT)
    status = process.wait(WATCHDOG + 5)
    seconds = time.monotonic() - began
    listener.join(5)
    process.stdout.close()
    process.stderr.close()
    return Finished(status, "".join(out), "".join(errors), seconds)


def run_scripts(
    bodies: dict[str, str],
    *,
    signals: tuple[float, ...] = (),
    options: tuple[str, ...] = ("-W", "error::ResourceWarning"),
) -> dict[str, Finished]:
    """Run scripts that mostly wait, all at once."""
    with ThreadPoolExecutor(len(bodies)) as executor:
        futures = {
            name: executor.submit(run_script, body, signals=signals, options=options)
            for name, body in bodies.items()
        }
        return {name: future.result() for name, future in futures.items()}
