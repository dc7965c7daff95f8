"""Streams whose server has forgotten deliveries to a dead node, and the messages that nodes store of them."""

import asyncio
import json
import shutil
from collections import defaultdict
from dataclasses import replace

import pytest
from patient import PATIENCE

from capture.archive.identity import claim
from capture.archive.sequences import Sequences
from capture.config.load import load
from capture.formats import writer
from capture.formats.choose import read_object
from capture.ingest.block import SealedBlock
from capture.ingest.board import Board
from capture.ingest.commit import CommitOptions, Committer
from capture.ingest.record import Records
from capture.ingest.source import stream_info
from capture.maintenance.sweep import read_entries
from capture.stores import open_store
from capture.verification.check import archive_picture, check
from natty.config.units import parse_time

LONG, SHORT = 120.0, 1.0  # seconds of `ack_wait`: without redeliveries, and with them
COUNT = 20
HEALED = "stored {} messages of {} that the server counts as acknowledged and no node has stored (1–9)"


class Ignored:
    def ack(self, messages):
        pass

    def nak(self, messages, delay=0.0):
        pass


CONTENT = "time_ns", "subject", "header_block", "payload"
HELD = 10  # messages that are delivered to a node that dies with them
TRIES = 10


@pytest.fixture
def configured(fleet):
    """Claim the archive and create the durable, as the first node does; return the path of the configuration."""

    async def configure(**settings):
        await fleet.natty.ensure_stream(fleet.stream, allow_rollup_hdrs=True, allow_destructive=True)
        settings = {"ack_wait": LONG, "limits__max_age": 0.3, "sweep__every": 0.2, "partition": "subject:0"} | settings
        path = fleet.configure(**settings)
        config = load(path, environment={})
        created = (await stream_info(fleet.natty, fleet.stream))["created"]
        await claim(open_store(config.store), config.name, fleet.stream, created, config.signer())
        wanted = config.consumer()
        await fleet.natty.ensure_consumer(fleet.stream, wanted.name, **wanted.settings())
        return path

    return configure


async def publish(fleet, numbers, expiring=()):
    for number in numbers:
        headers = {"Nats-TTL": "2s"} if number in expiring else {"A": "b"}
        await fleet.natty.publish(f"{fleet.stream}.s{number}", json.dumps({"n": number}).encode(), headers=headers)


async def die_with(fleet, count):
    """Take `count` messages like a client that dies: never settle them."""
    taken = 0
    async for batch in (pull := fleet.natty.pull(fleet.stream, "capture", max_messages=count)):
        if (taken := taken + len(batch)) >= count:
            pull.stop()
    assert taken == count


async def stored_by_the_dead(fleet, config, sequences):
    """Store a block of these messages, like a node that dies before it has acknowledged them."""
    messages = [await fleet.natty.jetstream.read(fleet.stream, sequence=one) for one in sequences]
    columns = (
        [one.sequence for one in messages],
        [parse_time(one.time) for one in messages],
        [one.subject.encode() for one in messages],
        [one.header_block for one in messages],
        [one.data for one in messages],
        [1] * len(messages),
        [b"reply"] * len(messages),
        [None] * len(messages),
    )
    block = SealedBlock(
        fleet.stream, "dead", int(columns[1][0] // 10**9) // 3600 * 3600, Records(fleet.stream, *columns), "age"
    )
    await Committer(open_store(config.store), writer("parquet"), Ignored(), CommitOptions(node="dead")).commit(block)


async def passed(fleet, how):
    """Wait until all messages except the dead node's are acknowledged; then let the server deliver those to others."""
    lost, unacked = how in ("purge", "rollup"), HELD - (how == "delete")
    await fleet.until(
        lambda one: (
            one["num_pending"] == 0
            and one["num_ack_pending"] <= unacked
            and (one["ack_floor"]["stream_seq"] > HELD if lost else one["num_ack_pending"] == unacked)
        )
    )
    await fleet.natty.ensure_consumer(fleet.stream, "capture", ack_wait=SHORT, allow_destructive=True)


async def remove(fleet, how, number):
    """Remove the message of this subject, as users of the stream do."""
    subject = f"{fleet.stream}.s{number}"
    if how == "purge":
        await fleet.natty.jetstream.request(f"STREAM.PURGE.{fleet.stream}", {"filter": subject})
    elif how == "rollup":
        await fleet.natty.publish(subject, b"{}", headers={"Nats-Rollup": "sub"})
    elif how == "delete":
        await fleet.natty.jetstream.request(f"STREAM.MSG.DELETE.{fleet.stream}", {"seq": number})


async def stream_state(fleet):
    return (await fleet.natty.jetstream.request(f"STREAM.INFO.{fleet.stream}"))["state"]


async def published_state(fleet):
    """Return the state of the stream, once a leader of the sweep has published it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            state = (await Board(fleet.natty, fleet.stream).read()).state
            if state and state.streams:
                return state.streams[0]
            await asyncio.sleep(0.05)


async def is_captured(fleet, path, gone=()):
    """Wait until no message of the stream is missing in the archive; return the result of the check.

    Of a stream that deletes acknowledged messages, verify can't explain why it does not have those in `gone`.
    """
    config = load(path, environment={})
    async with asyncio.timeout(2 * PATIENCE):
        while True:
            found = await check(fleet.natty, config, open_store(config.store))
            unexplained = {*found.verdict.unexplained}
            assert unexplained <= {*gone}
            is_known = replace(found, verdict=replace(found.verdict, unexplained=Sequences())).ok
            if is_known and found.verdict.stored and not found.unacknowledged:
                assert found.status == (1 if unexplained else 0)
                return found
            await asyncio.sleep(0.05)


async def rows(path):
    """Return the archive's rows by sequence: the deliveries and (time, subject, headers, payload) of each."""
    config = load(path, environment={})
    store = open_store(config.store)
    entries, _ = await read_entries(store)
    picture = await archive_picture(None, config, store)
    found = defaultdict(list)
    for stored in (*picture.blocks, *picture.list_unadopted(entries)):
        table = read_object(await store.get(stored.path), stored, config.keys())
        columns = (table[name].to_pylist() for name in ("sequence", "deliveries", *CONTENT))
        for sequence, deliveries, *content in zip(*columns, strict=True):
            found[sequence].append((deliveries, tuple(content)))
    return found


async def stream_copy(fleet):
    """Return the stream's messages by sequence: (time, subject, headers, payload)."""
    state = await stream_state(fleet)
    read = [fleet.natty.jetstream.read(fleet.stream, sequence=one) for one in range(1, state["last_seq"] + 1)]
    messages = [one for one in await asyncio.gather(*read) if one]
    return {one.sequence: (parse_time(one.time), one.subject, one.header_block or None, one.data) for one in messages}


def said(fleet, words):
    return sum(log.read_text().count(words) for log in fleet.folder.glob("node-*.log"))


async def check_rows(fleet, path, *, healed):
    """Compare the archive with the stream, byte by byte, and check which messages were healed."""
    stored = await rows(path)
    assert {sequence: {content for _, content in some} for sequence, some in stored.items()} == {
        sequence: {content} for sequence, content in (await stream_copy(fleet)).items()
    }
    assert {sequence for sequence, some in stored.items() if any(not times for times, _ in some)} == healed


async def lose(fleet, configured, how="purge", *, stored=(), expiring=(), other=False, **settings):
    """Have a node take the first messages and die, and one of them removed; return the path of the configuration.

    After a purge or a rollup the server takes the others for acknowledged as soon as the next one is, except in about
    one of some hundred streams: such a stream is made again, and so is its archive. The dead node has stored the
    messages `stored`; those in `expiring` have a TTL of 2 s; with `other`, another consumer is interested in them.
    """
    for _ in range(TRIES):
        path = await configured(**settings)
        if other:
            await fleet.natty.ensure_consumer(fleet.stream, "other")
        dying = asyncio.create_task(die_with(fleet, HELD))  # each is delivered at once, before it expires
        await publish(fleet, range(1, COUNT + 1), expiring)
        await dying
        if stored:
            await stored_by_the_dead(fleet, load(path, environment={}), stored)
        await remove(fleet, how, HELD)
        if how not in ("purge", "rollup") or (await fleet.consumer())["ack_floor"]["consumer_seq"] == HELD:
            return path
        stream = (await fleet.natty.jetstream.request(f"STREAM.INFO.{fleet.stream}"))["config"]
        await fleet.natty.jetstream.request(f"STREAM.DELETE.{fleet.stream}")
        await fleet.natty.jetstream.request(f"STREAM.CREATE.{fleet.stream}", stream)
        shutil.rmtree(fleet.store)
    raise AssertionError(f"the server has forgotten nothing in {TRIES} streams")


async def forgotten(fleet, configured, start_beside, how="purge", **settings):
    """`lose` messages and let two nodes capture the rest; return the path of the configuration, and the nodes."""
    path = await lose(fleet, configured, how, **settings)
    nodes = [start_beside(path), start_beside(path)]
    await passed(fleet, how)
    return path, nodes
