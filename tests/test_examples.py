"""The examples run as they are, on data of their own, and leave nothing to complain about."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = pytest.mark.torch


def run_smoke(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), "--smoke"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    assert not list(folder.iterdir()), "an example leaves files behind"
    return done.stdout


def test_every_example_is_tested() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {
        "async_training.py",
        "audio_classification.py",
        "language_model.py",
        "ordinary_loop.py",
        "shards_from_s3.py",
        "train_on_gpu.py",
        "video_clips.py",
    }


def test_async_training(tmp_path: Path) -> None:
    said = run_smoke("async_training.py", tmp_path)
    losses = [float(line.rpartition(" ")[2]) for line in said.splitlines() if "mean loss" in line]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert "training, epoch 1: 8 delivered" in said
    assert said.count("skipped: stage 'load', item 59") == 1
    assert "is the bottleneck" in said or "No stage is busy" in said


def test_ordinary_loop(tmp_path: Path) -> None:
    said = run_smoke("ordinary_loop.py", tmp_path)
    mean, deviation = ([float(n) for n in line.split()[1:]] for line in said.splitlines()[:2])
    assert len(mean) == len(deviation) == 3
    assert all(0.4 < value < 0.6 for value in mean)
    assert all(0 < value < 0.3 for value in deviation)
    assert "colours, epoch 1: 1 delivered" in said
    assert said.count("skipped: ") == 1
    assert "broken.jpg: not a picture" in said


def test_language_model(tmp_path: Path) -> None:
    said = run_smoke("language_model.py", tmp_path)
    losses = [float(line.rpartition(" ")[2]) for line in said.splitlines() if ": loss" in line]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 1.5
    assert "a.jsonl: 1 of 150 lines skipped; the first: " in said
    assert "line 11, at byte" in said
    assert "padding 0" in said


def test_shards_from_s3(tmp_path: Path) -> None:
    pytest.importorskip("moto")
    said = run_smoke("shards_from_s3.py", tmp_path)
    assert "epoch 0: class 0: 60, class 1: 60" in said
    assert "epoch 1: class 0: 60, class 1: 60" in said
    assert said.count("skipped: ") == 1
    assert "s3://smoke/drawings/part/damaged.tar" in said


def test_audio_classification(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    said = run_smoke("audio_classification.py", tmp_path)
    assert said.startswith("73 files of 3 classes: noise, sine, square")
    right = [int(line.split()[2]) for line in said.splitlines() if line.startswith("epoch ")]
    losses = [float(line.split()[-1]) for line in said.splitlines() if line.startswith("epoch ")]
    assert len(right) == 2
    assert right[1] > 36  # of 72; by chance it would be 24
    assert losses[1] < losses[0]
    assert said.count("skipped: ") == 1
    assert "broken.flac: " in said


def test_train_on_gpu(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    said = run_smoke("train_on_gpu.py", tmp_path)
    assert said.startswith("on c")  # cpu, or cuda
    losses = [float(line.rpartition(" ")[2]) for line in said.splitlines() if "mean loss" in line]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert "bytes_copied" in said
    assert said.count("skipped: ") == 1
    assert "held back: " in said
    right, _, seen = said.partition("held back: ")[2].split()[:3]
    assert int(right) > int(seen) / 2  # by chance it would be a third


def test_video_clips(tmp_path: Path) -> None:
    pytest.importorskip("av")
    said = run_smoke("video_clips.py", tmp_path)
    assert "7 videos; the first: 24 frames, 1.50 s" in said
    batches = [line for line in said.splitlines() if line.startswith("batch ")]
    assert len(batches) == 8 + 1
    assert all("(2, 8, 112, 112, 3)" in line for line in batches)
    assert "6-cut.mkv: truncated video: its segment at byte" in said
    assert "clips, epoch 1: 1 delivered" in said


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_examples_use_the_public_api_only(name: str) -> None:
    assert "spdl_async._" not in (EXAMPLES / name).read_text("utf-8")
