"""The lifespan of an op in plain loops: entered and left in one task, between calls."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any


def has_lifespan(op: Any) -> bool:
    """Tell whether an op is an async context manager, or has a ``lifespan()``."""
    kind = type(op)
    if isinstance(op, type):
        return False
    return isinstance(op, AbstractAsyncContextManager) or callable(getattr(kind, "lifespan", None))


class Span:
    """Holds one op's lifespan open."""

    def __init__(self, runner: asyncio.Runner, op: Any) -> None:
        self._loop = runner.get_loop()
        self._op = op
        self._leave = asyncio.Event()
        self._entered: asyncio.Future[Any] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None

    def enter(self) -> Any:
        """Enter; return what is called from then on."""
        self._task = self._loop.create_task(self._hold())
        self._loop.run_until_complete(
            asyncio.wait([self._task, self._entered], return_when=asyncio.FIRST_COMPLETED)
        )
        if not self._entered.done():
            self._task.result()
        value = self._entered.result()
        return value if callable(value) else self._op

    def leave(self) -> None:
        """Leave."""
        assert self._task is not None
        self._leave.set()
        self._loop.run_until_complete(self._task)

    async def _hold(self) -> None:
        has_method = hasattr(type(self._op), "lifespan")
        manager = self._op.lifespan() if has_method else self._op
        if isinstance(manager, AbstractContextManager):
            with manager as value:
                self._entered.set_result(value)
                await self._leave.wait()
            return
        async with manager as value:
            self._entered.set_result(value)
            await self._leave.wait()
