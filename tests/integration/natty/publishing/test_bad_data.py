"""One message that can't be sent fails alone, at the call: what is published beside it is stored."""

import asyncio

import pytest
from patient import PATIENCE, PATIENT, until
from publishing import UNHURRIED, make_stream, payloads

from natty import Natty, NotConnectedError, PubAck
from natty.errors import BadSubjectError, ConnectionClosedError, PayloadTooLargeError
from natty.publishing.atomic import AtomicMessage

PATHS = pytest.mark.parametrize("path", ["fast", "window"])
NOT_BYTES = pytest.mark.parametrize("bad", ["a str", None, 7, {"a": 1}])
INJECTION = "a 0\r\n\r\nPUB foreign"


@pytest.fixture
async def stream(natty, natty_name):
    """A stream that takes messages on every path, `<name>.>`."""
    return await make_stream(natty, natty_name("BAD"), allow_atomic=True)


def inbox(natty, subject):
    """Subscribe, and collect the payloads."""
    got = []
    natty.connection.subscribe(subject, lambda batch: got.extend(batch.payloads))
    return got


@NOT_BYTES
async def test_nine_publishes_are_stored_beside_one_whose_data_is_not_bytes(natty, stream, bad):
    data = [b"%d" % number for number in range(9)]
    data.insert(4, bad)
    told = await asyncio.gather(*(natty.publish(f"{stream}.a", one) for one in data), return_exceptions=True)
    assert [type(one) for one in told] == [PubAck] * 4 + [TypeError] + [PubAck] * 5
    assert f"must be bytes and is of type {type(bad).__name__}" in str(told[4])
    assert await payloads(natty, stream) == [one for one in data if one is not bad]


@PATHS
@pytest.mark.parametrize("ids", [False, True])
async def test_a_publisher_stores_a_hundred_beside_one_that_it_can_not_take(natty, stream, path, ids):
    taken = [b"%d" % number for number in range(100)]
    async with natty.publisher(stream, path=path, **UNHURRIED) as publisher:
        for number, data in enumerate(taken):
            if number == 50:
                with pytest.raises(TypeError, match="must be bytes and is of type str"):
                    await publisher.publish(f"{stream}.a", "a str", msg_id="bad" if ids else "")
                with pytest.raises(TypeError, match="its name and its value must be str"):
                    await publisher.publish(f"{stream}.a", b"", headers={"A": 1})
                with pytest.raises(ValueError, match="header name 'a b'"):
                    await publisher.publish(f"{stream}.a", b"", headers={"a b": "1"})
            await publisher.publish(f"{stream}.a", data, msg_id=str(number) if ids else "")
        assert publisher.waiting <= 100
    assert (publisher.stored, publisher.failures) == (100, [])
    assert await payloads(natty, stream) == taken


async def test_what_the_background_can_not_take_is_told_to_its_caller_alone(natty, stream):
    await natty.publish_async(f"{stream}.a", b"1")
    with pytest.raises(TypeError, match="must be bytes and is of type str"):
        await natty.publish_async(f"{stream}.a", "2")
    await natty.publish_async(f"{stream}.a", b"3")
    await natty.flush_publishers()
    assert await payloads(natty, stream) == [b"1", b"3"]
    assert len(natty.outbox.errors) == 0


async def test_an_atomic_batch_with_one_that_is_not_bytes_names_it_and_sends_nothing(natty, stream):
    with pytest.raises(TypeError, match="the data of message 2 of the batch must be bytes and is of type str"):
        await natty.publish_atomic([(f"{stream}.a", b"1"), AtomicMessage(subject=f"{stream}.a", data="2")])
    await natty.publish_atomic([(f"{stream}.a", b"1"), (f"{stream}.a", bytearray(b"2"))])
    assert await payloads(natty, stream) == [b"1", b"2"]


@PATHS
async def test_a_buffer_is_stored_as_it_was_at_the_call(natty, stream, path):
    async with natty.publisher(stream, path=path, **UNHURRIED) as publisher:
        buffer = bytearray(b"before")
        await publisher.publish(f"{stream}.a", buffer)
        await publisher.publish(f"{stream}.a", memoryview(buffer)[:3])
        buffer[:] = b"after!"
    assert await payloads(natty, stream) == [b"before", b"bef"]


async def test_a_value_that_is_not_bytes_leaves_the_key_as_it_was(natty, natty_name):
    bucket = await natty.create_bucket(natty_name("values"))
    entry = await bucket.get("k") if await bucket.put("k", b"1") else None
    writes = [
        bucket.put("k", "2"),
        bucket.create("new", "2"),
        bucket.update("k", 2, revision=entry.revision),
        bucket.modify("k", lambda value: "2"),
    ]
    told = await asyncio.gather(*writes, bucket.put("other", b"3"), return_exceptions=True)
    assert [type(one) for one in told[:-1]] == [TypeError] * 4
    assert (await bucket.keys(), (await bucket.get("k")).value) == (["k", "other"], b"1")


async def test_what_the_connection_can_not_send_fails_at_the_call_and_nothing_beside_it(natty, natty_name):
    connection, subject = natty.connection, natty_name("beside")
    got, word = inbox(natty, subject), subject.encode()
    calls = [
        lambda: connection.send(subject, "text"),
        lambda: connection.send(subject, b"", headers="text"),
        lambda: connection.send(subject, b"", reply=7),
        lambda: connection.send(7, b""),
        lambda: connection.send_many([(word, b"", b"", b"not sent"), (word, b"", b"", "text")]),
        lambda: connection.send_to_each([word, subject], b""),
        lambda: connection.send_to_each([word], "text"),
    ]
    for number, call in enumerate(calls):
        connection.send(subject, b"%d before" % number)
        with pytest.raises(TypeError):
            call()
        connection.send(subject, b"%d after" % number)
    with pytest.raises(PayloadTooLargeError):
        connection.send(subject, b"x" * 2_000_000)
    with pytest.raises(TypeError):
        await connection.request(subject, "text")
    await connection.flush()
    assert got == [b"%d %b" % (number, when) for number in range(len(calls)) for when in (b"before", b"after")]
    assert (natty.connection.reconnects, len(connection._requests)) == (0, 0)


async def test_what_is_not_bytes_in_the_wires_own_terms_is_dropped_alone_and_logged(natty, natty_name, caplog):
    connection, subject = natty.connection, natty_name("beside")
    got, word = inbox(natty, subject), subject.encode()
    for message in [
        (subject, b"", b"", b"str"),
        (word, "", b"", b""),
        (word, b"", "X", b""),
        (word, b"", b"", "secret"),
    ]:
        connection.put((word, b"", b"", b"before"))
        connection.put(message)
        connection.put((word, b"", b"NATS/1.0\r\n\r\n", b"after"))
        await connection.flush()
    assert got == [b"before", b"after"] * 4
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4
    assert all(f"{subject}' is dropped: its subject, header and data must be bytes" in one for one in told)
    assert (connection.reconnects, "secret" in caplog.text) == (0, False)


async def test_no_subject_queue_or_name_can_begin_another_line_of_the_protocol(natty):
    connection, foreign = natty.connection, inbox(natty, "foreign")
    for text in (INJECTION, INJECTION.encode(), "a b", "a\tb", ""):
        with pytest.raises(BadSubjectError):
            connection.send(text)
    with pytest.raises(BadSubjectError):
        connection.send("a", reply=INJECTION.encode())
    with pytest.raises(BadSubjectError):
        await connection.request(INJECTION)
    with pytest.raises(BadSubjectError):
        connection.subscribe(INJECTION, foreign.append)
    with pytest.raises(BadSubjectError):
        connection.subscribe("a", foreign.append, queue=INJECTION)
    with pytest.raises(BadSubjectError):
        await natty.jetstream.request(f"STREAM.INFO.{INJECTION}")
    await connection.flush()
    assert (foreign, connection.reconnects, len(connection._requests)) == ([], 0, 0)


async def test_a_session_that_can_not_be_written_to_is_replaced_and_its_requests_fail_at_once(nats_server, natty_name):
    async with Natty(**PATIENT | nats_server.connect_options()) as natty:
        inbox(natty, subject := natty_name("silent"))
        waiting = [asyncio.create_task(natty.connection.request(subject)) for _ in range(3)]

        def fails(data):
            raise RuntimeError("the handle is closed")

        natty.connection._session._write = fails
        async with asyncio.timeout(PATIENCE / 2):  # less than a request's time
            told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in told] == [NotConnectedError] * 3
        assert "the handle is closed" in str(told[0])
        await until(lambda: natty.connection.reconnects == 1)
        await natty.connection.flush()
    with pytest.raises(ConnectionClosedError):
        natty.connection.send("a", b"")
