"""Servers, and those between them and us, that lie: what they say is not believed, and ends a session at most."""

import asyncio
import json
import ssl

import pytest
from listening import listening
from patient import NEVER, PATIENCE, PATIENT, until

from natty import ConnectError, Natty
from natty.wire.session import MAX_LINE_BYTES, MAX_MESSAGE_BYTES

PLAIN = {"servers": None, "connect_timeout": PATIENCE, "timeout": PATIENCE, "ping_interval": NEVER}


class Forger:
    """Sits before a server, puts more `connect_urls` into its first INFO, which nothing protects, and may cut."""

    def __init__(self, server, forged):
        self.server, self.forged = server, forged
        self.writers = []
        self.sessions = 0

    async def __call__(self, reader, writer):
        there, to_server = await asyncio.open_connection("127.0.0.1", self.server.port)
        info = json.loads((await there.readline()).removeprefix(b"INFO "))
        info["connect_urls"] = [*info.get("connect_urls", []), self.forged]
        writer.write(b"INFO %b\r\nINFO %b\r\n" % ((json.dumps(info).encode(),) * 2))
        self.sessions += 1
        self.writers = [writer, to_server]
        try:
            await asyncio.gather(self.pass_on(reader, to_server), self.pass_on(there, writer))
        finally:
            to_server.transport.abort()

    async def pass_on(self, reader, writer):
        while data := await reader.read(65536):
            writer.write(data)

    def cut(self):
        for writer in self.writers:
            writer.transport.abort()


async def test_what_is_said_before_tls_is_up_adds_no_server(nats_server):
    visits = []

    async def visit(reader, writer):
        visits.append(writer.get_extra_info("peername"))

    async with listening(visit, "localhost", limit=2**20) as foreign:
        forger = Forger(nats_server, f"localhost:{foreign}")
        async with listening(forger, "localhost", limit=2**20) as port:
            options = nats_server.connect_options() | {"servers": [f"tls://localhost:{port}"]}
            async with Natty(**PATIENT | options, user="ann", password="secret") as natty:
                for session in (2, 3):
                    forger.cut()
                    await until(lambda session=session: forger.sessions == session and natty.connection.connected)
                assert f"{foreign}" not in " ".join(natty.connection._servers)
    assert visits == []


async def test_other_servers_are_learnt_over_tls_from_a_server_that_says_them_later(natty_tls):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(natty_tls.server_cert, natty_tls.server_key)
    info = b'INFO {"version": "2.10.0", "max_payload": 1048576, "tls_required": true, "connect_urls": ["%b"]}\r\n'
    writers = []

    async def handle(reader, writer):
        writer.write(info % b"early:1")
        await writer.start_tls(context)
        writers.append(writer)
        await speak(reader, writer, info % b"late:1", greeting=b"")

    async with listening(handle, "localhost", limit=2**20) as port:
        url = f"tls://localhost:{port}"
        async with Natty(**PATIENT, servers=url, tls_ca=str(natty_tls.ca)) as natty:
            await natty.connection.flush()
            assert natty.connection._servers == [url]
            await until(lambda: natty.connection.server_info["connect_urls"] == ["late:1"])
            writers[0].transport.abort()
            await until(lambda: natty.connection.reconnects == 1)
            assert natty.connection._servers == [url, "tls://late:1"]


GREETING = b'INFO {"version": "2.15.1", "max_payload": 1048576, "headers": true, "proto": 1}\r\n'


async def speak(reader, writer, *lines, greeting=GREETING):
    """Do what a server does until a session is up, then say these lines, and go on answering pings."""
    writer.write(greeting)
    pings = 0
    while line := await reader.readline():
        if line == b"PING\r\n":
            pings += 1
            writer.write(b"PONG\r\n")
            if pings == 3:  # nats-py's, ours, and the test's
                writer.writelines(lines)


HOSTILE = {
    "a line without an end": (b"x" * (2 * MAX_LINE_BYTES), f"a line of over {MAX_LINE_BYTES} bytes without an end"),
    "a message without an end": (
        b"MSG a 1 99999999999\r\n",
        f"a message of over {MAX_MESSAGE_BYTES} bytes is announced",
    ),
    "no message": (b"MSG a 1 x\r\n", "malformed message line"),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_what_no_server_says_ends_the_session_with_a_sentence_and_another_one_begins(kind, caplog):
    said, words = HOSTILE[kind]
    sessions = []

    async def handle(reader, writer):
        sessions.append(writer)
        await speak(reader, writer, *([said] if len(sessions) == 1 else []))

    async with listening(handle, "localhost", limit=2**20) as port:
        options = PLAIN | {"servers": f"nats://localhost:{port}"}
        async with Natty(**options) as natty:
            await natty.connection.flush()
            await until(lambda: natty.connection.reconnects == 1)
            await natty.connection.flush()
    lost = [record.getMessage() for record in caplog.records if "lost" in record.getMessage()]
    assert len(lost) == 1
    assert f"the server's data could not be read: {words}" in lost[0]
    assert len(lost[0]) < 500


async def test_a_greeting_without_an_end_is_given_up(caplog):
    async def handle(reader, writer):
        writer.write(b"INFO " + b"x" * 2**22)
        await reader.read()

    async with listening(handle, "localhost", limit=2**20) as port:
        with pytest.raises(ConnectError, match=f"nats://localhost:{port}"):
            await Natty(**PLAIN | {"servers": f"nats://localhost:{port}"}).connection.open()
