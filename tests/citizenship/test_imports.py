"""Contract 23: what importing the package does, and what it works without."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

HEAVY = ("torch", "numpy", "PIL", "simplejpeg", "uvloop", "aiofiles", "multiprocessing", "ssl")


def run(body: str, *options: str) -> str:
    """Run a script in a fresh interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def test_import_loads_nothing_heavy() -> None:
    """Contract 23: no torch, and nothing else that takes long, so that 150 ms are never near."""
    loaded = run(
        """
        import asyncio, concurrent.futures
        import sys
        before = set(sys.modules)
        import spdl_async
        print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
        """
    ).split()
    assert not set(loaded) & (set(HEAVY) - {"ssl", "multiprocessing"}), loaded
    assert len(loaded) < 60, loaded


def test_the_engine_is_loaded_when_a_pipeline_is_built_and_nothing_when_it_runs() -> None:
    """Contract 23: half of the package would be half of the time; K7: and not before the first item."""
    printed = run(
        """
        import sys
        from spdl_async import PipelineBuilder
        ours = lambda: {name for name in sys.modules if name.startswith("spdl_async.")}
        imported = ours()
        pipeline = PipelineBuilder().add_source(range(9)).pipe(str).aggregate(2).build()
        built = ours()
        assert len(list(pipeline)) == 5
        print(sorted(n for n in imported if "._runtime." in n), "spdl_async._runtime.engine" in built)
        print(sorted(ours() - built))
        """
    )
    inside_ops = [f"spdl_async._runtime.{name}" for name in ("cancelled", "native", "telling")]
    assert printed == f"{inside_ops} True\n[]\n"


def test_building_and_running_load_nothing_heavy_either() -> None:
    loaded = run(
        """
        import sys
        from spdl_async import PipelineBuilder
        pipeline = PipelineBuilder().add_source(range(9)).pipe(str, concurrency=2).aggregate(2)
        assert len(list(pipeline.build())) == 5
        print(*sys.modules)
        """
    ).split()
    assert not set(loaded) & {"torch", "numpy", "PIL", "simplejpeg", "aiofiles"}


def test_import_starts_nothing() -> None:
    """Contract 20 and 23: no thread, no loop, no policy, no handler, no atexit hook that matters."""
    run(
        """
        import asyncio, signal, sys, threading
        policy = asyncio.get_event_loop_policy()
        handlers = [signal.getsignal(number) for number in signal.valid_signals()]
        hooks = sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook
        interval = sys.getswitchinterval()
        import spdl_async
        assert threading.active_count() == 1
        assert asyncio.get_event_loop_policy() is policy
        assert handlers == [signal.getsignal(number) for number in signal.valid_signals()]
        assert hooks == (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook)
        assert sys.getswitchinterval() == interval
        """
    )


@pytest.mark.parametrize("missing", ["uvloop", "torch", "numpy", "aiofiles", "PIL"])
def test_works_without(missing: str) -> None:
    """Contract 23: without uvloop; and the core without the others."""
    run(
        f"""
        import sys
        sys.modules[{missing!r}] = None
        import asyncio
        from spdl_async import PipelineBuilder
        async def op(item):
            await asyncio.sleep(0)
            return item
        def gen(item):
            yield item
        pipeline = (
            PipelineBuilder().add_source(range(20)).pipe(op, concurrency=3)
            .pipe(lambda x: x, concurrency=2).pipe(gen).aggregate(3).disaggregate().build()
        )
        assert list(pipeline) == list(range(20))
        async def main():
            for loop in ("own", "caller"):
                async with pipeline.run(loop=loop) as run:
                    assert [item async for item in run] == list(range(20))
            assert [item async for item in pipeline] == list(range(20))
        asyncio.run(main())
        with pipeline.run_sync(inline=True) as run:
            assert list(run) == list(range(20))
        str(run.statistics()), str(pipeline.describe())
        """
    )
