"""The end of the interpreter, and many passes in one process: contract 16; A7, A9, L10."""

from __future__ import annotations

import pytest
from children import Finished, run_script, run_scripts

from spdl_async import PipelineBuilder, RunStateError

STUCK = """
def stuck(item):
    if item == 1:
        entered.set()
        threading.Event().wait(60)
    return item
entered = threading.Event()
pipeline = PipelineBuilder().add_source(["a", "b"]).pipe({"a": 0, "b": 1}).pipe(stuck, name="culprit").build()
"""

SYNC_BREAK = """
for item in pipeline:
    entered.wait()
    break
say("LEAVING")
"""
ASYNC_BREAK = """
async def main():
    async for item in pipeline:
        await asyncio.to_thread(entered.wait)
        break
asyncio.run(main())
say("LEAVING")
"""
CALLERS_LOOP = """
async def main():
    run = pipeline.run(loop="caller")
    await run.__aenter__()
    await anext(run)
    await asyncio.to_thread(entered.wait)
    return run
run = asyncio.run(main())
say("LEAVING")
"""
HELD = """
iterator = iter(pipeline)
next(iterator)
entered.wait()
say("LEAVING")
"""


ENDINGS = {
    "for": SYNC_BREAK,
    "async for": ASYNC_BREAK,
    "open run": CALLERS_LOOP,
    "held": HELD,
}


SEVERAL = """
entered = threading.Semaphore(0)
def stuck(item):
    entered.release()
    threading.Event().wait(60)
pipeline = PipelineBuilder().add_source(range(9)).pipe(stuck, concurrency=2).build()
runs = [pipeline.run_sync() for _ in range(5)]
for run in runs:
    run.__enter__()
for _ in range(10):
    entered.acquire()
say("LEAVING")
"""
BLOCKED_SOURCE = """
import queue
numbers = queue.SimpleQueue()
numbers.put(0)
asked_again = threading.Event()
def source():
    yield numbers.get()
    asked_again.set()
    yield numbers.get()
pipeline = PipelineBuilder().add_source(source, name="the queue").pipe(str).build()
for item in pipeline:
    asked_again.wait()
    break
say("LEAVING")
"""


@pytest.fixture(scope="module")
def exits() -> dict[str, Finished]:
    """Run all the scripts that take their five seconds to end, at once."""
    scripts = {name: STUCK + ending for name, ending in ENDINGS.items()}
    return run_scripts({**scripts, "several": SEVERAL, "source": BLOCKED_SOURCE}, options=())


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_stuck_thread_holds_up_the_exit_for_a_bounded_time(
    ending: str, exits: dict[str, Finished]
) -> None:
    """A7, contract 16: at most 5 s; the log names stage, item and stack."""
    finished = exits[ending]
    assert finished.status == 0, finished.err
    assert finished.seconds < 15
    assert "culprit" in finished.err
    assert "'b'" in finished.err
    assert "in stuck" in finished.err
    finished.assert_quiet()


@pytest.mark.slow
def test_several_stuck_runs_share_the_time(exits: dict[str, Finished]) -> None:
    """A7, contract 16: 5 s in all, not each."""
    finished = exits["several"]
    assert finished.status == 0, finished.err
    assert finished.seconds < 15
    finished.assert_quiet()


@pytest.mark.slow
def test_a_source_blocked_for_ever_is_let_go(exits: dict[str, Finished]) -> None:
    """Contract 16, A7: a blocking source, too, after a bounded time, and it is named."""
    finished = exits["source"]
    assert finished.status == 0, finished.err
    assert finished.seconds < 15
    assert "the queue" in finished.err
    finished.assert_quiet()


OPEN_SYNC = """
run = pipeline.run_sync()
run.__enter__()
next(run)
"""
OPEN_OWN = """
async def main():
    global run
    run = pipeline.run(loop="own")
    await run.__aenter__()
    await anext(run)
asyncio.run(main())
"""
OPEN_CALLER = OPEN_OWN.replace('"own"', '"caller"')
OPEN_SHORT = """
iterator = iter(pipeline)
next(iterator)
"""
OPEN_ASYNC_SHORT = """
async def main():
    global iterator
    iterator = aiter(pipeline)
    await anext(iterator)
asyncio.run(main())
"""
LOOP_NEVER_CLOSED = """
loop = asyncio.new_event_loop()
async def main():
    global iterator
    iterator = aiter(pipeline)
    await anext(iterator)
loop.run_until_complete(main())
"""
SOURCES = {
    "sync": "source = itertools.count",
    "async": """
async def source():
    for number in itertools.count():
        await asyncio.sleep(0)
        yield number
""",
}


@pytest.mark.parametrize("source", ["sync", "async"])
@pytest.mark.parametrize(
    "form",
    [OPEN_SYNC, OPEN_OWN, OPEN_CALLER, OPEN_SHORT, OPEN_ASYNC_SHORT, LOOP_NEVER_CLOSED],
    ids=["sync", "own", "caller", "short", "async short", "loop never closed"],
)
def test_runs_left_open_in_globals(source: str, form: str) -> None:
    """Contract 16: the exit neither hangs nor crashes, and says nothing."""
    finished = run_script(
        SOURCES[source]
        + """
def generator(item):
    yield item
    yield item
pipeline = (
    PipelineBuilder().add_source(source).pipe(lambda x: x, concurrency=2).pipe(generator)
    .aggregate(2).build()
)
"""
        + form
        + 'say("LEAVING")',
        options=(),
    )
    assert finished.status == 0, finished.err
    quiet = [line for line in finished.err.splitlines() if "Task was destroyed" not in line]
    if form is not LOOP_NEVER_CLOSED:  # there asyncio itself complains of what the user left
        assert not quiet, finished.err
    assert "Fatal" not in finished.err
    assert finished.seconds < 8


@pytest.mark.slow
@pytest.mark.parametrize("face", ["for", "async for"])
def test_five_hundred_epochs_and_five_hundred_builds(face: str) -> None:
    """A9: threads, descriptors and memory stay flat."""
    finished = run_script(
        f"""
        import resource
        face = {face!r}

        def build():
            return (
                PipelineBuilder().add_source(range(20)).pipe(lambda x: x, concurrency=2)
                .aggregate(4).pipe(lambda x: x).build()
            )

        def epoch(pipeline):
            if face == "for":
                assert len(list(pipeline)) == 5
            else:
                async def main():
                    assert len([batch async for batch in pipeline]) == 5
                asyncio.run(main())

        def look():
            gc.collect()
            with open("/proc/self/statm") as statm:
                pages = int(statm.read().split()[1])
            return threading.active_count(), len(os.listdir("/proc/self/fd")), pages * 4096

        for _ in range(50):
            epoch(build())
        threads, files, memory = look()
        pipeline = build()
        for _ in range(500 if face == 'for' else 150):
            epoch(pipeline)
        after = look()
        for _ in range(500 if face == 'for' else 150):
            epoch(build())
        end = look()
        for now in after, end:
            assert now[0] == threads, (now, threads)
            assert now[1] == files, (now, files)
            assert now[2] - memory < 8e6, (now, memory)
        """
    )
    assert finished.status == 0, finished.err
    finished.assert_quiet()


NOTEBOOK = """
import ast, code, inspect
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
space = {"PipelineBuilder": PipelineBuilder, "asyncio": asyncio, "say": say}

async def cell(text):
    compiled = compile(text, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(compiled, space)
    if inspect.isawaitable(made):
        await made

BUILD = '''
pipeline = PipelineBuilder().add_source(range(50)).pipe(lambda x: x + 1, concurrency=2).build()
'''
async def session():
    for _ in range(2):  # re-running a cell
        await cell(BUILD)
        await cell("a = []\\nasync for item in pipeline:\\n    a.append(item)")
        await cell("b = []\\nfor item in pipeline:\\n    b.append(item)")
        await cell("c = list(pipeline)")
        await cell("async for item in pipeline:\\n    break")
        await cell("for item in pipeline:\\n    break")
        await cell("iterator = iter(pipeline)\\nfirst = next(iterator)")
    assert space["a"] == space["b"] == space["c"] == list(range(1, 51))
    space.pop("iterator")
    for _ in range(500):
        gc.collect()
        await asyncio.sleep(0.01)
        if not [t for t in threading.enumerate() if t.name.startswith("spdl_async")]:
            break
    else:
        raise AssertionError(threading.enumerate())
    loop.stop()

task = loop.create_task(session())
loop.run_forever()
task.result()
"""


def test_cells_of_a_notebook() -> None:
    """L10: a running loop; `async for` at top level uses it, `for` and list() do not nest in it."""
    finished = run_script(NOTEBOOK)
    assert finished.status == 0, finished.err
    finished.assert_quiet()


async def test_the_ordinary_face_inside_a_coroutine() -> None:
    """L10: it blocks the loop, as ordinary code does, and works."""

    async def op(item: int) -> int:
        return item + 1

    pipeline = PipelineBuilder().add_source(range(9)).pipe(op).pipe(str, concurrency=2).build()
    expected = [str(number) for number in range(1, 10)]
    assert list(pipeline) == expected
    with pipeline.run_sync() as run:
        assert list(run) == expected
    with pytest.raises(RunStateError, match="loop"), pipeline.run_sync(inline=True) as run:
        next(run)
    assert [item async for item in pipeline] == expected
