"""Objects behind a latency, served by a process of its own: `python -m benchmarks._object_server`.

Every path is an object of the same size. It answers after the latency, on connections that stay
open; its port is the only line that it prints. It ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class _Connection(asyncio.Protocol):
    """Answers the requests of one connection, each after the latency."""

    def __init__(self, latency: float, answer: bytes) -> None:
        self._latency = latency
        self._answer = answer
        self._rest = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._rest = (self._rest + data).split(b"\r\n\r\n")
        for _ in requests:
            self._loop.call_later(self._latency, self._send)

    def _send(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._answer)


async def _serve(latency: float, size: int) -> None:
    head = (
        f'HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nETag: "1"\r\n'
        f"Last-Modified: Mon, 30 Nov 2026 12:00:00 GMT\r\n\r\n"
    )
    answer = head.encode() + bytes(size)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Connection(latency, answer), "127.0.0.1", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextmanager
def serving(*, latency: float, size: int) -> Iterator[int]:
    """Start the server in a process; give its port.

    Args:
        latency: seconds before each answer.
        size: bytes of each object.
    """
    command = [sys.executable, "-m", __name__, str(latency), str(size)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.communicate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("latency", type=float)
    parser.add_argument("size", type=int)
    given = parser.parse_args()
    asyncio.run(_serve(given.latency, given.size))
