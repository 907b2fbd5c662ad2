"""Asking a user's ``on_error`` function from a step, without holding up its other items."""

from __future__ import annotations

from asyncio import Task
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from spdl_async._runtime.failures import Judge
from spdl_async._runtime.hop import dispose
from spdl_async._runtime.ticket import FAILED, PENDING, Item, OpFailure

if TYPE_CHECKING:
    from spdl_async._runtime.step import Step
    from spdl_async._runtime.windowed_step import WindowedStep


def consult(
    step: Step, judge: Judge, item: Item, failure: OpFailure, then: Callable[[], None]
) -> bool:
    """Ask about a failure; ``True`` where the answer has to be waited for.

    ``then`` is called when it is there, and also when a stop has cancelled the function.
    """
    answer = judge.ask(item, failure)
    if answer is None:
        return False
    task = step.launch(hear(step, judge, answer, item, failure), "on_error")

    def ended(task: Task[None]) -> None:
        step.forget(task)
        if task.cancelled():
            dispose(answer)
        then()

    task.add_done_callback(ended)
    return True


def ask_about(step: WindowedStep, item: Item) -> bool:
    """Ask about a failed item of a window; ``True`` while the answer is waited for.

    With input order the item keeps its place, with completion order others pass it.
    """

    def answered() -> None:
        item.state = FAILED
        if not step.ordered:
            step.done.append(item)
        step.advance_soon()

    if not consult(step, step.judges[item.at], item, item.value, answered):
        return False
    item.state = PENDING
    return True


async def hear(
    step: Step, judge: Judge, answer: Awaitable[object], item: Item, failure: OpFailure
) -> None:
    """Await the function's answer; a stop cancels it."""
    try:
        await answer
    except BaseException as error:
        if step.asked_to_stop(error):
            raise
        judge.answered(item, failure, error)
