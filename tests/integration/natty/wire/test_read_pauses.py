"""Pauses of reading: when they begin and end, and that nothing is read meanwhile, over TLS and without."""

import asyncio
import contextlib
import socket
import time

import pytest
from group_members import partitioned
from patient import NEVER, PATIENT, until

from natty import Natty
from natty.groups.joining import JoinOptions
from natty.pulling.requests import PullOptions
from natty.wire.read_pauses import SMALL_BYTES, ReadPauses


class Counted(asyncio.BufferedProtocol):
    """Counts the bytes that it gets."""

    def __init__(self):
        self.buffer, self.bytes = bytearray(SMALL_BYTES), 0

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.bytes += nbytes


@pytest.fixture
async def pair():
    """A transport of asyncio's and its protocol, and the socket at the other end."""
    ours, theirs = socket.socketpair()
    transport, protocol = await asyncio.get_running_loop().create_connection(Counted, sock=ours)
    yield transport, protocol, theirs
    transport.abort()
    theirs.close()


def begin(pauses, seconds, nbytes):
    pauses.wanted = seconds
    pauses.begin(nbytes)


async def test_a_pause_follows_a_small_read_and_ends_after_its_time(pair):
    transport, protocol, theirs = pair
    pauses = ReadPauses()
    pauses.attach(transport)

    begin(pauses, 0.05, SMALL_BYTES)
    assert transport.is_reading()
    assert pauses.wanted == 0

    began = time.monotonic()
    begin(pauses, 0.05, SMALL_BYTES - 1)
    assert (transport.is_reading(), pauses.wanted) == (False, 0)
    theirs.send(b"x" * 10)
    await until(lambda: protocol.bytes == 10)
    assert time.monotonic() - began >= 0.05
    assert transport.is_reading()


async def test_the_pause_of_a_session_does_not_touch_the_next_one(pair):
    transport, _, _ = pair
    first, second = socket.socketpair()
    other, _ = await asyncio.get_running_loop().create_connection(Counted, sock=first)
    pauses = ReadPauses()
    pauses.attach(transport)
    begin(pauses, 0.01, 1)
    pauses.wanted = 1.0
    pauses.attach(other)
    assert pauses.wanted == 0
    other.pause_reading()
    await asyncio.sleep(0.05)
    assert not other.is_reading()
    begin(pauses, 0.01, 1)
    other.abort()  # during the pause
    await asyncio.sleep(0.05)
    begin(pauses, 0.01, 1)  # after the end
    second.close()


@pytest.mark.parametrize("seconds", [-0.1, 0.11])
def test_a_pause_has_at_most_a_tenth_of_a_second(seconds):
    with pytest.raises(ValueError, match=rf"^read_pause is {seconds}; write a number of seconds, .*, 0 to 0.1$"):
        PullOptions(read_pause=seconds)


async def test_a_pull_with_a_pause_gets_all_messages_in_few_batches(natty, nats_server, natty_name):
    stream, pause, count = natty_name("PAUSES"), 0.1, 100
    await natty.ensure_stream(stream, subjects=[f"{stream}.>"])
    await natty.ensure_consumer(stream, "d", ack_wait=NEVER)

    async def publish():
        for number in range(count):
            await natty.publish(f"{stream}.{number}", b"%d" % number)
            await asyncio.sleep(0.005)

    got, batches, began = [], 0, time.monotonic()
    async with Natty(**nats_server.connect_options(), **PATIENT) as near:
        publishing = asyncio.create_task(publish())
        pull = near.pull(stream, "d", read_pause=pause)
        async for batch in pull:
            got += batch.payloads
            batches += 1
            pull.ack(batch.replies)
            pull.finish(len(batch))
            if len(got) == count:
                pull.stop()
        await publishing
    assert got == [b"%d" % number for number in range(count)]
    assert batches <= (time.monotonic() - began) / pause + 2


@contextlib.asynccontextmanager
async def consumed(client, stream, handle, seconds):
    """A handler of `consume` runs."""
    consumption = client.consume(stream, "d", handle, read_pause=seconds)
    running = asyncio.create_task(consumption.run())
    await consumption.ready.wait()
    yield
    consumption.stop()
    await running


@contextlib.asynccontextmanager
async def shared(client, stream, handle, seconds):
    """A member of a group runs the handler."""
    group = client.static_group(stream, "g")
    await group.create(1, [f"{stream}.*"], members=["m"])
    async with group.join("m", handle, ack_wait=10.0, read_pause=seconds):
        yield


@pytest.mark.parametrize("run", [consumed, shared])
async def test_a_handler_with_a_pause_gets_all_messages_with_few_reads(run, natty, nats_server, natty_name):
    stream, pause, count = natty_name("PAUSES"), 0.1, 100
    await natty.create_stream(stream, **partitioned(stream, 1))
    got, begun = [], []

    async def handle(message):
        got.append(message.data)

    async with Natty(**nats_server.connect_options(), **PATIENT) as near:
        pauses = near.connection.read_pauses
        begin = pauses.begin
        pauses.begin = lambda nbytes: (begun.append(pauses.wanted), begin(nbytes))
        began = time.monotonic()
        async with run(near, stream, handle, pause):
            for number in range(count):
                await natty.publish(f"{stream}.{number}", b"%d" % number)
                await asyncio.sleep(0.005)
            await until(lambda: len(got) == count)
        most = (time.monotonic() - began) / pause + 2
    assert sorted(got, key=int) == [b"%d" % number for number in range(count)]
    assert set(begun) == {pause}
    assert len(begun) <= most


def test_the_pauses_of_a_member_are_short_beside_its_pin():
    options = JoinOptions(ack_wait=10.0, read_pause=0.1)
    pauses = [options.limit_requests({"ack_wait": seconds * 10**9}).read_pause for seconds in (10, 1, 0.5)]
    assert pauses == [0.1, 0.1, 0.05]  # the server's consumer may have another ack_wait than the options


async def test_below_tls_nothing_is_read_during_a_pause_either(nats_server, natty_name):
    subject, got = natty_name("paused"), []
    options = nats_server.connect_options() | PATIENT
    async with Natty(**options) as far, Natty(**options) as near:
        assert near.connection.server_certificate
        near.connection.subscribe(subject, got.extend)
        await near.connection.flush()
        pauses = near.connection.read_pauses
        transport = pauses._socket
        begin(pauses, NEVER, 1)
        far.connection.send(subject, b"first")
        await until(transport.get_read_buffer_size)
        size = transport.get_read_buffer_size()
        for _ in range(50):
            far.connection.send(subject, bytes(1000))
            await far.connection.flush()
        await asyncio.sleep(0.2)
        assert (transport.get_read_buffer_size(), got) == (size, [])
        pauses._end(transport)
        await until(lambda: len(got) == 51)
