"""Handlers of other kinds: batches, threads, bodies by annotation."""

import asyncio
import threading

import msgspec
import pytest
from consuming import fill, until, until_settled
from patient import NEVER, PATIENCE

from natty import Batch, DeadLetterOptions, Message


class Order(msgspec.Struct):
    id: int


@pytest.fixture
async def stream(natty, natty_name):
    """A stream of 25 messages, 0 to 24."""
    return await fill(natty, natty_name("KINDS"), 25)


async def test_a_batch_is_full_or_has_waited(natty, stream, start):
    full, waited = [], []

    def notes(lots):
        async def handle(messages: list[Message]):
            lots.append([int(message.data) for message in messages])

        return handle

    patient, _ = start(stream, notes(full), batch=10, batch_wait=NEVER)
    start(stream, notes(waited), durable="other", batch=10, batch_wait=0.1)
    await until_settled(natty, stream, "other")
    assert [number for lot in waited for number in lot] == list(range(25))
    assert max(map(len, waited)) <= 10
    await until(lambda: "5 waiting, 20 handled" in repr(patient))
    assert full == [list(range(10)), list(range(10, 20))]


async def test_a_batch_handler_may_take_the_columns(natty, stream, start):
    seen = []

    async def handle(batch: Batch):
        seen.extend(zip(batch.sequences, batch.payloads, strict=True))

    consumption, _ = start(stream, handle, batch=10, batch_wait=0.05)
    await until_settled(natty, stream)
    assert seen == [(number + 1, b"%d" % number) for number in range(25)]
    assert consumption.handled == 25


async def test_of_a_batch_that_fails_each_message_is_tried_alone_and_only_the_bad_one_dies(natty, stream, start):
    lots = []

    async def handle(messages: list[Message]):
        lots.append([int(message.data) for message in messages])
        if 7 in lots[-1]:
            raise RuntimeError("seven")

    letters = DeadLetterOptions(letters=f"L_{stream}")
    consumption, _ = start(stream, handle, batch=25, batch_wait=NEVER, retries=(0.1,), dead_letters=letters)
    await until_settled(natty, stream)
    assert consumption.buried == 1
    assert lots[0] == list(range(25))
    assert sorted(lots[1:]) == [[number] for number in range(25)]


async def test_what_a_batch_handler_settled_is_left_alone(natty, stream, start):
    async def handle(batch: Batch):
        for message in batch:
            if message.data == b"3" and message.deliveries == 1:
                message.nak(0.05)
        seen.extend(batch.payloads)

    seen = []
    start(stream, handle, batch=25)
    await until_settled(natty, stream)
    assert seen.count(b"3") == 2
    assert len(seen) == 26


async def test_functions_run_in_threads_and_leave_the_event_loop_free(natty, stream, start):
    threads, together = set(), threading.Barrier(4)

    def handle(message: Message):
        threads.add(threading.get_ident())
        if int(message.data) < 4:
            together.wait(PATIENCE)  # four at one time, or never

    consumption, _ = start(stream, handle, concurrency=4)
    await until_settled(natty, stream)
    assert consumption.handled == 25
    assert threading.get_ident() not in threads
    assert len(threads) == 4


async def test_a_function_may_settle_its_message_from_its_thread(natty, stream, start, monkeypatch):
    monkeypatch.setattr("natty.consuming.handler.SEND_TIMEOUT", PATIENCE)
    seen = []

    def handle(message: Message):
        seen.append(message.deliveries)
        if message.deliveries == 1:
            message.in_progress()
            message.nak(0.05)

    start(stream, handle, concurrency=2)
    await until_settled(natty, stream)
    assert sorted(seen) == [1] * 25 + [2] * 25


@pytest.mark.parametrize("fault", [RuntimeError, StopIteration, asyncio.CancelledError])
async def test_a_function_that_raises_has_failed(natty, stream, start, fault):
    def handle(message: Message):
        if message.data == b"3" and message.deliveries == 1:
            raise fault("three")

    consumption, _ = start(stream, handle, retries=(0.05,))
    await until_settled(natty, stream)
    assert (consumption.handled, consumption.failed, consumption.redelivered) == (25, 1, 1)


async def test_a_stop_waits_for_threads(stream, start):
    done, begun, gate = [], threading.Event(), threading.Event()

    def handle(message: Message):
        begun.set()
        gate.wait(PATIENCE)
        done.append(message.data)

    consumption, task = start(stream, handle, shutdown_timeout=NEVER)
    await until(begun.is_set)
    consumption.stop()
    asyncio.get_running_loop().call_later(0.1, gate.set)
    await task
    assert done == [b"0"]


async def test_bodies_come_as_annotated_with_the_message_beside_them(natty, natty_name, start):
    stream, got = await fill(natty, natty_name("BODIES"), 3, payload=lambda number: b'{"id": %d}' % number), []

    async def handle(order: Order, message: Message):
        got.append((order, message.sequence))

    start(stream, handle)
    await until_settled(natty, stream)
    assert got == [(Order(0), 1), (Order(1), 2), (Order(2), 3)]


async def test_a_handler_that_can_not_be_called_is_refused_before_anything_is_made(natty):
    async def handle(order: Order, other: Order):
        await asyncio.sleep(0)

    with pytest.raises(TypeError, match="takes Order, Order"):
        natty.consume("NONE", "d", handle)


async def test_a_batch_with_an_order_has_messages_of_one_key_and_one_batch_of_it_runs_at_a_time(
    natty, natty_name, start
):
    stream, lots, running = natty_name("KEYS"), {b"a": [], b"b": []}, set()
    await natty.create_stream(stream, subjects=[f"{stream}.*"])
    for number in range(24):
        await natty.publish(f"{stream}.{'ab'[number % 2]}", b"%s%d" % (b"ab"[number % 2 :][:1], number))

    async def handle(messages: list[Message]):
        (key,) = {message.data[:1] for message in messages}
        assert key not in running
        running.add(key)
        await asyncio.sleep(0)
        lots[key].append([int(message.data[1:]) for message in messages])
        running.discard(key)

    start(stream, handle, batch=5, batch_wait=0.1, ordered_by="subject", concurrency=4)
    await until_settled(natty, stream)
    assert [number for lot in lots[b"a"] for number in lot] == list(range(0, 24, 2))
    assert [number for lot in lots[b"b"] for number in lot] == list(range(1, 24, 2))
    assert max(map(len, lots[b"a"] + lots[b"b"])) == 5


async def test_of_an_ordered_batch_that_fails_each_message_is_tried_alone_and_none_overtakes(natty, stream, start):
    lots, failures = [], [7]

    async def handle(messages: list[Message]):
        lots.append([int(message.data) for message in messages])
        if 7 in lots[-1] and len(failures) < 4:
            failures.append(7)
            raise RuntimeError("seven")

    options = {"batch": 10, "batch_wait": 0.1, "ordered_by": lambda message: "all", "retries": (0.05, 0.05, 0.05)}
    consumption, _ = start(stream, handle, **options)
    await until_settled(natty, stream)
    assert lots[0] == list(range(10))
    alone = [[number] for number in range(8)] + [[7], [7]] + [[8], [9]]
    assert lots[1 : 1 + len(alone)] == alone
    assert [number for lot in lots[1 + len(alone) :] for number in lot] == list(range(10, 25))
    assert consumption.buried == 0
