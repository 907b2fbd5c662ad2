"""What a pipeline is, as frozen values: stages, policies, markers. No behaviour, no torch, no threads."""

from __future__ import annotations

from spdl_async.spec.aggregator import Aggregator as Aggregator
from spdl_async.spec.markers import DROP as DROP
from spdl_async.spec.markers import Drop as Drop
from spdl_async.spec.policy import Failure as Failure
from spdl_async.spec.policy import FailurePolicy as FailurePolicy
from spdl_async.spec.policy import Retry as Retry
from spdl_async.spec.stages import AggregateSpec as AggregateSpec
from spdl_async.spec.stages import ChainSpec as ChainSpec
from spdl_async.spec.stages import DisaggregateSpec as DisaggregateSpec
from spdl_async.spec.stages import PipeSpec as PipeSpec
from spdl_async.spec.stages import SinkSpec as SinkSpec
from spdl_async.spec.stages import SourceSpec as SourceSpec
from spdl_async.spec.stages import StageSpec as StageSpec

__all__ = [
    "DROP",
    "AggregateSpec",
    "Aggregator",
    "ChainSpec",
    "DisaggregateSpec",
    "Drop",
    "Failure",
    "FailurePolicy",
    "PipeSpec",
    "Retry",
    "SinkSpec",
    "SourceSpec",
    "StageSpec",
]
