"""What a run answers where it is used as the other kind of run: the line that is meant.

``with pipeline.run()`` and ``async for … in pipeline.run_sync()`` are the likeliest mix-ups, and
Python's own words for them name neither. Type checkers do not see these methods, so they report the
mix-up as they would without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from spdl_async.errors import RunStateError

NOT_ORDINARY = """pipeline.run() is for async code: `async with` and `async for`. In ordinary code take

    with pipeline.run_sync() as run:
        for batch in run:
            ...

or, for one pass without statistics,

    for batch in pipeline:
        ..."""

NOT_ASYNC = """pipeline.run_sync() is for ordinary code: `with` and `for`. In async code take

    async with pipeline.run() as run:
        async for batch in run:
            ...

or, for one pass without statistics,

    async for batch in pipeline:
        ..."""


class NotOrdinary:
    """Refuses ``with``, ``for`` and ``next``."""

    not_ordinary = NOT_ORDINARY

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise RunStateError(self.not_ordinary)

        def __exit__(self, *_: object) -> NoReturn:
            raise RunStateError(self.not_ordinary)

        def __iter__(self) -> NoReturn:
            raise RunStateError(self.not_ordinary)

        def __next__(self) -> NoReturn:
            raise RunStateError(self.not_ordinary)


class NotAsync:
    """Refuses ``async with``, ``async for`` and ``anext``."""

    # It has ``__aiter__`` and is no async iterable all the same: ``is_async_iterable`` looks here.
    refuses_async = True
    not_async = NOT_ASYNC

    if not TYPE_CHECKING:

        def __aenter__(self) -> NoReturn:
            raise RunStateError(self.not_async)

        def __aexit__(self, *_: object) -> NoReturn:
            raise RunStateError(self.not_async)

        def __aiter__(self) -> NoReturn:
            raise RunStateError(self.not_async)

        def __anext__(self) -> NoReturn:
            raise RunStateError(self.not_async)
