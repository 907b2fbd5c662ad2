"""Calls of ops for ``run_sync(inline=True)``: one at a time, made again where ``retry`` says so."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

from spdl_async._plan.results import is_plain
from spdl_async._plan.steps import OpPlan
from spdl_async._runtime.deadline import time_over
from spdl_async._runtime.failures import Judge, caught
from spdl_async._runtime.inline_loop import TimeOverError, values_of
from spdl_async._runtime.meter import Meter
from spdl_async._runtime.ticket import Item, OpFailure
from spdl_async.errors import RunStateError
from spdl_async.spec.markers import DROP

if TYPE_CHECKING:
    from spdl_async._runtime.inline import InlinePass, Stage


def attempt(
    run: InlinePass, stage: Stage, item: Item, plain: set[type]
) -> tuple[Any, OpFailure | None]:
    """Call an op once."""
    op, meter, _ = stage
    began = clock()
    failure = None
    value = None
    try:
        context = run.context_of(meter)
        value = context.run(op.call, item.value)
        if type(value) not in plain and not is_plain(value, plain) and value is not DROP:
            value = context.run(run.loop.wait_for, value, op.timeout)
    except RunStateError:
        raise
    except BaseException as error:  # noqa: BLE001 -- the policy decides
        failure = failure_of(op, item, error, item.value)
    meter.busy += clock() - began
    return value, failure


def failure_of(op: OpPlan, item: Item, error: BaseException, value: Any = ...) -> OpFailure:
    """Return what an exception is for the policy."""
    if isinstance(error, TimeOverError):
        return time_over(op.name, item, op.timeout or 0.0, str(error))
    return caught(error, value)


def wait_for_retry(
    judge: Judge, meter: Meter, item: Item, failure: OpFailure, allowed: bool = True
) -> bool:
    """Wait until a failed call is to be made again; ``False`` where it is not."""
    wait = judge.retry_after(item, failure, allowed=allowed)
    if wait is None:
        return False
    meter.retried += 1
    time.sleep(wait)
    return True


def flow(
    run: InlinePass, stage: Stage, item: Item
) -> Generator[Item, None, tuple[OpFailure | None, int]]:
    """Call a 1→n op once; return how it failed and how many values it has made."""
    op, meter, judge = stage
    context = run.context_of(meter)
    values: Iterator[Any] = iter(())
    failure = None
    began = clock()
    try:
        values = context.run(values_of, run.loop, op, item.value)
    except RunStateError:
        raise
    except BaseException as error:  # noqa: BLE001 -- the policy decides
        failure = failure_of(op, item, error, item.value)
    ordinal = 0
    try:
        while failure is None:
            try:
                value = context.run(next, values)
            except StopIteration:
                break
            except BaseException as error:  # noqa: BLE001 -- the policy decides
                failure = failure_of(op, item, error, item.value)
                break
            finally:
                meter.busy += clock() - began
            if value is DROP:
                run.dropped(meter)
            else:
                meter.items_out += 1
                yield item.child(value, (*item.path, ordinal), item.members)
            ordinal += 1
            began = clock()
    finally:
        run.close_user(judge, item, context, values)
    return failure, ordinal
