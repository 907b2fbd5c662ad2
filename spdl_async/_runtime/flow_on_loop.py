"""Driving one flow of a 1→n stage on the loop: an async op, or what a sync op has returned for it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Any

from spdl_async._runtime.deadline import Deadline, stack_of_error, time_over
from spdl_async._runtime.failures import caught
from spdl_async._runtime.flow import Flow
from spdl_async._runtime.meter import clock
from spdl_async._runtime.pace import SLICE_SECONDS
from spdl_async._runtime.telling import speaker
from spdl_async._runtime.ticket import OpFailure

if TYPE_CHECKING:
    from spdl_async._runtime.generator_step import ThreadFlowStep


async def produce(step: ThreadFlowStep, flow: Flow, value: Any) -> None:
    """Drive one flow on the loop."""
    speaker.set(step.meters[0])
    began = clock()
    failure = None
    deadline = None if step.timeout is None else Deadline(step, step.timeout)
    try:
        if deadline is not None:
            deadline.start()
        if step.starts_on_loop:
            value = step.call(flow.item.value)
        if inspect.isawaitable(value):
            value = await value
        if not isinstance(value, AsyncIterable):
            if deadline is None or not deadline.stop():
                step.to_thread(flow, value)
                return
        else:
            await iterate(step, flow, value, deadline)
    except BaseException as error:
        is_over = deadline is not None and deadline.stop()
        if step.asked_to_stop(error):
            raise
        failure = caught(error, flow.item.value)
        if is_over:
            failure = overdue_flow(step, flow, stack_of_error(error))
    else:
        if deadline is not None and deadline.stop():
            failure = overdue_flow(step, flow, "")
    step.meters[0].busy += clock() - began
    step.meters[0].calls += 1
    if failure is not None and step.call_again(flow, failure):
        step.give_back(flow)
        return
    flow.end(failure)
    if failure is not None and step.judges[0].ends(failure):
        step.halted = True
    step.news_of(flow)


def overdue_flow(step: ThreadFlowStep, flow: Flow, stack: str) -> OpFailure:
    """Return the failure of a flow whose next value took too long."""
    return time_over(step.meters[0].name, flow.item, step.timeout or 0.0, stack)


async def iterate(
    step: ThreadFlowStep, flow: Flow, values: AsyncIterable[Any], deadline: Deadline | None
) -> None:
    """Take values from an async iterator; it is closed in this task."""
    iterator = aiter(values)
    resumed = clock()
    try:
        async for value in iterator:
            if deadline is not None and deadline.stop():
                return
            flow.add(value)
            step.news_of(flow)
            while flow.full(step.flow_limit):
                wake = step.loop_flows[flow] = step.host.loop.create_future()
                await wake
                resumed = clock()
            if clock() - resumed > SLICE_SECONDS:
                await asyncio.sleep(0)
                resumed = clock()
            if deadline is not None:
                deadline.start()
    finally:
        if deadline is not None:
            deadline.stop()
        closing = getattr(iterator, "aclose", None)
        if closing is not None:
            await closing()
