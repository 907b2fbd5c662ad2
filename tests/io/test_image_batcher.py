"""ImageBatcher: exact batches without copies, whatever fails, is dropped, or stops."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from spdl_async import DROP, Pipeline, PipelineBuilder, Retry
from spdl_async.errors import BuildError, DecodeError
from spdl_async.io import ImageBatcher, ImageRow, decode_image, encode_image

pytestmark = pytest.mark.torch

SIZE = (6, 8)
FILES = [encode_image(np.full((6, 8, 3), n, np.uint8), format="PNG") for n in range(200)]


def pictures(*numbers: int) -> np.ndarray:
    """The batch that these numbers make: every pixel of picture n is n."""
    return np.stack([np.full((6, 8, 3), n, np.uint8) for n in numbers])


class Memories:
    """An `allocate` that remembers what it made."""

    def __init__(self) -> None:
        self.made: list[np.ndarray] = []

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        self.made.append(np.full(shape, 255, np.uint8))
        return self.made[-1]

    def holds(self, batch: Any) -> bool:
        """Whether a batch begins where one of them does."""
        return any(batch.data_ptr() == memory.ctypes.data for memory in self.made)


def batches(items: Any, batcher: ImageBatcher, **options: Any) -> Pipeline[Any]:
    return PipelineBuilder().add_source(items).apply(batcher.stages(**options)).build()


def moved_of(batcher: ImageBatcher) -> dict[str, int]:
    counts = batcher.statistics()
    del counts["allocated"]
    return counts


def test_rows_are_decoded_in_place_in_order() -> None:
    memories = Memories()
    batcher = ImageBatcher(16, size=SIZE, allocate=memories)
    for number, batch in enumerate(batches(FILES, batcher, concurrency=4)):
        start = number * 16
        assert np.array_equal(batch.numpy(), pictures(*range(start, min(start + 16, 200))))
        assert memories.holds(batch)
    assert moved_of(batcher) == {"in_place": 200, "moved": 0, "copied": 0}


@pytest.mark.parametrize("bad", [{0}, {15}, {16}, {3, 4, 40, 41, 42, 99, 150}, set(range(0, 200, 3)),
                                 set(range(60)), set(range(199))])  # fmt: skip
@pytest.mark.parametrize("concurrency", [1, 4])
def test_failures_leave_no_hole(bad: set[int], concurrency: int) -> None:
    files = [b"damaged" if n in bad else data for n, data in enumerate(FILES)]
    good = [n for n in range(200) if n not in bad]
    batcher = ImageBatcher(16, size=SIZE)
    got = list(batches(files, batcher, concurrency=concurrency, on_error="skip"))
    moved = moved_of(batcher)
    assert [len(batch) for batch in got[:-1]] == [16] * (len(got) - 1)
    assert np.array_equal(np.concatenate(got), pictures(*good))
    assert moved["copied"] == 0, "no batch is copied because of failures"
    assert moved["moved"] + moved["in_place"] == len(good)
    if len(bad) == 1:
        assert moved["in_place"] > 100, "behind a failure all is in its place again"


def test_labels_and_other_fields_go_along(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Sample:
        picture: Any
        label: int

    for n in range(5):
        (tmp_path / f"{n}.png").write_bytes(FILES[n])
    paths = [tmp_path / f"{n}.png" for n in range(5)]
    batcher = ImageBatcher(2, size=SIZE, field="picture")
    samples = [Sample(path, n) for n, path in enumerate(paths)]
    samples[1] = Sample(tmp_path / "none.png", 1)
    got = list(batches(samples, batcher, concurrency=2, on_error="skip", drop_last=True))
    assert [sample.label.tolist() for sample in got] == [[0, 2], [3, 4]]
    assert np.array_equal(got[0].picture.numpy(), pictures(0, 2))
    items = [{"jpg": FILES[n], "key": str(n)} for n in range(4)]
    both = list(batches(items, ImageBatcher(2, size=SIZE, field="jpg", layout="CHW")))
    assert [b["key"] for b in both] == [["0", "1"], ["2", "3"]]
    assert both[1]["jpg"].shape == (2, 3, 6, 8)
    assert np.array_equal(both[1]["jpg"].numpy().transpose(0, 2, 3, 1), pictures(2, 3))


def parts(
    batcher: ImageBatcher, between: Callable[[ImageRow], Any], **options: Any
) -> Pipeline[Any]:
    """The chain in its parts, with a stage between decoding and the batch."""
    return (
        PipelineBuilder()
        .add_source(FILES)
        .aggregate(batcher.rows)
        .pipe(batcher.decode, concurrency=3, **options)
        .pipe(between)
        .aggregate(batcher.batch_size)
        .pipe(batcher.collate)
        .build()
    )


def test_rows_that_a_stage_drops_or_changes() -> None:
    def keep_even_and_add_one(row: ImageRow) -> Any:
        if row.pixels[0, 0, 0] % 2:
            return DROP
        row.pixels += 1
        return row

    batcher = ImageBatcher(16, size=SIZE)
    got = list(parts(batcher, keep_even_and_add_one))
    assert moved_of(batcher)["copied"] == 0
    assert np.array_equal(np.concatenate(got), pictures(*range(1, 200, 2)))


def test_completion_order_is_copied_together_but_right() -> None:
    batcher = ImageBatcher(16, size=SIZE)
    got = np.concatenate(list(parts(batcher, lambda row: row, output_order="completion")))
    assert sorted(got[:, 0, 0, 0]) == list(range(200))
    assert all((picture == picture[0, 0]).all() for picture in got)


def test_a_retried_picture_comes_where_it_belongs() -> None:
    tried: set[int] = set()

    class Sometimes(ImageBatcher):
        def decode(self, row: ImageRow, /) -> ImageRow:
            first = id(row) not in tried and row.item in FILES[5:200:7]
            if first:
                tried.add(id(row))
                row.release()
                raise OSError("try again")
            return super().decode(row)

    retry = Retry(attempts=2, backoff=0.0, on=(OSError,))
    batcher = Sometimes(16, size=SIZE)
    got = np.concatenate(list(parts(batcher, lambda row: row, retry=retry)))
    assert np.array_equal(got, pictures(*range(200)))
    assert sum(moved_of(batcher).values()) == 200


def test_memory_is_used_again_only_when_the_batch_is_dropped() -> None:
    memories = Memories()
    batcher = ImageBatcher(4, size=SIZE, allocate=memories, keep=200)
    pipeline = batches(FILES * 5, batcher, concurrency=2)
    for batch in pipeline:
        del batch
    assert len(memories.made) == batcher.statistics()["allocated"] < 150, "of 250 batches"
    for batch in pipeline:
        del batch
    assert len(memories.made) < 150, "the second pass uses them again"
    kept: list[Any] = []
    with pipeline.run_sync() as run:
        for number, batch in enumerate(run):
            # Views count: a row, a tensor of another shape, an array of the tensor.
            if number % 3 == 0:
                kept.append((number, (batch, batch[:, 0], batch.view(-1).numpy())[number % 9 // 3]))
    assert len(memories.made) >= len(kept)
    for number, part in kept:
        first = number * 4 % 200
        numbers = set(range(first, first + 4))
        assert set(np.unique(np.asarray(part))) == numbers, "nobody has written over it"


def test_several_runs_of_one_pipeline_at_once() -> None:
    batcher = ImageBatcher(16, size=SIZE)
    pipeline = batches(FILES, batcher, concurrency=2)
    with pipeline.run_sync() as one, pipeline.run_sync() as two:
        for first, second in itertools.zip_longest(one, two):
            assert torch.equal(first, second)
            assert first.data_ptr() != second.data_ptr()
    assert moved_of(batcher) == {"in_place": 400, "moved": 0, "copied": 0}


def test_overlapping_epochs() -> None:
    batcher = ImageBatcher(16, size=SIZE)
    with batches(FILES, batcher, concurrency=3).epochs(4) as epochs:
        for run in epochs:
            assert np.array_equal(np.concatenate(list(run)), pictures(*range(200)))
    assert moved_of(batcher) == {"in_place": 800, "moved": 0, "copied": 0}


def test_a_partial_batch_in_between_costs_one_copied_batch() -> None:
    """As ``aggregate(within=)`` makes them."""
    batcher = ImageBatcher(8, size=SIZE)
    rows = batcher.rows()
    made = [row for data in FILES[:12] for row in rows.accumulate(data)]
    made = [batcher.decode(row) for row in made]
    assert np.array_equal(batcher.collate(made[:5]).numpy(), pictures(*range(5)))
    later = [batcher.decode(row) for data in FILES[12:29] for row in rows.accumulate(data)]
    rest = made[5:] + later
    got = [batcher.collate(rest[n : n + 8]) for n in range(0, 24, 8)]
    assert np.array_equal(np.concatenate(got), pictures(*range(5, 29)))
    assert moved_of(batcher)["copied"] <= 8


def test_stopping_early_gives_all_memory_back() -> None:
    memories = Memories()
    batcher = ImageBatcher(4, size=SIZE, allocate=memories, keep=100)
    pipeline = batches(lambda: itertools.cycle(FILES), batcher, concurrency=3)
    for _ in range(3):
        with pipeline.run_sync() as run:
            for batch in itertools.islice(run, 5):
                del batch
        del run
    gc.collect()
    assert len(batcher._memory._unused) == len(memories.made)


def test_a_failure_ends_the_run_after_exactly_what_came_before() -> None:
    files = [*FILES[:20], b"damaged", *FILES[20:]]
    got: list[Any] = []
    with pytest.raises(DecodeError, match="looks like text: 'damaged'"):
        for batch in batches(files, ImageBatcher(4, size=SIZE), concurrency=3):
            got.append(batch)
    assert np.array_equal(np.concatenate(got), pictures(*range(20)))


def test_many_threads_on_the_parts_themselves() -> None:
    """Without a pipeline: rows given, decoded and lost in any order, batches made by two threads."""
    batcher = ImageBatcher(8, size=SIZE)
    rows = batcher.rows()
    made = [row for data in FILES[:160] for row in rows.accumulate(data)]
    start = threading.Barrier(4)
    results: dict[int, Any] = {}

    def work(first: int) -> None:
        start.wait()
        for number in range(first, 20, 4):
            members = [batcher.decode(row) for row in made[number * 8 : number * 8 + 8]]
            results[number] = batcher.collate(members)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = np.concatenate([results[n] for n in range(20)])
    assert np.array_equal(got, pictures(*range(160)))


def test_a_tensor_as_memory_and_options_of_decoding() -> None:
    def allocate(shape: tuple[int, ...]) -> Any:
        return torch.full(shape, 9, dtype=torch.uint8)

    data = encode_image(np.random.default_rng(0).integers(0, 255, (40, 30, 3), np.uint8))
    batcher = ImageBatcher(2, size=16, mode="L", fit="contain", allocate=allocate)
    batch = next(iter(batches([data] * 4, batcher)))
    expected = decode_image(data, size=16, mode="L", fit="contain")
    assert np.array_equal(batch.numpy(), np.stack([expected] * 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": None}, "one shape"),
        ({"size": 8, "mode": "unchanged"}, "one shape"),
        ({"size": 8, "fit": "crop"}, "fit must be one of"),
        ({"size": 8, "keep": -1}, "keep must be"),
        ({"size": 8, "allocate": 5}, "allocate must be"),
    ],
)
def test_wrong_arguments(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageBatcher(4, **options)
    with pytest.raises(ValueError, match="batch_size must be"):
        ImageBatcher(0, size=8)


def test_a_batcher_in_the_wrong_place_says_where_it_belongs() -> None:
    batcher: Any = ImageBatcher(2, size=SIZE)
    for verb in ("pipe", "aggregate"):
        builder: Any = PipelineBuilder().add_source(FILES)
        with pytest.raises(BuildError, match=r"add its stages by \.apply\(….stages\(\)\)"):
            getattr(builder, verb)(batcher).build()
    builder = PipelineBuilder().add_source(FILES)
    with pytest.raises(BuildError, match=r"add its stages by \.apply\(….stages\(\)\)"):
        builder.apply(batcher)
    with pytest.raises(BuildError, match=r"called with one argument, the builder.*, call it"):
        builder.apply(batcher.stages)
    with pytest.raises(TypeError, match=r"by \.apply\(batcher\.stages\(\)\).* this bytes"):
        list(builder.pipe(batcher.stages()).build())


@pytest.mark.parametrize("sample", [(FILES[0], 1), {"image": FILES[0]}, [FILES[0]]])
def test_a_sample_in_place_of_a_picture_asks_for_the_field(sample: Any) -> None:
    builder = PipelineBuilder().add_source([sample])
    with pytest.raises(TypeError, match="say where it is, with field="):
        list(builder.apply(ImageBatcher(1, size=SIZE).stages()).build())
    with pytest.raises(TypeError, match=r"say where it is, with on\('field', decode_image\)"):
        decode_image(sample)


def test_misuse_says_what_is_missing() -> None:
    batcher = ImageBatcher(2, size=SIZE)
    with pytest.raises(TypeError, match=r"\.aggregate\(batcher\.rows\) before it"):
        batcher.decode(FILES[0])  # type: ignore[arg-type]  # the mistake under test
    rows = [batcher.rows().accumulate(FILES[0])[0] for _ in range(3)]
    with pytest.raises(ValueError, match=r"3 rows for batches of 2"):
        batcher.collate(rows)
    batcher.collate(rows[:2])
    with pytest.raises(ValueError, match="in a batch already"):
        batcher.collate(rows[:2])
    wrong = ImageBatcher(2, size=SIZE, allocate=lambda shape: np.zeros(shape))
    with pytest.raises(ValueError, match="writable, C-contiguous uint8 array"):
        wrong.rows().accumulate(FILES[0])
