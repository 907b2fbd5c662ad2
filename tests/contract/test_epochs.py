"""``pipeline.epochs()``: passes in a row, without a gap and never more than two; contract 18."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from faces import ENGINE_FACES, PATIENCE, Crowd, Face, Gate, drive, run_loop

from spdl_async import (
    BuildError,
    Merge,
    Pipeline,
    PipelineBuilder,
    PipelineRun,
    Retry,
    SyncPipelineRun,
    Zip,
    cancelled,
)

FACES = (Face.CALLER, Face.CALLER_UVLOOP, Face.OWN, Face.SYNC)
AnyRun = PipelineRun[Any] | SyncPipelineRun[Any]


def loop_of(face: Face) -> Any:
    return "own" if face is Face.OWN else "caller"


def every_epoch(
    pipeline: Pipeline[Any],
    n: int,
    face: Face,
    *,
    take: int | None = None,
    overlap: bool = True,
    after: Callable[[AnyRun], None] = lambda run: None,
) -> list[tuple[int, list[Any]]]:
    """Return (epoch, results) of each epoch; of each take all results, or the first few."""
    found: list[tuple[int, list[Any]]] = []
    if face is Face.SYNC:
        with pipeline.epochs(n, overlap=overlap) as epochs:
            for run in epochs:
                got: list[Any] = []
                while take is None or len(got) < take:
                    try:
                        got.append(next(run))
                    except StopIteration:
                        break
                found.append((run.epoch, got))
                after(run)
        return found

    async def main() -> None:
        async with pipeline.epochs(n, overlap=overlap, loop=loop_of(face)) as epochs:
            async for run in epochs:
                got: list[Any] = []
                while take is None or len(got) < take:
                    try:
                        got.append(await anext(run))
                    except StopAsyncIteration:
                        break
                found.append((run.epoch, got))
                after(run)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_loop(main(), face)
    return found


def numbers(count: int) -> Callable[[], Iterator[int]]:
    def source() -> Iterator[int]:
        yield from range(count)

    return source


def anumbers(count: int) -> Callable[[], AsyncIterator[int]]:
    async def source() -> AsyncIterator[int]:
        for number in range(count):
            yield number

    return source


async def aident(item: int) -> int:
    return item


def twice(item: int) -> Iterator[int]:
    yield item
    yield item


SHAPES: dict[str, PipelineBuilder[Any]] = {
    "no stage": PipelineBuilder().add_source(range(9)),
    "generator source": PipelineBuilder().add_source(numbers(9)),
    "async source": PipelineBuilder().add_source(anumbers(9)),
    "threads": PipelineBuilder().add_source(numbers(9)).pipe(int, concurrency=3),
    "one thread": PipelineBuilder().add_source(numbers(9)).pipe(int).pipe(int),
    "loop": PipelineBuilder().add_source(anumbers(9)).pipe(aident, concurrency=3),
    "one call on the loop": PipelineBuilder().add_source(range(9)).pipe(aident),
    "flow": PipelineBuilder().add_source(range(9)).pipe(twice, concurrency=2).aggregate(2),
    "batches": PipelineBuilder().add_source(range(9)).aggregate(4).pipe(tuple),
    "empty": PipelineBuilder().add_source(()).pipe(int),
}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("face", FACES)
def test_every_epoch_is_a_whole_pass(face: Face, shape: str, overlap: bool) -> None:
    pipeline = SHAPES[shape].build()
    expected = list(pipeline)
    found = every_epoch(pipeline, 4, face, overlap=overlap)
    assert found == [(epoch, expected) for epoch in (1, 2, 3, 4)]
    assert list(pipeline) == expected


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("take", [0, 1, 5])
@pytest.mark.parametrize("shape", ["no stage", "threads", "loop", "flow"])
@pytest.mark.parametrize("face", FACES)
def test_an_epoch_that_is_left_early_ends_alone(
    face: Face, shape: str, take: int, overlap: bool
) -> None:
    pipeline = SHAPES[shape].build()
    expected = list(pipeline)[:take]
    found = every_epoch(pipeline, 4, face, take=take, overlap=overlap)
    assert found == [(epoch, expected) for epoch in (1, 2, 3, 4)]


@pytest.mark.parametrize("face", FACES)
def test_statistics_and_counters_are_of_one_epoch(face: Face) -> None:
    pipeline = (
        PipelineBuilder()
        .add_source(range(10))
        .pipe(lambda x: 1 // (x % 5), on_error="skip", max_failures=2, name="op")
        .build()
    )
    seen: list[Any] = []
    every_epoch(pipeline, 3, face, after=seen.append)
    for epoch, run in enumerate(seen):
        shot = run.statistics()
        assert (shot.epoch, shot.delivered, shot.failures) == (epoch, 8, 2)
        assert [record.index for record in run.failures] == [0, 5]
        assert shot.stages[-1].items_in == 10


# What the source hears


class Told:
    """What is told the epoch, and notes what happens to it in which order."""

    def __init__(self, count: int = 3) -> None:
        self.count = count
        self.epoch = -1
        self.log: list[str] = []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.log.append(f"set {epoch}")

    def items(self) -> Iterator[int]:
        epoch = self.epoch
        self.log.append(f"begin {epoch}")
        try:
            for number in range(self.count):
                yield epoch * 100 + number
        finally:
            self.log.append(f"end {epoch}")


class Sampler(Told):
    """An iterable source."""

    def __iter__(self) -> Iterator[int]:
        return self.items()


class AsyncSampler(Told):
    """The same, read on the loop."""

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in self.items():
            yield number


class CallableSampler(Told):
    """A callable source."""

    def __call__(self) -> Iterator[int]:
        return self.items()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("kind", [Sampler, AsyncSampler, CallableSampler])
@pytest.mark.parametrize("face", FACES)
def test_the_source_hears_the_epoch_after_its_last_iteration_has_ended(
    face: Face, kind: type[Sampler | AsyncSampler | CallableSampler], overlap: bool
) -> None:
    source = kind()
    pipeline = PipelineBuilder().add_source(source).build()
    found = every_epoch(pipeline, 3, face, overlap=overlap)
    assert found == [(e, [e * 100, e * 100 + 1, e * 100 + 2]) for e in range(3)]
    assert source.log == [f"{what} {e}" for e in range(3) for what in ("set", "begin", "end")]


@pytest.mark.parametrize("face", [*FACES, Face.INLINE])
def test_plain_runs_tell_the_source_too(face: Face) -> None:
    source = Sampler(2)
    pipeline = PipelineBuilder().add_source(source).build()
    assert drive(pipeline, face).result() == [0, 1]
    assert drive(pipeline, face).result() == [100, 101]
    with pipeline.run_sync(epoch=7) as run:
        assert list(run) == [700, 701]


class Reader:
    """What the lifespan of a source gives: read in its place."""

    def __init__(self, owner: Told) -> None:
        self.owner = owner

    def __iter__(self) -> Iterator[int]:
        return self.owner.items()


class Opened(Sampler):
    """A source whose lifespan gives something else to read."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[Reader]:
        self.log.append("enter")
        yield Reader(self)


@pytest.mark.parametrize("face", [*FACES, Face.INLINE])
def test_a_source_whose_lifespan_gives_another_is_told(face: Face) -> None:
    source = Opened(2)
    pipeline = PipelineBuilder().add_source(source).build()
    assert drive(pipeline, face).result() == [0, 1]
    assert drive(pipeline, face).result() == [100, 101]
    assert source.log[:4] == ["enter", "set 0", "begin 0", "end 0"]


def test_the_source_of_an_inlined_pipeline_is_told() -> None:
    inner = PipelineBuilder().add_source(Sampler(1)).pipe(str).build()
    pipeline = PipelineBuilder().add_source(inner).pipe(int).build()
    assert [list(run) for run in pipeline.epochs(2)] == [[0], [100]]


def test_set_epoch_must_be_callable_with_a_number() -> None:
    class NoArgument:
        def set_epoch(self) -> None: ...
        def __iter__(self) -> Iterator[int]:
            return iter(())

    class Async(NoArgument):
        async def set_epoch(self, epoch: int) -> None: ...  # type: ignore[override]  # wrong on purpose

    with pytest.raises(BuildError, match="one argument, the number of the pass"):
        PipelineBuilder().add_source(NoArgument()).build()
    with pytest.raises(BuildError, match="ordinary function"):
        PipelineBuilder().add_source(Async()).build()


class BrokenInEpoch(Sampler):
    """A source whose ``set_epoch`` fails for one epoch."""

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        if epoch == 1:
            raise ValueError("no epoch 1")


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("face", FACES)
def test_a_failure_of_the_next_epoch_is_raised_there_and_the_one_after_can_be_had(
    face: Face, overlap: bool
) -> None:
    pipeline = PipelineBuilder().add_source(BrokenInEpoch()).build()
    found: list[Any] = []

    def sync() -> None:
        for run in pipeline.epochs(3, overlap=overlap):
            try:
                found.append(list(run))
            except ValueError as error:
                found.append(str(error))
                assert len(run.failures) == 1

    async def main() -> None:
        async for run in pipeline.epochs(3, overlap=overlap, loop=loop_of(face)):
            try:
                found.append([item async for item in run])
            except ValueError as error:
                found.append(str(error))
                assert len(run.failures) == 1

    sync() if face is Face.SYNC else run_loop(main(), face)
    assert found == [[0, 1, 2], "no epoch 1", [200, 201, 202]]


@pytest.mark.parametrize("face", FACES)
def test_an_epoch_that_fails_after_the_next_has_begun_leaves_that_whole(face: Face) -> None:
    source, calls = Watched(6), iter(range(1000))

    def op(item: int) -> int:
        if next(calls) == 5:
            source.crowd.wait_started(2)
            raise ValueError("the sixth call")
        return item

    pipeline = PipelineBuilder().add_source(source).pipe(op).build()
    found: list[Any] = []

    def sync() -> None:
        for run in pipeline.epochs(2):
            try:
                found.extend(run)
            except ValueError as error:
                found.append(str(error))

    async def main() -> None:
        async for run in pipeline.epochs(2, loop=loop_of(face)):
            try:
                async for item in run:
                    found.append(item)
            except ValueError as error:
                found.append(str(error))

    sync() if face is Face.SYNC else run_loop(main(), face)
    assert found == [*range(5), "the sixth call", *range(6)]


# When epochs begin, and how many are in flight


class Watched:
    """A source that counts its iterations, and tells when each begins and ends."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.crowd = Crowd()

    def __call__(self) -> Iterator[int]:
        with self.crowd:
            yield from range(self.count)


@pytest.mark.parametrize("face", FACES)
def test_the_next_epoch_begins_when_the_source_has_ended_and_not_before(face: Face) -> None:
    crowd, gate = Crowd(), Gate()

    def source() -> Iterator[int]:
        with crowd:
            yield from range(4)
            gate.wait()

    pipeline = PipelineBuilder().add_source(source).pipe(int).build()

    def sync() -> None:
        with pipeline.epochs(2) as epochs, gate.opened_at_end():
            run = next(epochs)
            assert [next(run) for _ in range(4)] == [0, 1, 2, 3]
            assert crowd.wait_settled() == 1
            gate.open()
            crowd.wait_started(2)  # nobody has asked for it
            assert list(run) == []

    async def main() -> None:
        async with pipeline.epochs(2, loop=loop_of(face)) as epochs:
            with gate.opened_at_end():
                run = await anext(epochs)
                assert [await anext(run) for _ in range(4)] == [0, 1, 2, 3]
                assert await asyncio.to_thread(crowd.wait_settled) == 1
                gate.open()
                await asyncio.to_thread(crowd.wait_started, 2)
                assert [item async for item in run] == []

    sync() if face is Face.SYNC else run_loop(main(), face)
    assert crowd.most == 1


@pytest.mark.parametrize("stop", ["all", "first"])
@pytest.mark.parametrize("face", FACES)
def test_merged_sources_have_all_ended_when_the_next_epoch_begins(
    face: Face, stop: Literal["all", "first"]
) -> None:
    short, long = Sampler(2), Sampler(6)
    branches = [PipelineBuilder().add_source(source).pipe(int) for source in (short, long)]
    pipeline = PipelineBuilder().add_source(Merge(*branches, stop=stop)).build()
    count = 8 if stop == "all" else 4
    found = every_epoch(pipeline, 3, face)
    assert [(epoch, len(items)) for epoch, items in found] == [(e, count) for e in range(3)]
    assert {item // 100 for _, items in found[2:] for item in items} == {2}
    for source in (short, long):
        assert source.log == [f"{what} {e}" for e in range(3) for what in ("set", "begin", "end")]


@pytest.mark.parametrize("face", FACES)
def test_routed_stages_share_their_slots(face: Face) -> None:
    crowd = Crowd()

    async def op(item: int) -> int:
        with crowd:
            await asyncio.sleep(0)
        return item

    pipeline = (
        PipelineBuilder()
        .add_source(range(7))
        .route(lambda x: x % 2, lambda b: b.pipe(op), lambda b: b.pipe(int))
        .build()
    )
    assert every_epoch(pipeline, 8, face) == [(epoch, [*range(7)]) for epoch in range(8)]
    assert crowd.most == 1


@pytest.mark.parametrize("face", FACES)
def test_two_epochs_are_in_flight_and_never_a_third(face: Face) -> None:
    source = Watched(1)
    pipeline = PipelineBuilder().add_source(source).pipe(int).build()
    begun: list[int] = []
    expected = [2, 3, 4, 4]

    def look() -> None:
        source.crowd.wait_started(expected[len(begun)])  # however late it is
        begun.append(source.crowd.wait_settled())

    def sync() -> None:
        with pipeline.epochs(4) as epochs:
            for run in epochs:
                look()
                assert list(run) == [0]

    async def main() -> None:
        async with pipeline.epochs(4, loop=loop_of(face)) as epochs:
            async for run in epochs:
                await asyncio.to_thread(look)
                assert [item async for item in run] == [0]

    sync() if face is Face.SYNC else run_loop(main(), face)
    assert begun == expected


@pytest.mark.parametrize("face", FACES)
def test_without_overlap_an_epoch_begins_when_it_is_asked_for(face: Face) -> None:
    source = Watched(3)
    begun: list[int] = []
    pipeline = PipelineBuilder().add_source(source).pipe(int).build()
    every_epoch(
        pipeline,
        3,
        face,
        overlap=False,
        after=lambda run: begun.append(source.crowd.wait_settled(0.02)),
    )
    assert begun == [1, 2, 3]

    async def enter() -> int:
        async with pipeline.epochs(3, overlap=False, loop=loop_of(face)):
            return await asyncio.to_thread(source.crowd.wait_settled, 0.02)

    if face is not Face.SYNC:
        assert run_loop(enter(), face) == 3  # entering alone begins none


class Foreign(Executor):
    """An executor of which nothing is known but that it runs what is submitted."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.threads = threads

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.threads.submit(fn, *args, **kwargs)


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("kind", ["thread", "executor", "async", "generator", "async generator"])
@pytest.mark.parametrize("face", FACES)
def test_concurrency_bounds_the_calls_of_both_epochs_together(
    face: Face, kind: str, concurrency: int
) -> None:
    """Contract 3, where one epoch ends and the next begins."""
    crowd = Crowd()
    ops: dict[str, Any] = {}

    def thread(item: int) -> int:
        with crowd:
            threading.Event().wait(0.0005)
        return item

    async def on_loop(item: int) -> int:
        with crowd:
            await asyncio.sleep(0.0005)
        return item

    def generator(item: int) -> Iterator[int]:
        with crowd:
            yield item

    async def agenerator(item: int) -> AsyncIterator[int]:
        with crowd:
            await asyncio.sleep(0)
            yield item

    ops |= {"thread": thread, "async": on_loop}
    ops |= {"generator": generator, "async generator": agenerator}
    builder = PipelineBuilder().add_source(range(7))
    with ThreadPoolExecutor(8) as threads:
        if kind == "executor":
            builder = builder.pipe(thread, concurrency=concurrency, executor=Foreign(threads))
        else:
            builder = builder.pipe(ops[kind], concurrency=concurrency)
        found = every_epoch(builder.build(num_threads=8), 12, face)
    assert found == [(epoch, [*range(7)]) for epoch in range(12)]
    assert crowd.most <= concurrency
    if concurrency > 1 and kind in ("thread", "executor", "async"):
        assert crowd.most == concurrency


@pytest.mark.parametrize("face", FACES)
def test_epochs_share_one_pool_and_one_loop(face: Face) -> None:
    most = 0

    def op(item: int) -> int:
        nonlocal most
        ours = [t.name for t in threading.enumerate() if t.name.startswith("spdl_async-")]
        most = max(most, len([name for name in ours if not name.endswith("-source")]))
        return item

    pipeline = PipelineBuilder().add_source(numbers(20)).pipe(op, concurrency=3).build()
    every_epoch(pipeline, 6, face)
    assert most <= 3 + (face in (Face.OWN, Face.SYNC))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("shape", ["take", "first", "zip"])
@pytest.mark.parametrize("face", ENGINE_FACES)
def test_a_source_that_is_stopped_is_left_before_it_is_read_again(
    face: Face, shape: str, overlap: bool
) -> None:
    class Watched:
        live = twice = 0

        def set_epoch(self, number: int) -> None:
            self.twice += self.live > 0

        def __iter__(self) -> Iterator[int]:
            self.live += 1
            self.twice += self.live > 1
            try:
                yield from range(50)
            finally:
                time.sleep(0.01)  # closing takes its time
                self.live -= 1

    watched = Watched()
    branch = PipelineBuilder().add_source(watched)
    short = PipelineBuilder().add_source([1, 2])
    if shape == "take":
        short.build()
        built: PipelineBuilder[Any] = branch.take(3)
    elif shape == "first":
        built = PipelineBuilder().add_source(Merge(branch, short, stop="first"))
    else:
        built = PipelineBuilder().add_source(Zip(branch, short))
    pipeline = built.build()

    async def main() -> int:
        where: Any = "own" if face is Face.OWN else "caller"
        async with pipeline.epochs(4, overlap=overlap, loop=where) as epochs:
            return len([len([x async for x in run]) async for run in epochs])

    if face is Face.SYNC:
        with pipeline.epochs(4, overlap=overlap) as epochs:
            assert len([len(list(run)) for run in epochs]) == 4
    else:
        assert run_loop(main(), face) == 4
    assert (watched.twice, watched.live) == (0, 0)


@pytest.mark.parametrize("overlap", [True, False])
def test_at_most_two_epochs_are_in_flight_however_long_ops_take_to_leave(overlap: bool) -> None:
    class Slow:
        live = most = 0

        async def __aenter__(self) -> None:
            Slow.live += 1
            Slow.most = max(Slow.most, Slow.live)

        async def __aexit__(self, *_: object) -> None:
            await asyncio.sleep(0.01)
            Slow.live -= 1

        async def __call__(self, item: int) -> int:
            return item

    async def main() -> None:
        built = PipelineBuilder().add_source(range(50)).pipe(Slow()).take(3).build()
        async with built.epochs(5, overlap=overlap) as epochs:
            async for run in epochs:
                assert len([x async for x in run]) == 3

    asyncio.run(main())
    assert Slow.most <= (2 if overlap else 1)
    assert Slow.live == 0


@pytest.mark.parametrize("kind", ["sync", "async", "generator", "executor"])
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("gives_up", [False, True])
def test_epochs_go_on_after_items_were_tried_again(face: Face, kind: str, gives_up: bool) -> None:
    tries: Counter[int] = Counter()

    def op(n: int) -> int:
        tries[n] += 1
        if n % 13 == 12 and (gives_up or tries[n] % 2):
            raise OSError(n)
        return n

    async def aop(n: int) -> int:
        return op(n)

    def many(n: int) -> Iterator[int]:
        yield op(n)

    with ThreadPoolExecutor(2) as pool:
        options: Any = {"executor": pool} if kind == "executor" else {}
        stage: Any = {"async": aop, "generator": many}.get(kind, op)
        retry = Retry(2, backoff=0.001)
        built = PipelineBuilder().add_source(range(50))
        pipeline = built.pipe(stage, retry=retry, on_error="skip", concurrency=2, **options).build()
        expected = [n for n in range(50) if not (gives_up and n % 13 == 12)]

        async def main() -> None:
            where: Any = "own" if face is Face.OWN else "caller"
            async with pipeline.epochs(3, loop=where) as epochs:
                assert [[x async for x in run] async for run in epochs] == [expected] * 3

        if face is Face.SYNC:
            with pipeline.epochs(3) as epochs:
                assert [list(run) for run in epochs] == [expected] * 3
        else:
            run_loop(main(), face)


@pytest.mark.parametrize("kind", ["sync", "async", "generator", "executor"])
@pytest.mark.parametrize("face", FACES)
def test_a_call_that_fails_after_its_epoch_was_left_keeps_no_slot(face: Face, kind: str) -> None:
    """It would be made again, had its pass not been stopped: the next one must not wait for that."""
    entered = Gate()

    def op(n: int) -> int:
        if n == 1 and not entered.is_open:
            entered.open()
            while not cancelled():
                time.sleep(0.001)
            raise OSError(n)
        return n

    async def aop(n: int) -> int:
        if n == 1 and not entered.is_open:
            entered.open()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise OSError(n) from None
        return n

    def many(n: int) -> Iterator[int]:
        yield op(n)

    with ThreadPoolExecutor(2) as pool:
        options: Any = {"executor": pool} if kind == "executor" else {}
        stage: Any = {"async": aop, "generator": many}.get(kind, op)
        # So long a wait that a slot which is kept for it is kept for ever.
        retry = Retry(2, backoff=600.0, max_backoff=600.0, jitter=0.0)
        pipeline = (
            PipelineBuilder().add_source(range(2)).pipe(stage, retry=retry, **options).build()
        )

        async def main() -> None:
            async with pipeline.epochs(2, loop=loop_of(face)) as epochs:
                first = await anext(epochs)
                assert await anext(first) == 0
                await entered.passed()
                async with asyncio.timeout(PATIENCE):
                    second = await anext(epochs)
                    assert [item async for item in second] == [0, 1]

        if face is Face.SYNC:
            with pipeline.epochs(2) as epochs:
                assert next(next(epochs)) == 0
                entered.wait()
                assert list(next(epochs)) == [0, 1]
        else:
            run_loop(main(), face)


@pytest.mark.parametrize("given", [False, True])
def test_a_call_that_is_due_again_when_its_epoch_fails_keeps_its_slot(given: bool) -> None:
    """Item 0 is to be called again, but both slots are taken, when item 1 ends the epoch."""
    crowd = Crowd()
    calls: Counter[int] = Counter()
    third, over = Gate(), Gate()

    def op(n: int) -> int:
        with crowd:
            calls[n] += 1
            if (n, calls[n]) == (0, 1):
                raise OSError(n)
            if (n, calls[n]) == (1, 1):
                third.wait()
                crowd.wait_settled()  # item 0 has come back, and the next epoch has begun
                raise ValueError(n)
            if (n, calls[n]) == (2, 1):
                third.open()
                over.wait()
            if (n, calls[n]) == (0, 2):
                crowd.wait_settled()
                over.open()
            return n

    retry = Retry(2, backoff=0.0, jitter=0.0, on=(OSError,))
    with ThreadPoolExecutor(4) as pool:
        options: Any = {"executor": pool} if given else {}
        built = (
            PipelineBuilder().add_source(range(3)).pipe(op, concurrency=2, retry=retry, **options)
        )
        with built.build(num_threads=4).epochs(2) as epochs:
            first = next(epochs)
            assert next(first) == 0
            with pytest.raises(ValueError, match="1"):
                next(first)
            assert list(next(epochs)) == [0, 1, 2]
    assert calls == {0: 3, 1: 2, 2: 2}
    assert crowd.most == 2


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", ["plain", "timeout", "retry", "retry sync"])
def test_one_straggler_leaves_the_other_slots_to_the_next_epoch(face: Face, kind: str) -> None:
    """The last item of the first epoch ends only when the second one has got to work."""
    second = threading.Event()
    begun: Counter[int] = Counter()

    def begin(n: int) -> bool:
        begun[n] += 1
        if n == 0 and begun[n] == 2:
            second.set()
        return n == 7 and begun[n] == 1

    async def op(n: int) -> int:
        if begin(n):
            assert await asyncio.to_thread(second.wait, PATIENCE)
        return n

    def sync_op(n: int) -> int:
        if begin(n):
            assert second.wait(PATIENCE)
        return n

    options: dict[str, Any] = {"timeout": {"timeout": 60.0}, "plain": {}}.get(
        kind, {"retry": Retry(2)}
    )
    stage: Any = sync_op if kind == "retry sync" else op
    pipeline = PipelineBuilder().add_source(range(8)).pipe(stage, concurrency=4, **options).build()

    async def main() -> None:
        where: Any = "own" if face is Face.OWN else "caller"
        async with pipeline.epochs(2, loop=where) as epochs:
            assert [[x async for x in run] async for run in epochs] == [list(range(8))] * 2

    if face is Face.SYNC:
        with pipeline.epochs(2) as epochs:
            assert [list(run) for run in epochs] == [list(range(8))] * 2
    else:
        run_loop(main(), face)
