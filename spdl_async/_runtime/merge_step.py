"""Merging: the items of several chains come together, in turns, as tuples, or as the user mixes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from spdl_async._plan.steps import MergePlan
from spdl_async._runtime.batch_step import batch_of
from spdl_async._runtime.channel import Channel, Outlet, Signal
from spdl_async._runtime.failures import Judge, caught
from spdl_async._runtime.meter import Meter, clock
from spdl_async._runtime.pace import SLICE_SECONDS, Pace
from spdl_async._runtime.step import Host, Step
from spdl_async._runtime.telling import speaker
from spdl_async._runtime.ticket import Item
from spdl_async._runtime.turns import Turns
from spdl_async.spec.markers import DROP

if TYPE_CHECKING:
    from spdl_async._runtime.engine import Engine


class MergeStep(Step):
    """What the kinds of merging share: taking from the branches, and handing on.

    Attributes:
        taken: for each branch, what was taken from it and not used yet.
        ready: what is to be handed on before anything is waited for.
    """

    keeps_values = True
    items_each = 1  # items of the branches that one of ``ready`` is made of

    def __init__(
        self,
        host: Host,
        inputs: list[Channel],
        out: Outlet,
        *,
        pace: Pace,
        judge: Judge,
        meter: Meter,
    ) -> None:
        super().__init__(host, None, out)
        self.inputs = inputs
        self.pace = pace
        self.judge = judge
        self.meters = [meter]
        self.room = Signal(host.loop)
        self.taken_from: list[deque[Item]] = [deque() for _ in inputs]
        self.ready: list[Item] = []
        self.failure: BaseException | None = None
        self.resumed = clock()

    def let_go(self) -> None:
        super().let_go()
        for items in self.taken_from:
            items.clear()

    @property
    def reads_from(self) -> Sequence[Channel]:
        return self.inputs

    def start(self) -> None:
        self.launch(self.work(), "merge")

    def after_taken(self, count: int) -> None:  # noqa: ARG002 -- any number is room
        self.room.set()

    async def work(self) -> None:
        """Merge to the end; then stop what is left of the branches."""
        await self.merge()
        await self.flush()
        self.host.cancel_above(self)
        for items in self.taken_from:
            self.meters[0].dropped += len(items)
            for item in items:
                self.host.ledger.release(item)
            items.clear()
        self.meters[0].queue = 0
        self.out.close(self.failure)

    async def merge(self) -> None:
        """Make ``ready`` items until the end, or set ``failure``."""
        raise NotImplementedError

    async def take(self, branch: int) -> Item | None:
        """Return the next item of a branch; ``None`` at its end, which may be a failure."""
        items = self.taken_from[branch]
        if not items:
            channel = self.inputs[branch]
            if not len(channel):
                await self.flush()  # before waiting
            meter = self.meters[0]
            began = clock()
            most = max(1, self.pace.window // (2 * len(self.inputs)))  # the other half is ready
            items.extend(await channel.get_many(most))
            meter.waiting_input += clock() - began
            if not items:
                self.failure = self.failure or channel.failure
                return None
            meter.items_in += len(items)
            meter.queue = sum(map(len, self.taken_from))
            meter.peak = max(meter.peak, meter.queue)
        return items.popleft()

    async def put(self, item: Item) -> None:
        """Hand an item on, together with others where there are many."""
        self.ready.append(item)
        if len(self.ready) >= max(1, self.pace.window // (2 * self.items_each)):
            await self.flush()

    async def flush(self) -> None:
        """Hand on what is ready, and wait until there is room again."""
        if self.ready:
            ready, self.ready = self.ready, []
            self.emit(ready)
            self.pace.look(self.meters[0].items_out, True)
        while self.untaken:
            await self.room.wait()
        if clock() - self.resumed > SLICE_SECONDS:
            await asyncio.sleep(0)
            self.resumed = clock()


class TurnStep(MergeStep):
    """One item of each branch in turns, or as drawn by weight."""

    def __init__(self, *arguments: Any, turns: Turns, to_first_end: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.turns = turns
        self.to_first_end = to_first_end

    async def merge(self) -> None:
        turns = self.turns
        while not turns.over:
            branch = self.take_turns(max(1, self.pace.window // 2))
            if branch is None:
                await self.flush()
                continue
            item = await self.take(branch)
            if item is not None:
                turns.gave()
                self.ready.append(item)
            elif self.failure is not None or self.to_first_end:
                return
            else:
                turns.ended(branch)

    def take_turns(self, most: int) -> int | None:
        """Take from what the branches have given; return the first that is to be asked for more."""
        turns, ready, taken = self.turns, self.ready, self.taken_from
        while len(ready) < most:
            branch = turns.next()
            items = taken[branch]
            if not items:
                return branch
            ready.append(items.popleft())
            turns.gave()
        return None


class ZipStep(MergeStep):
    """Tuples of one item of each branch, as long as each has one."""

    keeps_values = False
    puts_together = True

    def __init__(self, *arguments: Any, strict: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.strict = strict
        self.items_each = len(self.inputs)

    async def merge(self) -> None:
        number = 0
        while True:
            members: list[Item] = []
            for branch in range(len(self.inputs)):
                item = await self.take(branch)
                if item is None:
                    break
                members.append(item)
            if len(members) < len(self.inputs):
                if self.failure is None and self.strict:
                    await self.check_all_ended(number, len(members), members)
                for member in members:
                    self.host.ledger.release(member)
                return
            values = tuple([member.value for member in members])
            for member in members:
                member.value = None
            await self.put(batch_of(members, values))
            number += 1

    async def check_all_ended(self, number: int, ended: int, members: list[Item]) -> None:
        """Fail where one branch has ended and another one has not."""
        longer = 0 if members else None
        for branch in range(ended + 1, len(self.inputs)):
            if longer is None and await self.take_spare(branch, members):
                longer = branch
        if longer is not None and self.failure is None:
            self.failure = uneven(ended, number, longer)
            at = members[-1] if members else Item(None, number, None)
            self.judge.note(at, caught(self.failure))

    async def take_spare(self, branch: int, members: list[Item]) -> bool:
        """Tell whether a branch has an item more."""
        item = await self.take(branch)
        if item is not None:
            members.append(item)
        return item is not None


class Branch:
    """A branch as the async iterator that a user's function takes items from."""

    def __init__(self, step: MixStep, number: int) -> None:
        self.step = step
        self.number = number

    def __aiter__(self) -> Branch:
        return self

    async def __anext__(self) -> Any:
        return await self.step.next_of(self.number)


class MixStep(MergeStep):
    """What an async generator function of the user's yields from its branches' iterators.

    A value belongs to every item taken since the last one.
    """

    keeps_values = False

    def __init__(
        self, *arguments: Any, mix: Callable[[list[Any]], AsyncIterator[Any]], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.mix = mix
        self.members: list[Item] = []

    async def merge(self) -> None:
        branches = [Branch(self, at) for at in range(len(self.inputs))]
        self.occupied = True
        speaker.set(self.meters[0])
        try:
            values = self.mix(branches)
            try:
                async for value in values:
                    await self.pass_on(value)
            finally:
                closing: Callable[[], Awaitable[Any]] | None = getattr(values, "aclose", None)
                if closing is not None:
                    await closing()
        except BaseException as error:
            if self.asked_to_stop(error):
                raise
            self.fail(error)
        self.occupied = False
        self.meters[0].dropped += len(self.members)  # taken, but nothing was made of them
        for member in self.members:
            self.host.ledger.release(member)

    def fail(self, error: BaseException) -> None:
        """End with what the function let out: its own failure, or that of a branch."""
        if any(error is channel.failure for channel in self.inputs):
            self.failure = error
            return
        failure = caught(error)
        at = self.members[-1] if self.members else batch_of((), None)
        self.judge.note(at, failure)
        self.meters[0].failed += 1
        self.failure = failure.exception

    async def next_of(self, branch: int) -> Any:
        """Return the next value of a branch; called by the user's function."""
        self.occupied = False
        await self.flush()
        failure, self.failure = self.failure, None
        item = await self.take(branch)
        self.occupied = True
        error, self.failure = self.failure, failure
        if item is None:
            raise StopAsyncIteration if error is None else error
        self.members.append(item)
        value, item.value = item.value, None
        return value

    async def pass_on(self, value: Any) -> None:
        """Hand on what the function has yielded."""
        if value is DROP:
            self.meters[0].dropped += 1
            self.host.saw_drop()
            return
        members, self.members = self.members, []
        if len(members) == 1:
            item = members[0]
            item.value = value
        else:
            item = batch_of(members, value)
        self.occupied = False
        await self.put(item)
        self.occupied = True


def uneven(ended: int, number: int, longer: int) -> ValueError:
    """Return the error for branches of different length."""
    return ValueError(
        f"Zip(strict=True): branch {ended} ended after {number} items, branch {longer} has more"
    )


def make_merge(engine: Engine, plan: MergePlan, inputs: list[Channel], out: Outlet) -> MergeStep:
    """Make the running form of a merge."""
    count = len(inputs)
    judge, name = engine.judges.of(plan.op), plan.op.name
    if plan.how == "mix":
        # One item is taken when it is asked for, so nothing lies here that the function has not seen.
        pace, meter = Pace(1, 1), Meter(name, "merge", 1)
        return MixStep(engine, inputs, out, pace=pace, judge=judge, meter=meter, mix=plan.op.call)
    pace = Pace(2 * count, plan.bound)
    if plan.how == "zip":
        meter = Meter(name, "zip", 1)
        return ZipStep(engine, inputs, out, pace=pace, judge=judge, meter=meter, strict=plan.strict)
    return TurnStep(
        engine,
        inputs,
        out,
        pace=pace,
        judge=judge,
        meter=Meter(name, "merge", 1),
        turns=Turns(plan, engine.epoch),
        to_first_end=plan.stop == "first",
    )
