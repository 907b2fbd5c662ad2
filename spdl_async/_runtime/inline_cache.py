"""The cache, for ``run_sync(inline=True)``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from spdl_async._cache.store import Written
from spdl_async._plan.caching import CachePlan, Encoded, Found, Missed, Numbered
from spdl_async._plan.steps import MapPlan
from spdl_async._runtime.cache_step import Tally
from spdl_async._runtime.inline_branches import PAUSE, Feed
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.ticket import Item

if TYPE_CHECKING:
    from spdl_async._cache.entry import Output
    from spdl_async._runtime.inline import InlinePass, Items


def numbered(above: Items) -> Items:
    """Give each source item its position."""
    for item in above:
        item.value = Numbered(item.value, item.index)
        yield item


class InlineCache:
    """Items in; what was kept of them, or what is made of them, out."""

    def __init__(self, run: InlinePass, plan: CachePlan, meter: Meter) -> None:
        self.run = run
        self.plan = plan
        self.meter = meter
        self.tally = Tally(plan.store, plan.name)
        meter.notes = self.tally.notes()
        self.feed = Feed()
        known = len(run.judges.made)
        self.branch = run.lay_steps(plan.branches[0], self.feed.items())
        self.judges = run.judges.made[known:]
        self.one_to_one = all(isinstance(step, MapPlan) for step in plan.branches[0])

    def items(self, above: Items) -> Items:
        """Yield what comes of the items."""
        try:
            self.tally.counts["evicted"] += self.plan.store.open()
        except OSError as error:
            self.tally.wrote(error)
        for item in above:
            self.meter.items_in += 1
            found, item.value = item.value, None
            made = self.kept(item, found) if type(found) is Found else self.made(item, found)
            for output in made:
                self.meter.items_out += 1
                self.meter.notes = self.tally.notes()
                yield output
            self.meter.notes = self.tally.notes()
        self.feed.closed = True
        for output in self.branch:  # its stages end, and may have something to say about all items
            raise AssertionError(f"{output!r} was made of no item")

    def kept(self, item: Item, found: Found) -> Iterator[Item]:
        """Yield an entry's outputs."""
        self.tally.counts["hits"] += 1
        for judge in self.judges:  # as in ``CacheStep.send``
            judge.count_calls(1)
        if not found.to:
            self.run.facts.saw_drop()
        for value, path in zip(found.value, found.to, strict=True):
            yield item.child(value, item.path + path, item.members)

    def made(self, item: Item, missed: Missed) -> Iterator[Item]:
        """Yield what the stages above make of an item, and keep that."""
        self.tally.missed(missed.damaged)
        outputs: list[Output] = []
        failures, spoilt = self.run.log.total, False
        item.value = missed.value
        origin = item.path
        self.feed.waiting.append(item)
        for made in self.branch:
            # Only what fails above: the stages below work while this generator waits.
            spoilt = spoilt or self.run.log.total != failures
            if made is PAUSE:
                break
            value = made.value
            assert type(value) is Encoded
            made.value = value.value
            outputs.append((made.path[len(origin) :], value.to))
            if self.one_to_one:  # nothing more will come, and perhaps nobody will ask
                self.write(missed.to, outputs)
            yield made
            failures = self.run.log.total
        if spoilt:
            self.tally.counts["not complete"] += 1
        elif not (self.one_to_one and outputs):
            self.write(missed.to, outputs)

    def write(self, name: str, outputs: Sequence[Output]) -> None:
        """Store an entry."""
        try:
            outcome: Written | OSError = self.plan.store.write(name, outputs)
        except OSError as error:
            outcome = error
        self.tally.wrote(outcome)
