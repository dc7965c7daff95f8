"""A template in a cluster of three: a server is killed while messages come in, and each is in its stream once."""

import asyncio

import pytest
from patient import PATIENCE, PATIENT
from template_streams import drained

from natty import Natty, NattyError
from natty.testing import NatsCluster

pytestmark = pytest.mark.long
DOUBT = 8.0  # seconds until a publisher gives up on an answer that died with the server


async def test_what_a_cluster_acknowledged_is_in_its_stream_once_when_the_intakes_leader_is_killed():
    acked, tried = set(), set()
    with NatsCluster(3) as cluster:
        async with Natty(**cluster.connect_options(), **PATIENT | {"timeout": DOUBT}) as natty:
            made = await natty.stream_templates().add("t", subject="t.*", stream="T_{1}")
            assert made.settings == {"num_replicas": 3}
            running = asyncio.create_task(natty.stream_templates().run())

            async def publish(first):
                for number in range(250):
                    tried.add(payload := f"{first}{number}".encode())
                    try:
                        await natty.publish(f"t.{first}{number // 50}", payload)
                    except NattyError:  # in doubt
                        continue
                    acked.add(payload)
                    await asyncio.sleep(0.004)

            publishing = [asyncio.create_task(publish(first)) for first in "abcd"]
            await asyncio.sleep(0.5)
            info = await natty.jetstream.request(f"STREAM.INFO.{made.intake}", timeout=PATIENCE)
            (leader,) = [server for server in cluster if server.name == info["cluster"]["leader"]]
            await asyncio.to_thread(leader.kill)
            await asyncio.to_thread(leader.start)
            async with asyncio.timeout(2 * PATIENCE):
                await asyncio.gather(*publishing)
            streams = await drained(natty, "t")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    stored = [payload for payloads in streams.values() for payload in payloads]
    assert len(stored) == len(set(stored))
    assert acked <= set(stored) <= tried
    assert len(acked) > len(tried) / 2
    assert sorted(streams) == [f"T_{first}{token}" for first in "abcd" for token in range(5)]
