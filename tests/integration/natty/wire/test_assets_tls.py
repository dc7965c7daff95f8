import asyncio
import contextlib
import os
import shutil
import ssl
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nats
import pytest
from patient import PATIENCE
from ruamel.yaml import YAML
from secret import write_secret

from natty.config.tls import client_context, explain
from natty.testing import DevCA, find_server, free_ports
from natty.testing.spawner import spawn

ROOT = Path(__file__).parents[4]
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def ca():
    return DevCA.create()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of assets/tls: the certificates must not lie in the repository."""
    copy = tmp_path_factory.mktemp("assets") / "tls"
    return Path(shutil.copytree(ROOT / "assets" / "tls", copy, ignore=shutil.ignore_patterns("*.pem")))


@pytest.fixture(scope="module")
def files(ca, folder):
    return ca.write(folder)


@contextlib.contextmanager
def running(folder, log, *flags, until="Server is ready"):
    with log.open("wb") as output:
        process = spawn([str(find_server()), *flags], output=output, folder=folder, environ=dict(os.environ))
    try:
        deadline = time.monotonic() + PATIENCE
        while until not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server(folder, files, tmp_path_factory):
    """The server's port; it runs with that very file."""
    tmp = tmp_path_factory.mktemp("server")
    port = free_ports(1)[0]
    flags = ("-c", "nats-server.conf", "-a", "127.0.0.1", "-p", str(port), "--store_dir", str(tmp / "store"))
    with running(folder, tmp / "log", *flags):
        yield port


async def refusal(port, context):
    """Shake hands as nats-py does and return the refusal; nats-py itself would wait for ever, or meet a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        assert (await reader.readline()).startswith(b"INFO")
        with pytest.raises(ssl.SSLError) as refused:  # TLS 1.3: a refused certificate shows only when reading
            await shake_hands(reader, writer, context)
    finally:
        writer.transport.abort()
    return explain(refused.value)


async def shake_hands(reader, writer, context):
    await writer.start_tls(context, server_hostname="localhost")
    await asyncio.wait_for(reader.readline(), PATIENCE)


@pytest.mark.parametrize("handshake_first", [False, True])
async def test_a_client_with_its_certificate_is_served(server, files, handshake_first):
    context = client_context(ca=files.ca, cert=files.client_cert, key=files.client_key)
    url = f"tls://localhost:{server}"
    connection = await asyncio.wait_for(
        nats.connect(
            url,
            tls=context,
            tls_handshake_first=handshake_first,
            allow_reconnect=False,
            connect_timeout=PATIENCE,
        ),
        PATIENCE,
    )
    try:
        info = await connection.jetstream(timeout=PATIENCE).account_info()
    finally:
        await asyncio.wait_for(connection.close(), PATIENCE)
    assert info.streams == 0


async def test_a_client_in_plain_text_is_refused(server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server)
    await reader.readline()
    writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
    with contextlib.suppress(ConnectionError):
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        assert b"PONG" not in answer
    writer.close()


async def test_a_client_without_a_certificate_is_refused_and_told_so(server, files):
    assert "asks for" in await refusal(server, client_context(ca=files.ca))


async def test_a_client_of_a_foreign_authority_is_refused_and_told_so(server, files, tmp_path):
    foreign = DevCA.create("foreign").write(tmp_path)
    context = client_context(ca=files.ca, cert=foreign.client_cert, key=foreign.client_key)
    assert "does not trust" in await refusal(server, context)


async def test_a_client_with_an_expired_certificate_is_refused_and_told_so(server, ca, files, tmp_path):
    now = datetime.now(UTC)
    old = ca.issue("old", not_before=now - 9 * DAY, not_after=now - DAY)
    (tmp_path / "old.pem").write_bytes(old.cert_pem)
    write_secret(tmp_path / "old-key.pem", old.key_pem)
    context = client_context(ca=files.ca, cert=tmp_path / "old.pem", key=tmp_path / "old-key.pem", now=now - 2 * DAY)
    assert "our client certificate has expired" in await refusal(server, context)


async def test_a_server_of_a_foreign_authority_is_refused(server, tmp_path):
    foreign = DevCA.create("foreign").write(tmp_path)
    assert "not signed by any CA" in await refusal(server, client_context(ca=foreign.ca))


def test_the_flags_of_docker_compose_make_a_cluster_over_tls(folder, files, tmp_path):
    compose = YAML(typ="safe", pure=True).load((ROOT / "docker-compose.yml").read_text())
    nodes = ["nats-1", "nats-2", "nats-3"]
    ports = dict(zip(nodes, zip(free_ports(3), free_ports(3), free_ports(3), strict=True), strict=True))
    with contextlib.ExitStack() as stack:
        for node in nodes:
            flags = [here(flag, node, ports, tmp_path) for flag in compose["services"][node]["command"]]
            stack.enter_context(
                running(folder, tmp_path / f"{node}.log", *flags, f"--port={ports[node][0]}", "--addr=127.0.0.1")
            )
        url, context = f"https://localhost:{ports['nats-1'][2]}/healthz", ssl.create_default_context(cafile=files.ca)
        deadline = time.monotonic() + PATIENCE
        while not (
            all("metadata leader" in (tmp_path / f"{node}.log").read_text() for node in nodes)
            and is_healthy(url, context)
        ):
            assert time.monotonic() < deadline, (tmp_path / "nats-1.log").read_text()
            time.sleep(0.1)


def is_healthy(url, context):
    """Return whether a server says so; while it has not caught up with the others, it does not."""
    try:
        with urllib.request.urlopen(url, context=context) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as error:
        error.close()
        return False


def here(flag, node, ports, tmp_path):
    """Put a flag of docker-compose.yml onto this machine: its own store, and the loopback for the network."""
    _, route, monitoring = ports[node]
    for name, (_, peer, _) in ports.items():
        flag = flag.replace(f"tls://{name}:6222", f"tls://127.0.0.1:{peer}")
    flag = flag.replace("--config=/etc/nats/", "--config=")
    flag = flag.replace("tls://0.0.0.0:6222", f"tls://127.0.0.1:{route}").replace("8222", str(monitoring))
    return flag.replace("--store_dir=/data", f"--store_dir={tmp_path / node}")
