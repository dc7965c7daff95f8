"""What the server counts as acknowledged and no node has stored is stored by the sweep's leader, from the stream."""

import asyncio
import base64
import itertools
import math

import pytest
from group_members import partitioned
from healing import (
    COUNT,
    HEALED,
    HELD,
    SHORT,
    check_rows,
    forgotten,
    is_captured,
    lose,
    passed,
    publish,
    published_state,
    remove,
    rows,
    stream_copy,
    stream_state,
)
from patient import NEVER, PATIENCE

from capture.archive.coverage import Coverage
from capture.archive.sequences import Sequences
from capture.config.load import load
from capture.node.heal import Healer, Reading
from capture.node.status.progress import read_progress
from capture.reading.read import read
from capture.stores import open_store
from capture.verification.check import check
from natty import LeadershipLostError


@pytest.mark.long
@pytest.mark.parametrize("how", ["purge", "rollup", "delete", "none"])
async def test_what_is_removed_between_delivery_and_storing_takes_no_other_message_with_it(fleet, configured, how):
    path = await lose(fleet, configured, how)
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


async def test_messages_that_a_purge_made_the_server_forget_are_stored_by_the_sweep(
    fleet, configured, start_beside, caplog
):
    path, nodes = await forgotten(fleet, configured, start_beside)
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
    path = await lose(fleet, configured, "rollup", ack_wait=NEVER)
    config = load(path, environment={})
    node = start_beside(path)
    await fleet.until(lambda one: one["num_pending"] == 0 and one["ack_floor"]["stream_seq"] >= COUNT)
    found = await check(fleet.natty, config, open_store(config.store))
    assert (found.status, len(found.verdict.awaited), len(found.verdict.missing)) == (1, HELD - 1, 0)
    assert "9 acknowledged messages are not stored yet (1–9), and nodes may hold them" in found.sentence()
    await node.stop()
    found = await check(fleet.natty, config, open_store(config.store))
    assert (found.status, len(found.verdict.awaited), len(found.verdict.missing)) == (3, 0, HELD - 1)
    assert "9 MISSING (1–9)" in found.sentence()
    assert found.advice == (
        "no node sweeps this archive: start one, it stores missing messages that the stream still has",
    )


async def test_encrypted_and_signed_archives_are_healed_like_others(fleet, configured, start_beside, tmp_path):
    keys, signing = tmp_path / "keys", tmp_path / "signing"
    keys.write_text(f"k1:{base64.b64encode(bytes(32)).decode()}\n")
    signing.write_text(f"s1:{base64.b64encode(bytes(range(32))).decode()}\n")
    for file in (keys, signing):
        file.chmod(0o600)
    settings = {"encrypt": True, "key_file": str(keys), "signing_key_file": str(signing), "format": "ndjson"}
    path, _ = await forgotten(fleet, configured, start_beside, "rollup", **settings)
    await is_captured(fleet, path)
    await check_rows(fleet, path, healed=set(range(1, HELD)))


async def test_a_work_queue_lets_go_of_healed_messages_and_of_stored_ones_that_it_has_forgotten(
    fleet, configured, start_beside, caplog
):
    await fleet.natty.jetstream.request(f"STREAM.DELETE.{fleet.stream}")
    await fleet.natty.ensure_stream(fleet.stream, subjects=[f"{fleet.stream}.*"], retention="workqueue")
    path = await lose(fleet, configured, stored=[1, 2])
    copy = await stream_copy(fleet)
    start_beside(path)
    await fleet.until(lambda one: one["num_pending"] == 0 and one["ack_floor"]["stream_seq"] >= COUNT)
    await fleet.natty.ensure_consumer(fleet.stream, "capture", ack_wait=SHORT, allow_destructive=True)
    async with asyncio.timeout(PATIENCE):
        while (await stream_state(fleet))["messages"]:
            await asyncio.sleep(0.05)
    found = await is_captured(fleet, path, gone={HELD})
    assert len(found.verdict.stored) == COUNT - 1
    assert {*found.verdict.unexplained} == {HELD}  # it was purged
    stored = await rows(path)
    assert {sequence for sequence, some in stored.items() if any(not times for times, _ in some)} == set(range(3, HELD))
    assert {sequence: content for sequence, [(_, content)] in stored.items()} == copy
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
@pytest.mark.parametrize("end", [b"\r\n\r\n", b""])
async def test_subjects_and_headers_that_are_no_text_are_healed_byte_for_byte(fleet, configured, start_beside, end):
    await fleet.natty.ensure_stream(fleet.stream, allow_direct=True)
    path = await configured(ack_wait=2.0, partition="time", format="raw", compression="none")
    subject = fleet.stream.encode() + b".\xff\xfe"
    block = b"NATS/1.0\r\nNo-Colon\r\nNats-Stream: mine\r\nNats-Subject: mine\r\nA:\xff" + end
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
        "message 1 has a subject that is not UTF-8, and a direct get does not return it: 404 Message Not Found"
    )


@pytest.mark.long
async def test_two_leaders_who_heal_at_once_store_each_message_once_for_readers(fleet, configured, start_beside):
    path, nodes = await forgotten(fleet, configured, start_beside)
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
    path, [first, _] = await forgotten(fleet, configured, start_beside)
    progress = await read_progress(fleet.natty, first.node.store, fleet.stream, first.node.config)

    def over():
        raise LeadershipLostError("the term is over")

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
    with pytest.raises(LeadershipLostError):
        await healer.tend(progress, Sequences.from_range(1, 5))
    assert before == await rows(path)


async def test_a_sweep_asks_for_the_deleted_sequences_of_a_stream_only_when_others_may_be_missing(
    fleet, configured, monkeypatch
):
    config = load(await configured(), environment={})
    request, listings = fleet.natty.jetstream.request, []

    async def noted(subject, body=None, **options):
        listings.extend([subject] if body and "deleted_details" in body else [])
        return await request(subject, body, **options)

    monkeypatch.setattr(fleet.natty.jetstream, "request", noted)
    healer = Healer(
        fleet.natty,
        config,
        None,
        check=lambda: None,
        held_since=lambda: asyncio.sleep(0, math.inf),
        elapsed=lambda: 0.0,
    )

    async def sweep(*held):
        progress = await read_progress(fleet.natty, open_store(config.store), fleet.stream, config)
        listings.clear()
        state = await healer.state(progress, Coverage(held=Sequences.from_iterable(held)))
        return state.gaps, state.awaited, len(listings)

    await publish(fleet, range(1, 7))
    await remove(fleet, "delete", 2)
    await remove(fleet, "delete", 3)
    await reset(fleet, "capture", 5)
    assert await sweep(1, 4) == (2, 0, 1)
    assert await sweep(1, 4) == (2, 0, 0)
    await remove(fleet, "delete", 4)
    await reset(fleet, "capture", 6)
    assert await sweep(1, 4, 5) == (2, 0, 0)
    assert await sweep(1, 4) == (3, 1, 1)
    assert await sweep(1, 4) == (3, 1, 0)
    await fleet.natty.delete_stream(fleet.stream)
    await fleet.natty.ensure_stream(fleet.stream, subjects=[f"{fleet.stream}.*"])
    wanted = config.consumer()
    await fleet.natty.ensure_consumer(fleet.stream, wanted.name, **wanted.settings())
    await publish(fleet, range(1, 7))
    await reset(fleet, "capture", 6)
    assert await sweep(1, 4, 5) == (2, 2, 0)
