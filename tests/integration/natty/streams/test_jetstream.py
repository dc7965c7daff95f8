import asyncio
import json

import pytest
from patient import PATIENCE, PATIENT

from natty import Natty, NotConnectedError, RequestTimeoutError, jetstream


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
