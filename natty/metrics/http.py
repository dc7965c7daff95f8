"""An HTTP server for the pages of a process about itself: an aiohttp application on the process's event loop.

It uses TLS with a certificate that can be replaced while it runs, refuses host names that are not its own (DNS
rebinding), and disconnects clients that send or read too slowly. It needs aiohttp (the extra `metrics`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http import HttpProcessingError

from natty.errors import ConfigError
from natty.metrics.access import REFUSED_HOST, Certificate, Hosts, is_loopback, warn_if_open
from natty.metrics.pages import PROBES, Answer, Guard, Pages, guard_of, place_of

logger = logging.getLogger("natty.httpd")

PAGE_TIMEOUT = 5.0
"""Seconds that a client of `serve_pages` has for its request, and again to read the answer."""
HEAD_TIMEOUT = 10.0
"""Seconds to establish a connection with its TLS, and to send the head of a first request."""
IDLE_TIMEOUT = 30.0
"""Seconds that a connection has for each further request, and to read an answer."""
LINGER_TIME = 1.0
"""Seconds in which the server discards the unread rest of a request, so that the client sees its answer."""
MAX_HEAD_BYTES = 8 * 1024
DETAILS = {
    HTTPStatus.METHOD_NOT_ALLOWED: {"Allow": "GET, HEAD"},
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": 'Basic realm="the token is the password", charset="UTF-8"'},
}
"""The headers of a status."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Return whether aiohttp logs a fault of the program. A malformed request is not a fault: it gets a 400."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


logger.addFilter(_is_our_fault)


@asynccontextmanager
async def serve_pages(address: str, pages: Pages, guard: Guard | None = None) -> AsyncIterator[int]:
    """Serve the pages on "host:port" (":9100" is every address, port 0 a free one) during the block; yield the port.

    Each connection serves one GET or HEAD. Without a `guard`, the address decides which clients get answers: see
    `guard_of`. ConfigError if the address is malformed, or if serving on it fails.
    """
    host, port = place_of(address)
    guard = guard_of(address) if guard is None else guard
    application = web.Application(middlewares=[_answer_from(pages, guard)])
    async with _listen(application, (host, port), guard.certificate, guard.hosts, PAGE_TIMEOUT, PAGE_TIMEOUT) as url:
        yield urlsplit(url).port or 0


@asynccontextmanager
async def serve(
    application: web.Application,
    host: str,
    port: int,
    tls: Certificate | None,
    *,
    has_tokens: bool = True,
    hosts: Iterable[str] = (),
    head_timeout: float = HEAD_TIMEOUT,
) -> AsyncIterator[str]:
    """Serve the application (port 0: a free one) during the block; yield its URL.

    Without tokens, a page on a loopback address answers only to its own names and to `hosts`; on a public address, a
    warning is logged. ConfigError if serving on the address fails, or if it is not a loopback address and there is no
    `tls`.
    """
    if tls is None and not is_loopback(host):
        raise ConfigError(f"without TLS, only a loopback address can be served, not {host!r}: give --cert and --key")
    warn_if_open("the page", host, has_tokens=has_tokens)
    names = Hosts.of(host, hosts, has_tokens=has_tokens)
    async with _listen(application, (host, port), tls, names, head_timeout, IDLE_TIMEOUT) as url:
        yield url


@asynccontextmanager
async def _listen(
    application: web.Application,
    place: tuple[str, int],
    tls: Certificate | None,
    hosts: Hosts | None,
    head_timeout: float,
    answer_timeout: float,
) -> AsyncIterator[str]:
    """Serve the application and yield its URL. At the end, close all connections."""
    host, port = place
    application.middlewares.insert(0, _answer_in_time(hosts, answer_timeout))
    application.on_response_prepare.append(_hide_version)
    runner = web.AppRunner(application, shutdown_timeout=head_timeout)
    await runner.setup()
    assert runner.server is not None

    def connect(server: web.Server) -> asyncio.Protocol:
        if tls is not None:
            tls.refresh()
        return _Connection(server, head_timeout)

    try:
        try:
            server = await asyncio.get_running_loop().create_server(
                partial(connect, runner.server),
                host or None,
                port,
                ssl=tls.context if tls else None,
                ssl_handshake_timeout=head_timeout if tls else None,
                ssl_shutdown_timeout=head_timeout if tls else None,
                reuse_address=True,
            )
        except OSError as error:
            raise ConfigError(_explain_failure(f"{host}:{port}", error)) from error
        try:
            taken = server.sockets[0].getsockname()[1]
            yield f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{taken}"
        finally:
            server.close()
    finally:
        left = [one.transport for one in runner.server.connections if one.transport is not None]
        await runner.cleanup()
        for transport in left:  # a TLS close would wait for the client
            transport.abort()
        await asyncio.sleep(0)


class _Connection(web.RequestHandler):
    """One connection. It is closed if the head of its first request is too long, incomplete or late.

    A client that closes its side of a plain connection after its first request still gets the answer.
    """

    def __init__(self, server: web.Server, head_timeout: float) -> None:
        loop, options = asyncio.get_running_loop(), dict[str, Any](access_log=None, lingering_time=LINGER_TIME)
        super().__init__(server, loop=loop, logger=logger, keepalive_timeout=IDLE_TIMEOUT, **options)
        self._head: bytes | None = b""  # of the first request; None when it is complete
        self._is_answered = False
        self._is_half_closed = False
        self._deadline = loop.call_later(head_timeout, self._refuse, HTTPStatus.REQUEST_TIMEOUT)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client; asyncio calls this."""
        if self._head is not None:
            self._head += data
            length = self._head.find(b"\r\n\r\n")
            if (length if length >= 0 else len(self._head)) > MAX_HEAD_BYTES:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                return
            if length >= 0:
                self._head = None
                self._deadline.cancel()
        super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio reads what aiohttp's own never returns
        """Return whether to keep the connection of a client that has closed its side; asyncio calls this."""
        if self._head is not None:
            self._refuse(HTTPStatus.BAD_REQUEST)
        is_plain = self.transport is not None and self.transport.get_extra_info("ssl_object") is None
        self._is_half_closed = is_plain and not self._is_answered
        return self._is_half_closed

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection; asyncio calls this."""
        self._deadline.cancel()
        super().connection_lost(exc)

    async def send(self, request: web.Request, response: web.StreamResponse, timeout: float) -> None:
        """Send an answer, and abort the connection if the client does not take it in time."""
        self._is_answered = True
        if self._is_half_closed:
            response.force_close()
        transport = self.transport
        try:
            async with asyncio.timeout(timeout):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            if transport is not None:
                transport.abort()
        else:
            if not response.keep_alive and transport is not None:  # a part of the answer may still be in its buffers
                self._deadline = asyncio.get_running_loop().call_later(timeout, transport.abort)

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer an incomplete request, and close the connection."""
        if self.transport is None or self.transport.is_closing():
            return
        body = _sentence(status)
        head = f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        self.transport.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        self.force_close()


def _answer_in_time(hosts: Hosts | None, seconds: float) -> Any:
    """Return the middleware that refuses requests for other hosts, and clients that do not read their answer."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, _Connection)
        response = _refuse(request, hosts) or await handler(request)
        await connection.send(request, response, seconds)
        return response

    return answer


def _refuse(request: web.Request, hosts: Hosts | None) -> web.Response | None:
    """Return the refusal of a request that HTTP/1.1 forbids or that is for another host; None for other requests."""
    name = request.headers.get("Host")
    if request.version not in ((1, 0), (1, 1)) or (request.version == (1, 1) and name is None):
        return _response(HTTPStatus.BAD_REQUEST)
    if hosts is not None and not hosts.admit(name or ""):
        return web.Response(status=HTTPStatus.MISDIRECTED_REQUEST, text=f"{REFUSED_HOST}\n")
    return None


def _answer_from(pages: Pages, guard: Guard) -> Any:
    """Return the middleware that answers every request, on any path."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = _page(pages, guard, request)
        response.headers["Cache-Control"] = "no-store"
        response.force_close()
        return response

    return answer


def _page(pages: Pages, guard: Guard, request: web.Request) -> web.Response:
    shown = request.headers.get("Authorization", "")
    if guard.tokens and request.path not in PROBES and not guard.tokens.admit(shown, basic=True):
        return _response(HTTPStatus.UNAUTHORIZED, b"a token is needed\n")
    if request.method not in ("GET", "HEAD"):
        return _response(HTTPStatus.METHOD_NOT_ALLOWED)
    if request.path not in pages:
        return _response(HTTPStatus.NOT_FOUND)
    try:
        body, status, content_type = pages[request.path]()
    except Exception:
        logger.exception("serving a page failed", extra={"action": "page_failed"})
        return _response(HTTPStatus.INTERNAL_SERVER_ERROR)
    return web.Response(body=body, status=status, headers={"Content-Type": content_type})


def _response(status: HTTPStatus, body: bytes = b"") -> web.Response:
    headers = {"Content-Type": Answer(b"").content_type} | DETAILS.get(status, {})
    return web.Response(body=body or _sentence(status), status=status, headers=headers)


def _sentence(status: HTTPStatus) -> bytes:
    return f"{status} {status.phrase}\n".encode()


async def _hide_version(request: web.Request, response: web.StreamResponse) -> None:
    """Remove the versions of Python and aiohttp from the headers."""
    response.headers.pop("Server", None)


def _explain_failure(address: str, error: OSError) -> str:
    """Return why serving on an address fails, and what to do."""
    if error.errno == errno.EADDRINUSE:
        why = "another program uses that port; choose another port, or 0 for a free one"
    elif error.errno in (errno.EACCES, errno.EPERM):
        why = "this user may not use that port; choose one above 1023"
    elif error.errno == errno.EADDRNOTAVAIL:
        why = "this machine has no such address; choose one that it has, or 127.0.0.1"
    elif isinstance(error, socket.gaierror):
        why = "the host name is unknown; check it"
    else:
        why = error.strerror or str(error)
    return f"cannot serve on {address}: {why}"
