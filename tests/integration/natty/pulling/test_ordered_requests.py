"""The requests of a reading in order: their bytes are bounded, and a reading that gets messages keeps its session."""

import asyncio
from contextlib import aclosing, suppress
from itertools import accumulate
from urllib.parse import urlsplit

import pytest
from consuming import fill
from patient import NEVER, PATIENCE, until

from natty import Natty
from natty.pulling import ordered
from natty.pulling.ordered import CaughtUp, Ordered, OrderedOptions
from natty.testing import NatsServer, ServerOptions
from natty.wire.ack import delivery_of
from natty.wire.background import cancel_all
from natty.wire.message import Batch

SLOW = {"heartbeat": NEVER, "expires": 2 * NEVER}  # only a message or the end of a request goes on with the reading
KB = 1000
CHUNK = 64 * 1024


@pytest.fixture
def plain(tmp_path):
    """A server without TLS: what it sends can be taken apart."""
    with NatsServer(ServerOptions(tls=None), folder=tmp_path) as server:
        yield server


class Reading:
    """What a reading has brought: the sizes of its batches and of its messages, and the number of its sessions."""

    def __init__(self, natty, stream, **options):
        self.ordered = Ordered(natty.jetstream, stream, OrderedOptions(**{**SLOW, **options}))
        self.sizes, self.sessions, self.read = [], 0, []

    async def until_caught_up(self):
        """Read all messages that the stream has."""
        async with asyncio.timeout(PATIENCE), aclosing(self.ordered.__aiter__()) as steps:
            async for step in steps:
                if isinstance(step, Batch):
                    self.sizes.append(step.size)
                    self.read += [len(data) for data in step.payloads]
                    self.sessions += delivery_of(step.replies[0]) == 1
                elif isinstance(step, CaughtUp):
                    break
        return self


async def filled(natty, name, sizes):
    return await fill(natty, name, len(sizes), payload=lambda number: bytes(sizes[number]), storage="memory")


async def test_a_reading_never_holds_more_than_its_bytes(natty, natty_name):
    """The server ends a request as too small when the next message is larger than the rest of it, too."""
    stream = await filled(natty, natty_name("BOUND"), [30 * KB] * 60)
    reading = await Reading(natty, stream, max_bytes=100 * KB).until_caught_up()
    assert reading.read == [30 * KB] * 60
    assert max(reading.sizes) <= 100 * KB


async def test_a_message_that_is_larger_than_the_bytes_comes_alone_and_changes_nothing_for_the_others(
    natty, natty_name
):
    sizes = [30 * KB] * 5 + [500 * KB] * 2 + [30 * KB] * 30
    stream = await filled(natty, natty_name("LARGE"), sizes)
    reading = await Reading(natty, stream, max_bytes=100 * KB).until_caught_up()
    assert reading.read == sizes
    assert len([size for size in reading.sizes if size > 100 * KB]) == 2


async def test_a_request_whose_bytes_are_used_up_exactly_is_followed_by_the_next_one(natty, natty_name):
    """The server sends no status in this case."""
    stream = await filled(natty, natty_name("EXACT"), [KB] * 20)
    sizes = await Reading(natty, stream, max_messages=1).until_caught_up()
    reading = await Reading(natty, stream, max_bytes=sum(sizes.sizes[:5])).until_caught_up()
    assert reading.read == [KB] * 20
    assert sum(sizes.sizes[:5]) in accumulate(reading.sizes)  # a request may take several reads
    assert reading.sessions == 1


class LateStatuses:
    """A link to a server without TLS that delivers "Batch Completed" only after the client's next request.

    The client reads it before anything else that the server sends, or, `with_message`, together with a message.
    """

    def __init__(self, server, *, with_message):
        self.server, self.with_message = urlsplit(server.url), with_message
        self.asked = self.held = self.pongs = 0

    async def __aenter__(self):
        self.ended = asyncio.Event()
        self.listener = await asyncio.start_server(self.link, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self.listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.listener.close()
        await self.ended.wait()

    async def link(self, reader, writer):
        from_server, to_server = await asyncio.open_connection(self.server.hostname, self.server.port)
        up, down = asyncio.create_task(self.up(reader, to_server)), asyncio.create_task(self.down(from_server, writer))
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        await cancel_all([up, down])
        for one in (writer, to_server):
            one.close()
            with suppress(OSError):
                await one.wait_closed()
        self.ended.set()

    async def up(self, reader, to_server):
        while data := await reader.read(CHUNK):
            self.asked += data.count(b".CONSUMER.MSG.NEXT.")
            self.pongs += data.count(b"PONG\r\n")
            to_server.write(data)

    async def down(self, from_server, writer):
        waiting = b""
        while data := waiting or await from_server.read(CHUNK):
            waiting = b""
            if b"Batch Completed" in data:
                start = data.rindex(b"HMSG ", 0, data.index(b"Batch Completed"))
                end = data.index(b"\r\n" * 3, start) + 6
                writer.write(data[:start])
                status, waiting = data[start:end], data[end:]
                self.held += 1
                await until(lambda: self.asked > self.held)
                while self.with_message and b"\r\nMSG " not in waiting:
                    waiting += await from_server.read(CHUNK)
                message = waiting.find(b"\r\nMSG ") + 2 if self.with_message else 0
                data, waiting, pongs = status + waiting[:message] + b"PING\r\n", waiting[message:], self.pongs
                writer.write(data)
                await until(lambda pongs=pongs: self.pongs > pongs)  # the client has read it
            else:
                writer.write(data)


@pytest.mark.parametrize("with_message", [False, True])
async def test_the_end_of_a_request_that_comes_after_the_next_request_loses_no_session(plain, natty_name, with_message):
    async with (
        LateStatuses(plain, with_message=with_message) as link,
        Natty(**plain.connect_options() | {"servers": [link.url]}) as natty,
    ):
        stream = await filled(natty, natty_name("LATE"), [10] * 95)
        reading = await Reading(natty, stream, max_messages=10).until_caught_up()
    assert reading.read == [10] * 95
    assert link.held == 9
    assert reading.sessions == 1


async def test_each_lost_session_of_a_reading_that_gets_messages_is_replaced_after_the_shortest_pause(
    natty, natty_name
):
    stream, pauses = await filled(natty, natty_name("BUSY"), [1]), []
    busy = Ordered(natty.jetstream, stream, OrderedOptions(**SLOW))
    async with asyncio.timeout(PATIENCE), aclosing(busy.__aiter__()) as steps:
        async for step in steps:
            if isinstance(step, Batch):
                pauses.append(busy._retry_delay)
                if len(pauses) == 3:
                    break
            elif isinstance(step, CaughtUp):
                (consumer,) = (await natty.jetstream.request(f"CONSUMER.NAMES.{stream}"))["consumers"]
                await natty.delete_consumer(stream, consumer)
                await natty.publish(f"{stream}.x", b"x")
    assert pauses == [ordered.RETRY_DELAY] * 3
