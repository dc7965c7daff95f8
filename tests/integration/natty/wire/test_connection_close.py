"""Closing: pulls hand back what nobody took, then the server takes what was sent, then the connection ends."""

import asyncio
import time

import pytest
from patient import FILLING, NEVER, PATIENCE, PATIENT, until

from natty import Natty
from natty.errors import ConnectionClosedError
from natty.pulling import pull as pulling
from natty.wire import connection

COUNT = 60


@pytest.fixture(autouse=True)
def time_to_leave(monkeypatch):
    """A machine that stands still must not use up the time for leaving."""
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", PATIENCE)
    monkeypatch.setattr(pulling, "DRAIN_TIMEOUT", PATIENCE)


async def fill(natty, name):
    """Make a stream of COUNT messages of 20 kB, and the durable "d"."""
    await natty.ensure_stream(name, subjects=[f"{name}.>"], allow_batched=True)
    await natty.ensure_consumer(name, "d", ack_wait=NEVER)  # what comes again was handed back
    async with natty.publisher(name, **FILLING) as publisher:
        for number in range(COUNT):
            await publisher.publish(f"{name}.x", b"%05d" % number + bytes(20_000))
    return name


def numbers(batch):
    return [int(data[:5]) for data in batch.payloads]


async def rest(natty, name, count):
    """Read so many messages, at once: nobody waits for `ack_wait`."""
    got, pull = [], natty.pull(name, "d")
    async with asyncio.timeout(PATIENCE):
        async for batch in pull:
            got += numbers(batch)
            pull.ack(batch.replies)
            pull.finish(len(batch))
            if len(got) >= count:
                pull.stop()
    return got


async def arrived(pull, count):
    """Wait until so many messages have arrived, the yielded ones included."""
    await until(lambda: pull.counts.delivered >= count)


async def reaches(natty, name, **state):
    """Wait until the consumer is in this state, as its server tells."""
    async with asyncio.timeout(PATIENCE):
        while not state.items() <= (await natty.jetstream.request(f"CONSUMER.INFO.{name}.d")).items():
            await asyncio.sleep(0.02)


class Reader:
    """Takes one batch and stands still in it, for ever."""

    def __init__(self, natty, name):
        self.pull = natty.pull(name, "d")
        self.took = []

    async def run(self):
        async for batch in self.pull:
            self.took += numbers(batch)
            self.pull.ack(batch.replies)
            await asyncio.get_running_loop().create_future()


async def test_closing_hands_back_what_arrived_and_was_not_taken(nats_server, natty, natty_name):
    name = await fill(natty, natty_name("CLOSE"))
    client = await Natty.connect(**PATIENT | nats_server.connect_options())
    reader = Reader(client, name)
    reading = asyncio.create_task(reader.run())
    await arrived(reader.pull, COUNT)
    await client.close()
    assert 0 < len(reader.took) < COUNT
    assert sorted(reader.took + await rest(natty, name, COUNT - len(reader.took))) == list(range(COUNT))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def test_a_cancelled_body_hands_back_what_arrived_and_was_not_taken(nats_server, natty, natty_name):
    name, readers = await fill(natty, natty_name("CANCEL")), []

    async def body():
        async with Natty(**PATIENT | nats_server.connect_options()) as client:
            readers.append(Reader(client, name))
            await readers[0].run()

    running = asyncio.create_task(body())
    await until(lambda: readers)
    await arrived(readers[0].pull, COUNT)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    took = readers[0].took
    assert 0 < len(took) < COUNT
    assert sorted(took + await rest(natty, name, COUNT - len(took))) == list(range(COUNT))


async def test_leaving_the_loop_in_the_middle_and_closing_hands_back_the_rest(nats_server, natty, natty_name):
    name = await fill(natty, natty_name("BREAK"))
    async with Natty(**PATIENT | nats_server.connect_options()) as client:
        pull, took = client.pull(name, "d"), []
        async for batch in pull:
            took += numbers(batch)
            pull.ack(batch.replies)
            await arrived(pull, COUNT)
            break
    assert 0 < len(took) < COUNT
    assert sorted(took + await rest(natty, name, COUNT - len(took))) == list(range(COUNT))


async def test_closing_hands_back_what_is_on_its_way(natty_proxy, natty, natty_name):
    await natty.ensure_stream(name := natty_name("WAY"), subjects=[f"{name}.>"])
    await natty.ensure_consumer(name, "d", ack_wait=NEVER)  # what comes again was handed back
    far = await Natty.connect(**PATIENT | natty_proxy.options)
    pull = far.pull(name, "d", heartbeat=NEVER, expires=2 * NEVER)
    reading = asyncio.create_task(anext(pull.__aiter__()))
    await reaches(natty, name, num_waiting=1)
    natty_proxy.hold()
    await natty.publish(f"{name}.x", b"00007")
    await reaches(natty, name, num_ack_pending=1)
    closing = asyncio.create_task(far.close())
    await until(lambda: pull.stopping)
    natty_proxy.release()
    await closing
    with pytest.raises(StopAsyncIteration):
        await reading
    assert await rest(natty, name, 1) == [7]


async def test_acks_sent_last_are_taken_before_the_end(nats_server, natty, natty_name):
    name = await fill(natty, natty_name("ACKS"))
    async with Natty(**PATIENT | nats_server.connect_options()) as client:
        pull, replies = client.pull(name, "d"), []
        async for batch in pull:
            replies += batch.replies
            pull.finish(len(batch))
            if len(replies) == COUNT:
                break
        pull.ack(replies)
    await reaches(natty, name, num_ack_pending=0, num_pending=0)


@pytest.mark.parametrize("fault", ["half_open", "hold"])
async def test_a_link_that_is_dead_does_not_keep_a_running_pull_from_closing(
    natty_proxy, natty, natty_name, monkeypatch, fault
):
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", 0.5)
    name = await fill(natty, natty_name("DEAD"))
    client = await Natty.connect(**PATIENT | natty_proxy.options | {"timeout": NEVER})
    reader = Reader(client, name)
    reading = asyncio.create_task(reader.run())
    await arrived(reader.pull, COUNT)
    getattr(natty_proxy, fault)()
    started = time.monotonic()
    async with asyncio.timeout(PATIENCE):
        await client.close()
    print(f"\nclosed after {time.monotonic() - started:.2f} s")
    assert client.connection.state == "closed"
    natty_proxy.release()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def test_who_fails_to_leave_does_not_keep_the_others_from_it(nats_server, natty, natty_name):
    name = await fill(natty, natty_name("FAILS"))
    client = await Natty.connect(**PATIENT | nats_server.connect_options())

    async def fails():
        raise RuntimeError("boom")

    client.connection.leaving.append(fails)
    reader = Reader(client, name)
    reading = asyncio.create_task(reader.run())
    await arrived(reader.pull, COUNT)
    await client.close()
    assert len(await rest(natty, name, COUNT - len(reader.took))) == COUNT - len(reader.took)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def test_a_pull_on_a_closed_client_says_so(nats_server, natty_name):
    async with Natty(**PATIENT | nats_server.connect_options()) as client:
        pull = client.pull(natty_name("LATE"), "d")
    with pytest.raises(ConnectionClosedError):
        await anext(pull.__aiter__())


async def test_a_closed_client_keeps_nobody_who_has_left(nats_server, natty, natty_name):
    name = await fill(natty, natty_name("LEFT"))
    async with Natty(**PATIENT | nats_server.connect_options()) as client:
        assert len(await rest(client, name, COUNT)) == COUNT
        assert (client.connection.leaving, client.connection.listeners) == ([], [])
