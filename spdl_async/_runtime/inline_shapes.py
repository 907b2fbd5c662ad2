"""Choosing, numbering, reordering and timed gathering for ``run_sync(inline=True)``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from spdl_async._plan.shapes import EnumeratePlan, ShapePlan, ShufflePlan, SkipPlan, TakePlan
from spdl_async._plan.steps import BatchPlan
from spdl_async._runtime.aggregate_step import members_of
from spdl_async._runtime.batch_step import batch_of
from spdl_async._runtime.inline_branches import PAUSE
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.shape_step import draw_one, exchange, generator
from spdl_async._runtime.ticket import Item

if TYPE_CHECKING:
    from spdl_async._runtime.inline import InlinePass, Items


def shape(run: InlinePass, plan: ShapePlan, above: Items) -> Items:
    """Return the generator of one of these steps."""
    meter = Meter(plan.name, type(plan).__name__.removesuffix("Plan").lower(), 1)
    run.meters.append(meter)
    if isinstance(plan, ShufflePlan):
        return shuffled(plan, run.epoch, meter, above)
    if isinstance(plan, TakePlan):
        return taken(run, plan, meter, above)
    if isinstance(plan, SkipPlan):
        return skipped(plan, meter, above)
    return numbered(plan, meter, above)


def shuffled(plan: ShufflePlan, epoch: int, meter: Meter, above: Items) -> Items:
    """Shuffle within a buffer; what it holds at a failure above comes before the failure."""
    draw = generator(plan.key, epoch).random
    buffer: list[Item] = []
    failure = None
    try:
        for item in above:
            if item is PAUSE:
                yield item
                continue
            meter.items_in += 1
            if len(buffer) < plan.size:
                buffer.append(item)
                meter.queue = meter.peak = len(buffer)
                continue
            items = [item]
            exchange(buffer, items, draw)
            meter.items_out += 1
            yield items[0]
    except (GeneratorExit, KeyboardInterrupt):  # who debugs wants the latter at once
        raise
    except BaseException as error:  # noqa: BLE001 -- raised again below
        failure = error
    while buffer:
        meter.items_out += 1
        item = draw_one(buffer, draw)
        meter.queue = len(buffer)
        yield item
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # else the exception and this frame would keep each other


def taken(run: InlinePass, plan: TakePlan, meter: Meter, above: Items) -> Items:
    """Hand on the first items; with the last of them close everything above."""
    left = plan.count
    while left:
        item = next(above, None)
        if item is None:
            return
        left -= 1
        meter.items_in += 1
        meter.items_out += 1
        if not left:
            run.close_from(above)
        yield item
        del item


def skipped(plan: SkipPlan, meter: Meter, above: Items) -> Items:
    """Drop the first items."""
    for item in above:
        if item is PAUSE:
            yield item
            continue
        meter.items_in += 1
        if meter.dropped < plan.count:
            meter.dropped += 1
            continue
        meter.items_out += 1
        yield item


def numbered(plan: EnumeratePlan, meter: Meter, above: Items) -> Items:
    """Make (number, item) of each item."""
    number = plan.start
    for item in above:
        if item is PAUSE:
            yield item
            continue
        meter.items_in += 1
        meter.items_out += 1
        item.value = (number, item.value)
        number += 1
        yield item


# Gathering with a limit on the time. One thing happens at a time here, so a batch that is due leaves
# when the next item comes, without it, or at the end.


class HeldItems:
    """The items that an aggregator has taken in and not yet put out."""

    def __init__(self) -> None:
        self.number = 0
        self.items: dict[int, Item] = {}
        self.arrived: dict[int, float] = {}
        self.last: list[Item] = []
        self.told = False

    def add(self, item: Item) -> None:
        """Hear of an item."""
        self.items[self.number] = item
        self.arrived[self.number] = monotonic()
        self.number += 1

    def all(self) -> list[Item]:
        """Return the items that are held."""
        return list(self.items.values())

    def take(self, value: Any) -> tuple[list[Item], Any]:
        """Return the items that an output belongs to, and the output as the consumer gets it."""
        members, value = members_of(value, self.items)
        self.arrived = {n: self.arrived[n] for n in self.items}
        self.last = members or self.last  # further outputs of one call share the items of the first
        return self.last, value

    def count_if_told(self) -> int:
        """Return how many items are held, where the aggregator tells."""
        return len(self.items) if self.told else 0

    @property
    def since(self) -> float | None:
        """When the item that is held longest came, where the aggregator tells."""
        return next(iter(self.arrived.values()), None) if self.told else None


class Waiting:
    """Tells whether the first item of the open batch has waited long enough."""

    def __init__(self, within: float | None) -> None:
        self.within = within
        self.since: float | None = None

    @property
    def over(self) -> bool:
        """Whether the open batch is due."""
        if self.within is None or self.since is None:
            return False
        return monotonic() - self.since >= self.within

    def note(self, item: Item | None, outputs: Sequence[Any], oldest: float | None) -> None:
        """Take note of a call, and of the arrival of the item that is held longest where it is known.

        What a user's aggregator holds after an output only it knows.
        """
        if oldest is not None or item is None:
            self.since = oldest
        elif outputs or self.since is None:
            self.since = monotonic()

    def with_flushes(self, items: Iterator[Item | None]) -> Iterator[Item | None]:
        """Yield the items, and ``None`` where the aggregator is to be flushed before one."""
        for item in items:
            if self.over and item is not None and item is not PAUSE:
                yield None
            yield item


def batches(plan: BatchPlan, meter: Meter, above: Items) -> Items:
    """Make lists; short ones where there is a limit and the first item has waited so long."""
    waiting = Waiting(plan.within)
    held: list[Item] = []
    for item in above:
        if item is PAUSE:
            yield item
            continue
        if held and waiting.over:
            meter.items_out += 1
            yield batch_of(held, [member.value for member in held])
            held = []
        meter.items_in += 1
        if not held:
            waiting.since = monotonic()
        held.append(item)
        if len(held) == plan.size:
            meter.items_out += 1
            yield batch_of(held, [member.value for member in held])
            held = []
    if held and plan.drop_last:
        meter.dropped += len(held)
    elif held:
        meter.items_out += 1
        yield batch_of(held, [member.value for member in held])
