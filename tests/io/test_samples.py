"""`tar_samples`, `split_name`, `SampleDecoder`: WebDataset's convention and its policies."""

from __future__ import annotations

import io
import json
import logging
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_tars import END, header, member, tar_of

from spdl_async import PipelineBuilder, SyncPipelineRun
from spdl_async.errors import ArchiveError, DecodeError
from spdl_async.io import (
    SampleDecoder,
    SkippedMember,
    default_decoders,
    split_name,
    tar_samples,
)

pytestmark = pytest.mark.torch

META = {"__key__", "__shard__", "__offset__"}


def plain(samples: Any) -> list[dict[str, Any]]:
    """Return samples as bytes, without the shard and the offset."""
    return [
        {key: bytes(value) if key not in META else value for key, value in sample.items()
         if key not in ("__shard__", "__offset__")}
        for sample in samples
    ]  # fmt: skip


def until_error(shard: Any, **options: Any) -> tuple[list[str], ArchiveError]:
    keys: list[str] = []
    with pytest.raises(ArchiveError) as caught:
        for sample in tar_samples(shard, name="x.tar", **options):
            keys.append(sample["__key__"])
    return keys, caught.value


# Keys and extensions (scenario I4)

TABLE = {
    "./train.v1/a.b.seg.PNG": ("train.v1/a", "b.seg.png"),
    "235 Track 2.0 (x).mp3": ("235 Track 2", "0 (x).mp3"),
    ".hidden": None,
    "noext": None,
    "a.tar.gz": ("a", "tar.gz"),
    "__MACOSX/._x.jpg": None,
    "__MACOSX/x.jpg": None,
    "not__MACOSX/x.jpg": ("not__MACOSX/x", "jpg"),
    "a.b/noext": None,
    "a.b/.hidden.jpg": None,
    "a.": None,
    "/abs/x.jpg": ("/abs/x", "jpg"),
    "././x.jpg": ("x", "jpg"),
    "": None,
}


@pytest.mark.parametrize(("name", "parts"), TABLE.items())
def test_names_are_split_on_the_base_name(name: str, parts: tuple[str, str] | None) -> None:
    assert split_name(name) == parts


def test_what_has_no_key_is_passed_over_and_told(caplog: pytest.LogCaptureFixture) -> None:
    names = [".hidden", "noext", "__MACOSX/._x.jpg", "a."]
    data = header(b"dir/", kind=b"5") + tar_of(dict.fromkeys([*names, "k.jpg"], b""))
    skipped: list[SkippedMember] = []
    (sample,) = tar_samples(data, name="x.tar", on_skip=skipped.append)
    assert sample["__key__"] == "k"
    assert [(s.name, s.reason) for s in skipped] == [
        ("dir/", "directory"),
        (".hidden", "hidden file"),
        ("noext", "file without an extension"),
        ("__MACOSX/._x.jpg", "hidden file"),
        ("a.", "file without a key"),
    ]
    (record,) = caplog.records
    assert "x.tar: passed over 1 × directory, 2 × hidden file" in record.message
    assert "first '.hidden' at byte 512" in record.message


def test_samples_are_members_that_lie_together() -> None:
    data = tar_of({"a/1.jpg": b"J", "a/1.JSON": b"{}", "b/1.jpg": b"K", "2.cls": b"0"})
    samples = list(tar_samples(data, name="x.tar"))
    assert plain(samples) == [
        {"__key__": "a/1", "jpg": b"J", "json": b"{}"},
        {"__key__": "b/1", "jpg": b"K"},
        {"__key__": "2", "cls": b"0"},
    ]
    assert [sample["__shard__"] for sample in samples] == ["x.tar"] * 3
    assert [sample["__offset__"] for sample in samples] == [0, 2048, 3072]


def test_the_shard_is_called_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(tar_of({"a.jpg": b""}))
    with path.open("rb") as file:
        sources: list[Any] = [path, file]
        for source in sources:
            assert next(tar_samples(source))["__shard__"] == str(path)


def test_rename_by_a_dict_and_by_a_function() -> None:
    data = tar_of({"1.jpeg": b"J", "2.png": b"P", "3.cls": b"0"})
    renamed = tar_samples(data, rename={"jpeg": "jpg", "png": "jpg"})
    assert [set(sample) - META for sample in renamed] == [{"jpg"}, {"jpg"}, {"cls"}]

    def at_last_dot(name: str) -> tuple[str, str] | None:
        key, _, extension = name.rpartition(".")
        return (key, extension) if key else None

    data = tar_of({"235 Track 2.0 (x).mp3": b"M", "235 Track 2.0 (x).txt": b"T", "none": b""})
    assert plain(tar_samples(data, rename=at_last_dot)) == [
        {"__key__": "235 Track 2.0 (x)", "mp3": b"M", "txt": b"T"}
    ]


@pytest.mark.parametrize(
    "junk", ["", "k", ("k", ""), ("", "jpg"), ("k",), ("k", 3), (b"k", "jpg"), 3, ("a", "b", "c")]
)
def test_a_rename_that_returns_junk_is_named(junk: Any) -> None:
    data = tar_of({"1.jpg": b"J", "2.jpg": b"K"})
    samples = tar_samples(
        data, rename=lambda name: split_name(name) if name == "1.jpg" else junk, name="x.tar"
    )
    with pytest.raises(ValueError, match=r"x\.tar: rename of '2\.jpg' returned ") as caught:
        list(samples)
    assert repr(junk) in str(caught.value)


def test_a_rename_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="rename is a mapping"):
        tar_samples(b"", rename=3)  # type: ignore[arg-type]  # the point
    for new in ("", 3):
        with pytest.raises(ValueError, match="rename: the new name of 'jpeg'"):
            tar_samples(b"", rename={"jpeg": new})  # type: ignore[dict-item]  # the point


# Missing fields


def test_a_missing_field_is_an_error_or_left_out(caplog: pytest.LogCaptureFixture) -> None:
    data = tar_of(
        {"1.jpg": b"", "1.cls": b"", "2.jpg": b"", "2.txt": b"", "3.jpg": b"", "3.cls": b""}
    )
    keys, error = until_error(data, extensions=("jpg", "cls"))
    assert keys == ["1"]
    assert "x.tar: sample '2' at byte 1,024 has no cls; it has jpg, txt" in str(error)
    assert (error.archive, error.member, error.offset) == ("x.tar", "2", 1024)
    found = tar_samples(data, extensions=("jpg", "cls"), missing="skip", name="x.tar")
    assert [sample["__key__"] for sample in found] == ["1", "3"]
    (record,) = caplog.records
    assert record.message == "x.tar: left out 1 samples without all of cls, jpg"
    assert len(list(tar_samples(data))) == 3


# Duplicates (scenario I3)


def test_a_second_field_of_a_name(caplog: pytest.LogCaptureFixture) -> None:
    content = [("j.jpg", b"0"), ("k.jpg", b"1"), ("k.json", b"2"), ("k.jpg", b"3"), ("l.jpg", b"4")]
    data = tar_of(content)
    keys, error = until_error(data)
    assert keys == ["j"]
    assert "'jpg' of sample 'k' twice" in str(error)
    assert "at byte 1,024 ('k.jpg') and at byte 3,072 ('k.jpg')" in str(error)
    assert (error.archive, error.member, error.offset) == ("x.tar", "k.jpg", 3072)
    assert not caplog.records
    for policy, jpg in (("first", b"1"), ("last", b"3")):
        caplog.clear()
        found = plain(tar_samples(data, duplicates=policy, name="x.tar"))  # type: ignore[arg-type]  # both are
        assert found[1] == {"__key__": "k", "jpg": jpg, "json": b"2"}
        assert len(found) == 3
        assert "x.tar: passed over 1 × duplicate; first 'k.jpg' at byte 3072" in caplog.text


def test_the_error_about_a_second_field_names_both_members() -> None:
    data = tar_of([("k.cls", b"0"), ("./k.JPG", b"1"), ("k.txt", b""), ("k.jpg", b"2")])
    _, error = until_error(data)
    assert "at byte 1,024 ('./k.JPG') and at byte 2,560 ('k.jpg')" in str(error)
    _, error = until_error(data, rename={"cls": "txt"})
    assert "at byte 0 ('k.cls') and at byte 2,048 ('k.txt')" in str(error)


def test_a_sample_that_comes_back() -> None:
    data = tar_of([("k.jpg", b"1"), ("l.jpg", b"2"), ("k.json", b"3"), ("m.jpg", b"4")])
    for options in ({}, {"duplicates": "last"}):
        keys, error = until_error(data, **options)
        assert keys == ["k", "l"]
        assert "has sample 'k' twice, at byte 0 and at byte 2,048 ('k.json')" in str(error)
    skipped: list[SkippedMember] = []
    found = plain(tar_samples(data, duplicates="first", on_skip=skipped.append))
    assert [sample["__key__"] for sample in found] == ["k", "l", "m"]
    assert "json" not in found[0]
    assert [(s.name, s.reason) for s in skipped] == [("k.json", "duplicate")]


def test_the_same_key_in_two_shards_is_fine() -> None:
    shards = [tar_of({"k.jpg": b"1"}), tar_of({"k.jpg": b"2"})]
    found = list[Any](PipelineBuilder().add_source(shards).expand(tar_samples).build())
    assert [bytes(sample["jpg"]) for sample in found] == [b"1", b"2"]


def test_a_member_cannot_take_the_place_of_the_key() -> None:
    data = tar_of({"k.jpg": b"1", "k.__key__": b"evil", "k.__shard__": b"evil"})
    for policy in ("error", "first", "last"):
        skipped: list[SkippedMember] = []
        (sample,) = tar_samples(data, duplicates=policy, on_skip=skipped.append)
        assert sample["__key__"] == "k"
        assert [s.reason for s in skipped] == ["reserved name"] * 2


# Damage (scenario I1)


def shard(number: int) -> bytes:
    content = {f"{number}{k}.{ext}": b"x" * 600 for k in "abc" for ext in ("jpg", "cls")}
    return tar_of(content, kind=tarfile.USTAR_FORMAT)


CUTS = {
    # Sample "c" begins at 4 * 1536; its second member at 5 * 1536.
    "header of another sample": (4 * 1536 + 100, "ab"),
    "body of another sample": (4 * 1536 + 600, "ab"),
    "header in a sample": (5 * 1536 + 100, "ab"),
    "body in a sample": (5 * 1536 + 600, "ab"),
    "missing end": (6 * 1536, "abc"),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("extensions", [None, ("jpg", "cls")])
def test_whole_samples_come_before_damage(
    cut: str, extensions: Any, caplog: pytest.LogCaptureFixture
) -> None:
    at, whole = CUTS[cut]
    wanted = [f"3{k}" for k in whole]
    data = shard(3)[:at]
    if cut == "missing end":
        assert [s["__key__"] for s in tar_samples(data, extensions=extensions)] == wanted
    else:
        keys, error = until_error(data, extensions=extensions)
        assert keys == wanted
        assert error.archive == "x.tar"
        assert error.offset == at // 1536 * 1536
    caplog.clear()
    found = tar_samples(data, extensions=extensions, damaged="skip", name="x.tar")
    assert [s["__key__"] for s in found] == wanted
    assert "x.tar" in caplog.text


@pytest.mark.parametrize("cut", CUTS)
def test_a_damaged_shard_does_not_take_the_others_with_it(cut: str) -> None:
    at, whole = CUTS[cut]
    shards = [shard(n)[: at if n == 3 else None] for n in range(1, 6)]
    wanted = [f"{n}{k}" for n in range(1, 6) for k in (whole if n == 3 else "abc")]
    builder = PipelineBuilder().add_source(shards)
    with builder.expand(tar_samples, on_error="skip", concurrency=2).build().run_sync() as run:
        assert [sample["__key__"] for sample in run] == wanted
    assert run.failures.total == (cut != "missing end")
    if run.failures:
        assert run.failures[0].index == 2
        assert f"byte {at // 1536 * 1536:,}" in run.failures[0].message


def test_what_is_left_out_stays_out_at_damage() -> None:
    cut = member(b"b.jpg", b"22")[:513]
    lacking = member(b"a.jpg", b"1") + cut
    assert until_error(lacking, extensions=("jpg", "cls"), missing="skip")[0] == []
    again = b"".join(member(name, b"1") for name in (b"a.jpg", b"c.jpg", b"a.txt")) + cut
    assert until_error(again, duplicates="first")[0] == ["a", "c"]


def test_other_errors_are_not_damage() -> None:
    data = tar_of([("k.jpg", b"1"), ("k.jpg", b"2")])
    until_error(data, damaged="skip")
    until_error(tar_of({"k.jpg": b"1"}), damaged="skip", extensions=("cls",))


def test_wrong_options_are_refused_at_once() -> None:
    for options in ({"missing": "ignore"}, {"duplicates": "all"}, {"damaged": "no"}):
        with pytest.raises(ValueError, match="is one of"):
            tar_samples(b"", **options)  # type: ignore[arg-type]  # the point
    with pytest.raises(ValueError, match="needs extensions"):
        tar_samples(b"", missing="skip")
    with pytest.raises(ValueError, match=r"\('jpg',\)"):
        tar_samples(b"", extensions="jpg")
    with pytest.raises(TypeError, match="tar_samples takes a path"):
        tar_samples(3)  # type: ignore[arg-type]  # the point


# Decoding, and errors that say which file (scenario C9)


def test_fields_are_decoded_by_extension() -> None:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    content = {
        "k.json": b'{"a": [1]}',
        "k.cls": b"7\n",
        "k.txt": "ü".encode(),
        "k.x.npy": file.getvalue(),
    }
    (sample,) = tar_samples(tar_of({**content, "k.bin": b"raw"}))
    decoded = SampleDecoder()(sample)
    assert decoded["json"] == {"a": [1]}
    assert decoded["cls"] == 7
    assert decoded["txt"] == "ü"
    assert decoded["x.npy"].tolist() == [0, 1, 2]
    assert decoded["bin"] == b"raw"
    assert decoded["__key__"] == "k"
    assert "npy" not in sample


def test_pictures_are_decoded_by_the_library() -> None:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", (3, 2)).save(file, "PNG")
    (sample,) = tar_samples(tar_of({"k.png": file.getvalue(), "k.seg.png": file.getvalue()}))
    decoded = SampleDecoder()(sample)
    assert decoded["png"].shape == decoded["seg.png"].shape == (2, 3, 3)
    mine = SampleDecoder(default_decoders() | {"seg.png": len})(sample)
    assert (mine["png"].shape, mine["seg.png"]) == ((2, 3, 3), len(file.getvalue()))


def test_pickles_are_never_read() -> None:
    head = b"\x93NUMPY\x01\x00"
    described = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    evil = head + struct.pack("<H", len(described)) + described + b"cos\nsystem\n(S'true'\ntR."
    with pytest.raises(ValueError, match="only unpickling could read"):
        SampleDecoder()({"npy": evil})
    with pytest.raises(TypeError, match="no function"):
        SampleDecoder({"npy": "numpy"})  # type: ignore[dict-item]  # the point


def failures_of(run: SyncPipelineRun[Any]) -> list[dict[str, Any]]:
    file = io.StringIO()
    run.failures.to_jsonl(file)
    return [json.loads(line) for line in file.getvalue().splitlines()]


def test_a_failure_names_shard_member_and_byte(tmp_path: Path) -> None:
    """Scenario C9: 1,000 samples in ten shards, three of them damaged."""
    bad = {105, 550, 999}
    paths: list[Path] = []
    for number in range(10):
        path = tmp_path / f"{number}.tar"
        at = range(100 * number, 100 * number + 100)
        path.write_bytes(tar_of({f"{n:04}.json": b"{" if n in bad else b"{}" for n in at}))
        paths.append(path)
    builder = PipelineBuilder().add_source(paths).expand(tar_samples, concurrency=2)
    with builder.pipe(SampleDecoder(), on_error="skip", concurrency=2).build().run_sync() as run:
        assert len(list(run)) == 997
    records = failures_of(run)
    assert [record["index"] for record in records] == [1, 5, 9]
    for n, record in zip(sorted(bad), records, strict=True):
        assert record["stage"] == "SampleDecoder"
        where = f"in field 'json' of sample '{n:04}', at byte {n % 100 * 1024} of {paths[n // 100]}"
        assert where in record["traceback"]
        assert str(paths[n // 100]) in record["source"]


def test_damage_in_a_shard_is_named_in_the_record(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(member(b"a.txt", b"1") + member(b"b.txt", b"22")[:513])
    (tmp_path / "good.tar").write_bytes(tar_of({"c.txt": b"3"}))
    builder = PipelineBuilder().add_source([path, tmp_path / "good.tar"])
    with builder.expand(tar_samples, on_error="skip").build().run_sync() as run:
        assert [sample["__key__"] for sample in run] == ["a", "c"]
    (record,) = failures_of(run)
    assert record["error"].endswith("ArchiveError")
    assert record["message"] == f"{path} is cut short in a member (byte 1,024, member 'b.txt')"


def test_pictures_that_are_none_are_named_too() -> None:
    (sample,) = tar_samples(member(b"k.jpg", b"\xff\xd8\xff") + END, name="x.tar")
    with pytest.raises(DecodeError) as caught:
        SampleDecoder()(sample)
    assert caught.value.__notes__ == ["in field 'jpg' of sample 'k', at byte 0 of x.tar"]


def test_a_sample_made_by_hand_has_no_place() -> None:
    for sample, note in (
        ({"json": b"{"}, "in field 'json' of a sample without a key"),
        ({"json": b"{", "__key__": "k"}, "in field 'json' of sample 'k'"),
    ):
        with pytest.raises(ValueError, match="Expecting") as caught:
            SampleDecoder()(sample)
        assert caught.value.__notes__ == [note]


def test_an_extension_with_a_dot_in_front_would_decode_nothing() -> None:
    with pytest.raises(ValueError, match=r"no dot in front: 'txt', not '\.txt'"):
        SampleDecoder({".txt": bytes})


def test_what_is_no_sample_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"a dict of fields, not generator.*\.expand\(tar_samples\)"
    ):
        SampleDecoder()(tar_samples(shard(1)))  # type: ignore[arg-type]  # pipe in place of expand


def test_nothing_is_logged_about_a_shard_without_trouble(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert len(list(tar_samples(shard(1)))) == 3
    assert not [record for record in caplog.records if record.name == "spdl_async"]
