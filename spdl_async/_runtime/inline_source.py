"""Reading the source for ``run_sync(inline=True)``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

from spdl_async._plan.results import is_async_iterable
from spdl_async._plan.steps import SourcePlan
from spdl_async._runtime.failures import Judge, caught, note_once
from spdl_async._runtime.inline_calls import failure_of
from spdl_async._runtime.puller import NOT_ASYNC, iterate
from spdl_async._runtime.source_step import ENDED_AFTER, FAILURES_IN_A_ROW, IN_A_ROW
from spdl_async._runtime.ticket import NO_ITEM, Item, kept_source
from spdl_async.spec.markers import DROP

if TYPE_CHECKING:
    from spdl_async._runtime.inline import InlinePass, Items, Stage


def read(run: InlinePass, plan: SourcePlan, stage: Stage) -> Items:
    """Read the source."""
    op, meter, judge = stage
    context = run.context_of(meter)
    iterator = context.run(open_source, run, plan, judge)
    in_a_row, first, index = 0, None, 0
    try:
        while True:
            began = clock()
            try:
                value = context.run(next, iterator)
            except StopIteration:
                break
            except BaseException as error:  # noqa: BLE001 -- the policy decides
                item = Item(None, index, NO_ITEM)
                failure = failure_of(op, item, error)
                index += 1
                judge.count_calls(1)
                in_a_row, first = in_a_row + 1, first or failure.exception
                run.settle(judge, meter, item, failure)
                if in_a_row >= FAILURES_IN_A_ROW:
                    note_once(first, IN_A_ROW)
                    raise first from None
                continue
            in_a_row, first = 0, None
            meter.busy += clock() - began
            judge.count_calls(1)
            index += 1
            if value is DROP:
                run.dropped(meter)
                run.check_budget(judge)
                continue
            meter.items_in += 1
            meter.items_out += 1
            yield Item(value, index - 1, kept_source(value))
            run.check_budget(judge)
    finally:
        run.close_user(judge, Item(None, index, NO_ITEM), context, iterator)
    if first is not None:
        note_once(first, ENDED_AFTER)
        raise first
    run.finish(judge)


def open_source(run: InlinePass, plan: SourcePlan, judge: Judge) -> Iterator[Any]:
    """Open the source."""
    try:
        source = plan.open_for(run.epoch)
        if inspect.isawaitable(source):
            source = run.loop.wait_for(source)
        if is_async_iterable(source):
            return run.loop.drive(source, plan.op.timeout)
        if plan.op.timeout is not None:
            raise TypeError(NOT_ASYNC.format(type(source).__name__))
        return iterate(source)
    except BaseException as error:  # noqa: BLE001 -- recorded; no policy skips it
        failure = caught(error)
        judge.note(Item(None, 0, NO_ITEM), failure)
        raise failure.exception from failure.exception.__cause__
