"""Batches of fast ingest that the stream stops taking, or whose first message has no room for the stream's name."""

import asyncio

import pytest
from patient import PATIENCE, PATIENT, until
from publishing import UNHURRIED, make_stream, payloads

from natty import Natty
from natty.errors import PublishError
from natty.publishing import publisher as publishing
from natty.testing import NatsServer, ServerOptions


@pytest.fixture
async def stream(natty, natty_name):
    """A stream that offers fast ingest, `<name>.>`."""
    return await make_stream(natty, natty_name("BATCHES"))


@pytest.fixture
def ends(monkeypatch):
    """The places of each END that publishers send."""
    sent, send = [], publishing.Publisher._send_end
    monkeypatch.setattr(
        publishing.Publisher, "_send_end", lambda self, subject, place: sent.append(place) or send(self, subject, place)
    )
    return sent


async def change(natty, stream, **settings):
    """Change settings that `ensure_stream` does not let go."""
    config = (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["config"]
    await natty.jetstream.request(f"STREAM.UPDATE.{stream}", config | settings)


async def until_stored(natty, stream, count):
    """Wait until the stream has so many messages, whether they are acknowledged or not."""
    async with asyncio.timeout(PATIENCE):
        while (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]["messages"] < count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", ["fast", "window"])
@pytest.mark.parametrize("headers", [{}, {"A": "b"}], ids=["plain", "headers"])
async def test_a_message_that_just_fits_is_stored_wherever_it_stands(natty_name, path, headers, caplog):
    with NatsServer(ServerOptions(max_payload_bytes=4096)) as server:
        async with Natty(**server.connect_options(), **PATIENT) as client:
            stream = await make_stream(client, natty_name("FITS"))
            block = len(b"NATS/1.0\r\nA: b\r\n\r\n") if headers else 0
            async with client.publisher(stream, path=path, **UNHURRIED) as publisher:
                for size in (4096, 4096, 1, 4096, 1, 1):
                    await publisher.publish(f"{stream}.a", b"x" * (size - block if size > 1 else 1), headers=headers)
                await until(lambda: not publisher.waiting or publisher._fast)
                assert publisher._fast == (path == "fast")
                await publisher.publish(f"{stream}.a", b"y")
            assert [len(one) for one in await payloads(client, stream)] == [
                *(4096 - block, 4096 - block, 1, 4096 - block, 1, 1, 1)
            ]
    assert "again after" not in caplog.text


async def test_a_stream_that_offers_batches_no_more_is_asked_for_one_once(natty, stream, caplog):
    async with natty.publisher(stream, **UNHURRIED) as publisher:
        for batch in range(4):
            for i in range(5):
                await publisher.publish(f"{stream}.a", b"%d" % (5 * batch + i))
            await publisher.flush()
            await change(natty, stream, allow_batched=False)
    assert await payloads(natty, stream) == [b"%d" % i for i in range(20)]
    assert caplog.text.count("again after") == 1


@pytest.mark.parametrize("msg_ids", [True, False])
async def test_a_batch_that_the_stream_takes_no_more_is_settled_at_once(natty, stream, msg_ids, ends):
    """What it had before is in doubt: those with ids are sent again, and the others are named."""
    publisher = await natty.publisher(stream, **UNHURRIED).__aenter__()
    for i in range(5):
        await publisher.publish(f"{stream}.a", b"%d" % i, msg_id=f"{i}" if msg_ids else "")
    await until_stored(natty, stream, 5)
    await change(natty, stream, allow_batched=False)
    for i in range(5, 10):
        await publisher.publish(f"{stream}.a", b"%d" % i, msg_id=f"{i}" if msg_ids else "")
    if msg_ids:
        await publisher.flush()
    else:
        with pytest.raises(PublishError, match=r"5 of 10 messages were not stored; the first: .* in doubt"):
            await publisher.flush()
    for i in range(10, 30):
        await publisher.publish(f"{stream}.a", b"%d" % i)
    await until(lambda: publisher.stored + publisher.failed == 30)
    publisher.abandon()
    assert await payloads(natty, stream) == [b"%d" % i for i in range(30)]
    assert len(ends) <= 3


async def test_a_batch_whose_subject_leaves_the_stream_for_a_moment_is_stored(natty, stream, ends):
    async with natty.publisher(stream, **UNHURRIED) as publisher:
        for i in range(5):
            await publisher.publish(f"{stream}.a", b"%d" % i)
        await until_stored(natty, stream, 5)
        await change(natty, stream, subjects=[f"{stream}-other"])
        for i in range(5, 10):
            await publisher.publish(f"{stream}.a", b"%d" % i)
        await until(lambda: len(ends) >= 2)
        await asyncio.sleep(0.5)
        assert len(ends) < 12
        await change(natty, stream, subjects=[f"{stream}.>"])
    assert await payloads(natty, stream) == [b"%d" % i for i in range(10)]


async def test_a_publisher_that_was_abandoned_while_it_waits_for_a_connection_reads_nothing_more(
    natty_proxy, natty_name, natty
):
    stream = await make_stream(natty, natty_name("GONE"))
    async with Natty(**natty_proxy.options, **PATIENT) as far:
        publisher = await far.publisher(stream, **UNHURRIED).__aenter__()
        await publisher.publish(f"{stream}.a", b"1")
        await natty_proxy.cut()
        ending = asyncio.create_task(publisher.flush())
        await until(publisher._repairing.locked)
        publisher.abandon()
        await natty_proxy.restore()
        await asyncio.gather(ending, return_exceptions=True)
        assert publisher._subscription is None
        assert publisher.failed == 1


async def test_few_messages_get_an_ack_each_and_many_a_batch_again(natty, stream, caplog):
    """A message of a slow publisher would wait for the next ack of its batch, in doubt if the link breaks."""
    sent = 0

    async def publish(publisher, enough, *, turn):
        nonlocal sent
        async with asyncio.timeout(PATIENCE):
            while not enough():
                for _ in range(turn):
                    await publisher.publish(f"{stream}.a", b"%d" % sent)
                    sent += 1
                await asyncio.sleep(0.01)

    async with natty.publisher(stream, **UNHURRIED) as publisher:
        assert publisher._fast
        await publish(publisher, lambda: not publisher._fast, turn=1)
        for _ in range(20):
            await publisher.publish(f"{stream}.a", b"%d" % sent)
            sent += 1
            await until(lambda: not publisher.waiting)
        assert not publisher._fast
        await publish(publisher, lambda: publisher._fast, turn=500)
    assert "again after" not in caplog.text
    assert await payloads(natty, stream) == [b"%d" % i for i in range(sent)]


async def test_a_busy_publisher_begins_batches_again_after_a_refused_message(natty, natty_name):
    stream = await make_stream(natty, natty_name("BUSY"), max_msg_size=100)
    publisher = await natty.publisher(stream, **UNHURRIED).__aenter__()
    sent = 0
    async with asyncio.timeout(PATIENCE):
        for refused in range(3):
            await publisher.publish(f"{stream}.a", b"x" * 101)
            while publisher.failed <= refused or not publisher._fast:
                await publisher.publish(f"{stream}.a", b"%d" % sent)
                sent += 1
    assert sent < 1_000_000  # it did not wait for a moment without messages
    with pytest.raises(PublishError, match=r"3 of .* message size exceeds maximum allowed"):
        await publisher.flush()
    publisher.abandon()
    assert await payloads(natty, stream) == [b"%d" % i for i in range(sent)]


async def test_a_message_that_no_stream_takes_does_not_hold_the_others_up(victim, natty_name):
    """It is tried again and again, and its publisher uses no batches meanwhile."""
    async with Natty(**victim.connect_options(), **PATIENT) as client:
        stream = await make_stream(client, natty_name("HELD"))
        publisher = await client.publisher(stream, window=3 * publishing.MANY, **UNHURRIED).__aenter__()
        await publisher.publish(f"{stream}.a", b"few")
        await until(lambda: not publisher.waiting)
        await publisher.publish(f"{stream}.a", b"few")
        await until(lambda: not publisher._fast and not publisher.waiting)
        victim.pause()
        try:
            await publisher.publish("nobody.takes.this", b"x")
            for _ in range(2 * publishing.MANY):
                await publisher.publish(f"{stream}.a", b"many")
            await until(lambda: publisher._returning)
        finally:
            victim.resume()
        for _ in range(100):
            await publisher.publish(f"{stream}.a", b"others")
        await until(lambda: publisher.waiting == 1)
        assert publisher.stored == 2 + 2 * publishing.MANY + 100
        assert not publisher._fast
        publisher.abandon()
