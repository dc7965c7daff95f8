import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import nats
import pytest
from listening import listening
from patient import PATIENCE

from natty.config.tls import client_context
from natty.errors import NattyError
from natty.testing import NatsServer, Proxy, ServerBinaryError, ServerOptions, ServerStartError, find_server
from natty.testing.probe import NoAnswerError, ask

ROOT = Path(__file__).parents[4]


async def connect(options, **more):
    """Connect with the stock client, by the keywords that the harness gives."""
    context = None
    if options["tls_ca"]:
        context = client_context(ca=options["tls_ca"], cert=options["tls_cert"], key=options["tls_key"])
    return await asyncio.wait_for(
        nats.connect(
            options["servers"],
            tls=context,
            tls_handshake_first=options.get("tls_first", False),
            **{"allow_reconnect": False, "connect_timeout": PATIENCE, **more},
        ),
        PATIENCE,
    )


async def close(connection):
    await asyncio.wait_for(connection.close(), PATIENCE)


def info(server):
    return ask(server.options, server.port, server.tls_files, "$JS.API.INFO", timeout=PATIENCE)


def wait_until(condition):
    """Wait until a condition holds, or say that it never did."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def test_a_client_with_the_given_options_publishes_over_mutual_tls(nats_server, natty_name):
    connection = await connect(nats_server.connect_options())
    try:
        jetstream = connection.jetstream(timeout=PATIENCE)
        stream = natty_name("ORDERS")
        await jetstream.add_stream(name=stream, subjects=[stream])
        stored = await jetstream.publish(stream, b"one")
    finally:
        await close(connection)
    assert (stored.stream, stored.seq) == (stream, 1)
    assert nats_server.url.startswith("tls://127.0.0.1:")


def test_the_default_ports_stay_free(nats_server, nats_cluster):
    ports = [nats_server.port, *(server.port for server in nats_cluster)]
    assert not {4222, 8222, 6222} & set(ports)
    assert "Starting http monitor" not in nats_server.log()


async def test_a_server_without_tls_is_reached_by_a_nats_url():
    with NatsServer(ServerOptions(tls=None, jetstream=False)) as server:
        options = server.connect_options()
        assert options == {"servers": [f"nats://127.0.0.1:{server.port}"], "tls_ca": "", "tls_cert": "", "tls_key": ""}
        await close(await connect(options))


async def test_a_server_with_server_tls_asks_for_no_client_certificate():
    with NatsServer(ServerOptions(tls="server", jetstream=False)) as server:
        options = server.connect_options()
        assert not options["tls_cert"]
        await close(await connect(options))


async def test_handshake_first_and_users_reach_the_client_options():
    wanted = ServerOptions(handshake_first=True, jetstream=False, users={"ann": "secret"})
    with NatsServer(wanted) as server:
        assert server.connect_options()["tls_first"] is True
        await close(await connect(server.connect_options(), user="ann", password="secret"))


def test_a_restarted_server_keeps_its_port_and_its_streams():
    with NatsServer() as server:
        stream = {"name": "KEPT", "subjects": ["kept"], "storage": "file", "retention": "limits", "num_replicas": 1}
        ask(server.options, server.port, server.tls_files, "$JS.API.STREAM.CREATE.KEPT", stream, timeout=PATIENCE)
        port = server.port
        server.restart()
        assert server.port == port
        assert info(server)["streams"] == 1
        server.kill()
        assert not server.alive
        assert repr(server) == f"<NatsServer natty tls://127.0.0.1:{port} down>"
        server.start()
        assert info(server)["streams"] == 1


def test_a_paused_server_answers_again_when_resumed():
    with NatsServer() as server:
        server.pause()
        assert "State:\tT" in Path(f"/proc/{server.pid}/status").read_text()  # at once
        server.pause()
        with pytest.raises(NoAnswerError):
            ask(server.options, server.port, server.tls_files, "$JS.API.INFO", timeout=0.3)
        assert server.alive
        server.resume()
        assert "error" not in info(server)
        server.pause()
        server.stop()
        assert not server.alive


def test_a_lame_duck_leaves():
    with NatsServer(ServerOptions(jetstream=False, config='lame_duck_grace_period: "100ms"')) as server:
        server.lame_duck()
        wait_until(lambda: not server.alive)
        assert "lame duck" in server.log().lower()


def test_a_server_that_dies_at_start_says_why():
    server = NatsServer(ServerOptions(config="no_such_setting: 1"))
    with pytest.raises(ServerStartError, match="no_such_setting"), server:
        pass
    assert not server.folder.exists()


def test_a_server_dies_with_the_process_that_started_it(tmp_path):
    script = textwrap.dedent("""
        import threading, time
        from natty.testing import NatsServer, ServerOptions

        started = []

        def start():
            started.append(NatsServer(ServerOptions(jetstream=False)).start())

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        time.sleep(0.3)
        print(started[0].pid if started[0].alive else "died with its thread", flush=True)
        time.sleep(3600)
    """)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "NATS_SERVER_BIN": str(find_server())}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environ) as parent:
        child = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(PATIENCE)
    wait_until(lambda: not _runs(child))


def _runs(pid):
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return "State:\tZ" not in status  # a container's first process may reap late


def test_a_missing_binary_is_named():
    with pytest.raises(ServerBinaryError, match="/nowhere/nats-server is not a program"):
        find_server({"NATS_SERVER_BIN": "/nowhere/nats-server"})


def test_a_cluster_places_streams_on_all_nodes_and_survives_one(nats_cluster, natty_name):
    assert [server.alive for server in nats_cluster] == [True] * 3
    assert len(nats_cluster.connect_options()["servers"]) == 3
    stream = {"name": natty_name("R3"), "storage": "file", "retention": "limits", "num_replicas": 3}
    stream["subjects"] = [stream["name"]]
    first, second, third = nats_cluster
    wait_until(lambda: len(_placed(first, stream).get("replicas", [])) == 2)
    third.kill()
    assert repr(nats_cluster) == "<NatsCluster natty 2 of 3 alive>"
    nats_cluster.start()
    wait_until(lambda: _has_leader(second, stream["name"]))


def _placed(server, stream):
    """Create the stream and return where it lies; nowhere while the cluster elects a leader."""
    subject = f"$JS.API.STREAM.CREATE.{stream['name']}"
    return ask(server.options, server.port, server.tls_files, subject, stream, timeout=PATIENCE).get("cluster", {})


def _has_leader(server, stream):
    try:
        answer = ask(server.options, server.port, server.tls_files, f"$JS.API.STREAM.INFO.{stream}", timeout=2)
    except NoAnswerError:
        return False
    return "error" not in answer and bool(answer.get("cluster", {}).get("leader"))


async def test_a_proxy_passes_tls_through(natty_proxy):
    connection = await connect(natty_proxy.options)
    assert natty_proxy.connections == 1
    await connection.flush(PATIENCE)
    await close(connection)


async def test_a_cut_proxy_may_be_restored_by_several_at_once(natty_proxy):
    await natty_proxy.cut()
    await asyncio.gather(natty_proxy.restore(), natty_proxy.restore())
    await close(await connect(natty_proxy.options))


async def test_a_cut_proxy_closes_connections_and_refuses_new_ones_until_restored(natty_proxy):
    lost = asyncio.Event()

    async def closed():
        lost.set()

    connection = await connect(natty_proxy.options, closed_cb=closed)
    await natty_proxy.cut()
    await asyncio.wait_for(lost.wait(), PATIENCE)
    await close(connection)
    with pytest.raises(OSError):
        await asyncio.open_connection(natty_proxy.host, natty_proxy.port)
    assert repr(natty_proxy).endswith(" cut>")
    await natty_proxy.restore()
    await close(await connect(natty_proxy.options))


class EchoServer:
    """Answers with what it gets; enough to look at a proxy's faults one by one."""

    def __init__(self):
        self.received = b""

    async def echo(self, reader, writer):
        while data := await reader.read(1000):
            self.received += data
            writer.write(data)
        writer.close()


@pytest.fixture
async def echo():
    server = EchoServer()
    async with listening(server.echo) as server.port:
        yield server


@pytest.fixture
async def link(echo):
    async with Proxy("127.0.0.1", echo.port) as proxy:
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
        yield proxy, reader, writer
        writer.close()


async def test_a_proxy_holds_bytes_and_delivers_them_late(link, echo):
    proxy, reader, writer = link
    proxy.hold()
    writer.write(b"later")
    await asyncio.sleep(0.1)
    assert echo.received == b""
    proxy.release()
    assert await asyncio.wait_for(reader.readexactly(5), PATIENCE) == b"later"


async def test_a_proxy_delays_each_direction_without_slowing_the_flow(link):
    proxy, reader, writer = link
    proxy.delay(0.6)
    began = time.monotonic()
    for _ in range(100):
        writer.write(b"x")
        await asyncio.sleep(0.002)
    await asyncio.wait_for(reader.readexactly(100), 25)  # one after the other, those that it holds would take 38 s
    assert time.monotonic() - began >= 1.2


async def test_a_half_open_proxy_accepts_and_answers_nothing_and_closes_nothing(link, echo):
    proxy, reader, writer = link
    writer.write(b"before")
    await asyncio.wait_for(reader.readexactly(6), PATIENCE)
    proxy.half_open()
    writer.write(b"into the void")
    new_reader, new_writer = await asyncio.open_connection(proxy.host, proxy.port)
    new_writer.write(b"hello?")
    for one in (reader, new_reader):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.read(1), 0.1)
    assert echo.received == b"before"
    assert repr(proxy).endswith(" half-open>")
    await proxy.restore()
    for one in (reader, new_reader):
        assert await _ended(one)
    new_writer.close()
    assert repr(proxy).endswith(" open>")


async def test_a_half_open_proxy_takes_a_bounded_amount(link):
    proxy, _, writer = link
    proxy.half_open()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(_send_megabytes(writer, 600), 0.5)
    writer.transport.abort()


async def _send_megabytes(writer, count):
    for _ in range(count):
        writer.write(bytes(1_000_000))
        await writer.drain()


async def _ended(reader):
    try:
        return await asyncio.wait_for(reader.read(1), PATIENCE) == b""
    except ConnectionError:
        return True


def test_a_proxy_of_something_without_a_port_is_refused():
    class Odd:
        url = "tls://somewhere"

        def connect_options(self):
            return {}

    with pytest.raises(ValueError, match="names no host and port"):
        Proxy.to(Odd())


PLUGIN_TEST = """
    import pytest
    import nats
    from natty.config.tls import client_context

    @pytest.mark.asyncio
    async def test_the_fixtures_work(nats_server, natty_proxy, natty_name, natty_tls, natty_ca):
        assert natty_name("S") != natty_name("S")
        assert natty_tls.ca.read_bytes() == natty_ca.cert_pem
        options = natty_proxy.options
        context = client_context(ca=options["tls_ca"], cert=options["tls_cert"], key=options["tls_key"])
        connection = await nats.connect(options["servers"], tls=context, connect_timeout=60)
        await connection.close()

    @pytest.mark.asyncio
    async def test_a_connected_client(natty, natty_name):
        stream = natty_name("S")
        await natty.ensure_stream(stream, subjects=[stream])
        assert (await natty.publish(stream, b"x")).seq == 1
"""


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_the_plugin_works_in_both_modes_of_pytest_asyncio(pytester, mode):
    result = run_pytest(pytester, PLUGIN_TEST, "-o", f"asyncio_mode={mode}", binary=find_server())
    result.assert_outcomes(passed=2)


def test_a_missing_server_fails_the_tests_that_need_it_and_skips_nothing(pytester):
    result = run_pytest(pytester, "def test_it(nats_server): pass", "--nats-server-bin=/nowhere")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*/nowhere is not a program*NATS_SERVER_BIN*"])


def run_pytest(pytester, source, *arguments, binary=None):
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    pytester.makepyfile(source)
    pytester.syspathinsert(ROOT)
    if binary:
        arguments = (*arguments, f"--nats-server-bin={binary}")
    return pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function", *arguments
    )


def test_every_error_of_the_harness_is_one_of_nattys():
    assert issubclass(ServerStartError, NattyError)
    assert issubclass(ServerBinaryError, NattyError)
    assert issubclass(NoAnswerError, NattyError)
