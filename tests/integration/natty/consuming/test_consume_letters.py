"""What becomes of messages that can't be handled: the ladder, dead letters, time-outs, bodies that don't fit."""

import asyncio
import signal
import subprocess
import sys
from contextlib import suppress

import msgspec
import pytest
from consuming import fill, info, until, until_settled
from patient import NEVER, PATIENCE

from natty import DeadLetterOptions, NattyError, StreamNotFoundError
from natty.consuming.consume import SPARE_DELIVERIES


class Order(msgspec.Struct):
    id: int


@pytest.fixture
def letters_of(natty):
    """Return a function that returns the letters about a stream, oldest first."""

    async def letters(stream, count=1):
        box = natty.dead_letters(f"L_{stream}")

        async def found():
            with suppress(StreamNotFoundError):  # about to be made
                there[:] = [letter async for letter in box.ls()]
            return len(there) >= count

        there = []
        await until(found)
        return there

    return letters


def options(stream, **more):
    return {"dead_letters": DeadLetterOptions(letters=f"L_{stream}"), "retries": (0.05,)} | more


async def test_after_the_last_retry_a_message_is_a_dead_letter_and_never_comes_again(
    natty, natty_name, start, letters_of
):
    stream, seen = await fill(natty, natty_name("DEAD"), 3), []

    async def handle(message):
        seen.append((message.data, message.deliveries))
        if message.data == b"1":
            raise RuntimeError("no such customer")

    consumption, _ = start(stream, handle, **options(stream, retries=(0.05, 0.1)))
    (letter,) = await letters_of(stream)
    await until_settled(natty, stream)
    assert (letter.data, letter.original_sequence, letter.consumer, letter.deliveries) == (b"1", 2, "d", 3)
    assert letter.reason == "RuntimeError: no such customer"
    assert [one for one in seen if one[0] == b"1"] == [(b"1", 1), (b"1", 2), (b"1", 3)]
    assert (consumption.handled, consumption.failed, consumption.retried, consumption.buried) == (2, 3, 2, 1)
    assert consumption.redelivered == 2


async def test_without_retries_the_first_failure_is_the_last(natty, natty_name, start, letters_of):
    stream = await fill(natty, natty_name("DEAD"), 1)

    async def handle(message):
        raise RuntimeError("no")

    start(stream, handle, **options(stream, retries=()))
    (letter,) = await letters_of(stream)
    assert letter.deliveries == 1


async def test_a_body_that_does_not_fit_is_a_dead_letter_at_once(natty, natty_name, start, letters_of):
    payloads = [b'{"id": 1}', b'{"id": "x"}', b"{", b'{"id": 4}']
    stream, got = await fill(natty, natty_name("BODY"), 4, payload=payloads.__getitem__), []

    async def handle(order: Order):
        got.append(order.id)

    consumption, _ = start(stream, handle, **options(stream, retries=(NEVER,)))
    await until_settled(natty, stream)
    letters = await letters_of(stream, 2)
    assert [(letter.data, letter.deliveries) for letter in letters] == [(payloads[1], 1), (payloads[2], 1)]
    assert letters[0].reason == "BodyError: the body is not a valid Order: Expected `int`, got `str` - at `$.id`"
    assert got == [1, 4]
    assert (consumption.failed, consumption.retried, consumption.buried) == (2, 0, 2)


async def test_a_handler_that_takes_too_long_has_failed(natty, natty_name, start, letters_of):
    stream, cancelled = await fill(natty, natty_name("HANGS"), 2), []

    async def handle(message):
        if message.data == b"0":
            try:
                await asyncio.sleep(NEVER)
            finally:
                cancelled.append(message.deliveries)

    start(stream, handle, **options(stream, timeout=0.2))
    (letter,) = await letters_of(stream)
    await until_settled(natty, stream)
    assert letter.reason == "HandlerTimeoutError: the handler took longer than 0.2 s"
    assert cancelled == [1, 2]


DIES = """
import asyncio, os, signal, sys
from natty import DeadLetterOptions, Natty
stream, server, ca, cert, key = sys.argv[1:]
async def handle(message):
    if message.data == b"0":
        os.kill(os.getpid(), signal.SIGKILL)
async def main():
    async with Natty(server, tls_ca=ca, tls_cert=cert, tls_key=key, connect_timeout=60.0, timeout=60.0) as natty:
        await natty.consume(stream, "d", handle, dead_letters=DeadLetterOptions(letters=f"L_{stream}"), retries=())
asyncio.run(main())
"""


async def test_a_message_that_kills_its_process_again_and_again_is_a_dead_letter(
    natty, natty_name, start, letters_of, nats_server
):
    """Nobody calls nak or bury: the server gives up, and whoever consumes later reads its advisory."""
    stream, got = await fill(natty, natty_name("KILLS"), 1), []
    await natty.create_consumer(stream, "d", ack_wait=NEVER, max_deliver=2)
    connect = nats_server.connect_options()
    command = [sys.executable, "-c", DIES, stream, *connect["servers"]]
    command += [connect["tls_ca"], connect["tls_cert"], connect["tls_key"]]

    async def nobody_asks():
        return not (await info(natty, stream))["num_waiting"]

    for _ in range(2):
        died = await asyncio.to_thread(subprocess.run, command, timeout=PATIENCE)
        assert died.returncode == -signal.SIGKILL
        await until(nobody_asks)  # the server has noticed
        await natty.ensure_consumer(stream, "d", allow_destructive=True, ack_wait=0.1)

    async def handle(message):
        got.append(message.data)

    start(stream, handle, **options(stream))
    (letter,) = await letters_of(stream)
    await natty.ensure_consumer(stream, "d", ack_wait=NEVER)
    await natty.publish(f"{stream}.next", b"next")
    await until_settled(natty, stream)
    assert letter.data == b"0"
    assert letter.reason == "max deliveries: the server gave up after 2"
    assert got == [b"next"]


async def test_a_letter_that_is_retried_goes_to_its_own_consumer_only(natty, natty_name, start, letters_of):
    stream, other, broken = await fill(natty, natty_name("RETRIED"), 1), [], [True]

    async def fails(message):
        if broken:
            raise RuntimeError("no")

    async def works(message):
        other.append(message.sequence)

    start(stream, fails, **options(stream))
    start(stream, works, durable="other", **options(stream))
    await letters_of(stream)
    broken.clear()
    await natty.dead_letters(f"L_{stream}").retry()
    await until_settled(natty, stream)
    await until_settled(natty, stream, "other")
    assert (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]["last_seq"] == 2
    assert other == [1]


async def test_the_server_gives_up_some_deliveries_after_the_ladder(natty, natty_name, start):
    stream = await fill(natty, natty_name("LADDER"), 1)
    consumption, _ = start(stream, lambda message: None, **options(stream, retries=(1, 5, 30)))
    await until(lambda: consumption.handled)
    assert (await info(natty, stream))["config"]["max_deliver"] == 4 + SPARE_DELIVERIES


async def test_a_consumer_that_exists_is_taken_as_it_is(natty, natty_name, start, caplog):
    stream = await fill(natty, natty_name("LADDER"), 1)
    await natty.create_consumer(stream, "d", max_deliver=2)
    consumption, _ = start(stream, lambda message: None, **options(stream, retries=(1, 5, 30)))
    await until(lambda: consumption.handled)
    assert (await info(natty, stream))["config"]["max_deliver"] == 2
    assert "delivers 2 times: its messages are dead letters before the 3 retries are over" in caplog.text


async def test_without_dead_letters_nothing_is_given_up_and_no_stream_is_made(natty, natty_name, start):
    stream, seen = await fill(natty, natty_name("KEEP"), 1, payload=lambda number: b"no json"), []

    async def handle(message):
        seen.append(message.deliveries)
        if message.deliveries < 5:
            raise RuntimeError("no")

    start(stream, handle, retries=(0.05,), dead_letters=False)
    await until_settled(natty, stream)
    assert seen == [1, 2, 3, 4, 5]
    assert (await info(natty, stream))["config"]["max_deliver"] == -1


async def test_what_can_not_be_buried_is_tried_again_until_it_can(natty, natty_name, start, letters_of, monkeypatch):
    stream, refusals = await fill(natty, natty_name("FULL"), 1), []

    async def handle(message):
        raise RuntimeError("no")

    consumption, _ = start(stream, handle, **options(stream))
    bury = consumption._work.letters.bury

    async def full(*arguments, **more):
        if len(refusals) < 2:
            refusals.append(arguments)
            raise NattyError("the stream is full")
        return await bury(*arguments, **more)

    monkeypatch.setattr(consumption._work.letters, "bury", full)
    (letter,) = await letters_of(stream)
    await until_settled(natty, stream)
    assert letter.deliveries == 4  # the ladder's two, and one more for each refusal
    assert consumption.buried == 1


async def test_a_message_is_not_terminated_before_its_letter_is_durable(natty, natty_name, start, monkeypatch):
    stream, burying = await fill(natty, natty_name("ORDER"), 1), asyncio.Event()

    async def handle(message):
        raise RuntimeError("no")

    consumption, task = start(stream, handle, **options(stream, retries=(), shutdown_timeout=0.1))

    async def never(*arguments, **more):
        burying.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(consumption._work.letters, "bury", never)
    await burying.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    state = await info(natty, stream)
    assert state["num_ack_pending"] + state["num_pending"] == 1


@pytest.mark.parametrize("settle", ["ack", "nak", "term"])
async def test_what_a_handler_settled_before_it_failed_is_neither_tried_again_nor_buried_for_it(
    natty, natty_name, start, settle, letters_of
):
    stream, got = await fill(natty, natty_name("SETTLED"), 2), []

    async def handle(message):
        got.append((message.data, message.deliveries))
        if message.data == b"0" and message.deliveries == 1:
            getattr(message, settle)()
            raise RuntimeError("too late")

    consumption, task = start(stream, handle, **options(stream, retries=()))
    await until(lambda: consumption.handled == (2 if settle == "nak" else 1))
    await until_settled(natty, stream)
    if settle == "term":
        (letter,) = await letters_of(stream)
        assert letter.reason == "terminated"
    consumption.stop()
    await task
    assert sorted(got) == [(b"0", 1), *([(b"0", 2)] if settle == "nak" else []), (b"1", 1)]
    assert (consumption.failed, consumption.retried, consumption.buried) == (1, 0, 0)
    letters = [letter.reason async for letter in natty.dead_letters(f"L_{stream}").ls()]
    assert letters == (["terminated"] if settle == "term" else [])
