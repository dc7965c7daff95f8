"""Nodes that share the partitions of a group, each with one acknowledgement for all before it."""

import asyncio
import signal

import pyarrow as pa
import pytest
from group_members import partitioned
from hostile import MALFORMED
from patient import FILLING, NEVER, PATIENCE, until

from capture.config.load import load
from capture.errors import ConfigError
from capture.formats.parquet import ParquetWriter
from capture.ingest import group_source, pinned_consumer
from capture.ingest.ack_floor import Floor
from capture.ingest.block import OpenBlocks
from capture.ingest.source import READ_PAUSE
from capture.stores import open_store
from capture.verification.check import check
from natty import Batch, ConsumerExistsError, Natty, Pull
from natty.errors import BadGroupError, ConsumerNotFoundError
from natty.wire.read_pauses import ReadPauses

MEMBERS = ("p0", "p1", "p2", "p3")
KEYS = 20
NO_HURRY = {"ack_wait": 2 * NEVER, "limits__max_age": NEVER}


class Group:
    """A stream with partitions, a static group of it, and what nodes of that group have done."""

    def __init__(self, fleet, group):
        self.fleet, self.admin = fleet, group
        self.published = 0

    def configure(self, **settings):
        given = {"group": "g", "partition": "subject:2", "decoder": "raw", "limits__max_age": 0.3}
        return self.fleet.configure(**given | settings)

    async def publish(self, count):
        numbers = range(self.published, self.published + count)
        self.published += count
        async with self.fleet.natty.publisher(self.fleet.stream, **FILLING) as publisher:
            for number in numbers:
                headers = {"N": str(number)} if number % 3 else None
                await publisher.publish(f"{self.fleet.stream}.k{number % KEYS}", b"%d" % number, headers=headers)
            await publisher.flush()

    async def states(self):
        return {one.name: one for one in await self.admin.members()}

    async def until(self, condition):
        """Wait until the members meet a condition; show them if they never do."""
        states = {}
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    states = await self.states()
                    if condition(states):
                        return states
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{states}") from None

    async def until_all_acked(self):
        """Wait until all is acknowledged, through consumers of all members."""
        await self.until(lambda states: all(one.exists and not (one.pending or one.unacked) for one in states.values()))

    def rows(self):
        blocks = sorted((self.fleet.store / "blocks").rglob("*.parquet"))
        return pa.concat_tables([ParquetWriter().read(path.read_bytes()) for path in blocks]).to_pylist()

    async def verdict(self, path):
        config = load(path)
        return (await check(self.fleet.natty, config, open_store(config.store))).verdict


@pytest.fixture
async def group(fleet, natty_name):
    fleet.stream = natty_name("parts")
    await fleet.natty.ensure_stream(fleet.stream, allow_batched=True, **partitioned(fleet.stream, 4))
    admin = fleet.natty.static_group(fleet.stream, "g")
    await admin.create(4, members=list(MEMBERS))
    return Group(fleet, admin)


@pytest.fixture
def at_once(monkeypatch):
    """Wait for nothing but what the server does; no pin and no registration runs out where a machine stands still."""
    for module in (pinned_consumer, group_source):
        monkeypatch.setattr(module, "TICK", 0.02)
    for place in (
        "capture.config.consumers.PIN_TTL",
        "capture.ingest.pinned_consumer.PIN_TTL",
        "capture.ingest.group_source.TTL",
    ):
        monkeypatch.setattr(place, PATIENCE)


@pytest.fixture
def store_gate(monkeypatch):
    """Return a function that lets a node store no block whose path contains a text, until the event is set."""

    def close(node, text=""):
        opened, put = asyncio.Event(), node.store.put

        async def wait_to_put(path, *rest, **named):
            if text in path:
                await opened.wait()
            return await put(path, *rest, **named)

        monkeypatch.setattr(node.store, "put", wait_to_put)
        return opened

    return close


def held(states):
    return {name: one.pinned for name, one in states.items()}


async def test_nodes_share_the_partitions_and_a_hand_over_stores_nothing_twice(group, start_beside, at_once):
    config = group.configure(ack_wait=2 * NEVER, limits__max_age=NEVER)
    async with Natty(**group.fleet.options) as other:
        first = start_beside(config)
        await group.publish(200)
        alone = await group.until(lambda states: sum(one.unacked for one in states.values()) == 200)
        second = start_beside(config, other)
        await group.publish(200)
        shared = await group.until(
            lambda states: sum(one.pinned != alone[one.name].pinned for one in states.values()) == 2
        )
        assert {name: one.pinned != alone[name].pinned for name, one in shared.items()} in (
            {"p0": True, "p1": True, "p2": False, "p3": False},
            {"p0": False, "p1": False, "p2": True, "p3": True},
        )
        await group.publish(200)
        await group.until(lambda states: sum(one.pending for one in states.values()) == 0)
        await first.stop()
        await second.stop()
    await group.until_all_acked()
    rows = group.rows()
    assert sorted(row["sequence"] for row in rows) == list(range(1, 601))  # each once
    verdict = await group.verdict(config)
    assert verdict.ok, verdict.sentence()
    assert first.node.stored["messages"] + second.node.stored["messages"] == 600
    assert min(first.node.stored["messages"], second.node.stored["messages"]) > 0
    info = await group.fleet.natty.jetstream.request(f"CONSUMER.INFO.{group.fleet.stream}.g-p0")
    assert (info["config"]["ack_policy"], info["config"]["filter_subject"]) == ("all", "0.>")


async def test_what_is_stored_is_what_the_stream_holds_without_the_servers_mark_of_who_reads(group, start_beside):
    running = start_beside(group.configure())
    odd = [None, b"NATS/1.0\r\nA: b\r\nA: c\r\n\r\n", b"NATS/1.0\r\nNats-Pin-Id: of another stream\r\n\r\n"]
    odd += MALFORMED
    for number, block in enumerate(odd):
        await send(group.fleet, f"k{number}", b"%d" % number, block)
    await group.until(lambda states: sum(one.pinned != "" for one in states.values()) > 0)
    await group.until_all_acked()
    await running.stop()
    read = group.fleet.natty.jetstream.read
    stored = {row["sequence"]: row for row in group.rows()}
    for sequence in range(1, len(odd) + 1):
        message = await read(group.fleet.stream, sequence=sequence)
        row = stored[sequence]
        assert (row["subject"], row["header_block"] or b"", row["payload"]) == (
            message.subject,
            message.header_block,
            message.data,
        )


@pytest.mark.parametrize("limits", [{"max_batch": 2}, {"max_bytes": 500}, {"max_expires": 10**9}], ids=str)
@pytest.mark.long
async def test_a_consumer_that_limits_requests_is_read_within_its_limits(group, start_beside, limits):
    path = group.configure()
    running = start_beside(path)
    await group.publish(8)
    await group.until_all_acked()
    await running.stop()
    stream, jetstream = group.fleet.stream, group.fleet.natty.jetstream
    for member in MEMBERS:
        config = (await jetstream.request(f"CONSUMER.INFO.{stream}.g-{member}"))["config"] | limits
        await jetstream.request(f"CONSUMER.CREATE.{stream}.g-{member}", {"stream_name": stream, "config": config})
    running = start_beside(path)
    await group.publish(40)
    await group.until_all_acked()
    await running.stop()
    assert (await group.verdict(path)).ok


async def send(fleet, key, payload, block):
    answered = asyncio.get_running_loop().create_future()
    inbox = fleet.natty.connection.new_inbox()
    fleet.natty.connection.subscribe(inbox.decode(), lambda raw: answered.done() or answered.set_result(raw))
    subject = f"{fleet.stream}.{key}".encode()
    fleet.natty.connection.send(subject, payload, reply=inbox, headers=block or b"")
    async with asyncio.timeout(PATIENCE):
        await answered


async def test_after_the_loss_of_its_pin_a_node_stores_what_it_has_and_acknowledges_nothing(
    group, start_beside, at_once
):
    config = group.configure(member="p0", **NO_HURRY)
    async with Natty(**group.fleet.options) as other:
        first = start_beside(config)
        await group.publish(200)
        before = (await group.until(lambda states: states["p0"].unacked > 0 == states["p0"].pending))["p0"]
        second = start_beside(config, other)
        await group.until(lambda states: states["p0"].waiting > 1)
        await group.admin.step_down("p0")
        await group.until(lambda states: states["p0"].pinned not in ("", before.pinned))
        await group.until(lambda states: states["p0"].unacked == before.unacked)
        await first.stop()
        assert first.node.stored["messages"] == before.unacked
        assert (await group.states())["p0"].unacked == before.unacked
        await second.stop()
    assert (await group.states())["p0"].unacked == 0
    sequences = [row["sequence"] for row in group.rows()]
    assert len(sequences) == 2 * len(set(sequences)) == 2 * before.unacked


async def test_messages_that_come_one_by_one_to_an_idle_group_are_stored_in_batches(
    group, start_beside, at_once, monkeypatch
):
    monkeypatch.setattr(group_source, "GATHER", 1.0)
    sizes, pauses = [], []
    add, begin = OpenBlocks.add, ReadPauses.begin

    def note_size(blocks, groups, *, now):
        sizes.append(sum(len(records) for _, _, records in groups))
        return add(blocks, groups, now=now)

    def note_pause(reads, nbytes):
        pauses.append(reads.wanted)
        begin(reads, nbytes)

    monkeypatch.setattr(OpenBlocks, "add", note_size)
    monkeypatch.setattr(ReadPauses, "begin", note_pause)
    running = start_beside(group.configure(**NO_HURRY))
    await group.publish(20)
    await until(lambda: sum(sizes) == 20)
    del sizes[:]
    for number in range(200):
        await send(group.fleet, f"k{number % KEYS}", b"", b"")
    await until(lambda: sum(sizes) == 200)
    assert len([size for size in sizes if size]) < 100
    assert READ_PAUSE in pauses
    await running.stop()


async def test_a_hand_over_seals_the_open_blocks_once_however_long_the_store_takes(
    group, start_beside, at_once, monkeypatch, store_gate
):
    seals, seal, look = [], OpenBlocks.seal, pinned_consumer.wait_until_set
    monkeypatch.setattr(OpenBlocks, "seal", lambda blocks: seals.append(blocks) or seal(blocks))
    config = group.configure(**NO_HURRY)
    async with Natty(**group.fleet.options) as other:
        first = start_beside(config)
        await group.publish(200)
        await group.until(lambda states: sum(one.unacked for one in states.values()) == 200)
        opened = store_gate(first.node)
        second = start_beside(config, other)
        await until(lambda: len(seals) >= 2)
        looks = []
        monkeypatch.setattr(pinned_consumer, "wait_until_set", lambda *given: looks.append(given) or look(*given))
        await until(lambda: len(looks) >= 10)
        assert len(seals) == 2  # one for each consumer that moves
        opened.set()
        await first.stop()
        await second.stop()
    await group.until_all_acked()


ONE_ACK = pytest.mark.parametrize("settings", [{}, {"group": "", "ack": "all"}], ids=["group", "all"])


@ONE_ACK
async def test_stored_messages_that_can_not_be_acknowledged_yet_are_kept_alive(
    group, start_beside, at_once, monkeypatch, store_gate, settings
):
    alive, in_progress = set(), Pull.in_progress

    def note(pull, replies):
        alive.update(Batch([(b"", reply, b"", b"") for reply in replies]).sequences)
        in_progress(pull, replies)

    monkeypatch.setattr(Pull, "in_progress", note)
    running = start_beside(group.configure(ack_wait=3.0, limits__max_age=0.2, **settings))
    opened = store_gate(running.node, "key=k0")
    await group.publish(200)
    await until(lambda: running.node.stored["messages"] == 190)
    alive.clear()
    await until(lambda: any((sequence - 1) % KEYS for sequence in alive))  # of other keys
    opened.set()
    await until(lambda: running.node.stored["messages"] == 200)
    await running.stop()


@ONE_ACK
async def test_messages_that_the_server_delivers_again_while_they_wait_are_stored_once(
    group, start_beside, at_once, monkeypatch, store_gate, settings
):
    delivered, note_delivery = [], Floor.note_delivery
    monkeypatch.setattr(
        Floor, "note_delivery", lambda floor, replies: delivered.extend(replies) or note_delivery(floor, replies)
    )
    monkeypatch.setattr(Pull, "in_progress", lambda *_: None)  # nothing keeps them alive
    running = start_beside(group.configure(ack_wait=1.0, limits__max_age=0.2, **settings))
    opened = store_gate(running.node, "key=k0")
    await group.publish(200)
    await until(lambda: running.node.stored["messages"] >= 190 and len(delivered) >= 600)
    opened.set()
    await running.stop()
    assert sorted(row["sequence"] for row in group.rows()) == list(range(1, 201))


async def test_a_lost_connection_has_nothing_in_open_blocks_stored_twice(group, start_beside, natty_proxy, at_once):
    config = group.configure(**NO_HURRY)
    async with Natty(**natty_proxy.options) as client:
        running = start_beside(config, client)
        for count in (200, 400, 600):
            await group.publish(200)
            await until(lambda count=count: running.node._blocks.pending >= count)  # nothing is on the way
            await natty_proxy.cut()
            await natty_proxy.restore()
        await until(lambda: client.connection.connected)
        await running.stop()
    await group.until_all_acked()
    assert sorted(row["sequence"] for row in group.rows()) == list(range(1, 601))


async def test_a_node_that_loses_its_pin_with_its_connection_acknowledges_nothing(
    group, start_beside, natty_proxy, at_once, caplog
):
    config = group.configure(member="p0", **NO_HURRY)
    async with Natty(**natty_proxy.options) as client:
        first = start_beside(config, client)
        await group.publish(200)
        before = (await group.until(lambda states: states["p0"].unacked > 0 == states["p0"].pending))["p0"]
        await natty_proxy.cut()
        second = start_beside(config)
        await group.admin.step_down("p0")
        await group.until(lambda states: states["p0"].pinned not in ("", before.pinned))
        await group.until(lambda states: states["p0"].unacked == before.unacked)
        await natty_proxy.restore()
        await until(lambda: "another node is pinned" in caplog.text)
        await first.stop()
        assert first.node.stored["messages"] == before.unacked
        assert (await group.states())["p0"].unacked == before.unacked
        await second.stop()
    assert (await group.states())["p0"].unacked == 0


async def two_nodes(fleet, config):
    """Start two nodes, and wait until they share the partitions."""
    names = ("node-1", "node-2")
    nodes = [fleet.start(name, config) for name in names]

    def share(name):
        shares = [line for line in fleet.log(name).read_text().splitlines() if "this node's share" in line]
        return shares[-1].count(" g-p") if shares else 0

    await until(lambda: [share(name) for name in names] == [2, 2])
    return nodes


@pytest.mark.long
async def test_the_partitions_of_a_node_that_is_killed_move_and_nothing_is_lost(group):
    fleet, config = group.fleet, group.configure(limits__max_messages=50)
    nodes = await two_nodes(fleet, config)
    await group.publish(500)
    await group.until_all_acked()
    before = held(await group.states())
    publishing = asyncio.ensure_future(group.publish(3000))
    nodes[0].send_signal(signal.SIGKILL)
    await publishing
    await group.until_all_acked()
    assert held(await group.states()) != before
    assert await fleet.stop(nodes[1]) == 0
    verdict = await group.verdict(config)
    assert verdict.ok, verdict.sentence()
    assert list(verdict.stored.runs()) == [(1, 3500)]


@pytest.mark.long
async def test_a_node_that_stands_still_for_longer_than_its_pin_disturbs_nobody(group):
    fleet, config = group.fleet, group.configure(limits__max_messages=50)
    nodes = await two_nodes(fleet, config)
    await group.publish(500)
    await group.until_all_acked()
    before = held(await group.states())
    nodes[0].send_signal(signal.SIGSTOP)
    await group.publish(1000)
    await group.until_all_acked()
    assert held(await group.states()) != before
    nodes[0].send_signal(signal.SIGCONT)
    await group.publish(1000)
    await group.until_all_acked()
    for node in nodes:
        assert await fleet.stop(node) == 0
    verdict = await group.verdict(config)
    assert verdict.ok, verdict.sentence()
    assert list(verdict.stored.runs()) == [(1, 2500)]


async def test_what_gets_lost_with_a_connection_comes_again(group, start_beside, natty_proxy, at_once):
    config = group.configure(ack_wait=NEVER, limits__max_messages=100)
    async with Natty(**natty_proxy.options) as client:
        running = start_beside(config, client)
        await group.publish(500)
        await group.until(lambda states: all(held(states).values()))
        publishing = asyncio.ensure_future(group.publish(4000))
        await natty_proxy.cut()
        await publishing
        await natty_proxy.restore()
        await group.until_all_acked()
        await running.stop()
    verdict = await group.verdict(config)
    assert verdict.ok, verdict.sentence()
    assert len(verdict.stored) == 4500


async def test_a_consumer_that_is_deleted_ends_the_node_with_its_name(group, start_beside, at_once):
    running = start_beside(group.configure())
    await group.publish(50)
    await group.until_all_acked()
    await group.fleet.natty.jetstream.request(f"CONSUMER.DELETE.{group.fleet.stream}.g-p1")
    with pytest.raises(
        ConsumerNotFoundError, match=r"a consumer of group g of stream .* was deleted .* start the node"
    ):
        await running.ended()


# --- what can't be, and is told in a sentence ------------------------------------------------------------------------


async def test_groups_that_capture_can_not_read_through_are_refused_with_the_reason(group, start_beside, natty_name):
    with pytest.raises(ConfigError, match=r"there is no static group other of stream .*natty group static create"):
        await start_beside(group.configure(group="other")).ended()
    with pytest.raises(ConfigError, match=r"member p9 of group g has no partition; these have: p0, p1, p2, p3"):
        await start_beside(group.configure(member="p9")).ended()
    await group.fleet.natty.group(group.fleet.stream, "shop").create(2)
    with pytest.raises(ConfigError, match=r"group shop of stream .* is elastic: its work queue holds copies"):
        await start_beside(group.configure(group="shop")).ended()


async def test_a_work_queue_has_no_group_for_capture(group, start_beside, natty_name):
    natty, name = group.fleet.natty, natty_name("queue")
    await natty.ensure_stream(name, retention="workqueue", **partitioned(name, 2))
    await natty.static_group(name, "g").create(2, members=["p0", "p1"])
    with pytest.raises(ConfigError, match=r"work queue: it does not accept a consumer .* at once\. Leave group out"):
        await start_beside(group.configure(stream=name)).ended()


async def test_nobody_who_handles_messages_one_by_one_reads_beside_capture(group, start_beside):
    async def handle(message):
        raise AssertionError("nothing may be handled here")

    async with group.admin.join("p0", handle, ack_wait=60.0) as member:
        await until(lambda: member.state == "standby")
        with pytest.raises(ConsumerExistsError, match=r"ack_policy is 'explicit', wanted 'all'"):
            await start_beside(group.configure()).ended()
    await group.fleet.natty.jetstream.request(f"CONSUMER.DELETE.{group.fleet.stream}.g-p0")
    start_beside(group.configure())
    await group.publish(40)
    await group.until_all_acked()
    async with group.admin.join("p0", handle, ack_wait=60.0) as member:
        with pytest.raises(BadGroupError, match="uses cumulative acks"):
            await member.wait_until_ended()


def test_settings_that_contradict_a_group_are_named_with_their_place(tmp_path):
    path = tmp_path / "capture.toml"

    def refused(text):
        path.write_text(f'stream = "S"\nstore = "{tmp_path}"\n{text}')
        with pytest.raises(ConfigError) as error:
            load(path, environment={})
        return str(error.value)

    assert f"(member: file {path}, line 3)" in refused('member = "m1"')
    said = refused('group = "g"\nfilter_subjects = ["S.eu"]')
    assert "remove filter_subjects" in said
    assert f"file {path}, line 4" in said
    path.write_text(f'stream = "S"\nstore = "{tmp_path}"\n')
    assert load(path, {"member": "m1"}, environment={"CAPTURE_GROUP": "g"}).group == "g"
