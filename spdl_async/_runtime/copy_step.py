"""The copy stages: one thread of their own, on which the copies of a run are queued one after the other."""

from __future__ import annotations

from types import MappingProxyType

from spdl_async._plan.copying import CopyPlan
from spdl_async._runtime.bridge import Sink
from spdl_async._runtime.channel import Channel, Outlet
from spdl_async._runtime.failures import Judge
from spdl_async._runtime.hop import Line
from spdl_async._runtime.host import Host
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.pool import ThreadPool
from spdl_async._runtime.thread_step import ThreadStep
from spdl_async._runtime.ticket import Item
from spdl_async.spec.copies import Copying
from spdl_async.statistics import StageStatistics


class CopyStep(ThreadStep):
    """Copies batches to a device, or back, on a thread that nobody else uses.

    A thread has a current device, so one that is shared with others would have to set it again and again;
    and a copy that waits for a buffer must not keep a decoder from working.
    """

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        plan: CopyPlan,
        copying: Copying,
        judge: Judge,
        pool: ThreadPool,
    ) -> None:
        op = plan.ops[0]
        super().__init__(
            host,
            source,
            out,
            [copying],
            concurrency=1,
            executor=None,
            ordered=True,
            floor=plan.floor,
            ceiling=plan.bound,
            judges=[judge],
            meters=[Meter(op.name, "copy", 1)],
        )
        self.copying = copying
        if isinstance(out, Sink):
            out.on_emptied.append(self.hand_over)
        self.line = Line(pool, None)
        self.pool = pool

    def slots_taken(self) -> int:
        """Return 1 also while batches wait for the consumer.

        So the next epoch's copies begin when this one's are all taken, and no more than ``depth`` are ever
        on the device.
        """
        waits = isinstance(self.out, Sink) and not self.out.empty
        return 1 if waits else super().slots_taken()

    def statistics(self) -> list[StageStatistics]:
        self.meters[0].notes = MappingProxyType(dict(self.copying.statistics()))
        return super().statistics()

    def running(self) -> list[tuple[str, int, Item | None]]:
        # At its end the thread waits for the copies that are under way.
        leaving = self.pool.leaving
        last = [] if leaving is None else [(self.meters[0].name, leaving, None)]
        return [*super().running(), *last]
