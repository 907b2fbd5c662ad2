"""An HTTP server on loopback that does for each path what a script says, faults included.

It speaks just enough HTTP/1.1, over raw streams, so that it can break the rules: bodies that are
cut, reset or never end, headers that lie, and no answer at all.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from asyncio import StreamReader, StreamWriter, Task
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a client asked for; names of headers are in small letters."""

    target: str
    headers: Mapping[str, str]


Step = Callable[[Request, StreamWriter], Awaitable[None]]


class ScriptedServer:
    """Serves paths by their scripts; of each, the last step is repeated for ever."""

    def __init__(
        self,
        scripts: Mapping[str, Iterable[Step]] | None = None,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self.scripts = {path: list(steps) for path, steps in (scripts or {}).items()}
        self.requests: list[Request] = []
        self.first = asyncio.Event()  # somebody has asked for something
        self.connections = 0
        self.active = 0
        self.most_active = 0
        self._tasks: set[Task[Any]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    def url(self, path: str) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}{path}"

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.target == path]

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while (request := await _read(reader)) is not None:
                await self._answer(request, writer)
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _answer(self, request: Request, writer: StreamWriter) -> None:
        self.requests.append(request)
        self.first.set()
        steps = self.scripts.get(request.target, [status(404)])
        step = steps.pop(0) if len(steps) > 1 else steps[0]
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            await step(request, writer)
            await writer.drain()
        finally:
            self.active -= 1


async def _read(reader: StreamReader) -> Request | None:
    # What is no HTTP, such as the beginning of TLS, whose bytes may look like lines, gets no answer.
    while len((line := await reader.readline()).split()) != 3:
        if not line:
            return None
    headers = {}
    while (header := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = header.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return Request(target=line.decode("latin-1").split()[1], headers=headers)


# Steps


def head(code: int, headers: Mapping[str, object], reason: str = "Scripted") -> bytes:
    lines = [f"HTTP/1.1 {code} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def status(code: int, **headers: object) -> Step:
    """Answer with a status; underscores in the names of headers are hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def step(request: Request, writer: StreamWriter) -> None:
        body = b"no"
        writer.write(head(code, {"Content-Length": len(body), **named}) + body)

    return step


def ok(
    body: bytes,
    *,
    etag: str | None = None,
    answer_etag: str | None = None,
    ranges: bool = True,
    cut: int | None = None,
    then: str = "close",
    length: int | None = None,
    check: bool = True,
) -> Step:
    """Answer with a body, or a range of it.

    Args:
        etag: the object's validator, and with ``ranges`` what If-Range is compared with.
        ranges: whether a Range is honoured.
        cut: how many bytes of what should be sent are sent, before what ``then`` says happens:
            "close", "reset" or "stall".
        length: another Content-Length than the right one.
        check: whether If-Range is looked at; False is a server that does not know it.
    """

    async def step(request: Request, writer: StreamWriter) -> None:
        headers: dict[str, object] = {} if etag is None else {"ETag": answer_etag or etag}
        asked = request.headers.get("range")
        condition = request.headers.get("if-range")
        part, code = body, 200
        if asked and ranges and (not check or condition in (None, etag)):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            if int(first) >= len(body):
                writer.write(
                    head(416, {"Content-Range": f"bytes */{len(body)}", "Content-Length": 0})
                )
                return
            end = min(int(last) + 1, len(body)) if last else len(body)
            part, code = body[int(first) : end], 206
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(body)}"
        headers["Content-Length"] = len(part) if length is None else length
        writer.write(head(code, headers) + part[:cut])
        if cut is not None:
            await _end(writer, then)

    return step


async def _end(writer: StreamWriter, then: str) -> None:
    await writer.drain()
    for _ in range(20):  # the client has read what was sent: everything is on one loop
        await asyncio.sleep(0)
    if then == "stall":
        await asyncio.Event().wait()
    if then == "reset":
        plug: socket.socket = writer.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    raise ConnectionAbortedError


async def silent(request: Request, writer: StreamWriter) -> None:
    """Accept, and never answer."""
    await asyncio.Event().wait()


async def headers_only(request: Request, writer: StreamWriter) -> None:
    """Send the head of an answer, and then nothing."""
    writer.write(head(200, {"Content-Length": 10}))
    await _end(writer, "stall")


async def drip(request: Request, writer: StreamWriter) -> None:
    """Send a byte now and then, for ever."""
    writer.write(head(200, {"Content-Length": 1_000_000}))
    while True:
        writer.write(b".")
        await writer.drain()
        await asyncio.sleep(0.01)


async def hang_up(request: Request, writer: StreamWriter) -> None:
    """Reset the connection instead of answering."""
    await _end(writer, "reset")


def raw(data: bytes) -> Step:
    """Send just these bytes, and close."""

    async def step(request: Request, writer: StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        raise ConnectionAbortedError

    return step


def gated(gate: asyncio.Event, step: Step) -> Step:
    """Wait for a gate before a step."""

    async def waiting(request: Request, writer: StreamWriter) -> None:
        await gate.wait()
        await step(request, writer)

    return waiting
