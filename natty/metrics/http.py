"""An HTTP server for the pages of a process about itself: an aiohttp application on the process's event loop.

It uses TLS with a certificate that can be replaced while it runs, refuses host names that are not its own (DNS
rebinding), and disconnects clients that send or read too slowly. It needs aiohttp (the extra `metrics`).

It has at most MOST_CONNECTIONS at a time, further clients wait: silent clients leave file descriptors to the program.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http import HttpProcessingError

from natty.errors import ConfigError
from natty.metrics.access import REFUSED_HOST, Certificate, Hosts, is_loopback, warn_if_open
from natty.metrics.pages import PROBES, Answer, Guard, Pages, guard_of, place_of
from natty.wire.background import cancel_all
from natty.wire.repeated import Repeated

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
MOST_CONNECTIONS = 64
"""Connections at a time, those included that still establish TLS."""
BACKLOG = 100  # connections that wait in the kernel
ACCEPT_PAUSE = 1.0  # seconds after a failed accept, for example without free file descriptors
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
    """Serve the pages on "host:port" (":8190" is every address, port 0 a free one) during the block; yield the port.

    Each connection serves one GET or HEAD. Without a `guard`, the address decides which clients get answers: see
    `guard_of`. ConfigError if the address is malformed, or if serving on it fails.
    """
    host, port = place_of(address)
    guard = guard_of(address) if guard is None else guard
    application = web.Application(middlewares=[_answer_from(pages, guard)])
    limits = _Limits(PAGE_TIMEOUT, PAGE_TIMEOUT, one_request=True)
    async with _listen(application, (host, port), guard.certificate, guard.hosts, limits) as url:
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
    async with _listen(application, (host, port), tls, names, _Limits(head_timeout, IDLE_TIMEOUT)) as url:
        yield url


class _Limits(NamedTuple):
    """What a connection may take: seconds for its first head, and to read an answer."""

    head: float
    answer: float
    one_request: bool = False


@asynccontextmanager
async def _listen(
    application: web.Application,
    place: tuple[str, int],
    tls: Certificate | None,
    hosts: Hosts | None,
    limits: _Limits,
) -> AsyncIterator[str]:
    """Serve the application and yield its URL. At the end, close all connections."""
    host, port = place
    application.middlewares.insert(0, _check_host(hosts))
    runner = web.AppRunner(application, shutdown_timeout=limits.head)
    await runner.setup()
    assert runner.server is not None
    door = _Door(runner.server, tls, limits)
    try:
        sockets = await _bind(host, port)
        tasks = [asyncio.create_task(door.accept_from(one)) for one in sockets]
        try:
            taken = sockets[0].getsockname()[1]
            yield f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{taken}"
        finally:
            await cancel_all(tasks)
            for one in sockets:
                one.close()
    finally:
        await runner.cleanup()
        await cancel_all(door.serving)
        await asyncio.sleep(0)  # the event loop closes what was aborted


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Return the sockets that listen on the addresses of a host ("": every address). ConfigError."""
    loop, sockets, failure = asyncio.get_running_loop(), list[socket.socket](), OSError("the host has no address")
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((one[0], one[4]) for one in found):
            try:
                sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
            except OSError as error:
                failure = error
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # a host name may have such addresses
                    raise
            else:
                sockets[-1].setblocking(False)
        if not sockets:
            raise failure
    except OSError as error:
        for one in sockets:
            one.close()
        raise ConfigError(_explain_failure(f"{host}:{port}", error)) from error
    return sockets


class _Door:
    """Accepts connections, not more than MOST_CONNECTIONS at a time."""

    def __init__(self, server: web.Server, tls: Certificate | None, limits: _Limits) -> None:
        self._server, self._tls, self._limits = server, tls, limits
        self._room = asyncio.Semaphore(MOST_CONNECTIONS)
        self._repeated = Repeated(logger)
        self.serving: set[asyncio.Task[None]] = set()

    async def accept_from(self, listening: socket.socket) -> None:
        """Accept and serve connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            if self._room.locked():
                full = f"there are {MOST_CONNECTIONS} connections to the pages: further clients wait"
                self._repeated.warning(full, full, extra={"action": "pages_full"})
            await self._room.acquire()
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                self._room.release()
                text = "a connection to the pages can't be accepted"
                self._repeated.warning(text, f"{text}: {error}", extra={"action": "accept_failed"})
                await asyncio.sleep(ACCEPT_PAUSE)
            else:
                task = asyncio.create_task(self._serve(accepted))
                self.serving.add(task)
                task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self.serving.discard(task)
        self._room.release()

    async def _serve(self, accepted: socket.socket) -> None:
        """Serve a connection to its end. When cancelled, abort it: a close would wait for the client."""
        tls, wait = self._tls, self._limits.head
        if tls is not None:
            tls.refresh()
        connection = _Connection(self._server, self._limits)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=tls.context if tls else None,
                ssl_handshake_timeout=wait if tls else None,
                ssl_shutdown_timeout=wait if tls else None,
            )
            await connection.wait_until_lost()
        except OSError as error:  # the client ended the connection, or does not speak TLS
            logger.debug("a connection to the pages was not established: %s", error)
        finally:
            connection.abort()


class _Connection(web.RequestHandler):
    """One connection. It is closed if the head of its first request is too long, incomplete or late.

    It is aborted if the client does not read what is sent to it, also while it is closed. A client that closes its side
    of a plain connection after its first request still gets the answer.
    """

    def __init__(self, server: web.Server, limits: _Limits) -> None:
        loop, options = asyncio.get_running_loop(), dict[str, Any](access_log=None, lingering_time=LINGER_TIME)
        super().__init__(server, loop=loop, logger=logger, keepalive_timeout=IDLE_TIMEOUT, **options)
        self._limits = limits
        self._wire: asyncio.Transport | None = None  # aiohttp forgets its own when it closes it
        self._lost = asyncio.Event()
        self._head: bytes | None = b""  # of the first request; None when it is complete
        self._is_answered = False
        self._is_half_closed = False
        self._deadline = loop.call_later(limits.head, self._refuse, HTTPStatus.REQUEST_TIMEOUT)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; asyncio calls this."""
        self._wire = cast("asyncio.Transport", transport)
        super().connection_made(transport)

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

    def pause_writing(self) -> None:
        """Give the client its time to read what it was sent; asyncio calls this."""
        super().pause_writing()
        self._abort_later()

    def resume_writing(self) -> None:
        """Go on, since the client has read; asyncio calls this."""
        super().resume_writing()
        if self._wire is not None and not self._wire.is_closing():
            self._deadline.cancel()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection; asyncio calls this."""
        self._deadline.cancel()
        self._lost.set()
        super().connection_lost(exc)

    async def wait_until_lost(self) -> None:
        """Return when the connection has ended, or if it never began."""
        if self._wire is not None:
            await self._lost.wait()

    def abort(self) -> None:
        """End the connection at once, and drop what was not sent yet."""
        self._deadline.cancel()
        if self._wire is not None:
            self._wire.abort()

    async def start(self) -> None:
        """Serve the requests, and close; aiohttp calls this. A close waits for the client: limit that, too."""
        try:
            await super().start()
        finally:
            self._abort_later()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; aiohttp calls this for every one, its own refusals included."""
        self._is_answered = True
        if self._is_half_closed or self._limits.one_request:
            resp.force_close()
        resp.headers.setdefault("Server", "natty")  # aiohttp's own has the versions of Python and aiohttp
        return await super().finish_response(request, resp, start_time)

    def _abort_later(self) -> None:
        if not self._lost.is_set():
            self._deadline.cancel()
            self._deadline = asyncio.get_running_loop().call_later(self._limits.answer, self.abort)

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer an incomplete request, and close the connection."""
        if self.transport is None or self.transport.is_closing():
            return
        body = _sentence(status)
        head = f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        self.transport.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        self.force_close()


def _check_host(hosts: Hosts | None) -> Any:
    """Return the middleware that refuses requests for other hosts."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        return _refuse(request, hosts) or await handler(request)

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
        response = await _page(pages, guard, request)
        response.headers["Cache-Control"] = "no-store"
        return response

    return answer


async def _page(pages: Pages, guard: Guard, request: web.Request) -> web.Response:
    shown = request.headers.get("Authorization", "")
    if guard.tokens and request.path not in PROBES and not guard.tokens.admit(shown, basic=True):
        return _response(HTTPStatus.UNAUTHORIZED, b"a token is needed\n")
    if request.method not in ("GET", "HEAD"):
        return _response(HTTPStatus.METHOD_NOT_ALLOWED)
    if request.path not in pages:
        return _response(HTTPStatus.NOT_FOUND)
    try:
        answer = pages[request.path]()
        body, status, content_type = answer if isinstance(answer, Answer) else await answer
    except Exception:
        logger.exception("serving a page failed", extra={"action": "page_failed"})
        return _response(HTTPStatus.INTERNAL_SERVER_ERROR)
    return web.Response(body=body, status=status, headers={"Content-Type": content_type})


def _response(status: HTTPStatus, body: bytes = b"") -> web.Response:
    headers = {"Content-Type": Answer(b"").content_type} | DETAILS.get(status, {})
    return web.Response(body=body or _sentence(status), status=status, headers=headers)


def _sentence(status: HTTPStatus) -> bytes:
    return f"{status} {status.phrase}\n".encode()


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
