"""Many small objects behind a latency: `python -m benchmarks.storage [--quick]`.

2,000 objects of 50 KB, each 100 ms away, 64 at a time: at most 640 a second, however fast the client
is. The server is an asyncio server in a process of its own on this machine, so it takes its share of
the processor. The reference is what one writes by hand: aiohttp, a semaphore and `gather`, which has
all objects in memory at its end; the others hold 64 and what waits for the consumer.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

from benchmarks._measure import Contestant, Race, Target, machine, missed, run_race, table
from benchmarks._object_server import serving
from spdl_async import Pipeline, PipelineBuilder
from spdl_async.io import Fetch, Store

BY_HAND = "by hand: aiohttp, gather, Semaphore"
LATENCY = 0.1


@dataclass(frozen=True, kw_only=True)
class Work:
    """How many objects are fetched, of which size in bytes, how many at a time, and from where."""

    count: int
    size: int
    concurrency: int
    port: int

    @property
    def urls(self) -> list[str]:
        """The objects' URLs."""
        return [f"http://127.0.0.1:{self.port}/data/{at:06}" for at in range(self.count)]

    def rate(self, seconds: float, sizes: Sequence[int]) -> float:
        """Give objects a second, if all of them came whole."""
        if list(sizes) != [self.size] * self.count:
            raise AssertionError(f"{sum(sizes)} bytes arrived in {len(sizes)} objects")
        return self.count / seconds


def build(work: Work) -> Pipeline[bytes]:
    """Build the pipeline over http."""
    builder = PipelineBuilder().add_source(work.urls)
    return builder.pipe(Fetch(), concurrency=work.concurrency).build()


def build_store(work: Work) -> Pipeline[bytes]:
    """Build the pipeline over the S3 protocol: obstore's client, unsigned requests."""
    endpoint = f"http://127.0.0.1:{work.port}"
    config = {"endpoint": endpoint, "region": "us-east-1", "skip_signature": True}
    store = Store("s3://data", config=config, client={"allow_http": True})
    keys = [f"{at:06}" for at in range(work.count)]
    return PipelineBuilder().add_source(keys).pipe(store, concurrency=work.concurrency).build()


def in_ordinary_code(work: Work) -> float:
    """Fetch from `for`."""
    started = time.perf_counter()
    with build(work).run_sync() as run:
        sizes = [len(data) for data in run]
    return work.rate(time.perf_counter() - started, sizes)


async def in_async_code(
    work: Work, loop: Literal["caller", "own"], make: Callable[[Work], Pipeline[bytes]] = build
) -> float:
    """Fetch from `async for`."""
    started = time.perf_counter()
    async with make(work).run(loop=loop) as run:
        sizes = [len(data) async for data in run]
    return work.rate(time.perf_counter() - started, sizes)


async def by_hand(work: Work) -> float:
    """Fetch as people write it."""
    import aiohttp

    limit = asyncio.Semaphore(work.concurrency)
    started = time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(url: str) -> bytes:
            async with limit, session.get(url) as response:
                return await response.read()

        sizes = [len(data) for data in await asyncio.gather(*map(one, work.urls))]
    return work.rate(time.perf_counter() - started, sizes)


def threads(work: Work) -> float:
    """Fetch with as many threads, each with a connection that stays open."""
    own = threading.local()
    connections: list[http.client.HTTPConnection] = []

    def one(url: str) -> bytes:
        connection: http.client.HTTPConnection | None = getattr(own, "connection", None)
        if connection is None:
            connection = own.connection = http.client.HTTPConnection("127.0.0.1", work.port)
            connections.append(connection)
        connection.request("GET", url)
        with connection.getresponse() as response:
            return response.read()

    started = time.perf_counter()
    with ThreadPoolExecutor(work.concurrency) as pool:
        sizes = [len(data) for data in pool.map(one, work.urls)]
    seconds = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return work.rate(seconds, sizes)


def _uvloop_run(coroutine: Any) -> float:
    import uvloop

    rate: float = uvloop.run(coroutine)
    return rate


def race(work: Work) -> Race:
    """Put the contestants together."""
    target = (Target(bound=550.0),)
    has_uvloop = find_spec("uvloop") is not None
    return Race(
        key="objects",
        title=f"{work.count:,} objects of {work.size // 1000} KB, {LATENCY * 1000:.0f} ms away, "
        f"{work.concurrency} at a time",
        unit="objects/s",
        baseline=BY_HAND,
        contestants=[
            Contestant(name=BY_HAND, run=lambda: asyncio.run(by_hand(work))),
            Contestant(
                name="spdl_async, async for, asyncio.run",
                run=lambda: asyncio.run(in_async_code(work, "caller")),
                targets=target,
            ),
            Contestant(
                name="spdl_async, async for, uvloop.run",
                run=(lambda: _uvloop_run(in_async_code(work, "caller"))) if has_uvloop else None,
                targets=target,
            ),
            Contestant(
                name="spdl_async, async for, loop='own'",
                run=lambda: asyncio.run(in_async_code(work, "own")),
                targets=target,
            ),
            Contestant(name="spdl_async, for", run=partial(in_ordinary_code, work), targets=target),
            Contestant(
                name="spdl_async, Store (S3 protocol), async for",
                run=lambda: asyncio.run(in_async_code(work, "caller", build_store)),
            ),
            Contestant(name=f"{work.concurrency} threads, http.client", run=partial(threads, work)),
        ],
        note=f"at most {work.concurrency / LATENCY:,.0f} objects/s are possible",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the race; the exit code is 0 whatever it shows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--rounds", type=int, help="rounds (default 3)")
    options = parser.parse_args(argv)
    rounds = options.rounds or (1 if options.quick else 3)
    print(machine(("uvloop", "aiohttp", "obstore")), flush=True)
    if options.quick:
        print("--quick: shows that everything runs; its sizes are too small for any verdict")
    started = time.perf_counter()
    size = 50_000
    with serving(latency=LATENCY, size=size) as port:
        work = Work(count=100 if options.quick else 2000, size=size, concurrency=64, port=port)
        outcome = run_race(race(work), rounds=rounds, warm_up=not options.quick)
    print("\n" + table(outcome), flush=True)
    bad = missed(outcome)
    print(f"\n{time.perf_counter() - started:.0f} s; missed: {', '.join(bad) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
