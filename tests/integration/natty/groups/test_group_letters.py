"""Dead letters of groups: what handlers terminate, what the server gives up on, what ends its process."""

import asyncio
import json
import subprocess
import sys
from contextlib import suppress

import pytest
from consuming import until
from forgetting import messages_in
from group_members import LONG, make, partitioned, publish
from patient import PATIENCE

from natty import DeadLetterOptions, StreamNotFoundError

DYING = """
import asyncio, json, os, sys
from natty import DeadLetterOptions, Natty

async def main(options, stream):
    async def handle(message):
        if message.data == b"3":
            await asyncio.sleep(0.1)  # the acks of those before it are sent
            os._exit(9)

    letters = DeadLetterOptions(letters=f"L_{stream}")
    async with Natty(**options) as natty:
        group = (natty.static_group if stream.startswith("STATIC") else natty.group)(stream, "g")
        async with group.join("m1", handle, ack_wait=1.0, max_deliveries=2, dead_letters=letters) as membership:
            await membership.wait_until_ended()

asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2]))
"""


def letters(stream):
    return {"dead_letters": DeadLetterOptions(letters=f"L_{stream}")}


async def letters_of(natty, stream, count=1):
    """Return the letters about a group of the stream, when there are so many."""
    found = []

    async def there():
        with suppress(StreamNotFoundError):  # about to be made
            found[:] = [letter async for letter in natty.dead_letters(f"L_{stream}").ls()]
        return len(found) >= count

    await until(there)
    return found


@pytest.fixture
async def static(natty, natty_name):
    name = natty_name("STATIC")
    await natty.create_stream(name, **partitioned(name, 1))
    group = natty.static_group(name, "g")
    await group.create(1, [f"{name}.*"], members=["m1"])
    return group


@pytest.fixture
async def elastic(natty, natty_name):
    return await make(natty, natty_name("ELASTIC"), members=["m1"], partitions=1)


@pytest.fixture(params=["static", "elastic"])
def group(request, static, elastic):
    """A group of either kind."""
    return {"static": static, "elastic": elastic}[request.param]


async def test_what_a_handler_terminates_in_a_group_becomes_a_letter(natty, group):
    got = []

    async def handle(message):
        got.append(message.data)
        if message.data == b"1":
            message.term("no such customer")

    async with group.join("m1", handle, **LONG | letters(group.stream)):
        await publish(natty, group.stream, range(3), keys=1)
        (letter,) = await letters_of(natty, group.stream)
        await until(lambda: len(got) == 3)
    assert got == [b"0", b"1", b"2"]
    assert (letter.stream, letter.consumer) == (group.consumed_stream, "g")
    assert letter.reason == "terminated: no such customer"
    assert letter.has_payload == (group.stream == group.consumed_stream), "a work queue deletes what is terminated"
    assert letter.original_sequence == 2


async def test_what_the_server_gives_up_on_in_a_group_becomes_a_letter(natty, group):
    async def refuse(message):
        message.nak()

    options = LONG | letters(group.stream) | {"consumer": {"max_deliver": 2}}
    async with group.join("m1", refuse, **options):
        await publish(natty, group.stream, range(1), keys=1)
        (letter,) = await letters_of(natty, group.stream)
    assert (letter.consumer, letter.data, letter.deliveries) == ("g", b"0", 2)
    assert letter.reason == "max deliveries: the server gave up after 2"
    assert letter.subject == f"{group.stream}.k0"
    assert (await natty.dead_letters(f"L_{group.stream}").retry()).published == 1


async def test_what_a_handler_asks_for_again_is_handled_again(natty, elastic):
    got = []

    async def handle(message):
        got.append((message.data, message.deliveries))
        if message.deliveries == 1:
            message.nak()

    async with elastic.join("m1", handle, **LONG) as membership:
        await publish(natty, elastic.stream, range(2), keys=1)
        await until(lambda: len(got) == 4)
        assert membership.counts["repeated"] == 0
    assert sorted(got) == [(b"0", 1), (b"0", 2), (b"1", 1), (b"1", 2)]


async def test_what_comes_too_often_is_a_letter_unhandled_and_what_came_beside_it_is_handled(natty, static):
    got = []

    async def handle(message):
        got.append((message.data, message.deliveries))
        if message.data == b"0" or message.deliveries < 4:
            message.nak()

    async with static.join("m1", handle, **LONG | letters(static.stream), max_deliveries=3) as membership:
        await publish(natty, static.stream, range(2), keys=1)
        letter, *others = await letters_of(natty, static.stream)
        await until(lambda: len(got) == 7)
        assert membership.counts["buried"] == 1
    assert sorted(got) == [(b"0", 1), (b"0", 2), (b"0", 3), (b"1", 1), (b"1", 2), (b"1", 3), (b"1", 4)]
    assert (letter.data, letter.consumer, others) == (b"0", "g", [])
    assert "delivered 4 times (max_deliveries 3) and never finished" in letter.reason


async def test_every_message_of_a_key_that_comes_too_often_is_a_letter(natty, static):
    async def refuse(message):
        message.nak()

    async with static.join("m1", refuse, **LONG | letters(static.stream), max_deliveries=3) as membership:
        await publish(natty, static.stream, range(1), keys=1)
        await letters_of(natty, static.stream)
        await publish(natty, static.stream, range(1, 2), keys=1)
        found = await letters_of(natty, static.stream, 2)
        assert membership.counts["buried"] == 2
    assert [letter.data for letter in found] == [b"0", b"1"]


async def test_without_dead_letters_it_is_handled_again_and_logged(natty, static, caplog):
    got = asyncio.Event()

    async def handle(message):
        if message.deliveries < 3:
            message.nak()
        else:
            got.set()

    async with static.join("m1", handle, **LONG, max_deliveries=2):
        await publish(natty, static.stream, range(1), keys=1)
        await until(got.is_set)
    assert "it was delivered 3 times (max_deliveries 2) and never finished" in caplog.text


async def test_a_message_must_be_delivered_once(natty):
    with pytest.raises(ValueError, match="max_deliveries is 0"):
        natty.group("S", "g").join("m", print, max_deliveries=0)


@pytest.mark.long
async def test_a_message_that_ends_every_process_becomes_a_letter_and_the_next_ones_are_handled(
    natty, static, nats_server
):
    await publish(natty, static.stream, range(6), keys=1)
    words = [sys.executable, "-c", DYING, json.dumps(nats_server.connect_options()), static.stream]
    for _ in range(2):
        died = await asyncio.to_thread(subprocess.run, words, timeout=PATIENCE, check=False)
        assert died.returncode == 9
    process = subprocess.Popen(words)
    try:
        (letter,) = await letters_of(natty, static.stream)

        async def settled():
            told = await natty.jetstream.request(f"CONSUMER.INFO.{static.stream}.g-m1")
            return not (told["num_pending"] or told["num_ack_pending"])

        await until(settled)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert (letter.data, letter.consumer) == (b"3", "g")


@pytest.mark.long
async def test_a_message_that_ends_every_process_of_an_elastic_group_is_deleted_by_the_commands_of_its_page(
    natty, elastic, nats_server, natty_commands
):
    """Its count of deliveries ends with the consumer, as docs/groups.md says."""
    queue = elastic.consumed_stream
    await publish(natty, elastic.stream, range(6), keys=1)
    words = [sys.executable, "-c", DYING, json.dumps(nats_server.connect_options()), elastic.stream]
    for _ in range(3):  # one more than the letter's deliveries
        died = await asyncio.to_thread(subprocess.run, words, timeout=PATIENCE, check=False)
        assert died.returncode == 9
        await until(lambda: _forgets_the_count(natty, elastic))
    assert [letter async for letter in natty.dead_letters(f"L_{elastic.stream}").ls()] == []

    def command(*words):
        return asyncio.to_thread(natty_commands, *words)

    oldest = json.loads((await command("stream", "info", queue, "--json")).out)["state"]["first_seq"]
    assert (await command("stream", "get", queue, str(oldest), "--raw")).out.strip() == "3"
    assert (await command("stream", "rm-msg", queue, str(oldest), "--force")).status == 0
    process = subprocess.Popen(words)
    try:
        await until(lambda: _empty(natty, queue))
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


async def _forgets_the_count(natty, group):
    return not (await group.member("m1")).exists


async def _empty(natty, stream):
    return await messages_in(natty, stream) == 0


async def test_a_member_reports_its_errors_and_what_the_server_gave_up_on(natty, static):
    told = []

    async def handle(message):
        if message.data == b"1":
            message.term("unwanted")
        else:
            raise LookupError("no")

    async def on_error(message, error, step):
        told.append((message.data, message.subject, type(error).__name__, str(step)[:11]))

    more = LONG | letters(static.stream) | {"retries": (0.05,)}
    async with static.join("m1", handle, on_error=on_error, **more) as membership:
        await publish(natty, static.stream, range(2), keys=1)
        await until(lambda: len(told) == 3)
        counts = membership.counts
    subjects = {data: subject for data, subject, *_ in told}
    assert sorted(told) == [
        (b"0", subjects[b"0"], "LookupError", "dead letter"),
        (b"0", subjects[b"0"], "LookupError", "retry in 0."),
        (b"1", subjects[b"1"], "TerminatedError", "dead letter"),
    ]
    assert not any(subject[0].isdigit() for subject in subjects.values())  # without the partition
    assert (counts["failed"], counts["buried"], counts["given_up"], counts["overran"]) == (2, 1, 1, 0)


async def test_a_member_that_hands_partitions_over_reports_the_handlers_that_it_cancels(natty, natty_name):
    group, told, begun = await make(natty, natty_name("HANDS"), members=["m1"]), [], asyncio.Event()

    async def handle(message):
        begun.set()
        await asyncio.Event().wait()

    async def on_error(message, error, step):
        told.append((type(error).__name__, str(step)))

    async with group.join("m1", handle, on_error=on_error, shutdown_timeout=0.0, **LONG):
        await publish(natty, group.stream, range(1), keys=1)
        await begun.wait()
        await group.add("m2")
        await until(lambda: told)
        assert told == [("HandlerCancelledError", "handed back")]
