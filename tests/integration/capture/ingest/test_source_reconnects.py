"""What happens to acks that are due while a node has no connection."""

import asyncio

import pytest
from patient import NEVER, PATIENCE, PATIENT, until

from capture.ingest import pinned_consumer
from capture.ingest.durable import TOGETHER, Durable
from capture.ingest.pinned_consumer import PinnedReader
from capture.ingest.source import Source
from natty import Batch, Natty

COUNT = 20


@pytest.fixture
async def far(natty_proxy):
    """A client behind the proxy."""
    async with Natty(**PATIENT | natty_proxy.options) as client:
        yield client


async def publish(natty, stream):
    for number in range(COUNT):
        await natty.publish(f"{stream}.a", b"%d" % number)


async def unacked(natty, stream, consumer):
    return (await natty.consumer_info(stream, consumer))["num_ack_pending"]


async def cut(natty_proxy, far):
    await natty_proxy.cut()
    await until(lambda: not far.connection.connected)


@pytest.mark.parametrize("together", [False, True])
async def test_what_a_node_stores_without_a_connection_is_acknowledged_when_it_is_back(
    natty, natty_proxy, far, natty_name, together
):
    stream = natty_name("AWAY")
    await natty.create_stream(stream, subjects=[f"{stream}.*"])
    await natty.create_consumer(stream, "d", ack_wait=NEVER, ack_policy="all" if together else "explicit")
    await publish(natty, stream)
    async with asyncio.timeout(PATIENCE), Source(far, stream, "d", ack_wait=NEVER, together=together) as source:
        batches, read = source.__aiter__(), []
        while len(read) < COUNT:
            read += (await anext(batches)).raw
        await cut(natty_proxy, far)
        source.ack(Batch(read))
        await natty_proxy.restore()
        while await unacked(natty, stream, "d"):
            await anext(batches)
        assert source.read == COUNT


async def test_what_a_node_of_a_group_stores_without_a_connection_is_acknowledged_when_it_is_back(
    natty, natty_proxy, far, natty_name, monkeypatch
):
    monkeypatch.setattr(pinned_consumer, "PIN_TTL", PATIENCE)
    stream = natty_name("AWAY")
    await natty.create_stream(stream, subjects=[f"{stream}.*"])
    durable = Durable(stream=stream, name="d", ack_wait=NEVER, max_ack_pending=COUNT, ack=TOGETHER, pinned=PATIENCE)
    await natty.create_consumer(stream, "d", **durable.settings())
    await publish(natty, stream)
    reader, read = PinnedReader(far, stream, "d", ack_wait=NEVER, read_ahead=COUNT, wake=lambda: None), []
    try:
        async with asyncio.timeout(PATIENCE):
            while len(read) < COUNT:
                messages, finish = reader.take()
                read += messages
                finish()
                await asyncio.sleep(0.02)
            await cut(natty_proxy, far)
            reader.ack(Batch(read))
            await natty_proxy.restore()
            while await unacked(natty, stream, "d"):
                await asyncio.sleep(0.02)
        assert reader.arrived == []
    finally:
        await reader.close()
