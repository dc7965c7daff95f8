"""Watches and writes of buckets while servers die: all that was acknowledged is shown once, in order."""

import asyncio
import shutil
from contextlib import AsyncExitStack, suppress

import pytest
from kv_watching import kinds, watching
from patient import PATIENCE, PATIENT, until

from natty import JetStreamNotEnabledError, KeyExistsError, Natty, NattyError
from natty.errors import ConnectionClosedError
from natty.testing import NatsServer, ServerOptions

QUICK = {"heartbeat": 0.5}


@pytest.fixture
async def see():
    async with watching() as start:
        yield start


class Writer:
    """Writes one new key after the other, each until it is acknowledged."""

    def __init__(self, bucket):
        self.acked = {}
        self.stopping = False
        self._bucket = bucket
        self.task = asyncio.create_task(self._write())

    async def _write(self):
        number = 0
        while not self.stopping:
            key = f"k.{number:05}"
            with suppress(NattyError):
                try:
                    self.acked[key] = await self._bucket.create(key, key.encode())
                except KeyExistsError:  # an earlier try, whose answer was lost
                    self.acked[key] = (await self._bucket.get(key)).revision
                number += 1

    async def writes(self, more):
        """Return when so many more are acknowledged."""
        goal = len(self.acked) + more
        async with asyncio.timeout(2 * PATIENCE):
            while len(self.acked) < goal and not self.task.done():
                await asyncio.sleep(0.02)

    async def end(self):
        self.stopping = True
        await self.task
        return self.acked


async def proven(seen, writer):
    """See that the watch has shown all that was acknowledged, each revision once and in the order of the bucket."""
    acked = await writer.end()
    await seen.until(lambda seen: len(seen.keys) == len(acked))
    assert seen.keys == {key: key.encode() for key in acked}
    assert seen.revisions == sorted(acked.values())
    assert len(seen.pictures) == 1


@pytest.mark.parametrize("accident", ["kill", "stop"])
async def test_a_restarted_server_leaves_no_gap_and_nothing_twice(own_server, natty_name, see, accident):
    async with Natty(**own_server.connect_options(), **PATIENT) as natty:
        bucket = await natty.create_bucket(natty_name("kv"), history=10)
        seen = await see(bucket.watch(**QUICK)).complete()
        writer = Writer(bucket)
        try:
            await writer.writes(50)
            await asyncio.to_thread(getattr(own_server, accident))
        finally:
            await asyncio.to_thread(own_server.start)
        await writer.writes(50)
        await proven(seen, writer)


async def test_a_store_that_was_rolled_back_is_shown_anew(own_server, natty_name, see, tmp_path):
    """A backup is played back: sequences that were shown are given out a second time."""
    store = own_server.folder / "jetstream"
    async with Natty(**own_server.connect_options(), **PATIENT) as natty:
        bucket = await natty.create_bucket(natty_name("kv"))
        await bucket.put("a", b"old")
        await asyncio.to_thread(own_server.stop)
        await asyncio.to_thread(shutil.copytree, store, tmp_path / "backup")
        await asyncio.to_thread(own_server.start)
        seen = await see(bucket.watch(**QUICK)).complete()
        await tried(lambda: bucket.put("b", b"lost"))
        await tried(lambda: bucket.put("c", b"lost"))
        await seen.until(lambda seen: len(seen.keys) == 3)
        await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(shutil.rmtree, store)
        await asyncio.to_thread(shutil.copytree, tmp_path / "backup", store)
        await asyncio.to_thread(own_server.start)
        await tried(lambda: bucket.put("d", b"new"))
        await seen.until(lambda seen: seen.keys == {"a": b"old", "d": b"new"})


async def tried(work):
    """Read or write, again and again until it is done."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(NattyError):
                return await work()
            await asyncio.sleep(0.02)


async def test_a_cut_network_leaves_no_gap_and_tells_what_vanished(natty_proxy, natty, natty_name, see):
    bucket = await natty.create_bucket(natty_name("kv"))
    for key in ("stays", "vanishes", "is.deleted", "is.changed"):
        await bucket.put(key, b"old")
    async with Natty(**natty_proxy.options, **PATIENT) as far:
        seen = await see(far.watch(bucket.name, heartbeat=100)).complete()  # so the connection alone tells
        await natty_proxy.cut()
        await bucket.delete("is.deleted")
        await bucket.put("is.changed", b"new")
        await bucket.put("is.new", b"new")
        purged = {"filter": f"$KV.{bucket.name}.vanishes"}
        await natty.jetstream.request(f"STREAM.PURGE.{bucket.stream}", purged)  # leaves no marker
        await natty_proxy.restore()
        await seen.until(lambda seen: "vanishes" not in seen.keys and "is.new" in seen.keys)
        assert seen.keys == {"stays": b"old", "is.changed": b"new", "is.new": b"new"}
        assert sorted(kinds(seen.events[5:])) == [
            ("Entry", "is.changed", None),
            ("Entry", "is.new", None),
            ("Gone", "is.deleted", "deleted"),
            ("Gone", "vanishes", "vanished"),
        ]
        assert seen.revisions == list(range(1, 8))


async def test_a_bucket_remade_unseen_is_told_although_it_holds_more_than_before(natty_proxy, natty, natty_name, see):
    bucket = await natty.create_bucket(natty_name("kv"))
    await bucket.put("old", b"")
    async with Natty(**natty_proxy.options, **PATIENT) as far:
        seen = await see(far.watch(bucket.name)).complete()
        await natty_proxy.cut()
        await natty.delete_bucket(bucket.name)
        for number in range(5):
            await natty.put(bucket.name, f"new.{number}", b"", create_bucket=True)
        await natty_proxy.restore()
        await seen.complete(2)
        assert kinds(seen.events[2:3]) == [("Gone", "old", "bucket deleted")]
        assert list(seen.pictures[1]) == [f"new.{number}" for number in range(5)]


async def test_what_no_time_will_heal_is_raised_at_the_start(nats_server, natty_name, tmp_path):
    async with Natty(**nats_server.connect_options(), **PATIENT) as natty:
        bucket = await natty.create_bucket(natty_name("kv"))
    with pytest.raises(ConnectionClosedError):
        await anext(bucket.watch().__aiter__())
    with NatsServer(ServerOptions(tls=None, jetstream=False), folder=tmp_path) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            with pytest.raises(JetStreamNotEnabledError):
                await natty.keys("any")


async def test_who_may_not_ask_for_a_buckets_settings_writes_keys_with_a_ttl_all_the_same(natty_tls, tmp_path):
    users = """authorization { users: [
      {user: admin, password: x},
      {user: writer, password: x, permissions: {publish: {deny: ["$JS.API.STREAM.INFO.>"]}}}
    ] }"""
    with NatsServer(ServerOptions(authorization=users), folder=tmp_path, tls_files=natty_tls) as server:
        options = server.connect_options() | {"password": "x"} | PATIENT
        async with Natty(**options, user="admin") as admin, Natty(**options, user="writer") as writer:
            bucket = await admin.create_bucket("b", history=5)
            await writer.bucket("b").put("k", b"1", ttl=2)
            assert (await bucket.get("k")).ttl == 2.0


async def test_a_half_open_connection_is_left(natty_proxy, natty, natty_name, see):
    bucket = await natty.create_bucket(natty_name("kv"))
    async with Natty(**natty_proxy.options, **PATIENT | {"ping_interval": 0.7}) as far:
        seen = await see(far.watch(bucket.name, **QUICK)).complete()
        natty_proxy.half_open()
        await bucket.put("k", b"unseen")
        await until(lambda: not far.connection.connected)
        await natty_proxy.restore()
        await seen.until(lambda seen: "k" in seen.keys)


@pytest.mark.long
async def test_on_three_replicas_the_death_of_the_leader_loses_nothing(nats_cluster, natty_name, see):
    """The server that leads the bucket's stream is killed; watches through each server, writes and changes go on."""
    async with AsyncExitStack() as stack:
        options, urls = nats_cluster.connect_options() | PATIENT, nats_cluster.urls
        options["timeout"] = 1.5  # what is sent to a stream without a leader is never answered: it is tried again
        clients = [Natty(**options | {"servers": urls[i:] + urls[:i]}) for i in range(3)]
        far = [await stack.enter_async_context(client) for client in clients]
        names = natty_name("kv"), natty_name("counted")
        bucket, other = [await tried(lambda name=name: far[0].create_bucket(name)) for name in names]
        assert (await tried(bucket.status))["replicas"] == 3
        seen = [await see(natty.watch(bucket.name, **QUICK)).complete() for natty in far]
        writer = Writer(far[1].bucket(bucket.name))
        await writer.writes(20)
        name = await tried(lambda: leader_of(far[0], bucket))
        leader = next(server for server in nats_cluster if server.name == name)
        adders = [asyncio.create_task(add(natty.bucket(other.name), i)) for i, natty in enumerate(far)]
        try:
            await asyncio.to_thread(leader.kill)
            await writer.writes(20)
            for one in seen:
                await proven(one, writer)
            added = [word for words in await asyncio.gather(*adders) for word in words]
            assert sorted((await tried(lambda: other.get("words"))).value.split()) == sorted(added)
            assert await tried(other.keys) == ["words"]
            assert sorted(await tried(lambda: bucket.keys("k"))) == sorted(writer.acked)
        finally:
            await asyncio.to_thread(nats_cluster.start)


async def leader_of(natty, bucket):
    """Return the name of the server that leads a bucket's stream; NattyError while none does."""
    answer = await natty.jetstream.request(f"STREAM.INFO.{bucket.stream}")
    if not (name := answer.get("cluster", {}).get("leader")):
        raise NattyError("no leader")
    return name


async def add(bucket, who):
    """Add fifteen words to what others add to, each until it is known to be there; return them."""
    words = [b"%d.%d" % (who, number) for number in range(15)]
    for word in words:
        done = False
        while not done:
            with suppress(NattyError):  # in doubt: once more, and it is added at most once
                there = await bucket.modify(
                    "words", lambda old, word=word: old if word in (old or b"").split() else (old or b"") + b" " + word
                )
                done = word in there.value.split()
    return words
