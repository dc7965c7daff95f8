"""natty.blocking: the same client from plain threads, on a real server."""

import inspect
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest
from patient import PATIENCE, PATIENT

import natty as package
from natty import (
    ConnectError,
    ConnectionClosedError,
    KeyNotFoundError,
    Message,
    NoRespondersError,
    NotConnectedError,
    RequestTimeoutError,
    StreamNotFoundError,
    blocking,
)

ROOT = Path(__file__).parents[3]
OTHERWISE = {"close", "connect", "create_bucket"}  # written for themselves


@pytest.fixture
def client(nats_server):
    with blocking.Natty(**PATIENT | nats_server.connect_options()) as client:
        yield client


@pytest.fixture
def stream(client, natty_name):
    name = natty_name("BLOCK")
    client.create_stream(name, subjects=[f"{name}.>"])
    return name


@pytest.mark.parametrize("home", ["Natty", "Bucket"])
def test_every_coroutine_method_is_there_under_its_name(home):
    ours, theirs = vars(getattr(blocking, home)), getattr(package, home)
    for name, method in inspect.getmembers(theirs, inspect.iscoroutinefunction):
        if not name.startswith("_") and name not in OTHERWISE:
            assert ours[name]._method is getattr(theirs, name), name
            assert ours[name].__doc__ == method.__doc__


def test_messages_are_published_read_and_consumed_by_a_plain_function(client, stream):
    for number in range(5):
        assert client.publish(f"{stream}.{number}", b"%d" % number).seq == number + 1
    client.publish_async(f"{stream}.5", b"5")
    client.flush_publishers()
    assert [message.data for message in client.read(stream)] == [b"%d" % n for n in range(6)]
    assert [m.data for m in islice(client.read(stream, follow=True), 2)] == [b"0", b"1"]
    seen = []

    def handle(message: Message) -> None:
        assert client.get_message(stream, sequence=message.sequence).data == message.data  # a handler uses the client
        seen.append(message.sequence)
        if len(seen) == 6:
            running.stop()

    running = client.consume(stream, "d", handle)
    running.run()
    assert seen == [1, 2, 3, 4, 5, 6]


def test_handlers_run_in_the_background_of_a_block(client, stream):
    arrived = threading.Event()
    with client.consume(stream, "d", lambda message: arrived.set()):
        client.publish(f"{stream}.a", b"")
        assert arrived.wait(PATIENCE)


def test_requests_are_answered(client, natty_name):
    subject = natty_name("core")
    with pytest.raises(NoRespondersError):
        client.request(subject)
    with client.respond(subject, lambda message: message.data * 2):
        assert client.request(subject, b"ab").data == b"abab"


def test_a_block_begins_when_its_requests_or_messages_arrive_and_not_at_all_if_they_never_can(client, natty_name):
    for number in range(20):
        subject = natty_name(f"core{number}")
        with client.respond(subject, lambda message: b"1"):
            assert client.request(subject).data == b"1"
    entered = False
    with pytest.raises(StreamNotFoundError), client.consume(natty_name("NONE"), "d", lambda message: None):
        entered = True
    assert not entered


def test_a_client_that_was_not_opened_says_how_to_open_it(natty_name):
    client = blocking.Natty()
    for use in (
        lambda: client.publish("a", b""),
        lambda: client.read("S"),
        lambda: client.consume("S", "d", print),
        lambda: client.bucket("b"),
        lambda: client.create_bucket("b"),
    ):
        with pytest.raises(NotConnectedError, match=r"not opened: use `with Natty\(\.\.\.\)` or `Natty\.connect\(\)`"):
            use()
    client.close()


def test_what_only_the_client_with_an_event_loop_has_is_named(client):
    with pytest.raises(AttributeError, match=r"no 'leader': use natty\.Natty for it, within asyncio\.run"):
        client.leader  # noqa: B018
    with pytest.raises(AttributeError, match=r"no 'publsh'$"):
        client.publsh  # noqa: B018
    with pytest.raises(ValueError, match="signals=True has no effect here"):
        client.consume("S", "d", print, signals=True)


@pytest.mark.parametrize("home", [blocking.Natty, blocking.Bucket, blocking.Scheduler])
def test_no_help_speaks_of_await(home):
    for name, method in vars(home).items():
        shown = (
            f"{method.__doc__} {getattr(getattr(home(), name, None), '__doc__', '') if home is blocking.Natty else ''}"
        )
        assert not re.search(r"\bawait\b|\basync\b|aclosing", shown) or name.startswith("__"), name


def test_what_runs_stops_again_after_its_client_was_closed(client, stream):
    with client.consume(stream, "d", lambda message: None) as running:
        client.close()
        running.stop()
    running.stop()


def test_each_call_that_runs_while_the_client_is_closed_ends(nats_server):
    for _ in range(5):
        client = blocking.Natty.connect(**PATIENT | nats_server.connect_options())
        started = threading.Barrier(9)

        def work(client=client, started=started):
            started.wait()
            while True:
                try:
                    client.request("nobody.is.there")
                except NoRespondersError:
                    continue
                except ConnectionClosedError:
                    return

        threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        started.wait()
        client.close()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_a_call_that_is_overtaken_by_close_says_that_the_client_is_closed(nats_server, monkeypatch):
    client = blocking.Natty.connect(**PATIENT | nats_server.connect_options())
    client.close()
    monkeypatch.setattr(client._loop, "check", lambda: None)  # as if it had been checked just before
    with pytest.raises(ConnectionClosedError):
        client.request("a")


def test_an_iterator_that_outlives_its_client_ends_quietly(client, stream):
    client.publish(f"{stream}.a", b"")
    messages = client.read(stream, follow=True)
    assert next(messages).sequence == 1
    client.close()
    messages.close()


def test_messages_of_a_subject_are_iterated_over(client, natty_name):
    subject, ended = natty_name("core"), threading.Event()

    def publish():
        while not ended.is_set():  # the subscription begins with the first `next`
            with suppress(NoRespondersError, RequestTimeoutError):
                client.request(subject, b"a", timeout=0.1)

    with ThreadPoolExecutor(1) as threads:
        publishing = threads.submit(publish)
        messages = client.subscribe(subject)
        assert [message.data for message in islice(messages, 2)] == [b"a", b"a"]
        ended.set()
        messages.close()
        publishing.result()


def test_buckets_have_the_same_methods(client, natty_name):
    name = natty_name("kv")
    bucket = client.create_bucket(name, history=3)
    assert bucket.put("a", b"1") == 1
    assert client.put(name, "a", b"2") == 2
    assert client.bucket(name).get("a").value == b"2"
    assert [entry.value for entry in bucket.history("a")] == [b"1", b"2"]
    assert next(bucket.watch()).value == b"2"
    with pytest.raises(KeyNotFoundError):
        client.get(name, "b")
    client.delete_bucket(name)


def test_messages_are_published_later_listed_and_canceled(client, stream):
    client.ensure_stream(stream, subjects=[f"{stream}.>", f"schedules.{stream}.>"], allow_msg_schedules=True)
    ack = client.publish(f"{stream}.a", b"1", after="1h")
    client.schedule("daily", f"{stream}.a", b"2", cron="@daily")
    assert [one.data for one in client.scheduler.list(stream)] in ([b"1", b"2"], [b"2", b"1"])
    assert client.scheduler.get(stream, "daily").timing == "cron @daily UTC"
    assert client.scheduler.cancel(stream, ack.schedule)
    assert [one.name for one in client.scheduler.list(stream)] == ["daily"]
    assert repr(client.scheduler).startswith("Scheduler(")


def test_many_threads_use_one_client(client, stream):
    def work(number):
        return client.publish(f"{stream}.{number % 7}", b"%d" % number).seq

    with ThreadPoolExecutor(16) as threads:
        assert sorted(threads.map(work, range(300))) == list(range(1, 301))


async def test_it_works_where_a_loop_runs_too(nats_server):
    """As in a notebook."""
    with blocking.Natty(**PATIENT | nats_server.connect_options()) as client, pytest.raises(NoRespondersError):
        client.request("nobody.is.there")


def test_what_can_not_be_reached_is_an_error_and_leaves_no_thread():
    before = threading.active_count()
    with pytest.raises(ConnectError):
        blocking.Natty.connect("tls://127.0.0.1:1")
    assert threading.active_count() == before


def test_a_closed_client_says_so_and_closes_again(nats_server):
    client = blocking.Natty.connect(**PATIENT | nats_server.connect_options())
    client.close()
    client.close()
    with pytest.raises(ConnectionClosedError):
        client.publish("a", b"")
    with pytest.raises(ConnectionClosedError), client:
        pass


def test_a_handler_can_not_close_its_client(client, stream):
    client.publish(f"{stream}.a", b"")
    said = []

    def handle(message: Message) -> None:
        try:
            client.close()
        except RuntimeError as error:
            said.append(str(error))
        running.stop()

    running = client.consume(stream, "d", handle)
    running.run()
    assert said == ["a handler can't close its own client: call stop() of the object that consume() returned"]
