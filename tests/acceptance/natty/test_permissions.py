"""Each role works with an account that may do just what `permissions` prints for it, and the server refuses nothing."""

import asyncio
import json
import signal
import time

import pytest
from command_line import CommandLine
from consuming import until
from electing import vacated_archive
from group_members import partitioned
from hostile import MALFORMED, publish_raw
from jetstream_ranges import rows_of
from patient import PATIENCE, PATIENT
from typer.testing import CliRunner

from capture.archive.heads import PIPELINES
from capture.cli.app import make_app as make_capture_app
from capture.errors import CaptureError
from capture.node.pipeline_requests import ask, read_requests
from capture.spark.connection_options import write_options
from capture.spark.jetstream import DefaultSource
from natty import Natty
from natty.cli.app import make_app as make_natty_app
from natty.consuming.dead_letters import DeadLetters
from natty.consuming.dead_letters.streams import DeadLetterOptions, ensure_streams
from natty.errors import NattyError
from natty.groups.roster import MEMBERS_BUCKET
from natty.kv import create_bucket
from natty.testing import NatsServer, ServerOptions

PASSWORD = "secret"
APPS = {"natty": make_natty_app(), "capture": make_capture_app()}
ROLES = {
    "publisher": ("natty", "permissions", "publisher", "ORDERS", "orders.*"),
    "later": ("natty", "permissions", "publisher", "LATER", "later.*", "--later"),
    "service": ("natty", "permissions", "service", "ORDERS", "billing"),
    "candidate": ("natty", "permissions", "candidate", "job"),
    "writer": ("natty", "permissions", "bucket", "conf"),
    "watcher": ("natty", "permissions", "bucket", "conf", "--read-only"),
    "administrator": ("natty", "permissions", "administrator"),
    "node": ("capture", "permissions", "node", "--stream", "ORDERS"),
    "shared": ("capture", "permissions", "node", "--stream", "SHARED"),
    "direct": ("capture", "permissions", "leader", "--stream", "PLAIN", "--source", "direct"),
    "leader": ("capture", "permissions", "leader", "--stream", "ORDERS"),
    "derivation": ("capture", "permissions", "leader", "--stream", "ORDERS"),
    "unaware": ("capture", "permissions", "leader", "--stream", "ORDERS"),
    "onlooker": ("capture", "permissions", "reader", "--stream", "ORDERS"),
    "operator": ("capture", "permissions", "operator", "--stream", "ORDERS"),
    "follower": ("capture", "permissions", "follower", "--stream", "ORDERS"),
    "compaction": ("capture", "permissions", "compaction", "--stream", "ORDERS"),
    "reader": ("capture", "permissions", "reader", "--stream", "ORDERS"),
    "purge": ("capture", "permissions", "purge", "--stream", "ORDERS"),
    "restore": ("capture", "permissions", "restore", "--stream", "ORDERS"),
}
IN_GROUP = {"CAPTURE_GROUP": "g", "CAPTURE_STREAM": "SHARED", "CAPTURE_STORE": "shared"}
"""The environment of the role `shared`: a node that shares the stream with others."""
PIPELINE = """
[[pipeline]]
name = "numbers"
sql = "SELECT n FROM ORDERS"
mode = "append"
trigger = "stream"
"""
"""Added to the configuration of the role `derivation`: a leader that can also be elected to run pipelines."""
WITHOUT_CONSUMER = {"CAPTURE_SOURCE": "direct", "CAPTURE_STREAM": "PLAIN", "CAPTURE_STORE": "plain"}
"""The environment of the role `direct`: a leader that reads its stream by direct gets."""
CONFIG = """
stream = "ORDERS"
store = "lake"
[limits]
max_age = 0.5
[sweep]
every = 0.3
[compaction]
min_files = 100000
max_wait = 1e9
"""


class Guarded:
    """A server with an account a role, and what it has refused to whom."""

    def __init__(self, server, folder, shells):
        self.server, self.folder, self.shells = server, folder, shells

    def client(self, role):
        return Natty(**self.server.connect_options(), **PATIENT, user=role, password=PASSWORD)

    def shell(self, role):
        shell = self.shells(self.folder, self.server.connect_options())
        shell.environment |= {
            "NATS_USER": role,
            "NATS_PASSWORD": PASSWORD,
            "CAPTURE_CONFIG": str(self.folder / "capture.toml"),
        }
        return shell

    def run(self, role, work):
        async def connected():
            async with self.client(role) as natty:
                return await work(natty)

        return asyncio.run(connected())

    def refused(self, role):
        """Return what the server refused to a role: lines of its log."""
        lines = self.server.log().splitlines()
        return [line for line in lines if "Violation" in line and f"user:{role}" in line]


@pytest.fixture(scope="module")
def guarded(natty_tls, nats_server_binary, tmp_path_factory, shells):
    """A server whose users are the roles, with a stream, buckets and an archive that the administrator has made."""
    folder = tmp_path_factory.mktemp("guarded")
    users = [f"{{user: root, password: {PASSWORD}}}"]
    (folder / "pipelines.toml").write_text(CONFIG + PIPELINE)
    with_pipelines = {"CAPTURE_CONFIG": str(folder / "pipelines.toml")}
    environments = {
        "shared": IN_GROUP,
        "direct": WITHOUT_CONSUMER,
        "derivation": with_pipelines,
        "operator": with_pipelines,
    }
    for role, (program, *words) in ROLES.items():
        done = CliRunner().invoke(APPS[program], words, env=environments.get(role, {}))
        assert done.exit_code == 0, done.output
        users.append(f"{{user: {role}, password: {PASSWORD}, {done.stdout}}}")
    options = ServerOptions(authorization="authorization {\nusers: [\n" + "\n".join(users) + "\n]\n}")
    (folder / "capture.toml").write_text(CONFIG)
    with NatsServer(options, folder=folder / "nats", tls_files=natty_tls, binary=nats_server_binary) as server:
        guarded = Guarded(server, folder, shells)
        guarded.run("root", prepared)
        yield guarded


async def prepared(natty):
    await natty.ensure_stream("ORDERS", subjects=["orders.*"], allow_batched=True)
    await natty.ensure_stream("LATER", subjects=["later.*", "schedules.LATER.>"], allow_msg_schedules=True)
    await natty.ensure_stream("PLAIN", subjects=["plain.*"], allow_direct=True)
    await natty.publish("plain.0", b"{}")
    await natty.election("any").prepare()
    await vacated_archive(natty, "PLAIN")
    await vacated_archive(natty, "ORDERS")
    await natty.create_bucket("conf")
    await natty.create_bucket("capture_state")
    await natty.ensure_stream("SHARED", allow_batched=True, **partitioned("SHARED", 2))
    await natty.static_group("SHARED", "g").create(2, members=["p0", "p1"])
    await create_bucket(natty.jetstream, MEMBERS_BUCKET)
    await publish_raw(natty, b"SHARED.k0", b"x", MALFORMED[0])
    await ensure_streams(natty.jetstream, DeadLetterOptions())
    for number in range(20):
        await natty.publish(f"orders.{number % 4}", json.dumps({"n": number}).encode(), msg_id=f"first-{number}")


def test_a_publisher(guarded):
    async def work(natty):
        await natty.publish("orders.0", b"one", msg_id="one")
        async with natty.publisher("ORDERS", ack_timeout=PATIENCE) as publisher:
            await publisher.publish("orders.1", b"two")
        await natty.publish_async("orders.2", b"three")
        await natty.flush_publishers()
        assert guarded.refused("publisher") == []
        with pytest.raises(NattyError):
            await natty.connection.request("$JS.API.STREAM.PURGE.ORDERS", b"", timeout=2.0)

    guarded.run("publisher", work)
    assert len(guarded.refused("publisher")) == 1  # what a test of permissions stands on


def test_a_publisher_that_publishes_later(guarded):
    async def work(natty):
        ack = await natty.publish("later.0", b"one", after="1h", msg_id="one")
        await natty.schedule("two", "later.1", b"two", after="2h")
        waiting = [one.name async for one in natty.scheduler.list("LATER")]
        assert sorted(waiting) == sorted(["two", ack.schedule.rpartition(".")[2]])
        assert await natty.scheduler.cancel("LATER", ack.schedule)
        assert await natty.scheduler.get("LATER", "two")

    guarded.run("later", work)
    assert guarded.refused("later") == []


def test_a_service_with_dead_letters(guarded):
    async def work(natty):
        seen = []

        def handle(message):
            seen.append(message)
            if message.subject == "orders.3":
                message.term("unreadable")

        consumption = natty.consume("ORDERS", "billing", handle)
        running = asyncio.create_task(consumption.run())
        await until(lambda: len(seen) >= 20)
        for sequence in (4, 8, 12, 16, 20):  # asks as before a reset
            await until(
                lambda sequence=sequence: DeadLetters(natty.jetstream).find_letter("ORDERS", sequence, "billing")
            )
        consumption.stop()
        await running

    guarded.run("service", work)

    async def letters(natty):
        return [letter.reason async for letter in natty.dead_letters().ls()]

    assert guarded.run("administrator", letters) == ["terminated: unreadable"] * 5
    assert guarded.refused("service") == []


def test_two_candidates_of_an_election(guarded):
    """The second one asks the first, which has the lower priority, to hand over."""

    async def work(natty):
        led = []

        async def lead(term):
            led.append(term.token)
            await term.commit("progress", b"%d" % term.token)

        await natty.election("job", lease=2.0).run(lead)
        assert await natty.get_leader("job") in (None, "")
        await natty.election("job", lease=2.0, node_name="second").run(lead)
        assert len(led) == 2

    guarded.run("candidate", work)
    assert guarded.refused("candidate") == []


def test_a_leader_of_pipelines(guarded):
    async def work(natty):
        led = []

        async def lead(term):
            led.append(term.token)
            await term.commit(PIPELINES.commit, b"%d" % term.token)

        await natty.election(PIPELINES.election("ORDERS"), lease=2.0).run(lead)
        assert len(led) == 1

    guarded.run("derivation", work)
    assert guarded.refused("derivation") == []

    async def refused(natty):
        with pytest.raises((NattyError, TimeoutError)):
            await asyncio.wait_for(natty.election(PIPELINES.election("ORDERS"), lease=2.0).run(work), 5.0)

    guarded.run("unaware", refused)  # its configuration names no pipelines
    assert any("ORDERS.pipelines" in line for line in guarded.refused("unaware"))


@pytest.mark.parametrize("role", ["follower", "derivation", "unaware"])
def test_spark_reads_the_stream_as_a_follower_or_as_the_leader(guarded, role, monkeypatch):
    guarded.run("root", lambda natty: natty.ensure_stream("ORDERS", allow_direct=True))
    user = {"user": role, "password": PASSWORD, "timeout": 5.0}
    options, variables = write_options(guarded.server.connect_options() | user)
    assert PASSWORD not in options.values()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    source = DefaultSource(options | {"stream": "ORDERS"})
    if role == "unaware":  # a leader whose pipelines do not follow a stream
        with pytest.raises(CaptureError):
            rows_of(source)
        assert any("DIRECT.GET.ORDERS" in line for line in guarded.refused(role))
    else:
        assert len(rows_of(source)) >= 20
        assert guarded.refused(role) == []


def test_an_operator_asks_the_leader_of_pipelines(guarded):
    async def work(natty):
        asked = await ask(natty, "ORDERS", "numbers", "run", by="operator")
        again = await ask(natty, "ORDERS", "numbers", "pause", by="operator")
        assert (await read_requests(natty, "ORDERS"))["numbers"] == again != asked

    async def read(natty):
        assert (await read_requests(natty, "ORDERS"))["numbers"].what == "pause"

    async def refused(natty):
        with pytest.raises(NattyError):
            await ask(natty, "ORDERS", "numbers", "run", by="onlooker")

    guarded.run("operator", work)
    guarded.run("derivation", read)  # the leader
    assert guarded.refused("operator") == []
    guarded.run("onlooker", refused)
    done = CliRunner().invoke(APPS["capture"], ("permissions", "operator", "--stream", "ORDERS"))
    assert "the configuration names none" in str(done.exception)


def test_a_writer_and_a_watcher_of_a_bucket(guarded):
    async def write(natty):
        bucket = natty.bucket("conf")
        await bucket.put("a", b"1")
        entry = await bucket.get("a")
        await bucket.update("a", b"2", revision=entry.revision)
        await bucket.create("b", b"3")
        await bucket.delete("b")

    async def watch(natty):
        bucket = natty.bucket("conf")
        assert await bucket.keys() == ["a"]
        assert (await bucket.get("a")).value == b"2"
        async for event in bucket.watch():
            assert event.key == "a"
            break
        assert guarded.refused("watcher") == []
        with pytest.raises(NattyError):
            await bucket.put("a", b"4")

    guarded.run("writer", write)
    guarded.run("watcher", watch)
    assert guarded.refused("writer") == []


def test_an_administrator(guarded, tmp_path, monkeypatch, capsys):
    command = CommandLine(guarded.server.connect_options(), tmp_path, monkeypatch, capsys)
    monkeypatch.setenv("NATS_USER", "administrator")
    monkeypatch.setenv("NATS_PASSWORD", PASSWORD)
    for words in (
        ("stream", "add", "OTHER", "--subjects", "other.>", "--defaults"),
        ("stream", "ls"),
        ("stream", "info", "ORDERS"),
        ("consumer", "add", "OTHER", "reader", "--defaults"),
        ("consumer", "ls", "OTHER"),
        ("stream", "purge", "OTHER", "--force"),
        ("stream", "rm", "OTHER", "--force"),
        ("kv", "add", "other"),
        ("kv", "put", "other", "a", "b"),
        ("kv", "rm", "other", "--force"),
        ("leader", "ls"),
        ("dlq", "ls"),
        ("account", "info"),
        ("doctor",),
    ):
        done = command(*words)
        assert done.status == 0, (words, done)
    assert guarded.refused("administrator") == []


def captured(guarded, role):
    """Run a node under a role until it has stored what there is and, if it can be elected, has recorded the stream."""
    node = guarded.shell(role).start("capture", "--log-level", "info", "run", "--node-name", role)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not guarded.run("root", stored if role == "node" else recorded):
        time.sleep(0.2)
    node.send_signal(signal.SIGTERM)
    done = guarded.shell(role).finish(node)
    assert (done.status, time.monotonic() < deadline) == (0, True), done


async def stored(natty):
    """Tell whether nothing waits."""
    try:
        state = await natty.jetstream.request("CONSUMER.INFO.ORDERS.capture")
    except NattyError:
        return False
    return not (state["num_pending"] or state["num_ack_pending"])


async def recorded(natty):
    """Tell whether the sweep's leader has committed all that it commits."""
    election = natty.election("capture.ORDERS")
    return all([await election.last_commit(name) for name in ("manifest", "recording")])


def test_a_node_that_shares_the_stream_with_others(guarded):
    async def is_stored(natty):
        members = await natty.static_group("SHARED", "g").members()
        return all(one.exists and not (one.pending or one.unacked) for one in members)

    shell = guarded.shell("shared")
    shell.environment |= IN_GROUP
    node = shell.start("capture", "run", "--node-name", "shared")
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not guarded.run("root", is_stored):
        time.sleep(0.2)
    node.send_signal(signal.SIGTERM)
    done = shell.finish(node)
    assert (done.status, time.monotonic() < deadline) == (0, True), done
    assert all("natty_leaders" in line for line in guarded.refused("shared"))  # it takes part in no election


def test_a_node_without_a_consumer(guarded):
    async def is_recorded(natty):
        election = natty.election("capture.PLAIN")
        return all([await election.last_commit(name) for name in ("manifest", "recording")])

    shell = guarded.shell("direct")
    shell.environment |= WITHOUT_CONSUMER
    node = shell.start("capture", "run", "--node-name", "direct")
    deadline, blocks = time.monotonic() + PATIENCE, guarded.folder / "plain" / "blocks"
    while time.monotonic() < deadline and not ([*blocks.rglob("*.parquet")] and guarded.run("root", is_recorded)):
        time.sleep(0.2)
    node.send_signal(signal.SIGTERM)
    done = shell.finish(node)
    assert (done.status, time.monotonic() < deadline) == (0, True), done
    assert guarded.refused("direct") == []


def test_the_roles_of_an_archive(guarded):
    captured(guarded, "node")
    refused = guarded.refused("node")
    assert refused
    assert all("natty_leaders" in line for line in refused)  # it takes part in no election, and says so
    captured(guarded, "leader")
    assert guarded.refused("leader") == []
    guarded.run("root", lambda natty: natty.ensure_stream("ORDERS", allow_direct=True))
    live = ("sql", "--live", "SELECT count(*) FROM messages")
    for words in (("verify",), ("ls",), ("cat",), ("cat", "--live"), live, ("status",)):
        done = guarded.shell("reader").capture(*words)
        assert done.status == (3 if words == ("status",) else 0), (words, done)  # nobody leads now
    assert guarded.refused("reader") == []
    done = guarded.shell("compaction").capture("compact", "--all", within=2 * PATIENCE)
    assert (done.status, "failed: []" in done.out) == (0, True), done
    assert guarded.refused("compaction") == []
    done = guarded.shell("purge").capture("purge", "--captured", "--force")
    assert done.status == 0, done
    assert guarded.refused("purge") == []
    guarded.run("root", lambda natty: natty.jetstream.request("STREAM.DELETE.ORDERS"))
    done = guarded.shell("restore").capture("restore")
    assert done.status == 0, done
    assert guarded.refused("restore") == []
