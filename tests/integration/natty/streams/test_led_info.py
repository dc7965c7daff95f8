"""A stream's state is what its leader says: followers and replaced leaders answer STREAM.INFO, and may be behind."""

import asyncio
import json

import pytest
from consuming import until
from patient import FILLING, PATIENCE, PATIENT

from capture.errors import CaptureError
from capture.reading.live import check_unchanged
from capture.reading.stream_range import StreamFacts
from natty import JetStreamError, Natty
from natty.streams import info, led_info, stream_state
from natty.testing import NatsCluster

FOLLOWER = {"created": "now", "cluster": {"name": "c", "replicas": []}, "state": {"first_seq": 1, "last_seq": 3}}
REPLACED = FOLLOWER | {"cluster": {"name": "c", "leader": "a"}}
LEADER = REPLACED | {"state": {"first_seq": 1, "last_seq": 9}}
FACTS = StreamFacts("S", "now", 1, 9, direct=True)


class Answers:
    """A responder in the place of JetStream's API: it gives one answer until `then` is set."""

    def __init__(self, first):
        self.first, self.then, self.asked = first, None, 0

    def reply(self, natty, batch):
        for _, reply, _, _ in batch.raw:
            self.asked += 1
            natty.connection.send(reply.decode(), json.dumps(self.then or self.first).encode())


@pytest.fixture
async def answers(natty):
    answers = Answers(FOLLOWER)
    natty.connection.subscribe("LED.API.>", lambda batch: answers.reply(natty, batch))
    await natty.connection.flush()
    return answers


@pytest.fixture
async def client(nats_server, answers):
    async with Natty(**PATIENT | nats_server.connect_options(), api_prefix="LED.API") as client:
        yield client


async def test_the_answer_of_a_follower_is_not_taken_for_the_streams_state(client, answers):
    assert (await client.stream_info("S"))["state"]["last_seq"] == 3  # for people: it shows that there is no leader
    asking = asyncio.create_task(stream_state(client.jetstream, "S"))
    await until(lambda: answers.asked >= 4)
    answers.then = LEADER
    assert (await asking)["last_seq"] == 9


async def test_a_stream_that_stays_without_a_leader_is_told(client):
    with pytest.raises(JetStreamError, match=r"has no leader: .* \(STREAM.INFO.S, error 10008\)"):
        await led_info(client.jetstream, "S", timeout=0.5)


async def test_an_earlier_end_is_asked_for_again(client, answers):
    answers.first = REPLACED
    asking = asyncio.create_task(check_unchanged(client, FACTS))
    await until(lambda: answers.asked >= 3)
    answers.then = LEADER
    await asking


async def test_a_stream_that_stays_at_an_earlier_end_was_restored(client, answers, monkeypatch):
    monkeypatch.setattr(info, "STALE_FOR", 0.5)
    answers.first = REPLACED
    with pytest.raises(CaptureError, match="ends at 3, and it ended at 9 before: it was restored to an earlier state"):
        await check_unchanged(client, FACTS)
    assert answers.asked > 1


async def test_a_stream_that_was_created_again_is_told_at_once(client, answers):
    answers.first = REPLACED | {"created": "later"}
    with pytest.raises(CaptureError, match="it is another stream"):
        await check_unchanged(client, FACTS)
    assert answers.asked == 1


@pytest.mark.long
async def test_what_is_left_of_a_real_stream_without_a_leader_does_not_count(natty_name):
    name = natty_name("led")
    with NatsCluster(5) as cluster:
        async with Natty(**PATIENT | cluster.connect_options()) as natty:
            await natty.ensure_stream(name, subjects=[name], num_replicas=3)
            async with natty.publisher(name, **FILLING) as publisher:
                for number in range(1000):
                    await publisher.publish(name, b"%d" % number)
                await publisher.flush()
            places = (await natty.stream_info(name))["cluster"]
            dead = {places["leader"], places["replicas"][0]["name"]}
            killed = [server for server in cluster if server.name in dead]
            for server in killed:
                await asyncio.to_thread(server.kill)
            async with asyncio.timeout(PATIENCE):
                while (await natty.stream_info(name))["cluster"].get("leader"):
                    await asyncio.sleep(0.1)
            with pytest.raises(JetStreamError, match="has no leader"):
                await led_info(natty.jetstream, name, timeout=2.0)
            asking = asyncio.create_task(led_info(natty.jetstream, name, timeout=2 * PATIENCE))
            for server in killed:
                await asyncio.to_thread(server.launch)
            found = await asking
            assert found["cluster"]["leader"]
            assert found["state"]["last_seq"] == 1000
