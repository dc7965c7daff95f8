"""Elections on a bucket and a network that misbehave."""

import asyncio
import contextlib

import pytest

from natty import Natty
from natty.leader import clock

LEASE = 0.6  # seconds


async def until(condition, within=30.0):
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


class Holder:
    """A candidate on a connection of its own, that keeps what it can get."""

    def __init__(self, options, name, bucket, node, lease=LEASE):
        self.terms = []
        self._arguments = options, name, {"bucket": bucket, "lease": lease, "node_name": node}

    async def __aenter__(self):
        self.task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _run(self):
        connect, name, options = self._arguments
        async with Natty(**connect, ping_interval=0.5) as natty:
            self.election = natty.election(name, **options)
            await self.election.run(self._work)

    async def _work(self, term):
        self.terms.append(term)
        await asyncio.Event().wait()


@pytest.fixture
def place(natty_name):
    return natty_name("job"), natty_name("faults")


async def test_bytes_that_were_held_back_and_come_late_depose_nobody(nats_server, natty_proxy, natty, place):
    """The ancestor's blind renewal steals the office back here, every time."""
    name, bucket = place
    async with Holder(natty_proxy.options, name, bucket, "far") as far:
        await until(lambda: far.terms)
        natty_proxy.hold()
        async with Holder(nats_server.connect_options(), name, bucket, "near") as near:
            await until(lambda: near.terms)
            natty_proxy.release()
            with contextlib.suppress(TimeoutError):
                await until(lambda: len(near.terms) > 1, within=3 * LEASE)
            assert len(near.terms) == 1
            assert near.terms[0].remaining() > 0
            assert near.terms[0].token > far.terms[0].token


@pytest.mark.parametrize("fault", ["deleted", "purged"])
async def test_a_bucket_that_was_deleted_or_purged_goes_on_above_its_old_tokens(nats_server, natty, place, fault):
    name, bucket = place
    async with Holder(nats_server.connect_options(), name, bucket, "one") as one:
        await until(lambda: one.terms)
        if fault == "deleted":
            await natty.delete_bucket(bucket)
        else:
            await natty.jetstream.request(f"STREAM.PURGE.KV_{bucket}")
        await until(lambda: len(one.terms) == 2)
        assert one.terms[1].token > one.terms[0].token
        assert one.terms[0].lost.is_set()
        await one.terms[1].commit("head", b"1")
        config = (await natty.jetstream.request(f"STREAM.INFO.KV_{bucket}"))["config"]
        assert config["allow_atomic"]
        assert config["republish"]["dest"] == f"el.obs.{bucket}.>"


async def test_a_key_that_somebody_deleted_is_left_alone_for_a_lease(nats_server, natty, place):
    name, bucket = place
    async with Holder(nats_server.connect_options(), name, bucket, "one") as one:
        await until(lambda: one.terms)
        async with Holder(nats_server.connect_options(), name, bucket, "two", lease=LEASE) as two:
            await asyncio.sleep(0.3)
            deadline = one.terms[0]._tenure.deadline
            await natty.bucket(bucket).delete(name)
            await until(lambda: one.terms[0].lost.is_set())
            await until(lambda: len(one.terms) + len(two.terms) == 2)
            newest = max((*one.terms, *two.terms), key=lambda term: term.token)
            begun = newest._tenure.deadline - LEASE  # before its first write was sent, or later
            assert begun > deadline - LEASE


async def test_a_dead_leaders_key_is_collected_and_a_newcomer_need_not_wait(nats_server, natty_proxy, natty, place):
    name, bucket = place
    async with Holder(natty_proxy.options, name, bucket, "far") as far:
        await until(lambda: far.terms)
        natty_proxy.half_open()
        await until(lambda: far.terms[0].lost.is_set())
        gone = asyncio.Event()
        subscription = natty.connection.subscribe(
            f"el.obs.{bucket}.{name}", lambda raw: gone.set() if b"Nats-Marker-Reason: MaxAge" in raw[0][2] else None
        )
        async with asyncio.timeout(30):
            await gone.wait()
        subscription.close()
        async with Holder(nats_server.connect_options(), name, bucket, "near", lease=60.0) as near:
            await until(lambda: near.terms)
        await natty_proxy.restore()


async def test_a_newcomer_keeps_the_distance_of_a_lease_from_a_key_that_vanished(
    nats_server, natty_proxy, natty, place
):
    """Nothing is there, though there have been terms: the holder may not know it yet."""
    name, bucket = place
    async with Holder(natty_proxy.options, name, bucket, "far") as far:
        await until(lambda: far.terms)
        natty_proxy.half_open()
        await natty.jetstream.request(f"STREAM.PURGE.KV_{bucket}", {"filter": f"$KV.{bucket}.{name}"})
        began = clock()
        async with Holder(nats_server.connect_options(), name, bucket, "near") as near:
            await until(lambda: near.terms)
            assert clock() - began > LEASE
        await natty_proxy.restore()
