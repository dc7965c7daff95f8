"""Elections on a bucket and a network that misbehave."""

import asyncio
import contextlib

import msgspec
import pytest
from electing import LONG, Work, committed, vacated
from patient import PATIENCE, PATIENT, until

from natty import Natty
from natty.elections import clock
from natty.elections.actions import Mark
from natty.elections.record import hinted_revision, sight_of

pytestmark = pytest.mark.usefixtures("released_without_hurry")

LEASE = 0.6  # seconds: of those whose end others wait for; a stall may end it, too


class Holder(Work):
    """A candidate on a connection of its own, that keeps what it can get."""

    def __init__(self, options, name, bucket, node, lease=LEASE, **more):
        super().__init__()
        self._arguments = options, name, {"bucket": bucket, "lease": lease, "node_name": node} | more

    async def __aenter__(self):
        self.task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _run(self):
        connect, name, options = self._arguments
        async with Natty(**connect, **PATIENT) as natty:
            await natty.election(name, **options).run(self)


@pytest.fixture
async def place(natty, natty_name):
    bucket = natty_name("faults")
    return await vacated(natty, natty_name("job"), bucket), bucket


async def test_bytes_that_were_held_back_and_come_late_depose_nobody(nats_server, natty_proxy, natty, place):
    """The ancestor's blind renewal steals the office back here, every time."""
    name, bucket = place
    writers = []  # of the lease, as the server hears them: accepted or not

    def heard(batch):
        writers.extend(msgspec.json.decode(data)["id"] for data in batch.payloads)

    natty.connection.subscribe(f"$KV.{bucket}.{name}", heard)
    async with Holder(natty_proxy.options, name, bucket, "far") as far:
        while "far" not in writers:  # again, if a stall has kept it from writing anything that could come late
            await until(lambda: far.in_office)
            natty_proxy.hold()
            async with Holder(nats_server.connect_options(), name, bucket, "near", lease=LONG) as near:
                await until(lambda near=near: near.terms)
                writers.clear()
                natty_proxy.release()
                with contextlib.suppress(TimeoutError):
                    await until(lambda: "far" in writers, within=5.0)
                await near.terms[0].commit("head", b"1")  # the server has decided on what came before
                assert await natty.get_leader(name, bucket=bucket) == "near"
                assert (len(near.terms), near.left) == (1, [])
                assert near.terms[0].token > far.terms[-1].token


@pytest.mark.parametrize("fault", ["deleted", "purged"])
async def test_a_bucket_that_was_deleted_or_purged_goes_on_above_its_old_tokens(nats_server, natty, place, fault):
    name, bucket = place
    async with Holder(nats_server.connect_options(), name, bucket, "one") as one:
        await until(lambda: one.terms)
        old = one.terms[-1]
        if fault == "deleted":
            await natty.delete_bucket(bucket)
        else:
            await natty.jetstream.request(f"STREAM.PURGE.KV_{bucket}")
        new = await committed(one.terms, "head", b"1")
        assert new.token > old.token
        assert old.lost.is_set()
        tokens = [term.token for term in one.terms]
        assert tokens == sorted(set(tokens))
        config = (await natty.jetstream.request(f"STREAM.INFO.KV_{bucket}"))["config"]
        assert config["allow_atomic"]
        assert config["republish"]["dest"] == f"el.obs.{bucket}.>"


async def test_a_key_that_somebody_deleted_is_left_alone_for_a_lease(nats_server, natty, place):
    name, bucket = place
    seen = []
    async with Holder(nats_server.connect_options(), name, bucket, "one") as one:
        await until(lambda: one.terms)
        async with Holder(nats_server.connect_options(), name, bucket, "two", on_new_leader=seen.append) as two:
            await until(lambda: seen or two.terms)
            before = clock()
            gone = await natty.jetstream.publish(f"$KV.{bucket}.{name}", b"", headers={"KV-Operation": "DEL"})
            await until(lambda: one.begun_under(gone.seq) or two.begun_under(gone.seq))
            begun = [at for at in (one.begun_under(gone.seq), two.begun_under(gone.seq)) if at]
            assert min(begun) - before > LEASE


async def test_a_dead_leaders_key_is_collected_and_a_newcomer_need_not_wait(nats_server, natty_proxy, natty, place):
    name, bucket = place

    async def collected():
        last = await natty.jetstream.read(f"KV_{bucket}", subject=f"$KV.{bucket}.{name}")
        return last.headers.get("Nats-Marker-Reason") == ["MaxAge"]

    async with Holder(natty_proxy.options, name, bucket, "far") as far:
        await until(lambda: far.terms)
        natty_proxy.half_open()
        await until(lambda: far.terms[-1].lost.is_set())
        async with asyncio.timeout(PATIENCE):
            while not await collected():
                await asyncio.sleep(0.05)
        async with Holder(nats_server.connect_options(), name, bucket, "near", lease=LONG) as near:
            await until(lambda: near.terms)
        await natty_proxy.restore()


@pytest.mark.parametrize("fault", ["key", "purged", "deleted"])
async def test_a_newcomer_keeps_the_distance_of_a_lease_from_what_is_not_there(
    nats_server, natty_proxy, natty, place, fault
):
    """Somebody may lead, and not know yet that key or bucket are gone; the newcomer can't know that they were there.

    It marks the key first: what it then writes is conditional on the marker.
    """
    name, bucket = place
    stored = []
    natty.connection.subscribe(f"el.obs.{bucket}.{name}", lambda batch: stored.extend(batch.raw))
    async with Holder(natty_proxy.options, name, bucket, "far") as far:
        await until(lambda: far.terms)
        natty_proxy.half_open()
        if fault == "deleted":
            await natty.delete_bucket(bucket)
        else:
            what = {"filter": f"$KV.{bucket}.{name}"} if fault == "key" else None
            await natty.jetstream.request(f"STREAM.PURGE.KV_{bucket}", what)
        stored.clear()
        began = clock()
        async with Holder(nats_server.connect_options(), name, bucket, "near") as near:
            await until(lambda: near.terms)
            assert near.begun_at[0] - began > LEASE
            await until(lambda: len(stored) > 1)
            marker, lease = (sight_of(hinted_revision(raw), raw[2], raw[3]) for raw in stored[:2])
            assert (marker.kind, marker.damage, lease.lease.id) == ("deleted", "", "near")
            assert b"KV-Operation: DEL\r\n" in stored[0][2]
            assert marker.revision < lease.revision < near.terms[0].token
        await natty_proxy.restore()


async def test_a_marker_replaces_no_lease(natty, place):
    """A read may have been stale: then somebody leads where a candidate saw nothing."""
    name, bucket = place
    election = natty.election(name, bucket=bucket, lease=LONG)
    async with election as term:
        driver, failures = election.driver, election.driver.failures
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(driver._mark(Mark(5.0)), driver._loop))
        assert driver.failures == failures + 1
        assert await natty.get_leader(name, bucket=bucket) == election.node
        await term.commit("head", b"1")
