"""natty's pages and capture's status page as servers, and a client that asks them."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest
from patient import PATIENCE

from capture.node.status.status_page import StatusPage
from natty.metrics import http
from natty.metrics.access import Certificate
from natty.metrics.pages import Answer, guard_of

LINE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
REQUEST = "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"


@asynccontextmanager
async def natty_page(tls=None, tokens=(), hosts=(), slow=PATIENCE):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "PAGE_TIMEOUT", slow)
        files = {"cert": tls.server_cert, "key": tls.server_key} if tls else {}
        guard = guard_of("127.0.0.1:0", tokens=tokens, hosts=hosts, **files)
        pages = {"/metrics": lambda: Answer(b"figures"), "/livez": lambda: Answer(b"alive\n")}
        async with http.serve_pages("127.0.0.1:0", pages, guard) as port:
            yield port


@asynccontextmanager
async def capture_page(tls=None, tokens=(), hosts=(), slow=PATIENCE):
    async def look():
        return []

    page = StatusPage(look, tokens)
    certificate = Certificate(tls.server_cert, tls.server_key) if tls else None
    how = {"has_tokens": bool(tokens), "hosts": hosts, "head_timeout": slow}
    async with http.serve(page.application(), "127.0.0.1", 0, certificate, **how) as url:
        yield int(url.rpartition(":")[2])


servers = pytest.mark.parametrize("serving", [natty_page, capture_page])


async def ask(port, path="/metrics", host="localhost", *fields, tls=None):
    """Return the status and the body of an answer."""
    context = ssl.create_default_context(cafile=tls.ca) if tls else None
    name = {"server_hostname": "localhost"} if tls else {}
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, **name)
    try:
        head = REQUEST.format(path=path, host=host).encode() + b"".join(field + b"\r\n" for field in fields)
        writer.write(head + b"\r\n")
        async with asyncio.timeout(PATIENCE):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(head.split()[1]), body
