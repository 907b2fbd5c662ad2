"""Object stores: files, and S3 through moto's server on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback_s3 import make_bucket, options, s3_server
from scripted_server import ScriptedServer, ok, silent, status

from spdl_async import FetchError, PipelineBuilder, Retry
from spdl_async.io import Checksums, Fetch, Store, list_files

pytest.importorskip("obstore")
pytest.importorskip("moto")
pytest.importorskip("boto3")

BODY = bytes(range(256)) * 40
OBJECTS = {
    "data/a.bin": BODY,
    "data/sub/b.bin": b"b",
    "data/empty.bin": b"",
    "data/with space é %20 #?+.bin": b"odd",
    "database/c.bin": b"c",
    "top.bin": b"top",
    **{f"many/{number:04}.txt": b"x" for number in range(30)},
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as url:
        make_bucket(url, "bucket", OBJECTS)
        yield url


@pytest.fixture(params=["s3", "file"])
def store(request: pytest.FixtureRequest, endpoint: str, tmp_path: Path) -> Store:
    """The same objects in each kind of store."""
    if request.param == "s3":
        return Store("s3://bucket/data", **options(endpoint))
    for key, data in OBJECTS.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(data)
    return Store((tmp_path / "data").as_uri())


async def test_objects_are_read(store: Store) -> None:
    for key, data in OBJECTS.items():
        if key.startswith("data/"):
            name = key.removeprefix("data/")
            assert await store.get(name) == await store(name) == data
            assert await store.size(name) == len(data)
    urls = [url async for url in store.urls("*.bin")]
    assert len(urls) == 3
    assert {await store.get(url) for url in urls} == {BODY, b"", b"odd"}


async def test_ranges(store: Store) -> None:
    assert await store.get_range("a.bin", 10, 5) == BODY[10:15]
    assert await store.get_range("a.bin", 10_000) == BODY[10_000:]
    assert await store.get_range("a.bin", 10_239, 100) == BODY[-1:]
    assert await store.get_range("a.bin", -7) == BODY[-7:]
    assert await store.get_ranges("a.bin", [(0, 3), (5_000, 2)]) == [BODY[:3], BODY[5000:5002]]
    assert await store.get_ranges("a.bin", []) == []
    with pytest.raises(FetchError, match="/a"):
        await store.get_range("a.bin", 20_000, 5)
    for start, length in ((0, 0), (-3, 2), (0.5, 1), (0, -1)):
        with pytest.raises(ValueError):
            await store.get_range("a.bin", start, length)  # type: ignore[arg-type]  # mistakes
    with pytest.raises(ValueError, match="start"):
        await store.get_ranges("a.bin", [(-1, 5)])


async def test_writing(store: Store) -> None:
    await store.put("new/x y.txt", bytearray(b"one"))
    await store.put("new/x y.txt", memoryview(b"two"))
    assert await store.get("new/x y.txt") == b"two"


async def test_what_is_not_there(store: Store) -> None:
    for asking in (store.get("no.bin"), store.size("no.bin"), store.get_range("no.bin", 0, 1)):
        with pytest.raises(FetchError, match="there is no such object") as caught:
            await asking
        assert caught.value.status == 404
        assert caught.value.url == store.root + "no.bin"
        assert caught.value.__cause__ is not None


async def test_a_store_takes_its_own_urls_only(store: Store) -> None:
    for url in ("s3://other/data/a.bin", "file:///etc/passwd", store.root[:-1] + "base/c.bin"):
        with pytest.raises(ValueError, match="not below the root"):
            await store.get(url)
    with pytest.raises(ValueError, match="should begin with"):
        await store.get("https://host/a")


@pytest.mark.parametrize(
    "key", ["", "../top.bin", "/a.bin", "sub/../a.bin", "./a.bin", "sub//b.bin", "a.bin/", ".."]
)
async def test_what_is_no_key_is_refused(store: Store, key: str) -> None:
    root = store.root
    for asking in (
        store.get(key),
        store.get(root + key),
        store.size(key),
        store.put(key, b""),
        store.get_range(key, 0, 1),
        store.get_ranges(key, [(0, 1)]),
    ):
        with pytest.raises(ValueError, match="is no key of a store: keys are paths below its root"):
            await asking


@pytest.mark.parametrize("root", [3, None, b"s3://bucket", Path("/data")])
def test_a_root_is_text(root: Any) -> None:
    with pytest.raises(TypeError, match="root is a URL as str, not ") as caught:
        Store(root)
    assert ("as_uri" in str(caught.value)) == isinstance(root, Path)


def test_a_root_has_no_way_up() -> None:
    for root in ("file:///data/../etc", "s3://bucket/a//b", "s3://bucket/./x"):
        with pytest.raises(ValueError, match="is no key of a store"):
            Store(root)


async def test_larger_objects_are_refused(endpoint: str) -> None:
    store = Store("s3://bucket/data", **options(endpoint, max_bytes=1000))
    with pytest.raises(FetchError, match="10,240 bytes, and max_bytes allows 1,000"):
        await store.get("a.bin")
    with pytest.raises(FetchError, match="10,140 bytes, and max_bytes allows 1,000"):
        await store.get_range("a.bin", 100)
    with pytest.raises(ValueError, match="over max_bytes"):
        await store.get_range("a.bin", 0, 2000)
    assert await store.get_range("a.bin", 0, 1000) == BODY[:1000]


async def test_listing_and_fetching_in_a_pipeline(store: Store) -> None:
    pipeline = (
        PipelineBuilder()
        .add_source(list_files(store, "**/*.bin"))
        .pipe(store, concurrency=8)
        .build()
    )
    for loop in ("caller", "own"):
        async with pipeline.run(loop=loop) as run:
            assert sorted([data async for data in run]) == sorted([BODY, b"b", b"", b"odd"])
    assert len(await asyncio.to_thread(list, pipeline)) == 4


async def test_listing_pages(endpoint: str) -> None:
    store = Store("s3://bucket", **options(endpoint))
    keys = [url.removeprefix("s3://bucket/") async for url in store.urls("many/*")]
    assert keys == sorted(key for key in OBJECTS if key.startswith("many/"))
    assert [url async for url in store.urls("data/[!a-z]*")] == []
    assert [url async for url in store.urls("*.bin")] == ["s3://bucket/top.bin"]
    assert repr(store) == "Store('s3://bucket/')"


async def test_fetch_takes_stores_urls(endpoint: str, tmp_path: Path) -> None:
    op = Fetch(store=options(endpoint))
    assert await op("s3://bucket/data/a.bin") == BODY
    assert await op.range("s3://bucket/data/a.bin", 10, 5) == BODY[10:15]
    assert await op("s3://bucket/data/with space é %20 #?+.bin") == b"odd"
    (tmp_path / "x y#é.bin").write_bytes(b"local")
    assert await Fetch()((tmp_path / "x y#é.bin").as_uri()) == b"local"
    assert op.statistics().objects == 3
    with pytest.raises(FetchError, match="404"):
        await op("s3://bucket/none")


async def test_checksums_hold_for_stores(endpoint: str) -> None:
    url = "s3://bucket/data/a.bin"
    right = Checksums("sha256", {url: hashlib.sha256(BODY).hexdigest()})
    wrong = Checksums("sha256", {url: hashlib.sha256(b"").hexdigest()})
    store = options(endpoint)
    assert await Fetch(store=store, verify=right)(url) == BODY
    op = Fetch(store=store, verify=wrong, retry=Retry(3, backoff=0.0))
    with pytest.raises(FetchError, match="verify= refused the body") as caught:
        await op(url)
    assert caught.value.attempts == 3
    assert op.statistics().retries == 2


async def test_the_stores_own_tries_and_times() -> None:
    async with ScriptedServer(
        {"/bucket/a": [status(503), ok(b"x", etag='"1"')], "/bucket/b": [status(403)]}
    ) as server:
        server.scripts["/bucket/c"] = [silent]
        endpoint = server.url("")
        store = Store("s3://bucket", **options(endpoint, retries=1))
        with pytest.raises(FetchError, match="403") as caught:
            await store.get("b")
        assert caught.value.status == 403
        hasty = Store("s3://bucket", **options(endpoint, retries=0, idle_timeout=0.1))
        with pytest.raises(FetchError, match="store client's own tries"):
            await hasty.get("c")
        assert len(server.asked("/bucket/c")) == 1


async def test_local_stores_wait_for_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    store = Store(tmp_path.as_uri())
    for asking in (
        store.get("pipe"),
        store.get_range("pipe", 0, 1),
        store.get_ranges("pipe", [(0, 1)]),
    ):
        with pytest.raises(FetchError, match="not a regular file"):
            await asking
    with pytest.raises(FetchError, match="folder"):
        await store.get("folder")
    with pytest.raises(TypeError, match="keys are str, not PosixPath"):
        await store.get(tmp_path)  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize("url", ["https://host/x", "/data", "bucket", "", "memory:///"])
def test_other_roots_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="should begin with"):
        Store(url)


@pytest.mark.parametrize(
    "wrong",
    [
        {"retries": -1},
        {"retries": 1.5},
        {"retry_timeout": 0},
        {"connect_timeout": -1},
        {"idle_timeout": float("inf")},
        {"total_timeout": "3"},
        {"max_bytes": 0},
        {"retry_timeout": None},
        {"config": 3},
        {"config": [1]},
        {"config": {3: "x"}},
        {"client": 3},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Store("s3://bucket", **wrong)


def test_settings_that_the_store_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="az://container"):
        Store("az://container/x", config={})
    with pytest.raises(ValueError, match="no_such_setting"):
        Store("s3://bucket", config={"no_such_setting": 1})
    with pytest.raises(ValueError, match=r"Store\('s3://bucket'\): .*'int'"):
        Store("s3://bucket", config={"region": 3})
    with pytest.raises(ValueError, match="config= and client= are not for file:"):
        Store("file:///data", config={"a": 1})
