"""What a member acknowledges, by the lease that it has: no server, and time that the test sets."""

import asyncio

import pytest
from patient import PATIENCE, until

from natty.config import Config
from natty.connection import Connection
from natty.groups.stint import Stint
from natty.groups.work import Work, WorkOptions
from natty.jetstream import JetStream
from natty.leader import clock
from natty.receipts import Receipts

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
