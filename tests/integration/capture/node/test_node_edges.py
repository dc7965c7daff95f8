"""A real node whose rights are taken away, whose server gets another certificate, or whose peer vanishes: it goes on.

What is refused, or wrong, is logged once with what to do; readiness and `capture status` show it; nothing is lost.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import urllib.error
import urllib.request

import pytest
from patient import PATIENCE, PATIENT

from capture.config.load import load
from capture.ingest.board import Board
from capture.stores import open_store
from capture.verification.check import check
from natty import Natty
from natty.config.tls import DEV_HOSTS, DevCA
from natty.testing import NatsServer, Proxy, ServerOptions
from natty.testing.spawner import free_ports

pytestmark = pytest.mark.long
ROOT, NODE = "{user: root, password: secret}", "{user: node, password: secret}"
LIVELY = {"nats__ping_interval": 0.5, "nats__connect_timeout": 2.0, "nats__timeout": 2.0, "ack_wait": 3.0}
QUICK = {"limits__max_age": 0.3, "sweep__every": 0.3}


def users(node=NODE):
    return f"authorization {{\nusers: [\n{ROOT}\n{node}\n]\n}}"


def barred(*subjects):
    return NODE[:-1] + f', permissions: {{publish: {{allow: [">"], deny: {json.dumps(subjects)}}}, subscribe: [">"]}}}}'


def reload(server, node):
    """Give the node's user other rights, in the server that runs."""
    file = server.folder / "server.conf"
    text = file.read_text()
    start = text.index("authorization {")
    file.write_text(text[:start] + users(node) + text[text.index("]\n}", start) + 3 :])
    os.kill(server.pid, signal.SIGHUP)


def page(address, path):
    """Return the status and the text of a page."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def until(condition):
    async with asyncio.timeout(2 * PATIENCE):
        while not await condition():
            await asyncio.sleep(0.1)


class Capturing:
    """A node that captures what is published all the while, and what it says."""

    def __init__(self, fleet, path, address=""):
        self.fleet, self.path, self.address, self.count = fleet, path, address, 0
        self.node = fleet.start("n1", path, options=["--metrics", address] if address else [])
        self.task = asyncio.create_task(self.publish())

    async def publish(self):
        while True:
            with contextlib.suppress(Exception):
                await self.fleet.natty.publish(f"{self.fleet.stream}.{self.count % 4}", b"{}")
                self.count += 1
            await asyncio.sleep(0.02)

    @property
    def log(self):
        return self.fleet.log("n1").read_text()

    async def captures(self, more=20):
        """Wait until so many further messages are acknowledged."""
        goal = self.count + more

        async def done():
            with contextlib.suppress(Exception):
                return (await self.fleet.consumer())["ack_floor"]["stream_seq"] >= goal
            return False

        await until(done)

    async def says(self, words):
        async def said():
            return words in self.log

        await until(said)

    async def ends(self):
        """Stop it, and look that nothing is lost."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.fleet.until(lambda one: not (one["num_pending"] or one["num_ack_pending"]), within=2 * PATIENCE)
        assert await self.fleet.stop(self.node) == 0
        found = await check(self.fleet.natty, load(self.path, environment={}), open_store(str(self.fleet.store)))
        assert (found.verdict.ok, found.verdict.awaited) == (True, found.verdict.missing)
        assert len(found.verdict.stored) >= self.count


@pytest.fixture
def guarded(nats_server_binary):
    with NatsServer(ServerOptions(authorization=users()), binary=nats_server_binary) as server:
        yield server


@pytest.fixture
def nats_server(guarded):
    return guarded


@pytest.fixture
async def natty(guarded):
    async with Natty(**guarded.connect_options(), **PATIENT, user="root", password="secret") as natty:
        yield natty


@pytest.fixture
async def capturing(fleet):
    running = []

    async def begin(**settings):
        address = f"127.0.0.1:{free_ports(1)[0]}"
        path = fleet.configure(**{"nats__user": "node", "nats__password": "secret"} | LIVELY | QUICK | settings)
        running.append(Capturing(fleet, path, address))
        await running[0].captures()
        return running[0]

    yield begin
    for one in running:
        one.task.cancel()
        await asyncio.gather(one.task, return_exceptions=True)


@pytest.mark.parametrize(
    ("denied", "refused", "ready"),
    [
        ("$JS.ACK.>", '"$JS.ACK.{}.capture.>"', 503),
        ("$JS.API.CONSUMER.MSG.NEXT.*.capture", '"$JS.API.CONSUMER.MSG.NEXT.{}.capture"', 503),
        ("$JS.API.CONSUMER.INFO.>", '"$JS.API.CONSUMER.INFO.{}.capture"', 200),
    ],
    ids=["acks", "requests", "consumer info"],
)
async def test_a_right_that_is_taken_away_is_named_once_and_the_node_goes_on_when_it_is_back(
    capturing, guarded, fleet, denied, refused, ready
):
    refused = refused.format(fleet.stream)
    node = await capturing()
    reload(guarded, barred(denied))
    line = f"the server refused: Permissions Violation for Publish to {refused}: give this user that permission"
    await node.says(line)

    async def in_trouble():
        view = await Board(fleet.natty, fleet.stream).read()
        return any(refused in trouble for one in view.nodes for trouble in one.node.troubles)

    await until(in_trouble)
    status, text = await asyncio.to_thread(page, node.address, "/readyz")
    assert status == ready
    assert ready == 200 or json.loads(text)["reasons"] == [
        f"the server refused: Permissions Violation for Publish to {refused}"
    ]
    await asyncio.sleep(3 * LIVELY["ack_wait"])  # what is refused is tried again, thousands of times or a few
    assert node.log.count(line) == node.log.count("the server refused") == 1
    assert node.node.poll() is None
    reload(guarded, NODE)
    await node.captures()
    await node.ends()
    assert "Traceback" not in node.log


async def test_a_node_whose_user_is_deleted_waits_for_it_with_a_line_at_times(capturing, guarded, fleet):
    node = await capturing()
    reload(guarded, "")
    words = "it refused these credentials; check user, password, token, creds or nkey"
    await node.says(words)
    await node.says(f"{words}: ")  # with a count
    status, _ = await asyncio.to_thread(page, node.address, "/readyz")
    assert status == 503
    assert node.node.poll() is None
    lines = [line for line in node.log.splitlines() if "still not connected" in line]
    counted = [line for line in lines if "more like the last one" in line]
    assert len(lines) - len(counted) <= 2 * (1 + len(counted))  # of two connections
    reload(guarded, NODE)
    await node.captures()
    await node.ends()
    assert "Traceback" not in node.log


async def test_a_peer_that_vanishes_and_one_that_never_answers_a_handshake_cost_a_node_nothing(capturing, guarded):
    async with Proxy.to(guarded) as proxy:
        node = await capturing(nats__servers=proxy.options["servers"])
        proxy.half_open()  # sessions and handshakes: nobody says a word, nothing is closed
        await node.says("the server does not answer")
        await node.says("still not connected")
        assert node.node.poll() is None
        await proxy.restore()
        await node.captures()
        await node.ends()
    assert "Traceback" not in node.log


async def test_a_certificate_that_is_replaced_while_a_node_runs_is_taken_up(capturing, guarded):
    node = await capturing()
    DevCA.create().write(guarded.folder / "tls", hosts=DEV_HOSTS, force=True)  # of another authority, for both sides
    os.kill(guarded.pid, signal.SIGHUP)
    await node.captures()
    assert not re.search("connection to .* lost", node.log)  # sessions stay
    await asyncio.to_thread(guarded.restart)
    await node.captures()
    await node.ends()
    assert "Traceback" not in node.log
