"""The limit of requests to one server: it gives way, and comes back (I6)."""

from __future__ import annotations

import asyncio

import pytest
from scripted_server import ScriptedServer, gated, ok, status

from spdl_async import FetchError, Retry
from spdl_async.io import Fetch
from spdl_async.io._throttle import Throttle


async def test_it_halves_once_for_all_that_were_under_way_and_grows_again() -> None:
    throttle = Throttle(16)
    held = [await throttle.acquire() for _ in range(16)]
    assert [throttle.release(each, overloaded=True) for each in held] == [True] + [False] * 15
    assert throttle.limit == 8
    held = [await throttle.acquire() for _ in range(8)]
    for each in held:
        throttle.release(each, overloaded=False)
    assert 8.5 < throttle.limit < 9.5
    for _ in range(1000):
        throttle.release(await throttle.acquire(), overloaded=False)
    assert throttle.limit == 16
    for _ in range(10):
        throttle.release(await throttle.acquire(), overloaded=True)
    assert throttle.limit == 1  # never none
    assert throttle.active == 0


async def test_requests_that_failed_or_were_given_up_do_not_raise_it() -> None:
    throttle = Throttle(16)
    throttle.release(await throttle.acquire(), overloaded=True)
    for _ in range(100):
        throttle.release(await throttle.acquire(), overloaded=False, good=False)
    assert throttle.limit == 1

    pytest.importorskip("aiohttp")
    async with (
        ScriptedServer({"/o": [status(503), status(500)]}) as server,
        Fetch(retry=Retry(20, backoff=0.0), per_host=16).lifespan() as get,
    ):
        with pytest.raises(FetchError):
            await get(server.url("/o"))
        client = get.__self__  # type: ignore[attr-defined]  # to look at its limit
        (throttle, _), *_ = client._hosts.values()
        assert throttle.limit == 1


async def test_those_who_wait_come_in_order_and_may_leave() -> None:
    throttle = Throttle(1)
    first = await throttle.acquire()
    order: list[int] = []

    async def one(number: int) -> None:
        held = await throttle.acquire()
        order.append(number)
        throttle.release(held, overloaded=False)

    tasks = [asyncio.create_task(one(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    throttle.release(first, overloaded=False)
    tasks[0].cancel()  # its place was given to it in this very moment
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [2, 3]
    assert throttle.active == 0
    assert not throttle.waiting


async def test_a_server_that_is_overloaded_gets_fewer_requests() -> None:
    pytest.importorskip("aiohttp")
    gate = asyncio.Event()
    scripts = {"/o": [gated(gate, status(503))] * 8 + [ok(b"x")]}
    async with ScriptedServer(scripts) as server:
        op = Fetch(retry=Retry(5, backoff=0.0))
        tasks = [asyncio.create_task(op(server.url("/o"))) for _ in range(8)]
        while server.active < 8:  # noqa: ASYNC110 -- the server counts, and tells nobody
            await asyncio.sleep(0)
        gate.set()
        server.most_active = 0
        assert await asyncio.gather(*tasks) == [b"x"] * 8
        assert server.most_active <= 8
        assert op.statistics().throttled >= 1
