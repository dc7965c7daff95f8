import json

import pytest
from patient import PATIENCE, PATIENT

from natty import Natty, RequestTimeoutError, jetstream


@pytest.fixture
async def deaf_at_first(natty, nats_server, monkeypatch):
    """A client whose API is a responder of ours, which drops the first request of each subject as a server does while
    a stream or consumer has no leader, and the list of what it was asked."""
    monkeypatch.setattr(jetstream, "ASK_AGAIN", 0.2)
    asked = []

    def answer(messages):
        for subject, reply, _, _ in messages:
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
