"""A client that nobody has opened says so at once, whatever it is asked: nothing waits, and nothing ends quietly."""

import pytest

from natty import Natty
from natty.errors import NotConnectedError


async def all_of(steps):
    return [step async for step in steps]


async def fence(client):
    async with client.leader("job"):
        pass


ASKED = {
    "publish": lambda client: client.publish("a", b""),
    "publish with an id": lambda client: client.publish("a", b"", msg_id="1"),
    "the api": lambda client: client.jetstream.request("INFO"),
    "put": lambda client: client.bucket("b").put("k", b""),
    "put with a ttl": lambda client: client.bucket("b").put("k", b"", ttl=5),
    "create": lambda client: client.bucket("b").create("k", b""),
    "update": lambda client: client.bucket("b").update("k", b"", revision=1),
    "keys": lambda client: client.bucket("b").keys(),
    "history": lambda client: client.bucket("b").history("k"),
    "watch": lambda client: all_of(client.bucket("b").watch()),
    "pull": lambda client: all_of(client.pull("s", "d")),
    "iterate": lambda client: all_of(client.consume("s", "d")),
    "consume": lambda client: client.consume("s", "d", lambda message: None).run(),
    "a stream": lambda client: client.ensure_stream("s", subjects=["s"]),
    "a bucket": lambda client: client.create_bucket("b"),
    "campaign": lambda client: client.election("job").run(lambda term: None),
    "a block that leads": fence,
    "observe": lambda client: all_of(client.observe("job")),
}


@pytest.mark.parametrize("what", ASKED)
async def test_a_client_that_was_not_opened_says_so(what):
    client = Natty("nats://localhost:1", timeout=1e6)
    with pytest.raises(NotConnectedError, match="this client was not opened"):
        await ASKED[what](client)
