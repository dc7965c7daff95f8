"""`client.read`: a stream in order, against a real server."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest
from patient import PATIENCE, PATIENT

from natty import Natty, StreamNotFoundError
from natty.config.units import parse_time


@pytest.fixture
async def stream(natty, natty_name):
    """A stream of ten messages on a.0 to b.9 by turns."""
    name = natty_name("READ")
    await natty.create_stream(name, subjects=[f"{name}.>"])
    for number in range(10):
        await natty.publish(f"{name}.{'ab'[number % 2]}.{number}", b"%d" % number)
    return name


async def next_consumer(natty, stream, before):
    """Wait until the stream has other consumers than before; return their names."""
    async with asyncio.timeout(PATIENCE):
        while (names := (await natty.jetstream.request(f"CONSUMER.NAMES.{stream}"))["consumers"] or before) == before:
            await asyncio.sleep(0.01)
    return names


async def numbers(reading):
    return [int(message.data) async for message in reading]


async def test_a_stream_is_read_from_its_first_message_to_its_end(natty, stream):
    messages = [message async for message in natty.read(stream)]
    assert [(message.sequence, message.data) for message in messages] == [(n + 1, b"%d" % n) for n in range(10)]
    async with asyncio.timeout(PATIENCE):  # its consumer is removed
        while (await natty.jetstream.request(f"CONSUMER.NAMES.{stream}"))["total"]:
            await asyncio.sleep(0.01)


async def test_it_is_read_from_a_sequence_or_a_time_and_by_subjects(natty, stream):
    assert await numbers(natty.read(stream, from_sequence=8)) == [7, 8, 9]
    assert await numbers(natty.read(stream, subjects=f"{stream}.a.*")) == [0, 2, 4, 6, 8]
    assert await numbers(natty.read(stream, subjects=[f"{stream}.a.0", f"{stream}.b.>"])) == [0, 1, 3, 5, 7, 9]
    assert await numbers(natty.read(stream, from_sequence=5, subjects=f"{stream}.b.*")) == [5, 7, 9]
    eighth = (await natty.get_message(stream, sequence=8)).time
    since = datetime.fromtimestamp(parse_time(eighth) / 1e9, UTC) - timedelta(microseconds=1)
    assert (await numbers(natty.read(stream, from_time=since)))[-3:] == [7, 8, 9]
    assert await numbers(natty.read(stream, from_time=since - timedelta(days=1))) == list(range(10))
    assert (await numbers(natty.read(stream, from_time=eighth)))[-3:] == [7, 8, 9]
    ninth = (await natty.get_message(stream, sequence=9)).time
    if parse_time(ninth) > parse_time(eighth):  # to the nanosecond
        assert (await numbers(natty.read(stream, from_time=ninth)))[0] == 8


async def test_what_holds_nothing_to_read_ends_at_once(natty, stream, natty_name):
    assert await numbers(natty.read(stream, from_sequence=11)) == []
    assert await numbers(natty.read(stream, from_sequence=1000)) == []
    assert await numbers(natty.read(stream, from_time=datetime(2099, 1, 1, tzinfo=UTC))) == []
    assert await numbers(natty.read(stream, subjects=f"{stream}.c")) == []
    empty = natty_name("EMPTY")
    await natty.create_stream(empty, subjects=[empty])
    assert await numbers(natty.read(empty)) == []


async def test_a_stream_whose_last_message_was_deleted_is_read_whole(natty, natty_name):
    name = natty_name("READ")
    await natty.create_stream(name, subjects=[f"{name}", f"{name}.>"])
    for subject in (f"{name}.a", name, f"{name}.a"):
        await natty.publish(subject, b"")
    await natty.delete_message(name, 3)
    assert [message.sequence async for message in natty.read(name)] == [1, 2]
    await natty.delete_message(name, 2)
    assert [message.sequence async for message in natty.read(name)] == [1]
    await natty.delete_message(name, 1)
    assert [message.sequence async for message in natty.read(name)] == []


async def test_headers_alone_are_read_on_demand(natty, stream):
    messages = [message async for message in natty.read(stream, headers_only=True)]
    assert {message.data for message in messages} == {b""}
    assert messages[0].headers["Nats-Msg-Size"] == ["1"]


async def test_who_follows_reads_what_is_stored_from_then_on(natty, stream):
    seen = []
    async with aclosing(natty.read(stream, from_sequence=9, follow=True)) as reading, asyncio.timeout(PATIENCE):
        async for message in reading:
            seen.append(int(message.data))
            if len(seen) == 2:
                await natty.publish(f"{stream}.a.10", b"10")
            if len(seen) == 3:
                break
    assert seen == [8, 9, 10]


async def test_who_follows_from_far_beyond_the_end_is_shown_nothing_before(natty_proxy, natty, stream):
    async with (
        Natty(**PATIENT | natty_proxy.options) as client,
        aclosing(client.read(stream, from_sequence=15, follow=True)) as reading,
    ):
        first = asyncio.create_task(anext(reading))
        before = await next_consumer(natty, stream, [])
        for number in range(10, 12):
            await natty.publish(f"{stream}.a.{number}", b"%d" % number)
        await natty_proxy.cut()
        await natty_proxy.restore()
        await client.connection.ready(PATIENCE)
        await next_consumer(natty, stream, before)  # it has read all, since the stream ends before its position
        for number in range(12, 15):
            await natty.publish(f"{stream}.a.{number}", b"%d" % number)
        assert (await asyncio.wait_for(first, PATIENCE)).sequence == 15


async def test_a_reader_outlives_a_reconnect_without_a_gap(natty_proxy, natty, stream):
    seen = []
    async with (
        Natty(**PATIENT | natty_proxy.options) as client,
        aclosing(client.read(stream, follow=True)) as reading,
        asyncio.timeout(PATIENCE),
    ):
        async for message in reading:
            seen.append(message.sequence)
            if len(seen) == 4:
                await natty_proxy.cut()
                await natty.publish(f"{stream}.a.10", b"10")
                await natty_proxy.restore()
            if len(seen) == 11:
                break
    assert seen == list(range(1, 12))


async def test_a_stream_that_is_missing_or_deleted_meanwhile_is_an_error(natty, stream, natty_name):
    with pytest.raises(StreamNotFoundError):
        await numbers(natty.read(natty_name("NONE")))
    reading = natty.read(stream, follow=True)
    for _ in range(10):
        await anext(reading)
    await natty.delete_stream(stream)
    with pytest.raises(StreamNotFoundError, match=f"stream {stream} was deleted while it was read"):
        await asyncio.wait_for(anext(reading), PATIENCE)


async def test_a_message_that_was_read_can_not_be_acknowledged(natty, stream):
    message = await anext(natty.read(stream))
    with pytest.raises(RuntimeError, match=r"messages of read\(\) need no ack"):
        message.ack()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"from_sequence": 1, "from_time": datetime.now(UTC)}, "exclude each other"),
        ({"from_sequence": 0}, "from_sequence is 0"),
        ({"from_time": datetime(2026, 1, 1)}, "has no time zone"),
        (
            {"from_time": "2026-01-01T00:00:00"},
            "from_time is '2026-01-01T00:00:00'; write a time as 2026-11-21T06:00:00Z",
        ),
        ({"from_time": "soon"}, "from_time is 'soon'; write a time"),
        ({"from_time": 1.5}, r"from_time is 1\.5; write a datetime, or text"),
        ({"from_sequence": "3"}, "from_sequence is '3'; write a whole number, 1 or more"),
        ({"subjects": 3}, "subjects is 3; write text, or a list; each element is text"),
        ({"subjects": [3]}, r"subjects is \[3\]; write text, or a list"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, text):
    with pytest.raises((ValueError, TypeError), match=text):
        Natty().read("S", **options)
