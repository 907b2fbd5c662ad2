"""Routing: items go into branches, and what comes of them comes together again.

Each routed item gets a ticket of its own for its way through a branch (:class:`Way`). The ticket is
done when nothing of the item is left in the branch: everything was handed on to here, dropped or
skipped. With input order the results of the first way that is not done leave, and no others.
With completion order results leave as they come, and no ticket is needed but for the elements of
lists (``batched``), which come together again.

A failure in a branch stops the steps above it, and the feeding of the other branches. These finish
what they have been given, so what precedes the failed item is complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from spdl_async._runtime.asking import consult
from spdl_async._runtime.branch_end import End
from spdl_async._runtime.channel import Channel, Outlet, Signal, nobody
from spdl_async._runtime.failures import Judge
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.pace import Pace
from spdl_async._runtime.step import Host, Step, guarded
from spdl_async._runtime.ticket import Item, OpFailure
from spdl_async._runtime.way import Member, Part, Way, in_places, inside, way_of


class Halted(Exception):  # noqa: N818 -- a mark, never raised
    """Closes the branches that had no failure themselves: nothing is to be made up from open batches."""


class RouteStep(Step):
    """Feeds the branches, and gathers what comes back."""

    def __init__(
        self,
        host: Host,
        source: Channel,
        out: Outlet,
        *,
        branches: int,
        ordered: bool,
        batched: bool,
        streams: tuple[bool, ...],
        gathers: tuple[bool, ...],
        labels: tuple[str, ...],
        floor: int,
        ceiling: int,
        judge: Judge,
        meter: Meter,
    ) -> None:
        super().__init__(host, source, out)
        self.ordered = ordered
        self.batched = batched
        self.keeps_values = not batched
        self.streams = streams
        self.gathers = gathers
        self.labels = labels
        self.judge = judge
        self.meters = [meter]
        self.pace = Pace(floor, ceiling)
        self.ends = [End(self, at) for at in range(branches)]
        self.inlets: list[Outlet] = []
        self.inner: list[Step] = []
        self.accepted = 0
        self.held: deque[Way] = deque()
        self.done: deque[Way] = deque()
        self.ready: list[Item] = []
        self.owed: deque[tuple[End, int]] = deque()
        self.verdicts: dict[int, BaseException | None] = {}
        self.input_ended = self.closed = False
        self.opened: Any = None  # takes a list apart that is on a device
        self.fatal: BaseException | None = None
        self.asking = False  # a user's function about a failure
        self.room = Signal(host.loop)
        out.on_demand = self.pass_demand_on

    def pass_demand_on(self) -> None:
        """Tell the branches' last steps that the next step waits."""
        for end in self.ends:
            if end.on_demand is not None:
                end.on_demand()

    def attach(self, inlets: list[Outlet]) -> None:
        """Take the outlets into the branches, whose room is not asked for: the window bounds all."""
        self.inlets = inlets
        for inlet in inlets:
            if not isinstance(inlet, End):
                inlet.on_taken = nobody if self.by_ways else self.entered

    @property
    def by_ways(self) -> bool:
        """Whether items get a ticket for their way."""
        return self.ordered or self.batched

    def start(self) -> None:
        self.launch(self.feed(), "input")

    def stop(self) -> None:
        super().stop()
        for inlet in self.inlets:
            inlet.close(Halted())

    def let_go(self) -> None:
        super().let_go()
        self.held, self.done, self.ready = deque(), deque(), []

    def stop_for(self, asker: Step) -> None:
        """Stop feeding; the branches too, unless it is one of them that has failed."""
        super().stop_for(asker)
        if asker not in self.inner:
            for step in self.inner:
                step.stop_for(self)

    # Into the branches

    async def feed(self) -> None:
        """Send items into the branches as far as the window has room."""
        inp, meter = self.inp, self.meters[0]
        while True:
            free = self.pace.window - self.accepted - (self.untaken if self.by_ways else 0)
            if free < 1:
                await self.room.wait()
                continue
            items = await inp.get_many(free)
            if not items:
                break
            meter.items_in += len(items)
            self.accepted += len(items)
            meter.queue = self.accepted
            meter.peak = max(meter.peak, self.accepted)
            self.send(items)
        self.input_ended = True
        for inlet, gathers in zip(self.inlets, self.gathers, strict=True):
            if inp.failure is not None or not gathers:
                inlet.close(self.mark())
        self.end_gathering()
        self.advance_soon()

    def end_gathering(self) -> None:
        """Let the branches that gather emit their last batches, once no other one can fail any more."""
        failed = any(verdict is not None for verdict in self.verdicts.values())
        if not failed and all(
            gathers or branch in self.verdicts for branch, gathers in enumerate(self.gathers)
        ):
            for inlet in self.inlets:
                inlet.close(self.mark())

    def mark(self) -> Halted | None:
        """Return what the branches are closed with: of a failure above they need not know which.

        Had they that object, an op of theirs that raises the same one could not be told from it.
        """
        return None if self.inp.failure is None else Halted()

    def send(self, items: list[Item]) -> None:
        """Hand items to their branches."""
        bundles: list[list[Item]] = [[] for _ in self.inlets]
        for item in items:
            routed, item.value = item.value, None
            to = routed.to
            if self.batched:
                self.send_elements(item, routed.value, to, bundles)
            elif self.ordered:
                way = Way(self, item, to)
                self.held.append(way)
                own = inside(item, way, routed.value)
                self.host.ledger.pass_load(item, own)
                bundles[to].append(own)
            else:
                item.value = routed.value
                bundles[to].append(item)
        for inlet, bundle in zip(self.inlets, bundles, strict=True):
            if bundle:
                inlet.push(bundle)

    def send_elements(
        self, item: Item, values: Any, numbers: list[int], bundles: list[list[Item]]
    ) -> None:
        """Send the elements of a list into their branches, as one list for each."""
        way = Way(self, item, -1)
        way.parts = {}
        places: dict[int, list[int]] = {}
        way.places = places
        self.held.append(way)
        for place, number in enumerate(numbers):
            places.setdefault(number, []).append(place)
        way.open = len(places)
        way.waiting = set(places)
        for number, own in places.items():
            part = [values[k] for k in own]
            on_way = Part(way, number)
            bundles[number].append(Item(part, item.index, item.source, on_way, item.path))
        if not places:
            way.left()

    def entered(self, count: int) -> None:
        """Hear that a branch has taken items, whose ways are not followed."""
        self.accepted -= count
        self.meters[0].queue = self.accepted
        self.room.set()

    # Out of the branches

    def arrived(self, end: End, items: list[Item]) -> None:
        """Take what a branch has made."""
        if not self.by_ways:
            # Whoever made them counts them until they are taken.
            self.owed.append((end, len(items)))
            self.ready += items
            self.advance_soon()
            return
        for item in items:
            way = way_of(item)
            if isinstance(way, Part):
                way.whole.parts[end.branch] = item.value
                item.value = None
                self.host.ledger.pass_load(item, way.origin)
                self.host.ledger.release(item)
            else:
                self.come_back(item, way)
        if self.streams[end.branch]:
            end.held += len(items)  # it goes on counting them until they leave
        else:
            end.on_taken(len(items))
        self.advance_soon()

    def come_back(self, item: Item, way: Way) -> None:
        """Give a result the identity that it had before the branch."""
        if isinstance(way, Member):
            self.come_back_of_batch(item, way)
            return
        way.root.open += 1  # the origin's own count is released when the way is done
        item.root = way.root
        way.results.append(item)
        way.open -= 1
        if not way.open:
            way.left()

    def come_back_of_batch(self, item: Item, way: Member) -> None:
        """Give a batch its members again, or an element that was taken out of one its identity."""
        origin = way.whole.origin
        back = item.child(item.value, item.path)
        self.host.ledger.pass_load(item, back)
        item.value = None
        if item.members is not None:
            back.members, back.root = origin.members, origin.ticket
            self.host.ledger.adopt(origin, 1)
        else:
            back.root = way.origin.ticket
            self.host.ledger.adopt(way.origin, 1)
        way.whole.results.append(back)
        self.host.ledger.release(item)

    def way_done(self, way: Way) -> None:
        """Hear that nothing of a routed item is left in the branches."""
        if not self.ordered:
            self.done.append(way)
        self.advance_soon()

    def branch_ended(self, branch: int, failure: BaseException | None) -> None:
        """Hear that a branch makes no more."""
        if branch not in self.verdicts:
            self.verdicts[branch] = None if isinstance(failure, Halted) else failure
            if failure is None and self.input_ended:
                self.end_gathering()
            self.advance_soon()

    # To the next step

    @guarded
    def advance(self) -> None:
        """Hand on what may leave; close at the end or after a failure."""
        self.advancing = False
        if self.closed:
            return
        while not self.untaken and self.fatal is None:
            self.gather()
            if not self.ready:
                break
            ready, self.ready = self.ready, []
            self.emit(ready)
            self.pace.look(self.meters[0].items_out, True)
        if self.fatal is not None:
            if not self.ready:
                self.end_with(self.fatal)
        elif self.asking:
            return
        elif not self.ready and not self.holds_any() and len(self.verdicts) == len(self.ends):
            self.closed = True
            own = (v for v in self.verdicts.values() if v is not None)
            self.out.close(self.inp.failure or next(own, None))

    def holds_any(self) -> bool:
        """Tell whether routed items have not left yet."""
        return bool(self.held)

    def gather(self) -> None:
        """Move to ``ready`` what may leave now."""
        before = self.accepted
        if not self.by_ways:
            self.look_for_failure(list(self.verdicts))
        elif self.ordered:
            while self.held and self.fatal is None and not self.asking:
                way = self.held[0]
                if way.results:
                    self.leave(way)
                if way.open:
                    self.look_for_failure(way.waiting if self.batched else (way.branch,))
                    break
                self.held.popleft()
                self.finish(way)
        else:
            while self.done and self.fatal is None and not self.asking:
                way = self.done.popleft()
                self.held.remove(way)
                self.finish(way)
            self.look_for_failure(list(self.verdicts))
        if self.accepted < before:
            self.meters[0].queue = self.accepted
            self.room.set()

    def leave(self, way: Way) -> None:
        """Let the results of a way go."""
        results, way.results = way.results, []
        self.ready += results
        end = self.ends[way.branch]
        if end.held:
            end.held -= len(results)
            end.on_taken(len(results))

    def finish(self, way: Way) -> None:
        """Account for a way that is done."""
        self.accepted -= 1
        if self.batched:
            self.assemble(way)
        else:
            self.host.ledger.release(way.origin)

    def assemble(self, way: Way) -> None:
        """Put the elements of a list into their places again."""
        item = way.origin
        whole = in_places(way.places, way.parts, self.labels, self.opened)
        if isinstance(whole, ValueError):
            self.settle(item, whole)
        elif whole is None:
            self.meters[0].dropped += 1
            self.host.ledger.release(item)
        else:
            item.value = whole
            self.ready.append(item)

    def settle(self, item: Item, error: BaseException) -> None:
        """Apply the router's policy to what a branch has returned."""
        failure = OpFailure(error, f"{type(error).__name__}: {error}\n")

        def decide() -> None:
            self.asking = False
            self.meters[0].failed += 1
            self.judge.count_calls(1)
            self.fatal = self.judge.verdict(item, failure)
            self.host.ledger.release(item)
            self.advance_soon()

        self.asking = consult(self, self.judge, item, failure, decide)
        if not self.asking:
            decide()

    def look_for_failure(self, among: Iterable[int]) -> None:
        """Find the failure that ends the data: with input order, that of the first unfinished item."""
        for branch in among:
            failure = self.verdicts.get(branch)
            if failure is not None:
                self.fatal = failure
                return

    def end_with(self, error: BaseException) -> None:
        """End the run's data with a failure."""
        self.closed = True
        for step in self.inner:
            step.stop()
        self.host.cancel_above(self)
        self.stop()
        self.out.close(error)

    def after_taken(self, count: int) -> None:
        while count and self.owed:
            end, number = self.owed.popleft()
            taken = min(count, number)
            if taken < number:
                self.owed.appendleft((end, number - taken))
            count -= taken
            if isinstance(self.inlets[end.branch], End):  # a branch without steps: they were ours
                self.entered(taken)
            else:
                end.on_taken(taken)
        self.room.set()
        self.advance_soon()
