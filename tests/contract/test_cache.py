"""``cache``: what is kept, found again, refused and let go, on every face; scenario A11."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import operator
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any, assert_type, cast

import numpy as np
import pytest
from faces import ENGINE_FACES, FACES, Face, Gate, drive, notes_of, run_loop

from spdl_async import (
    DROP,
    BuildError,
    Merge,
    Pipeline,
    PipelineBuilder,
    RunStatistics,
    ShutdownTimeout,
    Zip,
)
from spdl_async._plan.caching import CachePlan
from spdl_async.io import TarWriter, tar_samples
from spdl_async.testing import Chain, reference_run

pytestmark = pytest.mark.timeout(60)

Builder = PipelineBuilder[Any]
EACH_FACE = pytest.mark.parametrize("face", FACES, ids=lambda face: face.value)
EACH_ENGINE = pytest.mark.parametrize("face", ENGINE_FACES, ids=lambda face: face.value)
PLACES = pytest.mark.parametrize("place", ["memory", "folder"])


class Counted:
    """An op that counts its calls for each item."""

    def __init__(self, op: Callable[[Any], Any] = lambda n: n * 10) -> None:
        self.op = op
        self.calls: Counter[Any] = Counter()
        self.lock = threading.Lock()

    def __call__(self, item: Any) -> Any:
        with self.lock:
            self.calls[item] += 1
        return self.op(item)

    @property
    def total(self) -> int:
        return self.calls.total()


def cached(builder: Builder, place: str, folder: Path, **options: Any) -> Builder:
    """Add a cache in memory or in a folder."""
    size = options.pop("size", "10MB")
    if place == "memory":
        return builder.cache(memory=size, **options)
    return builder.cache(folder / "kept", max_bytes=size, **options)


def numbers(n: int) -> Builder:
    return PipelineBuilder().add_source(range(n))


def notes(statistics: RunStatistics, name: str = "cache") -> dict[str, Any]:
    return dict(statistics.stage(name).notes)


def counts(statistics: RunStatistics, *names: str) -> tuple[int, ...]:
    found = notes(statistics)
    return tuple(found[name] for name in names)


# What comes out


def fan(n: int) -> Generator[Any, None, None]:
    for k in range(n % 4):
        yield (n, k)


async def later(n: Any) -> Any:
    await asyncio.sleep(0)
    return [n, {"n": n}]


def routed(builder: Builder) -> Builder:
    return builder.route(
        lambda n: n % 3,
        lambda branch: branch,
        lambda branch: branch.pipe(later, concurrency=3),
        lambda branch: branch.expand(lambda n: [n, -n]),
    )


CHAINS: dict[str, Callable[[Builder], Builder]] = {
    "one op": lambda b: b.pipe(str),
    "fused": lambda b: b.pipe(str, concurrency=3).pipe(lambda s: s + "!", concurrency=3),
    "async": lambda b: b.pipe(later, concurrency=5),
    "filter": lambda b: b.filter(lambda n: n % 3),
    "drop": lambda b: b.pipe(lambda n: DROP if n % 5 == 1 else n),
    "generator": lambda b: b.pipe(fan, concurrency=2),
    "generator and more": lambda b: b.pipe(fan).filter(lambda p: p[1] != 1).pipe(later),
    "expand twice": lambda b: b.expand(lambda n: [n] * (n % 3)).expand(lambda n: (n, n)),
    "route": routed,
}


@EACH_FACE
@PLACES
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
def test_every_pass_gives_the_same_and_only_the_first_one_makes_it(
    chain: Callable[[Builder], Builder], place: str, face: Face, tmp_path: Path
) -> None:
    count = 60
    plain = list(chain(numbers(count)).build())
    work = Counted(lambda n: n)
    builder = cached(chain(numbers(count).pipe(work, concurrency=2)), place, tmp_path)
    pipeline = builder.pipe(lambda value: value).build()
    for epoch in range(3):
        outcome = drive(pipeline, face)
        assert outcome.result() == plain
        hits, misses, stored = counts(outcome.statistics, "hits", "misses", "stored")
        assert (hits, misses, stored) == ((count, 0, 0) if epoch else (0, count, count))
        stage = outcome.statistics.stage("cache")
        assert (stage.items_in, stage.items_out) == (count, len(plain))
        assert outcome.statistics.in_flight == 0
    assert work.total == count


@EACH_FACE
@PLACES
@pytest.mark.parametrize("count", [0, 1])
def test_none_and_one(count: int, place: str, face: Face, tmp_path: Path) -> None:
    pipeline = cached(numbers(count).pipe(str), place, tmp_path).build()
    for epoch in range(2):
        outcome = drive(pipeline, face)
        assert outcome.result() == [str(n) for n in range(count)]
        assert counts(outcome.statistics, "hits") == (count * epoch,)


@EACH_FACE
@PLACES
def test_the_reference_says_the_same(place: str, face: Face, tmp_path: Path) -> None:
    options: dict[str, Any] = {"memory": "1MB"}
    folder = None if place == "memory" else tmp_path
    chain = Chain().pipe(lambda n: n + 1).pipe(fan)
    chain = chain.cache(folder, **(options if folder is None else {})).shuffle(7, seed=1).take(9)
    pipeline = chain.builder(range(40)).build()
    for epoch in range(2):
        expected = reference_run(range(40), chain, epoch=epoch).outputs
        assert drive(pipeline, face).result() == expected


@EACH_FACE
def test_a_folder_is_found_again_by_another_pipeline(face: Face, tmp_path: Path) -> None:
    def build() -> tuple[Pipeline[Any], Counted]:
        work = Counted(lambda n: np.full(4, n))
        builder = numbers(20).pipe(work, name="load").cache(tmp_path / "a" / "b")
        return builder.pipe(lambda array: array.tolist()).build(), work

    one, first = build()
    other, second = build()
    assert drive(one, face).result() == drive(other, face).result() == [[n] * 4 for n in range(20)]
    assert (first.total, second.total) == (20, 0)


@EACH_ENGINE
def test_input_order_holds_among_found_and_made_items(face: Face) -> None:
    work = Counted()
    source = list(range(0, 200, 2))
    pipeline = (
        PipelineBuilder().add_source(source).pipe(work, concurrency=4).cache(memory="1MB", key=int)
    ).build()
    drive(pipeline, face).result()
    source[:] = range(200)
    outcome = drive(pipeline, face)
    assert outcome.result() == [n * 10 for n in range(200)]
    assert counts(outcome.statistics, "hits", "misses") == (100, 100)
    assert set(work.calls.values()) == {1}


@EACH_ENGINE
@pytest.mark.parametrize("order", ["input", "completion"])
def test_found_items_overtake_only_where_completion_order_is_asked_for(
    order: Any, face: Face
) -> None:
    gate, slow = Gate(), {0}

    def work(n: int) -> Generator[int, None, None]:
        if n in slow:
            gate.wait()
        yield n
        yield n + 100

    source: list[int] = []
    builder = PipelineBuilder().add_source(source).pipe(work, concurrency=2, output_order=order)
    pipeline = builder.cache(memory="1MB", key=int).build()
    source += range(1, 5)
    drive(pipeline, face).result()
    source[:] = range(5)
    found: list[int] = []

    def look(value: int) -> None:
        found.append(value)
        if len(found) == 8:
            gate.open()

    if order == "input":
        gate.open()
    with gate.opened_at_end():
        outcome = drive(pipeline, face, on_output=look)
    assert sorted(outcome.result()) == sorted([*range(5), *range(100, 105)])
    if order == "input":
        assert found == [0, 100, 1, 101, 2, 102, 3, 103, 4, 104]
    else:
        assert found == [1, 101, 2, 102, 3, 103, 4, 104, 0, 100]


@EACH_ENGINE
def test_many_outputs_in_completion_order_are_handed_on_before_the_item_ends(face: Face) -> None:
    def many(n: int) -> Generator[int, None, None]:
        yield from range(n, n + 2000)

    pipeline = (
        numbers(4).pipe(many, concurrency=2, output_order="completion").cache(memory="10MB").build()
    )
    for _ in range(2):
        assert sorted(drive(pipeline, face).result()) == sorted(
            k for n in range(4) for k in range(n, n + 2000)
        )


@EACH_FACE
@PLACES
def test_changing_a_result_does_not_change_what_is_kept(
    place: str, face: Face, tmp_path: Path
) -> None:
    def spoil(sample: Any) -> Any:
        sample["image"] += 1
        sample["more"] = True
        return (sample["image"].tolist(), sorted(sample))

    builder = numbers(30).pipe(lambda n: {"image": np.full(3, n)}, concurrency=2)
    pipeline = cached(builder, place, tmp_path).pipe(spoil, concurrency=2).build()
    for _ in range(3):
        assert drive(pipeline, face).result() == [
            ([n + 1] * 3, ["image", "more"]) for n in range(30)
        ]


# Failures and drops


class Flaky:
    """Fails on multiples of three until it is repaired."""

    def __init__(self) -> None:
        self.works = False
        self.made: list[int] = []

    def __call__(self, n: int) -> Iterator[int]:
        self.made.append(n)
        yield n
        if n % 3 == 0 and not self.works:
            raise OSError(f"no {n}")
        yield -n


@EACH_FACE
@PLACES
@pytest.mark.parametrize("nested", [False, True], ids=["chain", "in a route"])
def test_an_item_of_which_something_failed_is_not_kept(
    nested: bool, place: str, face: Face, tmp_path: Path
) -> None:
    work = Flaky()
    builder = numbers(9).pipe(lambda n: n)
    if nested:
        builder = builder.route(lambda n: 0, lambda branch: branch.pipe(work, on_error="skip"))
    else:
        builder = builder.pipe(work, on_error="skip")
    pipeline = cached(builder, place, tmp_path).build()
    first = drive(pipeline, face)
    partial = [k for n in range(9) for k in ([n] if n % 3 == 0 else [n, -n])]
    assert first.result() == partial
    assert counts(first.statistics, "stored", "not complete") == (6, 3)
    work.works = True
    work.made.clear()
    second = drive(pipeline, face)
    assert second.result() == [k for n in range(9) for k in (n, -n)]
    assert work.made == [0, 3, 6]
    assert counts(second.statistics, "hits", "stored", "not complete") == (6, 3, 0)


@EACH_FACE
def test_a_failure_below_the_cache_does_not_matter_to_it(face: Face) -> None:
    def fails(n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n

    work = Counted(lambda n: n)
    pipeline = numbers(10).pipe(work).cache(memory="1MB").pipe(fails, on_error="skip").build()
    for _ in range(2):
        outcome = drive(pipeline, face)
        assert outcome.result() == [0, 2, 4, 6, 8]
        assert [record.index for record in outcome.failures] == [1, 3, 5, 7, 9]
    assert work.total == 10


@EACH_FACE
@PLACES
def test_what_precedes_a_failure_that_ends_the_pass_is_kept(
    place: str, face: Face, tmp_path: Path
) -> None:
    error = OSError("gone")
    fails = [True]

    def work(n: int) -> int:
        if n == 7 and fails:
            raise error
        return n

    work_once = Counted(work)
    pipeline = cached(numbers(20).pipe(work_once), place, tmp_path).build()
    outcome = drive(pipeline, face)
    assert outcome.outputs == list(range(7))
    assert outcome.error is error
    fails.clear()
    again = drive(pipeline, face)
    assert again.result() == list(range(20))
    assert counts(again.statistics, "hits", "misses") == (7, 13)
    assert all(work_once.calls[n] == 1 for n in range(7))


@EACH_FACE
def test_failures_below_name_the_same_item_in_every_pass(face: Face) -> None:
    def fails(pair: tuple[int, int]) -> None:
        raise ValueError("no")

    pipeline = (
        numbers(4).pipe(fan).cache(memory="1MB").pipe(fails, on_error=lambda failure: None).build()
    )
    places = []
    for _ in range(2):
        outcome = drive(pipeline, face)
        places.append([(record.index, record.path, record.source) for record in outcome.failures])
    assert places[0] == places[1]
    assert places[0][-1] == (3, (2,), "3")


@EACH_FACE
@PLACES
def test_what_cannot_be_kept_is_a_failure_of_the_item(
    place: str, face: Face, tmp_path: Path
) -> None:
    builder = numbers(4).pipe(lambda n: object() if n == 2 else n)
    outcome = drive(cached(builder, place, tmp_path), face)
    assert outcome.outputs == [0, 1]
    assert isinstance(outcome.error, TypeError)
    assert "cannot store object" in str(outcome.error)
    assert "'cache encode' on item 2 (2)" in notes_of(outcome.error)
    skipping = cached(builder, place, tmp_path, on_error="skip", version="2").build()
    for _ in range(2):
        outcome = drive(skipping, face)
        assert outcome.result() == [0, 1, 3]
        assert counts(outcome.statistics, "not complete") == (1,)


@EACH_FACE
def test_the_length_is_known_until_an_item_turns_out_to_be_dropped(
    face: Face, tmp_path: Path
) -> None:
    def build() -> Pipeline[Any]:
        work: Any = lambda n: DROP if n == 1 else n  # noqa: E731 -- its name is that of both
        return numbers(4).pipe(work).cache(tmp_path).aggregate(2).build()

    pipeline = build()
    assert len(pipeline) == 2
    drive(pipeline, face).result()
    with pytest.raises(TypeError, match="DROP"):
        len(pipeline)
    found = build()
    assert len(found) == 2
    drive(found, face).result()
    with pytest.raises(TypeError, match="DROP"):
        len(found)
    fanned = numbers(4).pipe(fan).cache(memory=1).build()
    with pytest.raises(TypeError, match="'fan' makes any number"):
        len(fanned)
    filtered = numbers(4).filter(bool, name="some").cache(memory=1).build()
    with pytest.raises(TypeError, match="'some' drops items"):
        len(filtered)
    assert operator.length_hint(filtered) == 4


# Keys


@EACH_FACE
def test_by_default_a_list_that_has_changed_misses(face: Face, tmp_path: Path) -> None:
    paths = ["a", "b", "c"]
    work = Counted(str.upper)
    pipeline = PipelineBuilder().add_source(paths).pipe(work).cache(tmp_path).build()
    drive(pipeline, face).result()
    paths[1] = "x"
    outcome = drive(pipeline, face)
    assert outcome.result() == ["A", "X", "C"]
    assert counts(outcome.statistics, "hits", "misses") == (2, 1)
    other = PipelineBuilder().add_source(["c", "a"]).pipe(work).cache(tmp_path).build()
    assert drive(other, face).result() == ["C", "A"]


@EACH_FACE
def test_the_position_is_that_in_the_source_failures_included(face: Face) -> None:
    class Source:
        """Gives dicts, which are no keys; the second one fails in the first pass."""

        passes = 0

        def __len__(self) -> int:
            return 4

        def __getitem__(self, n: int) -> dict[str, int]:
            if n == 0:
                self.passes += 1
            if n == 1 and self.passes == 1:
                raise OSError("away")
            return {"n": n}

    work = Counted(lambda item: item["n"])
    work.calls = Counter()
    builder = PipelineBuilder().add_source(Source(), on_error="skip")
    pipeline = builder.pipe(lambda item: item["n"]).cache(memory="1MB").build()
    assert drive(pipeline, face).result() == [0, 2, 3]
    assert drive(pipeline, face).result() == [0, 1, 2, 3]
    assert drive(pipeline, face).result() == [0, 1, 2, 3]


@EACH_FACE
def test_a_key_follows_the_item_wherever_it_stands(face: Face) -> None:
    class Shuffled:
        """Another order in each pass."""

        def __init__(self) -> None:
            self.epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[dict[str, Any]]:
            for n in range(10):
                yield {"path": Path(f"{(n + self.epoch) % 10}.jpg")}

    work = Counted(lambda item: item)
    builder = PipelineBuilder().add_source(Shuffled()).pipe(lambda item: work(str(item["path"])))
    pipeline = builder.cache(memory="1MB", key=lambda item: item["path"]).build()
    drive(pipeline, face).result()
    assert drive(pipeline, face).result() == [f"{(n + 1) % 10}.jpg" for n in range(10)]
    assert set(work.calls.values()) == {1}


@EACH_FACE
def test_items_with_one_key_share_an_entry(face: Face) -> None:
    pipeline = numbers(12).pipe(lambda n: n % 3).cache(memory="1MB", key=lambda n: n % 3).build()
    for _ in range(2):
        outcome = drive(pipeline, face)
        assert outcome.result() == [0, 1, 2] * 4
    assert counts(outcome.statistics, "hits") == (12,)


@EACH_FACE
def test_a_key_of_another_kind_is_a_failure_that_names_the_item(face: Face) -> None:
    pipeline = numbers(3).pipe(str).cache(memory=1000, key=lambda n: n / 2 if n == 1 else n)
    outcome = drive(pipeline, face)
    assert outcome.outputs == ["0"]
    assert isinstance(outcome.error, TypeError)
    assert "a key must be a str" in str(outcome.error)
    assert "stage 'cache lookup' on item 1 (1)" in notes_of(outcome.error)


@EACH_FACE
@pytest.mark.parametrize(
    "change",
    [
        lambda b, place: b.pipe(lambda n: n, name="load").cache(place, version="2"),
        lambda b, place: b.pipe(lambda n: n, name="load").cache(place, name="other"),
        lambda b, place: b.pipe(lambda n: n, name="load").pipe(abs).cache(place),
        lambda b, place: b.pipe(lambda n: n, name="read").cache(place),
    ],
    ids=["version", "name", "stage", "stage name"],
)
def test_another_version_name_or_chain_of_stages_misses(
    change: Any, face: Face, tmp_path: Path
) -> None:
    def stored(builder: Builder, name: str = "cache") -> Any:
        return notes(drive(builder, face).statistics, name)["stored"]

    same = numbers(3).pipe(lambda n: n, name="load").cache(tmp_path)
    assert stored(same) == 3
    assert stored(same) == 0
    changed = change(numbers(3), tmp_path)
    name = (
        "other"
        if "'other'" in str(changed.build().describe())
        or "other:" in str(changed.build().describe())
        else "cache"
    )
    assert stored(changed, name) == 3
    assert stored(same) == 0  # both are there


@EACH_FACE
def test_samples_of_tar_shards_are_kept_as_they_are(face: Face, tmp_path: Path) -> None:
    for shard in range(2):
        with TarWriter(tmp_path / f"{shard}.tar") as writer:
            for n in range(3):
                writer.write({"__key__": f"{shard}/{n}", "bin": bytes(n)})
    shards = PipelineBuilder().add_source(sorted(tmp_path.glob("*.tar"))).expand(tar_samples)
    for _ in range(2):
        outcome = drive(shards.cache(tmp_path / "kept"), face)
        assert outcome.error is None
        assert [bytes(sample["bin"]) for sample in outcome.outputs] == [b"", b"\0", b"\0\0"] * 2
    assert notes(outcome.statistics)["hits"] == 2


@EACH_FACE
def test_how_many_calls_a_stage_may_have_is_no_other_chain(face: Face, tmp_path: Path) -> None:
    def stored(first: int, second: int, cache: int) -> Any:
        chain = numbers(3).pipe(abs, concurrency=first).pipe(str, concurrency=second)
        return notes(drive(chain.cache(tmp_path, concurrency=cache), face).statistics)["stored"]

    assert stored(1, 4, 4) == 3
    assert [stored(4, 4, 4), stored(4, 1, 2), stored(1, 1, 1)] == [0, 0, 0]  # one hop, or two


@EACH_FACE
def test_items_of_zipped_and_merged_sources_are_kept_by_their_key(face: Face) -> None:
    def build() -> Pipeline[Any]:
        zipped = PipelineBuilder().add_source(Zip(numbers(6), numbers(6).pipe(str)))
        chain = zipped.pipe(lambda pair: pair[0] + int(pair[1])).expand(lambda n: [n, n])
        return chain.cache(memory="1MB", key=lambda pair: pair[0]).aggregate(4).build()

    pipeline = build()
    for epoch in range(2):
        outcome = drive(pipeline, face)
        assert outcome.result() == [[0, 0, 2, 2], [4, 4, 6, 6], [8, 8, 10, 10]]
        assert outcome.statistics.in_flight == 0
        assert counts(outcome.statistics, "hits") == (6 * epoch,)
    inner = numbers(4).pipe(str).cache(memory="1MB")
    merged = PipelineBuilder().add_source(Merge(inner, numbers(4).pipe(str))).build()
    for _ in range(2):
        assert sorted(drive(merged, face).result()) == sorted(list("0123") * 2)


# Files


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.cached"))


def build_in(folder: Path, count: int = 6, **options: Any) -> tuple[Pipeline[Any], Counted]:
    work = Counted(lambda n: {"image": np.full(50, n, np.uint8), "n": n})
    builder = numbers(count).pipe(work, name="load").cache(folder, **options)
    return builder.pipe(lambda sample: (sample["n"], sample["image"].tolist())).build(), work


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "head": lambda data: data[:20],
    "truncated": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "flipped magic": lambda data: b"x" + data[1:],
    "flipped header": lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    "flipped data": lambda data: data[:-50] + bytes([data[-50] ^ 128]) + data[-49:],
    "another file": lambda data: b"PK\x03\x04" * 100,
    "zeros": lambda data: bytes(len(data)),
}


@EACH_FACE
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_entry_is_deleted_counted_and_made_again(
    damage: Callable[[bytes], bytes], face: Face, tmp_path: Path
) -> None:
    pipeline, work = build_in(tmp_path)
    expected = drive(pipeline, face).result()
    for path in entries(tmp_path)[:2]:
        path.write_bytes(damage(path.read_bytes()))
    outcome = drive(pipeline, face)
    assert outcome.result() == expected
    assert counts(outcome.statistics, "hits", "misses", "damaged", "stored") == (4, 2, 2, 2)
    assert work.total == 8
    assert counts(drive(pipeline, face).statistics, "hits", "damaged") == (6, 0)


@EACH_FACE
def test_a_damaged_entry_that_cannot_be_deleted_is_made_again(
    face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    chain = numbers(3).pipe(str).cache(tmp_path)
    drive(chain, face)
    next(tmp_path.iterdir()).write_bytes(b"")
    with monkeypatch.context() as patch:
        patch.setattr("spdl_async._cache.folder.os.unlink", refuse)
        outcome = drive(chain, face)
    assert outcome.outputs == ["0", "1", "2"]
    assert counts(outcome.statistics, "hits", "damaged", "stored") == (2, 1, 1)


@EACH_FACE
def test_an_entry_that_was_moved_to_another_name_is_damaged(face: Face, tmp_path: Path) -> None:
    pipeline, _ = build_in(tmp_path)
    expected = drive(pipeline, face).result()
    one, other = entries(tmp_path)[:2]
    other.write_bytes(one.read_bytes())
    outcome = drive(pipeline, face)
    assert outcome.result() == expected
    assert counts(outcome.statistics, "damaged") == (1,)


@EACH_FACE
@PLACES
def test_what_was_used_least_recently_goes(place: str, face: Face, tmp_path: Path) -> None:
    source = [0, 1, 2]
    work = Counted(lambda n: np.zeros(1000, np.uint8))
    builder = PipelineBuilder().add_source(source).pipe(work)
    size = 4500  # three entries of some 1,200 bytes
    pipeline = cached(builder, place, tmp_path, key=int, size=size).build()
    for n in (0, 1, 2, 0):
        source[:] = [n]
        drive(pipeline, face).result()
    source[:] = [3]
    outcome = drive(pipeline, face)
    assert counts(outcome.statistics, "stored", "evicted") == (1, 1)
    assert notes(outcome.statistics)["bytes"] <= size
    source[:] = [0, 2, 3]
    outcome = drive(pipeline, face)
    assert counts(outcome.statistics, "hits") == (3,)
    source[:] = [1]
    assert counts(drive(pipeline, face).statistics, "misses") == (1,)


@EACH_FACE
@PLACES
def test_an_entry_that_is_larger_than_all_is_not_kept(
    place: str, face: Face, tmp_path: Path
) -> None:
    builder = numbers(3).pipe(lambda n: bytes(5000 if n == 1 else 10))
    pipeline = cached(builder, place, tmp_path, size=3000).build()
    for _ in range(2):
        outcome = drive(pipeline, face)
        assert [len(value) for value in outcome.result()] == [10, 5000, 10]
        assert counts(outcome.statistics, "too large", "evicted") == (1, 0)
    assert counts(outcome.statistics, "hits") == (2,)


def test_entries_of_before_count_and_a_smaller_limit_lets_some_go(tmp_path: Path) -> None:
    pipeline, _ = build_in(tmp_path)
    drive(pipeline, Face.SYNC).result()
    total = sum(path.stat().st_size for path in entries(tmp_path))
    smaller, _ = build_in(tmp_path, max_bytes=total // 2)
    outcome = drive(smaller, Face.SYNC)
    assert notes(outcome.statistics)["evicted"] >= 3
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= total // 2


def test_unfinished_files_of_dead_processes_are_removed_and_those_of_live_ones_kept(
    tmp_path: Path,
) -> None:
    from spdl_async._cache.folder import UNFINISHED, _host

    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead = tmp_path / f"{UNFINISHED}{_host()}-{child.pid}-0"
    ours = tmp_path / f"{UNFINISHED}{_host()}-{os.getpid()}-999999"
    elsewhere = tmp_path / f"{UNFINISHED}{'0' * 12}-{child.pid}-0"
    old = tmp_path / f"{UNFINISHED}{'0' * 12}-1-0"
    foreign = tmp_path / "readme.txt"
    for path in (dead, ours, elsewhere, old, foreign):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    pipeline, _ = build_in(tmp_path)
    drive(pipeline, Face.SYNC).result()
    assert {path for path in (dead, ours, elsewhere, old, foreign) if path.exists()} == {
        ours,
        elsewhere,
        foreign,
    }


@EACH_FACE
def test_writes_that_fail_are_counted_and_logged_once_and_the_pass_goes_on(
    face: Face, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    pipeline, _ = build_in(tmp_path)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "spdl_async"):
        patch.setattr("spdl_async._cache.folder.os.replace", full)
        outcome = drive(pipeline, face)
    assert len(outcome.result()) == 6
    assert counts(outcome.statistics, "misses", "stored", "failed writes") == (6, 0, 6)
    (record,) = caplog.records
    assert "stage 'cache' keeps less than it could: OSError: [Errno 28]" in record.getMessage()
    assert list(tmp_path.iterdir()) == []
    assert counts(drive(pipeline, face).statistics, "stored", "failed writes") == (6, 0)


@EACH_FACE
def test_an_entry_that_cannot_be_read_is_a_failure_of_its_item(face: Face, tmp_path: Path) -> None:
    pipeline, _ = build_in(tmp_path)
    drive(pipeline, face).result()
    for path in entries(tmp_path):
        path.unlink()
        path.mkdir()
    outcome = drive(pipeline, face)
    assert isinstance(outcome.error, IsADirectoryError)
    assert "'cache lookup' on item 0" in notes_of(outcome.error)


@EACH_FACE
def test_a_folder_that_is_removed_meanwhile_is_made_again(face: Face, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    pipeline, _ = build_in(folder)
    drive(pipeline, face).result()
    shutil.rmtree(folder)
    assert counts(drive(pipeline, face).statistics, "stored", "failed writes") == (6, 0)
    assert len(entries(folder)) == 6


@EACH_FACE
def test_the_few_items_that_fail_in_each_pass_do_not_end_the_later_ones(face: Face) -> None:
    def work(n: int) -> int:
        if n % 50 == 7:
            raise OSError("damaged")
        return n

    allowed = Fraction(1, 20)
    pipeline = numbers(200).pipe(work, max_failures=allowed).cache(memory="1MB").build()
    for epoch in range(2):
        outcome = drive(pipeline, face)
        assert len(outcome.result()) == 196
        assert counts(outcome.statistics, "hits", "not complete") == (196 * epoch, 4)
        assert outcome.statistics.failures == 4


# Several at once: scenario A11

CHILD = """
import itertools, os, sys, time
import numpy as np
from spdl_async import PipelineBuilder
folder, count, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def load(n):
    return {"image": np.full(20_000, n % 251, np.uint8), "n": n}
if mode == "stuck":
    import spdl_async._cache.folder as module
    real, writes = module.pieces, itertools.count()
    def pieces(name, version, outputs):
        made = real(name, version, outputs)
        if next(writes) == 3:
            def half():
                yield made[0]
                print("in the middle", flush=True)
                time.sleep(600)
            made = Half(made, half)
        return made
    class Half(list):
        def __init__(self, made, half):
            super().__init__(made)
            self.half = half
        def __iter__(self):
            return self.half() if sys._getframe(1).f_code.co_name == "_write" else super().__iter__()
    module.pieces = pieces
builder = PipelineBuilder().add_source(range(count)).pipe(load, concurrency=4)
pipeline = builder.cache(folder, max_bytes="4MB").build()
for _ in range(2):
    with pipeline.run_sync() as run:
        for n, sample in enumerate(run):
            assert sample["n"] == n, (sample["n"], n)
            assert (sample["image"] == n % 251).all()
        assert n == count - 1
        found = dict(run.statistics().stage("cache").notes)
        assert found["damaged"] == found["failed writes"] == 0, found
print("done", found["hits"], flush=True)
"""


@contextlib.contextmanager
def children(number: int, folder: Path, count: int, mode: str) -> Iterator[list[Any]]:
    """Run processes that use one folder; kill what is left of them."""
    arguments = [sys.executable, "-W", "error", "-c", CHILD, str(folder), str(count), mode]
    started = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(number)
    ]
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            each.communicate(timeout=20)


def unfinished(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.suffix != ".cached"]


def test_a_run_that_was_killed_while_it_wrote_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    with children(1, tmp_path, 30, "stuck") as (killed,):
        assert killed.stdout.readline() == "in the middle\n"
        killed.send_signal(signal.SIGKILL)
        killed.wait(timeout=20)
    assert len(unfinished(tmp_path)) >= 1
    with children(1, tmp_path, 30, "plain") as (after,):
        said, errors = after.communicate(timeout=30)
        assert (after.returncode, said) == (0, "done 30\n"), errors
    assert unfinished(tmp_path) == []


def test_four_processes_share_a_folder(tmp_path: Path) -> None:
    """The limit is below what they make, so that they also delete what others read."""
    with children(4, tmp_path, 220, "plain") as started:
        for each in started:
            _, errors = each.communicate(timeout=50)
            assert each.returncode == 0, errors
    assert unfinished(tmp_path) == []


@EACH_ENGINE
@PLACES
def test_two_live_runs_share_a_cache(place: str, face: Face, tmp_path: Path) -> None:
    work = Counted(lambda n: n)
    pipeline = cached(numbers(50).pipe(work, concurrency=2), place, tmp_path).build()

    async def both() -> list[list[int]]:
        async def one() -> list[int]:
            async with pipeline.run() as run:
                return [value async for value in run]

        return list(await asyncio.gather(one(), one()))

    assert run_loop(both(), face) == [list(range(50))] * 2
    assert drive(pipeline, face).result() == list(range(50))
    assert 50 <= work.total <= 100


@PLACES
def test_epochs_that_overlap_share_a_cache(place: str, tmp_path: Path) -> None:
    work = Counted(lambda n: n)
    pipeline = cached(numbers(50).pipe(work, concurrency=2), place, tmp_path).aggregate(8).build()
    with pipeline.epochs(4) as epochs:
        for number, run in enumerate(epochs):
            assert [n for batch in run for n in batch] == list(range(50))
            if number > 1:
                assert notes(run.statistics())["hits"] == 50
    assert 50 <= work.total <= 100


@EACH_FACE
@PLACES
def test_what_a_take_below_has_delivered_is_kept(place: str, face: Face, tmp_path: Path) -> None:
    work = Counted(lambda n: n)
    pipeline = cached(numbers(1000).pipe(work), place, tmp_path).take(5).build()
    assert drive(pipeline, face).result() == list(range(5))
    outcome = drive(pipeline, face)
    assert outcome.result() == list(range(5))
    assert all(work.calls[n] == 1 for n in range(5))


@EACH_ENGINE
@PLACES
def test_a_run_that_is_left_early_ends_at_once_and_loses_nothing_kept(
    place: str, face: Face, tmp_path: Path
) -> None:
    work = Counted(lambda n: n)
    pipeline = cached(numbers(1000).pipe(work, concurrency=2), place, tmp_path).build()
    drive(pipeline, face, take=7)
    outcome = drive(pipeline, face)
    assert outcome.result() == list(range(1000))
    assert notes(outcome.statistics)["hits"] >= 7
    assert all(work.calls[n] == 1 for n in range(7))


# Bytes in flight, other executors


@EACH_ENGINE
@PLACES
def test_the_byte_budget_holds_with_a_cache(place: str, face: Face, tmp_path: Path) -> None:
    builder = numbers(60).pipe(lambda n: np.full(10_000, n % 200, np.uint8), concurrency=4)
    builder = cached(builder, place, tmp_path).pipe(lambda array: array, concurrency=2)
    pipeline = builder.build(max_bytes=150_000)
    for epoch in range(2):
        outcome = drive(pipeline, face)
        assert [int(array[0]) for array in outcome.result()] == [n % 200 for n in range(60)]
        found = outcome.statistics.bytes
        assert found is not None
        assert found.peak <= 150_000 + 4 * 10_500
        assert found.held == 0
        assert counts(outcome.statistics, "hits") == (60 * epoch,)


@EACH_ENGINE
def test_the_bytes_of_an_entry_count_while_it_is_not_written(face: Face) -> None:
    gate = Gate()
    pipeline = numbers(1).pipe(lambda n: np.zeros(10_000, np.uint8)).cache(memory="1MB")
    built = pipeline.build(max_bytes="1MB")
    writes = blocked(built, gate)
    with gate.opened_at_end():
        outcome = drive(built, face, on_output=lambda value: gate.open())
    outcome.result()
    assert writes == [1]
    found = outcome.statistics.bytes
    assert found is not None
    assert 20_000 <= found.peak < 25_000  # the value and its copy
    assert found.held == 0


def blocked(pipeline: Pipeline[Any], gate: Gate) -> list[int]:
    """Have the writes of a pipeline's cache wait at a gate; return what counts them."""
    (plan,) = [step for step in pipeline._plan.steps if isinstance(step, CachePlan)]
    write, writes = plan.store.write, list[int]()

    def later(*arguments: Any) -> Any:
        gate.wait()
        written = write(*arguments)
        writes.append(1)
        return written

    plan.store.write = later  # type: ignore[assignment]  # that is the test
    return writes


@EACH_ENGINE
def test_the_data_end_only_when_all_is_written(face: Face) -> None:
    gate = Gate()
    pipeline = numbers(3).pipe(str).cache(memory="1MB").build()
    writes = blocked(pipeline, gate)
    opener = threading.Timer(0.1, gate.open)  # a late one makes this slow, an early one weak
    seen: list[int] = []

    def look(value: str) -> None:
        if value == "2":
            assert not writes
            opener.start()

    with gate.opened_at_end():
        drive(pipeline, face, on_output=look, on_end=lambda: seen.append(len(writes))).result()
    opener.join()
    assert seen == [3]


def test_a_write_that_hangs_is_named_where_a_run_is_left() -> None:
    gate = Gate()
    pipeline = numbers(3).pipe(str).cache(memory="1MB").build()
    blocked(pipeline, gate)
    run = pipeline.run_sync(shutdown_timeout=0.05)
    with gate.opened_at_end():
        with pytest.raises(ShutdownTimeout, match="'cache'"), run:
            next(run)
        gate.open()
        run.close()


@EACH_ENGINE
def test_a_function_for_sizes_sees_only_what_ops_have_made(face: Face) -> None:
    seen: set[type] = set()

    def size_of(value: Any) -> int:
        seen.add(type(value))
        return 10

    pipeline = numbers(20).pipe(fan).cache(memory="1MB").build(max_bytes=1000, size_of=size_of)
    for _ in range(2):
        drive(pipeline, face).result()
    assert seen == {int, tuple}


def double(n: int) -> int:
    return 2 * n


def test_ops_in_other_processes_are_cached_here() -> None:
    with ProcessPoolExecutor(1) as pool:
        pipeline = numbers(5).pipe(double).cache(memory="1MB").build(executor=pool)
        for epoch in range(2):
            outcome = drive(pipeline, Face.SYNC)
            assert outcome.result() == [0, 2, 4, 6, 8]
            assert counts(outcome.statistics, "hits") == (5 * epoch,)


# What cannot be


REFUSED: dict[str, tuple[Callable[[], Builder], str]] = {
    "nothing above": (lambda: numbers(3).cache(memory=1), "nothing above it but the source"),
    "aggregate": (
        lambda: numbers(3).aggregate(2).pipe(len).cache(memory=1),
        r"cache\(memory\): aggregate stands above it.*put \.cache\(\) above that stage",
    ),
    "disaggregate": (
        lambda: numbers(3).disaggregate().cache(memory=1),
        "disaggregate stands above",
    ),
    "shuffle": (lambda: numbers(3).shuffle(2).cache(memory=1), r"shuffle\(2\) stands above"),
    "take": (lambda: numbers(3).take(2).cache(memory=1), r"take\(2\) stands above"),
    "skip": (lambda: numbers(3).skip(2).cache(memory=1), r"skip\(2\) stands above"),
    "enumerate": (lambda: numbers(3).enumerate().cache(memory=1), r"enumerate\(\) stands above"),
    "two": (
        lambda: numbers(3).pipe(str).cache(memory=1).pipe(str).cache(memory=1),
        r"there is a cache\(memory\) above it",
    ),
    "in a branch": (
        lambda: numbers(3).route(lambda n: 0, lambda b: b.pipe(str).cache(memory=1)),
        "a branch of a route has no cache; put it below the route",
    ),
    "gathering in a branch": (
        lambda: (
            numbers(3)
            .route(lambda n: 0, lambda b: b.aggregate(2), output_order="completion")
            .cache(memory=1)
        ),
        "aggregate stands above it",
    ),
    "set_epoch": (
        lambda: PipelineBuilder().add_source(Epochal()).pipe(str).cache(memory=1),
        r"set_epoch\(\).*give key=",
    ),
    "merge": (
        lambda: (
            PipelineBuilder().add_source(Merge(numbers(2), numbers(2))).pipe(str).cache(memory=1)
        ),
        "brings several sources together.*give key=",
    ),
    "iterator": (
        lambda: PipelineBuilder().add_source(iter([1])).pipe(str).cache(memory=1),
        "the source is an iterator.*give key=",
    ),
    "async key": (
        lambda: numbers(2).pipe(str).cache(memory=1, key=later),
        "key must be an ordinary function of a source item, not a async",
    ),
    "key without arguments": (
        lambda: numbers(2).pipe(str).cache(memory=1, key=cast("Any", no_argument)),
        "one argument",
    ),
}


def no_argument() -> Any:
    return 1


class Epochal(list[int]):
    def set_epoch(self, epoch: int) -> None:
        """Do nothing."""


@pytest.mark.parametrize(("make", "match"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_cached_is_an_error_of_build(
    make: Callable[[], Builder], match: str
) -> None:
    with pytest.raises(BuildError, match=match):
        make().build()


BAD: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {}, r'say where: \.cache\(memory="2GB"\)'),
    (("a",), {"memory": 1}, "say where"),
    ((), {"memory": 1, "max_bytes": 1}, "max_bytes= is for a folder"),
    ((), {"memory": "2 apples"}, "memory must be a number of bytes"),
    (("a",), {"max_bytes": 0}, "max_bytes must be at least 1"),
    ((3,), {}, "the folder must be a path, not 3"),
    ((__file__,), {}, "is a file; give a folder"),
    ((f"{__file__}/deep/er",), {}, "is a file; give a folder"),
    (("",), {}, "the folder is the empty text"),
    (("a",), {"version": 2}, "version must be a str"),
    (("a",), {"concurrency": 0}, "concurrency"),
    (("a",), {"on_error": "ignore"}, "on_error"),
]


@pytest.mark.parametrize(("arguments", "options", "match"), BAD, ids=lambda v: str(v)[:20])
def test_bad_options_are_errors_where_they_are_written(
    arguments: tuple[Any, ...], options: dict[str, Any], match: str
) -> None:
    builder = numbers(3).pipe(str)
    with pytest.raises(BuildError, match=match):
        builder.cache(*arguments, **options)


def test_the_description_says_where_and_what_and_draws_both_ways(tmp_path: Path) -> None:
    pipeline = (
        numbers(9)
        .pipe(str, name="load", concurrency=3)
        .cache(tmp_path, max_bytes="2GB", version="7", key=int)
        .aggregate(4)
        .build()
    )
    description = pipeline.describe()
    text = str(description)
    assert f"cache: kept in {tmp_path}, at most 2 GB, key: a function of the source item" in text
    assert "version '7'" in text
    assert "load + cache encode: in threads, concurrency 3, input order, fused" in text
    assert description.source_items_bound is not None
    lines = description.mermaid.splitlines()
    assert sum(line.endswith("--> s3") for line in lines) == 2  # found and made
    assert any("|not found|" in line for line in lines)
    assert len(pipeline) == 3


def test_the_item_type_stays() -> None:
    builder = PipelineBuilder().add_source([1]).pipe(str).cache(memory="1MB")
    assert_type(builder, PipelineBuilder[str])
    pipeline = builder.build()
    assert_type(pipeline, Pipeline[str])
