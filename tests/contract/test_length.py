"""``len``, length hints, truth, and what ``describe()`` says. Contract 4 is in ``test_bounds.py``."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from faces import FACES, Face, drive
from kinds import KINDS, ONE_TO_ONE, Kind, Work, kind_id, same

from spdl_async import DROP, PipelineBuilder

pytestmark = pytest.mark.timeout(30)


def numbers(n: int) -> PipelineBuilder[int]:
    return PipelineBuilder().add_source(range(n))


@pytest.mark.parametrize("kind", ONE_TO_ONE, ids=kind_id)
def test_len_is_exact_through_one_to_one_stages(kind: Kind) -> None:
    pipeline = kind.add(numbers(70), Work(), concurrency=4).aggregate(32).build()
    assert operator.length_hint(pipeline) == 3
    if kind.id.startswith("filter"):
        with pytest.raises(TypeError, match="'work'"):
            len(pipeline)
    else:
        assert len(pipeline) == 3 == len(drive(pipeline, Face.SYNC).result())


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 70])
def test_len_of_batches_of_batches(count: int) -> None:
    for drop_first in (False, True):
        for drop_second in (False, True):
            pipeline = (
                numbers(count)
                .aggregate(4, drop_last=drop_first)
                .aggregate(3, drop_last=drop_second)
                .build()
            )
            assert len(pipeline) == len(list(pipeline))
            assert operator.length_hint(pipeline) == len(pipeline)


class Batches:
    def accumulate(self, item: int) -> list[int]:
        return [item]

    def flush(self) -> list[int]:
        return []


def each(n: int) -> Generator[int, None, None]:
    yield n


async def endless() -> AsyncIterator[int]:
    while True:
        yield 1


UNKNOWN: dict[str, tuple[str, PipelineBuilder[Any]]] = {
    "generator": ("'each'", numbers(3).pipe(each)),
    "expand": ("'lambda'", numbers(3).expand(lambda n: [n])),
    "aggregator": ("'Batches'", numbers(3).aggregate(Batches)),
    "disaggregate": ("disaggregate", numbers(3).aggregate(2).disaggregate()),
    "source-function": ("source", PipelineBuilder().add_source(lambda: [1]).pipe(same)),
    "async-source": ("source", PipelineBuilder().add_source(endless).pipe(same)),
    "iterator": ("source", PipelineBuilder().add_source(iter([1])).pipe(same)),
}


@pytest.mark.parametrize(("text", "builder"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_len_is_a_type_error_that_says_why(text: str, builder: PipelineBuilder[Any]) -> None:
    pipeline = builder.build()
    with pytest.raises(TypeError, match=text):
        len(pipeline)
    assert operator.length_hint(pipeline, 7) == 7
    assert bool(pipeline) is True


@pytest.mark.parametrize("kind", ONE_TO_ONE, ids=kind_id)
def test_len_is_a_type_error_below_a_skip_policy(kind: Kind) -> None:
    own = kind.add(numbers(6), Work(), on_error="skip").build()
    with pytest.raises(TypeError):
        len(own)
    assert operator.length_hint(own) == 6
    by_build = kind.add(numbers(6), Work()).build(max_failures=3)
    with pytest.raises(TypeError):
        len(by_build)
    source = PipelineBuilder().add_source(range(6), on_error="skip").build()
    with pytest.raises(TypeError, match="source"):
        len(source)


@pytest.mark.parametrize("face", FACES, ids=kind_id)
def test_len_is_a_type_error_once_an_op_has_returned_drop(face: Face) -> None:
    pipeline = numbers(6).pipe(lambda n: DROP if n == 5 else n).build()
    assert len(pipeline) == 6
    drive(pipeline, face, take=1)
    drive(pipeline, face).result()
    with pytest.raises(TypeError, match="DROP"):
        len(pipeline)
    assert operator.length_hint(pipeline) == 6


def test_an_empty_pipeline_is_true_and_a_list_of_it_works() -> None:
    pipeline = numbers(0).build()
    assert len(pipeline) == 0
    assert bool(pipeline) is True
    assert list(pipeline) == []
    assert list(numbers(3).pipe(each).build()) == [0, 1, 2]


# describe()


@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_describe_names_every_stage_its_concurrency_and_its_order(kind: Kind) -> None:
    pipeline = kind.add(numbers(3), Work(), concurrency=5, output_order="completion").build(
        seed=42, name="mine", num_threads=3
    )
    description = pipeline.describe()
    text = str(description)
    for word in ("'mine'", "source", "work", "concurrency 5", "completion", "seed: 42"):
        assert word in text, word
    assert description.seed == 42
    assert description.num_threads == 3
    assert description.mermaid.startswith("flowchart")
    assert "work" in description.mermaid
    assert "×5" in description.mermaid
    for bound in description.bounds:
        assert bound.place in text


def test_describe_says_where_it_runs_and_why() -> None:
    async def on_loop(n: int) -> int:
        return n

    sync, mixed = numbers(3).pipe(same).build(), numbers(3).pipe(same).pipe(on_loop).build()
    assert (sync.describe().loop, mixed.describe().loop) == ("own", "caller")
    assert "'on_loop'" in str(mixed.describe())
    from_async = PipelineBuilder().add_source(endless).build()
    assert from_async.describe().loop == "caller"
    assert "source" in str(from_async.describe())


def test_num_threads_defaults_to_the_sum_of_the_thread_stages() -> None:
    async def on_loop(n: int) -> int:
        return n

    with ThreadPoolExecutor(1) as pool:
        pipeline = (
            numbers(3)
            .pipe(same, concurrency=3, name="a")
            .pipe(same, concurrency=3, name="fused with a")
            .pipe(on_loop, concurrency=64)
            .pipe(same, concurrency=2, name="b", fuse=False)
            .pipe(each, concurrency=4)
            .pipe(same, concurrency=8, executor=pool, name="elsewhere")
            .build()
        )
    assert pipeline.describe().num_threads == 3 + 2 + 4
    text = str(pipeline.describe())
    assert "a + fused with a" in text
    assert "ThreadPoolExecutor" in text


def test_a_seed_is_drawn_at_build_and_shown() -> None:
    builder = numbers(3)
    seeds = {builder.build().describe().seed for _ in range(4)}
    assert len(seeds) == 4
    pipeline = builder.build()
    assert f"seed: {pipeline.describe().seed}" in str(pipeline.describe())
    assert builder.build(seed=0).describe().seed == 0


def test_mermaid_survives_awkward_names() -> None:
    names = ['quote " and [bracket]', "arrow --> x", "semi;colon\nnewline"]
    builder = numbers(3)
    for name in names:
        builder = builder.pipe(same, name=name)
    lines = builder.build().describe().mermaid.splitlines()
    assert len(lines) == 1 + 5 + 4  # a head, five nodes, four arrows: no name broke a line
    assert all(line.count('"') in (0, 2) for line in lines)
