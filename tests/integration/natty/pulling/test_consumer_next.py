import asyncio
import json
import urllib.request

import pytest
from command_line import CommandLine
from commands import complaint, printed
from consuming import until
from patient import FILLING, NEVER, PATIENCE

from natty import Natty
from natty.config.units import NANOSECONDS
from natty.errors import ConsumerNotFoundError, JetStreamError, NotConnectedError
from natty.pulling.take import LOT, take
from natty.testing import NatsServer, ServerOptions, free_ports


@pytest.fixture
def stream(natty_commands, natty_name):
    """A stream with five messages, and a consumer `c` that waits for ever for acknowledgements."""
    name = natty_name("NEXT")

    async def make(natty):
        await filled(natty, name, 5)
        await natty.create_consumer(name, "c", ack_wait=NEVER)

    natty_commands.served(make)
    return name


async def filled(natty, name, messages):
    await natty.create_stream(name, subjects=[f"{name}.*"])
    async with natty.publisher(name, **FILLING) as publisher:
        for number in range(messages):
            await publisher.publish(f"{name}.a", b"%d" % number)


@pytest.fixture
def settled(natty_commands, stream):
    """Return a function that waits until the consumer has so many messages (delivered, unacknowledged, redelivered)."""

    def wait(*wanted):
        async def look(natty):
            async with asyncio.timeout(PATIENCE):
                while True:
                    told = await natty.jetstream.request(f"CONSUMER.INFO.{stream}.c")
                    found = told["delivered"]["stream_seq"], told["num_ack_pending"], told["num_redelivered"]
                    if found == wanted:
                        return told
                    await asyncio.sleep(0.02)

        return natty_commands.served(look)

    return wait


@pytest.fixture
def answers(natty_commands, natty_name):
    """Return a function that runs a command and returns what was said to the messages of a stream meanwhile."""

    def run(stream, *words):
        heard = []

        async def listen(natty):
            natty.connection.subscribe(f"$JS.ACK.{stream}.>", lambda batch: heard.extend(batch.raw))
            natty.connection.subscribe(f"$JS.API.*.*.*.{stream}.>", lambda batch: heard.extend(batch.raw))
            natty.connection.subscribe(f"$JS.API.*.*.{stream}.>", lambda batch: heard.extend(batch.raw))
            await natty.connection.flush()
            done = await asyncio.to_thread(natty_commands, *words)
            await natty.connection.flush()
            return done

        done = natty_commands.served(listen)
        return done, [(raw[0].decode().split(".")[1], raw[3]) for raw in heard]

    return run


ANSWERS = {
    (): b"+ACK",
    ("--ack",): b"+ACK",
    ("--nak",): b"-NAK",
    ("--nak", "--delay", "1h30m"): b'-NAK {"delay": 5400000000000}',
    ("--term",): b"+TERM",
    ("--term", "--reason", "no such customer"): b"+TERM no such customer",
    ("--in-progress",): b"+WPI",
    ("--wait", "1ms"): b"+ACK",
}


@pytest.mark.parametrize("flags", ANSWERS, ids=" ".join)
def test_one_request_and_one_answer_go_over_the_wire(answers, stream, flags):
    done, heard = answers(stream, "consumer", "next", stream, "c", "--json", *flags)
    assert json.loads(printed(done))["data"] == "0"
    assert [kind for kind, _ in heard] == ["API", "ACK"]
    assert heard[1] == ("ACK", ANSWERS[flags])


def test_without_an_answer_there_is_one_request_alone(answers, stream):
    done, heard = answers(stream, "consumer", "next", stream, "c", "--raw", "--no-ack", "--count", "3")
    assert printed(done) == "0\n1\n2\n"
    assert len(heard) == 1


def test_the_server_takes_in_two_messages_for_a_next(natty_tls, tmp_path, monkeypatch, capsys):
    """Counted by the server itself: the request and the acknowledgement."""
    options = ServerOptions(monitoring_port=free_ports(1)[0])
    with NatsServer(options, tls_files=natty_tls, folder=tmp_path / "nats") as server:
        natty = CommandLine(server.connect_options(), tmp_path, monkeypatch, capsys)

        async def make(client):
            await filled(client, "S", 9)
            await client.create_consumer("S", "c")

        natty.served(make)

        def taken_in():
            with urllib.request.urlopen(f"http://127.0.0.1:{options.monitoring_port}/varz", timeout=PATIENCE) as page:
                return json.load(page)["in_msgs"]

        before = taken_in()
        printed(natty("consumer", "next", "S", "c"))
        one = taken_in()
        printed(natty("consumer", "next", "S", "c", "--count", "5", "--no-ack"))
        assert (one - before, taken_in() - one) == (2, 1)


def test_messages_are_settled_as_they_were_answered(natty_commands, stream, settled):
    for flags in (("--ack",), ("--term",), ("--nak", "--delay", "1h"), ("--in-progress",), ("--no-ack",)):
        printed(natty_commands("consumer", "next", stream, "c", *flags))
    settled(5, 3, 0)
    said = complaint(natty_commands("consumer", "next", stream, "c", "--timeout", "50ms"))
    assert said == (
        f"natty: consumer c of stream {stream} delivered no message within 0.05 s; printed 0 of 1;"
        " 3 delivered messages are not acknowledged"
    )


def test_one_that_was_handed_back_comes_again_at_once(natty_commands, stream):
    printed(natty_commands("consumer", "next", stream, "c", "--nak", "--count", "5"))
    again = json.loads(printed(natty_commands("consumer", "next", stream, "c", "--json")))
    assert again["deliveries"] == 2


def test_what_came_is_printed_before_the_rest_is_given_up(natty_commands, stream):
    done = natty_commands("consumer", "next", stream, "c", "--count", "9", "--raw", "--timeout", "50ms")
    assert (done.status, done.out) == (1, "0\n1\n2\n3\n4\n")
    assert done.err.endswith("within 0.05 s; printed 5 of 9\n")


async def test_many_are_taken_by_a_request_for_each_lot(natty, natty_name):
    name = natty_name("MANY")
    await filled(natty, name, LOT + 7)
    await natty.create_consumer(name, "c")
    requests = []
    natty.connection.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{name}.c", lambda batch: requests.extend(batch.raw))
    found = [raw[3] async for batch in take(natty.jetstream, name, "c", LOT + 5, wait=PATIENCE) for raw in batch.raw]
    assert found == [b"%d" % number for number in range(LOT + 5)]
    await natty.connection.flush()
    assert [json.loads(raw[3])["batch"] for raw in requests] == [LOT, 5]


async def test_it_waits_only_once_for_messages_that_do_not_come(natty, natty_name):
    stream, wait = natty_name("FEWER"), 0.5
    await natty.create_stream(stream, subjects=[f"{stream}.*"])
    await natty.create_consumer(stream, "c", ack_wait=NEVER)
    heard = []
    natty.connection.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.c", lambda batch: heard.extend(batch.payloads))

    async def once():
        """Return whether the request after the last message lives for the rest of the wait, unless we stood still."""
        await natty.publish(f"{stream}.a", b"x")
        heard.clear()
        assert sum([len(batch) async for batch in take(natty.jetstream, stream, "c", 2, wait=wait)]) == 1
        await natty.connection.flush()
        return all(json.loads(body)["expires"] < wait * NANOSECONDS for body in heard[1:])

    await until(once)


async def test_the_consumers_own_limits_of_a_request_are_respected(natty, natty_name):
    name = natty_name("LIMITS")
    await filled(natty, name, 5)
    await natty.create_consumer(name, "c", max_batch=2, max_expires=0.05)
    found = [raw[3] async for batch in take(natty.jetstream, name, "c", 6, wait=0.12) for raw in batch.raw]
    assert found == [b"0", b"1", b"2", b"3", b"4"]


async def test_what_is_refused_for_another_reason_is_told_in_the_servers_words(natty, natty_name):
    name = natty_name("GROUPS")
    await filled(natty, name, 1)
    await natty.create_consumer(name, "c", priority_policy="overflow", priority_groups=["a"])
    with pytest.raises(
        JetStreamError, match=f"consumer c of stream {name} refused the request: Bad Request - Priority"
    ):
        await anext(take(natty.jetstream, name, "c", 1, wait=PATIENCE))


async def test_a_consumer_that_is_deleted_meanwhile_is_told(natty, natty_name):
    name = natty_name("GONE")
    await filled(natty, name, 0)
    await natty.create_consumer(name, "c")
    taking = asyncio.create_task(anext(take(natty.jetstream, name, "c", 1, wait=PATIENCE)))
    async with asyncio.timeout(PATIENCE):
        while not (await natty.jetstream.request(f"CONSUMER.INFO.{name}.c"))["num_waiting"]:
            await asyncio.sleep(0.01)
    await natty.delete_consumer(name, "c")
    with pytest.raises(ConsumerNotFoundError, match=f"stream {name} has no consumer c: check"):
        await taking


async def test_a_lost_connection_is_told_and_does_not_hang(natty_tls, tmp_path):
    with NatsServer(tls_files=natty_tls, folder=tmp_path) as server:
        async with Natty(**server.connect_options()) as natty:
            await filled(natty, "S", 0)
            await natty.create_consumer("S", "c")
            taking = asyncio.create_task(anext(take(natty.jetstream, "S", "c", 1, wait=NEVER)))
            async with asyncio.timeout(PATIENCE):
                while not (await natty.jetstream.request("CONSUMER.INFO.S.c"))["num_waiting"]:
                    await asyncio.sleep(0.01)
            server.kill()
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(NotConnectedError, match="the connection was lost"):
                    await taking


async def test_what_nobody_takes_any_more_is_handed_back(natty, natty_name):
    name, delivered = natty_name("LEFT"), []
    await filled(natty, name, 1)
    await natty.create_consumer(name, "c", ack_wait=NEVER)
    spy = natty.connection.subscribe("_INBOX.>", lambda batch: delivered.extend(batch.raw))
    taking = take(natty.jetstream, name, "c", 9, wait=NEVER)
    (first,) = await anext(taking)
    first.ack()
    await natty.publish(f"{name}.a", b"nobody looks")
    await until(lambda: b"nobody looks" in [raw[3] for raw in delivered])
    spy.close()  # for the server it would be somebody who reads what the request brings
    await natty.connection.flush()
    await taking.aclose()
    await natty.publish(f"{name}.a", b"late")  # the first request is still open at the server, for nobody
    async with asyncio.timeout(PATIENCE):
        again = [message async for batch in take(natty.jetstream, name, "c", 2, wait=NEVER) for message in batch]
    assert {(one.data, one.deliveries) for one in again} == {(b"nobody looks", 2), (b"late", 1)}
