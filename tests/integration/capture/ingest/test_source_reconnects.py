"""What happens to acks that are due while a node has no connection."""

import asyncio

import pytest
from patient import NEVER, PATIENCE, PATIENT, until

from capture.ingest import pinned_consumer
from capture.ingest import source as source_module
from capture.ingest.ack_floor import Floor
from capture.ingest.durable import TOGETHER, Durable
from capture.ingest.pinned_consumer import PinnedReader
from capture.ingest.source import LOOKS, Source
from natty import Batch, Natty, Pull

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


async def lose(natty, natty_proxy, far, stream):
    """Publish messages that the server delivers to a connection that they do not pass; then have it replaced."""
    natty_proxy.mute()
    delivered = (await natty.consumer_info(stream, "d"))["delivered"]["consumer_seq"]
    await publish(natty, stream)
    async with asyncio.timeout(PATIENCE):
        while (await natty.consumer_info(stream, "d"))["delivered"]["consumer_seq"] < delivered + COUNT:
            await asyncio.sleep(0.02)
    await cut(natty_proxy, far)
    await natty_proxy.restore()


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


async def test_the_last_messages_that_get_lost_with_a_connection_come_again_though_no_other_follows(
    natty, natty_proxy, far, natty_name
):
    stream = natty_name("AWAY")
    await natty.create_stream(stream, subjects=[f"{stream}.*"])
    await natty.create_consumer(stream, "d", ack_wait=NEVER, ack_policy="all")
    await publish(natty, stream)
    async with asyncio.timeout(PATIENCE), Source(far, stream, "d", ack_wait=NEVER, together=True) as source:
        batches, read = source.__aiter__(), []
        while len(read) < COUNT:
            read += (await anext(batches)).raw
        source.ack(Batch(read))
        while await unacked(natty, stream, "d"):
            await anext(batches)
        await lose(natty, natty_proxy, far, stream)
        while len(read) < 2 * COUNT:
            read += (await anext(batches)).raw
    assert Batch(read).sequences == [*range(1, 2 * COUNT + 1)]


async def test_a_reader_looks_for_lost_messages_a_few_times_after_a_reconnect(
    natty, natty_proxy, far, natty_name, monkeypatch
):
    """A quiet stream costs no more requests than that."""
    monkeypatch.setattr(source_module, "LOOK_EVERY", 0.02)
    stream = natty_name("QUIET")
    await natty.create_stream(stream, subjects=[f"{stream}.*"])
    await natty.create_consumer(stream, "d", ack_wait=NEVER, ack_policy="all")
    request, looks = far.jetstream.request, []

    async def noting(subject, *arguments, **options):
        answer = await request(subject, *arguments, **options)
        if subject == f"CONSUMER.INFO.{stream}.d" and options:
            looks.append(answer)
        return answer

    async def read_all():
        async for _ in source:
            if source.read == COUNT:
                return

    monkeypatch.setattr(far.jetstream, "request", noting)
    async with asyncio.timeout(PATIENCE), Source(far, stream, "d", ack_wait=NEVER, together=True) as source:
        reading = asyncio.create_task(read_all())
        await asyncio.sleep(0.3)
        assert not looks
        for reconnects in (1, 2):
            await cut(natty_proxy, far)
            await natty_proxy.restore()
            await until(lambda reconnects=reconnects: len(looks) >= reconnects * LOOKS)
            await asyncio.sleep(0.3)
            assert len(looks) == reconnects * LOOKS
        await publish(natty, stream)
        await reading


@pytest.fixture
async def reading(natty, far, natty_name, monkeypatch):
    """Return a function that opens a reader of a group's consumer "d"; it has the pin for as long as a test takes."""
    monkeypatch.setattr(pinned_consumer, "PIN_TTL", PATIENCE)
    opened = []

    async def open_reader(*, read_ahead=2 * COUNT, **settings):
        stream = natty_name("AWAY")
        await natty.create_stream(stream, subjects=[f"{stream}.*"])
        asked = {"ack_wait": NEVER, "max_ack_pending": 2 * COUNT} | settings
        durable = Durable(stream=stream, name="d", ack=TOGETHER, pinned=PATIENCE, **asked)
        await natty.create_consumer(stream, "d", **durable.settings())
        await publish(natty, stream)
        ack_wait = asked["ack_wait"]
        opened.append(PinnedReader(far, stream, "d", ack_wait=ack_wait, read_ahead=read_ahead, wake=lambda: None))
        return stream, opened[-1]

    yield open_reader
    for one in opened:
        await one.close()


async def take(reader, count=COUNT):
    """Read so many messages."""
    read = []
    async with asyncio.timeout(PATIENCE):
        while len(read) < count:
            messages, finish = reader.take()
            read += messages
            finish()
            await asyncio.sleep(0.02)
    return Batch(read)


async def test_what_a_node_of_a_group_stores_without_a_connection_is_acknowledged_when_it_is_back(
    natty, natty_proxy, far, reading, caplog
):
    stream, reader = await reading()
    read = await take(reader)
    await cut(natty_proxy, far)
    reader.ack(read)
    await natty_proxy.restore()
    async with asyncio.timeout(PATIENCE):
        while await unacked(natty, stream, "d") or not reader._sent:
            await asyncio.sleep(0.02)
    assert reader.arrived == []
    await reader.close()
    assert "lost in transit" not in caplog.text


async def test_the_last_messages_of_a_group_that_get_lost_with_a_connection_come_again_though_no_other_follows(
    natty, natty_proxy, far, reading
):
    stream, reader = await reading()
    reader.ack(await take(reader))
    async with asyncio.timeout(PATIENCE):
        while await unacked(natty, stream, "d"):
            await asyncio.sleep(0.02)
    await lose(natty, natty_proxy, far, stream)
    assert (await take(reader)).sequences == [*range(COUNT + 1, 2 * COUNT + 1)]


async def test_an_ack_that_the_server_does_not_answer_does_not_hold_a_reader_up(
    natty, natty_proxy, far, reading, monkeypatch
):
    """Someone has reset the consumer while the node had no connection: it has not delivered the message since."""
    monkeypatch.setattr(pinned_consumer, "FLUSH_TIMEOUT", 0.1)
    stream, reader = await reading(read_ahead=COUNT // 4)
    read = await take(reader)
    await cut(natty_proxy, far)
    reader.ack(read)
    await natty.jetstream.request(f"CONSUMER.RESET.{stream}.d")
    await natty_proxy.restore()
    assert (await take(reader)).sequences == read.sequences


@pytest.fixture
def nothing_kept_alive(monkeypatch):
    """Return a function that ends the time in which no message is kept alive, so that the server delivers it again."""
    keep = Pull.in_progress
    monkeypatch.setattr(Pull, "in_progress", lambda *_: None)
    return lambda: monkeypatch.setattr(Pull, "in_progress", keep)


@pytest.fixture
def delivered(monkeypatch):
    """The ack subjects of all deliveries."""
    found, note = [], Floor.note_delivery
    monkeypatch.setattr(Floor, "note_delivery", lambda floor, replies: found.extend(replies) or note(floor, replies))
    return found


SHORT = 1.0  # seconds of ack_wait: messages are kept alive every third of it
LATER = 2.0  # seconds until a message that was handed back comes again


async def test_what_came_twice_is_delivered_again_when_a_node_hands_it_back(
    natty, natty_name, nothing_kept_alive, delivered
):
    stream = natty_name("TWICE")
    await natty.create_stream(stream, subjects=[f"{stream}.*"])
    await natty.create_consumer(stream, "d", ack_wait=SHORT, ack_policy="all")
    await publish(natty, stream)
    async with asyncio.timeout(PATIENCE), Source(natty, stream, "d", ack_wait=SHORT, together=True) as source:
        batches, read = source.__aiter__(), []
        while len(delivered) < 2 * COUNT:
            read += (await anext(batches)).raw
        nothing_kept_alive()
        read += (await anext(batches)).raw
        assert len(read) == COUNT
        source.nak(Batch(read), LATER)
        again = []
        while len(again) < COUNT:
            again += (await anext(batches)).raw
        assert Batch(again).sequences == Batch(read).sequences


async def test_what_came_twice_is_delivered_again_when_a_node_of_a_group_hands_it_back(
    reading, nothing_kept_alive, delivered
):
    _, reader = await reading(ack_wait=SHORT)
    read = await take(reader)
    async with asyncio.timeout(PATIENCE):
        while len(delivered) < 2 * COUNT or reader.arrived:
            assert reader.take()[0] == []
            await asyncio.sleep(0.02)
    nothing_kept_alive()
    reader.nak(read, LATER)
    assert (await take(reader)).sequences == read.sequences


async def test_what_a_node_hands_back_late_is_not_read_a_third_time(natty, natty_proxy, far, natty_name):
    """It was read before the consumer was reset, and is in another block meanwhile."""
    stream = natty_name("LATE")
    await natty.create_stream(stream, subjects=[f"{stream}.*"])
    await natty.create_consumer(stream, "d", ack_wait=NEVER, ack_policy="all")
    await publish(natty, stream)
    async with asyncio.timeout(PATIENCE), Source(far, stream, "d", ack_wait=NEVER, together=True) as source:
        batches, read = source.__aiter__(), []

        async def read_until(count):
            while len(read) < count:
                read.extend((await anext(batches)).raw)

        await read_until(COUNT)
        before = Batch([*read])
        await lose(natty, natty_proxy, far, stream)
        await read_until(3 * COUNT)
        source.nak(before)
        await publish(natty, stream)
        await read_until(4 * COUNT)
    assert Batch(read).sequences == [*range(1, COUNT + 1), *range(1, 3 * COUNT + 1)]


async def test_a_block_that_a_node_gives_up_late_does_not_end_the_hand_over_of_a_partition(natty, reading):
    """Its messages were read before the consumer was reset, and are in another block meanwhile."""
    stream, reader = await reading()
    reader.ack(await take(reader))
    async with asyncio.timeout(PATIENCE):
        while await unacked(natty, stream, "d"):
            await asyncio.sleep(0.02)
    await publish(natty, stream)
    before = await take(reader)
    await natty.jetstream.request(f"CONSUMER.RESET.{stream}.d")
    await publish(natty, stream)
    again = await take(reader, 2 * COUNT)
    assert again.sequences[:COUNT] == before.sequences
    reader.ack(Batch(again.raw[COUNT:]))
    reader.nak(before, 0.0)
    handing_over = asyncio.create_task(reader.release(PATIENCE, lambda: None))
    await asyncio.sleep(0)  # it begins to wait for the messages that are not stored
    reader.ack(Batch(again.raw[:COUNT]))
    await handing_over
    assert not await unacked(natty, stream, "d")
