"""`TarWriter`: round trips, rotation, and what is on disk when something goes wrong."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest

from spdl_async.io import SampleDecoder, TarWriter, iter_tar, tar_samples

pytestmark = pytest.mark.torch

SAMPLES: list[dict[str, Any]] = [
    {"__key__": f"train.v1/{n:04}", "txt": f"sample {n} ü", "cls": n, "json": {"n": [n]}, "bin": b"\0" * n,
     "mask.npy": np.full((2, n), n, np.uint8)}
    for n in range(7)
]  # fmt: skip


def written(samples: list[dict[str, Any]], **options: Any) -> bytes:
    file = io.BytesIO()
    with TarWriter(file, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return file.getvalue()


def test_what_is_written_is_read_back() -> None:
    data = written(SAMPLES)
    for sample, wanted in zip(tar_samples(data), SAMPLES, strict=True):
        decoded = SampleDecoder()(sample)
        np.testing.assert_array_equal(decoded.pop("mask.npy"), wanted["mask.npy"])
        assert {k: v for k, v in decoded.items() if k not in ("__shard__", "__offset__")} == {
            k: v for k, v in wanted.items() if k != "mask.npy"
        }
    again = written(list(tar_samples(data)))  # views, and keys that a reader adds
    assert again == data


def test_tarfile_reads_the_same() -> None:
    long = {"__key__": "n" * 200 + "/ü", "txt": "x" * 1000}
    data = written([*SAMPLES, long])
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = tar.getmembers()
        for info, member in zip(members, iter_tar(data), strict=True):
            file = tar.extractfile(info)
            assert file is not None
            assert (info.name, file.read()) == (member.name, bytes(member.data))
            assert (info.mtime, info.uid, info.gid, info.uname, info.gname) == (0, 0, 0, "", "")
            assert info.mode == 0o644


@pytest.mark.skipif(which("tar") is None, reason="no tar program")
def test_the_tar_program_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(written(SAMPLES))
    listed = subprocess.run(["tar", "-tf", path], capture_output=True, text=True, check=True)
    assert listed.stdout.splitlines() == [member.name for member in iter_tar(path)]
    assert listed.stderr == ""


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with TarWriter(tmp_path / name) as writer:
            for sample in SAMPLES:
                writer.write(sample)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == written(SAMPLES)


def test_rotation_by_count(tmp_path: Path) -> None:
    with TarWriter(tmp_path / "x-{:02d}.tar", max_count=3) as writer:
        for sample in SAMPLES:
            writer.write(sample)
        assert len(writer.paths) == 2  # what has its name is whole
    assert writer.paths == [tmp_path / f"x-{n:02}.tar" for n in range(3)]
    assert [len(list(tar_samples(path))) for path in writer.paths] == [3, 3, 1]
    assert sorted(tmp_path.iterdir()) == writer.paths


def test_rotation_by_bytes(tmp_path: Path) -> None:
    samples = [{"__key__": str(n), "bin": bytes(1000)} for n in range(10)]
    samples.insert(4, {"__key__": "large", "bin": bytes(9000)})
    with TarWriter(str(tmp_path / "x-{}.tar"), max_bytes=3 * 1536 + 1024) as writer:
        for sample in samples:
            writer.write(sample)
    sizes = [path.stat().st_size for path in writer.paths]
    assert [(size - 1024) // 1536 for size in sizes] == [3, 1, 6, 3, 3]
    assert sum(len(list(tar_samples(path))) for path in writer.paths) == 11


def test_a_key_may_come_back_in_the_next_archive_only(tmp_path: Path) -> None:
    sample = {"__key__": "k", "txt": "x"}
    with TarWriter(tmp_path / "x-{}.tar", max_count=1) as writer:
        writer.write(sample)
        writer.write(sample)
    with TarWriter(io.BytesIO()) as writer:
        writer.write(sample)
        with pytest.raises(ValueError, match="'k' is in this archive already"):
            writer.write(sample)


def test_an_exception_leaves_no_half_file(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), TarWriter(path) as writer:
        writer.write(SAMPLES[0])
        assert len(list(tmp_path.iterdir())) == 2
        1 / 0  # noqa: B018 -- the failure
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


def test_a_failed_write_ends_the_archive(tmp_path: Path) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if self.tell() > 1000:
                raise OSError(28, "No space left on device")
            return super().write(data)

    writer = TarWriter(Full())
    with pytest.raises(OSError, match="No space"):
        writer.write(SAMPLES[3])
    with pytest.raises(ValueError, match="closed"):
        writer.write(SAMPLES[4])


def test_an_archive_without_samples_is_a_valid_one(tmp_path: Path) -> None:
    with TarWriter(tmp_path / "x.tar") as writer:
        pass
    assert list(tar_samples(writer.paths[0])) == []
    writer.close()  # once is enough


@pytest.mark.parametrize(
    ("sample", "error", "what"),
    [
        ({"txt": "x"}, ValueError, "needs its key"),
        ({"__key__": "k"}, ValueError, "no fields"),
        ({"__key__": "a.b", "txt": "x"}, ValueError, "would not be read back"),
        ({"__key__": "./a", "txt": "x"}, ValueError, "would not be read back"),
        ({"__key__": ".a", "txt": "x"}, ValueError, "would not be read back"),
        ({"__key__": "a", "TXT": "x"}, ValueError, "would not be read back"),
        ({"__key__": "a\0b", "txt": "x"}, ValueError, "would not be read back"),
        ({"__key__": "a", "b/txt": "x"}, ValueError, "would not be read back"),
        ({"__key__": "a", "bin": object()}, TypeError, "'bin' is of type object, which no rule"),
        ({"__key__": "a", "jpg": np.zeros(3)}, TypeError, "'jpg' is of type ndarray"),
        ({"__key__": "a", "cls": True}, TypeError, "'cls' is of type bool"),
        ({"__key__": "a", "npy": object()}, ValueError, "allow_pickle"),
    ],
)
def test_samples_that_cannot_be_written(
    sample: dict[str, Any], error: type[Exception], what: str
) -> None:
    file = io.BytesIO()
    with TarWriter(file) as writer:
        with pytest.raises(error, match=what):
            writer.write(sample)
        assert file.tell() == 0  # nothing of it
        writer.write(SAMPLES[0])
    assert len(list(tar_samples(file.getvalue()))) == 1


def test_what_is_no_sample_cannot_be_written() -> None:
    with (
        TarWriter(io.BytesIO()) as writer,
        pytest.raises(TypeError, match=r"is a dict .* not tuple"),
    ):
        writer.write(("a", b"1"))  # type: ignore[arg-type]  # the mistake


def test_encoders_come_first() -> None:
    encoders = {"jpg": lambda value: b"J%d" % value, "seg.jpg": lambda _: bytearray(b"S")}
    data = written([{"__key__": "k", "jpg": 1, "x.jpg": 2, "seg.jpg": 3}], encoders=encoders)
    assert [bytes(member.data) for member in iter_tar(data)] == [b"J1", b"J2", b"S"]


def test_wrong_targets_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no place for the number"):
        TarWriter(tmp_path / "x.tar", max_count=2)
    with pytest.raises(ValueError, match="no pattern with one number"):
        TarWriter(tmp_path / "{}-{}.tar", max_count=2)
    with pytest.raises(ValueError, match="give max_count"):
        TarWriter(tmp_path / "x-{:06d}.tar")
    with pytest.raises(ValueError, match="at least 1"):
        TarWriter(tmp_path / "x-{}.tar", max_bytes=0)
    with pytest.raises(ValueError, match="path pattern"):
        TarWriter(io.BytesIO(), max_count=2)
    assert not list(tmp_path.iterdir())
