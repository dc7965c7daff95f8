"""What a member acknowledges, by the lease that it has: no server, and time that the test sets."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from patient import PATIENCE, until
from working import Sent

from natty.config.settings import Config
from natty.consuming.dead_letters import TooManyDeliveriesError
from natty.consuming.options import key_by
from natty.consuming.work import Work
from natty.elections import clock
from natty.groups.joining import JoinOptions
from natty.groups.partitions import PartitionedMessage, token_of
from natty.groups.stint import Memory, PinnedStint
from natty.jetstream import JetStream
from natty.wire.ack import first_delivery
from natty.wire.connection import Connection
from natty.wire.message import Message

REPLY = b"$JS.ACK.S.m.1.7.7.1700000000000000000.0"


def member(handler, key=token_of, **options):
    """Return the work of a member that has begun, what it remembers, a stint of it, and what it sends."""
    sent, memory = Sent(), Memory(options.get("max_deliveries", 30), gives_up=False)
    options = JoinOptions(dead_letters=False, **options)
    jetstream = JetStream(Connection(Config()))
    work = Work(jetstream, ("g", "m"), "g", handler, options, make=PartitionedMessage, key=key, default_key=token_of)
    work.start()
    stint = PinnedStint(object(), "pin", sent, first_delivery("S", "m"), margin=1.0, memory=memory)
    stint.extend(clock() + 1000.0)
    stint.begin()
    return work, memory, stint, sent


@pytest.mark.parametrize("ends", [False, True])
async def test_a_handler_that_outlives_its_lease_acknowledges_nothing(ends):
    """Somebody else may have the message by then: the ack would be taken for theirs."""
    began, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message):
        began.set()
        await go_on.wait()

    work, _, stint, sent = member(handle)
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


async def test_an_ack_that_is_kept_without_a_connection_is_valid_until_the_lease_in_which_it_was_due_ends():
    async def handle(message):
        pass

    work, memory, stint, sent = member(handle)
    work.add(stint, [(b"3.orders", REPLY, b"", b"x")])
    await until(lambda: sent.acks)
    assert sent.valid()
    stint.until = clock()
    later = PinnedStint(object(), "another pin", sent, first_delivery("S", "m"), margin=1.0, memory=memory)
    later.extend(clock() + 1000.0)
    assert not sent.valid()
    await work.close(PATIENCE)


async def test_what_came_too_often_is_remembered_only_while_more_of_its_key_is_in_hand():
    go_on = asyncio.Event()

    async def handle(message):
        if message.data == b"slow":
            await go_on.wait()

    work, memory, stint, sent = member(handle, key_by("subject"), ordered_by="subject", max_deliveries=1)
    often = [(b"3.k%d" % n, b"$JS.ACK.S.m.2.%d.%d.1700000000000000000.0" % (n, n), b"", b"") for n in range(1, 30)]
    work.add(stint, [*often, (b"3.k1", REPLY.replace(b".7.7.", b".50.50."), b"", b"slow")])
    await until(lambda: sent.finished_messages == 29)
    assert len(memory.suspects) == 29
    memory.age({turn.key for turn in work.iterate_held()})
    assert list(memory.suspects) == ["k1"]
    go_on.set()
    await until(lambda: sent.finished_messages == 30)
    memory.age({turn.key for turn in work.iterate_held()})
    assert memory.suspects == {}
    await work.close(PATIENCE)


def delivery(sequence, times, key="k"):
    reply = b"$JS.ACK.S.m.%d.%d.%d.1700000000000000000.0" % (times, sequence, sequence)
    return SimpleNamespace(key=key, message=Message((b"a", reply, b"", b"")))


@pytest.mark.parametrize(
    ("earlier", "one", "refused"),
    [
        ([], (1, 3), False),
        ([], (1, 4), True),
        ([(1, 4)], (1, 4), True),  # the same one again
        ([(1, 4)], (2, 4), False),  # it waited behind the other, and was delivered as often
        ([(1, 4)], (2, 5), True),
        ([(1, 5)], (2, 4), False),
        ([(1, 4)], (2, 4, "other"), True),
    ],
)
def test_only_the_message_that_stops_its_key_is_refused_for_its_deliveries(earlier, one, refused):
    memory = Memory(3, gives_up=True)
    for other in earlier:
        with pytest.raises(TooManyDeliveriesError):
            memory.check(delivery(*other))
    with pytest.raises(TooManyDeliveriesError, match="max_deliveries 3") if refused else nullcontext():
        memory.check(delivery(*one))


def test_a_success_is_remembered_until_the_second_ageing_and_a_suspect_while_its_key_is_busy():
    memory = Memory(3, gives_up=True)
    memory.note_success(b"1.1")
    assert memory.knows(b"1.1")
    with pytest.raises(TooManyDeliveriesError):
        memory.check(delivery(1, 4))
    memory.age({"k"})
    assert memory.knows(b"1.1")
    assert "k" in memory.suspects
    memory.age(set())
    assert not memory.knows(b"1.1")
    assert not memory.suspects
