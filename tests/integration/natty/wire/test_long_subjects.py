"""Subjects that a server can't read, or refuses, fail alone at the call: other work on the client's session goes on."""

import pytest
from patient import PATIENT

from natty import BadSubjectError, Natty
from natty.names import MAX_LINE

TOO_LONG = "x" * 5000


@pytest.fixture
async def events(natty):
    told = []
    natty.connection.listeners.append(told.append)
    return told


@pytest.fixture
async def stream(natty, natty_name):
    await natty.ensure_stream(name := natty_name("LONG"), subjects=[f"{name}.>"], allow_atomic=True)
    return name


CALLS = {
    "send": lambda natty, subject: natty.connection.send(subject),
    "a long reply": lambda natty, subject: natty.connection.send("short", reply=subject.encode()),
    "headers": lambda natty, subject: natty.connection.send(subject, headers=b"NATS/1.0\r\n\r\n"),
    "send_many": lambda natty, subject: natty.connection.send_many([(subject.encode(), b"", b"", b"x")]),
    "subscribe": lambda natty, subject: natty.connection.subscribe(subject, print),
    "request": lambda natty, subject: natty.request(subject),
    "publish": lambda natty, subject: natty.publish(subject, b"x", msg_id="1"),
    "publish_async": lambda natty, subject: natty.publish_async(subject, b"x", msg_id="1"),
    "an API request": lambda natty, subject: natty.jetstream.request(f"STREAM.INFO.{subject}"),
    "an atomic batch": lambda natty, subject: natty.publish_atomic([(subject, b"1"), (subject, b"2")]),
}


async def do(call, *arguments):
    if (awaited := call(*arguments)) is not None:
        await awaited


@pytest.mark.parametrize("call", CALLS)
async def test_a_subject_that_is_too_long_fails_at_the_call_and_the_session_stays(natty, stream, events, call):
    with pytest.raises(BadSubjectError, match=r"too long: its line has \d+ bytes, and a server reads 4096"):
        await do(CALLS[call], natty, f"{stream}.{TOO_LONG}")
    assert (await natty.publish(f"{stream}.good", b"x")).seq >= 1
    assert events == []


@pytest.mark.parametrize("path", ["fast", "window"])
async def test_a_publisher_stores_the_messages_behind_a_subject_that_is_too_long(natty, natty_name, events, path):
    await natty.ensure_stream(name := natty_name("LONG"), subjects=[f"{name}.>"], allow_batched=path == "fast")
    async with natty.publisher(name, path=path) as publisher:
        await publisher.publish(f"{name}.a", b"1", msg_id="1")
        for length in (5000, MAX_LINE - len(name) - 10):  # the second is too long with our inbox as its reply subject
            with pytest.raises(BadSubjectError, match="too long"):
                await publisher.publish(f"{name}.{'x' * length}", b"2", msg_id="2")
        await publisher.publish(f"{name}.b", b"3", msg_id="3")
    assert (publisher.stored, publisher.failed, events) == (2, 0, [])


async def test_the_longest_line_that_a_server_reads_is_sent(natty, natty_name, events):
    prefix, got = natty_name("longest"), []
    natty.connection.subscribe(f"{prefix}.*", lambda batch: got.extend(batch.raw))
    room = MAX_LINE - len("  1")
    longest = prefix + "." + "x" * (room - len(prefix) - 1)
    natty.connection.send(longest, b"1")
    with pytest.raises(BadSubjectError, match="its line has 4097 bytes"):
        natty.connection.send(longest + "x", b"1")
    reply = b"r" * 40
    natty.connection.send(longest[: -len(reply) - 4], b"1", reply=reply, headers=b"NATS/1.0\r\n\r\n")  # and ` 12 13`
    with pytest.raises(BadSubjectError, match="its line has 4097 bytes"):
        natty.connection.send(longest[: -len(reply) - 3], b"1", reply=reply, headers=b"NATS/1.0\r\n\r\n")
    await natty.connection.flush()
    assert [len(raw[0]) for raw in got] == [room, room - len(reply) - 4]
    sid = natty.connection._next_sid
    natty.connection.subscribe("y" * (MAX_LINE - len("  ") - len(str(sid))), print)
    with pytest.raises(BadSubjectError, match="its line has 4097 bytes"):
        natty.connection.subscribe("y" * (MAX_LINE - len("  ") - len(str(sid)) + 1), print)
    await natty.connection.flush()
    assert events == []


@pytest.mark.parametrize("subject", ["", "a..b", ".a", "a.", ">.a", "a.>.b"])
async def test_a_subscription_to_a_malformed_subject_fails_at_the_call_and_the_session_stays(natty, events, subject):
    with pytest.raises(BadSubjectError):
        async for _ in natty.subscribe(subject):
            pass
    with pytest.raises(BadSubjectError):
        await natty.respond(subject, print)
    await natty.connection.flush()
    assert events == []


@pytest.mark.parametrize("subject", ["", "a..b", ".a", "a."])
async def test_nothing_is_sent_or_requested_on_a_malformed_subject(natty, events, subject):
    with pytest.raises(BadSubjectError):
        natty.connection.send(subject)
    with pytest.raises(BadSubjectError):
        await natty.connection.request(subject)
    await natty.connection.flush()
    assert events == []


@pytest.mark.parametrize("reply", [b"r" * 4090, b"a..b"])
async def test_a_request_with_a_hostile_reply_subject_does_not_end_the_responders_session(
    natty, nats_server, events, reply
):
    async def handle(message):
        if message.data == b"F":
            raise RuntimeError
        return b"x" * 100

    service = "lsv"  # short: a long reply subject fits beside it
    async with natty.respond(service, handle), Natty(**PATIENT | nats_server.connect_options()) as other:
        for data in (b"F", b"A"):
            other.connection._session._write(b"PUB %b %b %d\r\n%b\r\n" % (service.encode(), reply, len(data), data))
        assert (await other.request(service, b"good")).data == b"x" * 100
    assert events == []
