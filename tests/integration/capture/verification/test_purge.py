"""`capture purge --captured` against real streams: what may go, and who holds it back."""

import pytest
from archiving import store_all, sweep_once
from patient import FILLING, PATIENCE

from capture.config.load import load
from capture.errors import PurgeRefusedError
from capture.stores import open_store
from capture.verification.check import check
from capture.verification.purge import Margin, plan_purge, purge, take_stock
from natty.config.units import parse_time


class World:
    """A stream and its archive."""

    def __init__(self, natty, stream, folder):
        self.natty, self.stream = natty, stream
        self.flags = {"stream": stream, "store": str(folder / stream)}

    async def make(self, messages=0, *, tokens=("eu",), **settings):
        await self.natty.ensure_stream(self.stream, subjects=[f"{self.stream}.*"], **settings)
        await self.publish(messages, tokens=tokens)

    async def publish(self, messages, tokens=("eu",)):
        async with self.natty.publisher(self.stream, **FILLING) as publisher:
            for number in range(messages):
                await publisher.publish(f"{self.stream}.{tokens[number % len(tokens)]}", b"payload")
            await publisher.flush()

    def only(self, *tokens):
        self.flags["filter_subjects"] = [f"{self.stream}.{token}" for token in tokens]

    @property
    def config(self):
        return load(None, self.flags, environment={})

    @property
    def store(self):
        return open_store(self.config.store)

    async def store_all(self, *, sweep=True, **options):
        await store_all(self.natty, self.config, self.store, **options)
        if sweep:
            await sweep_once(self.natty, self.config, self.store)

    async def stock(self, margin=None, *, now=0.0, **options):
        return await take_stock(self.natty, self.config, self.store, margin or Margin(), now=now, **options)

    async def plan(self, keep=0, **options):
        held = (await check(self.natty, self.config, self.store)).held
        return plan_purge(await self.stock(**options), held, keep)

    async def purge(self, plan):
        return await purge(self.natty, self.stream, plan.before, (await self.stock()).filters)

    async def held(self):
        """Return (sequence, subject's token) of every message that the stream holds."""
        info = await self.natty.jetstream.request(f"STREAM.INFO.{self.stream}")
        found = []
        for sequence in range(max(1, info["state"]["first_seq"]), info["state"]["last_seq"] + 1):
            message = await self.natty.jetstream.read(self.stream, sequence=sequence)
            if message is not None:
                found.append((sequence, message.subject.rpartition(".")[2]))
        return found


@pytest.fixture
def world(natty, natty_name, tmp_path):
    return World(natty, natty_name("purged"), tmp_path)


async def test_what_is_stored_and_adopted_goes_and_what_comes_meanwhile_stays(world):
    await world.make(20)
    await world.store_all()
    plan = await world.plan()
    assert (plan.before, plan.messages, plan.reason) == (21, 20, "no message has to be kept")
    await world.publish(3)  # after the plan, before the purge
    assert await world.purge(plan) == 20
    assert [sequence for sequence, _ in await world.held()] == [21, 22, 23]
    checked = await check(world.natty, world.config, world.store)
    assert (checked.status, len(checked.verdict.stored), checked.unacknowledged) == (0, 20, 3)


async def test_what_no_committed_manifest_names_is_not_proven(world):
    await world.make(5)
    await world.store_all(sweep=False)
    plan = await world.plan()
    assert (plan.before, plan.messages, plan.reason) == (1, 0, "sequence 1 is not proven to be stored")


async def test_it_ends_at_the_first_message_that_is_not_stored(world):
    await world.make(10)
    await world.store_all(leave_out={7})
    plan = await world.plan()
    assert (plan.before, plan.messages) == (7, 6)
    assert await world.purge(plan) == 6


async def test_a_damaged_object_is_no_proof(world):
    await world.make(4)
    await world.store_all()
    await world.publish(4)
    await world.store_all()
    [first] = [one.path for one in await world.store.list("blocks/") if "-1-4-4-" in one.path]
    data = await world.store.get(first)
    await world.store.put(first, data[:-1] + bytes([data[-1] ^ 1]), if_absent=False)
    assert (await world.plan()).messages == 0


async def test_csv_keeps_no_payloads_so_it_proves_nothing(world):
    world.flags |= {"format": "csv", "decoder": "message"}
    await world.make(3)
    await world.store_all()
    assert (await check(world.natty, world.config, world.store)).status == 0
    plan = await world.plan()
    assert plan.messages == 0
    assert plan.reason == "sequence 1 is only in a block that does not keep messages whole (csv)"


async def test_a_consumer_that_has_not_acknowledged_holds_it_back_by_name(world):
    await world.make(20)
    await world.store_all()
    await world.natty.ensure_consumer(world.stream, "billing", max_ack_pending=1000)
    pull = world.natty.pull(world.stream, "billing")
    async for batch in pull:
        pull.ack([reply for reply, one in zip(batch.replies, batch.sequences, strict=True) if one <= 7 or one == 9])
        if batch.sequences[-1] == 20:
            pull.stop()
    floor = f"CONSUMER.INFO.{world.stream}.billing"
    while (await world.natty.jetstream.request(floor))["ack_floor"]["stream_seq"] != 7:
        pass
    plan = await world.plan()
    assert plan.before == 8
    assert plan.reason == "consumer billing still needs messages after sequence 7"
    assert (await world.plan(ignore_others=True)).before == 21
    assert await world.purge(plan) == 7


@pytest.mark.parametrize(
    ("consumer", "before"),
    [
        ({}, 1),
        ({"deliver_policy": "new"}, 11),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 6}, 6),
        ({"filter_subjects": ["*.us"]}, 2),
        ({"filter_subjects": ["*.none"]}, 11),
        ({"ack_policy": "none"}, 1),
    ],
)
async def test_a_consumer_holds_back_what_it_may_still_want(world, consumer, before):
    await world.make(10, tokens=("eu", "us"))
    await world.store_all()
    await world.natty.ensure_consumer(world.stream, "other", **consumer)
    plan = await world.plan()
    assert plan.before <= before if "filter_subjects" in consumer else plan.before == before


async def test_a_mirror_and_a_stream_with_it_as_a_source_hold_it_back_until_they_have_all(world):
    await world.make(10)
    await world.store_all()
    mirror, joined = f"{world.stream}_m", f"{world.stream}_j"
    await world.natty.ensure_stream(mirror, mirror={"name": world.stream})
    await world.natty.ensure_stream(joined, sources=[{"name": world.stream}])
    for name in (mirror, joined):
        while (await world.natty.jetstream.request(f"STREAM.INFO.{name}"))["state"]["messages"] < 10:
            pass
    floors = (await world.stock()).floors
    assert set(floors) == {f"mirror {mirror}", f"stream {joined}, of which it is a source,"}
    assert floors[f"mirror {mirror}"] == 10
    for name in (mirror, joined):
        await world.natty.jetstream.request(f"STREAM.DELETE.{name}")


@pytest.mark.parametrize(("settings", "said"), [({"deny_purge": True}, "deny_purge"), ({"sealed": True}, "is sealed")])
async def test_a_stream_that_can_not_be_purged(world, settings, said):
    await world.make(2)
    await world.store_all()
    config = (await world.natty.jetstream.request(f"STREAM.INFO.{world.stream}"))["config"]
    await world.natty.jetstream.request(f"STREAM.UPDATE.{world.stream}", config | settings)
    with pytest.raises(PurgeRefusedError, match=said):
        await world.plan()


async def test_a_mirror_is_not_purged(world):
    await world.make(2)
    mirror = f"{world.stream}_m"
    await world.natty.ensure_stream(mirror, mirror={"name": world.stream})
    world.flags["stream"] = mirror
    with pytest.raises(PurgeRefusedError, match=f"is a mirror of {world.stream}: purge that stream instead"):
        await world.stock()


async def test_a_stream_that_was_made_again_is_not_purged(world):
    await world.make(3)
    await world.store_all()
    await world.natty.jetstream.request(f"STREAM.DELETE.{world.stream}")
    await world.make(3)
    with pytest.raises(PurgeRefusedError, match="it is another stream, and not archived"):
        await world.stock()


async def test_a_stream_of_which_the_archive_knows_nothing_is_not_purged(world):
    await world.make(3)
    with pytest.raises(PurgeRefusedError, match="holds no messages of stream"):
        await world.stock()


async def test_of_a_stream_that_is_captured_in_part_only_that_part_goes(world):
    world.only("eu", "asia")
    await world.make(12, tokens=("eu", "us", "asia"))
    await world.store_all()
    plan = await world.plan()
    assert (plan.before, plan.messages) == (13, 8)
    assert await world.purge(plan) == 8
    assert {token for _, token in await world.held()} == {"us"}


async def test_in_part_too_it_ends_at_the_first_message_that_is_not_stored(world):
    world.only("eu")
    await world.make(12, tokens=("eu", "us", "asia"))
    await world.store_all(leave_out={7})
    plan = await world.plan()
    assert (plan.before, plan.messages) == (7, 2)


async def test_subjects_other_than_the_captured_ones_are_refused(world):
    world.only("eu")
    await world.make(4, tokens=("eu", "us"))
    await world.store_all()
    world.only("us")
    with pytest.raises(PurgeRefusedError, match="make filter_subjects the same"):
        await world.stock()


async def test_a_work_queue_that_is_captured_in_part_is_refused_since_nobody_can_look(world):
    world.only("eu")
    await world.make(4, tokens=("eu", "us"), retention="workqueue")
    await world.store_all()
    with pytest.raises(PurgeRefusedError, match="is a work queue of which only"):
        await world.stock()


async def test_a_margin_keeps_the_newest_and_the_young(world):
    await world.make(10)
    await world.store_all()
    assert (await world.plan(keep=4)).before == 7
    message = await world.natty.jetstream.read(world.stream, sequence=6)
    since = parse_time(message.time) / 1e9
    plan = await world.plan(margin=Margin(seconds=PATIENCE), now=since + PATIENCE)
    assert plan.before in (6, 7)  # a float can't tell two nanoseconds apart
    assert (await world.plan(margin=Margin(seconds=1.0), now=since + PATIENCE)).before == 11
    assert (await world.plan(margin=Margin(seconds=PATIENCE), now=0.0)).before == 1
