"""What natty stands on when nats-py opens a session: which of its methods run, when, and what they leave behind."""

import asyncio
import json

import pytest
import uvloop
from listening import listening
from nats.aio.transport import TcpTransport
from patient import PATIENCE, until

from natty.config.settings import Config
from natty.errors import AuthorizationError, NattyError
from natty.testing import NatsServer, ServerOptions
from natty.wire.nats_py import OpeningClient
from natty.wire.read_pauses import ReadPauses
from natty.wire.session import Receiver, Session


class Noting(OpeningClient):
    """Notes the steps that nats-py takes, and what is there by then."""

    def __init__(self, config):
        super().__init__(config)
        self.steps = []

    async def _select_next_server(self):
        self.steps.append(("select", self.over_tls, dict(self._server_info), self._server_pool[0].uri.port))
        await super()._select_next_server()

    async def _connect_to_server(self, *server):
        await super()._connect_to_server(*server)
        self.steps.append(("connect", self.over_tls, dict(self._server_info), server[0].uri.port))

    def _connect_command(self):
        line = super()._connect_command()
        self.steps.append(("command", self.over_tls, bool(self._server_info), line))
        return line

    async def _read_loop(self):
        self.steps.append(("read", asyncio.current_task() is self._reading_task))

    async def _ping_interval(self):
        self.steps.append(("ping", asyncio.current_task() is self._ping_interval_task))

    async def _flusher(self):
        self.steps.append(("flush", asyncio.current_task() is self._flusher_task))


async def opened(server):
    client = Noting(Config(**server.connect_options(), connect_timeout=PATIENCE))
    async with asyncio.timeout(PATIENCE):
        await client.open(f"tls://localhost:{server.port}")
        while len(client.steps) < 6:
            await asyncio.sleep(0)
    return client


@pytest.mark.parametrize("handshake_first", [False, True])
async def test_nats_py_connects_shakes_hands_and_sends_connect_last(natty_tls, nats_server_binary, handshake_first):
    options = ServerOptions(jetstream=False, handshake_first=handshake_first)
    with NatsServer(options, tls_files=natty_tls, binary=nats_server_binary) as server:
        client = await opened(server)
        select, connect, command, *tasks = client.steps
        assert select == ("select", False, {}, server.port)
        assert connect == ("connect", False, {}, server.port)  # no word was read yet, and TLS is not up
        assert command[:3] == ("command", True, True)
        assert command[3].startswith(b"CONNECT ")
        assert command[3].endswith(b"\r\n")
        assert json.loads(command[3].removeprefix(b"CONNECT "))["headers"] is True
        assert sorted(tasks) == [("flush", True), ("ping", True), ("read", True)]  # nothing of nats-py runs any more
        client.abort()


async def test_what_nats_py_leaves_behind_is_a_socket_that_we_read_and_write(nats_server):
    client = await opened(nats_server)
    assert isinstance(client._transport, TcpTransport)
    assert client.server_info["version"]
    assert client.over_tls
    said, ends = [], []
    await client.hand_over(lambda opener: Receiver(opener, said.append, ends.append))
    client.writer.transport.write(b"PING\r\n")
    await until(lambda: b"PONG\r\n" in b"".join(said))
    client.abort()
    await until(lambda: ends)  # a dropped socket ends what is read from it
    assert [type(error) for error in ends] == [ConnectionResetError]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("last", "error"),
    [
        (b"-ERR 'User Authentication Expired'\r\n", "AuthorizationError: the server ended the session: User Auth"),
        (b'INFO {"ldm": true}\r\n', "SessionEndedError: the server is shutting down"),
        (b"MSG a b\r\n", "ConnectionResetError: the server's data could not be read: malformed message line"),
        (b"", "ConnectionResetError: the server closed the connection"),
    ],
    ids=["refused", "lame duck", "malformed", "closed"],
)
def test_what_came_together_with_the_end_of_the_opening_says_why_the_session_ended(loop, last, error):
    """The bytes are in asyncio's stream reader when the session takes the socket over."""

    async def serve(reader, writer):
        writer.write(b'INFO {"version": "2.10.0", "max_payload": 1048576}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n" + last)
        if not last:
            writer.close()
        await reader.read()

    async def open_session():
        async with listening(serve, "localhost", limit=2**20) as port:
            config = Config(tls=False, connect_timeout=PATIENCE)
            session = Session(config, print, print, print, ReadPauses())
            with pytest.raises((OSError, NattyError)) as raised:
                await session.open(f"nats://localhost:{port}")
            return f"{type(raised.value).__name__}: {raised.value}"

    factory = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[loop]
    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(open_session()).startswith(error)


async def test_a_refused_login_is_our_error_with_the_servers_words(natty_tls, nats_server_binary):
    options = ServerOptions(jetstream=False, config='authorization { user: "ann", password: "secret" }')
    with NatsServer(options, tls_files=natty_tls, binary=nats_server_binary) as server:
        wrong = server.connect_options() | {"user": "ann", "password": "wrong"}
        client = OpeningClient(Config(**wrong, connect_timeout=PATIENCE))
        with pytest.raises(AuthorizationError, match="Authorization Violation"):
            await client.open(f"tls://localhost:{server.port}")
        client.abort()
