"""natty.blocking: the same client from plain threads, on a real server."""

import inspect
import os
import signal
import subprocess
import sys
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
    RequestTimeoutError,
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
        for _ in range(1000):
            try:
                assert client.request(subject, b"ab").data == b"abab"
                break
            except NoRespondersError:  # the responder has not subscribed yet
                continue


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


def run(code, nats_server, *, interrupt=None):
    """Run a program that prints "ready"; send it a signal then. Return its status and what it printed."""
    options = nats_server.connect_options()
    environment = os.environ | {
        "NATS_URL": options["servers"][0],
        "NATS_CA": options["tls_ca"],
        "NATS_CERT": options["tls_cert"],
        "NATS_KEY": options["tls_key"],
        "NATS_TIMEOUT": f"{PATIENCE}s",
        "NATS_CONNECT_TIMEOUT": f"{PATIENCE}s",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-W", "error", "-u", "-c", code]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        giving_up = threading.Timer(PATIENCE, process.kill)
        giving_up.start()
        said = process.stdout.readline()
        if interrupt is not None and said == "ready\n":
            process.send_signal(interrupt)
        said += process.stdout.read()
        status = process.wait()
        giving_up.cancel()
    return status, said


CONSUME = """
from natty.blocking import Natty
import time
def handle(message):
    print("ready", flush=True)
    time.sleep(0.5)
    print("finished", flush=True)
with Natty() as client:
    client.create_stream("{0}", subjects=["{0}"])
    client.publish("{0}", b"")
    try:
        client.consume("{0}", "d", handle).run()
    except KeyboardInterrupt:
        print("interrupted")
    print(client.ensure_consumer("{0}", "d")["durable_name"])
"""


@pytest.mark.parametrize(("number", "said"), [(signal.SIGINT, "interrupted\n"), (signal.SIGTERM, "")])
def test_a_signal_lets_the_handler_finish_and_the_program_go_on(nats_server, natty_name, number, said):
    status, output = run(CONSUME.format(natty_name("SIGNAL")), nats_server, interrupt=number)
    assert (status, output) == (0, f"ready\nfinished\n{said}d\n")


def test_a_program_that_forgets_to_close_ends_and_publishes_what_it_took(nats_server, natty_name):
    name = natty_name("EXIT")
    code = f"""
from natty.blocking import Natty
client = Natty.connect()
client.create_stream("{name}", subjects=["{name}"])
for number in range(100):
    client.publish_async("{name}", b"%d" % number)
print("ready")
"""
    assert run(code, nats_server) == (0, "ready\n")
    with blocking.Natty(**PATIENT | nats_server.connect_options()) as client:
        assert len(list(client.read(name))) == 100


def test_after_a_fork_the_client_says_so_and_another_one_works(nats_server, natty_name):
    name = natty_name("FORK")
    code = f"""
import os
from natty import WrongLoopError
from natty.blocking import Natty
with Natty() as client:
    client.create_stream("{name}", subjects=["{name}"])
    child = os.fork()
    if not child:
        try:
            client.publish("{name}", b"")
        except WrongLoopError as error:
            print("before a fork" in str(error))
        with Natty() as other:
            print(other.publish("{name}", b"").seq)
        os._exit(0)
    os.waitpid(child, 0)
    print(client.publish("{name}", b"").seq)
"""
    assert run(code, nats_server) == (0, "True\n1\n2\n")
