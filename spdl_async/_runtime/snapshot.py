"""A snapshot of a run's numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spdl_async.statistics import RunStatistics

if TYPE_CHECKING:
    from spdl_async._runtime.engine import Engine


def snapshot_of(engine: Engine) -> RunStatistics:
    """Return a snapshot, from any thread."""
    handover, ledger = engine.handover, engine.ledger
    if engine.finished is not None:  # the engine's loop does not do it any more
        handover.settle(ledger)
    stages = engine.stage_statistics()
    in_flight = ledger.opened - ledger.closed
    ended = bool(handover.end_seen) and not handover.failed
    if engine.finished is not None and handover.ended and not handover.buffer:
        in_flight = 0  # what take or a failure has left above comes no more
    if ended:
        # Results that were taken last may not be accounted for yet, which only the loop may do
        # while it runs; but the end of the data was seen, so what is left is known: nothing.
        stages = tuple(replace(stage, queue=0) for stage in stages)
        if engine.finished is None:
            in_flight = 0
    gone = ended or (engine.finished is not None and handover.closed)
    if gone:
        stages = tuple(replace(stage, bytes_held=0) for stage in stages)
    return RunStatistics(
        name=engine.plan.name,
        epoch=engine.epoch,
        elapsed=engine.end_time() - engine.started,
        stages=stages,
        delivered=handover.delivered,
        consumer_waiting=handover.waiting,
        in_flight=in_flight,
        peak_in_flight=ledger.peak,
        failures=engine.log.total,
        threads=engine.plan.num_threads,
        ended=ended,
        bytes=None if engine.budget is None else engine.budget.statistics(gone),
    )
