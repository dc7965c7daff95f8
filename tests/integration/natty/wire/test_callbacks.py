"""Credentials and TLS contexts that a program gives as objects: asked for at each connection."""

import asyncio
import re
import ssl

import nkeys
import pytest
from accounts import Operator
from patient import PATIENCE, PATIENT, until

from natty import ConfigError, ConnectError, Natty
from natty.testing import NatsServer, ServerOptions


def servers_of(server):
    return {"servers": server.connect_options()["servers"]}


def context_for(files):
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.client_cert, files.client_key)
    return context


async def test_a_tls_context_of_the_program_is_used(nats_server, natty_tls):
    async with Natty(**PATIENT | servers_of(nats_server), ssl_context=context_for(natty_tls)) as client:
        assert client.connection.server_certificate


async def test_a_tls_context_that_does_not_trust_the_server_does_not_connect(nats_server):
    with pytest.raises(ConnectError):
        await Natty.connect(**PATIENT | servers_of(nats_server), ssl_context=ssl.create_default_context())


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_a_token_is_asked_for_at_each_connection(nats_server_binary, natty_tls, tmp_path, kind):
    asked = []

    def token():
        asked.append("s3cret")
        return asked[-1]

    async def token_later():
        await asyncio.sleep(0)
        return token()

    config = 'authorization { token: "s3cret" }'
    options = ServerOptions(authorization=config)
    with NatsServer(options, folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        give = token if kind == "def" else token_later
        async with Natty(**PATIENT | server.connect_options() | {"token": give}) as client:
            assert asked == ["s3cret"]
            await asyncio.to_thread(server.restart)
            await client.connection.ready(PATIENCE)
            await client.connection.flush()
            assert len(asked) >= 2


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_a_jwt_and_the_signature_are_asked_for_at_each_connection(nats_server_binary, natty_tls, tmp_path, kind):
    operator = Operator()
    jwt, seed = re.findall(r"-----\n(\S+)\n", operator.credentials(tmp_path / "u.creds", seconds=600).read_text())
    nonces = []

    def sign(nonce):
        nonces.append(nonce)
        return nkeys.from_seed(seed.encode()).sign(nonce)

    async def sign_later(nonce):
        await asyncio.sleep(0)
        return sign(nonce)

    async def jwt_later():
        return jwt

    given = (lambda: jwt, sign) if kind == "def" else (jwt_later, sign_later)
    folder = tmp_path / "server"
    trusting = ServerOptions(authorization=operator.config)
    with NatsServer(trusting, folder=folder, tls_files=natty_tls, binary=nats_server_binary) as server:
        options = PATIENT | server.connect_options() | {"user_jwt": given[0], "sign_nonce": given[1]}
        async with Natty(**options) as client:
            assert (await client.jetstream.request("INFO"))["type"].endswith("account_info_response")
            await asyncio.to_thread(server.restart)
            await client.connection.ready(PATIENCE)
            assert len(set(nonces)) >= 2
        with pytest.raises(ConnectError):  # another's signature
            await Natty.connect(**options | {"sign_nonce": lambda nonce: bytes(64)})


def cancelled():
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    return future


async def cancelled_later():
    await asyncio.sleep(0)
    await cancelled()


@pytest.mark.parametrize(
    ("token", "error", "text"),
    [
        (cancelled, ConnectError, r"the function given as token failed: CancelledError"),
        (cancelled_later, ConnectError, r"the function given as token failed: CancelledError"),
        (lambda: 1 / 0, ConnectError, r"the function given as token failed: ZeroDivisionError"),
        (lambda: b"x", ConfigError, r"the function given as token must return str and returned bytes"),
    ],
)
async def test_a_callback_that_fails_is_named(nats_server, token, error, text):
    with pytest.raises(error, match=text):
        await Natty.connect(**PATIENT | nats_server.connect_options() | {"token": token})


def secretive():
    raise RuntimeError("the token is s3cret")


async def test_what_a_failing_callback_says_is_not_in_our_errors_or_the_log(nats_server, caplog):
    broken = False

    def token():
        return secretive() if broken else "any"

    async with Natty(**PATIENT | nats_server.connect_options() | {"token": token}) as client:
        broken = True
        client.connection._session._write(b"NONSENSE\r\n")
        await until(lambda: "failed: RuntimeError" in caplog.text)
        assert "s3cret" not in caplog.text
        broken = False
        await client.connection.ready(PATIENCE)


async def test_a_callback_that_is_cancelled_does_not_end_reconnecting(nats_server, caplog):
    answers = ["any", cancelled, cancelled_later, "any"]

    async def token():
        answer = answers.pop(0)
        return await answer() if callable(answer) else answer

    async with Natty(**PATIENT | nats_server.connect_options() | {"token": token}) as client:
        client.connection._session._write(b"NONSENSE\r\n")
        await until(lambda: client.connection.reconnects == 1)
        await client.connection.flush()
    assert answers == []
    assert "the function given as token failed: CancelledError" in caplog.text


async def test_a_connection_that_is_cancelled_in_a_callback_ends(nats_server):
    asked = asyncio.Event()

    async def token():
        asked.set()
        await asyncio.Event().wait()

    options = PATIENT | nats_server.connect_options() | {"token": token}
    connecting = asyncio.create_task(Natty.connect(**options))
    await asked.wait()
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting


async def test_a_callback_that_does_not_return_is_named(nats_server):
    async def token():
        await asyncio.Event().wait()

    options = PATIENT | nats_server.connect_options() | {"token": token, "connect_timeout": 0.2}
    with pytest.raises(ConnectError, match="the function given as token did not return in time"):
        await Natty.connect(**options)


async def test_a_name_look_up_that_does_not_end_is_named(nats_server, monkeypatch):
    async def never(*_, **__):
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    options = PATIENT | nats_server.connect_options() | {"connect_timeout": 0.2}
    with pytest.raises(ConnectError, match="the look-up of its name, or the connection to it, did not end in time"):
        await Natty.connect(**options | {"servers": ["tls://localhost:4222"]})
