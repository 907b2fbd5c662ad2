"""Runs that end in odd ways: nested, in threads, by signals, from inside; A11, A12, J4, L7."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
from children import PRELUDE, run_script, run_scripts
from witness import PATIENCE, entered, our_threads, silence, wait_for_silence

from spdl_async import PipelineBuilder, PipelineRun, RunStateError, SyncPipelineRun
from spdl_async._runtime.bridge import Handover, Sink
from spdl_async._runtime.ticket import Item, Ledger

Loop = Literal["caller", "own"]
both_loops = pytest.mark.parametrize("loop", ["caller", "own"])

# The interpreter's end

OPEN = {
    "nested in an op": """
inner = PipelineBuilder().add_source(itertools.count).pipe(str, concurrency=2).build()
kept = []
def op(item):
    iterator = iter(inner)
    kept.append(iterator)
    return next(iterator)
outer = PipelineBuilder().add_source(itertools.count).pipe(op, concurrency=2).build()
run = outer.run_sync()
run.__enter__()
next(run)
""",
    "nested as a source": """
async def numbers():
    for number in itertools.count():
        await asyncio.sleep(0)
        yield number
inner = PipelineBuilder().add_source(numbers).pipe(str).build()
async def source():
    async for item in inner:
        yield item
outer = PipelineBuilder().add_source(source).pipe(str, concurrency=2).build()
iterator = iter(outer)
next(iterator)
""",
    "a blocked consumer in a thread": """
never = PipelineBuilder().add_source([1]).pipe(lambda x: threading.Event().wait(0.2)).pipe(
    lambda x: gate.wait(3)).build()
gate = threading.Event()
waiting = threading.Event()
def consume():
    waiting.set()
    list(never)
threading.Thread(target=consume, daemon=True).start()
waiting.wait()
""",
    "open in a thread that has ended": """
pipeline = PipelineBuilder().add_source(itertools.count).pipe(str, concurrency=2).build()
def begin():
    global run
    run = pipeline.run_sync()
    run.__enter__()
    next(run)
thread = threading.Thread(target=begin)
thread.start()
thread.join()
""",
    "a loop in a thread that goes on": """
pipeline = PipelineBuilder().add_source(itertools.count).pipe(str, concurrency=2).build()
flowing = threading.Event()
async def main():
    async with pipeline.run(loop="caller") as run:
        async for item in run:
            flowing.set()
threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
flowing.wait()
""",
    "a lifespan": """
class Op:
    async def __aenter__(self): say("ENTER")
    async def __aexit__(self, *of_block): say("LEAVE")
    async def __call__(self, item): return item
pipeline = PipelineBuilder().add_source(itertools.count).pipe(Op()).build()
run = pipeline.run_sync()
run.__enter__()
next(run)
""",
}


@pytest.mark.slow
def test_runs_left_open_in_every_state() -> None:
    """Contract 16: the exit neither hangs nor crashes, and nothing is told that nobody asked for."""
    finished = run_scripts(
        {name: body + 'say("LEAVING")' for name, body in OPEN.items()}, options=()
    )
    for name, script in finished.items():
        assert script.status == 0, (name, script.err)
        script.assert_quiet()
        assert script.seconds < 12, name
    assert finished["a lifespan"].out.split() == ["ENTER", "LEAVING", "LEAVE"]


SIGTERM = """
import signal
entered = threading.Event()
left = []
class Session:
    async def __aenter__(self): pass
    async def __aexit__(self, *of_block): left.append("session")
    async def __call__(self, item):
        await asyncio.sleep(0)
        return item
def op(item):
    entered.set()
    time.sleep(0.001)
    return item
pipeline = PipelineBuilder().add_source(itertools.count).pipe(Session()).pipe(op, concurrency=2).build()

async def main():
    loop = asyncio.get_running_loop()
    run = pipeline.run(loop=LOOP)
    closed = []

    async def stop():
        await run.aclose()
        closed.append(True)

    def on_term():
        stopping.append(loop.create_task(stop()))

    stopping = []
    loop.add_signal_handler(signal.SIGTERM, on_term)
    await run.__aenter__()
    try:
        async for item in run:
            if entered.is_set() and not stopping:
                os.kill(os.getpid(), signal.SIGTERM)
    except Exception as error:
        assert "closed" in str(error), error
    await stopping[0]
    assert closed and left == ["session"]
    assert not [t for t in threading.enumerate() if t.name.startswith("spdl_async")]
    say("STOPPED")
asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["caller", "own"])
def test_a_sigterm_handler_that_awaits_aclose(loop: str) -> None:
    """The user's own handler; contract 20: we have none."""
    finished = run_script(f"LOOP = {loop!r}\n" + SIGTERM)
    assert finished.status == 0, finished.err
    assert "STOPPED" in finished.out
    finished.assert_quiet()


def test_a_loop_closed_under_a_run() -> None:
    """Contract 14: closed by force, with tasks pending; later calls say what is wrong or do nothing."""
    finished = run_script(
        """
        import logging
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it complains of the pending tasks
        pipeline = PipelineBuilder().add_source(itertools.count).pipe(str, concurrency=2).build()
        loop = asyncio.new_event_loop()
        run = pipeline.run(loop="caller")
        async def begin():
            await run.__aenter__()
            return await anext(run)
        assert loop.run_until_complete(begin()) == "0"
        loop.close()
        async def close():
            try:
                await run.aclose()
            except TimeoutError as error:
                say(type(error).__name__)
        run._order = __import__("dataclasses").replace(run._order, shutdown_timeout=0.1)
        asyncio.run(close())
        assert list(itertools.islice(pipeline, 3)) == ["0", "1", "2"]
        say("LEAVING")
        """,
        options=(),
    )
    assert finished.status == 0, finished.err
    assert finished.seconds < 10
    assert "Fatal" not in finished.err


# From inside a stage


@both_loops
@pytest.mark.parametrize("where", ["async op", "async source", "lifespan"])
async def test_aclose_from_inside_a_stage(where: str, loop: Loop) -> None:
    """It asks for the stop and does not wait for itself; the consumer is told."""
    run: PipelineRun[int]
    closed: list[str] = []

    async def close() -> None:
        await run.aclose()
        closed.append(where)

    class Op:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *of_block: object) -> None:
            if where == "lifespan":
                await close()

        async def __call__(self, item: int) -> int:
            if item == 2 and where == "async op":
                await close()
            return item

    async def source() -> AsyncIterator[int]:
        for number in range(5):
            if number == 2 and where == "async source":
                await close()
            yield number

    run = PipelineBuilder().add_source(source).pipe(Op()).build().run(loop=loop)
    async with run:
        with contextlib.suppress(RunStateError):
            async for _ in run:
                pass
        if where == "lifespan":
            await run.aclose()
    assert closed == [where]
    await silence()


@pytest.mark.parametrize("where", ["op", "source", "async op"])
def test_close_from_inside_a_stage(where: str) -> None:
    """In threads of the run, and on its loop."""
    run: SyncPipelineRun[int]
    closed: list[str] = []

    def close() -> None:
        run.close()
        closed.append(where)

    def op(item: int) -> int:
        if item == 2 and where == "op":
            close()
        return item

    async def aop(item: int) -> int:
        if item == 2 and where == "async op":
            close()
        return item

    def source() -> Any:
        for number in range(5):
            if number == 2 and where == "source":
                close()
            yield number

    builder: PipelineBuilder[int] = PipelineBuilder().add_source(source)
    run = builder.pipe(op).pipe(aop).build().run_sync()
    with run, contextlib.suppress(RunStateError):
        for _ in run:
            pass
    assert closed == [where]
    wait_for_silence()


async def test_aclose_of_another_run_from_inside_a_stage() -> None:
    """That one is waited for, as everywhere."""
    inner = PipelineBuilder().add_source(range(10**6)).pipe(lambda x: x).build()
    names: list[list[str]] = []

    async def op(item: int) -> int:
        async with inner.run(loop="own") as run:
            await anext(run)
        names.append([name for name in our_threads() if "inner" in name])
        return item

    async for _ in PipelineBuilder().add_source(range(3)).pipe(op).build():
        pass
    assert names == [[], [], []]


# A12: clients over a loopback server


class Client:
    """Keeps one connection, from its lifespan on, as sessions of HTTP libraries do."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.open = 0

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[Any, None]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.open += 1
        turn = asyncio.Lock()

        async def get(item: int) -> str:
            async with turn:
                writer.write(f"GET /{item} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                await writer.drain()
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split()[0])
                return (await reader.readexactly(length)).decode()

        try:
            yield get
        finally:
            writer.close()
            await writer.wait_closed()
            self.open -= 1

    async def __call__(self, item: int) -> str:
        raise AssertionError("the lifespan gives the function that is called")


class Server:
    """Answers GET /n with n."""

    def __init__(self) -> None:
        self.connections = 0
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = head.split()[1][1:]
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # of the latter, at the end of its loop, Python 3.11 would complain
        finally:
            writer.close()
            self.connections -= 1

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield


async def settled(server: Server) -> None:
    """Wait until the server has seen that clients have gone."""
    for _ in range(5_000):
        if not server.connections:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{server.connections} connections are left")


@both_loops
async def test_clients_are_closed_with_the_run(loop: Loop) -> None:
    """A12: one batch is taken, then the block is left."""
    server = Server()
    async with server.running():
        client = Client(server.port)
        pipeline = PipelineBuilder().add_source(range(10**6)).pipe(client, concurrency=8)
        async with pipeline.aggregate(4).build().run(loop=loop) as run:
            assert await anext(run) == ["0", "1", "2", "3"]
            assert client.open == 1
        assert client.open == 0
        await settled(server)


def test_one_sample_then_the_end_of_main() -> None:
    """A12: nothing keeps the script alive, no client complains that it was not closed."""
    here = Path(__file__)
    finished = run_script(
        f"""
        sys.path.insert(0, {str(here.parent)!r})
        from {here.stem} import Client, Server

        async def main():
            server = Server()
            async with server.running():
                pipeline = PipelineBuilder().add_source(itertools.count).pipe(Client(server.port)).build()
                async for item in pipeline:
                    assert item == "0"
                    break
        asyncio.run(main())
        say("LEAVING")
        """
    )
    assert finished.status == 0, finished.err
    assert finished.seconds < 5
    finished.assert_quiet()
    assert not finished.err


# L7: a pipeline for each request


@pytest.mark.parametrize("runner", ["asyncio", "uvloop"])
def test_five_hundred_requests_whose_clients_leave(runner: str) -> None:
    """L7, first form: each run is cancelled after its first chunk; slots, locks, tasks are back."""
    run = asyncio.run if runner == "asyncio" else pytest.importorskip("uvloop").run
    run(five_hundred_requests())


async def five_hundred_requests() -> None:
    held = asyncio.Semaphore(8)
    sessions = 0

    class Session:
        async def __aenter__(self) -> None:
            nonlocal sessions
            sessions += 1

        async def __aexit__(self, *of_block: object) -> None:
            nonlocal sessions
            sessions -= 1

        async def __call__(self, item: int) -> int:
            async with held:
                await asyncio.sleep(0)
                return item

    pipeline = (
        PipelineBuilder()
        .add_source(range(10**6))
        .pipe(Session(), concurrency=4)
        .pipe(lambda x: x + 1, concurrency=2)
        .aggregate(3)
        .add_sink(1)
        .build()
    )

    async def handle(request: int) -> None:
        first = asyncio.Event()

        async def respond() -> None:
            async with pipeline.run(loop="caller") as run:
                async for chunk in run:
                    assert chunk[0] % 3 == 1
                    first.set()
                    await asyncio.Event().wait()  # stands for a client that takes nothing more

        response = asyncio.create_task(respond(), name=f"request {request}")
        await first.wait()
        response.cancel()
        await asyncio.wait([response])
        assert response.cancelled()

    for begin in range(0, 500, 10):
        async with asyncio.TaskGroup() as group:
            for request in range(begin, begin + 10):
                group.create_task(handle(request))
    assert sessions == 0
    assert not held.locked()
    assert held._value == 8
    await silence()


# A11, J4: nothing of a run is anywhere but in its process


def shared_memory() -> set[str]:
    """Return what there is of shared memory, but for the locks of process pools in tests beside this one."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm here")
def test_nothing_is_left_of_a_run_that_was_killed() -> None:
    """A11, J4: no shared memory, no files: the next run starts at once beside whatever was killed."""
    before = shared_memory()
    body = """
pipeline = (
    PipelineBuilder().add_source(itertools.count).pipe(lambda x: bytes(10_000), concurrency=4)
    .aggregate(8).build(name="the same name")
)
with pipeline.run_sync() as run:
    for number, batch in enumerate(run):
        if number == 20:
            say("FLOWING")
        if number == LAST:
            break
"""
    command = [sys.executable, "-c", PRELUDE + "LAST = None\n" + body]
    killed = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in killed:
        assert process.stdout is not None
        assert process.stdout.readline() == "FLOWING\n"
    assert shared_memory() <= before
    killed[0].send_signal(signal.SIGKILL)
    finished = run_script("LAST = 50\n" + body)
    assert finished.status == 0, finished.err
    killed[1].kill()
    for process in killed:
        process.wait(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()
    assert shared_memory() <= before


# Garbage collection at any time


def test_the_collector_in_a_tight_loop() -> None:
    """L13: nothing that is at work is collected."""
    over = threading.Event()

    def collect() -> None:
        import gc

        while not over.is_set():
            gc.collect(0)

    async def aop(item: int) -> int:
        await asyncio.sleep(0)
        return item

    pipeline = (
        PipelineBuilder().add_source(iter(range(3_000))).pipe(aop, concurrency=4).pipe(abs).build()
    )
    collector = threading.Thread(target=collect)
    collector.start()
    try:
        assert list(pipeline) == list(range(3_000))
    finally:
        over.set()
        collector.join()


@both_loops
async def test_entered_events_are_seen(loop: Loop) -> None:
    """A run that is closed by another task while its consumer is elsewhere tells that consumer."""
    started = threading.Event()

    def op(item: int) -> int:
        started.set()
        return item

    run = PipelineBuilder().add_source(range(9)).pipe(op).build().run(loop=loop)
    async with run:
        await entered(started)
        await asyncio.gather(run.aclose(), run.aclose(), asyncio.create_task(run.aclose()))
        with pytest.raises(RunStateError, match="closed"):
            await anext(run)
    assert not our_threads()


async def test_a_closed_hand_over_takes_and_gives_nothing() -> None:
    """What an engine makes while its run is being closed is not taken for the next result."""
    handover = Handover(2)
    asked: list[str] = []
    sink = Sink(asyncio.get_running_loop(), handover, Ledger(), lambda _: None)
    sink.on_demand = lambda: asked.append("more")
    sink.push([Item(value, value, value) for value in range(3)])
    handover.close()
    sink.push([Item(3, 3, 3)])
    with pytest.raises(RunStateError):
        handover.take()
    assert sink.empty
    assert not asked


def test_several_threads_settle_at_once() -> None:
    """After the engine's end its loop and the consumer may both account for what was taken."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            handover, ledger = Handover(1), Ledger()
            handover.taken.extend(Item(number, number, number) for number in range(2_000))
            with ThreadPoolExecutor(4) as pool:
                for settled in [pool.submit(handover.settle, ledger) for _ in range(4)]:
                    settled.result()
            assert ledger.closed == 2_000
    finally:
        sys.setswitchinterval(before)
