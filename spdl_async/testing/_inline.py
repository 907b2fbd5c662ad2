"""An executor without threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class InlineExecutor(Executor):
    """Runs each call at once, in the thread that submits it, which is the run's loop.

    With it a pipeline of sync ops is deterministic: one call at a time, in the order in which the
    stages ask for them. It goes well with the virtual clock. For debugging by ``breakpoint()``
    use ``pipeline.run_sync(inline=True)`` instead.

    >>> import threading
    >>> from spdl_async import PipelineBuilder
    >>> from spdl_async.testing import InlineExecutor, run_virtual
    >>> def thread_name(item):
    ...     return threading.current_thread().name
    >>> async def main():
    ...     builder = PipelineBuilder().add_source([1, 2]).pipe(thread_name)
    ...     async with builder.build(executor=InlineExecutor()).run(loop="caller") as run:
    ...         return [name async for name in run]
    >>> run_virtual(main()) == [threading.current_thread().name] * 2
    True
    """

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call ``fn`` and return its outcome as a finished future.

        ``KeyboardInterrupt`` and ``SystemExit`` belong to the future too, as in a pool's thread.
        """
        future: Future[R] = Future()
        future.set_running_or_notify_cancel()
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 -- it belongs to the future
            future.set_exception(error)
        else:
            future.set_result(result)
        return future
