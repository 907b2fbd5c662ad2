"""Scenario B9: ops whose libraries have thread pools of their own end, and threads stay bounded."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap

import pytest

# Each has: what sets the pool's size and returns what it was, an op, and how many OS threads beside
# the callers' own the pool may have when ``size`` threads are asked for.
LIBRARIES = {
    "torch": """
    import torch
    torch.set_num_interop_threads(1)
    def cap(size):
        before = torch.get_num_threads()
        torch.set_num_threads(size)
        return before
    data = torch.arange(90_000.0).reshape(300, 300) / 90_000
    def op(n):
        return int((data @ data + n).sum() >= 0) * n
    def allowed(size):
        return (size - 1) * THREADS  # a team for each thread that calls
    """,
    "numpy": """
    import numpy
    def cap(size):
        return None  # fixed when the library is loaded, by OPENBLAS_NUM_THREADS
    data = numpy.arange(90_000.0).reshape(300, 300) / 90_000
    def op(n):
        return int((data @ data + n).sum() >= 0) * n
    def allowed(size):
        return 0  # one pool, which is there since the import
    """,
    "cv2": """
    import cv2, numpy
    def cap(size):
        before = cv2.getNumThreads()
        cv2.setNumThreads(size)
        return before
    data = numpy.arange(270_000, dtype=numpy.uint8).reshape(300, 300, 3)
    def op(n):
        return int(cv2.resize(data, (900, 900)).sum() >= 0) * n
    def allowed(size):
        return max(size, os.cpu_count() or 1)  # one pool for all
    """,
}

PROGRAM = """
import contextlib, os, threading
from spdl_async import PipelineBuilder
THREADS = 8
{library}

def system_threads():
    return len(os.listdir("/proc/self/task"))

together = threading.Barrier(THREADS)
most = 0
def used(n):
    global most
    result = op(n)
    if n < THREADS:
        together.wait()  # all callers are there at once, and have called the library
    most = max(most, system_threads())
    return result

class Capped:
    def __init__(self, size):
        self.size = size
        self.thread = threading.local()
    @contextlib.contextmanager
    def lifespan(self):
        before = cap(self.size)
        yield
        if before is not None:
            cap(before)
    def __call__(self, n):
        if not hasattr(self.thread, "capped"):
            self.thread.capped = cap(self.size)
        return used(n)

size = {size}
op(0)
pipeline = (
    PipelineBuilder().add_source(range(400))
    .pipe(Capped(size), concurrency=THREADS, output_order={order!r}).build()
)
native = system_threads()
got = list(pipeline)
assert sorted(got) == list(range(400)), len(got)
ours = THREADS + 2  # the source's and the loop's
least, limit = native + THREADS, native + ours + allowed(size) + 4  # torch keeps a few more
assert least <= most <= limit, (least, most, limit)
op(0)  # the pool still works for others
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize(("size", "order"), [(1, "input"), (4, "completion")])
@pytest.mark.parametrize("library", LIBRARIES)
def test_native_pools_below_many_threads(library: str, size: int, order: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    program = PROGRAM.format(library=textwrap.dedent(LIBRARIES[library]), size=size, order=order)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
