"""Below a copy: every kind of stage claims what it takes, in the thread that uses it, and is claimed in turn.

Ops below queue kernels on their own thread's stream; the consumer uses another stream. So what is handed on
without an event is read too early, each time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch")

from fakes import batch_of, calls, copying, is_ours

from spdl_async import BatchBy, Merge, PipelineBuilder, Retry, Zip, map_items, per_thread
from spdl_async.device._in_flight import Carrier, InFlight, sent
from spdl_async.testing import FakeDevice

pytestmark = pytest.mark.torch

COUNT = 12
Stages = Callable[[FakeDevice], PipelineBuilder[Any]]


def plus(fake: FakeDevice, batch: dict[str, Any]) -> dict[str, Any]:
    """Queue the work of a model: it reads two fields, and writes one of its own."""
    image, label = batch["image"], batch["label"]
    out = fake.empty(image)
    fake.launch(lambda i, n, o: o.copy_((i + 1) * (i[0, 0] == n[0])), image, label, out)
    return {**batch, "image": out}


class Adds:
    """Ops of each kind, which add one to what they are given."""

    def __init__(self, fake: FakeDevice) -> None:
        self.fake = fake
        self.failed: set[str] = set()

    def now(self, batch: Any) -> Any:
        return plus(self.fake, batch)

    def again(self, batch: Any) -> Any:
        """Add to what has been added to: the label is one behind then, so it goes along."""
        batch = {**batch, "label": batch["image"][0, :3]}
        return plus(self.fake, batch)

    async def later(self, batch: Any) -> Any:
        await asyncio.sleep(0)
        return plus(self.fake, batch)

    def promised(self, batch: Any) -> Any:
        return self.later(batch)

    def each(self, batch: Any) -> Iterator[Any]:
        yield plus(self.fake, batch)

    async def each_later(self, batch: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        yield plus(self.fake, batch)

    def many(self, batch: Any) -> list[Any]:
        return [plus(self.fake, batch)]

    async def many_later(self, batch: Any) -> list[Any]:
        return [plus(self.fake, batch)]

    def many_promised(self, batch: Any) -> Any:
        return self.many_later(batch)

    def an_iterator(self, batch: Any) -> Iterator[Any]:
        return iter([plus(self.fake, batch)])

    def an_async_iterator(self, batch: Any) -> AsyncIterator[Any]:
        return self.each_later(batch)

    def flaky(self, batch: Any) -> Any:
        if batch["key"] not in self.failed:
            self.failed.add(batch["key"])
            plus(self.fake, batch)
            raise OSError("once more")
        return plus(self.fake, batch)

    def yes(self, batch: Any) -> bool:
        self.reads(batch)
        return True

    async def yes_later(self, batch: Any) -> bool:
        self.reads(batch)
        return True

    def reads(self, batch: Any) -> int:
        """Take a look, as a predicate does, and wait for it."""
        number = int(self.fake.read(batch["label"])[0])
        assert number == int(batch["key"]), "the predicate was early"
        return number


class Entered:
    """An op with a lifespan."""

    def __init__(self, fake: FakeDevice) -> None:
        self.fake = fake

    @contextmanager
    def lifespan(self) -> Iterator[None]:
        yield

    def __call__(self, batch: Any) -> Any:
        return plus(self.fake, batch)


class Given:
    """An op that is given by its lifespan."""

    def __init__(self, fake: FakeDevice) -> None:
        self.fake = fake

    @contextmanager
    def lifespan(self) -> Iterator[Callable[[Any], Any]]:
        yield lambda batch: plus(self.fake, batch)

    def __call__(self, batch: Any) -> Any:
        raise AssertionError("what was entered is the op")


class Pairs:
    """An aggregator that queues work on what it has been given, and hands on tuples."""

    def __init__(self, fake: FakeDevice) -> None:
        self.fake = fake
        self.held: list[Any] = []

    def accumulate(self, batch: Any) -> Iterable[Any]:
        self.held.append(plus(self.fake, batch))
        return self.flush() if len(self.held) == 2 else ()

    def flush(self) -> Iterable[Any]:
        held, self.held = self.held, []
        return [tuple(held)] if held else []


def piped(name: str, verb: str = "pipe", **options: Any) -> Stages:
    return lambda fake: getattr(copying(fake, COUNT), verb)(getattr(Adds(fake), name), **options)


def filtered(name: str) -> Stages:
    return lambda fake: copying(fake, COUNT).filter(getattr(Adds(fake), name)).pipe(Adds(fake).now)


def routed(fake: FakeDevice) -> Any:
    adds = Adds(fake)
    return copying(fake, COUNT).route(
        lambda batch: adds.reads(batch) % 2,
        lambda b: b.pipe(adds.now),
        lambda b: b.pipe(adds.later),
    )


def routed_in_lists(fake: FakeDevice) -> Any:
    adds = Adds(fake)
    return (
        copying(fake, COUNT)
        .aggregate(3)
        .route(
            lambda batches: [adds.reads(batch) % 2 for batch in batches],
            lambda b: b.pipe(lambda batches: [plus(fake, batch) for batch in batches]),
            lambda b: b.pipe(lambda batches: [plus(fake, batch) for batch in batches]),
            batched=True,
        )
    )


def route_with_a_copy_in_a_branch(fake: FakeDevice) -> Any:
    adds = Adds(fake)
    return (
        PipelineBuilder()
        .add_source(range(COUNT))
        .pipe(batch_of)
        .route(lambda batch: 0, lambda b: b.to_device(fake))
        .pipe(adds.now)
    )


def merged(fake: FakeDevice) -> Any:
    return PipelineBuilder().add_source(Merge(copying(fake, COUNT))).pipe(Adds(fake).now)


def zipped(fake: FakeDevice) -> Any:
    zipped = PipelineBuilder().add_source(Zip(copying(fake, COUNT), copying(fake, COUNT)))
    return zipped.pipe(lambda two: [plus(fake, two[0]), two[1]]).pipe(lambda two: [two[0]])


def lists(fake: FakeDevice) -> Any:
    return copying(fake, COUNT // 2, lambda n: [batch_of(2 * n), batch_of(2 * n + 1)])


STAGES: dict[str, Stages] = {
    "sync": piped("now"),
    "sync, four threads": piped("now", concurrency=4),
    "as they finish": piped("now", concurrency=3, output_order="completion"),
    "async": piped("later"),
    "async, four at once": piped("later", concurrency=4),
    "returns an awaitable": piped("promised"),
    "generator": piped("each"),
    "async generator": piped("each_later"),
    "expand, list": piped("many", "expand"),
    "expand, async list": piped("many_later", "expand"),
    "expand, awaitable": piped("many_promised", "expand"),
    "expand, iterator": piped("an_iterator", "expand"),
    "expand, async iterator": piped("an_async_iterator", "expand"),
    "retry": piped("flaky", retry=Retry(3, backoff=0.0, on=(OSError,))),
    "timeout": piped("now", timeout=30),
    "filter": filtered("yes"),
    "async filter": filtered("yes_later"),
    "aggregate": lambda fake: copying(fake, COUNT).pipe(Adds(fake).now).aggregate(5),
    "aggregate, op": lambda fake: (
        copying(fake, COUNT).aggregate(5).pipe(lambda some: [plus(fake, one) for one in some])
    ),
    "aggregator": lambda fake: copying(fake, COUNT).aggregate(lambda: Pairs(fake)),
    "BatchBy": lambda fake: (
        copying(fake, COUNT).pipe(Adds(fake).now).aggregate(BatchBy(lambda batch: 1, 4))
    ),
    "shuffle": lambda fake: copying(fake, COUNT).pipe(Adds(fake).now).shuffle(4, seed=1),
    "shuffle, op": lambda fake: copying(fake, COUNT).shuffle(4, seed=1).pipe(Adds(fake).now),
    "disaggregate": lambda fake: lists(fake).disaggregate().pipe(Adds(fake).now),
    "disaggregate last": lambda fake: (
        lists(fake).pipe(lambda some: [plus(fake, one) for one in some]).disaggregate()
    ),
    "map_items": lambda fake: lists(fake).apply(map_items(Adds(fake).now)),
    "route": routed,
    "route, batched": routed_in_lists,
    "route, copy in a branch": route_with_a_copy_in_a_branch,
    "Merge": merged,
    "Zip": zipped,
    "per_thread": lambda fake: copying(fake, COUNT).pipe(
        per_thread(lambda: Adds(fake).now), concurrency=2
    ),
    "lifespan": lambda fake: copying(fake, COUNT).pipe(Entered(fake)),
    "op of a lifespan": lambda fake: copying(fake, COUNT).pipe(Given(fake)),
    "enumerate": lambda fake: (
        copying(fake, COUNT).pipe(Adds(fake).now).enumerate().pipe(lambda pair: pair[1])
    ),
    "take and skip": lambda fake: copying(fake, COUNT + 5).pipe(Adds(fake).now).take(COUNT),
}


def flat(result: Any) -> list[dict[str, Any]]:
    if isinstance(result, dict):
        return [result]
    return [batch for inner in result for batch in flat(inner)]


def consume(
    fake: FakeDevice, builder: PipelineBuilder[Any], *, inline: bool = False
) -> list[tuple[int, int]]:
    """Take results on a stream that nobody else uses; return what the kernels launched there have read."""
    seen: list[tuple[int, int]] = []
    other = fake.new_stream()

    def kernel(image: Any, label: Any, key: int) -> None:
        same = bool((image == image[0, 0]).all())
        seen.append((key, int(image[0, 0]) if same else -1))

    with builder.build().run_sync(inline=inline) as run, fake.on_stream(other):
        for result in run:
            for batch in flat(result):
                key = int(batch["key"])
                fake.launch(
                    lambda image, label, key=key: kernel(image, label, key),
                    batch["image"],
                    batch["label"],
                )
            del result, batch
    fake.synchronize()
    return seen


@pytest.mark.parametrize("name", STAGES)
def test_batches_are_right_behind_a_stage(name: str) -> None:
    fake = FakeDevice()
    seen = consume(fake, STAGES[name](fake))
    assert sorted(seen) == [(number, number + 1) for number in range(COUNT)]
    assert not calls(fake, "misuse")


@pytest.mark.parametrize("name", [name for name in STAGES if name != "timeout"])
def test_batches_are_right_behind_a_stage_of_an_inline_run(name: str) -> None:
    fake = FakeDevice()
    seen = consume(fake, STAGES[name](fake), inline=True)
    assert sorted(seen) == [(number, number + 1) for number in range(COUNT)]


def test_an_op_claims_in_its_own_thread() -> None:
    """And not in the loop's: its current stream is the one that counts."""
    fake = FakeDevice()
    consume(fake, copying(fake, COUNT).pipe(Adds(fake).now, concurrency=2))
    claims = [call for call in calls(fake, "wait") if is_ours(call.thread)]
    assert len(claims) == COUNT
    launched = {call.thread for call in calls(fake, "launch")} - {"MainThread"}
    assert {call.thread for call in claims} == launched


def test_fused_ops() -> None:
    fake = FakeDevice()
    builder = copying(fake, COUNT).pipe(lambda batch: batch, concurrency=2)
    builder = builder.pipe(Adds(fake).now, concurrency=2)
    assert "fused" in str(builder.build().describe())
    assert sorted(consume(fake, builder)) == [(n, n + 1) for n in range(COUNT)]


def test_two_devices() -> None:
    """Some fields to one, others to another: the consumer waits for both, and keeps both."""
    one, other = FakeDevice("fake:0"), FakeDevice("fake:1")
    seen: list[Any] = []
    builder = copying(one, 20, only=("image",)).to_device(other, only=("label", "weight"))
    with builder.build().run_sync() as run:
        for batch in run:
            one.launch(lambda x: seen.append(("image", int(x.min()), int(x.max()))), batch["image"])
            other.launch(
                lambda x: seen.append(("label", int(x.min()), int(x.max()))), batch["label"]
            )
            assert one.is_here(batch["image"])
            assert other.is_here(batch["label"])
            assert not one.is_here(batch["label"])
            del batch
    one.synchronize()
    other.synchronize()
    expected = [(name, n, n) for n in range(20) for name in ("image", "label")]
    assert sorted(seen) == sorted(expected)


def test_two_devices_and_an_op_below() -> None:
    one, other = FakeDevice("fake:0"), FakeDevice("fake:1")
    streams = one.new_stream(), other.new_stream()
    seen: list[Any] = []

    def both(batch: Any) -> Any:
        made = {name: at.empty(batch[name]) for at, name in ((one, "image"), (other, "label"))}
        one.launch(lambda o, i: o.copy_(i + 1), made["image"], batch["image"])
        other.launch(lambda o, i: o.copy_(i + 1), made["label"], batch["label"])
        return made

    builder = copying(one, 20, only=("image",)).to_device(other, only=("label",)).pipe(both)
    with builder.build().run_sync() as run, one.on_stream(streams[0]), other.on_stream(streams[1]):
        for batch in run:
            one.launch(lambda x: seen.append(("image", int(x.min()), int(x.max()))), batch["image"])
            other.launch(
                lambda x: seen.append(("label", int(x.min()), int(x.max()))), batch["label"]
            )
            del batch
    one.synchronize()
    other.synchronize()
    assert sorted(seen) == sorted(
        (name, n + 1, n + 1) for n in range(20) for name in ("image", "label")
    )


def test_values_without_tensors_stay_the_same_objects() -> None:
    fake = FakeDevice()
    made = [[1, [2, 3]], (4, (5,)), "six"]
    builder = copying(fake, 3).pipe(lambda batch: made[int(batch["key"])])
    assert all(result is made[at] for at, result in enumerate(builder.build()))


@pytest.mark.parametrize("kind", ["generator", "sync"])
def test_an_iterator_may_go_on_in_another_thread(kind: str) -> None:
    """Whichever thread of the pool is free makes the next value: it sets its device first."""
    fake = FakeDevice()
    tensor = fake.send(fake.pinned(16))
    event = fake.record(fake.current_stream())
    flight = InFlight([tensor], fake, event, [tensor])

    def op(batch: list[Any]) -> Iterator[Any]:
        while True:
            yield [fake.send(fake.empty_bytes(16))]

    results: list[Any] = []
    iterator = Carrier().carry_many(kind, op)(flight)
    for name in ("spdl_async-one", "spdl_async-two"):
        thread = threading.Thread(target=lambda: results.append(next(iterator)), name=name)
        thread.start()
        thread.join()
        assert calls(fake, "enter_thread")[-1].thread == name
    assert [type(result) for result in results] == [InFlight, InFlight]
    iterator.close()


def test_a_result_may_be_sent_from_another_thread() -> None:
    """An aggregator is flushed by whichever thread is free."""
    fake = FakeDevice()
    tensor = fake.send(fake.pinned(16))
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(sent([tensor], [fake])), name="spdl_async-flush"
    )
    fake.calls.clear()
    thread.start()
    thread.join()
    assert type(results[0]) is InFlight
