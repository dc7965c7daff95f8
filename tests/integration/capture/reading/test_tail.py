"""One answer over archive and stream: which tier gives which message, and what happens meanwhile."""

import asyncio
import random

import pytest
from hostile import MALFORMED, publish_raw
from msgspec.structs import replace
from patient import PATIENCE, PATIENT
from two_tiers import TwoTiers

import capture
from capture.archive.encryption import Keys
from capture.archive.identity import stream_path
from capture.errors import CaptureError, KeyMissingError, ManifestError
from capture.formats import writer
from capture.reading import direct_get, duck, tail
from natty import Natty, NattyError, NotConnectedError, StreamNotFoundError
from natty.streams import info
from natty.testing import NatsServer, ServerOptions

KEYS = Keys({"k": bytes(32)})


@pytest.fixture
async def tiers(natty, natty_name):
    return await TwoTiers(natty, natty_name("TIERS")).create()


def counted(sequences):
    sequences = list(sequences)
    return [[len(sequences), len(sequences), sum(sequences)]]


async def test_each_message_is_in_the_answer_once_wherever_it_is(tiers):
    await tiers.publish(20)
    await tiers.keep([1, 2, 3, 4])
    await tiers.keep([3, 4, 7, 9], writer("ndjson", compression="zstd"))
    assert await tiers.ask() == counted(range(1, 21))
    for sequence in (2, 7, 15):  # two that the archive holds, and one that it does not
        await tiers.remove(sequence)
    assert await tiers.ask() == counted({*range(1, 21)} - {15})
    assert tiers.gone == tiers.absent == []


async def test_the_rows_of_both_tiers_have_the_same_columns_types_and_values(tiers):
    await tiers.publish(12)
    sql = "SELECT * EXCLUDE (deliveries) FROM messages ORDER BY sequence"
    live = await tiers.ask(sql, payload_schema="n INT")
    typed = await tiers.ask("DESCRIBE messages", payload_schema="n INT")
    await tiers.keep(range(1, 13))
    assert await tiers.ask(sql, payload_schema="n INT") == live
    assert await tiers.ask("DESCRIBE messages", payload_schema="n INT") == typed
    assert len(live) == 12


@pytest.mark.parametrize("config", [{}, {"allow_direct": False}, {"allow_direct": False, "retention": "workqueue"}])
async def test_any_stream_can_be_queried(natty, natty_name, config):
    tiers = await TwoTiers(natty, natty_name("ANY")).create(**config)
    assert await tiers.ask() == counted([])
    await tiers.publish(300)
    await tiers.keep(range(1, 300, 2))
    assert await tiers.ask() == counted(range(1, 301))
    await natty.jetstream.request(f"STREAM.PURGE.{tiers.stream}")
    assert await tiers.ask() == counted(range(1, 300, 2))
    info = await natty.jetstream.request(f"STREAM.INFO.{tiers.stream}")
    assert info["state"]["consumer_count"] == 0


@pytest.mark.parametrize("requested", [1, 8192])
async def test_headers_without_an_end_neither_stop_a_query_nor_forge_a_message(tiers, monkeypatch, requested):
    """Any publisher may send such headers. A direct get puts the server's own in the place of their last two bytes."""
    monkeypatch.setattr(direct_get, "REQUEST_MESSAGES", requested)
    forged = f"Nats-Stream: {tiers.stream}\r\nNats-Subject: {tiers.stream}.paid\r\nNats-Sequence: 2\r\n"
    forged += "Nats-Time-Stamp: 2001-01-01T00:00:00Z\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 1\r\nA: b"
    blocks = [b"", f"NATS/1.0\r\n{forged}".encode(), *MALFORMED, b"NATS/1.0\r\nA: b\r\n\r\n"]
    for block in blocks:
        await publish_raw(tiers.natty, tiers.stream.encode() + b".x", b"p", block)
    sql = "SELECT * EXCLUDE (deliveries) FROM messages ORDER BY sequence"
    live = await tiers.ask(sql)
    assert [row[3] for row in live] == [f"{tiers.stream}.x"] * len(blocks)
    assert [row[5] or "" for row in live] == [block.decode() for block in blocks]
    await tiers.publish(3)
    assert await tiers.ask() == counted(range(1, len(blocks) + 4))
    await tiers.keep(range(1, len(blocks) + 1))
    assert (await tiers.ask(sql))[: len(blocks)] == live


async def test_a_tail_that_exceeds_its_memory_is_kept_in_a_file(tiers, monkeypatch):
    monkeypatch.setattr(duck, "TAIL_BYTES", 1000)
    monkeypatch.setattr(direct_get, "REQUEST_MESSAGES", 7)
    await tiers.publish(100)
    await tiers.keep(range(10, 20))
    assert await tiers.ask() == counted(range(1, 101))


async def test_messages_that_leave_the_stream_during_the_query_come_from_the_archive(tiers):
    await tiers.publish(30)
    await tiers.keep(range(1, 6))
    snapshot = await tiers.snapshot()
    await tiers.publish(5)  # after the snapshot
    await tiers.keep([8, 9, 30])  # capture stores them, and something removes them from the stream
    for sequence in (8, 9, 30):
        await tiers.remove(sequence)
    await tiers.remove(20)  # and this one without capture
    assert await tiers.answer(snapshot) == counted({*range(1, 31)} - {20})
    assert tiers.gone == []  # nothing left the stream's front


async def test_messages_that_are_lost_during_the_query_are_reported(tiers):
    await tiers.publish(10)
    snapshot = await tiers.snapshot()
    await tiers.keep([2, 3])
    await tiers.natty.jetstream.request(f"STREAM.PURGE.{tiers.stream}", {"seq": 5})
    assert await tiers.answer(snapshot) == counted([2, 3, *range(5, 11)])
    assert tiers.gone == [[1, 4]]


async def test_what_capture_stores_after_the_stream_was_read_is_in_the_answer_once(tiers, monkeypatch):
    await tiers.publish(10)
    begin = tail._begin

    async def slow(captured):
        begun = await begin(captured)
        await tiers.publish(5)
        await tiers.keep([9, 10, 13])
        return begun

    monkeypatch.setattr(tail, "_begin", slow)
    assert await tiers.ask() == counted(range(1, 14))


async def test_what_leaves_the_stream_before_its_state_is_read_is_found_in_the_archive(tiers, monkeypatch):
    await tiers.publish(10)
    begin = tail._begin

    async def late(captured):
        await tiers.keep([1, 2, 3])
        await tiers.natty.jetstream.request(f"STREAM.PURGE.{tiers.stream}", {"seq": 4})
        return await begin(captured)

    monkeypatch.setattr(tail, "_begin", late)
    assert await tiers.ask() == counted(range(1, 11))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
async def test_the_split_between_the_tiers_equals_a_plain_model(natty, natty_name, monkeypatch, seed):
    """Blocks that overlap, deleted messages, a front that moved, requests of few messages, changes at any moment."""
    dice = random.Random(seed)
    monkeypatch.setattr(direct_get, "REQUEST_MESSAGES", dice.choice([3, 11, 8192]))
    monkeypatch.setattr(tail, "PIECE", dice.choice([5, 30, 8192]))
    monkeypatch.setattr(tail, "GAP", dice.choice([0, 2, 256]))
    tiers = await TwoTiers(natty, natty_name("MODEL")).create()
    published, there, archived = 0, set(), set()

    async def change():
        nonlocal published
        match dice.randrange(4):
            case 0:
                count = dice.randrange(1, 25)
                await tiers.publish(count)
                there.update(range(published + 1, published + count + 1))
                published += count
            case 1 if there:
                some = set(dice.sample(sorted(there), dice.randrange(1, min(12, len(there) + 1))))
                await tiers.keep(some)
                archived.update(some)
            case 2 if there:
                sequence = dice.choice(sorted(there))
                await tiers.remove(sequence)
                there.remove(sequence)
            case 3 if len(there) > 40:
                first = sorted(there)[dice.randrange(4)]
                await natty.jetstream.request(f"STREAM.PURGE.{tiers.stream}", {"seq": first})
                there.difference_update(range(first))

    for _ in range(12):
        for _ in range(dice.randrange(4)):
            await change()
        snapshot = await tiers.snapshot()
        before, last = there | archived, published
        for _ in range(dice.randrange(3)):
            await change()
        after = {one for one in there | archived if one <= last}
        [[rows, distinct, _]] = await tiers.answer(snapshot)
        found = {one for [one] in await tiers.answer(snapshot, "SELECT sequence FROM messages")}
        assert rows == distinct == len(found)
        assert before & after <= found <= before


async def test_a_stream_that_is_another_one_by_now_is_refused(tiers):
    await tiers.publish(5)
    await tiers.keep([1, 2])
    snapshot = await tiers.snapshot()
    await tiers.natty.jetstream.request(f"STREAM.DELETE.{tiers.stream}")
    await tiers.natty.create_stream(tiers.stream, subjects=[f"{tiers.stream}.>"], allow_direct=True)
    await tiers.publish(9)
    with pytest.raises(CaptureError, match="it is another stream, with other sequences than the archive's"):
        await tiers.answer(snapshot)
    with pytest.raises(CaptureError, match="it is another stream, with other sequences than the archive's"):
        await tiers.snapshot()


async def test_a_stream_that_is_deleted_during_the_query_is_said(tiers, monkeypatch):
    monkeypatch.setattr(direct_get, "DOUBT", 0.1)
    await tiers.publish(5)
    await tiers.keep([1, 2])
    snapshot = await tiers.snapshot()
    await tiers.natty.jetstream.request(f"STREAM.DELETE.{tiers.stream}")
    with pytest.raises(StreamNotFoundError, match=f"stream {tiers.stream} was deleted while it was read"):
        await tiers.answer(snapshot)


async def test_direct_gets_that_are_switched_off_during_the_query_cost_no_message(tiers, monkeypatch):
    monkeypatch.setattr(direct_get, "DOUBT", 0.1)
    await tiers.publish(9)
    await tiers.keep([1, 2])
    snapshot = await tiers.snapshot()
    await tiers.natty.ensure_stream(tiers.stream, allow_direct=False, allow_destructive=True)
    assert await tiers.answer(snapshot) == counted(range(1, 10))


async def test_messages_that_expire_during_the_query_are_the_archives_or_are_reported(natty, natty_name):
    tiers = await TwoTiers(natty, natty_name("EXPIRING")).create(allow_msg_ttl=True)
    for _ in range(4):
        await natty.publish(f"{tiers.stream}.0", b"short", ttl=1.0)
    await tiers.publish(3)
    held = await tiers.read({2, 3})
    snapshot = await tiers.snapshot()
    assert len(snapshot.tails[0].wanted) == 7
    async with asyncio.timeout(PATIENCE):
        while (await tiers.facts()).first < 5:
            await asyncio.sleep(0.05)
    await tiers.write(held)
    assert await tiers.answer(snapshot) == counted([2, 3, 5, 6, 7])
    assert tiers.gone == [[1, 4]]
    assert await tiers.ask() == counted([2, 3, 5, 6, 7])


async def test_a_stream_of_which_most_is_deleted_is_read_with_few_requests(natty, natty_name, monkeypatch):
    monkeypatch.setattr(tail, "PIECE", 2)
    tiers = await TwoTiers(natty, natty_name("SPARSE")).create(max_msgs_per_subject=1)
    await tiers.publish(100)
    await natty.publish(f"{tiers.stream}.old", b"")
    await tiers.publish(100)
    asked = []
    send = direct_get.DirectGet._send
    monkeypatch.setattr(direct_get.DirectGet, "_send", lambda self, at: asked.append(at) or send(self, at))
    assert await tiers.ask() == counted([101, 200, 201])
    assert len(asked) <= 4


async def test_an_archive_that_does_not_say_whose_it_is_can_not_be_queried_with_a_stream(tiers):
    await tiers.publish(5)
    await tiers.keep([1, 2])
    await tiers.store.delete(stream_path(tiers.stream))
    with pytest.raises(ManifestError, match="does not say which streams it holds: it has no records in _streams/"):
        await tiers.ask()


@pytest.mark.parametrize("denied", ["STREAM.INFO.S", "DIRECT.GET.S", "CONSUMER.INFO.S.capture", "CONSUMER.CREATE.>"])
async def test_an_account_that_may_not_read_gets_a_sentence(tmp_path, denied):
    users = """accounts {{ A {{ jetstream: enabled, users: [
        {{ user: all, password: all }},
        {{ user: few, password: few, permissions: {{ publish: {{ deny: ["$JS.API.{}"] }} }} }} ] }} }}"""
    with NatsServer(ServerOptions(tls=False, config=users.format(denied)), folder=tmp_path) as server:
        async with (
            Natty(server.url, user="all", password="all", **PATIENT) as natty,
            Natty(server.url, user="few", password="few", **PATIENT) as few,
        ):
            tiers = await TwoTiers(natty, "S").create(allow_direct="CONSUMER.CREATE" not in denied)
            await tiers.publish(5)
            await tiers.keep([1, 2])
            tiers.natty = few
            async with asyncio.timeout(PATIENCE):
                with pytest.raises((CaptureError, NattyError), match=r"(?i)permi"):
                    await tiers.ask()


async def test_a_server_that_does_not_come_back_during_the_query_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(direct_get, "GIVE_UP", 0.3)
    with NatsServer(folder=tmp_path) as server:
        async with Natty(**server.connect_options(), connect_timeout=PATIENCE, timeout=0.3) as natty:
            tiers = await TwoTiers(natty, "S").create()
            await tiers.publish(5)
            await tiers.keep([1, 2])
            snapshot = await tiers.snapshot()
            server.kill()
            with pytest.raises(CaptureError, match=r"no server answered a direct get of stream S for 0\.3 s: check"):
                await tiers.answer(snapshot)
            with pytest.raises(NotConnectedError):
                await tiers.snapshot()


async def test_a_stream_that_was_restored_to_an_earlier_state_is_refused(tiers, monkeypatch):
    await tiers.publish(5)
    held = await tiers.read({4, 5})
    held.sequences = [40, 50]
    await tiers.write(held)
    monkeypatch.setattr(info, "STALE_FOR", 0.5)
    with pytest.raises(CaptureError, match="up to 50, but the stream ends at 5: it was restored to an earlier state"):
        await tiers.snapshot()


async def test_the_archive_answers_for_a_stream_that_does_not_exist_any_more(tiers):
    await tiers.publish(5)
    await tiers.keep([1, 2, 4])
    await tiers.natty.jetstream.request(f"STREAM.DELETE.{tiers.stream}")
    assert await tiers.ask() == counted([1, 2, 4])
    assert tiers.absent == [tiers.stream]


async def test_an_encrypted_archive_needs_its_key(tiers):
    await tiers.publish(5)
    await tiers.keep([1, 2], writer("raw", keys=KEYS))
    with pytest.raises(KeyMissingError):
        await tiers.ask()
    assert await tiers.ask(keys=KEYS) == counted(range(1, 6))


async def test_a_replica_that_is_behind_its_leader_is_not_the_end(tiers, monkeypatch):
    """It answers without the newest messages, and then without any; the leader is asked before that is believed."""
    await tiers.publish(20)
    ask, behind = direct_get.DirectGet._ask, []

    async def lagging(self, position, sent=None):
        if len(behind) < 4:
            behind.append(position)
            if position > 12:
                return None
            answer = await ask(self, position, sent)
            mine = answer.messages.slice(0, 12 - position + 1)
            return answer._replace(messages=mine, last=12, pending=0)
        return await ask(self, position, sent)

    monkeypatch.setattr(direct_get.DirectGet, "_ask", lagging)
    async with asyncio.timeout(PATIENCE):
        assert await tiers.ask() == counted(range(1, 21))
    assert len(behind) == 4


async def test_read_live_gives_one_answer_and_ends(tiers, nats_server):
    await tiers.publish(30)
    await tiers.keep([*range(1, 11), 15, 16])
    await tiers.remove(5)
    for options in ({"natty": tiers.natty}, {"live": True, "natty": tiers.natty}):
        found = [one.sequence async for one in capture.read(tiers.store, **options)]
        assert found == list(range(1, 31))
    config = replace(tiers.config, nats={**nats_server.connect_options(), **PATIENT})
    assert [one.sequence async for one in capture.read(config, live=True)] == list(range(1, 31))
    with pytest.raises(capture.ConfigError, match="give one of them"):
        [one async for one in capture.read(tiers.store, live=True, follow=True, natty=tiers.natty)]
