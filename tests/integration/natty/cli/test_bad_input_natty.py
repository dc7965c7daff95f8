import asyncio
import contextlib
import json
import socket
import struct
from datetime import UTC, datetime, timedelta

import pytest
from listening import listening
from patient import NEVER, PATIENCE, PATIENT, until
from secret import write_secret

from natty import AuthorizationError, ConnectError, JetStreamNotEnabledError, Natty, PublishError, TLSError
from natty.config.tls import TLSFiles
from natty.errors import (
    ConfigError,
    NattyError,
    NotConnectedError,
    TLSClosedError,
    TLSHandshakeError,
    TLSRequiredError,
    how_to_install,
)
from natty.testing import DevCA, NatsServer, ServerOptions, free_ports

REFUSED = (TLSHandshakeError, TLSClosedError)  # a reset may overtake the reason
SILENCES = (0.3, 1.0, 5.0, 20.0)  # seconds: how long to wait for those who say nothing
YESTERDAY = datetime.now(UTC) - timedelta(days=1)


async def told(expected, **settings):
    """Connect, which must fail, and not for a time-out of ours; return the sentence that says why."""
    with pytest.raises(NattyError) as caught:
        async with asyncio.timeout(PATIENCE):
            await Natty.connect(**PATIENT | {"connect_timeout": NEVER} | settings)
    kinds = expected if isinstance(expected, tuple) else (expected,)
    assert type(caught.value) in kinds, caught.value
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    return text


async def told_of_silence(expected, **settings):
    """Connect to somebody who says nothing; wait longer if a pause of the machine kept us from connecting at all."""
    for silence in SILENCES:
        text = await told(expected, **settings, connect_timeout=silence)
        if "the connection to it, did not end in time" not in text:
            break
    return text


@contextlib.asynccontextmanager
async def fake(greeting, *, answers=()):
    """A listener that greets, then answers what it hears; yields (its address, what it has heard).

    It has heard everything when the block has been left.
    """
    heard = bytearray()
    replies = list(answers)

    async def serve(reader, writer):
        writer.write(greeting)
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                heard.extend(data)
                for _ in range(data.count(b"PING\r\n")):
                    writer.write(replies.pop(0) if replies else b"PONG\r\n")
        writer.transport.abort()

    async with listening(serve, drain=True) as port:
        yield f"127.0.0.1:{port}", heard


def reset(reader, writer):
    """Serve a connection by resetting it."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def info(**fields):
    return b"INFO " + json.dumps({"server_id": "X", "version": "2.15.1", "max_payload": 1048576} | fields).encode()


@pytest.fixture(scope="module")
def files(natty_ca, natty_tls, tmp_path_factory):
    """Write a client's or a server's certificate into a folder of its own and return its two paths."""

    def write(name, **how):
        ca = how.pop("ca", natty_ca)
        pair = ca.issue(name, **how)
        folder = tmp_path_factory.mktemp(name)
        (folder / "cert.pem").write_bytes(pair.cert_pem)
        write_secret(folder / "key.pem", pair.key_pem)
        return folder / "cert.pem", folder / "key.pem"

    return write


async def test_a_port_where_nobody_listens(natty_tls):
    url = f"tls://127.0.0.1:{free_ports(1)[0]}"
    text = await told(ConnectError, servers=url, tls_ca=str(natty_tls.ca))
    assert text == f"no server could be reached. {url}: nothing listens there; check the port, and that the server runs"


async def test_a_host_that_does_not_exist(natty_tls, monkeypatch):
    def knows_no_host(*arguments, **options):  # a real name server may take long to say so
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", knows_no_host)
    text = await told(ConnectError, servers="tls://no-such-host.invalid", tls_ca=str(natty_tls.ca))
    assert "the host name is not known; check its spelling" in text


async def test_a_listener_that_says_nothing():
    async with fake(b"") as (address, heard):
        login = {"user": "ann", "password": "hunter2"}
        text = await told_of_silence(ConnectError, servers=f"nats://{address}", **login)
    assert "connected, but no answer in time" in text
    assert heard == b""


async def test_a_server_that_ends_the_session_with_its_first_answer():
    answers = [b"PONG\r\n", b"PONG\r\n-ERR 'maximum connections exceeded'\r\n"]
    async with fake(info() + b"\r\n", answers=answers) as (address, _):
        text = await told(ConnectError, servers=f"nats://{address}")
        assert "the server ended the session: maximum connections exceeded" in text


async def test_a_listener_that_resets_the_connection_before_tls_is_up(natty_tls):
    """As a load balancer does, or a container's port, while nothing is behind it yet."""
    async with listening(reset) as port:
        url = f"tls://127.0.0.1:{port}"
        text = await told(ConnectError, servers=url, tls_ca=str(natty_tls.ca))
    assert "it closed the connection before TLS was up" in text


async def test_a_connection_that_was_reset_before_tls_begins_is_not_waited_for(natty_tls, monkeypatch):
    """As by a server that dies at that moment. asyncio would wait for the handshake until the time is up."""
    connect = asyncio.open_connection

    async def late(*arguments, **options):
        reader, writer = await connect(*arguments, **options)
        await until(writer.is_closing)
        return reader, writer

    monkeypatch.setattr(asyncio, "open_connection", late)
    async with listening(reset) as port:
        url = f"tls://127.0.0.1:{port}"
        text = await told((ConnectError, TLSClosedError), servers=url, tls_ca=str(natty_tls.ca), tls_first=True)
    assert "it closed the connection" in text


async def test_a_login_that_the_server_is_too_busy_to_look_at_is_no_refused_one():
    for said, kind in (("Authentication Timeout", ConnectError), ("User Authentication Expired", AuthorizationError)):
        async with fake(info() + b"\r\n", answers=[f"-ERR '{said}'\r\n".encode()]) as (address, _):
            await told(kind, servers=f"nats://{address}")


async def test_a_listener_that_speaks_something_else():
    async with fake(b"SSH-2.0-OpenSSH_9.2\r\n") as (address, _):
        text = await told(ConnectError, servers=f"nats://{address}")
        assert address in text


@pytest.mark.parametrize("how", [{"servers": "tls"}, {"servers": "nats", "tls": True}])
async def test_a_server_without_tls_gets_no_word_when_tls_was_asked_for(how):
    async with fake(info(auth_required=True) + b"\r\n") as (address, heard):
        url = f"{how['servers']}://{address}"
        text = await told(TLSRequiredError, **how | {"servers": url}, user="ann", password="hunter2")
    assert "the server does not offer TLS and TLS is required; nothing was sent in plain text" in text
    assert heard == b""


async def test_a_real_server_without_tls_gets_no_word_either(nats_server_binary):
    options = ServerOptions(tls=None, users={"ann": "hunter2"}, config="trace: true\ndebug: true")
    with NatsServer(options, binary=nats_server_binary) as server:
        url = server.url.replace("nats://", "tls://")
        await told(TLSRequiredError, servers=url, user="ann", password="hunter2")
        await until(lambda: "Client connection closed" in server.log())
        assert "[CONNECT" not in server.log()


async def test_a_server_that_takes_tls_back_at_the_reconnect_is_not_spoken_to(natty_proxy, natty_tls):
    """The port is taken over by a plain-text listener while the client is away."""
    heard = []

    async def serve(reader, writer):
        writer.write(info() + b"\r\n")
        heard.append(await reader.read(65536))
        writer.close()

    async with Natty(**natty_proxy.options, **PATIENT, user="ann", password="hunter2") as client:
        await natty_proxy.cut()
        async with listening(serve, port=natty_proxy.port):
            await until(lambda: heard)
            await until(lambda: "does not offer TLS" in str(client.connection._last_error))
            with pytest.raises(NattyError, match="does not offer TLS"):
                await client.connection.ready(0.1)
        assert set(heard) == {b""}


async def test_a_ca_that_did_not_sign_the_server(nats_server, tmp_path):
    other = DevCA.create("somebody else").write(tmp_path)
    text = await told(TLSHandshakeError, **nats_server.connect_options() | {"tls_ca": str(other.ca)})
    assert f"it has a certificate that is not signed by the CA in {other.ca} (" in text
    assert text.endswith("; check that CA")
    assert text.count(nats_server.url) == 1


async def test_a_server_certificate_that_has_expired(natty_tls, files, nats_server_binary):
    cert, key = files("old-server", not_before=YESTERDAY - timedelta(days=9), not_after=YESTERDAY)
    old = TLSFiles(
        ca=natty_tls.ca,
        server_cert=cert,
        server_key=key,
        client_cert=natty_tls.client_cert,
        client_key=natty_tls.client_key,
    )
    with NatsServer(ServerOptions(jetstream=False), tls_files=old, binary=nats_server_binary) as server:
        text = await told(TLSHandshakeError, **server.connect_options())
    assert "has expired; renew it" in text


async def test_a_server_certificate_for_another_host(nats_server):
    text = await told(TLSHandshakeError, **nats_server.connect_options(), tls_hostname="db.example.com")
    assert "another host name" in text


async def test_a_client_certificate_that_has_expired(nats_server, files):
    cert, key = files("old-client", not_before=YESTERDAY - timedelta(days=9), not_after=YESTERDAY)
    options = nats_server.connect_options() | {"tls_cert": str(cert), "tls_key": str(key)}
    text = await told(TLSHandshakeError, **options)
    assert f"client certificate {cert} expired on" in text
    assert "renew it" in text


async def test_a_key_of_another_certificate(nats_server, files):
    _, key = files("other-client")
    text = await told(TLSHandshakeError, **nats_server.connect_options() | {"tls_key": str(key)})
    assert f"key {key} does not belong to the client certificate" in text


async def test_a_client_certificate_of_a_foreign_authority(nats_server, files):
    cert, key = files("stranger", ca=DevCA.create("foreign"))
    options = nats_server.connect_options() | {"tls_cert": str(cert), "tls_key": str(key)}
    text = await told(REFUSED, **options)
    assert "client certificate" in text
    assert "CA" in text


async def test_no_client_certificate_where_one_is_asked_for(nats_server):
    options = nats_server.connect_options() | {"tls_cert": "", "tls_key": ""}
    text = await told(REFUSED, **options)
    assert "client certificate" in text
    assert "give" in text


async def test_no_tls_where_it_is_required(nats_server):
    url = nats_server.url.replace("tls://", "nats://")
    text = await told(TLSHandshakeError, servers=url)
    assert "any CA in the system's trust store" in text  # nats-py upgrades by itself, and verifies
    assert "NATS_CA, --tlsca or tls_ca" in text


async def test_tls_first_on_one_side_only(nats_server, natty_tls, nats_server_binary):
    either = (ConnectError, TLSHandshakeError)  # the server's plain INFO may come before our patience ends
    text = await told_of_silence(either, **nats_server.connect_options(), tls_first=True)
    assert "tls_first" in text
    options = ServerOptions(jetstream=False, handshake_first=True)
    with NatsServer(options, tls_files=natty_tls, binary=nats_server_binary) as server:
        text = await told_of_silence(either, **server.connect_options() | {"tls_first": False})
    assert "tls_first" in text


@pytest.mark.parametrize("given", [{"user": "ann", "password": "wrong"}, {}, {"token": "x"}])
async def test_wrong_credentials(natty_tls, nats_server_binary, given):
    options = ServerOptions(jetstream=False, users={"ann": "hunter2"})
    with NatsServer(options, tls_files=natty_tls, binary=nats_server_binary) as server:
        text = await told(AuthorizationError, **server.connect_options(), **given)
        assert "refused these credentials; check user, password, token, creds or nkey" in text
        async with Natty(**server.connect_options(), **PATIENT, user="ann", password="hunter2"):
            pass


@pytest.mark.parametrize("setting", ["tls_ca", "tls_cert", "creds"])
async def test_a_file_that_is_missing(nats_server, setting):
    options = nats_server.connect_options() | {setting: "/nowhere/file.pem", "connect_timeout": NEVER}
    with pytest.raises((TLSError, ConfigError), match=r"/nowhere/file\.pem"):
        async with asyncio.timeout(PATIENCE):
            await Natty.connect(**options)


@pytest.mark.parametrize("setting", ["creds", "nkey"])
async def test_credentials_without_the_package_that_reads_them(nats_server, setting, tmp_path, monkeypatch):
    monkeypatch.setattr("natty.wire.nats_py.find_spec", lambda name: None)
    write_secret(tmp_path / "login", "secret")
    text = await told(ConfigError, **nats_server.connect_options(), **{setting: str(tmp_path / "login")})
    assert how_to_install("nkeys") in text
    assert "secret" not in text


async def test_every_bad_server_is_named_with_its_reason(nats_server, natty_tls):
    closed = f"tls://127.0.0.1:{free_ports(1)[0]}"
    async with fake(info() + b"\r\n") as (address, _):
        urls = [closed, f"tls://ann:hunter2@{address}"]
        text = await told(TLSRequiredError, servers=urls, tls_ca=str(natty_tls.ca))
    assert f"{closed}: nothing listens there" in text
    assert f"tls://***@{address}: the server does not offer TLS" in text
    assert "hunter2" not in text


async def test_an_expired_login_is_followed_by_a_new_session():
    """What nats-py answers with closing for good."""
    # The PINGs: nats-py's, ours at connecting, ours of the first flush; then a new session.
    answers = [b"PONG\r\n", b"PONG\r\n", b"-ERR 'User Authentication Expired'\r\n"]
    async with fake(info() + b"\r\n", answers=answers) as (address, heard):
        async with Natty(f"nats://{address}", **PATIENT) as client:
            events = []
            client.connection.listeners.append(events.append)
            client.connection.subscribe("again", lambda raw: None)
            with pytest.raises(NotConnectedError, match="User Authentication Expired"):
                await client.connection.flush()
            await until(lambda: events == ["disconnected", "connected"])
            await client.connection.flush()
        assert heard.count(b"SUB again") == 2
        assert heard.count(b"CONNECT") == 2


async def test_an_info_before_the_first_pong_does_no_harm():
    answers = [info() + b"\r\nPONG\r\n"]
    async with fake(info() + b"\r\n", answers=answers) as (address, _), Natty(f"nats://{address}", **PATIENT) as client:
        await client.connection.flush()
        assert client.connection.connected


async def test_jetstream_switched_off(natty_tls, nats_server_binary, monkeypatch):
    monkeypatch.setattr("natty.jetstream.RETRY_DELAY", NEVER)  # no second try
    options = ServerOptions(jetstream=False)
    with NatsServer(options, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as client:
            for refused in (client.ensure_stream("S"), client.get("bucket", "key"), client.create_bucket("b")):
                with pytest.raises(JetStreamNotEnabledError, match=r"put `jetstream \{\}` into the server's config"):
                    await refused
            with pytest.raises(PublishError, match="no stream takes 'orders'"):
                await client.publish("orders", b"")


async def test_no_socket_is_left_open_where_connecting_fails():
    async with fake(b"") as (address, _):  # it is left when the client's end is closed
        await told_of_silence(ConnectError, servers=f"nats://{address}")


async def test_no_socket_is_left_open_where_connecting_is_cancelled():
    async with fake(info() + b"\r\n", answers=[b"", b""]) as (address, heard):
        connecting = asyncio.create_task(Natty.connect(f"nats://{address}", **PATIENT))
        await until(lambda: b"PING" in heard)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
