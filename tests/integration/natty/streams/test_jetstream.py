import asyncio
import json
from contextlib import suppress

import pytest
from consuming import until
from patient import PATIENCE, PATIENT

from natty import JetStreamError, Natty, NotConnectedError, RequestTimeoutError, jetstream
from natty.testing import NatsCluster


@pytest.fixture
async def deaf_at_first(natty, nats_server, monkeypatch):
    """A client whose API is a responder of ours, which drops the first request of each subject as a server does while
    a stream or consumer has no leader, and the list of what it was asked."""
    monkeypatch.setattr(jetstream, "ASK_AGAIN", 0.2)
    asked = []

    def answer(batch):
        for subject, reply, _, _ in batch.raw:
            asked.append(subject.decode())
            if asked.count(subject.decode()) > 1:
                natty.connection.send(reply.decode(), json.dumps({"config": {}}).encode())

    natty.connection.subscribe("DEAF.API.>", answer)
    await natty.connection.flush()
    async with Natty(**PATIENT | nats_server.connect_options(), api_prefix="DEAF.API") as client:
        yield client, asked


async def test_a_question_that_a_leaderless_server_drops_is_put_again(deaf_at_first):
    client, asked = deaf_at_first
    assert await client.jetstream.request("CONSUMER.INFO.S.c", timeout=PATIENCE) == {"config": {}}
    assert len(asked) >= 2
    assert set(asked) == {"DEAF.API.CONSUMER.INFO.S.c"}


async def test_an_order_is_never_given_twice(deaf_at_first, natty):
    client, asked = deaf_at_first
    with pytest.raises(RequestTimeoutError):
        await client.jetstream.request("STREAM.PURGE.S", timeout=1.0)
    await client.connection.flush()
    await natty.connection.flush()  # all that was sent has been heard
    assert asked == ["DEAF.API.STREAM.PURGE.S"]


@pytest.fixture
async def leaderless(natty, nats_server):
    """A client whose API is a responder of ours, which answers as a cluster without a leader until the event is set,
    the event, and the list of what it was asked."""
    asked, is_led = [], asyncio.Event()
    refusal = {"error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}}

    def answer(batch):
        for subject, reply, _, _ in batch.raw:
            asked.append(subject.decode())
            said = {"config": {}} if is_led.is_set() else refusal
            natty.connection.send(reply.decode(), json.dumps(said).encode())

    natty.connection.subscribe("NOBODY.API.>", answer)
    await natty.connection.flush()
    async with Natty(**PATIENT | nats_server.connect_options(), api_prefix="NOBODY.API") as client:
        yield client.jetstream, is_led, asked


async def test_a_question_is_put_again_while_the_cluster_has_no_leader(leaderless):
    api, is_led, asked = leaderless
    asking = asyncio.create_task(api.request("STREAM.INFO.S", timeout=PATIENCE))
    await until(lambda: len(asked) >= 3)
    is_led.set()
    assert await asking == {"config": {}}


async def test_a_cluster_that_stays_without_a_leader_is_told_with_what_to_do(leaderless):
    api, _, asked = leaderless
    with pytest.raises(JetStreamError, match=r"has no leader: .* more than half .* \(STREAM.INFO.S, error 10008\)"):
        await api.request("STREAM.INFO.S", timeout=0.5)
    assert len(asked) >= 2


async def test_an_order_that_a_leaderless_server_refuses_is_not_given_again(leaderless, natty):
    api, _, asked = leaderless
    with pytest.raises(JetStreamError, match="has no leader"):
        await api.request("STREAM.PURGE.S", timeout=PATIENCE)
    await natty.connection.flush()
    assert asked == ["NOBODY.API.STREAM.PURGE.S"]


@pytest.mark.long
async def test_a_question_waits_for_the_servers_that_were_killed(natty_name):
    name = natty_name("led")
    with NatsCluster() as cluster:
        async with Natty(**PATIENT | cluster.connect_options()) as natty:
            await natty.ensure_stream(name, subjects=[f"{name}.*"], num_replicas=3)
            for server in (cluster[1], cluster[2]):
                await asyncio.to_thread(server.kill)
            async with asyncio.timeout(PATIENCE):
                while True:  # the last server answers nothing until it knows that it has lost the others
                    with suppress(RequestTimeoutError, NotConnectedError):
                        if b"10008" in (await natty.connection.request("$JS.API.STREAM.NAMES", timeout=1.0))[3]:
                            break
            with pytest.raises(JetStreamError, match="has no leader"):
                await natty.jetstream.request("STREAM.NAMES", timeout=0.5)
            asking = asyncio.create_task(natty.stream_info(name))
            await asyncio.to_thread(cluster[1].launch)
            assert (await asking)["config"]["name"] == name


async def lose_while_asked(natty_proxy, client, subject, timeout=PATIENCE):
    """Ask over a connection whose answers do not arrive and that is lost then; return the task that waits."""
    natty_proxy.hold()
    asked = asyncio.create_task(client.jetstream.request(subject, timeout=timeout))
    await asyncio.sleep(0.05)
    await natty_proxy.cut()
    return asked


async def test_a_question_whose_connection_is_lost_is_answered_in_the_next_session(natty_proxy):
    async with Natty(**PATIENT | natty_proxy.options) as client:
        asked = await lose_while_asked(natty_proxy, client, "STREAM.NAMES")
        natty_proxy.release()
        await natty_proxy.restore()
        assert (await asked)["type"].endswith("stream_names_response")


async def test_a_question_says_that_the_connection_is_lost_when_its_time_is_over(natty_proxy):
    async with Natty(**PATIENT | natty_proxy.options) as client:
        asked = await lose_while_asked(natty_proxy, client, "STREAM.NAMES", timeout=0.5)
        with pytest.raises(NotConnectedError):
            await asked


async def test_a_question_ends_when_the_client_is_closed(natty_proxy):
    async with Natty(**PATIENT | natty_proxy.options) as client:
        asked = await lose_while_asked(natty_proxy, client, "STREAM.NAMES")
    with pytest.raises(NotConnectedError):
        await asked


async def test_an_order_whose_connection_is_lost_fails_at_once(natty_proxy):
    async with Natty(**PATIENT | natty_proxy.options) as client:
        asked = await lose_while_asked(natty_proxy, client, "STREAM.PURGE.S")
        with pytest.raises(NotConnectedError, match="lost before the answer came"):
            await asked
