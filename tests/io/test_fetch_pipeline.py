"""Fetching as a stage: sessions of runs, loops, leaving early, errors that name the URL (A12, C9, I6)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from scripted_server import ScriptedServer, Step, hang_up, ok, silent, status

from spdl_async import PipelineBuilder, Retry
from spdl_async.io import Fetch, fetch, list_files, read_file

pytest.importorskip("aiohttp")

QUICK = Retry(6, backoff=0.0)
BODY = bytes(range(256)) * 20

Loop = Literal["caller", "own"]


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", "/dev/null")
    monkeypatch.delenv("http_proxy", raising=False)


def body_of(number: int) -> bytes:
    return BODY + str(number).encode()


def scripts_of_faults(count: int) -> dict[str, list[Step]]:
    """Each URL with another sequence of faults before it is served, or for ever."""
    scripts: dict[str, list[Step]] = {}
    for number in range(count):
        good = ok(body_of(number), etag=f'"{number}"')
        cut = ok(body_of(number), etag=f'"{number}"', cut=3000)
        scripts[f"/{number}"] = [
            [status(503)] * 3 + [good],
            [status(429, Retry_After=0), good],
            [status(408), good],
            [status(500), good],
            [ok(body_of(number), cut=100, then="reset"), good],
            [cut, good],
            [hang_up, hang_up, good],
            [good],
            [status(404)],
            [status(403)],
        ][number % 10]
    return scripts


@pytest.mark.parametrize("loop", ["caller", "own"])
async def test_200_urls_at_32_with_every_fault(loop: Loop) -> None:
    async with ScriptedServer(scripts_of_faults(200)) as server:
        op = Fetch(retry=QUICK)
        urls = [server.url(f"/{number}") for number in range(200)]
        pipeline = (
            PipelineBuilder().add_source(urls).pipe(op, concurrency=32, on_error="skip").build()
        )
        async with pipeline.run(loop=loop) as run:
            outputs = [data async for data in run]
        assert outputs == [body_of(number) for number in range(200) if number % 10 < 8]
        assert run.failures.total == 40
        assert {record.error for record in run.failures} == {"FetchError"}
        assert server.most_active <= 32
        counted = op.statistics()
        assert counted.objects == 160
        assert counted.retries >= 20 * (3 + 1 + 1 + 1 + 1 + 1)
        assert counted.resumed >= 10
        assert counted.throttled >= 1


@pytest.mark.parametrize("loop", ["caller", "own"])
async def test_a_run_has_one_session_and_closes_it(loop: Loop) -> None:
    async with ScriptedServer({"/o": [ok(BODY)]}) as server:
        pipeline = (
            PipelineBuilder().add_source([server.url("/o")] * 50).pipe(fetch, concurrency=4).build()
        )
        for _ in range(2):
            before = server.connections
            async with pipeline.run(loop=loop) as run:
                assert [data async for data in run] == [BODY] * 50
            assert server.connections - before <= 4


async def test_two_runs_at_once_have_a_session_each() -> None:
    async with ScriptedServer({"/o": [ok(BODY)]}) as server:
        pipeline = (
            PipelineBuilder()
            .add_source([server.url("/o")] * 20)
            .pipe(Fetch(), concurrency=2)
            .build()
        )
        async with pipeline.run(loop="own") as one, pipeline.run(loop="caller") as two:
            async for data in one:
                assert data == await anext(two) == BODY


async def test_ordinary_code_and_inline() -> None:
    async with ScriptedServer({"/o": [ok(BODY)]}) as server:
        pipeline = PipelineBuilder().add_source([server.url("/o")] * 3).pipe(Fetch()).build()

        def inline() -> list[bytes]:
            with pipeline.run_sync(inline=True) as run:
                return list(run)

        assert await asyncio.to_thread(list, pipeline) == [BODY] * 3
        assert await asyncio.to_thread(inline) == [BODY] * 3


async def test_a_function_of_ones_own_may_call_it() -> None:
    async with ScriptedServer({"/o": [ok(BODY)]}) as server:

        async def load(url: str) -> int:
            return len(await fetch(url))

        pipeline = (
            PipelineBuilder().add_source([server.url("/o")] * 50).pipe(load, concurrency=8).build()
        )
        async with pipeline.run() as run:
            assert [size async for size in run] == [len(BODY)] * 50
        assert server.connections <= 50
        first = (
            PipelineBuilder()
            .add_source([server.url("/o")])
            .pipe(partial(fetch.range, start=0, length=3))
        )
        async with first.build().run() as ranges:
            assert [data async for data in ranges] == [BODY[:3]]


async def test_leaving_while_servers_are_silent() -> None:
    async with ScriptedServer({"/o": [ok(BODY)], "/silent": [silent]}) as server:
        urls = [server.url("/o")] + [server.url("/silent")] * 20
        pipeline = PipelineBuilder().add_source(urls).pipe(Fetch(), concurrency=8).build()
        for loop in ("caller", "own"):
            async with pipeline.run(loop=loop) as run:
                assert await anext(run) == BODY


SCRIPT = """
import asyncio, sys
from spdl_async import PipelineBuilder
from spdl_async.io import Fetch, fetch

form, url = sys.argv[1:]

async def source():
    async with fetch.lifespan() as get:
        while True:
            yield await get(url)

def urls():
    while True:
        yield url

builder = PipelineBuilder()
if form == "source":
    pipeline = builder.add_source(source).build()
else:
    pipeline = builder.add_source(urls).pipe(fetch, concurrency=8).build()

async def main():
    async for data in pipeline:
        return len(data)

def ordinary():
    for data in pipeline:
        return len(data)

print(ordinary() if form == "ordinary" else asyncio.run(main()))
"""


@pytest.mark.parametrize("form", ["source", "stage", "ordinary"])
def test_a_script_that_takes_one_sample_ends(form: str) -> None:
    """A12: nothing keeps it alive, and nothing is said about sessions, sockets or a slow loop."""

    async def main() -> subprocess.CompletedProcess[str]:
        async with ScriptedServer({"/o": [ok(BODY)]}) as server:
            command = [sys.executable, "-X", "dev", "-W", "error", "-c", SCRIPT, form]
            return await asyncio.to_thread(
                subprocess.run,
                [*command, server.url("/o")],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )

    done = asyncio.run(main())
    assert done.stdout == f"{len(BODY)}\n", done.stderr
    assert not done.stderr
    assert done.returncode == 0


async def test_records_name_the_file_or_the_url(tmp_path: Path) -> None:
    """C9: of many files and URLs the bad ones are listed, one line of JSON each."""
    for number in range(30):
        (tmp_path / f"{number:02}.bin").write_bytes(b"x")
    (tmp_path / "05.bin").unlink()
    (tmp_path / "05.bin").symlink_to("gone")
    scripts = {f"/{number}": [ok(b"x")] for number in range(30)}
    scripts["/7"] = [status(404)]
    async with ScriptedServer(scripts) as server:
        files = PipelineBuilder().add_source(list_files(tmp_path)).pipe(read_file, on_error="skip")
        urls = (
            PipelineBuilder()
            .add_source([server.url(f"/{number}") for number in range(30)])
            .pipe(Fetch(retry=None), concurrency=4, on_error="skip")
        )
        for builder, named in ((files, str(tmp_path / "05.bin")), (urls, server.url("/7"))):
            async with builder.build().run() as run:
                assert len([data async for data in run]) == 29
            (record,) = run.failures
            assert named in record.message
            assert record.index in (5, 7)
            run.failures.to_jsonl(tmp_path / "out.jsonl")
            assert named in (tmp_path / "out.jsonl").read_text()


def test_threads_with_loops_of_their_own_share_an_op() -> None:
    """What is counted is counted once, whichever loops fetch at the same time."""
    op = Fetch()

    async def many(url: str) -> None:
        assert await asyncio.gather(*[op(url) for _ in range(20)]) == [BODY] * 20

    async def main() -> None:
        async with ScriptedServer({"/o": [ok(BODY)]}) as server:
            url = server.url("/o")
            await asyncio.gather(
                *[asyncio.to_thread(lambda: asyncio.run(many(url))) for _ in range(4)]
            )

    asyncio.run(main())
    counted = op.statistics()
    assert (counted.objects, counted.requests, counted.bytes) == (80, 80, 80 * len(BODY))
    assert not op._shared
    assert threading.active_count() >= 1


async def test_the_type_of_a_stage() -> None:
    from typing import assert_type

    builder = PipelineBuilder().add_source(["https://host/a"]).pipe(fetch, concurrency=2)
    assert_type(builder, PipelineBuilder[bytes])
    builder.build()
    for root in (Path("."), Path("..")):
        files = PipelineBuilder().add_source(list_files(root, "*.py")).pipe(read_file)
        assert_type(files, PipelineBuilder[bytes])
        files.build()
    either = PipelineBuilder().add_source(list_files(".", "*.py"))
    assert_type(either, PipelineBuilder[str])
    either.build()


def test_without_the_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ImportError, match=r'pip install "spdl-async\[storage\]"'):
        asyncio.run(Fetch()("http://127.0.0.1:9/x"))
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ImportError, match=r'pip install "spdl-async\[storage\]"'):
        asyncio.run(Fetch()("s3://bucket/x"))
