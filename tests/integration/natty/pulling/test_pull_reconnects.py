"""What a pull does with its inbox and its acks when the connection is lost and comes back."""

import asyncio

import pytest
from patient import NEVER, PATIENCE, PATIENT, until

from natty import Message, Natty
from natty.errors import NoRespondersError

LONG_LIVED = {"heartbeat": NEVER, "expires": 2 * NEVER}


@pytest.fixture
async def far(natty_proxy):
    """A client behind the proxy."""
    async with Natty(**PATIENT | natty_proxy.options) as client:
        yield client


@pytest.fixture
async def stream(natty, natty_name):
    """An empty stream with the durable "d", which delivers nothing twice by itself."""
    name = natty_name("AGAIN")
    await natty.create_stream(name, subjects=[f"{name}.>"])
    await natty.create_consumer(name, "d", ack_wait=NEVER)
    return name


async def info(natty, stream):
    return await natty.jetstream.request(f"CONSUMER.INFO.{stream}.d")


async def cut(natty_proxy, natty, far, stream):
    """Cut the link, and wait until the server and the client know; the server is not asked about the consumer."""
    await natty_proxy.cut()
    await until(lambda: not far.connection.connected)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await natty.request(f"sign.{stream}", b"", timeout=0.1)
            except NoRespondersError:  # the server has dropped the subscriptions of the lost session
                return
            except TimeoutError:
                pass


async def restore(natty_proxy, far):
    await natty_proxy.restore()
    await far.connection.ready()
    await far.connection.flush()


async def test_messages_after_a_reconnect_come_once_and_in_order(natty_proxy, natty, far, stream):
    far.connection.subscribe(f"sign.{stream}", lambda batch: None)
    await far.connection.flush()
    pull, got = far.pull(stream, "d", **LONG_LIVED), []

    async def read():
        async for batch in pull:
            got.extend(zip(batch.sequences, batch.deliveries, strict=True))
            pull.ack(batch.replies)
            pull.finish(len(batch))

    reading = asyncio.create_task(read())
    await until(lambda: pull.counts.requests)
    await far.connection.flush()
    await cut(natty_proxy, natty, far, stream)
    await restore(natty_proxy, far)
    for number in range(300):
        await natty.publish(f"{stream}.a", b"%d" % number)
    await until(lambda: len({sequence for sequence, _ in got}) == 300)
    assert got == [(sequence, 1) for sequence in range(1, 301)]
    assert (await info(natty, stream))["delivered"]["consumer_seq"] == 300
    pull.stop()
    await reading


async def read_all(pull, count):
    """Read without acknowledging; return the iterator, which keeps the pull open, and the ack subjects."""
    batches, replies = pull.__aiter__(), []
    async with asyncio.timeout(PATIENCE):
        while len(replies) < count:
            replies += (await anext(batches)).replies
    return batches, replies


async def fill(natty, stream):
    for number in range(5):
        await natty.publish(f"{stream}.a", b"%d" % number)


async def cut_off(natty_proxy, natty, far, stream):
    """Read five messages, then cut the link; return the pull and what `read_all` returns."""
    await fill(natty, stream)
    pull = far.pull(stream, "d", **LONG_LIVED)
    batches, replies = await read_all(pull, 5)
    await natty_proxy.cut()
    await until(lambda: not far.connection.connected)
    return pull, batches, replies


async def until_acked(natty, stream, left=0):
    async with asyncio.timeout(PATIENCE):
        while (await info(natty, stream))["num_ack_pending"] != left:
            await asyncio.sleep(0.02)


async def test_acks_that_are_due_without_a_connection_are_sent_when_it_is_back(natty_proxy, natty, far, stream):
    pull, batches, replies = await cut_off(natty_proxy, natty, far, stream)
    pull.ack(replies[:2])
    pull.ack(replies[2:])
    await restore(natty_proxy, far)
    await until_acked(natty, stream)
    await batches.aclose()


def ack_together(pull, replies):
    pull.ack(replies)


def ack_each(pull, replies):
    for reply in replies:
        Message((b"", reply, b"", b""), pull.kept_acks.sender()).ack()


@pytest.mark.parametrize("ack", [ack_together, ack_each])
async def test_acks_for_a_consumer_that_was_made_anew_meanwhile_are_dropped(
    natty_proxy, natty, far, stream, caplog, ack
):
    """It has other messages of the same sequences, and another client has them."""
    pull, batches, replies = await cut_off(natty_proxy, natty, far, stream)
    ack(pull, replies)
    await natty.delete_stream(stream)
    await natty.create_stream(stream, subjects=[f"{stream}.>"])
    await natty.create_consumer(stream, "d", ack_wait=NEVER)
    await fill(natty, stream)
    others, _ = await read_all(natty.pull(stream, "d", **LONG_LIVED), 5)
    await restore(natty_proxy, far)
    await until(lambda: "5 acks were not sent: other clients may have the messages" in caplog.text)
    assert (await info(natty, stream))["num_ack_pending"] == 5
    await batches.aclose()
    await others.aclose()


async def test_acks_that_are_not_valid_any_more_when_it_is_back_are_dropped(natty_proxy, natty, far, stream, caplog):
    pull, batches, replies = await cut_off(natty_proxy, natty, far, stream)
    ours = True
    pull.ack(replies[:1], lambda: ours)
    Message((b"", replies[1], b"", b""), pull.kept_acks.sender(lambda: ours)).ack()
    pull.ack(replies[2:])
    ours = False
    await restore(natty_proxy, far)
    await until_acked(natty, stream, left=2)
    assert "2 acks were not sent: other clients may have the messages" in caplog.text
    await batches.aclose()


async def test_acks_are_dropped_with_a_warning_if_the_pull_ends_first(natty_proxy, natty, far, stream, caplog):
    pull, batches, replies = await cut_off(natty_proxy, natty, far, stream)
    pull.ack(replies[:2])
    await batches.aclose()
    assert "2 acks were not sent: no connection" in caplog.text
    pull.ack(replies[2:])  # of a handler that took longer
    assert "3 acks were not sent: no connection" in caplog.text
    await restore(natty_proxy, far)
    assert (await info(natty, stream))["num_ack_pending"] == 5
