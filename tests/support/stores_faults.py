"""An HTTP server in front of an object store that simulates faults of stores and networks."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from listening import listening

from natty.testing import free_ports


@dataclass(frozen=True)
class Request:
    """A client's request; `target` is as it was sent, percent-encoded."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Say:
    """Answer this without a request to the store, or after one if `after` is set."""

    status: int
    code: str = ""
    headers: str = ""
    after: bool = False

    def encoded(self) -> bytes:
        body = f"<Error><Code>{self.code}</Code></Error>".encode() if self.code else b""
        return f"HTTP/1.1 {self.status} Said\r\nContent-Length: {len(body)}\r\n{self.headers}\r\n".encode() + body


HANG = "hang"  # never answer
LOSE_ANSWER = "lose answer"  # ask the store, then close the connection
LIE = Say(200, headers='ETag: "0"\r\n')
Fault = Callable[[Request], "Say | str | None"]


class FaultyHTTP:
    """Forwards requests to `port` on the loopback, speaking TLS itself; an async context manager.

    `fault` decides what happens to a request: None forwards it. `requests` are all that arrived, in order.
    """

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.port = free_ports(1)[0]
        self.endpoint = f"https://127.0.0.1:{self.port}"
        self.fault: Fault = lambda request: None
        self.requests: list[Request] = []
        self._target, self._context = port, context

    async def __aenter__(self) -> FaultyHTTP:
        self._listening = listening(self._serve, port=self.port, ssl=self._context)
        await self._listening.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listening.__aexit__(None, None, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError):
            while await self._exchange(reader, writer):
                pass
        writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        request = _parsed(head)
        body = await reader.readexactly(int(request.headers.get("content-length", 0)))
        request = replace(request, body=body)
        self.requests.append(request)
        fault = self.fault(request)
        if fault == HANG:
            await asyncio.get_running_loop().create_future()
        if isinstance(fault, Say) and not fault.after:
            writer.write(fault.encoded())
            await writer.drain()
            return True
        answer = await self._asked(head + body, request.method)
        if fault == LOSE_ANSWER:
            return False
        writer.write(fault.encoded() if isinstance(fault, Say) else answer)
        await writer.drain()
        return True

    async def _asked(self, request: bytes, method: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            writer.write(request)
            return await _answer(reader, method)
        finally:
            writer.transport.abort()


def _parsed(head: bytes) -> Request:
    method, target, _ = head.split(b" ", 2)
    return Request(method.decode(), target.decode("latin-1"), _headers(head))


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def _answer(reader: asyncio.StreamReader, method: str) -> bytes:
    """Read one whole answer, unchanged."""
    head = await reader.readuntil(b"\r\n\r\n")
    headers = _headers(head)
    if method == "HEAD" or head[9:12] in (b"204", b"304"):
        return head
    if "chunked" not in headers.get("transfer-encoding", ""):
        return head + await reader.readexactly(int(headers.get("content-length", 0)))
    parts = [head]
    while True:
        size = await reader.readuntil(b"\r\n")
        parts += [size, await reader.readexactly(int(size, 16) + 2)]
        if int(size, 16) == 0:
            return b"".join(parts)


@pytest.fixture
async def faulty(s3, natty_tls):
    """The proxy in front of the S3 server; it terminates the store's TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(natty_tls.server_cert, natty_tls.server_key)
    async with FaultyHTTP(s3.plain_port, context) as server:
        yield server
