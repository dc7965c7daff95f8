"""The HTTP server against hostile clients: as it serves natty's pages, and capture's status page."""

import asyncio
import gzip
import logging
import ssl
import tracemalloc
from base64 import b64encode
from contextlib import suppress

import pytest
from aiohttp import web
from http_pages import LINE, ask, capture_page, natty_page, servers
from patient import PATIENCE
from secret import write_secret

from natty import ConfigError
from natty.errors import TLSError
from natty.metrics import http
from natty.metrics.access import Certificate, Hosts, Tokens
from natty.metrics.pages import guard_of
from natty.testing import DevCA

TOKEN = "a token that nobody guesses"
ROOM = 7 * 1024  # bytes that a head may have besides its first lines
MALFORMED = {
    "blanks and a NUL": LINE + b"X:" + b" " * ROOM + b"\0",
    "tabs and blanks and a NUL": LINE + b"X:" + b" \t" * (ROOM // 2) + b"\0",
    "words and blanks and a NUL": LINE + b"X: " + b"a " * (ROOM // 2) + b"\0",
    "a name without an end": LINE + b"x" * ROOM,
    "blanks before the colon": LINE + b"X" + b" " * ROOM + b": y",
    "a long target and no version": b"GET http://" + b"a" * ROOM + b" HTTP/1.9\r\nHost: localhost",
    "a target of many addresses": b"GET " + b"http://" * (ROOM // 7) + b" HTTP/1.9\r\nHost: localhost",
    "a target with a NUL": b"GET /" + b"a" * ROOM + b"\0 HTTP/1.1\r\nHost: localhost",
    "a long method": b"G" * ROOM + b"( / HTTP/1.1\r\nHost: localhost",
    "blanks for a target": b"GET " + b" " * ROOM + b" HTTP/1.1\r\nHost: localhost",
    "many fields": LINE + b"X: y\r\n" * (ROOM // 6) + b"no colon",
}
BOMB = gzip.compress(bytes(200 << 20), 1)


@servers
@pytest.mark.parametrize(
    "shown",
    [
        b"Bearer \xff",
        b"Bearer \xed\xa0\x80",
        b"Basic \xff\xfe",
        b"Basic " + b64encode(b"me:\xff"),
        b"\xff",
        b"Basic",
        "Bearer ä token that nobody guesses".encode(),
    ],
)
async def test_bytes_that_are_no_token_are_refused_and_raise_nothing(serving, shown, caplog):
    async with serving(tokens=[TOKEN]) as port:
        assert (await ask(port, "/metrics", "localhost", b"Authorization: " + shown))[0] == 401
        assert (await ask(port))[0] == 401
        assert (await ask(port, "/livez")) == (200, b"alive\n")
        for good in (f"Bearer {TOKEN}".encode(), b"Basic " + b64encode(b"me:" + TOKEN.encode())):
            assert (await ask(port, "/metrics", "any.name", b"Authorization: " + good))[0] == 200
    assert [one for one in caplog.records if one.exc_info] == []


@servers
async def test_who_sends_half_a_head_is_disconnected(serving):
    async with serving(slow=0.3) as port:
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in connections:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: local")
        for reader, writer in connections:
            with suppress(ConnectionError):
                async with asyncio.timeout(PATIENCE):
                    assert b"figures" not in await reader.read()
            writer.close()
        assert (await ask(port))[0] == 200


@servers
async def test_who_begins_no_tls_is_disconnected(serving, natty_tls):
    async with serving(natty_tls, slow=0.5) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                assert await reader.read() == b""
        writer.close()


async def test_a_connection_that_is_kept_may_take_its_time_for_what_comes_next():
    async with capture_page(slow=0.3) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(PATIENCE):
                await reader.readuntil(b"alive\n")
            await asyncio.sleep(0.6)  # longer than a first head may take
        writer.close()


@servers
async def test_a_name_that_leads_here_from_elsewhere_is_refused_where_no_token_protects_the_page(serving):
    async with serving(hosts=["Status.example.com"]) as port:
        for host in (
            "attacker.example",
            "attacker.example:80",
            "localhost.attacker.example",
            "\xff",
            "[::1",
            "127.0.0.1.x",
            "[fe80::1%eth0]",
            "x@127.0.0.1",
        ):
            status, body = await ask(port, "/metrics", host)
            assert status in (421, 400), host
            assert status == 400 or b"give --allow-host NAME" in body
        for host in (
            "localhost",
            f"LOCALHOST:{port}",
            "127.0.0.1",
            "[::1]:80",
            "10.0.0.9",
            "status.example.com",
            "localhost.",
        ):
            assert (await ask(port, "/metrics", host))[0] == 200, host


def test_public_pages_and_those_with_a_token_answer_to_every_name_unless_names_are_given():
    assert Hosts.of("0.0.0.0", [], has_tokens=False) is None
    assert Hosts.of("127.0.0.1", [], has_tokens=True) is None
    named = Hosts.of("0.0.0.0", ["a.example"], has_tokens=True)
    assert named is not None
    assert (named.admit("a.example:443"), named.admit("b.example")) == (True, False)


@servers
async def test_a_certificate_that_is_replaced_is_used_for_the_next_connection(serving, tmp_path, caplog):
    caplog.set_level(logging.INFO, "natty.access")
    files = DevCA.create("first").write(tmp_path / "first")
    later = DevCA.create("second").write(tmp_path / "second")
    async with serving(files) as port:
        assert (await ask(port, tls=files))[0] == 200
        files.server_cert.write_bytes(later.server_cert.read_bytes())
        assert (await ask(port, tls=files))[0] == 200  # half of a pair: what there was stays
        assert "the server keeps its old certificate" in caplog.text
        write_secret(files.server_key, later.server_key.read_bytes())
        assert (await ask(port, tls=later))[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(port, tls=files)
        files.server_cert.unlink()
        assert (await ask(port, tls=later))[0] == 200
    assert "the server now uses the changed certificate" in caplog.text


async def test_what_everybody_can_reach_and_no_token_protects_is_warned_of(natty_tls, caplog):
    def warnings():
        told = [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "open_to_all"]
        caplog.clear()
        return told

    async with http.serve_pages(":0", {}):
        assert warnings() == [
            "the metrics page on every address answers every client that can reach it: give a token file"
        ]
    certificate = Certificate(natty_tls.server_cert, natty_tls.server_key)
    for has_tokens in (True, False):
        async with http.serve(web.Application(), "0.0.0.0", 0, certificate, has_tokens=has_tokens):
            assert len(warnings()) == (not has_tokens)
    async with natty_page(), capture_page():
        assert warnings() == []


def test_tokens_and_keys_that_can_t_be_used_are_refused(natty_tls, tmp_path):
    with pytest.raises(ConfigError, match=r"tokens are sent in plain text to 0\.0\.0\.0:9100: give a certificate"):
        guard_of("0.0.0.0:9100", tokens=[TOKEN])
    with pytest.raises(ConfigError, match="16 characters"):
        guard_of("127.0.0.1:9100", tokens=["short"])
    with pytest.raises(ConfigError, match="give both, or neither"):
        guard_of("127.0.0.1:9100", cert=natty_tls.server_cert)
    with pytest.raises(ConfigError, match="not a certificate and its key"):
        guard_of("127.0.0.1:9100", cert=natty_tls.server_cert, key=natty_tls.client_key)
    key = write_secret(tmp_path / "key.pem", natty_tls.server_key.read_bytes())
    key.chmod(0o644)
    with pytest.raises(TLSError, match="is private, and others may read"):
        guard_of("127.0.0.1:9100", cert=natty_tls.server_cert, key=key)
    assert repr(Tokens([TOKEN])) == "Tokens(1)"


@servers
@pytest.mark.parametrize(
    "head",
    [
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: there\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: \0\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\r\n\r\n",
    ],
)
async def test_a_malformed_head_is_answered_and_not_logged(serving, head, caplog):
    caplog.set_level(logging.INFO)
    async with serving(tokens=[TOKEN]) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        async with asyncio.timeout(PATIENCE):
            assert b" 400 " in (await reader.read()).partition(b"\r\n")[0]
        writer.close()
        assert (await ask(port, "/livez"))[0] == 200
    assert caplog.records == []


@servers
@pytest.mark.parametrize("head", MALFORMED.values(), ids=MALFORMED)
async def test_a_long_malformed_head_is_refused_at_once(serving, head):
    """It takes time in proportion to its length: by a pattern that backtracks, one alone would take hours."""
    async with serving() as port:
        for _ in range(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + b"\r\n\r\n")
            async with asyncio.timeout(PATIENCE):
                assert b" 400 " in (await reader.read()).partition(b"\r\n")[0]
            writer.close()


@servers
async def test_a_head_that_is_too_long_is_refused_before_it_ends(serving):
    async with serving() as port:
        for head in (LINE + b"X: " + b"x" * 9000, LINE + b"X: " + b"x" * 9000 + b"\r\n\r\n", b"G" * 9000):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head)
            async with asyncio.timeout(PATIENCE):
                assert b" 431 " in (await reader.read()).partition(b"\r\n")[0]
            writer.close()


@servers
@pytest.mark.parametrize(
    "body",
    [
        b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nxxxxx",
        b"Content-Encoding: deflate\r\nContent-Length: 5\r\n\r\nxxxxx",
        b"Transfer-Encoding: chunked\r\n\r\nno number\r\nxxxxx",
        b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n" + bytes(100_000),
        b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(BOMB), BOMB),
    ],
    ids=["gzip", "deflate", "chunks", "long chunk", "bomb"],
)
async def test_a_body_that_nobody_asked_for_is_not_read_into_memory_nor_logged(serving, body, caplog):
    caplog.set_level(logging.INFO)
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        tracemalloc.start()
        try:
            writer.write(b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + body)
            async with asyncio.timeout(PATIENCE):
                with suppress(ConnectionResetError):
                    assert (await reader.read()).split(b" ")[1] in (b"400", b"405")
            assert tracemalloc.get_traced_memory()[1] < 20 << 20
        finally:
            tracemalloc.stop()
            writer.close()
        assert (await ask(port, "/livez"))[0] == 200
    assert caplog.records == []


async def test_a_fault_of_a_page_is_logged(caplog):
    async def fail(request):
        raise RuntimeError("a page with a fault")

    application = web.Application()
    application.router.add_get("/fail", fail)
    async with http.serve(application, "127.0.0.1", 0, None) as url:
        assert (await ask(int(url.rpartition(":")[2]), "/fail"))[0] == 500
    assert [str(one.exc_info[1]) for one in caplog.records if one.exc_info] == ["a page with a fault"]


def test_an_address_with_a_zone_or_a_user_is_no_address():
    named = Hosts.of("127.0.0.1", [], has_tokens=False)
    assert named is not None
    for host in ("[fe80::1%eth0]", "[fe80::1%@evil.example]:80", "fe80::1%evil.example]", "me@127.0.0.1"):
        assert not named.admit(host)
    assert named.admit("[fe80::1]:80")
