"""The cache: what was found is handed on, what was not goes through the stages above, and is kept.

A route of one branch by ways. The way of an item that was found is done when it begins. That of any
other one gathers the bytes of its outputs; when it is done, and nothing of it was skipped after a failure,
they are written in a thread of the pool, also where the run is stopped meanwhile. Until then the item
counts as accepted, so what waits to be written is bounded by the window; and the data end is held back,
so that who sees it finds everything kept. What a stop cuts off in the branch is not kept.

With completion order results leave as they come, and ways only gather.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING

from spdl_async._cache.store import Store, Written
from spdl_async._plan.caching import Encoded, Found, Missed, Numbered
from spdl_async._runtime.channel import Channel, Outlet
from spdl_async._runtime.failures import Judge
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.route_step import RouteStep
from spdl_async._runtime.step import Host, guarded
from spdl_async._runtime.thread_step import ThreadStep
from spdl_async._runtime.ticket import Item
from spdl_async._runtime.way import Member, Route, Way, inside
from spdl_async.statistics import StageStatistics

if TYPE_CHECKING:
    from spdl_async._cache.entry import Output

logger = logging.getLogger("spdl_async")


class LookupStep(ThreadStep):
    """Looks items up by their position in the source."""

    def begin(self, items: list[Item]) -> None:
        for item in items:
            item.value = Numbered(item.value, item.index)
        super().begin(items)


class CacheWay(Way):
    """The way of a source item.

    Attributes:
        name: of its entry; ``None`` where that was found.
        outputs: what the entry will hold; ``None`` once something was skipped.
    """

    __slots__ = ("name", "outputs")

    def __init__(self, step: Route, origin: Item, name: str | None) -> None:
        super().__init__(step, origin, 0)
        self.name = name
        self.outputs: list[Output] | None = []

    def spoilt(self) -> None:
        self.outputs = None


class Tally:
    """What a pass has done with its cache."""

    def __init__(self, store: Store, stage: str) -> None:
        self.store = store
        self.stage = stage
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self.warned = False

    def missed(self, damaged: bool) -> None:
        """Count a miss."""
        self.counts["misses"] += 1
        self.counts["damaged"] += damaged

    def wrote(self, outcome: Written | OSError) -> None:
        """Count what became of an entry; the first error goes to the log."""
        if isinstance(outcome, OSError):
            self.counts["failed writes"] += 1
            if not self.warned:
                self.warned = True
                logger.warning(
                    "stage %r keeps less than it could: %s: %s (further failures of this pass are "
                    "counted in its statistics)",
                    self.stage,
                    type(outcome).__name__,
                    outcome,
                )
            return
        self.counts["stored" if outcome.stored else "too large"] += 1
        self.counts["evicted"] += outcome.evicted

    def notes(self) -> dict[str, object]:
        """Return what the statistics show."""
        return {**self.counts, "bytes": self.store.bytes}


COUNTS = (
    "hits", "misses", "stored", "evicted", "damaged", "too large", "not complete", "failed writes",
)  # fmt: skip


class CacheStep(RouteStep):
    """Hands on what was found, and has the rest made and kept."""

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        *,
        ordered: bool,
        store: Store,
        streams: bool,
        floor: int,
        ceiling: int,
        judge: Judge,
        meter: Meter,
    ) -> None:
        super().__init__(
            host,
            source,
            out,
            branches=1,
            ordered=ordered,
            batched=False,
            streams=(streams,),
            gathers=(False,),
            labels=("not found",),
            floor=floor,
            ceiling=ceiling,
            judge=judge,
            meter=meter,
        )
        self.store = store
        self.tally = Tally(store, meter.name)
        self.fresh: deque[Item] = deque()
        self.pending = 0  # jobs in threads
        self.at_work: dict[int, Item | None] = {}  # what is written, by thread
        self.written: deque[tuple[CacheWay | None, Written | OSError]] = deque()
        self.woken = False
        self.held_end: list[BaseException | None] = []
        self.branch_judges: list[Judge] = []
        out.on_close = self.hold_end

    @property
    def by_ways(self) -> bool:
        return True

    @property
    def quiet(self) -> bool:
        return not self.pending

    def attach(self, inlets: list[Outlet]) -> None:
        super().attach(inlets)
        for step in self.inner:
            self.branch_judges += getattr(step, "judges", ())

    def start(self) -> None:
        super().start()
        self.begin(None)  # looks at what is there

    def statistics(self) -> list[StageStatistics]:
        self.meters[0].notes = self.tally.notes()
        return super().statistics()

    # Into the branch

    def send(self, items: list[Item]) -> None:
        ledger = self.host.ledger
        bundle: list[Item] = []
        for item in items:
            looked_up, item.value = item.value, None
            if type(looked_up) is Found:
                self.put_found(item, looked_up)
                continue
            assert type(looked_up) is Missed
            self.tally.missed(looked_up.damaged)
            way = CacheWay(self, item, looked_up.to)
            self.held.append(way)
            own = inside(item, way, looked_up.value)
            ledger.pass_load(item, own)
            bundle.append(own)
        if bundle:
            self.inlets[0].push(bundle)
        if found := len(items) - len(bundle):
            # Else the few items that fail in each pass would be all that the stages are called on.
            for judge in self.branch_judges:
                judge.count_calls(found)
            self.advance_soon()

    def put_found(self, item: Item, found: Found) -> None:
        """Have an entry's outputs leave when it is their turn."""
        self.tally.counts["hits"] += 1
        way = CacheWay(self, item, None)
        way.open = 0
        ledger = self.host.ledger
        for value, path in zip(found.value, found.to, strict=True):
            made = item.child(value, item.path + path, item.members)
            ledger.adopt(item, 1)
            way.results.append(made)
        if len(way.results) == 1:  # of several the load stays with the item until they leave
            ledger.pass_load(item, way.results[0])
        elif not way.results:
            self.host.saw_drop()
        self.held.append(way)
        if not self.ordered:
            self.fresh += way.results
            way.results = []
            self.done.append(way)

    # Out of the branch

    def come_back(self, item: Item, way: Way) -> None:
        made = item.value
        assert type(made) is Encoded
        item.value = made.value
        whole = way.whole if isinstance(way, Member) else way
        assert isinstance(whole, CacheWay)
        if whole.outputs is not None:
            whole.outputs.append((item.path[len(whole.origin.path) :], made.to))
        self.host.ledger.split_load(item, whole.origin, made.to.size)
        super().come_back(item, way)
        if not self.ordered:
            self.fresh += whole.results
            whole.results = []

    def gather(self) -> None:
        if not self.ordered and self.fresh:
            end = self.ends[0]
            self.ready += self.fresh
            self.fresh.clear()
            if end.held:
                held, end.held = end.held, 0
                end.on_taken(held)
        super().gather()

    def leave(self, way: Way) -> None:
        assert isinstance(way, CacheWay)
        if way.name is None:
            self.ready += way.results
            way.results = []
        else:
            super().leave(way)

    # Keeping

    def finish(self, way: Way) -> None:
        assert isinstance(way, CacheWay)
        if way.name is None:
            super().finish(way)
        elif way.outputs is None:
            self.tally.counts["not complete"] += 1
            super().finish(way)
        else:
            self.begin(way)

    def begin(self, way: CacheWay | None) -> None:
        """Have a thread write an entry, or open the store."""
        self.pending += 1
        self.occupied = True
        try:
            self.host.pool.put(functools.partial(self.work, way))
        except RuntimeError as error:  # the run has ended
            self.written.append((way, OSError(str(error))))
            self.wake()

    def work(self, way: CacheWay | None) -> None:
        """Write an entry, in a thread."""
        outcome: Written | OSError = Written(stored=False)
        thread = threading.get_ident()
        self.at_work[thread] = None if way is None else way.origin
        try:
            if way is None:
                outcome = Written(stored=False, evicted=self.store.open())
            elif way.outputs is not None and way.name is not None:
                outcome = self.store.write(way.name, way.outputs)
        except OSError as error:
            outcome = error
        except BaseException as error:  # noqa: BLE001 -- of ours; the consumer must hear of it
            self.host.crashed(error)
        del self.at_work[thread]
        self.written.append((way, outcome))
        self.wake()

    def running(self) -> list[tuple[str, int, Item | None]]:
        return [(self.meters[0].name, at, item) for at, item in list(self.at_work.items())]

    def unreached_failures(self) -> None:
        self.held.clear()  # nobody wants what is in them any more; the run's statistics outlive it
        self.done.clear()
        self.fresh.clear()

    def wake(self) -> None:
        """Have the loop look at what was written; from any thread, coalesced."""
        if not self.woken:
            self.woken = True
            try:
                self.host.loop.call_soon_threadsafe(self.on_written)
            except RuntimeError:  # the loop is closed
                pass

    @guarded
    def on_written(self) -> None:
        """Account for what was written."""
        self.woken = False
        while self.written:
            way, outcome = self.written.popleft()
            self.pending -= 1
            if way is not None:
                way.outputs = None
                self.tally.wrote(outcome)
                super().finish(way)
            elif isinstance(outcome, Written):
                self.tally.counts["evicted"] += outcome.evicted
            else:
                self.tally.wrote(outcome)
        self.meters[0].queue = self.accepted
        self.room.set()
        if not self.pending:
            self.occupied = False
            if self.held_end:
                self.out.close(self.held_end.pop())
            self.host.became_quiet()
        self.advance_soon()

    def hold_end(self, failure: BaseException | None) -> bool:
        """Hold back the end of the data until all is written."""
        if self.pending and not self.cancelled:
            self.held_end = [failure]
            return True
        return False
