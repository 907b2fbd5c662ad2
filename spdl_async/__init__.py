"""Asyncio-native, thread-based data loading for machine learning.

The layers point one way: errors, statistics ← spec ← _plan ← _runtime ← _run, _sync, _epochs,
pipeline ← builder ← elements ← this module. Collating, pictures, devices and the rest live in
subpackages that use only what is named here. ``tests/test_layers.py`` enforces this.
"""

from __future__ import annotations

from spdl_async._epochs import Epochs as Epochs
from spdl_async._plan.field import on as on
from spdl_async._plan.per_thread import per_thread as per_thread
from spdl_async._run import PipelineRun as PipelineRun
from spdl_async._runtime.cancelled import cancelled as cancelled
from spdl_async._runtime.native import native_threads as native_threads
from spdl_async._runtime.telling import note as note
from spdl_async._runtime.telling import tally as tally
from spdl_async._sync import SyncPipelineRun as SyncPipelineRun
from spdl_async.aggregators import BatchBy as BatchBy
from spdl_async.aggregators import BucketBy as BucketBy
from spdl_async.builder import PipelineBuilder as PipelineBuilder
from spdl_async.elements import map_items as map_items
from spdl_async.errors import ArchiveError as ArchiveError
from spdl_async.errors import BudgetError as BudgetError
from spdl_async.errors import BuildError as BuildError
from spdl_async.errors import CollateError as CollateError
from spdl_async.errors import DecodeError as DecodeError
from spdl_async.errors import DeviceError as DeviceError
from spdl_async.errors import FetchError as FetchError
from spdl_async.errors import RunStateError as RunStateError
from spdl_async.errors import ShutdownTimeout as ShutdownTimeout
from spdl_async.errors import SpdlAsyncError as SpdlAsyncError
from spdl_async.errors import StageTimeout as StageTimeout
from spdl_async.errors import TooManyFailures as TooManyFailures
from spdl_async.errors import UnusedBuilderWarning as UnusedBuilderWarning
from spdl_async.merging import Merge as Merge
from spdl_async.merging import Zip as Zip
from spdl_async.pipeline import Description as Description
from spdl_async.pipeline import Pipeline as Pipeline
from spdl_async.spec.aggregator import Aggregator as Aggregator
from spdl_async.spec.markers import DROP as DROP
from spdl_async.spec.markers import Drop as Drop
from spdl_async.spec.policy import Failure as Failure
from spdl_async.spec.policy import Retry as Retry
from spdl_async.spec.sizes import estimate_bytes as estimate_bytes
from spdl_async.statistics import ByteStatistics as ByteStatistics
from spdl_async.statistics import FailureRecord as FailureRecord
from spdl_async.statistics import Failures as Failures
from spdl_async.statistics import RunStatistics as RunStatistics
from spdl_async.statistics import StageStatistics as StageStatistics

__version__ = "0.1.0"

__all__ = [
    "DROP",
    "Aggregator",
    "ArchiveError",
    "BatchBy",
    "BucketBy",
    "BudgetError",
    "BuildError",
    "ByteStatistics",
    "CollateError",
    "DecodeError",
    "Description",
    "DeviceError",
    "Drop",
    "Epochs",
    "Failure",
    "FailureRecord",
    "Failures",
    "FetchError",
    "Merge",
    "Pipeline",
    "PipelineBuilder",
    "PipelineRun",
    "Retry",
    "RunStateError",
    "RunStatistics",
    "ShutdownTimeout",
    "SpdlAsyncError",
    "StageStatistics",
    "StageTimeout",
    "SyncPipelineRun",
    "TooManyFailures",
    "UnusedBuilderWarning",
    "Zip",
    "cancelled",
    "estimate_bytes",
    "map_items",
    "native_threads",
    "note",
    "on",
    "per_thread",
    "tally",
]

# Public names show the path by which they are imported.
for _name in __all__:
    if hasattr(globals()[_name], "__module__") and _name != "DROP":
        globals()[_name].__module__ = __name__
del _name
