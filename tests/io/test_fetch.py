"""Fetching over HTTP: tries, resuming, time-outs, checks, and what errors say (I6, I7, I8)."""

from __future__ import annotations

import asyncio
import base64
import email.utils
import hashlib
import pickle
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from scripted_server import (
    ScriptedServer,
    Step,
    drip,
    gated,
    hang_up,
    headers_only,
    ok,
    raw,
    silent,
    status,
)

from spdl_async import FetchError, Retry
from spdl_async.io import Checksums, Fetch, _retrying, fetch, fetch_range

pytest.importorskip("aiohttp")

BODY = bytes(range(256)) * 400
QUICK = Retry(5, backoff=0.0, jitter=1.0)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Gather the waits between attempts, and wait for none."""
    seen: list[float] = []

    async def pause(seconds: float) -> None:
        seen.append(seconds)

    monkeypatch.setattr(_retrying, "pause", pause)
    return seen


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


async def run(op: Fetch, *steps: Step) -> tuple[ScriptedServer, Any]:
    """Fetch one path whose script these are; return the server and the bytes or the error."""
    async with ScriptedServer({"/o": steps}) as server:
        try:
            return server, await op(server.url("/o"))
        except FetchError as error:
            return server, error


# What is tried again


@pytest.mark.parametrize(
    ("faults", "name"),
    [
        ([status(503)] * 3, "503"),
        ([status(429)], "429"),
        ([status(408)], "408"),
        ([status(425)], "425"),
        ([status(500), status(502), status(504)], "5xx"),
        ([hang_up] * 2, "reset before an answer"),
        ([ok(BODY, cut=1000, then="reset")], "reset in the body"),
        ([ok(BODY, cut=1000)], "closed in the body"),
        ([ok(BODY[:100], length=len(BODY), cut=100)], "Content-Length too large"),
        ([raw(b"")] * 2, "closed before an answer"),
        ([raw(b"no http at all\r\n\r\n")], "no HTTP"),
        ([raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc")], "cut chunk"),
        ([raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999x\r\n\r\n")], "bad length"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_fault_that_passes_is_tried_again(
    faults: list[Step], name: str, waits: list[float]
) -> None:
    op = Fetch()
    server, data = await run(op, *faults, ok(BODY))
    assert data == BODY
    assert len(server.requests) >= len(faults) + 1
    counted = op.statistics()  # without those that aiohttp repeats at once on its own
    assert (counted.objects, counted.bytes, counted.resumed) == (1, len(BODY), 0)
    assert counted.retries == len(waits) == counted.requests - 1 >= 1


@pytest.mark.parametrize(
    ("code", "means"),
    [(400, ""), (401, "credentials are missing"), (403, "forbidden"), (404, "no such object")]
    + [(code, "") for code in (410, 451)],
)
async def test_what_will_not_change_is_not_tried_again(
    code: int, means: str, waits: list[float]
) -> None:
    server, error = await run(Fetch(), status(code), ok(BODY))
    assert isinstance(error, FetchError)
    assert isinstance(error, OSError)
    assert (error.status, error.attempts, error.url) == (code, 1, server.url("/o"))
    assert f"{code} Scripted" in str(error)
    assert means in str(error)
    assert "not tried again" in str(error)
    assert not waits


async def test_tries_come_to_an_end(waits: list[float]) -> None:
    op = Fetch(retry=Retry(3, backoff=1.0, jitter=0.0))
    server, error = await run(op, status(500))
    assert (error.status, error.attempts) == (500, 3)
    assert "; 3 attempts" in str(error)
    assert len(server.requests) == 3
    assert waits == [1.0, 2.0]


async def test_one_attempt_where_retry_is_none(waits: list[float]) -> None:
    server, error = await run(Fetch(retry=None), status(500), ok(BODY))
    assert error.attempts == len(server.requests) == 1


async def test_the_waits_grow_and_are_random(waits: list[float]) -> None:
    op = Fetch(retry=Retry(30, backoff=0.5, max_backoff=8.0, jitter=1.0))
    await run(op, status(500))
    assert all(0 < wait <= min(8.0, 0.5 * 2**at) for at, wait in enumerate(waits))
    assert len(set(waits)) > 20


@pytest.mark.parametrize("code", [429, 503, 408])
async def test_retry_after_is_honoured(code: int, waits: list[float]) -> None:
    op = Fetch(retry=Retry(5, backoff=0.0))
    date = email.utils.formatdate(1_000_000_000, usegmt=True)  # long ago
    steps = [status(code, Retry_After=value) for value in (2, date, "soon", 999_999)]
    _, data = await run(op, *steps, ok(BODY))
    assert data == BODY
    assert waits == [2.0, 0.0, 0.0, 60.0]


def test_retry_after_is_read() -> None:
    date = email.utils.formatdate(1_000_000_090, usegmt=True)
    read = _retrying.seconds_to_wait
    assert read(date, now=1_000_000_000) == 90
    assert read(" 7 ") == 7
    for nothing in (None, "", "-1", "1.5", "²", "Wed, 99 Foo 2026", "inf"):
        assert read(nothing) is None, nothing


# Going on where it stopped


async def test_the_rest_is_asked_for(waits: list[float]) -> None:
    op = Fetch()
    first = ok(BODY, etag='"v1"', cut=70_000, then="close")
    server, data = await run(op, first, ok(BODY, etag='"v1"'))
    assert data == BODY
    again = server.requests[1].headers
    assert again["if-range"] == '"v1"'
    begin = int(again["range"].removeprefix("bytes=").removesuffix("-"))
    assert 0 < begin <= 70_000
    assert op.statistics().resumed == 1


async def test_it_goes_on_after_silence_too(waits: list[float]) -> None:
    op = Fetch(idle_timeout=0.4)
    first = ok(BODY, etag='"v1"', cut=70_000, then="stall")
    server, data = await run(op, first, ok(BODY, etag='"v1"'))
    assert data == BODY
    assert server.requests[1].headers["range"] == "bytes=70000-"


@pytest.mark.parametrize(
    ("etag", "second"),
    [
        (None, ok(BODY)),
        ('W/"v1"', ok(BODY, etag='W/"v1"')),  # weak: not for bytes
        ('"v1"', ok(BODY, etag='"v2"')),  # If-Range: the whole new object
        ('"v1"', ok(BODY, ranges=False)),
    ],
    ids=["no validator", "weak", "changed", "no ranges"],
)
async def test_it_starts_anew_where_the_rest_may_be_another_object(
    etag: str | None, second: Step, waits: list[float]
) -> None:
    op = Fetch()
    server, data = await run(op, ok(b"old" * 50_000, etag=etag, cut=70_000), second)
    assert data == BODY
    assert len(server.requests) == 2
    assert op.statistics().resumed == 0


@pytest.mark.parametrize("changed", [BODY, b"short"], ids=["longer", "shorter"])
async def test_a_server_that_ignores_if_range_is_not_believed(
    changed: bytes, waits: list[float]
) -> None:
    """It answers with the rest of a newer version, whose ETag says so; or 416."""
    first = ok(b"old" * 50_000, etag='"v1"', cut=70_000)
    newer = ok(changed, etag='"v2"', check=False)
    server, data = await run(Fetch(), first, newer)
    assert data == changed
    assert "range" not in server.requests[-1].headers


async def test_a_wrong_part_is_not_taken(waits: list[float]) -> None:
    wrong = raw(
        b'HTTP/1.1 206 Part\r\nETag: "v1"\r\nContent-Range: bytes 0-4/102400\r\n'
        b"Content-Length: 5\r\n\r\nwrong"
    )
    first = ok(BODY, etag='"v1"', cut=70_000)
    server, data = await run(Fetch(), first, wrong, ok(BODY, etag='"v1"'))
    assert data == BODY
    assert (
        "range" not in server.requests[-1].headers
    )  # a server that cannot count is not asked again


async def test_a_compressed_body_is_expanded_and_never_resumed(waits: list[float]) -> None:
    import gzip

    packed = gzip.compress(BODY)
    head = (
        f'HTTP/1.1 200 OK\r\nETag: "v"\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}'
    )
    start = head.encode() + b"\r\n\r\n"
    steps = raw(start + packed[: len(packed) // 2]), raw(start + packed)
    server, data = await run(Fetch(), *steps)
    assert data == BODY
    assert all("range" not in request.headers for request in server.requests)
    assert server.requests[0].headers["accept-encoding"] == "identity"


# Time


@pytest.mark.parametrize("step", [silent, headers_only], ids=["no answer", "headers only"])
async def test_silence_ends(step: Step, waits: list[float]) -> None:
    _, error = await run(Fetch(idle_timeout=0.1, retry=Retry(2, backoff=0.0)), step)
    assert isinstance(error, FetchError)
    assert "nothing came for 0.1 s (idle_timeout)" in str(error)
    assert error.attempts == 2
    assert isinstance(error.__cause__, TimeoutError)


async def test_a_drip_ends() -> None:
    op = Fetch(total_timeout=0.3, idle_timeout=30)
    _, error = await run(op, drip)
    assert isinstance(error, FetchError)
    assert "not complete after 0.3 s (total_timeout)" in str(error)
    assert "of 1,000,000 bytes" in str(error)


async def test_the_total_time_holds_waits_too() -> None:
    _, error = await run(Fetch(total_timeout=0.1, retry=Retry(5, backoff=20.0)), status(503))
    assert "total_timeout" in str(error)


async def test_a_server_that_is_not_there(waits: list[float]) -> None:
    async with ScriptedServer() as server:
        url = server.url("/o")
    with pytest.raises(FetchError, match="Cannot connect to host 127") as caught:
        await Fetch(retry=Retry(2, backoff=0.0))(url)
    assert caught.value.attempts == 2
    assert caught.value.status is None
    assert isinstance(caught.value.__cause__, OSError)


def test_time_outs_are_on() -> None:
    options = Fetch()._options
    assert (options.connect_timeout, options.idle_timeout, options.total_timeout) == (10, 30, 600)


async def test_a_cancelled_fetch_leaves_nothing() -> None:
    gate = asyncio.Event()
    async with ScriptedServer({"/o": [gated(gate, ok(BODY))]}) as server:
        op = Fetch(per_host=1)
        tasks = [asyncio.create_task(op(server.url("/o"))) for _ in range(3)]
        await server.first.wait()
        tasks[0].cancel()
        tasks[1].cancel()
        gate.set()
        assert await tasks[2] == BODY
        assert await asyncio.gather(*tasks[:2], return_exceptions=True) != [BODY, BODY]
        assert not op._shared


# Checks


async def test_what_verify_refuses_is_fetched_again(waits: list[float]) -> None:
    async with ScriptedServer({"/o": [ok(b"bad"), ok(b"worse"), ok(BODY)]}) as server:
        url = server.url("/o")
        op = Fetch(verify=Checksums("sha256", {url: hashlib.sha256(BODY).hexdigest().upper()}))
        assert await op(url) == BODY
        assert len(server.requests) == 3
        assert op.statistics().retries == 2


@pytest.mark.parametrize("kind", ["false", "error", "async"])
async def test_verify_may_be_any_function(kind: str, waits: list[float]) -> None:
    def false(url: str, data: bytes) -> bool:
        return data == BODY

    def error(url: str, data: bytes) -> None:
        if data != BODY:
            raise ValueError("not the body")

    async def later(url: str, data: bytes) -> bool:
        await asyncio.sleep(0)
        return data == BODY

    hook: Any = {"false": false, "error": error, "async": later}[kind]
    server, data = await run(Fetch(verify=hook), ok(b"bad"), ok(BODY))
    assert data == BODY
    assert len(server.requests) == 2
    _, failed = await run(Fetch(verify=hook, retry=None), ok(b"bad"))
    assert "verify= refused the body" in str(failed)
    assert ("not the body" in str(failed)) == (kind == "error")


async def test_other_errors_of_verify_are_the_users() -> None:
    mine = RuntimeError("mine")

    def broken(url: str, data: bytes) -> None:
        raise mine

    with pytest.raises(RuntimeError) as caught:
        await run(Fetch(verify=broken), ok(BODY))
    assert caught.value is mine
    with pytest.raises(KeyError, match="no md5 digest for http://127"):
        await run(Fetch(verify=Checksums("md5", {})), ok(BODY))


async def test_checksums_of_large_bodies_let_the_loop_go_on() -> None:
    data = bytes(3_500_000)
    check = Checksums("md5", {"u": hashlib.md5(data).hexdigest()})
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await check("u", data)
    counting.cancel()
    assert turns >= 3
    for wrong in ("xyz", "00"):
        with pytest.raises(ValueError, match="no md5 digest"):
            Checksums("md5", {"u": wrong})


@pytest.mark.parametrize(
    "step", [ok(BODY), ok(BODY, length=10**12), raw(b"HTTP/1.1 200 OK\r\n\r\n" + BODY)]
)
async def test_larger_objects_are_refused(step: Step) -> None:
    op = Fetch(max_bytes=1000)
    server, error = await run(op, step)
    assert isinstance(error, FetchError)
    assert "max_bytes allows 1,000" in str(error)
    assert len(server.requests) == 1
    assert (await run(op, ok(bytes(1000))))[1] == bytes(1000)


# Ranges


async def test_ranges() -> None:
    async with ScriptedServer({"/o": [ok(BODY)], "/none": [ok(BODY, ranges=False)]}) as server:
        url = server.url("/o")
        assert await fetch_range(url, 10, 5) == BODY[10:15]
        assert await fetch_range(url, 100_000) == BODY[100_000:]
        assert await fetch_range(url, 102_390, 100) == BODY[102_390:]
        assert await fetch_range(url, 0, 1) == BODY[:1]
        with pytest.raises(FetchError, match="the range lies behind the end"):
            await fetch_range(url, 102_400, 1)
        with pytest.raises(FetchError, match="does not support ranges"):
            await fetch_range(server.url("/none"), 10, 5)
    for wrong in ((-1, 5), (0, 0), (0, -3), (0.5, 1)):
        with pytest.raises(ValueError, match="must be"):
            await fetch_range(url, *wrong)


async def test_a_range_goes_on_where_it_stopped(waits: list[float]) -> None:
    steps = [ok(BODY, etag='"v"', cut=40_000), ok(BODY, etag='"v"')]
    async with ScriptedServer({"/o": steps}) as server:
        assert await Fetch().range(server.url("/o"), 1000, 80_000) == BODY[1000:81_000]
        first, second = (request.headers["range"] for request in server.requests)
    assert first == "bytes=1000-80999"
    assert second.endswith("-80999")
    assert second != first


# Redirects, headers, surroundings


async def test_redirects_are_followed_so_far() -> None:
    scripts = {
        "/o": [status(302, Location="/p")],
        "/p": [ok(BODY)],
        "/l?token=hidden": [status(301, Location="/l?token=hidden")],
    }
    async with ScriptedServer(scripts) as server:
        assert await Fetch()(server.url("/o")) == BODY
        url = server.url("/l?token=hidden")
        with pytest.raises(FetchError, match="more than 3 redirects") as caught:
            await Fetch(max_redirects=3)(url)
        assert "hidden" not in "".join(traceback.format_exception(caught.value))
    _, error = await run(Fetch(), status(302, Location="file:///etc/passwd"))
    assert "redirected to what is no URL of http" in str(error)


async def test_a_quoted_url_is_sent_as_it_is_and_others_are_quoted() -> None:
    targets = {
        "/a%2Fb%2B?sig=a%2Fb%2B%3D&x=%7E": "/a%2Fb%2B?sig=a%2Fb%2B%3D&x=%7E",
        "/a b/é?x=é#part": "/a%20b/%C3%A9?x=%C3%A9",
    }
    async with ScriptedServer({target: [ok(BODY)] for target in targets.values()}) as server:
        for given in targets:
            assert await Fetch()(server.url(given)) == BODY
        assert [request.target for request in server.requests] == list(targets.values())


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/a%2Fb%2B?sig=a%2Fb%2B%3D&x=%7E", "/a%2Fb%2B?sig=a%2Fb%2B%3D&x=%7E"),
        ("{base}/a%2Fb%7e%41?x=%2b#part", "/a%2Fb%7e%41?x=%2b"),
        ("{base}?sig=%7E%2F", "/?sig=%7E%2F"),
        ("?sig=%7E", "/from?sig=%7E"),
        ("/a b?x=y z", "/a%20b?x=y+z"),
        ("/\xc3\xa9", "/%C3%A9"),  # as a server writes é in UTF-8
        ("/50%", "/50%25"),
    ],
)
async def test_the_target_of_a_redirect_is_sent_as_it_was(location: str, target: str) -> None:
    async with ScriptedServer({target: [ok(BODY)]}) as server:
        server.scripts["/from"] = [status(302, Location=location.format(base=server.url("")))]
        assert await Fetch()(server.url("/from")) == BODY
        assert [request.target for request in server.requests] == ["/from", target]


@pytest.mark.parametrize("location", ["http://host:99999/x y", "http://[::bad/x", "http://"])
async def test_a_redirect_to_nowhere_is_an_error_of_the_item(location: str) -> None:
    _, error = await run(Fetch(), status(302, Location=location))
    assert isinstance(error, FetchError)
    assert "it is redirected to what is no URL of http" in str(error)


async def test_a_server_is_the_same_one_however_its_urls_are_written() -> None:
    gate = asyncio.Event()
    async with ScriptedServer({"/?q": [gated(gate, ok(b"x"))], "/o": [ok(b"x")]}) as server:
        op, base = Fetch(per_host=1), server.url("")
        first = asyncio.create_task(op(f"{base}?q"))
        await server.first.wait()
        others = [
            asyncio.create_task(op(url)) for url in (f"{base}/o", f"HTTP{base[4:]}/o", f"{base}?q")
        ]
        gate.set()
        assert await asyncio.gather(first, *others) == [b"x"] * 4
        assert server.most_active == 1


async def test_a_call_that_outlives_its_session_opens_no_other_one() -> None:
    async with ScriptedServer({"/o": [ok(BODY)]}) as server:
        async with Fetch().lifespan() as get:
            late = asyncio.create_task(cast("Coroutine[Any, Any, bytes]", get(server.url("/o"))))
            await asyncio.sleep(0)  # it begins to open the session
        with pytest.raises(RuntimeError, match="closed"):
            await late


@pytest.mark.parametrize("most", [0, 1, 3])
async def test_as_many_redirects_are_followed_as_max_redirects_says(most: int) -> None:
    scripts = {f"/{n}": [status(302, Location=f"/{n - 1}")] for n in range(1, 9)}
    async with ScriptedServer({**scripts, "/0": [ok(BODY)]}) as server:
        op = Fetch(max_redirects=most)
        assert await op(server.url(f"/{most}")) == BODY
        with pytest.raises(FetchError, match="redirect") as caught:
            await op(server.url(f"/{most + 1}"))
        assert caught.value.attempts == 1
        assert caught.value.status in (None, 302)


async def test_a_proxy_that_refuses_is_named_and_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ScriptedServer({"example.org:443": [status(407)]}) as server:
        monkeypatch.setenv("HTTPS_PROXY", server.url(""))
        with pytest.raises(FetchError, match="the proxy answered 407") as caught:
            await Fetch()("https://example.org/x")
        assert len(server.requests) == caught.value.attempts == 1
        assert caught.value.status == 407


async def test_headers_and_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passwords = tmp_path / "netrc"
    passwords.write_text("machine 127.0.0.1 login me password pass\n")
    monkeypatch.setenv("NETRC", str(passwords))
    basic = "Basic " + base64.b64encode(b"me:pass").decode()
    server, _ = await run(Fetch(headers={"X-Mine": "1"}), ok(BODY))
    assert server.requests[0].headers["x-mine"] == "1"
    assert server.requests[0].headers["authorization"] == basic
    server, _ = await run(Fetch(headers={"authorization": "Bearer mine"}), ok(BODY))
    assert server.requests[0].headers["authorization"] == "Bearer mine"


async def test_a_broken_netrc_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passwords = tmp_path / "netrc"
    passwords.write_text("machine\nwhat is this\n")
    monkeypatch.setenv("NETRC", str(passwords))
    assert (await run(Fetch(), ok(BODY)))[1] == BODY
    assert "goes on without the passwords of" in caplog.text


async def test_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer({"http://example.invalid/o": [ok(BODY)]}) as server:
        monkeypatch.setenv("http_proxy", f"http://me:pass@127.0.0.1:{server.port}")
        assert await Fetch()("http://example.invalid/o") == BODY
        assert server.requests[0].headers["proxy-authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:pass@host/a?b=1#c", "https://***@host/a?b=1#c"),
        ("https://h/a?X-Amz-Signature=1&n=2&sig=3", "https://h/a?X-Amz-Signature=***&n=2&sig=***"),
        ("abfss://c@a.dfs.core.windows.net/k", "abfss://c@a.dfs.core.windows.net/k"),
        ("http://u:p@[bad/a?token=1", "[bad/a"),
        ("http://h/a?flag&é=1", "http://h/a?flag&é=1"),
    ],
)
def test_urls_are_redacted(url: str, shown: str) -> None:
    assert _retrying.redacted(url) == shown
    assert _retrying.redacted_text(f"see {url} or {url}") == f"see {shown} or {shown}"


@pytest.mark.parametrize("step", [status(403), status(500), hang_up, silent, raw(b"x\r\n\r\n")])
async def test_errors_hold_no_secrets(step: Step, waits: list[float]) -> None:
    op = Fetch(idle_timeout=0.1, retry=Retry(2, backoff=0.0))
    async with ScriptedServer({"/o?token=hidden": [step]}) as server:
        url = server.url("/o?token=hidden").replace("//", "//me:hidden@")
        with pytest.raises(FetchError) as caught:
            await op(url)
    assert "hidden" not in "".join(traceback.format_exception(caught.value))
    assert "hidden" not in repr(vars(caught.value))


async def test_an_error_survives_pickling() -> None:
    _, error = await run(Fetch(), status(404))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.status, again.url) == (str(error), 404, error.url)


# Use


async def test_calls_at_the_same_time_share_connections() -> None:
    async with ScriptedServer({"/o": [ok(BODY)]}) as server:
        op = Fetch()
        await asyncio.gather(*[op(server.url("/o")) for _ in range(20)])
        assert server.connections <= 20
        assert not op._shared
        before = server.connections
        async with op.lifespan() as get:
            for _ in range(5):
                assert await get(server.url("/o")) == BODY
        assert server.connections == before + 1


async def test_at_most_so_many_requests_for_each_server() -> None:
    async with ScriptedServer({"/o": [ok(BODY)]}) as one, ScriptedServer({"/o": [ok(BODY)]}) as two:
        op = Fetch(per_host=3)
        urls = [server.url("/o") for server in (one, two)] * 20
        assert await asyncio.gather(*map(op, urls)) == [BODY] * 40
        assert one.most_active <= 3
        assert two.most_active <= 3


@pytest.mark.parametrize("url", ["/data/a.tar", "ftp://host/a", "a.tar", "", "://", "C:\\a"])
async def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="should begin with"):
        await fetch(url)


async def test_a_path_is_no_url(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="read_file"):
        await fetch(tmp_path)  # type: ignore[arg-type]  # the mistake


async def test_a_url_that_cannot_be_is_an_item_error() -> None:
    for url in ("http://", "http://[::bad/x", "http://host:99999/x", "http://a..b/x"):
        with pytest.raises(FetchError, match="not a valid URL"):
            await fetch(url)


@pytest.mark.parametrize(
    "options",
    [
        {"retry": 5},
        {"retry": Retry(3, on=(OSError,))},
        {"connect_timeout": 0},
        {"idle_timeout": -1},
        {"total_timeout": "1"},
        {"max_retry_after": -1},
        {"max_retry_after": float("nan")},
        {"verify": "sha256"},
        {"max_bytes": 0},
        {"per_host": 0},
        {"per_host": True},
        {"max_redirects": -1},
        {"ssl_context": False},
        {"max_retry_after": True},
        {"headers": 3},
        {"headers": [("a", "b")]},
        {"headers": {"a": 3}},
        {"headers": {3: "a"}},
        {"headers": {"a": "b\r\nc: d"}},
        {"store": 3},
        {"store": {"no_such_option": 1}},
        {"store": {"retries": -1}},
        {"store": {"config": 3}},
        {"store": {"max_bytes": 1}},
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(options))}|^config|^retries"):
        Fetch(**options)


def test_what_is_said_of_headers_holds_no_secrets() -> None:
    for value in ("hidden\n", b"hidden"):
        with pytest.raises(ValueError, match="Authorization") as caught:
            Fetch(headers={"Authorization": value})  # type: ignore[dict-item]  # one is none
        assert "hidden" not in str(caught.value)
