"""HTTP/1.1 (RFC 9112) for a few pages about a process, on its event loop: GET and HEAD, a connection a request."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import NamedTuple

from natty.errors import ConfigError

logger = logging.getLogger("natty.httpd")

TIMEOUT = 5.0  # seconds that a client has for its request, and again to take the answer
MAX_HEAD_BYTES = 8 * 1024
_REQUEST = re.compile(rb"([!#-'*+.^-z|~A-Z0-9-]+) (?:http://[^/\s]*)?(\S+) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#-'*+.^-z|~A-Z0-9-]+):[ \t]*([^\r\n\0]*?)[ \t]*")


class Answer(NamedTuple):
    """What a page says."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Answer]]
"""Pages by path."""


@asynccontextmanager
async def serving(address: str, pages: Pages) -> AsyncIterator[int]:
    """Meanwhile, serve the pages on "host:port" (":9100" is every address, port 0 a free one); yield the port.

    ConfigError if the address is none, or can't be had.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address to serve on; write 127.0.0.1:9100, or :9100 for every address")
    open_ones: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_converse(reader, writer, pages))
        open_ones.add(task)
        task.add_done_callback(open_ones.discard)

    try:
        server = await asyncio.start_server(accept, host.strip("[]") or None, int(port), limit=MAX_HEAD_BYTES)
    except OSError as error:
        raise ConfigError(f"nothing can be served on {address}: {error}") from error
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pages: Pages) -> None:
    try:
        method, answer = await _answer(reader, pages)
        head = [
            f"HTTP/1.1 {answer.status} {answer.status.phrase}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            "Cache-Control: no-store",
            *(["Allow: GET, HEAD"] if answer.status == HTTPStatus.METHOD_NOT_ALLOWED else []),
            "Connection: close",
        ]
        writer.write("\r\n".join([*head, "", ""]).encode() + (b"" if method == b"HEAD" else answer.body))
        with suppress(OSError):  # a time-out is one, too
            async with asyncio.timeout(TIMEOUT):
                writer.close()
                await writer.wait_closed()
    finally:
        writer.transport.abort()


async def _answer(reader: asyncio.StreamReader, pages: Pages) -> tuple[bytes, Answer]:
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
    line, *fields = head[:-4].split(b"\r\n")
    request, known = _REQUEST.fullmatch(line), [_FIELD.fullmatch(field) for field in fields]
    hosts = sum(field is not None and field[1].lower() == b"host" for field in known)
    if request is None or None in known or hosts > 1 or (request[3] == b"1" and not hosts):
        return b"", _plain(HTTPStatus.BAD_REQUEST)
    if request[1] not in (b"GET", b"HEAD"):
        return request[1], _plain(HTTPStatus.METHOD_NOT_ALLOWED)
    page = pages.get(request[2].partition(b"?")[0].decode("latin-1"))
    try:
        return request[1], page() if page else _plain(HTTPStatus.NOT_FOUND)
    except Exception:
        logger.exception("a page failed", extra={"action": "page_failed"})
        return request[1], _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def _plain(status: HTTPStatus) -> Answer:
    return Answer(f"{status} {status.phrase}\n".encode(), status)
