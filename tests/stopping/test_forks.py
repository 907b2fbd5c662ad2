"""Forked children: contract 19; B11, B12."""

from __future__ import annotations

import os
import sys

import pytest
from children import run_script

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]

# fork() of a process with threads is what is tested; Python 3.12 and later warn of it.
QUIET = ("-W", "error::ResourceWarning", "-W", "ignore::DeprecationWarning")

PRELUDE = """
import signal
from spdl_async import RunStateError

# faulthandler's watchdog is a thread, for which a child would wait at its end for ever.
faulthandler.cancel_dump_traceback_later()
signal.alarm(20)

def build():
    return PipelineBuilder().add_source(itertools.count).pipe(str, concurrency=2).build()

def build_async():
    return PipelineBuilder().add_source(closing).pipe(str).build()

parent = os.getpid()

async def closing():
    try:
        for number in itertools.count():
            await asyncio.sleep(0)
            yield number
    finally:
        assert os.getpid() == parent, "a generator of the parent was closed in a child"
        say("CLOSED")

def refused(what, *words):
    try:
        what()
    except RunStateError as error:
        for word in (str(parent), str(os.getpid()), *words):
            assert word in str(error), (word, error)
    else:
        raise AssertionError("no error")

def in_child(work):
    say("FORK")
    child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            work()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        sys.exit(0)  # through atexit, finalizers and all
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
"""


def check(body: str, *, options: tuple[str, ...] = QUIET) -> str:
    finished = run_script(
        PRELUDE + body + '\nif os.getpid() == parent: say("END")', options=options
    )
    assert finished.status == 0, finished.err
    assert finished.out.endswith("END\n"), (finished.out, finished.err)
    finished.assert_quiet()
    assert not finished.err
    return finished.out


def test_a_run_of_the_parent() -> None:
    """Contract 19, B11: an error at once that names both processes; the parent goes on."""
    check(
        """
        with build().run_sync() as run, build_async().run_sync() as other:
            next(run), next(other)
            in_child(lambda: refused(lambda: next(run), "belongs to process"))
            in_child(lambda: refused(run.close, "belongs to process"))
            in_child(lambda: refused(lambda: next(other), "belongs to process"))
            in_child(lambda: refused(other.close))
            in_child(gc.collect)
            assert next(run) == next(other) == "1"
        """.replace("\n        ", "\n")
    )


def test_the_body_s_error_stays_the_error_in_a_child() -> None:
    """Contract 19 and 6: that the block cannot be left there is a note on it, for epochs too."""
    check(
        """
def left_by_an_error(enter):
    child = 0
    try:
        with enter() as inside:
            next(iter(inside))
            say("FORK")
            child = os.fork()
            if not child:
                raise LookupError("the body's")
    except LookupError as error:
        assert "belong" in error.__notes__[0], error.__notes__
        os._exit(0)
    finally:
        if os.getpid() != parent:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0

async def left_by_an_error_async(enter):
    child = 0
    try:
        async with enter() as inside:
            await anext(aiter(inside))
            say("FORK")
            child = os.fork()
            if not child:
                raise LookupError("the body's")
    except LookupError as error:
        assert "belong" in error.__notes__[0], error.__notes__
        os._exit(0)
    finally:
        if os.getpid() != parent:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0

left_by_an_error(lambda: build().run_sync())
for _ in range(20):  # the fork may come before the loop's thread has begun
    left_by_an_error(lambda: build().epochs(3))
asyncio.run(left_by_an_error_async(lambda: build().run()))
asyncio.run(left_by_an_error_async(lambda: build().epochs(3)))
"""
    )


def test_a_short_form_of_the_parent() -> None:
    """Contract 19: also when it is dropped in the child."""
    check(
        """
iterator = iter(build())
next(iterator)
def drop():
    global iterator
    refused(lambda: next(iterator))
    del iterator
    gc.collect()
in_child(drop)
assert next(iterator) == "1"
"""
    )


def test_a_pipeline_of_the_parent_and_a_new_one() -> None:
    """Contract 19, B11: what was built there is refused in every form; a new one works."""
    check(
        """
pipeline = build()
entered_there = pipeline.run_sync()
next(iter(pipeline))

async def as_async():
    async with pipeline.run():
        pass

async def short():
    async for _ in pipeline:
        pass

async def new():
    async with build().run(loop="caller") as run:
        assert await anext(run) == "0"
    async with build().run(loop="own") as run:
        assert await anext(run) == "0"

def child():
    refused(lambda: list(pipeline), "built in process")
    refused(lambda: pipeline.run_sync().__enter__(), "built in process")
    refused(lambda: pipeline.run_sync(inline=True).__enter__(), "built in process")
    refused(lambda: entered_there.__enter__(), "built in process")
    refused(lambda: asyncio.run(as_async()), "built in process")
    refused(lambda: asyncio.run(short()), "built in process")
    asyncio.run(new())
    for item in build():
        break
    with build().run_sync() as run:
        assert [next(run) for _ in range(3)] == ["0", "1", "2"]

in_child(child)
in_child(child)
"""
    )


def test_a_fork_inside_a_coroutine() -> None:
    """Contract 19: the caller's loop is the parent's too."""
    check(
        """
async def main():
    async with build_async().run(loop="caller") as run:
        await anext(run)
        say("FORK")
        child = os.fork()
        if not child:
            try:
                await anext(run)
            except RunStateError as error:
                assert str(parent) in str(error)
                list(itertools.islice(build(), 3))
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert await anext(run) == "1"
asyncio.run(main())
"""
    )


def test_the_body_of_a_child_ends_by_itself() -> None:
    """Contract 6: leaving the block with an exception keeps that; without one the misuse is told."""
    check(
        """
def by_exit():
    with inherited:
        sys.exit(0)
def falls_through():
    with inherited:
        pass

def child(leave, kind):
    class Inherited:
        def __enter__(self): pass
        def __exit__(self, *of_block): return run.__exit__(*of_block)
    global inherited
    inherited = Inherited()
    try:
        leave()
    except kind as error:
        noted = [*getattr(error, "__notes__", ()), str(error)]
        assert any(str(parent) in text for text in noted), noted
    else:
        raise AssertionError("no error")

with build().run_sync() as run:
    next(run)
    in_child(lambda: child(by_exit, SystemExit))
    in_child(lambda: child(falls_through, RunStateError))
"""
    )


def test_the_fork_start_method_of_multiprocessing() -> None:
    """B11: as a worker does it, with a pipeline of the parent at work."""
    check(
        """
import multiprocessing
context = multiprocessing.get_context("fork")

def work(queue):
    refused(lambda: next(run))
    refused(lambda: list(pipeline))
    queue.put(list(itertools.islice(build(), 3)))

pipeline = build()
with pipeline.run_sync() as run:
    next(run)
    queue = context.SimpleQueue()
    workers = [context.Process(target=work, args=(queue,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for _ in workers:
        assert queue.get() == ["0", "1", "2"]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    next(run)
"""
    )


@pytest.mark.torch
@pytest.mark.slow
def test_a_torch_data_loader_beside_a_live_pipeline() -> None:
    """B11: its worker processes are forks; a pipeline inside them works too."""
    check(
        """
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Squares(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return index * index

class Piped(IterableDataset):
    def __iter__(self):
        yield from PipelineBuilder().add_source(range(8)).pipe(lambda x: x + 1, concurrency=2).build()

with build().run_sync() as run:
    next(run)
    for _ in range(2):
        loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork")
        assert sum(len(batch) for batch in loader) == 16
        loader = DataLoader(Piped(), batch_size=4, num_workers=2, multiprocessing_context="fork")
        assert sorted(x for batch in loader for x in batch.tolist()) == sorted([*range(1, 9)] * 2)
        next(run)
    next(run)
"""
    )


@pytest.mark.skipif(sys.version_info < (3, 12), reason="older Pythons do not warn of forks")
def test_the_library_never_forks() -> None:
    """B12: with warnings of forks as errors everything works."""
    check(
        """
async def main():
    for loop in "caller", "own":
        async with build_async().run(loop=loop) as run:
            await anext(run)
    async for _ in build():
        break
asyncio.run(main())
for _ in build():
    break
with build().run_sync() as run, build_async().run_sync(inline=True) as other:
    next(run), next(other)
""",
        options=("-W", "error::ResourceWarning", "-W", "error::DeprecationWarning"),
    )
