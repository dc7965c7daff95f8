"""A count over archive and stream while nodes, leaders, servers and replicas are killed or stopped in turn."""

import asyncio
import contextlib
import random
import time

import pytest
from compacting import GRACE, compacting
from patient import PATIENCE, PATIENT
from two_tiers import COUNTED, TwoTiers

from capture.archive.trust import NO_CHECKS
from capture.config.load import load
from capture.errors import CaptureError
from capture.reading import duck
from capture.reading.merge import make_look
from capture.reading.tail import list_places, take_snapshot
from capture.stores import open_store
from natty import Natty, NattyError

pytestmark = pytest.mark.long
SECONDS = 40.0


class Published:
    """Publishes without end, one message after the other; `acked` counts those that the stream has acknowledged."""

    def __init__(self, natty, stream):
        self.natty, self.stream = natty, stream
        self.begun = self.acked = 0
        self.stopping = False

    async def run(self):
        while not self.stopping:
            self.begun += 1
            subject, message_id = f"{self.stream}.{('eu', 'us', 'asia')[self.begun % 3]}", str(self.begun)
            while True:
                with contextlib.suppress(NattyError):
                    await self.natty.publish(subject, b'{"n": %d}' % self.begun, msg_id=message_id)
                    break
                await asyncio.sleep(0.05)
            self.acked += 1


async def ask(natty, config, gone):
    """Count over archive and stream, as `capture sql --live` does."""
    store = open_store(config.store)
    look = make_look(store, config.stream, natty=natty, archive=config.name)
    snapshot = await take_snapshot(await list_places(config, store, natty, NO_CHECKS), look, gone.append)
    tail = snapshot.read_tails(lambda _, lost: gone.append(lost))
    [[rows, distinct, _]] = (await duck.query(store, snapshot.objects, COUNTED, tail=tail)).rows
    assert rows == distinct
    return rows


async def count_until(published, deadline, answer):
    """Count again and again; return how often that succeeded. Every count has all that was acknowledged before."""
    before = counts = 0
    while time.monotonic() < deadline or not counts:
        acked = published.acked
        try:
            count = await answer()
        except (NattyError, CaptureError):  # a server that is down: a sentence, and no answer
            await asyncio.sleep(0.05)
            continue
        assert max(acked, before) <= count <= published.begun
        before, counts = count, counts + 1
    return counts


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
async def test_a_count_has_all_that_was_acknowledged_while_everything_is_killed(fleet, running, nats_server, retention):
    await fleet.natty.jetstream.request(f"STREAM.DELETE.{fleet.stream}")
    await fleet.create(allow_direct=True, retention=retention)
    path = fleet.configure(limits__max_age=0.3, sweep__every=0.2, sweep__grace=GRACE, spark__java="nowhere")
    config = load(path, environment={})
    nodes = {name: fleet.start(name, path) for name in ("one", "two")}
    await fleet.until(lambda state: state["num_waiting"])
    published, gone, dice, compacted = Published(fleet.natty, fleet.stream), [], random.Random(7), []
    publishing = running(published.run())
    running(compacting(fleet.natty, config, compacted))
    deadline = time.monotonic() + SECONDS

    async def strike():
        while time.monotonic() < deadline:
            await asyncio.sleep(dice.uniform(0.5, 2.0))
            if dice.random() < 0.3:
                nats_server.kill()
                await asyncio.to_thread(nats_server.start)
                continue
            name = dice.choice(sorted(nodes))
            nodes[name].kill()
            nodes[name] = fleet.start(name, path)

    striking = running(strike())
    async with Natty(**{**nats_server.connect_options(), **PATIENT, "timeout": 5.0}) as client:
        counts = await count_until(published, deadline, lambda: ask(client, config, gone))
        await striking
        published.stopping = True
        async with asyncio.timeout(PATIENCE):
            await publishing
        assert await ask(client, config, gone) == published.acked
    assert counts > 5
    assert gone == []


async def test_a_follower_that_is_behind_costs_no_message(nats_cluster, natty_name):
    """It was stopped while the others went on, and answers direct gets at once when it runs again."""
    async with Natty(**nats_cluster.connect_options()) as client:
        tiers = await TwoTiers(client, natty_name("BEHIND")).create(num_replicas=3, allow_batched=True)
        leader = (await client.jetstream.request(f"STREAM.INFO.{tiers.stream}"))["cluster"]["leader"]
    here = next(one for one in nats_cluster if one.name == leader)
    async with Natty(**{**here.connect_options(), **PATIENT}) as client:  # connected to none that is paused
        tiers.natty, count = client, 0
        for number in range(6):
            behind = [one for one in nats_cluster if one is not here][number % 2]
            behind.pause()
            try:
                async with client.publisher(tiers.stream) as publisher:
                    for number in range(2000):
                        await publisher.publish(f"{tiers.stream}.{number % 3}", b"x" * 100)
            finally:
                behind.resume()
            count += 2000
            async with asyncio.timeout(PATIENCE):
                assert await tiers.ask() == [[count, count, count * (count + 1) // 2]]
