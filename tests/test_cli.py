"""The command line and the demo, called as a user calls them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from spdl_async.__main__ import main

np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Answer:
    """What a command printed and returned."""

    code: int
    out: str
    err: str


class Cli:
    """Runs a command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *argv: object) -> Answer:
        code = main([str(word) for word in argv])
        out, err = self._capsys.readouterr()
        return Answer(code, out, err)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("COLUMNS", "100")
    return Cli(capsys)


def save(path: Path, shade: int = 128) -> Path:
    """Write a picture in the format that the name asks for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((20, 30, 3), shade, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes, four formats, a hidden file, a note, and two files that are no pictures."""
    root = tmp_path / "photos"
    for number, name in enumerate(("1.jpg", "2.png", "3.bmp", "deep/4.webp", "5.JPEG")):
        save(root / "dark" / name, number)
        save(root / "light" / name, 255 - number)
    save(root / "dark" / ".hidden.png")
    save(root / ".cache" / "thumbnail.png")
    (root / "notes.txt").write_text("not a picture")
    (root / "dark" / "broken.jpg").write_bytes(b"not a picture at all")
    (root / "light" / "empty.png").write_bytes(b"")
    return root


SMALL = ("--size", 16, "--batch-size", 4, "--threads", 2, "--device", "cpu")


class TestCommand:
    def test_version(self, cli: Cli) -> None:
        answer = cli("--version")

        assert answer.code == 0
        assert re.match(r"spdl-async \S+\n$", answer.out)

    @pytest.mark.parametrize("argv", [["--help"], ["demo", "--help"], ["doctor", "--help"]])
    def test_help(self, cli: Cli, argv: list[str]) -> None:
        answer = cli(*argv)

        assert answer.code == 0
        assert answer.out.startswith("usage: spdl-async")

    def test_no_command_shows_the_help_and_is_an_error(self, cli: Cli) -> None:
        answer = cli()

        assert answer.code == 2
        assert "demo" in answer.err
        assert "doctor" in answer.err

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["fly"], "invalid choice: 'fly'"),
            (["demo", "--frobnicate"], "unrecognized arguments: --frobnicate"),
            (["demo", "--size", "0"], "--size: must be from 1 to 2048, not 0"),
            (["demo", "--size", "9999"], "--size: must be from 1 to 2048, not 9999"),
            (["demo", "--batch-size", "0"], "--batch-size: must be at least 1, not 0"),
            (["demo", "--batch-size", "x"], "a whole number of at least 1, not 'x'"),
            (["demo", "--size", "x"], "--size: must be a whole number from 1 to 2048, not 'x'"),
            (["demo", ""], "the name is empty; for the current folder write ."),
            (["demo", "--threads", "0"], "--threads: must be from 1 to 1024, not 0"),
            (["demo", "--epochs", "0"], "--epochs: must be at least 1, not 0"),
            (["demo", "--epochs", "-1"], "--epochs: must be at least 1, not -1"),
        ],
    )
    def test_usage_errors_are_one_line(self, cli: Cli, argv: list[str], message: str) -> None:
        answer = cli(*argv)

        assert (answer.code, answer.out) == (2, "")
        assert answer.err.count("\n") == 1
        assert message in answer.err

    @pytest.mark.parametrize(
        ("argv", "help_to_see"),
        [
            (["demo", "--worker", "3"], "(see spdl-async demo --help)"),
            (["doctor", "--all"], "(see spdl-async doctor --help)"),
            (["--all", "demo"], "(see spdl-async demo --help)"),
            (["dmeo"], "(see spdl-async --help)"),
        ],
    )
    def test_the_help_to_see_is_that_of_the_command(
        self, cli: Cli, argv: list[str], help_to_see: str
    ) -> None:
        assert cli(*argv).err.rstrip().endswith(help_to_see)

    def test_nothing_heavy_is_imported_by_the_command_line(self) -> None:
        code = (
            "import sys, spdl_async.__main__ as cli; cli.main(['demo', '--epochs', '0']);"
            "print([name for name in ('torch', 'PIL', 'numpy') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

        assert done.stdout == "[]\n"

    def test_module_is_the_command(self) -> None:
        command = [sys.executable, "-m", "spdl_async", "--version"]
        done = subprocess.run(command, capture_output=True, text=True)

        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("spdl-async ")

    def test_reader_that_left_is_no_traceback(self) -> None:
        command = f"'{sys.executable}' -m spdl_async doctor"
        reading, writing = os.pipe()
        os.close(reading)
        try:
            done = subprocess.run(
                command, shell=True, stdout=writing, stderr=subprocess.PIPE, text=True
            )
        finally:
            os.close(writing)

        assert (done.returncode, done.stderr) == (141, "")


class TestFolder:
    def test_mixed_formats_with_broken_files(self, cli: Cli, photos: Path) -> None:
        answer = cli("demo", photos, *SMALL, "--epochs", 2)

        assert answer.code == 0, answer.err
        assert "12 pictures, 2 classes" in answer.out
        assert "epoch 1/2  3 batches  10 items" in answer.err
        assert "epoch 2/2  3 batches  10 items" in answer.err
        assert "2 of 12 pictures could not be read and were skipped:" in answer.out
        assert re.search(r"^  dark.broken\.jpg: .+", answer.out, re.MULTILINE)
        assert re.search(r"^  light.empty\.png: .+", answer.out, re.MULTILINE)
        assert "bottleneck" in answer.out or "No stage is busy" in answer.out
        assert re.search(r"before training  loss \d", answer.out)
        assert re.search(r"last epoch       loss \d", answer.out)

    def test_stage_table_counts_what_was_skipped(self, cli: Cli, photos: Path) -> None:
        answer = cli("demo", photos, *SMALL, "--epochs", 1)

        (row,) = [line for line in answer.out.splitlines() if line.startswith("read+decode+resize")]
        assert row.split()[3:7] == ["12", "10", "0", "2"]

    def test_fewer_pictures_than_a_batch(self, cli: Cli, tmp_path: Path) -> None:
        save(tmp_path / "only.png")
        answer = cli("demo", tmp_path, "--size", 8, "--epochs", 1, "--device", "cpu")

        assert answer.code == 0, answer.err
        assert "1 picture, 1 class," in answer.out
        assert "One class: there is nothing to tell apart" in answer.out
        assert "epoch 1/1  1 batch  1 item" in answer.err
        assert "could not be read" not in answer.out

    @pytest.mark.skipif(sys.platform != "linux", reason="file names are text elsewhere")
    def test_file_name_that_is_not_text(self, cli: Cli, photos: Path) -> None:
        Path(os.fsdecode(os.fsencode(photos) + b"/dark/bad\xff.png")).write_bytes(b"")
        answer = cli("demo", photos, *SMALL, "--epochs", 1)

        assert answer.code == 0, answer.err
        assert "dark/bad\\udcff.png: " in answer.out

    def test_all_unreadable(self, cli: Cli, tmp_path: Path) -> None:
        for name in ("a.jpg", "b.png"):
            (tmp_path / name).write_bytes(b"\x00" * 10)
        answer = cli("demo", tmp_path, *SMALL)

        assert answer.code == 1
        error = answer.err.splitlines()[-1]
        said = r"spdl-async demo: none of the 2 pictures could be read; one of them: .*[ab]\.(jpg|png): "
        assert re.match(said, error)
        assert "stage" not in error
        assert ".py" not in error

    def test_the_only_picture_unreadable(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "a.jpg").write_bytes(b"not a picture")
        answer = cli("demo", tmp_path, *SMALL)

        assert answer.code == 1
        error = answer.err.splitlines()[-1]
        assert error.startswith("spdl-async demo: the only picture could not be read: ")
        assert error.count("a.jpg") == 1

    def test_a_folder_of_other_files(self, cli: Cli, tmp_path: Path) -> None:
        for name in ("a.txt", "b.txt", "c.py", "d", ".hidden"):
            (tmp_path / name).write_text("x")
        error = cli("demo", tmp_path, *SMALL).err

        assert "no picture in" in error
        assert "as .jpg, .png" in error
        assert "there are 4 other files (.txt, .py, without an ending)" in error

    def test_epochs_are_numbered_alike(self, cli: Cli, photos: Path) -> None:
        answer = cli("demo", photos, *SMALL, "--epochs", 2)

        assert "epoch 2/2" in answer.err
        assert "demo, epoch 2: 3 delivered" in answer.out

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda path: None, "there is no folder"),
            (lambda path: path.write_text("x"), "is not a folder"),
            (lambda path: path.mkdir(), "no picture in"),
        ],
        ids=["missing", "file", "empty"],
    )
    def test_no_folder_of_pictures(
        self, cli: Cli, tmp_path: Path, make: type, message: str
    ) -> None:
        make(tmp_path / "it")
        answer = cli("demo", tmp_path / "it", *SMALL)

        assert (answer.code, answer.out) == (2, "")
        assert answer.err.count("\n") == 1
        assert message in answer.err

    @pytest.mark.parametrize("device", ["tpu9", "meta", "cuda:99", ""])
    def test_device_that_is_not_there(self, cli: Cli, photos: Path, device: str) -> None:
        answer = cli("demo", photos, "--device", device)

        assert (answer.code, answer.out) == (2, "")
        assert answer.err.count("\n") == 1
        assert answer.err.startswith(f"spdl-async demo: --device {device}: ")
        assert "take " in answer.err
        assert "cpu" in answer.err


class TestMissingPackages:
    @pytest.mark.parametrize("package", ["torch", "PIL"])
    def test_the_demo_says_what_it_needs(self, photos: Path, package: str) -> None:
        code = (
            f"import sys; sys.modules[{package!r}] = None; from spdl_async.__main__ import main;"
            f"sys.exit(main(['demo', {str(photos)!r}]))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert package in done.stderr
        assert "pip install 'spdl-async[image]'" in done.stderr


class TestDemoPhotos:
    @pytest.fixture(autouse=True)
    def few_photos_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from spdl_async._demo import run
        from spdl_async._demo.photos import make_photos

        monkeypatch.setattr(run, "default_cache_folder", lambda: tmp_path / "cache" / "photos")
        monkeypatch.setattr(run, "make_photos", partial(make_photos, count=8))

    def test_without_a_folder_photos_are_made_once(self, cli: Cli) -> None:
        first = cli("demo", *SMALL, "--epochs", 1)
        second = cli("demo", *SMALL, "--epochs", 1)

        assert first.code == second.code == 0, first.err
        assert "Making the data set once: 8 photos in " in first.out
        assert "photos  8 photos" in first.err
        assert "Making" not in second.out
        for answer in (first, second):
            assert "8 pictures, 5 classes" in answer.out
            assert "2 of 8 pictures could not be read and were skipped:" in answer.out

    def test_cache_that_cannot_be_written(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("in the way")
        answer = cli("demo", *SMALL)

        assert (answer.code, answer.out) == (1, "")
        assert answer.err.startswith("spdl-async demo: cannot make the photos: ")
        assert answer.err.count("\n") == 1


class TestInterrupt:
    def test_interrupt_in_a_step(
        self, cli: Cli, photos: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from spdl_async._demo.model import Trainer

        def interrupted(self: Trainer, images: object, labels: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Trainer, "step", interrupted)
        answer = cli("demo", photos, *SMALL)

        assert answer.code == 130
        assert answer.err == "spdl-async: interrupted\n"

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for a child there")
    def test_control_c_ends_a_running_demo(self, photos: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "spdl_async",
            "demo",
            photos,
            *SMALL,
            "--epochs",
            1_000_000,
        ]
        with subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as demo:
            assert demo.stderr is not None
            until_epoch(demo.stderr, 3)
            demo.send_signal(signal.SIGINT)
            _, rest = demo.communicate(timeout=20)

        assert demo.returncode == 130
        assert rest.splitlines()[-1] == "spdl-async: interrupted"
        assert "Traceback" not in rest


def until_epoch(lines: Iterator[str], number: int) -> None:
    """Read until an epoch is over."""
    for line in lines:
        if line.startswith(f"epoch {number}/"):
            return
    pytest.fail("the demo ended before that epoch")


class TestFindPictures:
    def test_classes_are_the_first_folders_that_differ(self, tmp_path: Path) -> None:
        from spdl_async._demo.folder import find_pictures

        for name in ("train/cat/1.png", "train/dog/a/1.png", "train/dog/b/2.png"):
            save(tmp_path / name)
        found = find_pictures(tmp_path)

        assert found.classes == ("cat", "dog")
        assert [picture.label for picture in found.pictures] == [0, 1, 1]

    def test_pictures_beside_the_class_folders_are_a_class(self, tmp_path: Path) -> None:
        from spdl_async._demo.folder import LOOSE, find_pictures

        for name in ("cat/1.png", "2.png"):
            save(tmp_path / name)

        assert find_pictures(tmp_path).classes == (LOOSE, "cat")

    def test_one_folder_is_one_class(self, tmp_path: Path) -> None:
        from spdl_async._demo.folder import find_pictures

        for name in ("all/1.png", "all/2.png"):
            save(tmp_path / name)

        assert len(find_pictures(tmp_path).classes) == 1

    def test_hidden_files_and_other_files_are_left_out(self, photos: Path) -> None:
        from spdl_async._demo.folder import find_pictures

        names = {Path(picture.path).name for picture in find_pictures(photos).pictures}
        assert names == {
            *("1.jpg", "2.png", "3.bmp", "4.webp", "5.JPEG"),
            *("broken.jpg", "empty.png"),
        }

    def test_links_are_followed_and_a_loop_ends(self, tmp_path: Path) -> None:
        from spdl_async._demo.folder import find_pictures

        save(tmp_path / "store" / "cat" / "1.png")
        (tmp_path / "root").mkdir()
        (tmp_path / "root" / "cat").symlink_to(tmp_path / "store" / "cat")
        (tmp_path / "root" / "again").symlink_to(tmp_path / "root")

        assert len(find_pictures(tmp_path / "root").pictures) == 1

    @pytest.mark.parametrize("suffix", [".pdf", ".txt", ".py", ""])
    def test_what_pillow_cannot_open_is_no_picture(self, suffix: str) -> None:
        from spdl_async._demo.folder import picture_extensions

        assert suffix not in picture_extensions()

    @pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif", ".gif", ".webp", ".mpo"])
    def test_what_pillow_can_open_is_a_picture(self, suffix: str) -> None:
        from spdl_async._demo.folder import picture_extensions

        assert suffix in picture_extensions()
