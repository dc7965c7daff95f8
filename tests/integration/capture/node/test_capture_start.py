"""A node starts while the server or the store is away: it waits, says so, and captures when they are there."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from group_members import partitioned
from node_beside import running_here
from patient import PATIENCE, PATIENT, until
from probes import ask, until_ready
from stores_faults import Say

from capture.config.load import load
from capture.config.streams import each
from capture.errors import NotStartedError, StoreUnreadableError
from capture.node import intake
from capture.node.metrics import serve
from capture.node.node import Node
from capture.node.nodes import Several
from capture.stores import open_store
from capture.verification.check import check
from natty import AuthorizationError, Natty, StreamNotFoundError
from natty.testing import NatsCluster, NatsServer, Proxy, ServerOptions, free_ports

WAITING = "not ready to capture yet, waiting: "
EAGER = {"decoder": "raw", "limits__max_age": 0.2}


def orders(count):
    return [b"%d" % number for number in range(count)]


@asynccontextmanager
async def running(node):
    """Run a node, or several, with the probes' port; in the end it is told to stop, and must end well."""
    async with serve(node, "127.0.0.1:0") as port, running_here(node):
        yield port


async def stored(fleet, config, stream):
    [one] = [one for one in each(load(config)) if one.stream == stream]
    verdict = (await check(fleet.natty, one, open_store(one.store), deep=True)).verdict
    assert verdict.ok
    return len(verdict.stored)


@pytest.fixture
def own_server(natty_tls, nats_server_binary, tmp_path):
    """A server over TLS that the test starts itself."""
    options = ServerOptions(users={"ann": "hunter2"})
    with NatsServer(options, folder=tmp_path / "own", tls_files=natty_tls, binary=nats_server_binary) as server:
        server.stop()
        yield server


@pytest.fixture
def login(own_server):
    return own_server.connect_options() | {"user": "ann", "password": "hunter2"}


# --- the server ------------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_node_that_is_there_before_the_server_says_so_once_and_captures_when_that_is_started(
    fleet, own_server, login
):
    await asyncio.to_thread(own_server.start)
    async with Natty(**login) as natty:
        await natty.ensure_stream(fleet.stream, subjects=[f"{fleet.stream}.*"], allow_batched=True)
    await asyncio.to_thread(own_server.stop)
    (port,) = free_ports(1)
    given = {f"nats__{name}": value for name, value in login.items()}
    config = fleet.configure(**EAGER, **given)
    script = (
        "import sys; from capture.cli import main;"
        f" sys.argv[1:] = ['run', '--config', sys.argv[1], '--metrics', '127.0.0.1:{port}']; main()"
    )
    node = fleet.start("node-1", config, script=script)
    await fleet.said("node-1", f"{WAITING}no server could be reached. {own_server.url}: nothing listens there")
    status, [reason] = await ask(port)
    assert (status, reason.partition(": ")[0]) == (503, "not connected yet")
    assert "nothing listens there" in reason
    assert (await ask(port, "/livez"))[0] == 200
    assert (await ask(port, "/metrics"))[0] == 200
    await asyncio.to_thread(own_server.start)
    async with Natty(**login) as natty:
        fleet.natty = natty
        await fleet.publish(orders(30))
        await fleet.until_all_acked(30)
        await until_ready(port)
        assert await fleet.stop(node) == 0
        assert await stored(fleet, config, fleet.stream) == 30
    assert fleet.log("node-1").read_text().count(WAITING) == 1
    assert "hunter2" not in fleet.log("node-1").read_text()


async def test_a_node_that_waits_for_the_server_ends_well_when_it_is_told_to_stop(fleet):
    node = Node(load(fleet.configure(nats__servers=[f"tls://127.0.0.1:{free_ports(1)[0]}"])))
    async with running(node):
        await until(lambda: node.start.waits_for)
    assert not node.start.over


@pytest.mark.long
async def test_a_node_that_waits_for_the_server_ends_well_at_sigterm(fleet):
    node = fleet.start("node-1", fleet.configure(nats__servers=[f"tls://127.0.0.1:{free_ports(1)[0]}"]))
    await fleet.said("node-1", WAITING)
    assert await fleet.stop(node) == 0
    assert "node-1 stopped: 0 messages in 0 blocks" in fleet.log("node-1").read_text()


async def test_a_node_that_has_waited_long_enough_ends_with_the_reason(fleet):
    url = f"tls://127.0.0.1:{free_ports(1)[0]}"
    node = Node(load(fleet.configure(nats__servers=[url], start_timeout=0.1)))
    with pytest.raises(NotStartedError, match=r"gave up after 0\.1 s \(start_timeout\): no server could be re"):
        await node.run()


async def test_refused_credentials_end_a_node_at_once(fleet, own_server):
    await asyncio.to_thread(own_server.start)
    for given in ({}, {"nats__user": "ann", "nats__password": "wrong"}):
        with pytest.raises(AuthorizationError, match="it refused these credentials"):
            await Node(load(fleet.configure(nats__servers=[own_server.url], **given))).run()


async def test_a_stream_that_does_not_exist_ends_a_node_at_once(fleet):
    with pytest.raises(StreamNotFoundError, match="there is no stream 'nothing_here' on this server"):
        await Node(load(fleet.configure(stream="nothing_here"))).run()


@pytest.mark.long
async def test_a_cluster_that_lost_its_power_comes_back_server_by_server_behind_a_waiting_node(fleet):
    with NatsCluster() as cluster:
        options = cluster.connect_options()
        async with Natty(**options, **PATIENT) as natty:
            await natty.ensure_stream(fleet.stream, subjects=[f"{fleet.stream}.*"], num_replicas=3)
            for payload in orders(10):
                await natty.publish(f"{fleet.stream}.eu", payload)
        for server in cluster:
            await asyncio.to_thread(server.kill)
        given = {f"nats__{name}": value for name, value in (options | {"timeout": 1.0}).items()}
        node = Node(load(fleet.configure(**EAGER, **given)))
        async with running(node) as port:
            await until(lambda: "nothing listens there" in node.start.waits_for)
            cluster[0].launch()
            await until(lambda: f"no answer on $JS.API.STREAM.INFO.{fleet.stream}" in node.start.waits_for)
            assert (await ask(port))[0] == 503
            await asyncio.to_thread(cluster.start)
            await until(lambda: node.stored["messages"] >= 10)


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_connection_that_is_lost_in_the_middle_of_the_start_is_waited_for(
    fleet, natty_proxy, natty_name, monkeypatch, grouped
):
    if grouped:
        fleet.stream = natty_name("parts")
        await fleet.natty.ensure_stream(fleet.stream, allow_batched=True, **partitioned(fleet.stream, 2))
        await fleet.natty.static_group(fleet.stream, "g").create(2, members=["p0", "p1"])
    lost = []

    async def lose(where):
        if where not in lost:
            lost.append(where)
            await natty_proxy.cut()

    def losing(name):
        step = getattr(intake, name)

        async def then(*arguments):
            await lose(name)
            return await step(*arguments)

        monkeypatch.setattr(intake, name, then)

    steps = ["stream_info", "claim", "consumers", "prepare"]
    for name in steps:
        losing(name)
    source = "GroupSource" if grouped else "Source"

    class Losing(getattr(intake, source)):
        async def __aenter__(self):
            await lose(source)
            return await super().__aenter__()

    monkeypatch.setattr(intake, source, Losing)
    given = {f"nats__{name}": value for name, value in (natty_proxy.options | {"timeout": 0.1}).items()}
    node = Node(load(fleet.configure(**EAGER, **given, group="g" if grouped else "")))
    await fleet.publish(orders(30), token=lambda number: str(number % 5))
    async with running(node) as port:
        async with asyncio.timeout(2 * PATIENCE):
            while not node.start.over:
                if node.start.waits_for:
                    await natty_proxy.restore()
                await asyncio.sleep(0.01)
        await natty_proxy.restore()
        await until(lambda: node.stored["messages"] >= 30)
        await until_ready(port)
    assert lost == [*steps, source]


# --- the store -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def away(s3):
    """The store behind a link that is cut: (the proxy, the store's URL through it)."""
    async with Proxy("127.0.0.1", int(s3.endpoint.rpartition(":")[2]), scheme="https") as proxy:
        await proxy.cut()
        yield proxy, s3.url("start", endpoint=proxy.url)


@pytest.mark.long
async def test_a_node_whose_store_is_away_is_not_ready_and_captures_when_that_is_back(fleet, s3, away, caplog):
    proxy, store = away
    config = fleet.configure(**EAGER, store=store)
    node = Node(load(config))
    await fleet.publish(orders(30))
    async with running(node) as port:
        await until(lambda: node.start.waits_for)
        status, [reason] = await ask(port)
        assert (status, reason.partition(": ")[0]) == (503, f"stream {fleet.stream} is not captured yet")
        assert "can't be reached (no process listens there, or a firewall blocks it, while " in reason
        assert (await ask(port, "/livez"))[0] == 200
        await proxy.restore()
        await fleet.until_all_acked(30)
        await until_ready(port)
    assert await stored(fleet, fleet.configure(**EAGER, store=s3.url("start")), fleet.stream) == 30
    assert sum(one.startswith(WAITING) for one in caplog.messages) == 1


@pytest.mark.long
async def test_a_node_that_waits_for_the_store_ends_well_at_sigterm(fleet, away):
    _, store = away
    node = fleet.start("node-1", fleet.configure(store=store))
    await fleet.said("node-1", WAITING)
    assert await fleet.stop(node) == 0
    assert "node-1 stopped: 0 messages in 0 blocks" in fleet.log("node-1").read_text()


@pytest.mark.long
async def test_a_store_that_is_starting_or_overloaded_is_waited_for(fleet, s3, faulty):
    node = Node(load(fleet.configure(**EAGER, store=s3.url("busy", endpoint=faulty.endpoint))))
    faulty.fault = lambda request: Say(503, "SlowDown")
    await fleet.publish(orders(30))
    async with running(node):
        await until(lambda: "answered 503 SlowDown" in node.start.waits_for)
        faulty.fault = lambda request: None
        await fleet.until_all_acked(30)


@pytest.mark.long
async def test_a_store_that_does_not_let_us_in_ends_a_node_at_once(fleet, s3, faulty):
    for fault, said in (
        (Say(403, "AccessDenied"), "does not allow it"),
        (Say(403, "InvalidAccessKeyId"), "refused our credentials"),
        (Say(404, "NoSuchBucket"), "there is no bucket 'lake'"),
    ):
        faulty.fault = lambda request, fault=fault: fault
        with pytest.raises(StoreUnreadableError, match=said):
            await Node(load(fleet.configure(store=s3.url("refused", endpoint=faulty.endpoint)))).run()
    with pytest.raises(StoreUnreadableError, match="its certificate is not trusted"):
        await Node(load(fleet.configure(store=s3.url("refused", ca="")))).run()


# --- several streams -------------------------------------------------------------------------------------------------


async def test_several_streams_wait_for_the_server_together(fleet, natty_proxy, natty_name):
    other = natty_name("payments")
    await fleet.natty.ensure_stream(other, subjects=[f"{other}.*"])
    await fleet.natty.publish(f"{other}.x", b"1")
    await fleet.publish(orders(30))
    await natty_proxy.cut()
    config = fleet.configure(
        **EAGER, stream="", streams=[fleet.stream, other], nats__servers=natty_proxy.options["servers"]
    )
    nodes = Several(load(config))
    async with running(nodes) as port:
        await until(lambda: nodes.start.waits_for)
        status, [reason] = await ask(port)
        assert status == 503
        assert reason.startswith("not connected yet: no server could be reached")
        await natty_proxy.restore()
        await fleet.until_all_acked(30)
        await until_ready(port)
        await until(lambda: all(node.stored["messages"] for node in nodes.nodes))
