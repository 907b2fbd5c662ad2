"""Reading an async source on the loop, in the task that also closes it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

from spdl_async._plan.results import is_async_iterable
from spdl_async._plan.steps import MAX_CHUNK
from spdl_async._runtime.deadline import Deadline
from spdl_async._runtime.gates import Gate
from spdl_async._runtime.pace import SLICE_SECONDS
from spdl_async._runtime.puller import NOT_ASYNC
from spdl_async._runtime.telling import speaker
from spdl_async._runtime.ticket import DROPPED, Item, kept_source
from spdl_async.spec.markers import DROP

if TYPE_CHECKING:
    from spdl_async._runtime.source_step import SourceStep


async def read_async(step: SourceStep, given: Any) -> BaseException | None:
    """Read an async iterable on the loop, closing it in this task."""
    speaker.set(step.meters[0])
    try:
        source = step.open_source() if given is None else given
        if inspect.isawaitable(source):
            source = await source
        if not is_async_iterable(source):
            if step.timeout is not None:
                raise TypeError(NOT_ASYNC.format(type(source).__name__))
            step.open_source = lambda: source
            return await step.read_thread()
        iterator = aiter(source)
        step.opened = True
    except BaseException as error:  # noqa: BLE001 -- the policy decides
        return step.failed_to_open(error)
    try:
        return await iterate(step, iterator)
    finally:
        closing = getattr(iterator, "aclose", None)
        if closing is not None:
            await close(step, closing)


async def close(step: SourceStep, closing: Callable[[], Any]) -> None:
    """Close the async iterator; an error in that is an error of the source."""
    try:
        await closing()
    except Exception as error:  # noqa: BLE001 -- recorded
        item = step.failed_item(error)
        step.judge.note(item, item.value)


async def iterate(step: SourceStep, iterator: AsyncIterator[Any]) -> BaseException | None:
    """Hand items on one by one; the next step takes what has gathered when it comes."""
    meter = step.meters[0]
    began = resumed = clock()
    deadline = None if step.timeout is None else Deadline(step, step.timeout)
    while True:
        if step.gate is not None:
            await permission(step, step.gate)
        try:
            if deadline is not None:
                deadline.start()
            value = await anext(iterator)
            if deadline is not None and deadline.stop():
                raise TimeoutError  # the source has held out against its cancellation
        except StopAsyncIteration:
            if deadline is not None:
                deadline.stop()
            return step.at_source_end()
        except BaseException as error:
            is_over = deadline is not None and deadline.stop()
            if step.asked_to_stop(error):
                raise
            item = step.failed_item(error)
            if is_over:
                item.value = step.overdue_item(item, error)
        else:
            item = Item(value, step.pulled, kept_source(value))
            if value is DROP:
                item.state = DROPPED
            del value
        step.pulled += 1
        meter.busy += clock() - began
        if step.gate is not None:
            step.gate.finished(1)
        good, error_or_none, _ = await step.judged([item])
        del item
        if good:
            step.hand_on(good)
        del good
        if error_or_none is not None:
            return error_or_none
        while step.untaken >= MAX_CHUNK or (step.untaken and step.out.room() <= 0):
            await step.signal.wait()
        began = clock()
        if began - resumed > SLICE_SECONDS:
            await asyncio.sleep(0)
            began = resumed = clock()


async def permission(step: SourceStep, gate: Gate) -> None:
    """Return when the budget has room for an item."""
    gate.ask(1)
    while not step.permits:
        await step.signal.wait()
    step.permits -= 1
