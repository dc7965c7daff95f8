"""Acks that are awaited, and consumptions as tasks, against real servers."""

import asyncio
import gc
import warnings
from contextlib import aclosing

import pytest
from consuming import fill, info
from patient import PATIENCE, PATIENT

from natty import Message, Natty, NoRespondersError, NotConnectedError


async def one_message(client, stream):
    """Return one message of the stream's consumer, the only one that is delivered, and not settled."""
    await client.create_consumer(stream, "d")
    batches = client.pull(stream, "d", max_messages=1).__aiter__()
    async with aclosing(batches):
        (message,) = await anext(batches)
        return message


async def pending(client, stream, durable="d"):
    """How many messages the server has delivered and waits for."""
    return (await info(client, stream, durable))["num_ack_pending"]


@pytest.fixture
async def stream(natty, natty_name):
    return await fill(natty, natty_name("CONFIRM"), 3)


AWAITED = {"awaited": {}, "confirm=True": {"confirm": True}}


@pytest.mark.parametrize("how", AWAITED)
@pytest.mark.parametrize("settle", ["ack", "term"])
async def test_when_it_is_awaited_the_server_has_settled_the_message(natty, stream, settle, how):
    message = await one_message(natty, stream)
    assert await pending(natty, stream) == 1
    await getattr(message, settle)(**AWAITED[how])
    assert message.settled
    assert await pending(natty, stream) == 0


@pytest.mark.parametrize("how", AWAITED)
async def test_when_a_nak_is_awaited_the_server_delivers_the_message_again(natty, stream, how):
    message = await one_message(natty, stream)
    await message.nak(**AWAITED[how])
    again = await one_message(natty, stream)
    assert (again.sequence, again.deliveries) == (message.sequence, 2)


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
@pytest.mark.parametrize("replicas", [1, 3])
async def test_an_ack_is_confirmed_on_every_kind_of_stream(nats_cluster, natty_name, retention, replicas):
    name = natty_name("KINDS")
    async with Natty(**PATIENT | nats_cluster[0].connect_options()) as client:
        await client.create_stream(name, subjects=[f"{name}.>"], retention=retention, num_replicas=replicas)
        await client.create_consumer(name, "d")
        for number in range(3):
            await client.publish(f"{name}.{number}", b"", msg_id=str(number))
        settled = 0
        async for message in client.consume(name, "d"):
            first = message.ack(confirm=settled == 1)
            await first
            await first  # again: nothing else happens
            await message.ack()
            settled += 1
            if settled == 3:
                break
        assert await pending(client, name) == 0


async def test_an_ack_that_is_not_awaited_is_sent_and_nothing_warns(natty, stream):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async for message in natty.consume(stream, "d"):
            message.ack(confirm=message.sequence == 2)
            if message.sequence == 3:
                break
        gc.collect()
    async with asyncio.timeout(PATIENCE):
        while await pending(natty, stream):
            await asyncio.sleep(0.01)


async def test_the_first_way_to_settle_a_message_counts(natty, stream):
    message = await one_message(natty, stream)
    message.nak(3600)
    await message.ack()  # sends nothing: it was handed back
    await message.ack(confirm=True)
    assert await pending(natty, stream) == 1


async def test_an_ack_of_a_consumer_that_is_gone_says_so(natty, stream):
    message = await one_message(natty, stream)
    await natty.delete_consumer(stream, "d")
    with pytest.raises(NoRespondersError):
        await message.ack(confirm=True)


async def test_an_ack_without_a_connection_says_so(nats_server, natty, stream):
    async with Natty(**PATIENT | nats_server.connect_options()) as client:
        message = await one_message(client, stream)
    with pytest.raises(NotConnectedError):
        message.ack()
    with pytest.raises(NotConnectedError):
        await message.ack(confirm=True)


async def test_a_handler_in_a_thread_waits_for_the_confirmation(natty, stream):
    seen = []

    def handle(message: Message) -> None:
        message.ack(confirm=True)
        seen.append(message.sequence)
        if len(seen) == 3:
            consumption.stop()

    consumption = natty.consume(stream, "d", handle)
    await asyncio.wait_for(consumption, PATIENCE)
    assert seen == [1, 2, 3]
    assert await pending(natty, stream) == 0


async def in_a_group(consumption):
    async with asyncio.TaskGroup() as group:
        group.create_task(consumption)


RUN = {
    "await": lambda one: one,
    "run": lambda one: one.run(),
    "create_task": lambda one: asyncio.create_task(one),
    "gather": lambda one: asyncio.gather(one),
    "wait_for": lambda one: asyncio.wait_for(one, PATIENCE),
    "TaskGroup": in_a_group,
}


@pytest.mark.parametrize("way", RUN)
async def test_a_consumption_runs_as_whatever_runs_a_coroutine(natty, stream, way):
    seen = []

    async def handle(message: Message) -> None:
        seen.append(message.sequence)
        if len(seen) == 3:
            consumption.stop()

    consumption = natty.consume(stream, "d", handle)
    await RUN[way](consumption)
    assert seen == [1, 2, 3]


async def test_a_consumption_that_runs_as_a_task_can_be_cancelled(natty, stream):
    started = asyncio.Event()

    async def handle(message: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(natty.consume(stream, "d", handle, shutdown_timeout=0.5))
    await asyncio.wait_for(started.wait(), PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_consumption_that_is_not_used_warns_of_nothing(natty, stream):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        natty.consume(stream, "d", lambda message: None)
        gc.collect()
