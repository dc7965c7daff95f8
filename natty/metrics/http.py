"""HTTP/1.1 (RFC 9112) for a few pages about a process, on its event loop: GET and HEAD, a connection a request."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from natty.errors import ConfigError
from natty.metrics.access import REFUSED_HOST, Certificate, Hosts, Tokens, is_loopback, warn_if_open

logger = logging.getLogger("natty.httpd")

PROBES = ("/livez", "/readyz")
MORE = {
    HTTPStatus.METHOD_NOT_ALLOWED: ("Allow: GET, HEAD",),
    HTTPStatus.UNAUTHORIZED: ('WWW-Authenticate: Basic realm="the token is the password", charset="UTF-8"',),
}
"""What the head of some answers says besides."""
TIMEOUT = 5.0  # seconds that a client has for its request, and again to take the answer
MAX_HEAD_BYTES = 8 * 1024
_TOKEN = re.compile(rb"[!#-'*+.^-z|~A-Z0-9-]+")
_NOT_IN_TARGET = re.compile(rb"[\x00-\x20\x7f]")
_NOT_IN_VALUE = re.compile(rb"[\r\n\0]")


class Answer(NamedTuple):
    """What a page says."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Answer]]
"""Pages by path."""


class Request(NamedTuple):
    """The head of a request: its path without a query, and its fields by their names in lower case."""

    method: bytes
    path: str
    fields: Mapping[bytes, bytes]


class Guard(NamedTuple):
    """Who is answered: `tokens` must be shown but for the probes, the host be one of `hosts`, over `certificate`."""

    certificate: Certificate | None = None
    tokens: Tokens = Tokens(())
    hosts: Hosts | None = None


def guard_of(
    address: str, *, cert: str | Path = "", key: str | Path = "", tokens: Iterable[str] = (), hosts: Iterable[str] = ()
) -> Guard:
    """Return who is answered at "host:port". ConfigError where files or tokens can't be used.

    Tokens are asked for over TLS, or on a loopback address: elsewhere everybody on the way could read them.
    """
    if bool(cert) != bool(key):
        raise ConfigError("a certificate and its key belong together: give both, or neither")
    host, admitted = _place(address)[0], Tokens(tokens)
    if admitted and not cert and not is_loopback(host):
        raise ConfigError(f"tokens are sent in plain text to {address}: give a certificate and its key")
    warn_if_open("the metrics page", host, has_tokens=bool(admitted))
    certificate = Certificate(cert, key) if cert else None
    return Guard(certificate, admitted, Hosts.of(host, hosts, has_tokens=bool(admitted)))


def _place(address: str) -> tuple[str, int]:
    """Return host and port. ConfigError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address to serve on; write 127.0.0.1:9100, or :9100 for every address")
    return host.strip("[]"), int(port)


@asynccontextmanager
async def serving(address: str, pages: Pages, guard: Guard | None = None) -> AsyncIterator[int]:
    """Meanwhile, serve the pages on "host:port" (":9100" is every address, port 0 a free one); yield the port.

    Without a `guard` it is that of the address alone: see `guard_of`. ConfigError if the address is none, or can't be
    had.
    """
    place = _place(address)
    guard = guard_of(address) if guard is None else guard
    open_ones: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_converse(reader, writer, pages, guard))
        open_ones[task] = writer
        task.add_done_callback(open_ones.pop)

    try:
        server = await _listen(accept, *place, guard.certificate)
    except OSError as error:
        raise ConfigError(unserved(address, error)) from error
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        left = dict(open_ones)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for writer in left.values():  # also of those that were cancelled before they began
            writer.transport.abort()
        await asyncio.sleep(0)


Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


async def _listen(accept: Accept, host: str, port: int, certificate: Certificate | None) -> asyncio.Server:
    """Return what takes connections; the certificate is read again before each, if it has changed."""
    loop = asyncio.get_running_loop()

    def protocol() -> asyncio.StreamReaderProtocol:
        if certificate is not None:
            certificate.refresh()
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=MAX_HEAD_BYTES, loop=loop), accept, loop=loop)

    tls = certificate.context if certificate else None
    return await loop.create_server(
        protocol, host or None, port, ssl=tls, ssl_handshake_timeout=TIMEOUT if certificate else None
    )


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pages: Pages, guard: Guard) -> None:
    try:
        method, answer = await _answer(reader, pages, guard)
        head = [
            f"HTTP/1.1 {answer.status} {answer.status.phrase}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            "Cache-Control: no-store",
            *MORE.get(answer.status, ()),
            "Connection: close",
        ]
        writer.write("\r\n".join([*head, "", ""]).encode() + (b"" if method == b"HEAD" else answer.body))
        with suppress(OSError):  # a time-out is one, too
            async with asyncio.timeout(TIMEOUT):
                writer.close()
                await writer.wait_closed()
    finally:
        writer.transport.abort()


async def _answer(reader: asyncio.StreamReader, pages: Pages, guard: Guard) -> tuple[bytes, Answer]:
    """Return the method and what to answer to the request that comes."""
    try:
        async with asyncio.timeout(TIMEOUT):
            head = await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        return b"", _plain(HTTPStatus.REQUEST_TIMEOUT)
    except asyncio.LimitOverrunError:
        return b"", _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    except (asyncio.IncompleteReadError, OSError):
        return b"", _plain(HTTPStatus.BAD_REQUEST)
    request = read_head(head)
    if request is None:
        return b"", _plain(HTTPStatus.BAD_REQUEST)
    if refused := _refused(request, guard):
        return request.method, refused
    if request.method not in (b"GET", b"HEAD"):
        return request.method, _plain(HTTPStatus.METHOD_NOT_ALLOWED)
    page = pages.get(request.path)
    try:
        return request.method, page() if page else _plain(HTTPStatus.NOT_FOUND)
    except Exception:
        logger.exception("a page failed", extra={"action": "page_failed"})
        return request.method, _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def read_head(head: bytes) -> Request | None:
    """Return what a head asks for, from its first line to its empty one; None if it is malformed.

    It takes time in proportion to the head's length, whatever its bytes are.
    """
    line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    words = line.split(b" ")
    if len(words) != 3 or words[2] not in (b"HTTP/1.0", b"HTTP/1.1"):
        return None
    method, target, version = words
    known = [_field(one) for one in lines]
    fields = {field[0]: field[1] for field in known if field}
    hosts = sum(field is not None and field[0] == b"host" for field in known)
    if None in known or hosts > 1 or (version == b"HTTP/1.1" and not hosts):
        return None
    if not _TOKEN.fullmatch(method) or not target or _NOT_IN_TARGET.search(target):
        return None
    path = target.partition(b"?")[0]
    if path.startswith(b"http://"):
        path = b"/" + path.removeprefix(b"http://").partition(b"/")[2]
    return Request(method, path.decode("latin-1"), fields)


def _field(line: bytes) -> tuple[bytes, bytes] | None:
    """Return the name and the value of a field; None if it is malformed."""
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    if not colon or not _TOKEN.fullmatch(name) or _NOT_IN_VALUE.search(value):
        return None
    return name.lower(), value


def _refused(request: Request, guard: Guard) -> Answer | None:
    """Return what is answered to whoever may not ask this; None to the others."""
    path, fields = request.path, request.fields
    if guard.hosts and not guard.hosts.admit(fields.get(b"host", b"").decode("latin-1")):
        return Answer(f"{REFUSED_HOST}\n".encode(), HTTPStatus.MISDIRECTED_REQUEST)
    shown = fields.get(b"authorization", b"").decode("utf-8", "surrogateescape")
    if guard.tokens and path not in PROBES and not guard.tokens.admit(shown, basic=True):
        return Answer(b"a token is needed\n", HTTPStatus.UNAUTHORIZED)
    return None


def _plain(status: HTTPStatus) -> Answer:
    return Answer(f"{status} {status.phrase}\n".encode(), status)


def unserved(address: str, error: OSError) -> str:
    """Return why nothing can be served on an address, and what to do."""
    if error.errno == errno.EADDRINUSE:
        why = "another program uses that port; choose another port, or 0 for a free one"
    elif error.errno in (errno.EACCES, errno.EPERM):
        why = "this user may not use that port; choose one above 1023"
    elif error.errno == errno.EADDRNOTAVAIL:
        why = "this machine has no such address; choose one that it has, or 127.0.0.1"
    elif isinstance(error, socket.gaierror):
        why = "the host's name is not known; check it"
    else:
        why = error.strerror or str(error)
    return f"nothing can be served on {address}: {why}"
