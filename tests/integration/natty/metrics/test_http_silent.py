"""The HTTP server against many clients, and against clients that don't read: it stays, and leaves the rest running."""

import asyncio
import resource
import socket
from contextlib import ExitStack, suppress

import pytest
from http_pages import LINE, ask, servers
from patient import PATIENCE, until

from natty.metrics import http
from natty.metrics.pages import Answer


async def flood(port, request_):
    """Send requests until the server ends the connection, and read no answer."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", port))
        with suppress(ConnectionError):
            while True:
                await loop.sock_sendall(client, request_ * 50)


@servers
@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: bogus\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n\r\n",
        b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["417", "100", "404", "405"],
)
async def test_who_asks_again_and_again_and_never_reads_is_cut_off(serving, request_, monkeypatch):
    create_server = socket.create_server

    def create(*args, **kwargs):
        listening = create_server(*args, **kwargs)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # fewer answers fill it
        return listening

    monkeypatch.setattr(socket, "create_server", create)
    monkeypatch.setattr(http, "IDLE_TIMEOUT", 0.3)
    async with serving(slow=0.3) as port:
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(flood(port, request_) for _ in range(5)))
        monkeypatch.setattr(http, "IDLE_TIMEOUT", PATIENCE)
        assert (await ask(port, "/livez"))[0] == 200


async def test_who_does_not_read_is_cut_off_also_while_the_connection_is_closed(monkeypatch):
    monkeypatch.setattr(http, "PAGE_TIMEOUT", 0.3)
    monkeypatch.setattr(http._Connection, "pause_writing", lambda self: None)  # the whole answer is handed to asyncio
    async with http.serve_pages("127.0.0.1:0", {"/large": lambda: Answer(bytes(32 << 20))}) as port:
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(flood(port, LINE.replace(b"metrics", b"large") + b"\r\n") for _ in range(3)))


@servers
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
async def test_clients_beyond_the_limit_wait_until_others_have_gone(serving, secure, natty_tls, monkeypatch, caplog):
    monkeypatch.setattr(http, "MOST_CONNECTIONS", 3)
    tls = natty_tls if secure else None
    async with serving(tls) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        asking = asyncio.create_task(ask(port, "/livez", tls=tls))
        await until(lambda: "there are 3 connections to the pages: further clients wait" in caplog.text)
        assert not asking.done()
        for _, writer in silent:
            writer.close()
        assert await asking == (200, b"alive\n")
    assert [one.action for one in caplog.records].count("pages_full") == 1


@servers
async def test_a_process_without_free_file_descriptors_answers_when_it_has_some_again(serving, monkeypatch, caplog):
    monkeypatch.setattr(http, "ACCEPT_PAUSE", 0.1)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving() as port:
        with socket.socket() as client, ExitStack() as taken:
            client.setblocking(False)
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, limit[1]))
            taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
            with suppress(OSError):  # there is none any more
                while True:
                    taken.enter_context(client.dup())
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
            await until(lambda: "can't be accepted: [Errno 24]" in caplog.text)
        assert (await ask(port, "/livez"))[0] == 200


@servers
async def test_no_answer_names_the_versions_that_run_here(serving):
    async with serving() as port:
        for request_ in (LINE, LINE + b"Expect: x\r\n", LINE.replace(b"metrics", b"none"), b"GET /\r\n", b"\0\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request_ + b"Connection: close\r\n\r\n")
            async with asyncio.timeout(PATIENCE):
                head = (await reader.read()).partition(b"\r\n\r\n")[0].lower()
            writer.close()
            assert head.startswith(b"http/")
            assert b"aiohttp" not in head
            assert b"python" not in head
