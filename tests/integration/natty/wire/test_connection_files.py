"""Renewed certificates are used at the next connect, and which servers are tried is the user's to say."""

import asyncio
from datetime import UTC, datetime, timedelta

from patient import PATIENCE, PATIENT, until
from secret import write_secret

from natty import Natty, NattyError
from natty.testing import DevCA, NatsServer, TLSFiles


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


def copy(files: TLSFiles, to: TLSFiles):
    for name in ("ca", "client_cert", "client_key"):
        getattr(to, name).write_bytes(getattr(files, name).read_bytes())


async def test_discovered_servers_are_left_alone_where_they_are_to_be_ignored(nats_cluster):
    options = nats_cluster[0].connect_options()
    ignoring = options | {"ignore_discovered_servers": True}
    async with Natty(**PATIENT | options) as one, Natty(**PATIENT | ignoring) as other:
        assert len(one.connection._servers) > 1
        assert other.connection._servers == [nats_cluster[0].url]


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
