import asyncio
import random
import time
from contextlib import aclosing
from dataclasses import replace

import pytest
from kv_watching import kinds, watching
from patient import NEVER, PATIENCE, PATIENT, until

from natty import Batch, BucketNotFoundError, Natty
from natty.kv import BadKeyError, Entry, Gone, PictureComplete

QUICK = {"heartbeat": 0.5}


@pytest.fixture
async def bucket(natty, natty_name):
    return await natty.create_bucket(natty_name("watched"))


@pytest.fixture
async def see():
    async with watching() as start:
        yield start


async def test_a_picture_comes_first_then_a_mark_then_every_write(bucket, see):
    for i in range(3):
        await bucket.put(f"k.{i}", b"%d" % i)
    await bucket.put("k.0", b"new")
    await bucket.put("was", b"")
    await bucket.delete("was")
    seen = await see(bucket.watch()).complete()
    assert seen.pictures == [{"k.0": b"new", "k.1": b"1", "k.2": b"2"}]
    assert seen.events[-1] == PictureComplete(3)
    revision = await bucket.put("k.1", b"later")
    await bucket.delete("k.0")
    await bucket.purge("k.2")
    await seen.until(lambda seen: len(seen.events) == 7)
    assert seen.events[4] == Entry("k.1", b"later", revision)
    assert seen.events[5:] == [Gone("k.0", revision + 1, "deleted"), Gone("k.2", revision + 2, "purged")]
    assert abs(seen.events[4].time_ns / 1e9 - time.time()) < PATIENCE


async def test_an_empty_bucket_is_complete_at_once(bucket, see):
    seen = await see(bucket.watch()).complete()
    assert seen.events == [PictureComplete(0)]


async def test_only_what_matches_is_shown(bucket, see):
    for key in ("a", "a.1", "a.2.x", "b.1"):
        await bucket.put(key, b"")
    watches = {
        name: see(bucket.watch(*name.split())) for name in ("a", "a.*", "a.>", "*.1", "a b.1", ">", "nothing.here")
    }
    for seen in watches.values():
        await seen.complete()
    assert {name: sorted(seen.keys) for name, seen in watches.items()} == {
        "a": ["a"],
        "a.*": ["a.1"],
        "a.>": ["a.1", "a.2.x"],
        "*.1": ["a.1", "b.1"],
        "a b.1": ["a", "b.1"],
        ">": ["a", "a.1", "a.2.x", "b.1"],
        "nothing.here": [],
    }
    await bucket.put("a.3", b"")
    for name in ("a.*", "a.>", ">"):
        await watches[name].until(lambda seen: "a.3" in seen.keys)
    assert "a.3" not in watches["a"].keys


BAD_NAMES = [
    b"\xff",
    b"a.\xc3",
    b"b\x1b]0;owned\x07",
    b"a.\x7f",
    b"\xed\xa0\x80",
    b"*",
    b">",
    b"a.*",
    "a.\u03b2".encode(),
]


async def test_names_that_are_no_key_s_are_skipped_and_logged_once_and_all_other_keys_shown(natty, bucket, see, caplog):
    before = await see(bucket.watch()).complete()
    for number, name in enumerate([b"a.b", b"first", *BAD_NAMES, b"last"]):
        natty.connection.send(f"$KV.{bucket.name}.".encode() + name, b"%d" % number)
    await natty.connection.flush(PATIENCE)
    keys = ["a.b", "first", "last"]
    await before.until(lambda seen: "last" in seen.keys)
    after = await see(bucket.watch()).complete()
    full = await see(bucket.watch(history=True)).complete()
    assert [sorted(seen.keys) for seen in (before, after, full)] == [keys, keys, keys]
    assert after.events[-1] == PictureComplete(3)
    for _ in range(2):
        assert await bucket.keys() == keys
    assert await bucket.keys("a") == keys[:1]
    await bucket.put("last", b"again")
    await after.until(lambda seen: seen.keys["last"] == b"again")
    told = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "bad_key"]
    assert len(told) == len(BAD_NAMES)
    assert f"bucket {bucket.name} has an entry under b'\\xff'" in told[0]


async def test_a_watch_that_was_interrupted_keeps_out_of_its_picture_what_is_not_a_key(natty_proxy, bucket, see):
    async with Natty(**natty_proxy.options, **PATIENT) as natty:
        natty.connection.send(f"$KV.{bucket.name}.".encode() + b"\xff", b"odd")
        natty.connection.send(f"$KV.{bucket.name}.".encode() + b"\x01", b"odd")
        await natty.connection.flush(PATIENCE)
        await bucket.put("k", b"1")
        seen = await see(natty.bucket(bucket.name).watch()).complete()
        await natty_proxy.cut()
        await bucket.put("k", b"2")
        await natty_proxy.restore()
        await seen.until(lambda seen: seen.keys["k"] == b"2")
        assert kinds(seen.events) == [("Entry", "k", None), ("PictureComplete", None, None), ("Entry", "k", None)]


async def test_an_expired_key_is_told(bucket, see):
    await bucket.put("k", b"")
    seen = await see(bucket.watch()).complete()
    assert list(seen.keys) == ["k"]
    await bucket.put("k", b"", ttl=1)
    await seen.until(lambda seen: not seen.keys)
    assert kinds(seen.events[-1:]) == [("Gone", "k", "expired")]


async def test_options_leave_out_what_is_not_wanted(natty, natty_name, see):
    bucket = await natty.create_bucket(natty_name("watched"), history=5)
    for value in (b"1", b"2"):
        await bucket.put("k", value)
    await bucket.delete("gone")
    plain, whole, updates, puts, names = (
        see(bucket.watch(**options))
        for options in (
            {},
            {"history": True},
            {"updates_only": True},
            {"ignore_deletes": True},
            {"values": False},
        )
    )
    for seen in (plain, whole, updates, puts, names):
        await seen.complete()
    await bucket.put("k", b"3")
    await bucket.delete("k")
    await bucket.put("end", b"")
    for seen in (plain, whole, updates, puts, names):
        await seen.until(lambda seen: "end" in seen.keys)

    def shown(seen):
        return [event.value if isinstance(event, Entry) else type(event) for event in seen.events]

    assert shown(plain) == [b"2", PictureComplete, b"3", Gone, b""]
    assert shown(whole) == [b"1", b"2", Gone, PictureComplete, b"3", Gone, b""]
    assert shown(updates) == [PictureComplete, b"3", Gone, b""]
    assert shown(puts) == [b"2", PictureComplete, b"3", b""]
    assert shown(names) == [b"", PictureComplete, b"", Gone, b""]
    assert not names.events[0].has_value
    assert plain.events[0].has_value
    with pytest.raises(ValueError, match="contradict"):
        bucket.watch(history=True, updates_only=True)


async def test_a_missing_bucket_and_a_bad_filter_are_told(natty, bucket, natty_name):
    missing = natty_name("nowhere")
    with pytest.raises(BucketNotFoundError, match=f"there is no bucket {missing}"):
        async with asyncio.timeout(PATIENCE):
            await anext(natty.watch(missing).__aiter__())
    for bad in ("", "a..b", "a.>.b", "a b", ".a", "a*"):
        with pytest.raises(BadKeyError, match="is not a filter of keys"):
            bucket.watch(bad)


async def test_the_picture_is_complete_although_everything_is_being_overwritten(natty, bucket, see):
    """nats-py says that it is complete at 1985 keys of 2000: the consumer skips those that are written meanwhile."""
    keys = [f"k.{i}" for i in range(2000)]
    await asyncio.gather(*(bucket.put(key, b"old") for key in keys))
    writing = True

    async def write():
        while writing:
            some = random.sample(keys, 50)
            await asyncio.gather(*(bucket.put(key, b"new") for key in [*some, "k.0"]))

    writers = [asyncio.create_task(write()) for _ in range(2)]
    for _ in range(4):
        seen = await see(bucket.watch(max_messages=200)).complete()
        assert len(seen.pictures[0]) == 2000
        seen.watch.stop()
    writing = False
    await asyncio.gather(*writers)


async def test_a_key_that_the_consumer_skipped_is_read_from_the_leader(bucket, see):
    """The same, forced: a key is written again after the watch began and before the consumer came to it."""
    for key in ("a", "b", "c"):
        await bucket.put(key, b"old")
    watch = bucket.watch(max_messages=1)
    events, shown = watch.__aiter__(), []
    shown.append(await anext(events))
    newest = await bucket.put("b", b"new")
    async with aclosing(events):
        async for event in events:
            shown.append(event)
            if isinstance(event, PictureComplete):
                break
        assert [(event.key, event.value) for event in shown[:-1]] == [("a", b"old"), ("c", b"old"), ("b", b"new")]
        assert shown[-2].revision == newest
        last = await bucket.put("d", b"live")
        assert (await anext(events)).revision == last  # what was read ahead is not shown again


async def test_a_key_that_goes_while_the_picture_is_made_is_taken_back(bucket):
    for key in ("a", "b", "c"):
        await bucket.put(key, b"")
    watch, shown = bucket.watch(max_messages=1), []
    async with aclosing(watch.__aiter__()) as events:
        async for event in events:
            shown.append(event)
            if len(shown) == 1:
                await bucket.delete("a")
                watch._reader._target = 4  # the picture is to reach as far as the marker
            if isinstance(event, PictureComplete):
                break
    assert kinds(shown) == [
        ("Entry", "a", None),
        ("Entry", "b", None),
        ("Entry", "c", None),
        ("Gone", "a", "deleted"),
        ("PictureComplete", None, None),
    ]
    assert shown[-1].keys == 2


async def test_an_answer_that_knows_less_than_was_shown_is_not_believed(bucket, see):
    """A leader that was deposed a moment ago doesn't know the last keys: they have not vanished."""
    await bucket.put("k", b"")
    watch, answers = bucket.watch(), [(set(), 0)]
    existing = watch._list_existing

    async def stale_at_first():
        return answers.pop() if answers else await existing()

    watch._list_existing = stale_at_first
    seen = await see(watch).complete()
    assert seen.events == [Entry("k", b"", 1), PictureComplete(1)]
    assert not answers


async def test_a_slow_reader_holds_little_and_misses_no_last_value(bucket):
    watch = bucket.watch(max_messages=10)
    events = watch.__aiter__()
    assert await anext(events) == PictureComplete(0)
    for i in range(300):
        await bucket.put(f"k.{i % 30}", b"%d" % i)
    assert sum(map(len, watch._reader._arrived)) <= 10
    keys = {}
    async with asyncio.timeout(PATIENCE), aclosing(events):
        async for event in events:
            assert sum(map(len, watch._reader._arrived)) <= 10
            keys[event.key] = event.value
            if event.value == b"299":
                break
    assert keys == {f"k.{i % 30}": b"%d" % i for i in range(270, 300)}


async def test_a_value_larger_than_a_request_may_bring_arrives(bucket, see):
    seen = await see(bucket.watch(max_bytes=1000)).complete()
    await bucket.put("k", b"x" * 100_000)
    await seen.until(lambda seen: "k" in seen.keys)
    assert len(seen.keys["k"]) == 100_000


async def test_a_deleted_and_remade_bucket_is_told_and_shown_anew(natty, natty_name, see):
    """nats-py misses all that is written until the new sequences have passed the old ones."""
    name = natty_name("watched")
    for i in range(20):
        await natty.put(name, f"k.{i % 5}", b"old", create_bucket=True)
    seen = await see(natty.watch(name)).complete()
    await natty.delete_bucket(name)
    await natty.put(name, "k.1", b"new", create_bucket=True)
    await natty.put(name, "other", b"new")
    await seen.complete(2)
    told = kinds(seen.events[6:])
    assert sorted(told[:5]) == sorted(("Gone", f"k.{i}", "bucket deleted") for i in range(5))
    await seen.until(lambda seen: seen.keys == {"k.1": b"new", "other": b"new"})
    await natty.put(name, "k.1", b"newer")
    await seen.until(lambda seen: seen.keys.get("k.1") == b"newer")
    assert [event.revision for event in seen.events[11:] if isinstance(event, Entry)] == [1, 2, 3]
    assert len(seen.pictures) == 2


async def test_a_deleted_bucket_is_told_before_there_is_another(natty, bucket, see):
    await bucket.put("k", b"")
    seen = await see(bucket.watch(updates_only=True)).complete()
    await bucket.put("l", b"")
    await seen.until(lambda seen: "l" in seen.keys)
    await natty.delete_bucket(bucket.name)
    await seen.until(lambda seen: len(seen.events) == 3)
    assert kinds(seen.events[2:]) == [("Gone", "l", "bucket deleted")]
    await natty.create_bucket(bucket.name)
    await natty.put(bucket.name, "m", b"")
    await seen.until(lambda seen: "m" in seen.keys)
    assert not seen.task.done()


async def test_a_lost_consumer_is_replaced_without_a_gap(natty, bucket, see):
    seen = await see(natty.watch(bucket.name, "k")).complete()
    for i in range(10):
        await bucket.put("k", b"%d" % i)
        await seen.until(lambda seen, i=i: seen.keys.get("k") == b"%d" % i)
        if i % 3 == 0:
            await natty.jetstream.request(f"CONSUMER.DELETE.{bucket.stream}.{seen.watch._reader._session.consumer}")
    assert seen.revisions == list(range(1, 11))


async def test_a_message_lost_on_the_way_is_noticed(bucket, see):
    """What no connection loses for itself: a message is taken out before the watch sees it."""
    seen = await see(bucket.watch(**QUICK)).complete()
    reader, real = seen.watch._reader, seen.watch._reader._receive
    lost = []

    def lose_one(session, batch):
        kept = [raw for raw in batch.raw if not (raw[3] == b"lost" and not lost and not lost.append(raw))]
        real(session, Batch(kept))

    reader._receive = lose_one
    await bucket.put("a", b"1")
    await bucket.put("b", b"lost")
    await bucket.put("c", b"3")
    await seen.until(lambda seen: len(seen.keys) == 3)
    await bucket.put("d", b"4")
    await seen.until(lambda seen: "d" in seen.keys)
    assert len(lost) == 1
    assert seen.revisions == [1, 2, 3, 4]
    lost.clear()
    await bucket.put("e", b"lost")  # the last one for now: only a heartbeat tells
    await seen.until(lambda seen: "e" in seen.keys)
    assert seen.revisions == [1, 2, 3, 4, 5]


async def test_a_stopped_or_broken_watch_leaves_nothing_behind(natty, bucket, see):
    before = len(natty.connection._subscriptions)
    watch = bucket.watch()
    async with aclosing(watch.__aiter__()) as events:
        await anext(events)
    seen = await see(bucket.watch()).complete()
    seen.watch.stop()
    await seen.task
    await bucket.keys()
    assert natty.connection.listeners == []
    assert len(natty.connection._subscriptions) == before
    async with asyncio.timeout(PATIENCE):
        while (await natty.jetstream.request(f"CONSUMER.NAMES.{bucket.stream}"))["total"]:
            await asyncio.sleep(0.02)


async def test_a_watch_ends_with_the_connection(nats_server, natty_name, see):
    """nats-py's hangs for ever."""
    async with Natty(**nats_server.connect_options(), **PATIENT) as natty:
        bucket = await natty.create_bucket(natty_name("watched"))
        seen = await see(bucket.watch()).complete()
    async with asyncio.timeout(PATIENCE):
        await seen.task


async def test_an_idle_watch_costs_next_to_nothing(bucket, see):
    watch = bucket.watch(**QUICK)
    reader, looks, ask = watch._reader, [], watch._reader._ask

    def asked_and_unhurried(session):
        looks.append(session)
        ask(session)
        reader.options = replace(
            reader.options, heartbeat=NEVER, expires=2 * NEVER
        )  # the server was told half a second

    reader._ask = asked_and_unhurried
    await see(watch).complete()
    looks.clear()
    for _ in range(3):
        heard = reader._heard
        await until(lambda heard=heard: reader._heard > heard)  # a heartbeat, which counts as a sign of life
    assert len(looks) < 10
    assert not reader._session.lost
