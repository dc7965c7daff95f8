"""Capture without a consumer: the archive's exact set is the position, and batched direct gets read the rest."""

import asyncio
import json
import os
import signal
import time

import pytest
from patient import NEVER, PATIENCE, PATIENT
from servers import old_server

from capture import read_batches
from capture.archive.manifest import entry_path
from capture.archive.sequences import Sequences
from capture.config.load import load
from capture.ingest.board import Board
from capture.maintenance.sweep import read_entries
from capture.reading.remaining import ArchivePosition
from capture.stores import open_store
from capture.verification.check import archive_picture, check
from natty import Natty
from natty.groups.roster import MEMBERS_BUCKET
from natty.streams.mirror import Origin, create_mirror
from natty.testing import NatsCluster, NatsServer

DIRECT = {"source": "direct", "limits__max_age": 0.3}
HASTY = """
import sys
import capture.node.direct_source as source
from capture.cli import main
source.CHUNK, source.HAND_OVER, source.LOOK = 100, 0.5, 1.0
sys.argv = ["capture", "--log-level", "info", "run", "--config", sys.argv[1], "--node-name", sys.argv[2]]
main()
"""


UNABLE = """
import sys
from pathlib import Path
from capture.cli import main
from capture.errors import StoreError
from capture.stores import FileStore

put, away = FileStore._put, Path(sys.argv[1]).with_name("away")

def refuse(self, path, data, if_absent):
    if path.startswith("blocks/") and away.exists():
        raise StoreError("the store is away")
    put(self, path, data, if_absent)

FileStore._put = refuse
sys.argv = ["capture", "--log-level", "info", "run", "--config", sys.argv[1], "--node-name", sys.argv[2]]
main()
"""


def numbers(count, first=0):
    return [json.dumps({"n": number}).encode() for number in range(first, first + count)]


@pytest.fixture
async def readable(fleet):
    """A fleet whose stream allows direct gets."""
    await fleet.natty.ensure_stream(fleet.stream, subjects=[f"{fleet.stream}.*"], allow_direct=True)
    return fleet


async def until_captured(fleet, config, within=PATIENCE):
    """Wait until the archive holds all that the stream has; show what the nodes said if it never does."""
    position = ArchivePosition(fleet.natty, load(config), open_store(str(load(config).store)))
    unread = None
    try:
        async with asyncio.timeout(within):
            while unread := (await position.read()).unread:
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {within} s; not captured: {unread}\n{fleet.logs()}") from None


async def verify(fleet, config):
    settings = load(config)
    return await check(fleet.natty, settings, open_store(settings.store), deep=True)


async def read_all(store):
    """Return what readers see of each message, without what tells how it came."""
    rows = []
    async for batch in read_batches(str(store)):
        rows += batch.drop_columns(["deliveries"]).to_pylist()
    return rows


async def stored_twice(store):
    """Return the sequences that are in two blocks, of blocks that no leader has adopted."""
    entries, unreadable = await read_entries(open_store(str(store)))
    assert not unreadable
    return Sequences.find_repeated([Sequences.from_bytes(one.sequences) for one in entries])


async def test_a_node_without_a_consumer_stores_exactly_what_a_consumer_brings(readable):
    fleet = readable
    await fleet.publish(numbers(3000))
    for number in range(50):
        headers = {"Kind": ["a", "b"], "Nats-Msg-Id": [f"id-{number}"], "Empty": [""]} if number % 2 else None
        await fleet.natty.publish(f"{fleet.stream}.odd", b"" if number % 3 else b"\x00\xff" * number, headers=headers)
    for gone in (1, 7, 8, 1500, 3049):
        await fleet.natty.jetstream.request(f"STREAM.MSG.DELETE.{fleet.stream}", {"seq": gone})
    direct = fleet.configure("direct.toml", **DIRECT)
    by_consumer = fleet.configure("consumer.toml", limits__max_age=0.3, store=str(fleet.folder / "other"), archive="x")
    nodes = [fleet.start("direct", direct)]
    await until_captured(fleet, direct)
    assert not (await fleet.natty.jetstream.request(f"CONSUMER.LIST.{fleet.stream}"))["consumers"]
    nodes.append(fleet.start("consumer", by_consumer))
    await fleet.publish(numbers(500))  # both follow
    await fleet.until_all_acked(3550)
    await until_captured(fleet, direct)
    assert [await fleet.stop(node) for node in nodes] == [0, 0]
    found = await read_all(fleet.store)
    assert len(found) == 3545
    assert found == await read_all(fleet.folder / "other")
    verdict = await verify(fleet, direct)
    assert verdict.ok, verdict.sentence()
    assert verdict.as_dict()["stored"] + verdict.as_dict()["undecodable"] == 3545
    assert verdict.as_dict()["remaining"] == 0


@pytest.mark.long
async def test_a_new_message_is_stored_soon(readable):
    fleet = readable
    config = fleet.configure(**DIRECT | {"limits__max_messages": 1})
    fleet.start("node", config)
    await fleet.publish(numbers(1))
    await until_captured(fleet, config)
    await asyncio.sleep(1.0)  # it asks rarely now
    waits = []
    for _ in range(10):
        began = time.monotonic()
        await fleet.publish(numbers(1))
        await until_captured(fleet, config)
        waits.append(time.monotonic() - began)
    assert sorted(waits)[5] < 1.0, waits


@pytest.mark.long
async def test_a_restarted_node_reads_what_is_not_stored_and_nothing_else(readable):
    fleet = readable
    config = fleet.configure(**DIRECT, candidates="none")  # no block is ever adopted
    await fleet.publish(numbers(5000))
    first = fleet.start("first", config)
    await until_captured(fleet, config)
    os.kill(first.pid, signal.SIGKILL)
    await fleet.ended(first)
    await fleet.publish(numbers(700))
    second = fleet.start("second", config)
    await until_captured(fleet, config)
    assert await fleet.stop(second) == 0
    assert "700 messages in" in fleet.log("second").read_text()
    assert not await stored_twice(fleet.store)


@pytest.mark.long
async def test_what_a_killed_node_had_read_is_read_again(readable):
    fleet = readable
    open_ones = fleet.configure(**DIRECT | {"limits__max_age": NEVER})
    await fleet.publish(numbers(4000))
    node = fleet.start("killed", open_ones)
    board = Board(fleet.natty, fleet.stream)
    async with asyncio.timeout(PATIENCE):
        while sum(one.node.pending for one in (await board.read()).nodes) != 4000:
            await asyncio.sleep(0.05)
    os.kill(node.pid, signal.SIGKILL)
    await fleet.ended(node)
    config = fleet.configure(**DIRECT)
    fleet.start("next", config)
    await until_captured(fleet, config)
    verdict = await verify(fleet, config)
    assert verdict.ok, verdict.sentence()
    assert verdict.as_dict()["stored"] == 4000


@pytest.mark.long
async def test_several_nodes_read_other_chunks_and_take_over_those_of_a_killed_one(readable):
    fleet = readable
    config = fleet.configure(**DIRECT)
    nodes = {name: fleet.start(name, config, script=HASTY, arguments=[name]) for name in ("a", "b", "c")}
    for name in nodes:
        await fleet.said(name, "of 3 of stream")
    published, board = 0, Board(fleet.natty, fleet.stream)
    for victim in ("a", "b"):
        stored = {}
        while not stored.get(victim):
            await fleet.publish(numbers(250))
            published += 250
            stored = {one.node.node: one.node.stored.get("messages", 0) for one in (await board.read()).nodes}
        os.kill(nodes[victim].pid, signal.SIGKILL)
        await fleet.publish(numbers(250))
        published += 250
    await until_captured(fleet, config)
    assert await fleet.stop(nodes["c"]) == 0
    picture = await archive_picture(fleet.natty, load(config), open_store(str(fleet.store)))
    assert {block.node for block in picture.blocks} == {"a", "b", "c"}
    verdict = await verify(fleet, config)
    assert verdict.ok, verdict.sentence()
    assert verdict.as_dict()["stored"] == published
    assert [row["sequence"] for row in await read_all(fleet.store)] == list(range(1, published + 1))


@pytest.mark.long
async def test_messages_that_could_not_be_stored_are_read_again(readable):
    fleet = readable
    away = fleet.folder / "away"
    away.touch()
    config = fleet.configure(**DIRECT, store_attempts=1)
    node = fleet.start("node", config, script=UNABLE, arguments=["node"])
    await fleet.publish(numbers(1000))
    await fleet.said("node", "the store is away")
    away.unlink()
    await until_captured(fleet, config)
    assert await fleet.stop(node) == 0
    verdict = await verify(fleet, config)
    assert verdict.ok, verdict.sentence()
    assert verdict.as_dict()["stored"] == 1000


@pytest.mark.long
async def test_a_running_node_reads_again_what_the_archive_has_lost(readable):
    fleet = readable
    config = fleet.configure(**DIRECT, candidates="none")  # no block is ever adopted
    node = fleet.start("node", config, script=HASTY, arguments=["node"])
    await fleet.publish(numbers(300))
    await until_captured(fleet, config)
    store = open_store(str(fleet.store))
    for entry in (await read_entries(store))[0]:
        await store.delete(entry_path(entry.path))
        await store.delete(entry.path)
    assert len((await ArchivePosition(fleet.natty, load(config), store).read()).unread) == 300
    await until_captured(fleet, config)
    assert await fleet.stop(node) == 0


@pytest.mark.long
async def test_a_node_that_can_not_read_what_remains_says_so_in_its_status_until_it_can(readable):
    fleet = readable
    config = fleet.configure(**DIRECT, candidates="none")
    node = fleet.start("node", config, script=HASTY, arguments=["node"])
    await fleet.publish(numbers(10))
    await until_captured(fleet, config)
    store, board = open_store(str(fleet.store)), Board(fleet.natty, fleet.stream)

    async def troubles():
        return [text for one in (await board.read()).nodes for text in one.node.troubles]

    await store.put("_manifest/0000000005-1.json", b"{")  # a document that can't be read
    async with asyncio.timeout(PATIENCE):
        while not any(f"can't read what remains of stream {fleet.stream}" in text for text in await troubles()):
            await asyncio.sleep(0.05)
        await store.delete("_manifest/0000000005-1.json")
        while await troubles():
            await asyncio.sleep(0.05)
    await fleet.publish(numbers(10))
    await until_captured(fleet, config)
    assert await fleet.stop(node) == 0


@pytest.mark.long
async def test_messages_that_leave_the_stream_unread_are_counted_and_named(readable):
    fleet = readable
    config = fleet.configure(**DIRECT, ack_wait=1.0)
    node = fleet.start("node", config)
    await fleet.publish(numbers(10))
    await until_captured(fleet, config)
    board, limits = Board(fleet.natty, fleet.stream), {"max_msgs": 20, "discard": "old"}
    await state_of(board, lambda stream: stream.held == 10 and stream.pending == 0)
    await fleet.natty.ensure_stream(fleet.stream, **limits, allow_destructive=True)
    await fleet.publish(numbers(20_000))
    await until_captured(fleet, config)
    found = await state_of(board, lambda stream: stream.gone and stream.gone + stream.held == 20_010)
    assert found.pending == found.missing == 0
    assert "max_msgs" in found.gone_because
    assert await fleet.stop(node) == 0
    assert "left it before a node stored them" in fleet.log("node").read_text()
    verdict = await verify(fleet, config)
    assert verdict.ok, verdict.sentence()
    assert verdict.as_dict()["expired"] == found.gone
    assert verdict.as_dict()["stored"] == found.held


async def state_of(board, condition):
    """Return the stream's state, as a sweep has published it, once it meets a condition."""
    found = None
    for _ in range(int(PATIENCE / 0.1)):
        state = (await board.read()).state
        if state and state.streams and condition(found := state.streams[0]):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"the stream's state: {found}")


@pytest.mark.long
async def test_a_stream_that_is_made_again_is_not_read_into_the_archive(readable):
    fleet = readable
    config = fleet.configure(**DIRECT)
    node = fleet.start("node", config)
    await fleet.publish(numbers(10))
    await until_captured(fleet, config)
    await fleet.natty.jetstream.request(f"STREAM.DELETE.{fleet.stream}")
    await fleet.natty.ensure_stream(fleet.stream, subjects=[f"{fleet.stream}.*"], allow_direct=True)
    await fleet.publish(numbers(50))
    assert await fleet.ended(node) == 1
    assert "deleted" in fleet.log("node").read_text() or "another stream" in fleet.log("node").read_text()
    assert len(await read_all(fleet.store)) == 10


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"retention": "workqueue", "allow_direct": True}, "has retention workqueue"),
        ({"allow_direct": False}, "set allow_direct"),
    ],
)
async def test_a_stream_that_does_not_allow_it_is_refused(fleet, settings, sentence):
    name = f"{fleet.stream}_other"
    await fleet.natty.ensure_stream(name, subjects=[f"{name}.*"], **settings)
    node = fleet.start("node", fleet.configure(**DIRECT, stream=name))
    assert await fleet.ended(node) == 1
    said = fleet.log("node").read_text()
    assert sentence in said
    assert 'source = "consumer"' in said
    assert "Traceback" not in said


async def test_a_server_without_batched_direct_gets_is_refused_by_its_version(fleet, natty_tls, tmp_path):
    with NatsServer(folder=tmp_path / "nats", tls_files=natty_tls, binary=old_server("2.10.25")) as server:
        fleet.options = server.connect_options()
        async with Natty(**fleet.options, **PATIENT) as natty:
            await natty.ensure_stream(fleet.stream, subjects=[f"{fleet.stream}.*"], allow_direct=True)
        node = fleet.start("node", fleet.configure(**DIRECT))
        assert await fleet.ended(node) == 1
    assert 'source = "direct" needs nats-server 2.11 or later, and this one is 2.10.25' in fleet.log("node").read_text()


@pytest.mark.long
async def test_a_replicated_stream_with_a_mirror_is_captured_exactly_while_its_servers_are_killed(fleet):
    with NatsCluster() as cluster:
        fleet.options = cluster.connect_options()
        async with Natty(**fleet.options, **PATIENT) as natty:
            fleet.natty, name = natty, fleet.stream
            await natty.ensure_stream(name, subjects=[f"{name}.*"], num_replicas=3, allow_direct=True)
            await create_mirror(natty.jetstream, f"{name}_copy", Origin(stream=name), {"mirror_direct": True})
            config = fleet.configure(**DIRECT, nats__timeout=5.0)  # the default: a killed server does not answer
            node = fleet.start("node", config)
            try:
                await fleet.said("node", "this node reads part 1 of 1")
                for round_ in range(3):
                    await fleet.publish(numbers(3000))
                    await asyncio.to_thread(cluster[round_].kill)
                    await fleet.publish(numbers(3000))
                    await asyncio.to_thread(cluster[round_].launch)
                await until_captured(fleet, config, 2 * PATIENCE)
                assert await fleet.stop(node) == 0
            finally:
                node.kill()
            verdict = await verify(fleet, config)
            assert verdict.ok, verdict.sentence()
            assert [row["sequence"] for row in await read_all(fleet.store)] == list(range(1, 18_001))


@pytest.mark.long
async def test_a_start_is_recorded_once_and_another_one_is_refused(readable):
    fleet = readable
    await fleet.publish(numbers(100))
    config = fleet.configure(**DIRECT, start="new")
    node = fleet.start("node", config)
    await fleet.said("node", "from sequence 101 on")
    assert await fleet.stop(node) == 0
    await fleet.publish(numbers(50))  # while no node runs
    node = fleet.start("again", config)
    store = open_store(str(fleet.store))
    async with asyncio.timeout(PATIENCE):
        while len((await ArchivePosition(fleet.natty, load(config), store).read()).unread) != 100:
            await asyncio.sleep(0.05)
    assert await fleet.stop(node) == 0
    verdict = await verify(fleet, config)
    assert verdict.ok, verdict.sentence()
    assert verdict.as_dict()["stored"] == 50
    assert verdict.as_dict()["unwanted"] == 100
    node = fleet.start("other", fleet.configure(**DIRECT, start="all"))
    assert await fleet.ended(node) == 1
    assert "capture backfill" in fleet.log("other").read_text()


@pytest.mark.long
async def test_nodes_of_two_streams_in_one_archive_leave_nothing_to_each_other(readable):
    fleet, other = readable, f"{readable.stream}-B"
    await fleet.natty.ensure_stream(other, subjects=[f"{other}.*"], allow_direct=True)
    given = DIRECT | {"archive": f"{fleet.stream}-both"}
    configs = [fleet.configure("a.toml", **given), fleet.configure("b.toml", **given, stream=other)]
    nodes = [
        fleet.start(name, config, script=HASTY, arguments=[name]) for name, config in zip("ab", configs, strict=True)
    ]
    await fleet.said("a", "this node reads part 1 of 1")
    await fleet.said("b", "this node reads part 1 of 1")
    await fleet.publish(numbers(1000))
    for number in range(1000):
        await fleet.natty.publish(f"{other}.x", b"%d" % number)
    for config in configs:
        await until_captured(fleet, config)
    assert [await fleet.stop(node) for node in nodes] == [0, 0]


@pytest.mark.long
async def test_a_node_registers_again_after_the_bucket_of_registrations_was_deleted(readable):
    fleet = readable
    config = fleet.configure(**DIRECT)
    node = fleet.start("node", config)
    await fleet.publish(numbers(10))
    await until_captured(fleet, config)
    await fleet.natty.delete_stream(f"KV_{MEMBERS_BUCKET}")
    await fleet.publish(numbers(100))
    await until_captured(fleet, config)
    assert await fleet.stop(node) == 0


SLOW = """
import asyncio
import sys
import capture.node.direct_source as source
from capture.cli import main
from capture.reading.remaining import ArchivePosition
source.LOOK, read = 0.2, ArchivePosition.read

async def read_slowly(self, *where):
    await asyncio.sleep(0.5)
    return await read(self, *where)

ArchivePosition.read = read_slowly
sys.argv = ["capture", "--log-level", "info", "run", "--config", sys.argv[1], "--node-name", sys.argv[2]]
main()
"""


@pytest.mark.long
async def test_a_position_that_takes_longer_to_read_than_it_holds_does_not_keep_a_node_from_reading(readable):
    fleet = readable
    await fleet.publish(numbers(1000))
    config = fleet.configure(**DIRECT)
    node = fleet.start("node", config, script=SLOW, arguments=["node"])
    await until_captured(fleet, config)
    await fleet.publish(numbers(10))
    await until_captured(fleet, config)
    assert await fleet.stop(node) == 0
