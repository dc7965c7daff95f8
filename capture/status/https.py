"""A web application on the process's event loop, over TLS; without it on a loopback address only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from aiohttp import web
from aiohttp.http import HttpProcessingError

from capture.errors import ConfigError
from natty.errors import NattyError
from natty.metrics import access
from natty.metrics.access import REFUSED_HOST, Certificate, Hosts, is_loopback, warn_if_open
from natty.metrics.http import unserved

HEAD_TIMEOUT = 10.0
"""Seconds that a connection has to be made, with its TLS, and to send the head of a first request."""
IDLE_TIMEOUT = 30.0
"""Seconds that a connection has for each further one."""

log = logging.getLogger("capture.https")


def _is_ours(record: logging.LogRecord) -> bool:
    """Tell whether aiohttp has logged a fault of the program: a request that is none is answered 400, and no news."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


log.addFilter(_is_ours)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextmanager
def _as_ours() -> Iterator[None]:
    try:
        yield
    except NattyError as error:
        raise ConfigError(str(error)) from error


def server_context(cert: Path, key: Path) -> Certificate:
    """Return TLS 1.2 or later with this certificate chain. ConfigError if the files can't be used."""
    with _as_ours():
        return Certificate(cert, key)


class Tokens(access.Tokens):
    """Who may come in: whoever shows one of these. ConfigError if one is too short."""

    def __init__(self, tokens: Iterable[str]) -> None:
        with _as_ours():
            super().__init__(tokens)


@asynccontextmanager
async def serving(
    application: web.Application,
    host: str,
    port: int,
    tls: Certificate | None,
    *,
    has_tokens: bool = True,
    hosts: Iterable[str] = (),
    head_timeout: float = HEAD_TIMEOUT,
) -> AsyncIterator[str]:
    """Meanwhile, serve the application (port 0: a free one); yield its URL.

    Without tokens a page on a loopback address answers only to names of its own and to `hosts`; on a public one it
    warns. Whoever sends no request within `head_timeout` seconds is disconnected. The certificate is read again when it
    has changed. ConfigError if the address can't be had, or if it is no loopback address and there is no `tls`.
    """
    if tls is None and not is_loopback(host):
        raise ConfigError(
            f"without TLS it is served on a loopback address only, not on {host!r}: give --cert and --key"
        )
    warn_if_open("the page", host, has_tokens=has_tokens)
    door = _Door(Hosts.of(host, hosts, has_tokens=has_tokens), tls, head_timeout)
    application.middlewares.insert(0, door.guard)
    runner = web.AppRunner(application, access_log=None, logger=log, keepalive_timeout=IDLE_TIMEOUT)
    await runner.setup()
    assert runner.server is not None
    try:
        try:
            server = await asyncio.get_running_loop().create_server(
                partial(door.accept, runner.server),
                host,
                port,
                ssl=tls.context if tls else None,
                ssl_handshake_timeout=head_timeout if tls else None,
                reuse_address=True,
            )
        except OSError as error:
            raise ConfigError(unserved(f"{host}:{port}", error)) from error
        try:
            taken = server.sockets[0].getsockname()[1]
            yield f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{taken}"
        finally:
            server.close()
    finally:
        door.close()
        left = [one.transport for one in runner.server.connections if one.transport is not None]
        await runner.cleanup()
        for transport in left:  # TLS would wait for the other side's end, 30 s
            transport.abort()
        await asyncio.sleep(0)


class _Door:
    """What each connection passes before the application sees its request."""

    def __init__(self, hosts: Hosts | None, tls: Certificate | None, head_timeout: float) -> None:
        self._hosts = hosts
        self._tls = tls
        self._head_timeout = head_timeout
        self._silent: dict[object, asyncio.TimerHandle] = {}  # connections that have sent no request yet

    def accept(self, server: web.Server) -> asyncio.Protocol:
        """Return what talks on a new connection."""
        if self._tls is not None:
            self._tls.refresh()
        connection = server()
        self._silent[connection] = asyncio.get_running_loop().call_later(self._head_timeout, self._end, connection)
        return connection

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer what was asked by a name that is ours."""
        if timer := self._silent.pop(request.protocol, None):
            timer.cancel()
        if self._hosts is not None and not self._hosts.admit(request.headers.get("Host", "")):
            return web.Response(status=421, text=f"{REFUSED_HOST}\n")
        return await handler(request)

    def close(self) -> None:
        """Forget all connections."""
        for timer in self._silent.values():
            timer.cancel()
        self._silent.clear()

    def _end(self, connection: web.RequestHandler) -> None:
        self._silent.pop(connection, None)
        if connection.transport is not None:
            connection.transport.abort()
