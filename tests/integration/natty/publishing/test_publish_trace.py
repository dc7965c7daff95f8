"""How many files one opens to follow a message from the caller to its ack."""

import sys

import pytest
from entering import entered
from patient import PATIENT
from publishing import UNHURRIED, make_stream

import natty as package
from natty import Natty

MOST_FILES = 5


@pytest.fixture
async def client(nats_server):
    """A client of its own: nothing but what the test does runs on its loop."""
    async with Natty(**PATIENT | nats_server.connect_options()) as one:
        yield one


@pytest.mark.parametrize("options", [{}, {"msg_id": "{}"}, {"headers": {"A": "b"}}], ids=str)
async def test_an_awaited_publish_is_followed_through_five_files(client, natty_name, monkeypatch, options):
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)  # another test may have imported it
    stream = await make_stream(client, natty_name("stream"))

    def publish(number):
        return client.publish(
            f"{stream}.a", b"x", **{k: str(number) if k == "msg_id" else v for k, v in options.items()}
        )

    await publish(1)
    await publish(2)
    with entered(package) as files:
        ack = await publish(3)
    assert ack.seq == 3
    assert len(files) <= MOST_FILES, sorted(files)
    assert {"natty/client.py", "natty/wire/connection.py", "natty/wire/session.py"} < files


@pytest.mark.parametrize("path", ["window", "fast"])
async def test_a_message_of_a_publisher_is_followed_through_five_files(client, natty_name, path):
    stream = await make_stream(client, natty_name("stream"))
    async with client.publisher(stream, path=path, **UNHURRIED) as publisher:
        for number in range(2):
            await publisher.publish(f"{stream}.a", b"x", msg_id=f"warm {number}", headers={"A": "b"})
            await publisher.flush()
        with entered(package) as files:
            await publisher.publish(f"{stream}.a", b"x", msg_id="x", headers={"A": "b"})
            await publisher.flush()
    assert publisher.stored == 3
    assert len(files) <= MOST_FILES, sorted(files)
    assert {"natty/publishing/publisher.py", "natty/wire/connection.py", "natty/wire/session.py"} < files
