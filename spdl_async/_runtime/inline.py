"""``run_sync(inline=True)``: the whole pass in the calling thread, one item at a time.

A chain of generators, one for each step, pulled by the consumer. Nothing runs ahead, so a
breakpoint or a traceback shows the op with the consumer right above it. Policies, counts and
results are those of the engine; concurrency, executors and completion order have no meaning here.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from time import perf_counter as clock
from types import MappingProxyType
from typing import Any, Protocol

from spdl_async._plan.caching import CachePlan, LookupPlan
from spdl_async._plan.copying import CopyPlan
from spdl_async._plan.shapes import SHAPE_PLANS
from spdl_async._plan.steps import (
    AggregatePlan,
    BatchPlan,
    ChainPlan,
    FlowPlan,
    MapPlan,
    MergePlan,
    OpPlan,
    Plan,
    RoutePlan,
    StepPlan,
)
from spdl_async._runtime.batch_step import batch_of
from spdl_async._runtime.failures import FailureLog, Judge, Judges, caught, warn_of_nothing
from spdl_async._runtime.inline_branches import (
    PAUSE,
    InlineRoute,
    elements,
    merged,
    outputs_of,
)
from spdl_async._runtime.inline_cache import InlineCache, numbered
from spdl_async._runtime.inline_calls import attempt, flow, wait_for_retry
from spdl_async._runtime.inline_lifespan import in_lifespan
from spdl_async._runtime.inline_loop import InlineLoop, close
from spdl_async._runtime.inline_shapes import HeldItems, Waiting, batches, shape
from spdl_async._runtime.inline_source import read
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.notes import has_notes, notes_of
from spdl_async._runtime.source_step import tell_unread
from spdl_async._runtime.telling import new_context, speaker
from spdl_async._runtime.ticket import Item, OpFailure
from spdl_async.spec.markers import DROP
from spdl_async.statistics import Failures, RunStatistics

Items = Generator[Item, None, None]
Stage = tuple[OpPlan, Meter, Judge]


class Facts(Protocol):
    """What a pass tells its pipeline."""

    def saw_drop(self) -> None:
        """Note that an op has returned DROP."""


class InlinePass:
    """One pass, run by whoever asks for its results."""

    def __init__(
        self, plan: Plan, facts: Facts, epoch: int, devices: Mapping[str, Any] | None = None
    ) -> None:
        self.plan = plan
        self.devices = devices or {}
        self.facts = facts
        self.epoch = epoch
        self.log = FailureLog()
        self.meters: list[Meter] = []
        # Each call runs in a copy of the context of the run's start, as everywhere.
        self.context = new_context()
        self.contexts: dict[Meter, Context] = {}
        self.judges = Judges(self.log, self.context, seed=plan.seed, epoch=epoch)
        self.loop = InlineLoop(self.context)
        self.started = clock()
        self.finished: float | None = None
        self.delivered = 0
        self.working = 0.0
        self.over = False
        self.error: BaseException | None = None
        self.failed = False
        self.parts: list[Items] = []
        self.fed_by: dict[Items, tuple[Items, ...]] = {}
        self.last = self.lay(plan)

    # The chain

    def lay(self, chain: Plan | ChainPlan) -> Items:
        """Make the generators of a chain; return the last."""
        source = chain.source
        if isinstance(source, MergePlan):
            made = merged(self, source)
        else:
            made = in_lifespan(self, source, lambda p: read(self, p, self.stage(p.op, "source")))
        self.parts.append(made)
        return self.lay_steps(chain.steps, made)

    def lay_steps(self, plans: Sequence[StepPlan], above: Items) -> Items:
        """Make the generators of steps; return the last."""
        for plan in plans:
            made = in_lifespan(self, plan, functools.partial(self.step, above=above))
            self.fed_by[made] = (above,)
            self.parts.append(made)
            above = made
        return above

    def close_from(self, part: Items) -> None:
        """Close a generator and all that feed it."""
        part.close()
        for above in self.fed_by.get(part, ()):
            self.close_from(above)

    # The face

    def next(self) -> object:
        """Return the next result; ``StopIteration`` after the last."""
        if self.error is not None:
            raise self.error
        began = clock()
        try:
            item = next(self.last)
        except StopIteration:
            if not self.over:
                self.over = True
                self.error = self.judges.at_end()
                if self.error is not None:
                    self.failed = True
                    raise self.error from None
                if not self.delivered:
                    warn_of_nothing(self.plan.name, self.epoch, self.statistics().stages)
            raise
        except BaseException as error:
            self.over = self.failed = True
            self.error = error
            raise
        finally:
            self.working += clock() - began
        self.delivered += 1
        return item.value if self.plan.claim is None else self.plan.claim(item.value)

    def close(self) -> None:
        """Close the generators of the chain, those of user code included, and the loop.

        A failure is let go of, as nobody can be told any more and its frames hold items.
        """
        self.error = None
        for part in reversed(self.parts):
            part.close()
        self.loop.close()
        self.judges.forget()
        tell_unread(self.plan.source)
        if self.finished is None:
            self.finished = clock()

    def stop(self) -> None:
        """Do nothing: a pass that nobody asks for results does not run."""

    def wait_ended_sync(self, timeout: float) -> None:
        """Return at once: nothing runs beside the caller."""

    @property
    def failures(self) -> Failures:
        """The failures so far."""
        return Failures(self.log.records, self.log.total)

    def statistics(self) -> RunStatistics:
        """Return a snapshot."""
        return RunStatistics(
            name=self.plan.name,
            epoch=self.epoch,
            elapsed=(self.finished or clock()) - self.started,
            stages=tuple(meter.snapshot() for meter in self.meters),
            delivered=self.delivered,
            consumer_waiting=self.working,
            in_flight=0,
            peak_in_flight=1,
            failures=self.log.total,
            threads=0,
            ended=self.over and not self.failed,
        )

    # Calls

    def stage(self, op: OpPlan, kind: str) -> Stage:
        """Make a stage's meter and judge."""
        meter = Meter(op.name, kind, 1)
        self.meters.append(meter)
        return op, meter, self.judges.of(op)

    def context_of(self, meter: Meter) -> Context:
        """Return a fresh context for a call of a stage's op."""
        context = self.contexts.get(meter)
        if context is None:
            context = self.contexts[meter] = self.context.copy()
            context.run(speaker.set, meter)
        return context.copy()

    def settle(self, judge: Judge, meter: Meter, item: Item, failure: OpFailure) -> None:
        """Apply a policy to a failure; raise what ends the run."""
        answer = judge.ask(item, failure)
        if answer is not None:
            try:
                self.loop.wait_for(answer)
            except BaseException as raised:  # noqa: BLE001 -- it ends the run
                judge.answered(item, failure, raised)
        meter.failed += 1
        error = judge.verdict(item, failure)
        if error is not None:
            raise error

    def dropped(self, meter: Meter) -> None:
        """Count a dropped item."""
        meter.dropped += 1
        self.facts.saw_drop()

    def close_user(self, judge: Judge, item: Item, context: Context, values: Any) -> None:
        """Close what user code iterates; a failure in that is written down."""
        try:
            context.run(close, values)
        except BaseException as error:  # noqa: BLE001 -- recorded, as on the other faces
            judge.note(item, caught(error))

    def check_budget(self, judge: Judge) -> None:
        """Raise where more has failed than is allowed."""
        error = judge.over_budget()
        if error is not None:
            raise error

    def finish(self, judge: Judge) -> None:
        """Raise what is wrong with a stage as a whole."""
        error = judge.at_end()
        if error is not None:
            raise error

    # Steps

    def step(self, plan: StepPlan, above: Items) -> Items:
        """Return the generator of a step."""
        if isinstance(plan, CopyPlan):
            return self.copies(plan, above)
        if isinstance(plan, MapPlan):
            kind = "async" if plan.on_loop else "thread"
            if isinstance(plan, LookupPlan) and plan.numbered:
                above = numbered(above)
            return self.maps([self.stage(op, kind) for op in plan.ops], above)
        if isinstance(plan, FlowPlan):
            return self.flows(self.stage(plan.op, "async" if plan.on_loop else "generator"), above)
        if isinstance(plan, BatchPlan):
            meter = Meter(plan.name, "batch", 1)
            self.meters.append(meter)
            return batches(plan, meter, above)
        if isinstance(plan, SHAPE_PLANS):
            return shape(self, plan, above)
        if isinstance(plan, AggregatePlan):
            return self.aggregates(plan, self.stage(plan.op, "aggregator"), above)
        if isinstance(plan, RoutePlan):
            meter = Meter(plan.name, "cache" if isinstance(plan, CachePlan) else "route", 1)
            self.meters.append(meter)
            if isinstance(plan, CachePlan):
                return InlineCache(self, plan, meter).items(above)
            return InlineRoute(self, plan, meter, self.judges.of(plan.router)).items(above)
        return elements(self, self.stage(plan.op, "flatten"), above, plan.opened)

    def maps(self, stages: list[Stage], above: Items) -> Items:
        """Run 1→1 ops."""
        plain: set[type] = set()
        for item in above:
            if item is PAUSE or all(self.call(stage, item, plain) for stage in stages):
                yield item
                for _, _, judge in stages:  # after what was good, as on the other faces
                    self.check_budget(judge)
        for _, _, judge in stages:
            self.finish(judge)

    def copies(self, plan: CopyPlan, above: Items) -> Items:
        """Copy batches to a device, or back."""
        op = plan.ops[0]
        copying = plan.kit.open(self.devices[op.name], in_own_thread=False)
        stage = self.stage(replace(op, call=copying), "copy")
        try:
            for item in self.maps([stage], above):
                stage[1].notes = MappingProxyType(dict(copying.statistics()))
                yield item
        finally:
            copying.close()

    def call(self, stage: Stage, item: Item, plain: set[type]) -> bool:
        """Run one op on an item; ``False`` where the item is dropped or skipped."""
        _, meter, judge = stage
        meter.items_in += 1
        while True:
            value, failure = attempt(self, stage, item, plain)
            if failure is None or not wait_for_retry(judge, meter, item, failure):
                break
        judge.count_calls(1)
        if failure is not None:
            self.settle(judge, meter, item, failure)
            return False
        if value is DROP:
            self.dropped(meter)
            self.check_budget(judge)
            return False
        meter.items_out += 1
        item.value = value
        return True

    def flows(self, stage: Stage, above: Items) -> Items:
        """Run a 1→n op."""
        _, meter, judge = stage
        for item in above:
            if item is PAUSE:
                yield item
                continue
            meter.items_in += 1
            while True:
                failure, made = yield from flow(self, stage, item)
                if failure is None or not wait_for_retry(
                    judge, meter, item, failure, allowed=not made
                ):
                    break
            judge.count_calls(1)
            if failure is not None:
                self.settle(judge, meter, item, failure)
            self.check_budget(judge)
        self.finish(judge)

    def aggregates(self, plan: AggregatePlan, stage: Stage, above: Items) -> Items:
        """Run a user's aggregator."""
        _, meter, judge = stage
        aggregator = None
        held = HeldItems()
        waiting = Waiting(plan.within)
        for item in waiting.with_flushes(self.with_end(above, plan.drop_last)):
            if item is PAUSE:
                yield item
                continue
            outputs: list[Any] = []
            failure = None
            began = clock()
            try:
                context = self.context_of(meter)
                if aggregator is None:
                    aggregator = context.run(plan.op.call)
                    held.told = getattr(aggregator, "tells_members", False)
                meter.items_in += item is not None
                outputs = context.run(outputs_of, aggregator, item)
                if has_notes(aggregator):
                    meter.notes = notes_of(aggregator)
            except BaseException as error:  # noqa: BLE001 -- the policy decides
                failure = caught(error)
            meter.busy += clock() - began
            if item is None and failure is None:
                judge.count_flush()
            else:
                judge.count_calls(1)
            if failure is not None:
                self.settle(judge, meter, item or batch_of(held.all(), None), failure)
                continue
            if item is not None:
                held.add(item)
            for value in outputs:
                if value is DROP:
                    self.dropped(meter)
                    continue
                meter.items_out += 1
                members, whole = held.take(value)
                yield batch_of(members, whole)
            waiting.note(item, outputs, held.since)
            self.check_budget(judge)
        if plan.drop_last:
            meter.dropped += held.count_if_told()
        self.finish(judge)

    def with_end(self, above: Items, drop_last: bool) -> Iterator[Item | None]:
        """Yield the items, then ``None`` where the aggregator is to be flushed."""
        yield from above
        if not drop_last:
            yield None
