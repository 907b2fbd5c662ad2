"""The item type moves through the chain: checked by ``mypy --strict`` here, and run too."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator
from pathlib import Path
from typing import assert_type

import pytest

from spdl_async import (
    DROP,
    BatchBy,
    BucketBy,
    Drop,
    Failure,
    FailureRecord,
    Failures,
    Pipeline,
    PipelineBuilder,
    PipelineRun,
    Retry,
    SyncPipelineRun,
    on,
)


class Image:
    """An item type of its own, so that nothing is inferred by accident."""

    def __init__(self, name: str) -> None:
        self.name = name


def decode(path: str) -> Image:
    return Image(path)


async def fetch(path: str) -> bytes:
    return path.encode()


def maybe(image: Image) -> Image | Drop:
    return DROP if image.name == "b" else image


async def maybe_async(image: Image) -> Image | Drop:
    return image


def names(image: Image) -> Generator[str, None, None]:
    yield image.name


async def names_async(image: Image) -> AsyncGenerator[str, None]:
    yield image.name


def some(image: Image) -> Generator[str | Drop, None, None]:
    yield image.name
    yield DROP


def length(text: str | bytes) -> int:
    return len(text)


class Gather:
    """An aggregator of images into tuples of names."""

    def __init__(self) -> None:
        self.held: list[str] = []

    def accumulate(self, item: Image) -> Iterable[tuple[str, ...]]:
        self.held.append(item.name)
        return ()

    def flush(self) -> Iterable[tuple[str, ...]]:
        return [tuple(self.held)]


def paths() -> PipelineBuilder[str]:
    return PipelineBuilder().add_source(["a", "b", "c"])


def images() -> PipelineBuilder[Image]:
    return paths().pipe(decode)


def test_sources_give_their_item_type() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    def texts() -> Iterator[str]:
        yield "a"

    async def opened() -> list[float]:
        return [1.0]

    class MapStyle:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> bytes:
            return b"x"

    by_list = assert_type(PipelineBuilder().add_source(["a"]), PipelineBuilder[str])
    by_range = assert_type(PipelineBuilder().add_source(range(3)), PipelineBuilder[int])
    by_dict = assert_type(PipelineBuilder().add_source({1.5: "x"}), PipelineBuilder[float])
    by_async = assert_type(PipelineBuilder().add_source(numbers), PipelineBuilder[int])
    by_object = assert_type(PipelineBuilder().add_source(numbers()), PipelineBuilder[int])
    by_function = assert_type(PipelineBuilder().add_source(texts), PipelineBuilder[str])
    by_coroutine = assert_type(PipelineBuilder().add_source(opened), PipelineBuilder[float])
    by_index = assert_type(PipelineBuilder().add_source(MapStyle()), PipelineBuilder[bytes])
    by_builder = assert_type(PipelineBuilder().add_source(images()), PipelineBuilder[Image])
    by_pipeline = assert_type(PipelineBuilder().add_source(paths().build()), PipelineBuilder[str])
    built = (by_list, by_range, by_dict, by_async, by_object, by_function, by_coroutine)
    outputs = [list(one.build()) for one in built]
    assert outputs == [["a"], [0, 1, 2], [1.5], [1], [1], ["a"], [1.0]]
    assert list(by_index.build()) == [b"x"]
    assert [image.name for image in by_builder.build()] == ["a", "b", "c"]
    assert list(by_pipeline.build()) == ["a", "b", "c"]


def test_policies_leave_it() -> None:
    def look(failure: Failure) -> None: ...

    async def look_later(failure: Failure) -> None: ...

    careful = assert_type(
        paths().pipe(fetch, retry=Retry(3), timeout=9, on_error=look_later), PipelineBuilder[bytes]
    )
    kept = assert_type(
        careful.filter(lambda data: len(data) > 0, retry=Retry(2), timeout=9.5, on_error=look),
        PipelineBuilder[bytes],
    )
    several = assert_type(
        kept.expand(lambda data: [len(data)], retry=Retry(2), timeout=1, on_error="skip"),
        PipelineBuilder[int],
    )
    with several.build(on_error=look).run_sync() as run:
        assert list(run) == [1, 1, 1]
    assert_type(run.failures, Failures)
    assert_type(run.failures[0:1], tuple[FailureRecord, ...])


def test_ops_move_it() -> None:
    fetched = assert_type(paths().pipe(fetch, concurrency=4), PipelineBuilder[bytes])
    kept = assert_type(images().pipe(maybe), PipelineBuilder[Image])
    kept_async = assert_type(images().pipe(maybe_async), PipelineBuilder[Image])
    several = assert_type(images().pipe(names), PipelineBuilder[str])
    several_async = assert_type(images().pipe(names_async), PipelineBuilder[str])
    dropping = assert_type(images().pipe(some), PipelineBuilder[str])
    looked_up = assert_type(paths().pipe({"a": 1, "b": 2, "c": 3}), PipelineBuilder[int])
    by_lambda = assert_type(paths().pipe(lambda path: len(path)), PipelineBuilder[int])
    wider = assert_type(paths().pipe(length), PipelineBuilder[int])
    partial = assert_type(paths().pipe(functools.partial(decode)), PipelineBuilder[Image])
    by_class = assert_type(paths().pipe(Image), PipelineBuilder[Image])
    made = (several, several_async, dropping, looked_up, by_lambda, wider)
    assert [list(one.build()) for one in made] == [
        ["a", "b", "c"], ["a", "b", "c"], ["a", "b", "c"], [1, 2, 3], [1, 1, 1], [1, 1, 1],
    ]  # fmt: skip
    assert list(fetched.build()) == [b"a", b"b", b"c"]
    assert [image.name for image in kept.build()] == ["a", "c"]
    decoded = assert_type(images(), PipelineBuilder[Image])
    for as_images in (decoded, kept_async, partial, by_class):
        assert [image.name for image in as_images.build()] == ["a", "b", "c"]


def test_the_other_verbs_move_it() -> None:
    async def listed(path: str) -> list[float]:
        return [float(len(path))]

    async def good(path: str) -> bool:
        return True

    def fragment(b: PipelineBuilder[str]) -> PipelineBuilder[list[Image]]:
        return b.pipe(decode).aggregate(2)

    expanded = assert_type(paths().expand(lambda path: [len(path)]), PipelineBuilder[int])
    expanded_async = assert_type(paths().expand(listed), PipelineBuilder[float])
    expanded_aiter = assert_type(images().expand(names_async), PipelineBuilder[str])
    filtered = assert_type(paths().filter(lambda path: path != "a"), PipelineBuilder[str])
    filtered_async = assert_type(paths().filter(good), PipelineBuilder[str])
    batches = assert_type(paths().aggregate(2), PipelineBuilder[list[str]])
    gathered = assert_type(images().aggregate(Gather()), PipelineBuilder[tuple[str, ...]])
    by_factory = assert_type(images().aggregate(Gather), PipelineBuilder[tuple[str, ...]])
    flat = assert_type(batches.disaggregate(), PipelineBuilder[str])
    flat_tuples = assert_type(gathered.disaggregate(), PipelineBuilder[str])
    applied = assert_type(paths().apply(fragment), PipelineBuilder[list[Image]])
    sunk = assert_type(paths().add_sink(4), PipelineBuilder[str])
    assert list(expanded.build()) == [1, 1, 1]
    assert list(expanded_async.build()) == [1.0, 1.0, 1.0]
    for one in (expanded_aiter, filtered_async, flat, flat_tuples, sunk):
        assert list(one.build()) == ["a", "b", "c"]
    assert list(filtered.build()) == ["b", "c"]
    assert list(batches.build()) == [["a", "b"], ["c"]]
    assert list(by_factory.build()) == [("a", "b", "c")]
    assert [len(batch) for batch in applied.build()] == [2, 1]


def test_shapes_move_it() -> None:
    shuffled = assert_type(paths().shuffle(2, seed=1), PipelineBuilder[str])
    taken = assert_type(paths().take(2), PipelineBuilder[str])
    skipped = assert_type(paths().skip(1), PipelineBuilder[str])
    numbered = assert_type(paths().enumerate(1), PipelineBuilder[tuple[int, str]])
    by_number = assert_type(numbered.pipe(lambda pair: pair[0]), PipelineBuilder[int])
    timed = assert_type(paths().aggregate(2, within=60), PipelineBuilder[list[str]])
    assert sorted(shuffled.build()) == ["a", "b", "c"]
    assert list(taken.build()) == ["a", "b"]
    assert list(skipped.build()) == ["b", "c"]
    assert list(by_number.build()) == [1, 2, 3]
    assert list(timed.build()) == [["a", "b"], ["c"]]


def test_aggregators_by_cost_and_length_give_lists_of_it() -> None:
    def area(image: Image) -> float:
        return len(image.name)

    by_cost = assert_type(paths().aggregate(BatchBy(len, 2)), PipelineBuilder[list[str]])
    by_area = assert_type(images().aggregate(BatchBy(area, 2)), PipelineBuilder[list[Image]])
    by_length = assert_type(
        paths().aggregate(BucketBy(len, [4], batch_size=2), within=60), PipelineBuilder[list[str]]
    )
    by_lambda = assert_type(
        images().aggregate(BucketBy(lambda image: len(image.name), [4], max_cost=2)),
        PipelineBuilder[list[Image]],
    )
    kept: BatchBy[str] = BatchBy(len, 2)
    by_value = assert_type(paths().aggregate(kept), PipelineBuilder[list[str]])
    for one in (by_cost, by_length, by_value):
        assert list(one.build()) == [["a", "b"], ["c"]]
    for other in (by_area, by_lambda):
        assert [len(batch) for batch in other.build()] == [2, 1]


async def test_runs_give_it() -> None:
    pipeline = assert_type(images().aggregate(2).build(), Pipeline[list[Image]])
    seen = 0
    async for batch in pipeline:
        assert_type(batch, list[Image])
        seen += 1
    async with pipeline.run() as run:
        assert_type(run, PipelineRun[list[Image]])
        async for batch in run:
            assert_type(batch, list[Image])
            seen += 1
    assert seen == 4


def test_sync_runs_give_it() -> None:
    pipeline = assert_type(images().build(), Pipeline[Image])
    seen = 0
    for image in pipeline:
        assert_type(image, Image)
        seen += 1
    with pipeline.run_sync() as run:
        assert_type(run, SyncPipelineRun[Image])
        for image in run:
            assert_type(image, Image)
            seen += 1
    assert seen == 6


def test_drop_narrows() -> None:
    value: Image | Drop = maybe(Image("a"))
    if value is DROP:
        raise AssertionError
    assert_type(value, Image)


def test_on_is_an_op() -> None:
    assert list(PipelineBuilder().add_source([("a", 1)]).pipe(on(1, str)).build()) == [("a", "1")]


def test_a_builder_of_a_narrower_type_is_one_of_a_wider() -> None:
    def show(builder: PipelineBuilder[object]) -> list[object]:
        return list(builder.build())

    assert show(paths()) == ["a", "b", "c"]


WRONG = """
from spdl_async import BatchBy, PipelineBuilder, Retry

def decode(path: str) -> bytes:
    return b""

async def fetch(path: str) -> bytes:
    return b""

paths = PipelineBuilder().add_source(["a"])
PipelineBuilder().add_source([1]).add_source([2])  # error
PipelineBuilder().add_source([1]).pipe(decode)  # error
PipelineBuilder().add_source([1]).pipe(fetch)  # error
paths.pipe({1: 2})  # error
paths.pipe(decode).pipe(decode)  # error
paths.disaggregate()  # error
paths.filter(lambda path: path.no_such_method())  # error
paths.pipe(decode, concurency=3)  # error
paths.pipe(decode, concurrency="3")  # error
paths.pipe(decode, output_order="sorted")  # error
paths.pipe(decode, on_error="ignore")  # error
paths.pipe(decode, on_error=decode)  # error
paths.pipe(decode, retry=3)  # error
paths.pipe(decode, timeout="3")  # error
paths.aggregate(3, timeout=3)  # error
PipelineBuilder().add_source([1], retry=Retry(3))  # error
paths.aggregate("3")  # error
paths.aggregate(3, within="1")  # error
paths.shuffle()  # error
paths.shuffle(3, seed="1")  # error
paths.take("3")  # error
paths.enumerate().pipe(decode)  # error
PipelineBuilder().add_source([1]).aggregate(BatchBy(len, 3))  # error
paths.build().run(loop="mine")  # error
wrong: PipelineBuilder[int] = paths  # error
for item in paths.build():
    item.no_such_method()  # error
for item in paths.build().run():  # error
    print(item)
async def other_kind() -> None:
    async for item in paths.build().run_sync():  # error
        print(item)
PipelineBuilder().pipe(decode)  # error
good: PipelineBuilder[bytes] = paths.pipe(decode)
"""


@pytest.mark.slow
@pytest.mark.timeout(200)  # the builder's types name torch's
def test_what_is_wrong_is_a_static_error(tmp_path: Path) -> None:
    """Exactly the lines marked so are errors of ``mypy --strict``."""
    source = textwrap.dedent(WRONG)
    (tmp_path / "wrong.py").write_text(source, encoding="utf-8")
    command = "import sys; from mypy.api import run; print(run(sys.argv[1:])[0])"
    options = ["--strict", "--no-error-summary", "--follow-imports=silent", "wrong.py"]
    found = subprocess.run(
        [sys.executable, "-c", command, *options, "--cache-dir", os.devnull],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=190,
        check=True,
    ).stdout
    lines = {int(line.split(":")[1]) for line in found.splitlines() if ": error:" in line}
    expected = {
        number for number, line in enumerate(source.splitlines(), 1) if line.endswith("# error")
    }
    assert lines == expected, found
