"""Core NATS: requests, subscriptions and responders, against a real server."""

import asyncio
import threading
from contextlib import AsyncExitStack

import pytest
from patient import PATIENCE, PATIENT, until

from natty import (
    AuthorizationError,
    BadSubjectError,
    ConnectionClosedError,
    JetStreamError,
    Natty,
    NoRespondersError,
    NotConnectedError,
    RequestTimeoutError,
)
from natty.testing import NatsServer, ServerOptions


@pytest.fixture
def subject(natty_name):
    return natty_name("core")


@pytest.fixture
async def stream(natty, natty_name):
    name = natty_name("CORE")
    await natty.create_stream(name, subjects=[f"{name}.>"])
    return name


async def double(message):
    return message.data * 2


async def test_a_request_gets_the_answer_of_a_handler(natty, subject):
    async with natty.respond(subject, double) as responder:
        answer = await natty.request(subject, b"ab", headers={"X": "1"})
        assert (answer.data, answer.headers, answer.reply) == (b"abab", {}, "")
        assert (await natty.request(subject)).data == b""
    assert (responder.handled, responder.failed) == (2, 0)
    with pytest.raises(NoRespondersError):
        await natty.request(subject)


async def test_a_plain_handler_runs_in_a_thread_and_sees_the_request(natty, subject):
    def handle(message):
        assert threading.current_thread() is not threading.main_thread()
        return f"{message.subject} {message.headers['X']}".encode()

    async with natty.respond(subject, handle):
        assert (await natty.request(subject, headers={"X": ["1", "2"]})).data == f"{subject} ['1', '2']".encode()


async def test_a_handler_that_fails_is_told_to_the_caller_and_the_next_request_is_answered(natty, subject, caplog):
    async def handle(message):
        return b"%d" % (6 // int(message.data))

    async with natty.respond(subject, handle) as responder:
        failed = await natty.request(subject, b"0")
        assert failed.headers == {"Nats-Service-Error": ["the handler failed"], "Nats-Service-Error-Code": ["500"]}
        assert (await natty.request(subject, b"2")).data == b"3"
    assert (responder.handled, responder.failed) == (1, 1)
    assert "ZeroDivisionError" in caplog.text


async def test_a_request_that_is_not_answered_ends_by_its_timeout(natty, subject):
    async def silent(message):
        return None

    async with natty.respond(subject, silent):
        with pytest.raises(RequestTimeoutError, match=rf"no answer on {subject} within 0\.1 s"):
            await natty.request(subject, timeout=0.1)


async def test_as_many_requests_are_handled_at_one_time_as_concurrency_says(natty, subject):
    running, most, gate = 0, 0, asyncio.Event()

    async def handle(message):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            gate.set()
        await gate.wait()
        running -= 1
        return b""

    async with natty.respond(subject, handle, concurrency=3):
        await asyncio.gather(*(natty.request(subject) for _ in range(9)))
    assert most == 3


async def test_members_of_a_queue_share_the_requests(nats_server, natty, subject):
    async with (
        Natty(**PATIENT | nats_server.connect_options()) as other,
        natty.respond(subject, double, queue="q") as one,
        other.respond(subject, double, queue="q") as two,
    ):
        await asyncio.gather(*(natty.request(subject) for _ in range(100)))
        await until(lambda: one.handled + two.handled == 100)
        assert one.handled
        assert two.handled


async def test_a_responder_runs_as_a_task_and_ends_with_its_client(nats_server, subject):
    async with Natty(**PATIENT | nats_server.connect_options()) as client:
        responder = client.respond(subject, double)
        task = asyncio.create_task(responder)
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    assert (await client.request(subject, b"x")).data == b"xx"
                    break
                except NoRespondersError:
                    await asyncio.sleep(0.01)
    await asyncio.wait_for(task, PATIENCE)
    assert responder.handled == 1


async def test_a_handler_that_runs_when_the_block_ends_finishes(natty, subject):
    started, finished = asyncio.Event(), []

    async def handle(message):
        started.set()
        await asyncio.sleep(0.05)
        finished.append(message.data)
        return b"done"

    async with natty.respond(subject, handle):
        asking = asyncio.create_task(natty.request(subject, b"1"))
        await started.wait()
    assert finished == [b"1"]
    assert (await asking).data == b"done"


async def test_a_subscription_yields_what_is_published_from_its_block_on(natty, subject):
    async with natty.subscribe(f"{subject}.*") as messages:
        for number in range(5):
            natty.connection.send(f"{subject}.{number}", b"%d" % number, headers=b"NATS/1.0\r\nA: b\r\n\r\n")
        seen = []
        async for message in messages:
            seen.append((message.subject, message.data, message.headers))
            message.respond(b"nobody asked")  # no answer is expected
            if len(seen) == 5:
                break
    assert seen == [(f"{subject}.{n}", b"%d" % n, {"A": ["b"]}) for n in range(5)]


async def test_a_subscription_answers_by_itself(natty, subject):
    async def serve():
        async with natty.subscribe(subject) as messages:
            ready.set()
            async for message in messages:
                message.respond(b"yes", headers={"By": "hand"})
                return

    ready = asyncio.Event()
    serving = asyncio.create_task(serve())
    await ready.wait()
    answer = await natty.request(subject)
    assert (answer.data, answer.headers) == (b"yes", {"By": ["hand"]})
    await serving


async def test_a_slow_reader_loses_what_is_over_its_bounds_and_it_is_counted(natty, subject, caplog):
    async with natty.subscribe(subject, max_messages=3) as few, natty.subscribe(subject, max_bytes=5) as small:
        for number in range(10):
            natty.connection.send(subject, b"%02d" % number)
        await natty.connection.flush()
        await natty.connection.flush()
        await until(lambda: (few.dropped, small.dropped) == (7, 8))
        assert [(await few.next()).data for _ in range(3)] == [b"00", b"01", b"02"]
        assert [(await small.next()).data for _ in range(2)] == [b"00", b"01"]
        natty.connection.send(subject, b"a message of over five bytes")
        assert (await small.next()).data == b"a message of over five bytes"  # the only one
    assert caplog.text.count("is read too slowly") == 2


async def test_what_was_read_makes_room_and_the_next_loss_is_logged_again(natty, subject, caplog):
    async with natty.subscribe(subject, max_bytes=4) as messages:
        for round_ in range(3):
            for number in range(4):
                natty.connection.send(subject, b"%02d" % number)
            await natty.connection.flush()
            await until(lambda expected=2 * round_ + 2: messages.dropped == expected)
            assert [(await messages.next()).data for _ in range(2)] == [b"00", b"01"]
    assert caplog.text.count("is read too slowly") == 3


async def test_a_subscription_outlives_a_reconnect(natty_proxy, natty, subject):
    async with Natty(**PATIENT | natty_proxy.options) as client, client.subscribe(subject) as messages:
        await natty_proxy.cut()
        await natty_proxy.restore()
        await client.connection.ready(PATIENCE)
        await client.connection.flush()
        natty.connection.send(subject, b"after")
        assert (await asyncio.wait_for(messages.next(), PATIENCE)).data == b"after"


async def test_a_subscription_ends_with_its_client(nats_server, subject):
    client = await Natty.connect(**PATIENT | nats_server.connect_options())
    async with client.subscribe(subject) as messages:
        client.connection.send(subject, b"1")
        await client.connection.flush()
        await client.connection.flush()
        await client.close()
        assert [message.data async for message in messages] == [b"1"]
    with pytest.raises(ConnectionClosedError):
        async with client.subscribe(subject):
            pass


async def test_what_cannot_be_subscribed_to_is_refused(natty, subject):
    with pytest.raises(NotConnectedError):
        async with Natty().subscribe(subject):
            pass
    with pytest.raises(BadSubjectError):
        async with natty.subscribe("a b"):
            pass
    with pytest.raises(BadSubjectError):
        async with natty.respond("a b", double):
            pass
    with pytest.raises(ValueError, match="max_messages is 0"):
        natty.subscribe(subject, max_messages=0)
    with pytest.raises(TypeError, match="'y' is not a callable object"):
        natty.respond(subject, "y")
    with pytest.raises(ValueError, match="concurrency is 0"):
        natty.respond(subject, double, concurrency=0)
    async with natty.subscribe(subject) as messages:
        pass
    with pytest.raises(RuntimeError, match="was used already"):
        async with messages:
            pass


async def test_a_handler_that_awaits_what_was_cancelled_has_failed_and_the_next_request_is_answered(natty, subject):
    async def handle(message):
        if not message.data:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        return message.data

    async with natty.respond(subject, handle, concurrency=1) as responder:
        assert "Nats-Service-Error" in (await natty.request(subject)).headers
        assert (await natty.request(subject, b"1")).data == b"1"
    assert (responder.handled, responder.failed) == (1, 1)


@pytest.mark.parametrize("answer", [b"", b"not JSON", b"[]", b"{", b'{"error": "text"}', b'{"error": {"code": "x"}}'])
async def test_an_answer_that_is_not_one_of_jetstreams_is_an_error_of_natty(natty, natty_name, nats_server, answer):
    api = natty_name("FAKE")
    options = PATIENT | nats_server.connect_options() | {"api_prefix": api}
    async with natty.respond(f"{api}.>", lambda _: answer), Natty(**options) as client:
        with pytest.raises(JetStreamError, match="INFO: the answer is not one of JetStream's"):
            await client.jetstream.request("INFO")


async def test_an_answer_goes_to_no_api_of_the_server(natty, subject, stream, caplog):
    async with natty.respond(subject, double) as responder, natty.subscribe(subject) as messages:
        for _ in range(3):
            natty.connection.send(subject, b"", reply=f"$JS.API.STREAM.DELETE.{stream}".encode())
            (await messages.next()).respond(b"")
        assert (await natty.request(subject, b"a")).data == b"aa"
        assert responder.handled == 4
    await natty.connection.flush()
    assert (await natty.stream_info(stream))["config"]["name"] == stream
    assert [getattr(record, "action", "") for record in caplog.records].count("forged_reply") == 1


async def test_as_many_plain_handlers_run_at_one_time_as_concurrency_says(natty, subject):
    together = threading.Barrier(40)

    def handle(message):
        together.wait(PATIENCE)
        return threading.current_thread().name.encode()

    async with natty.respond(subject, handle, concurrency=40):
        answers = await asyncio.gather(*(natty.request(subject) for _ in range(40)))
    assert len({answer.data for answer in answers}) == 40
    assert all(answer.data.startswith(b"natty ") for answer in answers)


@pytest.mark.parametrize("ended_by", ["stop", "the block"])
async def test_handlers_are_cancelled_after_the_shutdown_timeout(natty, subject, ended_by):
    started, cancelled = asyncio.Event(), []

    async def handle(message):
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(message.data)
            raise

    responder = natty.respond(subject, handle, shutdown_timeout=0.05)
    async with asyncio.timeout(PATIENCE):
        async with AsyncExitStack() as stack:
            if ended_by == "stop":
                running = asyncio.create_task(responder.run())
                await responder.ready.wait()
            else:
                await stack.enter_async_context(responder)
            natty.connection.send(subject, b"1")
            await started.wait()
            if ended_by == "stop":
                responder.stop()
                await running
    assert cancelled == [b"1"]


async def test_what_the_server_does_not_permit_is_an_error_when_it_begins(natty_tls, nats_server_binary):
    permissions = '{user: ann, password: x, permissions: {subscribe: {deny: ["secret.>", "shared q"]}}}'
    options = ServerOptions(jetstream=False, authorization=f"authorization {{ users: [{permissions}] }}")
    with NatsServer(options, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**PATIENT | server.connect_options(), user="ann", password="x") as client:
            refused = [
                client.subscribe("secret.>"),
                client.respond("secret.a", double),
                client.subscribe("shared", queue="q"),
            ]
            for one in refused:
                with pytest.raises(AuthorizationError, match="not permitted: this user may not subscribe to"):
                    async with one:
                        pass
            with pytest.raises(AuthorizationError, match="not permitted"):
                await anext(aiter(client.subscribe("secret.b")))
            with pytest.raises(AuthorizationError, match="not permitted"):
                await client.respond("secret.c", double)
            async with client.respond("open", double):
                assert (await client.request("open", b"a")).data == b"aa"
