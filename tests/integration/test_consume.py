import asyncio
import itertools
import time

import pytest

from natty import ConsumerExistsError, Natty, StreamNotFoundError
from natty.consume import ConsumeOptions

SOON = 3.0  # seconds; far less than the ack_wait of 30 s


@pytest.fixture
async def stream(natty, natty_name):
    """A stream of 20 messages, 0 to 19."""
    return await fill(natty, natty_name("CONSUME"), 20)


async def fill(natty, name, count):
    await natty.ensure_stream(name, subjects=[f"{name}.>"])
    await asyncio.gather(*(natty.publish(f"{name}.{i}", b"%d" % i) for i in range(count)))
    return name


async def info(natty, stream, durable="d"):
    return await natty.jetstream.request(f"CONSUMER.INFO.{stream}.{durable}")


async def settled(natty, stream):
    await natty.connection.flush()
    facts = await info(natty, stream)
    return (facts["num_ack_pending"], facts["num_pending"]) == (0, 0)


async def until(condition, within=SOON):
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


class Handler:
    """Notes what it is given; `slow` seconds for each, and `gate` keeps it from ending."""

    def __init__(self, *, slow=0.0):
        self.got, self.done, self.running, self.most = [], [], 0, 0
        self.slow = slow
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, message):
        self.got.append(int(message.data))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.slow)
            await self.gate.wait()
        finally:
            self.running -= 1
        self.done.append(int(message.data))


@pytest.fixture
async def start(natty):
    """Start a consumption; those that still run are cancelled after the test."""
    tasks = []

    def run(stream, handler, durable="d", client=natty, **options):
        consumption = client.consume(stream, durable, handler, **options)
        tasks.append(asyncio.ensure_future(consumption.run()))
        return consumption, tasks[-1]

    yield run
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_a_handler_returned_from_is_acked(natty, stream, start):
    handler = Handler()
    consumption, task = start(stream, handler)
    await until(lambda: len(handler.done) == 20)
    consumption.stop()
    await task
    assert handler.done == sorted(handler.done)
    assert await settled(natty, stream)
    assert repr(consumption).startswith(f"Consumption(Pull({stream}/d, stopping")


async def test_as_many_handlers_run_as_concurrency_says(stream, start):
    handler = Handler(slow=0.01)
    start(stream, handler, concurrency=4)
    await until(lambda: len(handler.done) == 20)
    assert handler.most == 4


async def test_a_message_whose_handler_raised_comes_again_after_the_next_delay(natty, natty_name, start):
    stream, seen = await fill(natty, natty_name("RETRY"), 1), []

    async def fails_twice(message):
        seen.append((message.deliveries, time.monotonic()))
        if message.deliveries < 4:
            raise RuntimeError("not yet")

    start(stream, fails_twice, retries=(0.2, 0.4))
    await until(lambda: len(seen) == 4)
    gaps = [later[1] - earlier[1] for earlier, later in itertools.pairwise(seen)]
    assert [number for number, _ in seen] == [1, 2, 3, 4]
    assert all(wanted <= gap < wanted + 0.3 for gap, wanted in zip(gaps, (0.2, 0.4, 0.4), strict=True))
    assert await settled(natty, stream)


async def test_a_handler_that_takes_longer_than_ack_wait_gets_its_message_once(natty, natty_name, start):
    stream, handler = await fill(natty, natty_name("SLOW"), 1), Handler(slow=1.5)
    start(stream, handler, consumer={"ack_wait": 0.5})
    await until(lambda: handler.done)
    assert handler.got == [0]
    assert await settled(natty, stream)


async def test_messages_that_wait_for_their_turn_longer_than_ack_wait_come_once(natty, stream, start):
    handler = Handler(slow=0.1)
    start(stream, handler, consumer={"ack_wait": 0.5}, max_messages=8)
    await until(lambda: len(set(handler.done)) == 20)
    assert handler.got == list(range(20))


async def test_messages_that_wait_while_one_iterates_slowly_come_once(natty, stream):
    got = []
    async for message in (consumption := natty.consume(stream, "d", consumer={"ack_wait": 0.5})):
        got.append(int(message.data))
        await asyncio.sleep(0.1)
        message.ack()
        if len(set(got)) == 20:
            consumption.stop()
    assert got == list(range(20))


async def test_without_keep_alive_it_would_come_twice(natty, natty_name, start):
    stream, handler = await fill(natty, natty_name("SLOW"), 1), Handler(slow=1.2)
    start(stream, handler, consumer={"ack_wait": 0.5}, keep_alive=False, concurrency=4)
    await until(lambda: len(handler.got) >= 2)


async def test_no_more_than_max_messages_are_out_with_a_slow_handler(natty, stream, start):
    handler = Handler()
    handler.gate.clear()
    start(stream, handler, max_messages=5, concurrency=2)
    await until(lambda: len(handler.got) == 2)
    await asyncio.sleep(0.2)
    assert (await info(natty, stream))["num_ack_pending"] == 5
    handler.gate.set()
    await until(lambda: len(handler.done) == 20)


async def test_stop_lets_the_running_handlers_finish_and_hands_back_the_rest(natty, stream, start):
    first, second = Handler(), Handler()
    first.gate.clear()
    consumption, task = start(stream, first, concurrency=3)
    await until(lambda: len(first.got) == 3)
    consumption.stop()
    asyncio.get_running_loop().call_later(0.1, first.gate.set)
    await task
    assert len(first.done) == len(first.got) == 3  # none was begun after stop
    start(stream, second)
    await until(lambda: len(second.done) == 17)
    assert sorted(first.done + second.done) == list(range(20))


async def test_cancelling_does_the_same(natty, stream, start):
    first, second = Handler(), Handler()
    first.gate.clear()
    _, task = start(stream, first, concurrency=3)
    await until(lambda: len(first.got) == 3)
    task.cancel()
    asyncio.get_running_loop().call_later(0.1, first.gate.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(first.done) == len(first.got) == 3
    start(stream, second)
    await until(lambda: len(second.done) == 17)


async def test_a_handler_that_does_not_finish_in_time_is_cancelled_and_its_message_handed_back(stream, start):
    first, second = Handler(), Handler()
    first.gate.clear()
    consumption, task = start(stream, first, concurrency=2, shutdown_timeout=0.3)
    await until(lambda: len(first.got) == 2)
    consumption.stop()
    started = time.monotonic()
    await task
    assert time.monotonic() - started < 0.8
    start(stream, second)
    await until(lambda: len(second.done) == 20)


async def test_a_second_cancellation_ends_it_at_once_and_leaves_no_handler_behind(stream, start):
    handler = Handler()
    handler.gate.clear()
    _, task = start(stream, handler, concurrency=2)
    await until(lambda: handler.running == 2)
    task.cancel()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert handler.running == 0


async def test_a_deleted_consumer_is_made_again(natty, stream, start):
    handler = Handler()
    start(stream, handler, consumer={"filter_subject": f"{stream}.>"})
    await until(lambda: len(handler.done) == 20)
    await natty.jetstream.request(f"CONSUMER.DELETE.{stream}.d")
    await asyncio.sleep(0.1)
    await natty.publish(f"{stream}.20", b"20")
    await until(lambda: 20 in handler.done)
    assert (await info(natty, stream))["config"]["filter_subject"] == f"{stream}.>"


async def test_a_deleted_stream_ends_the_consumption(natty, stream, start):
    handler = Handler()
    _, task = start(stream, handler)
    await until(lambda: len(handler.done) == 20)
    await natty.jetstream.request(f"STREAM.DELETE.{stream}")
    with pytest.raises(StreamNotFoundError):
        await asyncio.wait_for(task, SOON)


async def test_a_link_cut_while_handlers_run_loses_nothing(natty_proxy, natty, stream, start):
    handler = Handler(slow=0.02)
    async with Natty(**natty_proxy.options, ping_interval=0.5) as far:
        _, task = start(stream, handler, client=far, consumer={"ack_wait": 1.0})
        await until(lambda: len(handler.done) == 5)
        await natty_proxy.cut()
        await asyncio.sleep(0.2)
        await natty_proxy.restore()
        await until(lambda: set(handler.done) == set(range(20)), within=8)
        async with asyncio.timeout(5):
            while not await settled(far, stream):
                await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_iterating_hands_out_messages_one_by_one(natty, stream):
    got = []
    async for message in (consumption := natty.consume(stream, "d")):
        got.append(int(message.data))
        message.ack()
        if len(got) == 20:
            consumption.stop()
    assert sorted(got) == list(range(20))
    assert await settled(natty, stream)


async def test_leaving_the_loop_hands_back_what_was_not_read(natty, stream, start):
    async for message in natty.consume(stream, "d"):
        message.ack()
        break
    handler = Handler()
    start(stream, handler)
    await until(lambda: len(handler.done) == 19)


async def test_a_message_that_was_given_up_never_comes_again(natty, stream):
    async for message in (consumption := natty.consume(stream, "d")):
        message.term("no such order") if message.data == b"7" else message.ack()
        if message.data == b"19":
            consumption.stop()
    assert await settled(natty, stream)


async def test_an_existing_consumer_with_other_settings_is_refused_with_the_difference(natty, stream):
    await natty.ensure_consumer(stream, "d", ack_wait=5)
    with pytest.raises(ConsumerExistsError, match="ack_wait is 5 s, wanted 7 s"):
        await natty.consume(stream, "d", Handler(), consumer={"ack_wait": 7.0})


async def test_consuming_without_a_handler_says_how(natty, stream):
    with pytest.raises(TypeError, match="async for"):
        await natty.consume(stream, "d")


@pytest.mark.parametrize(("options", "words"), [({"concurrency": 0}, "at least one"), ({"retries": ()}, "retries is")])
def test_options_that_can_not_work_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        ConsumeOptions(**options)
