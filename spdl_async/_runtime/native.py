"""``native_threads()``: how many threads a codec may use beneath an op."""

from __future__ import annotations

import functools

from spdl_async._limits import cgroup_cpu_limit, cores_within
from spdl_async._runtime.telling import meter_here


def native_threads() -> int:
    """Return how many native threads a library may use in the op that asks, at least 1.

    Codecs and numeric libraries bring thread pools of their own, sized for a machine that they have
    to themselves: eight concurrent calls on eight cores then make 64 threads, and one call with a
    single thread leaves seven cores idle. So the cores that this process may use (affinity and
    control group) are divided by the ``concurrency`` of the stage: whatever that is, its calls
    together have one thread for each core. Stages share the cores, so two busy stages may
    each want less than they are told.

    Outside of an op all usable cores are returned; in an ``executor=`` of processes, each has its
    share as a thread has. Where `tally` does nothing for other reasons, that is outside of an op.

    >>> from spdl_async import PipelineBuilder, native_threads
    >>> def share(_):
    ...     return native_threads()
    >>> cores = native_threads()
    >>> pipeline = PipelineBuilder().add_source(range(3)).pipe(share, concurrency=cores).build()
    >>> list(pipeline)
    [1, 1, 1]
    """
    cores = cores_within(_cgroup_limit())
    meter = meter_here()
    return cores if meter is None else max(1, cores // meter.concurrency)


@functools.cache
def _cgroup_limit() -> float | None:
    """Return the control group's limit, which takes the reading of several files, as it was at first."""
    return cgroup_cpu_limit()
