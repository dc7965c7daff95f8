"""A count over archive and stream while nodes, leaders, servers and replicas are killed or stopped in turn."""

import asyncio
import random
from functools import partial

import pytest
from compacting import GRACE
from live_struck import VICTIMS, Struck
from patient import FILLING, PATIENCE, PATIENT
from two_tiers import TwoTiers

from capture.config.load import load
from natty import Natty

pytestmark = pytest.mark.long
SECONDS = 40.0


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
async def test_a_count_has_all_that_was_acknowledged_while_everything_is_killed(fleet, nats_server, retention):
    await fleet.natty.jetstream.request(f"STREAM.DELETE.{fleet.stream}")
    await fleet.create(allow_direct=True, retention=retention)
    path = fleet.configure(limits__max_age=0.3, sweep__every=0.2, sweep__grace=GRACE, spark__java="nowhere")
    config = load(path, environment={})
    async with Natty(**{**nats_server.connect_options(), **PATIENT, "timeout": 5.0}) as client:
        start = partial(fleet.start, config=path)
        struck = Struck(nats_server, fleet.natty, client, config, start, random.Random(7))
        tally = await struck.run(SECONDS)
    assert tally.wrong == []
    assert tally.answers > 5
    assert set(tally.kills) == set(VICTIMS)


async def test_a_follower_that_is_behind_costs_no_message(nats_cluster, natty_name):
    """It was stopped while the others went on, and answers direct gets at once when it runs again."""
    async with Natty(**{**nats_cluster.connect_options(), **PATIENT}) as client:
        tiers = await TwoTiers(client, natty_name("BEHIND")).create(num_replicas=3, allow_batched=True)
        leader = (await client.jetstream.request(f"STREAM.INFO.{tiers.stream}"))["cluster"]["leader"]
    here = next(one for one in nats_cluster if one.name == leader)
    async with Natty(**{**here.connect_options(), **PATIENT}) as client:  # connected to none that is paused
        tiers.natty, count = client, 0
        for number in range(6):
            behind = [one for one in nats_cluster if one is not here][number % 2]
            behind.pause()
            try:
                async with client.publisher(tiers.stream, **FILLING) as publisher:
                    for number in range(2000):
                        await publisher.publish(f"{tiers.stream}.{number % 3}", b"x" * 100)
            finally:
                behind.resume()
            count += 2000
            async with asyncio.timeout(PATIENCE):
                assert await tiers.ask() == [[count, count, count * (count + 1) // 2]]
