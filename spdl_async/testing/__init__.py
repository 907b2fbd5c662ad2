"""Helpers for tests of pipelines.

Deterministic schedules instead of sleeps: :class:`Gate` and :class:`AsyncGate` are ops that wait
until the test opens them, :func:`run_virtual` runs a coroutine on a clock that jumps over waiting,
:class:`InlineExecutor` runs sync ops without threads. :class:`Recorder` tells what was called and
how many at once. :class:`Chain` describes stages once, to run them as a pipeline and as plain loops.
:func:`check_leaks` fails a block that leaves tasks, threads or descriptors behind.
:class:`FakeDevice` stands for a GPU whose streams are as late as they can be.

>>> from spdl_async.testing import Chain, check_leaks
>>> chain = Chain().pipe(str.upper, concurrency=2).aggregate(2)
>>> with check_leaks():
...     assert list(chain.builder(["a", "b", "c"]).build()) == chain.expected(["a", "b", "c"]).outputs
"""

from __future__ import annotations

from spdl_async.testing._chain import Chain as Chain
from spdl_async.testing._chain import Step as Step
from spdl_async.testing._chain import reference_run as reference_run
from spdl_async.testing._fake_device import FakeDevice as FakeDevice
from spdl_async.testing._fake_device import FakeOutOfMemory as FakeOutOfMemory
from spdl_async.testing._fake_script import FakeCall as FakeCall
from spdl_async.testing._fake_script import FakeHold as FakeHold
from spdl_async.testing._gates import AsyncGate as AsyncGate
from spdl_async.testing._gates import Gate as Gate
from spdl_async.testing._inline import InlineExecutor as InlineExecutor
from spdl_async.testing._leaks import LeakCheck as LeakCheck
from spdl_async.testing._leaks import LeakError as LeakError
from spdl_async.testing._leaks import check_leaks as check_leaks
from spdl_async.testing._recorder import Recorder as Recorder
from spdl_async.testing._reference import Expected as Expected
from spdl_async.testing._virtual import VirtualClockLoop as VirtualClockLoop
from spdl_async.testing._virtual import run_virtual as run_virtual

__all__ = [
    "AsyncGate",
    "Chain",
    "Expected",
    "FakeCall",
    "FakeDevice",
    "FakeHold",
    "FakeOutOfMemory",
    "Gate",
    "InlineExecutor",
    "LeakCheck",
    "LeakError",
    "Recorder",
    "Step",
    "VirtualClockLoop",
    "check_leaks",
    "reference_run",
    "run_virtual",
]

# Public names show the path by which they are imported.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
