"""The demo's own data set: what is in it, and that it is made once and whole."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from PIL import ExifTags, Image

from spdl_async._demo import photos
from spdl_async._demo.photos import default_cache_folder, make_photos, plan_photos
from spdl_async._demo.scenes import SCENES
from spdl_async.errors import DecodeError
from spdl_async.io import read_image

pytestmark = pytest.mark.torch

COUNT = 34


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("cache") / "below" / "photos", count=COUNT)


def pictures(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.jpg"))


def test_what_is_in_it(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == sorted(SCENES)
    assert len(pictures(folder)) == COUNT
    kinds: Counter[str] = Counter()
    for path in pictures(folder):
        with path.open("rb") as file:
            if file.read(2) != b"\xff\xd8":
                continue
        with Image.open(path) as picture:
            turned = picture.getexif().get(ExifTags.Base.Orientation, 1) > 1
            progressive = "progressive" in picture.info
            kinds[f"{picture.mode}{' turned' * turned}{' progressive' * progressive}"] += 1
    assert set(kinds) == {"RGB", "L", "CMYK", "RGB turned", "RGB progressive"}
    assert min(kinds.values()) >= 2


def test_exactly_two_are_damaged(folder: Path) -> None:
    errors = {}
    for path in pictures(folder):
        try:
            read_image(path, size=32)
        except DecodeError as error:
            errors[path.stem] = str(error)
    assert len(errors) == 2
    assert "looks like HTML" in errors[f"{COUNT - 2:04}"]
    assert "truncated" in errors[f"{COUNT - 1:04}"]


def test_all_are_upright_in_the_size_that_was_planned(folder: Path) -> None:
    for photo in list(plan_photos(COUNT))[:-2]:
        assert read_image(folder / photo.path).shape == (photo.height, photo.width, 3), photo


def test_turned_photos_show_what_was_painted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(photos, "KINDS", tuple("plain" for _ in photos.KINDS))
    luma = np.array([0.299, 0.587, 0.114])
    plain = make_photos(tmp_path / "plain", count=COUNT)
    for photo in list(plan_photos(COUNT))[:-2]:
        one = read_image(folder / photo.path, size=24) @ luma
        other = read_image(plain / photo.path, size=24) @ luma
        assert np.abs(one - other).mean() < 4, photo


def test_sizes_and_bytes_are_those_of_photos(folder: Path) -> None:
    plan = list(plan_photos(512))
    assert {(320, 240), (240, 320), (1600, 1200), (1200, 1600)} <= {
        (photo.width, photo.height) for photo in plan
    }
    assert min(min(photo.width, photo.height) for photo in plan) == 240
    assert max(max(photo.width, photo.height) for photo in plan) == 1600
    # A photo has about 2 to 4 bits for each pixel at these qualities.
    for photo in list(plan_photos(COUNT))[:-2]:
        bits = 8 * (folder / photo.path).stat().st_size / (photo.width * photo.height)
        assert 0.8 < bits < (8 if photo.kind == "cmyk" else 6), photo


def test_classes_have_a_share_of_every_kind() -> None:
    plan = list(plan_photos(512))
    for scene in SCENES:
        kinds = Counter(photo.kind for photo in plan if photo.scene == scene)
        assert {"plain", "grey", "progressive", "turned", "cmyk"} <= set(kinds), scene
    assert Counter(photo.kind for photo in plan)["truncated"] == 1
    assert Counter(photo.kind for photo in plan)["not a picture"] == 1


def test_the_same_seed_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    again = make_photos(tmp_path / "again", count=COUNT)
    other = make_photos(tmp_path / "other", count=8, seed=1)
    for path in pictures(folder):
        assert (again / path.relative_to(folder)).read_bytes() == path.read_bytes()
    differing = [
        p for p in pictures(other) if p.read_bytes() != (folder / p.relative_to(other)).read_bytes()
    ]
    assert len(differing) >= 6


def test_it_is_made_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "_write_all", None)
    assert make_photos(folder, count=COUNT) == folder
    assert make_photos(os.fspath(folder), count=COUNT) == folder


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    make_photos(tmp_path / "photos", count=8, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(done, 8) for done in range(1, 9)]


def test_an_interruption_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_photos(tmp_path / "photos", count=8, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_of_two_at_once_one_wins_and_both_have_it(tmp_path: Path) -> None:
    def make(_: int) -> Path:
        return make_photos(tmp_path / "photos", count=8)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(make, range(2))) == [tmp_path / "photos"] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
    assert len(pictures(tmp_path / "photos")) == 8


def test_an_empty_folder_is_used_and_a_full_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert len(pictures(make_photos(tmp_path / "empty", count=8))) == 8
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    for name, count in (("full", 8), ("full/thesis.tex", 8), ("empty", 9)):
        with pytest.raises(FileExistsError, match=re.escape(str(tmp_path / name))):
            make_photos(tmp_path / name, count=count)
    assert (tmp_path / "full" / "thesis.tex").exists()


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    old, new = tmp_path / ".photos.draft-old", tmp_path / ".photos.draft-new"
    for draft in (old, new):
        draft.mkdir()
    long_ago = time.time() - 7200
    os.utime(old, (long_ago, long_ago))
    make_photos(tmp_path / "photos", count=8)
    assert not old.exists()
    assert new.exists(), "it may be in use"


def test_too_few_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 8"):
        make_photos(tmp_path / "photos", count=7)


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/cache"}, "/cache/spdl_async"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/spdl_async"),
        ("linux", {}, "/home/me/.cache/spdl_async"),
        ("darwin", {"XDG_CACHE_HOME": "/cache"}, "/home/me/Library/Caches/spdl_async"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/spdl_async"),
        ("win32", {}, "/home/me/AppData/Local/spdl_async"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="the paths are written as elsewhere")
def test_the_cache_folder_is_where_the_platform_wants_it(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(sys, "platform", platform)
    assert default_cache_folder().parent == Path(expected)
