"""read_image: whatever a path may name. Names, things that are no files, files that are no pictures."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from sample_pictures import JPEGS, encode, photo

from spdl_async.errors import DecodeError
from spdl_async.io import decode_image, read_image

pytestmark = pytest.mark.torch

NAMES = [
    "\u00e9.jpg",
    "e\u0301.jpg",
    "中文.jpg",
    "🐈.jpg",
    "a b.jpg",
    "100%.jpg",
    "a\nb.jpg",
    "a'\"b.jpg",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_that_the_system_takes(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(JPEGS["grey"])
    for form in (path, str(path), os.fsencode(path)):
        assert read_image(form).shape == (120, 161, 3)
    path.write_bytes(b"\xff\xd8\xff")
    with pytest.raises(DecodeError) as caught:
        read_image(os.fsencode(path))
    assert str(caught.value).startswith(f"{path}: a JPEG file (3 bytes)")


def test_a_name_of_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xfe.jpg"
    try:
        Path(os.fsdecode(path)).write_bytes(JPEGS["grey"][:900])
    except OSError:
        pytest.skip("this file system takes text only")
    for form in (path, os.fsdecode(path)):
        with pytest.raises(DecodeError, match=r"\\xff\\xfe\.jpg: truncated JPEG") as caught:
            read_image(form)
        str(caught.value).encode("utf-8")


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long") as caught:
        read_image(tmp_path / ("a" * 300))
    assert caught.value.errno == errno.ENAMETOOLONG
    assert caught.value.filename == str(tmp_path / ("a" * 300))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "link.jpg").symlink_to(tmp_path / "gone.jpg")
    gone = tmp_path / "deleted.jpg"
    gone.write_bytes(JPEGS["grey"])
    listed = list(tmp_path.glob("*.jpg"))
    gone.unlink()
    assert len(listed) >= 1
    for path in (tmp_path / "link.jpg", gone):
        with pytest.raises(FileNotFoundError) as caught:
            read_image(path)
        assert caught.value.filename == str(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.jpg"
    path.write_bytes(JPEGS["grey"])
    path.chmod(0)
    with pytest.raises(PermissionError) as caught:
        read_image(path)
    assert caught.value.filename == str(path)


def test_empty_and_tiny_files(tmp_path: Path) -> None:
    for content, reason in ((b"", "the file is empty"), (b"\xff", "1 byte")):
        path = tmp_path / "small.jpg"
        path.write_bytes(content)
        with pytest.raises(DecodeError, match=reason) as caught:
            read_image(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_devices_are_refused() -> None:
    for device in ("/dev/zero", "/dev/null", "/dev/tty"):
        if os.access(device, os.R_OK):
            with pytest.raises(OSError):
                read_image(device)


def test_options_are_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(JPEGS["4:2:0"])
    expected = decode_image(JPEGS["4:2:0"], size=20, mode="L", layout="CHW", fit="cover")
    row = np.empty((1, 20, 20), np.uint8)
    assert read_image(path, size=20, mode="L", layout="CHW", fit="cover", out=row) is row
    assert np.array_equal(row, expected)
    with pytest.raises(TypeError, match="no option 'sizes'"):
        read_image(path, sizes=20)  # type: ignore[call-overload]  # the mistake under test


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encode(photo(), "PNG"))
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    threads = [threading.Thread(target=read_image, args=(path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(20):
        read_image(path)
        path.write_bytes(encode(photo(), "PNG"))
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before


def test_the_error_has_the_path(tmp_path: Path) -> None:
    path = tmp_path / "bad.jpg"
    path.write_bytes(encode(photo(), "JPEG")[:900])
    with pytest.raises(DecodeError) as raised:
        read_image(path)
    assert raised.value.path == str(path)
