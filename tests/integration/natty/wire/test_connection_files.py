"""Renewed certificates are used at the next connect, and which servers are tried is the user's to say."""

import asyncio
import base64
import json
import os
from datetime import UTC, datetime, timedelta

import nkeys
import pytest
from accounts import Operator
from patient import NEVER, PATIENCE, PATIENT, until
from secret import write_secret

from natty import Natty, NattyError
from natty.testing import DevCA, NatsServer, ServerOptions, TLSFiles


def write_client(folder, certificate):
    """Write a client's certificate and key; return the settings that name them."""
    paths = {"tls_cert": folder / "client.pem", "tls_key": folder / "client-key.pem"}
    paths["tls_cert"].write_bytes(certificate.cert_pem)
    write_secret(paths["tls_key"], certificate.key_pem)
    return {name: str(path) for name, path in paths.items()}


async def connect_for_a_moment(options, ca, folder):
    """Connect with a certificate that is about to expire; return the client and when it does."""
    for seconds in (2, 8, 32):  # a machine that stood still meanwhile takes longer than the certificate lasts
        ends = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
        files = write_client(folder, ca.issue("short", hosts=(), server=False, not_after=ends))
        try:
            return await Natty.connect(**PATIENT | options | files), ends
        except NattyError:
            assert datetime.now(UTC) > ends
    raise AssertionError("no connection within 32 s")


async def test_a_client_certificate_that_expired_is_used_again_once_it_was_renewed(natty_proxy, natty_ca, tmp_path):
    natty, ends = await connect_for_a_moment(natty_proxy.options, natty_ca, tmp_path)
    try:
        await until(lambda: datetime.now(UTC) > ends)
        assert natty.connection.connected  # a session outlives the certificate that it began with
        await natty_proxy.cut()
        await natty_proxy.restore()
        await until(lambda: "expired" in str(natty.connection._last_error))
        write_client(tmp_path, natty_ca.issue("renewed", hosts=(), server=False))
        await natty.connection.ready(PATIENCE)
        assert (await natty.jetstream.request("INFO"))["type"].endswith("account_info_response")
    finally:
        await natty.close()


async def test_a_new_authority_for_both_sides_is_trusted_once_its_files_are_there(nats_server_binary, tmp_path):
    files = DevCA.create("old").write(tmp_path)
    with NatsServer(folder=tmp_path / "server", tls_files=files, binary=nats_server_binary) as server:
        mine = DevCA.create("unused").write(tmp_path / "mine")
        copy(files, mine)
        given = {"tls_ca": str(mine.ca), "tls_cert": str(mine.client_cert), "tls_key": str(mine.client_key)}
        async with Natty(**PATIENT | server.connect_options() | given) as natty:
            renewed = DevCA.create("new").write(tmp_path, force=True)
            await asyncio.to_thread(server.restart)
            await until(lambda: "certificate" in str(natty.connection._last_error))
            copy(renewed, mine)
            await natty.connection.ready(PATIENCE)


def _credentials(folder):
    """Return the setting, two users as (file, name), and a server's rules that admit both."""
    operator, users = Operator(), []
    for name in ("old", "new"):
        path = operator.credentials(folder / f"{name}.creds", seconds=NEVER)
        token = path.read_text().splitlines()[1].split(".")[1]
        users.append((path, json.loads(base64.urlsafe_b64decode(token + "=="))["sub"]))
    return "creds", users, operator.config


def _seeds(folder):
    users = []
    for name in ("old", "new"):
        seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
        users.append((write_secret(folder / f"{name}.nk", seed), nkeys.from_seed(seed).public_key.decode()))
    admitted = ", ".join(f"{{nkey: {name}}}" for _, name in users)
    return "nkey", users, f"authorization {{ users: [{admitted}] }}"


@pytest.mark.parametrize("kind", [_credentials, _seeds], ids=["creds", "nkey"])
async def test_a_replaced_credentials_file_is_used_by_the_next_session(nats_server_binary, natty_tls, tmp_path, kind):
    setting, [(old, first), (new, second)], admitting = kind(tmp_path)
    options, mine = ServerOptions(authorization=admitting), write_secret(tmp_path / "mine", old.read_bytes())
    with NatsServer(options, folder=tmp_path / "server", tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**PATIENT | server.connect_options() | {setting: str(mine)}) as natty:
            assert await _user(natty) == first
            write_secret(mine, new.read_bytes())
            assert await _user(natty) == first  # a session outlives its file
            await asyncio.to_thread(server.restart)
            await until(lambda: natty.connection.reconnects == 1)
            await natty.connection.ready(PATIENCE)
            assert await _user(natty) == second


async def _user(natty):
    """Return the user that the server takes the client for."""
    return json.loads((await natty.connection.request("$SYS.REQ.USER.INFO"))[3])["data"]["user"]


def copy(files: TLSFiles, to: TLSFiles):
    for name in ("ca", "client_cert", "client_key"):
        getattr(to, name).write_bytes(getattr(files, name).read_bytes())


async def test_discovered_servers_are_left_alone_where_they_are_to_be_ignored(nats_cluster):
    options = nats_cluster[0].connect_options()
    ignoring = options | {"ignore_discovered_servers": True}
    async with Natty(**PATIENT | options) as one, Natty(**PATIENT | ignoring) as other:
        assert len(one.connection._servers) > 1
        assert other.connection._servers == [nats_cluster[0].url]


@pytest.mark.long
async def test_who_ignores_discovered_servers_waits_for_the_one_it_was_given(nats_cluster):
    options = nats_cluster[0].connect_options() | {"ignore_discovered_servers": True}
    async with Natty(**PATIENT | options) as natty:
        await asyncio.to_thread(nats_cluster[0].kill)
        try:
            await until(lambda: "nothing listens there" in str(natty.connection._last_error))
            assert not natty.connection.connected
        finally:
            await asyncio.to_thread(nats_cluster.start)
        await natty.connection.ready(PATIENCE)
        assert f":{nats_cluster[0].port}" in repr(natty.connection)
