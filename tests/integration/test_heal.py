"""What the server counts as acknowledged and no node has stored is stored by the sweep's leader, from the stream."""

import asyncio
import base64
import itertools
import json
import math
from collections import defaultdict

import pytest
from group_members import partitioned
from patient import NEVER, PATIENCE

from capture.block import SealedBlock
from capture.commit import CommitOptions, Committer
from capture.config import load
from capture.heal import Healer, Reading
from capture.identity import claim
from capture.progress import read_progress
from capture.reading.read import read
from capture.record import Records
from capture.report import archive_picture, check
from capture.sequences import Sequences
from capture.source import stream_info
from capture.state import Board
from capture.stores import open_store
from capture.sweep import read_entries
from capture.writers import writer
from capture.writers.choose import read_object
from natty import LeadershipLost
from natty.units import parse_time

LONG, SHORT = 120.0, 1.0  # seconds of `ack_wait`: while something must not come again, and when it may
COUNT = 20
HEALED = "stored {} messages of {} that the server counts as acknowledged and no node has stored (1–9)"


class Ignored:
    def ack(self, replies):
        pass

    def nak(self, replies, delay=0.0):
        pass


CONTENT = "time_ns", "subject", "header_block", "payload"
HELD = 10  # messages that are delivered to a node that dies with them


@pytest.fixture
def configured(fleet):
    """Claim the archive and make the durable, as the first node does; return the path of the configuration."""

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


async def publish(fleet, numbers):
    for number in numbers:
        await fleet.natty.publish(f"{fleet.stream}.s{number}", json.dumps({"n": number}).encode(), headers={"A": "b"})


async def die_with(fleet, count):
    """Have so many messages delivered to somebody who never says a word about them again."""
    taken = 0
    async for batch in (pull := fleet.natty.pull(fleet.stream, "capture", max_messages=count)):
        if (taken := taken + len(batch)) >= count:
            pull.stop()
    assert taken == count


async def stored_by_the_dead(fleet, config, sequences):
    """Store a block of these messages, as a node does that dies before it has acknowledged them."""
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
    """Wait until all but the messages of the dead are acknowledged; then let the server give them to others."""
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
    state = (await Board(fleet.natty, fleet.stream).read()).state
    return state.streams[0] if state and state.streams else None


async def is_captured(fleet, path):
    """Return the check of the archive once nothing of the stream is missing in it."""
    config = load(path, environment={})
    async with asyncio.timeout(2 * PATIENCE):
        while True:
            found = await check(fleet.natty, config, open_store(config.store))
            if found.ok and found.verdict.stored and not found.unacknowledged:
                return found
            await asyncio.sleep(0.05)


async def rows(path):
    """Return what the archive holds: (time, subject, headers, payload) and the deliveries of each row, by sequence."""
    config = load(path, environment={})
    store = open_store(config.store)
    entries, _ = await read_entries(store)
    picture = await archive_picture(None, config, store)
    found = defaultdict(list)
    for stored in (*picture.blocks, *picture.unadopted(entries)):
        table = read_object(await store.get(stored.path), stored, config.keys())
        columns = (table[name].to_pylist() for name in ("sequence", "deliveries", *CONTENT))
        for sequence, deliveries, *content in zip(*columns, strict=True):
            found[sequence].append((deliveries, tuple(content)))
    return found


async def stream_copy(fleet):
    """Return the same of the stream."""
    state = await stream_state(fleet)
    read = [fleet.natty.jetstream.read(fleet.stream, sequence=one) for one in range(1, state["last_seq"] + 1)]
    messages = [one for one in await asyncio.gather(*read) if one]
    return {one.sequence: (parse_time(one.time), one.subject, one.header_block or None, one.data) for one in messages}


def said(fleet, words):
    return sum(log.read_text().count(words) for log in fleet.folder.glob("node-*.log"))


async def check_rows(fleet, path, *, healed):
    """Compare the archive with the stream, byte by byte, and which messages were healed."""
    stored = await rows(path)
    assert {sequence: {content for _, content in some} for sequence, some in stored.items()} == {
        sequence: {content} for sequence, content in (await stream_copy(fleet)).items()
    }
    assert {sequence for sequence, some in stored.items() if any(not times for times, _ in some)} == healed


@pytest.mark.long
@pytest.mark.parametrize("how", ["purge", "rollup", "delete", "none"])
async def test_what_is_removed_between_delivery_and_storing_takes_no_other_message_with_it(fleet, configured, how):
    path = await configured()
    await publish(fleet, range(1, COUNT + 1))
    await die_with(fleet, HELD)
    await remove(fleet, how, HELD)
    nodes = [fleet.start(name, path) for name in ("node-1", "node-2")]
    await passed(fleet, how)
    found = await is_captured(fleet, path)
    assert len(found.verdict.deleted) == (how != "none")
    assert [await fleet.stop(node) for node in nodes] == [0, 0]
    forgotten = how in ("purge", "rollup")
    await check_rows(fleet, path, healed=set(range(1, HELD)) if forgotten else set())
    logs = [log.read_text() for log in fleet.folder.glob("node-*.log")]
    assert sum(log.count(HEALED.format(HELD - 1, fleet.stream)) for log in logs) == forgotten
    assert not any("MISSING" in log for log in logs)


async def forgotten(fleet, start_beside, path, how="purge"):
    """Have messages delivered to the dead, remove one, let two nodes capture the rest; return the nodes."""
    await publish(fleet, range(1, COUNT + 1))
    await die_with(fleet, HELD)
    await remove(fleet, how, HELD)
    nodes = [start_beside(path), start_beside(path)]
    await passed(fleet, how)
    return nodes


async def test_messages_that_a_purge_made_the_server_forget_are_stored_by_the_sweep(
    fleet, configured, start_beside, caplog
):
    path = await configured()
    nodes = await forgotten(fleet, start_beside, path)
    found = await is_captured(fleet, path)
    assert found.sentence().endswith("nothing is missing")
    for node in nodes:
        await node.stop()
    await check_rows(fleet, path, healed=set(range(1, HELD)))
    assert caplog.text.count(HEALED.format(HELD - 1, fleet.stream)) == 1
    assert "MISSING" not in caplog.text
    assert (await published_state(fleet)).healed == HELD - 1
    assert sum(node.node.stored["healed"] for node in nodes) == HELD - 1


async def test_until_the_sweep_has_stored_them_verify_neither_calls_them_missing_nor_says_that_all_is_well(
    fleet, configured, start_beside
):
    path = await configured(ack_wait=NEVER)
    config = load(path, environment={})
    await publish(fleet, range(1, COUNT + 1))
    await die_with(fleet, HELD)
    await remove(fleet, "rollup", HELD)
    node = start_beside(path)
    await fleet.until(lambda one: one["num_pending"] == 0 and one["ack_floor"]["stream_seq"] >= COUNT)
    found = await check(fleet.natty, config, open_store(config.store))
    assert (found.status, len(found.verdict.awaited), len(found.verdict.missing)) == (1, HELD - 1, 0)
    assert "9 acknowledged ones are not stored yet (1–9), and nodes may hold them" in found.sentence()
    await node.stop()
    found = await check(fleet.natty, config, open_store(config.store))
    assert (found.status, len(found.verdict.awaited), len(found.verdict.missing)) == (3, 0, HELD - 1)
    assert "9 MISSING (1–9)" in found.sentence()
    assert found.advice == (
        "no node sweeps this archive: start one, it stores what is missing and still in the stream",
    )


async def test_encrypted_and_signed_archives_are_healed_like_others(fleet, configured, start_beside, tmp_path):
    keys, signing = tmp_path / "keys", tmp_path / "signing"
    keys.write_text(f"k1:{base64.b64encode(bytes(32)).decode()}\n")
    signing.write_text(f"s1:{base64.b64encode(bytes(range(32))).decode()}\n")
    for file in (keys, signing):
        file.chmod(0o600)
    path = await configured(encrypt=True, key_file=str(keys), signing_key_file=str(signing), format="ndjson")
    await forgotten(fleet, start_beside, path, "rollup")
    await is_captured(fleet, path)
    await check_rows(fleet, path, healed=set(range(1, HELD)))


async def test_a_work_queue_lets_go_of_healed_messages_and_of_stored_ones_that_it_has_forgotten(
    fleet, configured, start_beside, caplog
):
    await fleet.natty.jetstream.request(f"STREAM.DELETE.{fleet.stream}")
    await fleet.natty.ensure_stream(fleet.stream, subjects=[f"{fleet.stream}.*"], retention="workqueue")
    path = await configured()
    config = load(path, environment={})
    await publish(fleet, range(1, COUNT + 1))
    copy = await stream_copy(fleet)
    pulled, pull = [], fleet.natty.pull(fleet.stream, "capture", max_messages=HELD)
    async for batch in pull:
        pulled += batch.raw
        if len(pulled) >= HELD:
            pull.stop()
    await stored_by_the_dead(fleet, config, [1, 2])  # and not acknowledged
    await remove(fleet, "purge", HELD)
    start_beside(path)
    await fleet.until(lambda one: one["num_pending"] == 0 and one["ack_floor"]["stream_seq"] >= COUNT)
    await fleet.natty.ensure_consumer(fleet.stream, "capture", ack_wait=SHORT, allow_destructive=True)
    async with asyncio.timeout(PATIENCE):
        while (await stream_state(fleet))["messages"]:
            await asyncio.sleep(0.05)
    found = await is_captured(fleet, path)
    assert len(found.verdict.stored) == COUNT - 1
    stored = await rows(path)
    assert {sequence for sequence, some in stored.items() if any(not times for times, _ in some)} == set(range(3, HELD))
    assert {sequence: content for sequence, [(_, content)] in stored.items()} == {
        sequence: content for sequence, content in copy.items() if sequence != HELD
    }
    assert f"deleted 2 messages from the work queue {fleet.stream}" in caplog.text


async def reset(fleet, consumer, sequence):
    """Let a consumer go on with this sequence: it takes what lies before it for acknowledged."""
    await fleet.natty.jetstream.request(f"CONSUMER.RESET.{fleet.stream}.{consumer}", {"seq": sequence})


@pytest.mark.long
async def test_what_one_ack_for_all_before_it_has_passed_is_stored_too(fleet, configured, start_beside):
    path = await configured(ack="all", ack_wait=2.0)
    await publish(fleet, range(1, COUNT + 1))
    await reset(fleet, "capture", HELD)
    start_beside(path)
    await is_captured(fleet, path)
    await check_rows(fleet, path, healed=set(range(1, HELD)))


@pytest.mark.long
async def test_what_the_consumers_of_a_group_have_passed_is_stored_too(fleet, configured, start_beside):
    settings = {"subjects": [f"{fleet.stream}.*"]} | partitioned(fleet.stream, 2)
    await fleet.natty.ensure_stream(fleet.stream, **settings, allow_destructive=True)
    group = fleet.natty.static_group(fleet.stream, "g")
    await group.create(2, members=["p0", "p1"])
    path = await configured(group="g", ack_wait=2.0)
    await publish(fleet, range(1, COUNT + 1))
    nodes = [start_beside(path), start_beside(path)]
    await is_captured(fleet, path)
    for node in nodes:
        await node.stop()
    fleet.store = fleet.folder / "other"  # an archive that was never given what these consumers have passed
    path = await configured(group="g", ack_wait=2.0, archive=f"{fleet.stream}-other")
    for _ in range(2):
        start_beside(path)
    await is_captured(fleet, path)
    await check_rows(fleet, path, healed=set(range(1, COUNT + 1)))


@pytest.mark.long
async def test_of_a_capture_of_some_subjects_only_these_are_stored(fleet, configured, start_beside):
    await fleet.natty.ensure_stream(fleet.stream, subjects=[f"{fleet.stream}.>"])
    path = await configured(filter_subjects=[f"{fleet.stream}.eu.>", f"{fleet.stream}.us.>"], ack_wait=2.0)
    for number in range(300):
        await fleet.natty.publish(f"{fleet.stream}.{('eu', 'us', 'asia')[number % 3]}.{number}", b"{}")
    await reset(fleet, "capture", 200)
    start_beside(path)
    await is_captured(fleet, path)
    stored = await rows(path)
    assert {*stored} == {sequence for sequence in range(1, 301) if sequence % 3}
    assert {sequence for sequence, [(times, _)] in stored.items() if not times} == {
        sequence for sequence in range(1, 200) if sequence % 3
    }


@pytest.mark.long
async def test_subjects_and_headers_that_are_no_text_are_healed_byte_for_byte(fleet, configured, start_beside):
    await fleet.natty.ensure_stream(fleet.stream, allow_direct=True)
    path = await configured(ack_wait=2.0, partition="time", format="raw", compression="none")
    subject = fleet.stream.encode() + b".\xff\xfe"
    block = b"NATS/1.0\r\nNo-Colon\r\nNats-Subject: mine\r\nA:\xff\r\n\r\n"
    fleet.natty.connection.send(subject, b"\x00payload", headers=block)
    await publish(fleet, range(2, COUNT + 1))
    await reset(fleet, "capture", HELD)
    start_beside(path)
    await is_captured(fleet, path)
    objects = [file.read_bytes() for file in (fleet.store / "blocks").rglob("*") if file.is_file()]
    assert sum(data.count(subject + block) for data in objects) == 1


async def test_where_a_direct_get_does_not_say_a_subject_the_remedy_does(fleet, configured, monkeypatch):
    await fleet.natty.ensure_stream(fleet.stream, allow_direct=True)
    config = load(await configured(), environment={})
    fleet.natty.connection.send(fleet.stream.encode() + b".\xff", b"{}")
    await publish(fleet, [2])
    progress = await read_progress(fleet.natty, open_store(config.store), fleet.stream, config)
    read_message = fleet.natty.jetstream.read

    async def and_removed(stream, *, sequence):
        message = await read_message(stream, sequence=sequence)
        await remove(fleet, "delete", sequence)
        return message

    monkeypatch.setattr(fleet.natty.jetstream, "read", and_removed)
    reading = Reading(fleet.natty, config, progress, Sequences.from_range(1, 1), lambda: None)
    assert [len(batch) async for batch in reading] == [0]
    assert not reading.settled
    assert reading.trouble == (
        "message 1 has a subject that is not UTF-8, and a direct get does not say it: 404 Message Not Found"
    )


@pytest.mark.long
async def test_two_leaders_who_heal_at_once_store_each_message_once_for_readers(fleet, configured, start_beside):
    path = await configured()
    nodes = await forgotten(fleet, start_beside, path)
    await is_captured(fleet, path)
    progress = await read_progress(fleet.natty, nodes[0].node.store, fleet.stream, nodes[0].node.config)
    for _ in range(2):  # of leaders who don't know of each other, nor of the first one
        reading = Reading(fleet.natty, nodes[0].node.config, progress, Sequences.from_range(1, 5), lambda: None)
        await nodes[1].node._store_messages(reading, reading)
        assert reading.stored == Sequences.from_range(1, 5)
    stored = await rows(path)
    assert [len(stored[one]) for one in (1, 5, 6)] == [3, 3, 1]
    assert [one.sequence async for one in read(str(fleet.store))] == sorted(stored)


async def test_a_leader_whose_term_is_over_reads_and_stores_nothing_more(fleet, configured, start_beside):
    path = await configured()
    [first, _] = await forgotten(fleet, start_beside, path)
    progress = await read_progress(fleet.natty, first.node.store, fleet.stream, first.node.config)

    def over():
        raise LeadershipLost("the term is over")

    healer = Healer(
        fleet.natty,
        first.node.config,
        first.node._store_messages,
        check=over,
        held_since=lambda: asyncio.sleep(0, math.inf),
        elapsed=itertools.count(0, 1000).__next__,
    )
    before = await rows(path)
    await healer.tend(progress, Sequences.from_range(1, 5))
    with pytest.raises(LeadershipLost):
        await healer.tend(progress, Sequences.from_range(1, 5))
    assert before == await rows(path)
