"""One message of a key at a time, in stream order, and everything else in parallel."""

import asyncio
import random

import pytest
from consuming import (
    ACK_WAIT,
    HANDED_BACK,
    Handler,
    end_redeliveries,
    fill,
    info,
    until,
    until_outlived,
    until_settled,
)
from patient import NEVER

from natty import DeadLetterOptions

KEYS, EACH = 6, 8


class Notes:
    """Notes, by key, what begins and what ends; the number is the payload, its key the remainder; `gate` as Handler."""

    def __init__(self, work=lambda number: 0.002):
        self.work = work
        self.begun = {key: [] for key in range(KEYS)}
        self.ended = []
        self.running, self.most, self.beside = set(), 0, []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, message):
        number = int(message.data)
        key = number % KEYS
        if key in self.running:
            self.beside.append(number)
        self.running.add(key)
        self.most = max(self.most, len(self.running))
        self.begun[key].append(number)
        try:
            await self.gate.wait()
            await asyncio.sleep(self.work(number))
        finally:
            self.running.discard(key)
        self.ended.append(number)

    def order(self, key):
        return [number for number in self.ended if number % KEYS == key]


def of_key(key, count=KEYS * EACH):
    return list(range(key, count, KEYS))


@pytest.fixture
async def stream(natty, natty_name):
    """A stream whose messages have KEYS subjects in turn."""
    return await fill(natty, natty_name("KEYED"), KEYS * EACH, subject=lambda number: number % KEYS)


@pytest.mark.parametrize("by", ["subject", lambda message: int(message.data) % KEYS])
async def test_keys_are_in_order_and_alone_and_beside_each_other(natty, stream, start, by):
    notes = Notes(work=lambda number: random.uniform(0, 0.02))
    notes.gate.clear()
    consumption, _ = start(stream, notes, concurrency=4, ordered_by=by)
    await until(lambda: len(notes.running) == 4 and f"{KEYS * EACH - 4} waiting" in repr(consumption))
    notes.gate.set()
    await until_settled(natty, stream)
    assert all(notes.order(key) == of_key(key) for key in range(KEYS))
    assert notes.beside == []
    assert notes.most == 4


async def test_without_it_they_are_not(natty, stream, start):
    notes = Notes()
    notes.gate.clear()
    start(stream, notes, concurrency=2 * KEYS)
    await until(lambda: notes.beside == list(range(KEYS, 2 * KEYS)))
    notes.gate.set()
    await until_settled(natty, stream)


async def test_a_header_orders_those_that_have_it(natty, natty_name, start):
    stream, notes = await fill(natty, natty_name("HEADERS"), 0), Notes(work=lambda number: random.uniform(0, 0.02))
    for number in range(KEYS * EACH):
        headers = {"Customer": str(number % KEYS)} if number % KEYS else None
        await natty.publish(f"{stream}.all", b"%d" % number, headers=headers)
    start(stream, notes, concurrency=2 * KEYS, ordered_by="header:Customer")
    await until_settled(natty, stream)
    assert all(notes.order(key) == of_key(key) for key in range(1, KEYS))
    assert all(number % KEYS == 0 for number in notes.beside)
    assert sorted(notes.order(0)) == of_key(0)


async def test_a_failure_holds_back_its_key_and_nobody_else(natty, stream, start):
    others, failures = [number for number in range(KEYS * EACH) if number % KEYS], []

    class Fails(Notes):
        async def __call__(self, message):
            if message.data == b"0" and (len(failures) < 2 or sorted(self.ended) != others):
                failures.append(0)
                self.begun[0].append(0)
                raise RuntimeError("not yet")
            await super().__call__(message)

    notes = Fails()
    options = {"retries": (0.1,), "dead_letters": False, "consumer": HANDED_BACK}
    consumption, _ = start(stream, notes, concurrency=4, ordered_by="subject", **options)
    await until_settled(natty, stream)
    assert notes.begun[0] == failures + of_key(0)
    assert sorted(notes.ended[: len(others)]) == others  # all of them went by
    assert (consumption.failed, consumption.retried, consumption.redelivered) == (len(failures), len(failures), 0)


async def test_a_key_that_is_held_back_longer_than_ack_wait_is_kept_alive(natty, stream, start):
    repaired, notes = asyncio.Event(), Notes()

    async def handle(message):
        if message.data == b"0" and not repaired.is_set():
            raise RuntimeError("not yet")
        await notes(message)

    options = {"retries": (1.6 * ACK_WAIT,), "dead_letters": False, "consumer": {"ack_wait": ACK_WAIT}}
    consumption, _ = start(stream, handle, ordered_by="subject", **options)
    await until(lambda: consumption.handled == (KEYS - 1) * EACH)
    await until_outlived(consumption, stream, start)
    await end_redeliveries(natty, stream)
    repaired.set()
    await until_settled(natty, stream)
    assert notes.order(0) == of_key(0)


async def test_after_the_last_retry_the_key_goes_on_without_the_message(natty, stream, start):
    notes = Notes()

    async def handle(message):
        if message.data == b"0":
            raise RuntimeError("never")
        await notes(message)

    letters = DeadLetterOptions(letters=f"L_{stream}")
    consumption, _ = start(stream, handle, ordered_by="subject", retries=(0.05, 0.05), dead_letters=letters)
    await until_settled(natty, stream)
    assert notes.order(0) == of_key(0)[1:]
    assert (consumption.failed, consumption.buried) == (3, 1)


async def test_a_busy_key_that_is_held_back_stays_within_max_messages(natty, natty_name, start):
    stream, handler = await fill(natty, natty_name("BUSY"), 30, subject=lambda number: "one"), Handler()
    tries = []

    async def handle(message):
        if message.data == b"0":
            tries.append(message)
            if len(tries) == 1:
                raise RuntimeError("not yet")
            await until(lambda: "5 waiting" in repr(consumption))
            state = await info(natty, stream)
            assert (state["num_ack_pending"], state["num_waiting"]) == (6, 0)  # 6 are out, no more are asked for
        await handler(message)

    consumption, _ = start(stream, handle, ordered_by="subject", retries=(0.1,), max_messages=6)
    await until_settled(natty, stream)
    assert len(tries) == 2
    assert handler.done == list(range(30))


async def test_stopping_hands_back_what_is_held_and_the_next_one_goes_on_in_order(natty, natty_name, start):
    stream, handler = await fill(natty, natty_name("BUSY"), EACH, subject=lambda number: "one"), Handler()
    failed = asyncio.Event()

    async def fails(message):
        failed.set()
        raise RuntimeError("not yet")

    # No more than there are: a server that is asked for more would send us what we have just handed back.
    options = {"retries": (NEVER,), "max_messages": EACH, "consumer": HANDED_BACK}
    consumption, task = start(stream, fails, ordered_by="subject", **options)
    await until(lambda: failed.is_set() and f"{EACH - 1} waiting" in repr(consumption))
    consumption.stop()
    await task
    start(stream, handler, ordered_by="subject")
    await until_settled(natty, stream)
    assert handler.done == list(range(EACH))


@pytest.mark.parametrize(
    "by", [lambda message: 1 // int(message.data), lambda message: [1] if message.data == b"0" else 1]
)
async def test_a_key_that_can_not_be_told_is_a_failure_of_its_message(natty, stream, start, by):
    letters, seen = DeadLetterOptions(letters=f"L_{stream}"), []

    async def handle(message):
        seen.append(int(message.data))

    consumption, _ = start(stream, handle, ordered_by=by, retries=(), dead_letters=letters)
    await until_settled(natty, stream)
    assert consumption.buried == 1
    assert sorted(seen) == list(range(1, KEYS * EACH))
