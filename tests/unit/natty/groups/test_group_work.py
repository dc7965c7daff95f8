"""What a member acknowledges, by the lease that it has: no server, and time that the test sets."""

import asyncio

import pytest
from patient import PATIENCE, until

from natty.config.settings import Config
from natty.consuming.receipts import Receipts
from natty.elections import clock
from natty.groups.stint import Stint
from natty.groups.work import Work, WorkOptions
from natty.jetstream import JetStream
from natty.wire.connection import Connection

REPLY = b"$JS.ACK.S.m.1.7.7.1700000000000000000.0"


class Sent:
    """Takes what receipts send, in place of a pull."""

    def __init__(self):
        self.acks, self.finished_messages = [], 0

    def ack(self, replies):
        self.acks += replies

    def finished(self, count, size):
        self.finished_messages += count


@pytest.mark.parametrize("ends", [False, True])
async def test_a_handler_that_outlives_its_lease_acknowledges_nothing(ends):
    """Somebody else may have the message by then: the ack would be taken for theirs."""
    began, go_on, sent = asyncio.Event(), asyncio.Event(), Sent()

    async def handle(message):
        began.set()
        await go_on.wait()

    jetstream = JetStream(Connection(Config()))
    work = Work(jetstream, "g", "m", handle, WorkOptions(dead_letters=False))
    stint = Stint(object(), "pin", Receipts(sent), margin=1.0)
    stint.extend(clock() + 1000.0)
    stint.begin()
    work.add(stint, [(b"3.orders", REPLY, b"", b"x")])
    async with asyncio.timeout(PATIENCE):
        await began.wait()
        if ends:
            stint.until = clock()
        go_on.set()
        await work.finish(PATIENCE)
    await until(lambda: sent.finished_messages == 1)
    assert sent.acks == ([] if ends else [REPLY])
    assert (work.handled, work.overran) == (1, int(ends))
    await work.close(PATIENCE)


async def test_what_came_too_often_is_remembered_only_while_more_of_its_key_is_in_hand():
    go_on, sent = asyncio.Event(), Sent()

    async def handle(message):
        if message.data == b"slow":
            await go_on.wait()

    options = WorkOptions(dead_letters=False, ordered_by="subject", max_deliveries=1)
    work = Work(JetStream(Connection(Config())), "g", "m", handle, options)
    stint = Stint(object(), "pin", Receipts(sent), margin=1.0)
    stint.extend(clock() + 1000.0)
    stint.begin()
    often = [(b"3.k%d" % n, b"$JS.ACK.S.m.2.%d.%d.1700000000000000000.0" % (n, n), b"", b"") for n in range(1, 30)]
    work.add(stint, [*often, (b"3.k1", REPLY.replace(b".7.7.", b".50.50."), b"", b"slow")])
    await until(lambda: sent.finished_messages == 29)
    assert len(work._suspects) == 29
    work.age()
    assert list(work._suspects) == ["k1"]
    go_on.set()
    await until(lambda: sent.finished_messages == 30)
    work.age()
    assert work._suspects == {}
    await work.close(PATIENCE)
