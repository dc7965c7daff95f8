"""Closing a client: handlers finish and the server has their acks, what they published is stored, then it ends."""

import asyncio
import logging

import pytest
from consuming import HANDED_BACK, Handler, fill, info
from patient import NEVER, PATIENCE, PATIENT, until

from natty import Natty, NotConnectedError
from natty.consuming import closing
from natty.groups import PartitioningFilter
from natty.pulling import pull as pulling
from natty.wire import connection

LADDER_LESS = {"dead_letters": False, "consumer": HANDED_BACK}


@pytest.fixture(autouse=True)
def time_to_leave(monkeypatch):
    """A machine that stands still must not use up the time for leaving."""
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", PATIENCE)
    monkeypatch.setattr(pulling, "DRAIN_TIMEOUT", PATIENCE)
    monkeypatch.setattr(closing, "SPARE", PATIENCE)


@pytest.fixture
async def client(nats_server):
    """A client to be closed by the test."""
    client = await Natty.connect(**PATIENT | nats_server.connect_options())
    yield client
    await client.connection.close()


@pytest.fixture
async def stream(natty, natty_name):
    """A stream of five messages."""
    return await fill(natty, natty_name("CLOSE"), 5)


async def settled(natty, stream):
    """Return (the last message below which all are acknowledged, how many are delivered and open)."""
    state = await info(natty, stream)
    return state["ack_floor"]["stream_seq"], state["num_ack_pending"]


async def ended(task):
    async with asyncio.timeout(PATIENCE):
        return await task


async def test_closing_lets_the_running_handlers_finish_and_sends_their_acks(natty, client, stream, start):
    handler = Handler()
    handler.gate.clear()
    consumption, task = start(stream, handler, client=client, concurrency=2, shutdown_timeout=NEVER, **LADDER_LESS)
    await until(lambda: handler.running == 2)
    close = asyncio.create_task(client.close())
    await asyncio.sleep(0.2)  # for them to be cut short, or the connection to be closed, if it were
    assert (handler.running, client.connection.state, close.done()) == (2, "connected", False)
    handler.gate.set()
    await ended(close)
    assert (handler.done, consumption.handled, client.connection.state) == ([0, 1], 2, "closed")
    await ended(task)
    assert (await settled(natty, stream))[0] == 2
    rest = Handler()
    start(stream, rest, dead_letters=False)
    await until(lambda: sorted(rest.done) == [2, 3, 4])


async def test_what_handlers_publish_in_the_background_is_stored_before_the_end(natty, client, stream, start):
    gate, running = asyncio.Event(), asyncio.Event()

    async def handle(message):
        running.set()
        await gate.wait()
        await client.publish_async(f"{stream}.out", b"answer")

    start(stream, handle, client=client, shutdown_timeout=NEVER, **LADDER_LESS)
    await ended(running.wait())
    close = asyncio.create_task(client.close())
    await asyncio.sleep(0.1)  # for the outbox to be closed, if that came first
    gate.set()
    await ended(close)
    assert (await natty.get_message(stream, last_for=f"{stream}.out")).data == b"answer"
    assert (await settled(natty, stream))[0] == 1


@pytest.mark.parametrize("threads", [False, True])
async def test_a_handler_that_takes_too_long_is_cut_short_and_its_message_goes_to_others(
    natty, client, stream, start, caplog, threads
):
    release, begun = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    async def handle(message):
        begun.append(message.sequence)
        await release.wait()

    def handle_in_thread(message):
        begun.append(message.sequence)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

    handler = handle_in_thread if threads else handle
    _, task = start(stream, handler, client=client, shutdown_timeout=0.1, **LADDER_LESS)
    await until(lambda: begun)
    await ended(client.close())
    await ended(task)
    assert "1 handlers did not finish within 0.1 s: cancelled" in caplog.text
    release.set()
    rest = Handler()
    start(stream, rest, dead_letters=False)
    await until(lambda: sorted(rest.done) == [0, 1, 2, 3, 4])


async def test_leaving_the_block_does_the_same_after_an_error_too(natty, nats_server, stream, start):
    handler = Handler()
    handler.gate.clear()

    async def body():
        async with Natty(**PATIENT | nats_server.connect_options()) as client:
            start(stream, handler, client=client, shutdown_timeout=NEVER, **LADDER_LESS)
            await until(lambda: handler.running)
            asyncio.get_running_loop().call_later(0.2, handler.gate.set)
            raise ValueError("of the body")

    with pytest.raises(ValueError, match="of the body"):
        await ended(body())
    assert (await settled(natty, stream))[0] == len(handler.done) == 1


@pytest.mark.parametrize("within", ["handler", "its task", "a thread"])
async def test_a_handler_that_closes_the_client_is_acknowledged_and_nothing_hangs(natty, client, stream, start, within):
    loop, handled = asyncio.get_running_loop(), []

    async def handle(message):
        await (client.close() if within == "handler" else asyncio.create_task(client.close()))
        await client.publish_async(f"{stream}.out", b"answer")
        handled.append((message.sequence, client.connection.state))

    def handle_in_thread(message):
        asyncio.run_coroutine_threadsafe(client.close(), loop).result(PATIENCE)
        handled.append((message.sequence, client.connection.state))

    handler = handle_in_thread if within == "a thread" else handle
    _, task = start(stream, handler, client=client, shutdown_timeout=NEVER, **LADDER_LESS)
    await ended(task)
    assert handled == [(1, "connected")]
    await ended(client.close())  # a second one waits for the end like any other
    assert client.connection.state == "closed"
    assert (await settled(natty, stream))[0] == 1
    await until(lambda: not client.connection.lifetime.closing)


async def test_all_who_close_at_the_same_time_wait_for_the_end(natty, client, stream, start):
    handler = Handler()
    handler.gate.clear()
    start(stream, handler, client=client, shutdown_timeout=NEVER, **LADDER_LESS)
    await until(lambda: handler.running)
    closing_ = [asyncio.create_task(client.close()) for _ in range(3)]
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in closing_)
    handler.gate.set()
    await ended(asyncio.gather(*closing_))
    assert client.connection.state == "closed"
    assert (await settled(natty, stream))[0] == 1
    await ended(client.close())


async def test_closing_that_is_cancelled_closes_at_once(client, stream, start):
    handler = Handler()
    handler.gate.clear()
    _, task = start(stream, handler, client=client, shutdown_timeout=NEVER, **LADDER_LESS)
    await until(lambda: handler.running)
    await client.publish_async(f"{stream}.out", b"")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.close()
    assert client.connection.state == "closed"
    with pytest.raises(Exception, match="closed"):
        await client.publish_async(f"{stream}.out", b"")
    handler.gate.set()
    await ended(task)


async def test_a_consumption_that_does_not_end_is_waited_for_no_longer_than_its_time(
    client, stream, start, monkeypatch, caplog
):
    monkeypatch.setattr(closing, "SPARE", 0.1)
    release, begun = asyncio.Event(), asyncio.Event()

    async def stubborn(message):
        begun.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    _, task = start(stream, stubborn, client=client, shutdown_timeout=0.1, **LADDER_LESS)
    await ended(begun.wait())
    await ended(client.close())
    assert client.connection.state == "closed"
    assert "closing although 1 running parts of the client have not ended within 0.2 s" in caplog.text
    release.set()
    await ended(task)


async def test_who_iterates_in_another_task_may_settle_the_message_in_hand(natty, client, stream):
    gate, in_hand, took = asyncio.Event(), asyncio.Event(), []

    async def iterate():
        async for message in client.consume(stream, "d", shutdown_timeout=NEVER, consumer=HANDED_BACK):
            in_hand.set()
            await gate.wait()
            message.ack()
            took.append(message.sequence)

    iterating = asyncio.create_task(iterate())
    await ended(in_hand.wait())
    close = asyncio.create_task(client.close())
    await asyncio.sleep(0.1)
    assert not close.done()
    gate.set()
    await ended(close)
    await ended(iterating)
    assert took == [1]
    assert (await settled(natty, stream))[0] == 1


async def test_who_closes_while_iterating_is_not_waited_for(natty, client, stream):
    took = []
    async for message in client.consume(stream, "d", shutdown_timeout=NEVER, consumer=HANDED_BACK):
        message.ack()
        took.append(message.sequence)
        await ended(client.close())
    assert took == [1]
    assert (await settled(natty, stream))[0] == 1


async def test_a_member_of_a_group_finishes_what_runs(natty, client, natty_name):
    name = natty_name("GROUP")
    await natty.ensure_stream(name, subjects=[f"{name}.*"])
    group = natty.group(name, "g")
    await group.create(1, [PartitioningFilter(f"{name}.*", (1,))])
    await group.add("m")
    handler = Handler()
    handler.gate.clear()
    for number in range(3):
        await natty.publish(f"{name}.{number}", b"%d" % number)
    async with client.group(name, "g").join("m", handler, shutdown_timeout=NEVER) as membership:
        await until(lambda: handler.running)
        close = asyncio.create_task(client.close())
        await asyncio.sleep(0.2)
        assert (handler.running, client.connection.state) == (1, "connected")
        handler.gate.set()
        await ended(close)
        await ended(membership.wait_until_ended())
    assert handler.done == [0]
    left = Handler()
    async with group.join("m", left):
        await until(lambda: len(left.done) == 2)
    assert left.done == [1, 2]


async def test_other_clients_go_on(natty, client, stream, start):
    handler = Handler()
    consumption, _ = start(stream, handler, **LADDER_LESS)
    await until(lambda: consumption.handled == 5)
    await ended(client.close())
    await natty.publish(f"{stream}.x", b"5")
    await until(lambda: consumption.handled == 6)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["half_open", "cut"])
async def test_a_link_that_is_dead_does_not_keep_a_consumption_from_closing(
    natty_proxy, stream, start, monkeypatch, caplog, fault
):
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", 0.5)
    monkeypatch.setattr(pulling, "DRAIN_TIMEOUT", 0.5)
    client = await Natty.connect(**PATIENT | natty_proxy.options | {"timeout": NEVER})
    handler = Handler()
    _, task = start(stream, handler, client=client, **LADDER_LESS)
    await until(lambda: len(handler.done) == 5)
    if fault == "cut":
        await natty_proxy.cut()
    else:
        natty_proxy.half_open()
    await ended(client.close())
    assert client.connection.state == "closed"
    await ended(task)


async def test_who_waits_for_an_answer_to_a_ping_hears_of_the_end(natty_proxy, monkeypatch):
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", 0.1)
    client = await Natty.connect(**PATIENT | natty_proxy.options)
    natty_proxy.hold()
    flushing = asyncio.create_task(client.connection.flush(NEVER))
    await asyncio.sleep(0)
    await ended(client.close())
    with pytest.raises(NotConnectedError):
        await ended(flushing)
    natty_proxy.release()
