"""Errors of publishing reach the program: by callbacks, plain or `async def`, and by counts."""

import asyncio
import threading
from itertools import count

import pytest
from patient import PATIENCE, until

from natty import Natty, OutboxOptions, PublishError
from natty.blocking import Natty as BlockingNatty


@pytest.fixture
async def full(natty, natty_name):
    """A stream that takes two messages, and refuses more."""
    name = natty_name("FULL")
    await natty.create_stream(name, subjects=[f"{name}.>"], max_msgs=2, discard="new")
    return name


async def publish(publisher, stream):
    for number in range(4):
        await publisher(f"{stream}.a", b"%d" % number, msg_id=str(number))


@pytest.mark.parametrize("waits", [False, True], ids=["def", "async def"])
async def test_a_publisher_calls_on_error_with_each_message_that_is_not_stored(natty, full, waits):
    told = []

    async def later(error):
        await asyncio.sleep(0.05)
        told.append(error)

    async with natty.publisher(full, on_error=later if waits else told.append) as publisher:
        await publish(publisher.publish, full)
        await publisher.flush()
        assert sorted(error.data for error in told) == [b"2", b"3"]
    assert publisher.failures == []
    assert publisher.counts == {"stored": 2, "failed": 2, "duplicates": 0}


@pytest.mark.parametrize("fault", [ZeroDivisionError, asyncio.CancelledError])
@pytest.mark.parametrize("waits", [False, True], ids=["def", "async def"])
async def test_what_on_error_fails_with_is_raised_by_flush(natty, full, caplog, waits, fault):
    def broken(error):
        raise fault

    async def broken_later(error):
        raise fault

    publisher = natty.publisher(full, on_error=broken_later if waits else broken)
    with pytest.raises(PublishError, match="2 of 4 messages were not stored"):
        async with publisher:
            await publish(publisher.publish, full)
    assert sorted(error.data for error in publisher.failures) == [b"2", b"3"]
    assert fault.__name__ in caplog.text
    assert f"on_error of {full} failed; the error is kept in publisher.failures: message '2'" in caplog.text


@pytest.mark.parametrize("aside", [False, True], ids=["by itself", "in a task"])
async def test_a_coroutine_function_gets_the_errors_of_publish_async_and_may_use_the_client(natty, full, aside):
    told = []

    @natty.on_publish_error
    async def note(error):
        await (asyncio.gather(natty.flush_publishers()) if aside else natty.flush_publishers())
        told.append((error.data, (await natty.stream_info(full))["state"]["messages"]))

    await publish(natty.publish_async, full)
    await natty.flush_publishers()
    await until(lambda: len(told) == 2)
    assert sorted(told) == [(b"2", 2), (b"3", 2)]
    assert natty.outbox.counts == {"stored": 2, "failed": 2, "duplicates": 0}
    await natty.delete_publisher(f"{full}.a")
    assert natty.outbox.counts == {"stored": 2, "failed": 2, "duplicates": 0}


async def test_what_a_coroutine_function_fails_with_is_kept(natty, full):
    async def broken(error):
        raise ZeroDivisionError

    natty.on_publish_error(broken)
    await publish(natty.publish_async, full)
    await natty.flush_publishers()
    errors = natty.publish_errors()
    assert sorted([(await anext(errors)).data, (await anext(errors)).data]) == [b"2", b"3"]


async def test_the_outbox_has_on_error_among_its_options(natty, full):
    told = []
    natty.outbox.configure(OutboxOptions(on_error=told.append))
    await publish(natty.publish_async, full)
    await natty.flush_publishers()
    assert sorted(error.data for error in told) == [b"2", b"3"]


async def test_the_blocking_client_calls_back_in_a_thread_that_may_use_it(nats_server, full):
    told = []

    def use():
        with BlockingNatty(**nats_server.connect_options()) as client:

            @client.on_publish_error
            def note(error):
                client.delete_publisher(f"{full}.a")
                client.flush_publishers()
                told.append((error.data, client.stream_info(full)["state"]["messages"], threading.current_thread()))

            for number in range(4):
                client.publish_async(f"{full}.a", b"%d" % number, msg_id=str(number))
            client.flush_publishers()
            assert len(told) == 2

    await asyncio.to_thread(use)
    assert sorted((data, messages) for data, messages, _ in told) == [(b"2", 2), (b"3", 2)]
    assert threading.main_thread() not in {thread for *_, thread in told}


async def test_the_callback_of_the_blocking_client_can_not_close_it(nats_server, full):
    refusals = []

    def use():
        with BlockingNatty(**nats_server.connect_options()) as client:

            @client.on_publish_error
            def note(error):
                try:
                    client.close()
                except RuntimeError as refusal:
                    refusals.append(str(refusal))

            for number in range(4):
                client.publish_async(f"{full}.a", b"%d" % number, msg_id=str(number))

    await asyncio.to_thread(use)
    assert refusals == ["on_publish_error can't close its own client: return, and let the program close it"] * 2


async def test_a_coroutine_function_may_close_the_client_and_gets_all_errors(nats_server, full):
    client, told = Natty(**nats_server.connect_options()), []

    async def note(error):
        await asyncio.gather(client.close())
        told.append(error.data)

    await client.connection.open()
    client.on_publish_error(note)
    await publish(client.publish_async, full)
    await until(lambda: len(told) == 2)
    assert sorted(told) == [b"2", b"3"]


async def test_closing_waits_for_the_callback(nats_server, full):
    told = []

    async def note(error):
        await asyncio.sleep(0.05)
        told.append(error.data)

    async with Natty(**nats_server.connect_options()) as client:
        client.on_publish_error(note)
        await publish(client.publish_async, full)
    assert sorted(told) == [b"2", b"3"]


async def test_a_callback_that_does_not_keep_up_stops_publish_async(natty, full):
    gate, told = asyncio.Event(), []

    async def note(error):
        await gate.wait()
        told.append(error.data)

    async def flood():
        for number in count():
            await natty.publish_async(f"{full}.a", b"%d" % number, msg_id=str(number))
            await asyncio.sleep(0)

    natty.outbox.configure(OutboxOptions(max_errors=10, on_error=note))
    with pytest.raises(PublishError, match=r"\d+ publish errors are unread: .* set an on_publish_error that keeps up"):
        await asyncio.wait_for(flood(), PATIENCE)
    gate.set()
    await natty.flush_publishers()
    assert told == [b"%d" % number for number in range(2, natty.outbox.counts["failed"] + 1)]  # one was refused
    await natty.publish_async(f"{full}.a", b"again")
