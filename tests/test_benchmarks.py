"""The benchmarks run, and their tables have all their rows. No time is asserted, only presence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks._measure import Contestant, Race, Target, missed, percentile, run_race, table

ROOT = Path(__file__).resolve().parent.parent


def _quick(module: str, *arguments: str) -> str:
    """Run one benchmark as a user does; warnings of ours would be errors here."""
    command = [sys.executable, "-m", module, "--quick", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_engine_prints_every_row() -> None:
    output = _quick("benchmarks.engine")
    keys = (
        "thread",
        "three",
        "async",
        "start",
        "ready",
        "waiting",
        "fairness",
        "epochs",
        "shapes",
        "growth",
        "memory",
    )
    for key in keys:
        assert f"[{key}]" in output
    for text in (
        "machine: ",
        "ThreadPoolExecutor(4).map",
        "spdl_async, for",
        "spdl_async, async for, loop='own'",
        "spdl_async, async for, asyncio.run",
        "spdl_async, fused, for",
        "spdl_async, not fused, for",
        "hand-written gather + Semaphore(4)",
        "queue.Queue between two threads",
        "spdl_async, two stages on our pool",
        "spdl_async, epochs(), for",
        "Merge of two sources, no stage",
        "route, batched, two empty branches",
        "missed: ",
    ):
        assert text in output


def test_engine_runs_the_rows_asked_for() -> None:
    output = _quick("benchmarks.engine", "--only", "start", "--rounds", "2")
    assert "[start]" in output
    assert "2 rounds" in output
    assert "[thread]" not in output


@pytest.mark.torch
def test_images_prints_both_sets() -> None:
    output = _quick("benchmarks.images")
    for text in (
        "[small]",
        "[large]",
        "bare threads, queue.Queue",
        "spdl_async, for",
        "spdl_async, async for, asyncio.run",
        "SPDL load_image_batch",
        "torch DataLoader + Pillow, 2 processes",
    ):
        assert text in output


@pytest.mark.torch
def test_images_takes_a_folder_and_leaves_out_what_is_damaged(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    from benchmarks._photos import make

    make(tmp_path, count=3, width=64, height=48)
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    output = _quick("benchmarks.images", "--folder", str(tmp_path))
    assert "[folder] 3 files" in output
    assert "left out: " in output
    assert "[small]" not in output


@pytest.mark.torch
def test_archives_prints_every_row() -> None:
    output = _quick("benchmarks.archives")
    for size in ("small", "large"):
        for way in ("memory", "file", "stream"):
            assert f"[{size}-{way}]" in output
    for text in ("iter_tar, mapped", "tar_samples", "SPDL iter_tarfile, no checksums", "missed: "):
        assert text in output


def test_arrays_prints_every_row() -> None:
    output = _quick("benchmarks.arrays")
    for text in (
        "[npy] ",
        "[npy-shapes] ",
        "[npz] ",
        "[npz-deflated] ",
        "load_npy, memoryview",
        "load_npz",
        "np.load(io.BytesIO(data)), every member",
        "missed: ",
    ):
        assert text in output


def test_storage_prints_every_row() -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("obstore")
    output = _quick("benchmarks.storage")
    for text in (
        "[objects] 100 objects of 50 KB",
        "by hand: aiohttp, gather, Semaphore",
        "spdl_async, for",
        "spdl_async, async for, asyncio.run",
        "spdl_async, async for, loop='own'",
        "spdl_async, Store (S3 protocol), async for",
        "64 threads, http.client",
        "missed: ",
    ):
        assert text in output


@pytest.mark.torch
def test_cache_prints_both_rows() -> None:
    pytest.importorskip("PIL")
    output = _quick("benchmarks.cache")
    for text in ("[photos]", "[small]", "without a cache", "second pass, folder", "bare np.load"):
        assert text in output


@pytest.mark.torch
def test_media_prints_every_row() -> None:
    pytest.importorskip("av")
    pytest.importorskip("soundfile")
    output = _quick("benchmarks.media")
    for key in ("video", "indices", "flac", "mp3", "wav"):
        assert f"[{key}]" in output
    for text in (
        "PyAV, bare threads, queue.Queue",
        "soundfile, bare threads, queue.Queue",
        "spdl_async, for",
        "missed: ",
    ):
        assert text in output


def _alternating(log: list[str], name: str, values: list[float]) -> Contestant:
    rest = iter(values)

    def run() -> float:
        log.append(name)
        return next(rest)

    return Contestant(name=name, run=run)


def test_rounds_are_interleaved_and_change_direction() -> None:
    log: list[str] = []
    one = _alternating(log, "one", [1.0, 2.0])
    two = _alternating(log, "two", [1.0, 2.0])
    race = Race(key="k", title="t", unit="u", contestants=[one, two])
    outcome = run_race(race, rounds=2, warm_up=False)
    assert log == ["one", "two", "two", "one"]
    assert outcome.values == {"one": [1.0, 2.0], "two": [1.0, 2.0]}


def test_the_ratio_is_the_median_of_the_rounds_ratios() -> None:
    log: list[str] = []
    base = _alternating(log, "base", [10.0, 100.0, 10.0])
    ours = _alternating(log, "ours", [20.0, 200.0, 50.0])
    race = Race(key="k", title="t", unit="u", contestants=[base, ours])
    outcome = run_race(race, rounds=3, warm_up=False)
    assert outcome.ratio("ours", "base") == 2.0
    assert outcome.ratio("ours", "absent") is None
    lower = Race(key="k", title="t", unit="u", contestants=[], lower_wins=True)
    outcome.race = lower
    assert outcome.ratio("ours", "base") == 0.5


def test_a_table_judges_targets_and_names_what_is_absent() -> None:
    met = (Target(bound=2.0, reference="base"), Target(bound=9.0, reference="absent"))
    contestants = [
        Contestant(name="base", run=lambda: 10.0),
        Contestant(name="quick", run=lambda: 20.0, targets=met),
        Contestant(name="slow", run=lambda: 5.0, targets=(Target(bound=4.0, at_most=True),)),
        Contestant(name="absent", run=None),
    ]
    other = (Target(bound=2.0, reference="slow"), Target(bound=9.0, reference="slow"))
    contestants.append(Contestant(name="twice", run=lambda: 20.0, targets=other))
    race = Race(key="k", title="t", unit="u", contestants=contestants, baseline="base")
    outcome = run_race(race, rounds=1)
    lines = [line.split() for line in table(outcome).splitlines()]
    assert lines[2:] == [
        ["1.00", "x", "base", "10.0", "10.0", "10.0"],
        [">=", "2", "x", "2.00", "x", "ok", "quick", "20.0", "20.0", "20.0"],
        ["<=", "4", "5.00", "MISSED", "slow", "5.00", "5.00", "5.00"],
        ["absent:", "not", "installed"],
        ["2.00", "x", "twice", "20.0", "20.0", "20.0"],  # always against the baseline
        [">=", "2", "x", "4.00", "x", "ok", "against", "slow"],
        [">=", "9", "x", "4.00", "x", "MISSED", "against", "slow"],
    ]
    assert missed(outcome) == ["[k] slow", "[k] twice"]


def test_percentile_is_the_nearest_rank() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0


@pytest.mark.torch
def test_gpu_runs_all_of_it_on_a_fake_device() -> None:
    output = _quick("benchmarks.gpu", "--fake")
    assert output.count("[torture] ok") == 2
    for text in (
        "a fake device: nothing below is a measurement",
        "[rate-16k]",
        "[step-20ms-pageable]",
        "[step-1ms-page-locked]",
        "bare copies, page-locked, into memory that is there",
        "batch.to(device), pageable",
        "no copy: batches that are there",
        "to_device, packed",
        "[synchronisations] ok     in the consumer's thread, 10 steps: none",
        "[page-locking] ok",
        "[device memory] ok",
        "[page-locked memory] ok",
        "[gil] ",
        "missed: ",
    ):
        assert text in output


@pytest.mark.torch
def test_gpu_says_in_one_line_what_is_missing() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    (line,) = _quick("benchmarks.gpu").splitlines()
    assert line.startswith("benchmarks.gpu needs a GPU that torch can use: torch ")


@pytest.mark.torch
def test_gpu_counts_calls_of_the_consumers_thread_in_a_trace() -> None:
    pytest.importorskip("torch")
    from benchmarks.gpu import CHECK, WORK, counted

    def call(name: str, at: float, thread: int) -> dict[str, object]:
        return {"name": name, "cat": "cuda_runtime", "ts": at, "dur": 1, "tid": thread}

    marks: list[dict[str, object]] = [
        {"name": WORK, "cat": "user_annotation", "ts": 10.0, "dur": 10.0, "tid": 1},
        {"name": CHECK, "cat": "user_annotation", "ts": 21.0, "dur": 5.0, "tid": 1},
        {"name": CHECK, "cat": "gpu_user_annotation", "ts": 1.0, "dur": 50.0, "tid": 7},
    ]
    calls = [
        call("cudaStreamSynchronize", 5.0, 1),  # before
        call("cudaEventSynchronize", 12.0, 2),
        call("cudaEventQuery", 13.0, 1),
        call("cudaHostAlloc", 14.0, 2),
    ]
    purpose = call("cudaDeviceSynchronize", 22.0, 1)
    others = {"cudaEventSynchronize": 1, "cudaHostAlloc": 1}
    assert counted([*marks, *calls, purpose]) == ({}, others)
    more = call("cudaStreamSynchronize", 15.0, 1)
    assert counted([*marks, *calls, purpose, more]) == ({"cudaStreamSynchronize": 1}, others)
    # Threads have other numbers there: zero would mean nothing.
    assert counted([*marks, *calls, call("cudaDeviceSynchronize", 22.0, 3)]) is None
