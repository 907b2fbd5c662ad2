"""Merging, routing, and what makes lists or takes them apart, for ``run_sync(inline=True)``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from spdl_async._plan.steps import MergePlan, RoutePlan
from spdl_async._runtime.batch_step import batch_of, not_a_list
from spdl_async._runtime.failures import Judge, caught
from spdl_async._runtime.merge_step import uneven
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.source_step import tell_unread
from spdl_async._runtime.ticket import Item, OpFailure
from spdl_async._runtime.turns import Turns
from spdl_async._runtime.way import in_places
from spdl_async.errors import RunStateError
from spdl_async.spec.markers import DROP

if TYPE_CHECKING:
    from spdl_async._runtime.inline import InlinePass, Items, Stage

# What a branch yields when it has made everything of what it was fed; steps hand it on as it is.
PAUSE: Final = Item(None, -1, None)


def merged(run: InlinePass, plan: MergePlan) -> Items:
    """Make the generators of merged chains; return the one in which they come together.

    Raises:
        RunStateError: a function of the user's mixes them, which needs a loop beside it.
    """
    if plan.how == "mix":
        raise RunStateError(
            f"run_sync(inline=True): {plan.op.name!r} mixes its branches by an async generator "
            f"function, which needs them to run beside it; leave inline out"
        )
    branches: dict[int, Items] = {}
    for at, branch in enumerate(plan.branches):
        if plan.reads(at):
            branches[at] = run.lay(branch)
        else:
            tell_unread(branch.source)
    _, meter, judge = run.stage(plan.op, plan.how if plan.how == "zip" else "merge")
    if plan.how == "zip":
        made = zipped(plan, list(branches.values()), meter, judge)
    else:
        made = in_turns(run, plan, branches, meter)
    run.fed_by[made] = tuple(branches.values())
    return made


def in_turns(run: InlinePass, plan: MergePlan, branches: dict[int, Items], meter: Meter) -> Items:
    """Merge branches in turns or by draws."""
    turns = Turns(plan, run.epoch)
    while not turns.over:
        branch = turns.next()
        item = next(branches[branch], None)
        if item is not None:
            turns.gave()
            meter.items_in += 1
            meter.items_out += 1
            yield item
        elif plan.stop == "first":
            return
        else:
            turns.ended(branch)


def zipped(plan: MergePlan, branches: list[Items], meter: Meter, judge: Judge) -> Items:
    """Join branches into tuples."""
    while True:
        items: list[Item] = []
        ended = longer = -1
        for at, branch in enumerate(branches):
            item = next(branch, None)
            if item is None and ended < 0:
                ended = at
                if not plan.strict:
                    return
            elif item is not None:
                items.append(item)
                longer = at
            if ended >= 0 and items:
                break
        if ended >= 0:
            if items:
                longer = 0 if ended else longer
                error = uneven(ended, meter.items_out, longer)
                judge.note(items[-1], caught(error))
                raise error
            return
        meter.items_in += len(items)
        meter.items_out += 1
        yield batch_of(items, tuple([item.value for item in items]))


class Feed:
    """What a branch reads from: items, then a pause as often as it asks for more."""

    def __init__(self) -> None:
        self.waiting: deque[Item] = deque()
        self.closed = False

    def items(self) -> Items:
        """Yield what is fed."""
        while True:
            if self.waiting:
                yield self.waiting.popleft()
            elif self.closed:
                return
            else:
                yield PAUSE


class InlineRoute:
    """One route: items in, through their branch, and out, one after the other."""

    def __init__(self, run: InlinePass, plan: RoutePlan, meter: Meter, judge: Judge) -> None:
        self.run = run
        self.plan = plan
        self.meter = meter
        self.judge = judge
        self.feeds = [Feed() for _ in plan.branches]
        self.branches = [
            run.lay_steps(branch, feed.items())
            for branch, feed in zip(plan.branches, self.feeds, strict=True)
        ]

    def items(self, above: Items) -> Items:
        """Yield what comes of the items."""
        for item in above:
            if item is PAUSE:
                yield item
                continue
            self.meter.items_in += 1
            routed = item.value
            if self.plan.batched:
                yield from self.elements(item, routed.value, routed.to)
                continue
            item.value = routed.value
            yield from self.counted(self.through(routed.to, item))
        for feed in self.feeds:
            feed.closed = True
        for branch in self.branches:
            yield from self.counted(branch)

    def counted(self, items: Iterator[Item]) -> Iterator[Item]:
        """Count what leaves."""
        for item in items:
            self.meter.items_out += 1
            yield item

    def through(self, branch: int, item: Item) -> Iterator[Item]:
        """Yield what a branch makes of an item."""
        self.feeds[branch].waiting.append(item)
        for made in self.branches[branch]:
            if made is PAUSE:
                return
            yield made

    def elements(self, item: Item, values: Any, numbers: list[int]) -> Iterator[Item]:
        """Send the elements of a list through their branches, and put them into their places."""
        places: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            places.setdefault(number, []).append(place)
        parts: dict[int, Any] = {}
        for number, found in places.items():
            part = item.child([values[k] for k in found], item.path)
            for made in self.through(number, part):
                parts[number] = made.value
        whole = in_places(places, parts, self.plan.labels)
        if isinstance(whole, ValueError):
            failure = OpFailure(whole, f"ValueError: {whole}\n")
            self.judge.count_calls(1)
            self.run.settle(self.judge, self.meter, item, failure)
        elif whole is None:
            self.meter.dropped += 1
        else:
            self.meter.items_out += 1
            item.value = whole
            yield item


def outputs_of(aggregator: Any, item: Item | None) -> list[Any]:
    """Call an aggregator with an item, or to flush it."""
    return list((aggregator.flush() if item is None else aggregator.accumulate(item.value)) or ())


def elements(
    run: InlinePass, stage: Stage, above: Items, opened: Callable[[Any], Any] | None
) -> Items:
    """Take lists and tuples apart."""
    _, meter, judge = stage
    for item in above:
        if item is PAUSE:
            yield item
            continue
        meter.items_in += 1
        judge.count_calls(1)
        value = item.value if opened is None else opened(item.value)
        if not isinstance(value, (list, tuple)):
            run.settle(judge, meter, item, OpFailure(*not_a_list(value)))
            continue
        for ordinal, element in enumerate(value):
            if element is DROP:
                run.dropped(meter)
                continue
            meter.items_out += 1
            if item.members is not None and len(item.members) == len(value):
                member = item.members[ordinal]
                child = member.child(element, member.path, member.members)
            else:
                child = item.child(element, (*item.path, ordinal), item.members)
            yield child
        run.check_budget(judge)
    run.finish(judge)
