"""Async code in ordinary code, for ``run_sync(inline=True)``: a loop in the calling thread."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import AbstractEventLoop, Future, Task
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Coroutine, Iterator
from contextvars import Context
from typing import Any

from spdl_async._plan.steps import OpPlan
from spdl_async._runtime.deadline import stack_of_error
from spdl_async._runtime.flow import close as close_generator
from spdl_async._runtime.flow import iterate
from spdl_async._runtime.telling import speaker
from spdl_async.errors import RunStateError

Outcome = tuple[str, Any]


class TimeOverError(Exception):
    """The time of a call is over; says where it was then."""


class InlineLoop:
    """A loop that runs only while something is awaited; made when first needed."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._loop: AbstractEventLoop | None = None
        self.closing = False

    def get(self, *, instead_of: object = None) -> AbstractEventLoop:
        """Return the loop, ready to run.

        Raises:
            RunStateError: another loop runs in this thread.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            return self._loop
        close = getattr(instead_of, "close", None)
        if close is not None:  # a coroutine that is never started would warn
            close()
        raise RunStateError(
            "run_sync(inline=True) runs async ops in the calling thread, where a loop is running "
            "already; use it from ordinary code, or pipeline.run() here"
        )

    def start(self, work: Coroutine[Any, Any, Any]) -> Task[Any]:
        """Make a task of the run; it goes on while something is waited for."""
        loop, context = self.get(instead_of=work), self.context.copy()
        context.run(speaker.set, speaker.get())  # of the stage whose call this is
        return loop.create_task(work, context=context)

    def wait_for(self, awaitable: Awaitable[Any], seconds: float | None = None) -> Any:
        """Run an awaitable to its end.

        Raises:
            TimeOverError: it took longer than ``seconds``.
        """
        loop = self.get(instead_of=awaitable)
        return loop.run_until_complete(self.start(_awaited(awaitable, seconds)))

    def drive(self, values: AsyncIterable[Any], seconds: float | None = None) -> AsyncInOrdinary:
        """Return an iterator over an async iterable, each of whose items may take ``seconds``."""
        return AsyncInOrdinary(self, aiter(values), seconds)

    def close(self) -> None:
        """End what is left on the loop, and close it."""
        loop = self._loop
        self.closing = True
        if loop is not None and not loop.is_closed():
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


class AsyncInOrdinary:
    """Iterates an async iterator in this thread; an item that fails does not end it.

    One task advances and closes it, since it may hold what belongs to a task (``asyncio.timeout``, a
    task group) from one item to the next.
    """

    def __init__(
        self, loop: InlineLoop, iterator: AsyncIterator[Any], seconds: float | None
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._iterator = iterator
        self._task: Task[None] | None = None
        self._asked: Future[Future[Outcome] | None] | None = None
        self._answer: Future[Outcome] | None = None
        self._closing = False

    def __iter__(self) -> AsyncInOrdinary:
        return self

    def __next__(self) -> Any:
        loop = self._loop.get()
        if self._task is None:
            self._asked = loop.create_future()
            self._task = self._loop.start(self._serve())
        answer: Future[Outcome] = loop.create_future()
        assert self._asked is not None
        self._answer = answer
        self._asked.set_result(answer)
        how, value = loop.run_until_complete(answer)
        if how == "end":
            raise StopIteration
        if how == "error":
            raise value
        return value

    async def _serve(self) -> None:
        iterator = self._iterator
        try:
            while not self._closing:
                assert self._asked is not None
                answer = await self._asked
                if answer is None:
                    return
                self._asked = asyncio.get_running_loop().create_future()
                try:
                    answer.set_result(("value", await _awaited(anext(iterator), self._seconds)))
                except StopAsyncIteration:
                    answer.set_result(("end", None))
                except BaseException as error:
                    if isinstance(error, asyncio.CancelledError) and (
                        self._closing or self._loop.closing
                    ):
                        raise
                    answer.set_result(("error", error))  # raised where the item was asked for
        finally:
            closing = getattr(iterator, "aclose", None)
            if closing is not None:
                await closing()

    def close(self) -> None:
        """Close the async iterator, where it can be; an error in that is raised."""
        task, asked, answer = self._task, self._asked, self._answer
        if task is None or asked is None or answer is None:
            return
        if not task.done() and not answer.done():  # left in the middle of an item: interrupted
            self._closing = True
            task.cancel()
        elif not task.done():
            asked.set_result(None)
        self._loop.get().run_until_complete(asyncio.wait([task]))
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _awaited(awaitable: Awaitable[Any], seconds: float | None) -> Any:
    if seconds is None:
        return await awaitable
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            value = await awaitable
    except BaseException as error:
        if scope.expired():
            # asyncio's own error was raised in its code, out of what the cancelled call has raised.
            inner = (type(error) is TimeoutError and error.__cause__) or error
            raise TimeOverError(stack_of_error(inner)) from None
        raise
    if scope.expired():
        raise TimeOverError("")
    return value


def values_of(loop: InlineLoop, op: OpPlan, value: Any) -> Iterator[Any]:
    """Return an iterator over what a 1→n op makes of a value."""
    made = op.call(value)
    if op.kind == "generator":
        return iter(made)
    if inspect.isawaitable(made):
        made = loop.wait_for(made, op.timeout)
    return loop.drive(made, op.timeout) if isinstance(made, AsyncIterable) else iterate(made)


def close(iterator: Any) -> None:
    """Close what user code iterates, where it can be."""
    if isinstance(iterator, AsyncInOrdinary):
        iterator.close()
    else:
        close_generator(iterator)
