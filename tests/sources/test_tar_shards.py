"""`TarShards` and `expand_shards`."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest

from spdl_async import PipelineBuilder
from spdl_async.errors import ArchiveError
from spdl_async.io import TarWriter, default_decoders
from spdl_async.sources import TarShards, expand_shards

pytestmark = pytest.mark.torch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write eight shards of three samples."""
    with TarWriter(tmp_path / "x-{:03d}.tar", max_count=3) as writer:
        for n in range(24):
            writer.write({"__key__": f"{n:03}", "cls": n})
    return tmp_path


def classes(source: Any) -> list[int]:
    return [sample["cls"] for sample in source]


def shards_of(folder: Path, **options: Any) -> TarShards:
    return TarShards(folder / "x-*.tar", decoders=default_decoders(), **options)


# Names


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("s3://b/x-{008..010}.tar", ["s3://b/x-008.tar", "s3://b/x-009.tar", "s3://b/x-010.tar"]),
        ("x-{8..10}", ["x-8", "x-9", "x-10"]),
        ("{a,b}/{0..1}", ["a/0", "a/1", "b/0", "b/1"]),
        ("x{}y", ["x{}y"]),
        ("x{a}", ["x{a}"]),
        ("{,un}lit", ["lit", "unlit"]),
        ("s3://b/*.tar?version=1", ["s3://b/*.tar?version=1"]),
        ([Path("a"), "b-{1..2}"], ["a", "b-1", "b-2"]),
    ],
)
def test_braces(pattern: Any, names: list[str]) -> None:
    assert expand_shards(pattern) == names


def test_wildcards_are_sorted_and_names_that_exist_are_names(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "odd[1].tar", "{1..2}.tar", "sub"):
        (tmp_path / name).touch() if name != "sub" else (tmp_path / name).mkdir()
    (tmp_path / "sub" / "c.tar").touch()
    at = f"{tmp_path}/"
    assert expand_shards(at + "?.tar") == [at + "a.tar", at + "b.tar"]
    assert expand_shards(at + "odd[1].tar") == [at + "odd[1].tar"]
    assert expand_shards(at + "{1..2}.tar") == [at + "{1..2}.tar"]
    assert expand_shards(at + "{a,b}.t*") == [at + "a.tar", at + "b.tar"]
    assert at + "sub/c.tar" in expand_shards(at + "**/*.tar")
    with pytest.raises(FileNotFoundError, match=r"no file matches .*z\*"):
        expand_shards(at + "z*")


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ValueError, match="runs backwards"):
        expand_shards("{3..1}")
    with pytest.raises(ValueError, match="more than 10,000,000"):
        expand_shards("{0..99999}{0..99999}")
    with pytest.raises(ValueError, match="more than 10,000,000"):
        expand_shards("{0..99999999999}")
    with pytest.raises(TypeError, match="not by int"):
        expand_shards([3])  # type: ignore[list-item]  # the point


# Order


def test_shards_are_read_in_order_again_and_again(folder: Path) -> None:
    shards = shards_of(folder)
    assert classes(shards) == classes(shards) == list(range(24))
    pipeline = PipelineBuilder().add_source(shards).build()
    assert classes(pipeline) == classes(pipeline) == list(range(24))


def test_shuffling_depends_on_seed_and_epoch_only(folder: Path) -> None:
    shards = shards_of(folder, shuffle=True, seed=3)
    pipeline = PipelineBuilder().add_source(shards).build()
    passes = [classes(pipeline) for _ in range(3)]
    assert all(sorted(each) == list(range(24)) for each in passes)
    assert len({tuple(each) for each in passes}) == 3
    again = PipelineBuilder().add_source(shards_of(folder, shuffle=True, seed=3)).build()
    with again.run_sync(epoch=1) as run:
        assert classes(run) == passes[1]
    other = PipelineBuilder().add_source(shards_of(folder, shuffle=True, seed=4)).build()
    assert classes(other) != passes[0]


def test_the_order_of_a_seed_is_the_same_on_every_machine() -> None:
    shards = TarShards("s3://b/{0..7}", shuffle=True, seed=3, open=lambda _: b"")
    assert ["".join(name[-1] for name in shards.order(epoch)) for epoch in range(3)] == [
        "65014237",
        "03412657",
        "27065413",
    ]


async def test_passes_at_the_same_time_do_not_mix(folder: Path) -> None:
    shards = shards_of(folder, shuffle=True)
    pipeline = PipelineBuilder().add_source(shards).build()
    alone = [classes(pipeline) for _ in range(2)]
    async with pipeline.run(epoch=0) as one, pipeline.run(epoch=1) as two:
        mixed: list[list[int]] = [[], []]
        for _ in range(24):
            mixed[0].append((await anext(one))["cls"])
            mixed[1].append((await anext(two))["cls"])
    assert mixed == alone


def test_each_thread_has_its_own_epoch(folder: Path) -> None:
    shards = shards_of(folder, shuffle=True)
    shards.set_epoch(5)
    wanted = classes(shards)
    told = threading.Thread(target=shards.set_epoch, args=(6,))
    told.start()
    told.join()
    assert classes(shards) == wanted


# Damage


def damage(folder: Path, number: int) -> Path:
    path = folder / f"x-{number:03}.tar"
    path.write_bytes(path.read_bytes()[: 2 * 1024 + 100])
    return path


def test_a_damaged_shard_ends_the_pass(folder: Path) -> None:
    path = damage(folder, 2)
    source = iter(shards_of(folder))
    assert [next(source)["cls"] for _ in range(8)] == list(range(8))
    with pytest.raises(ArchiveError, match=r"x-002\.tar is cut short in a header") as caught:
        next(source)
    assert (caught.value.archive, caught.value.offset) == (str(path), 2048)
    with pytest.raises(ArchiveError):
        list(PipelineBuilder().add_source(shards_of(folder)).build())


def test_the_next_shard_follows_where_damage_is_skipped(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(folder, 2)
    wanted = [n for n in range(24) if n != 8]
    assert classes(shards_of(folder, damaged="skip")) == wanted
    assert "x-002.tar is cut short in a header" in caplog.text
    assert "the rest of this shard is left out" in caplog.text
    builder = PipelineBuilder().add_source(shards_of(folder), on_error="skip")
    with builder.build().run_sync() as run:
        assert classes(run) == wanted
    (record,) = run.failures
    assert "x-002.tar is cut short in a header" in record.message
    assert "(byte 2,048, behind '007.cls')" in record.message


def test_a_sample_that_cannot_be_decoded_is_one_failure(folder: Path) -> None:
    def odd(data: Any) -> int:
        if int(bytes(data)) % 10 == 3:
            raise ValueError("a three")
        return int(bytes(data))

    shards = TarShards(folder / "x-*.tar", decoders={"cls": odd})
    with PipelineBuilder().add_source(shards, on_error="skip").build().run_sync() as run:
        assert classes(run) == [n for n in range(24) if n % 10 != 3]
    assert [record.message for record in run.failures] == ["a three"] * 3
    assert "in field 'cls' of sample '013', at byte 1024 of " in run.failures[1].traceback


def test_a_shard_that_is_not_there_is_one_failure(folder: Path) -> None:
    shards = shards_of(folder)
    (folder / "x-001.tar").unlink()
    with PipelineBuilder().add_source(shards, on_error="skip").build().run_sync() as run:
        assert classes(run) == [n for n in range(24) if n not in (3, 4, 5)]
    assert run.failures[0].error.endswith("FileNotFoundError")


# Opening


class Stream(io.BytesIO):
    open_now = 0

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        type(self).open_now += 1

    def close(self) -> None:
        if not self.closed:
            type(self).open_now -= 1
        super().close()


def test_what_open_returns_is_read_and_closed(folder: Path) -> None:
    Stream.open_now = 0

    def fetch(url: str) -> Stream:
        assert Stream.open_now == 0
        return Stream((folder / url.removeprefix("mem://")).read_bytes())

    shards = TarShards("mem://x-{000..007}.tar", decoders=default_decoders(), open=fetch)
    assert classes(shards) == list(range(24))
    assert Stream.open_now == 0
    with PipelineBuilder().add_source(shards).build().run_sync() as run:
        sample = next(iter(run))
        assert sample["__shard__"] == "mem://x-000.tar"
    assert Stream.open_now == 0  # although nobody read to the end
    broken = TarShards(["mem://x-000.tar", "mem://x-001.tar"], open=lambda _: Stream(b"no tar"))
    with PipelineBuilder().add_source(broken, on_error="skip").build().run_sync() as run:
        assert not list(run)
    assert run.failures.total == 2
    assert Stream.open_now == 0


def test_file_urls_are_paths(folder: Path) -> None:
    odd = folder / "a b.tar"
    odd.write_bytes((folder / "x-000.tar").read_bytes())
    assert classes(TarShards(odd.as_uri(), decoders=default_decoders())) == [0, 1, 2]


def test_wrong_options_are_refused_at_once(folder: Path) -> None:
    path = folder / "x-000.tar"
    with pytest.raises(ValueError, match="give open="):
        TarShards("s3://bucket/x.tar")
    with pytest.raises(ValueError, match="no shards"):
        TarShards([])
    with pytest.raises(ValueError, match="duplicates is one of"):
        TarShards(path, duplicates="all")  # type: ignore[arg-type]  # the point
    with pytest.raises(TypeError, match="unexpected keyword"):
        TarShards(path, shufle=True)  # type: ignore[call-arg]  # the point
    with pytest.raises(TypeError, match="open is a function"):
        TarShards(path, open="rb")  # type: ignore[arg-type]  # the point
    with pytest.raises(TypeError, match="no function"):
        TarShards(path, decoders={"cls": 3})  # type: ignore[dict-item]  # the point
    with pytest.raises(TypeError, match="len"):
        len(TarShards(path))  # type: ignore[arg-type]  # the point
