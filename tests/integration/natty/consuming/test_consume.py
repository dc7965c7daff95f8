import asyncio
import contextvars
import itertools
import time

import pytest
from consuming import (
    ACK_WAIT,
    HANDED_BACK,
    Handler,
    end_redeliveries,
    fill,
    info,
    outlast_ack_wait,
    until,
    until_outlived,
    until_settled,
)
from patient import NEVER, PATIENCE, PATIENT

from natty import ConsumerExistsError, Natty, StreamNotFoundError, UnsupportedError, blocking
from natty.consuming.options import ConsumeOptions
from natty.wire.counters import PULL


@pytest.fixture
async def stream(natty, natty_name):
    """A stream of 20 messages, 0 to 19."""
    return await fill(natty, natty_name("CONSUME"), 20)


async def test_what_a_handler_returned_from_is_acked(natty, stream, start):
    handler = Handler()
    consumption, task = start(stream, handler)
    await until(lambda: len(handler.done) == 20)
    consumption.stop()
    await task
    assert handler.done == sorted(handler.done)
    await until_settled(natty, stream)
    assert repr(consumption).startswith(f"Consumption(Pull({stream}/d, stopping")


async def test_as_many_handlers_run_as_concurrency_says(stream, start):
    handler = Handler()
    handler.gate.clear()
    consumption, _ = start(stream, handler, concurrency=4)
    await until(lambda: handler.running == 4 and "16 waiting" in repr(consumption))
    handler.gate.set()
    await until(lambda: len(handler.done) == 20)
    assert handler.most == 4


async def test_no_more_of_them_run_when_messages_come_one_by_one(natty, natty_name, start):
    stream, handler = await fill(natty, natty_name("ONES"), 0), Handler()
    handler.gate.clear()
    consumption, _ = start(stream, handler, concurrency=2)
    for number in range(6):
        await natty.publish(f"{stream}.one", b"%d" % number)
        waiting = f"{max(0, number - 1)} waiting"
        await until(lambda waiting=waiting: waiting in repr(consumption))
    handler.gate.set()
    await until_settled(natty, stream)
    assert handler.most == 2


async def test_a_message_whose_handler_raised_comes_again_after_the_next_delay(natty, natty_name, start):
    stream, seen = await fill(natty, natty_name("RETRY"), 1), []

    async def fails(message):
        seen.append((message.deliveries, time.monotonic()))
        if message.deliveries < 4:
            raise RuntimeError("not yet")

    start(stream, fails, retries=(0.2, 0.4), dead_letters=False)
    await until(lambda: len(seen) == 4)
    gaps = [later[1] - earlier[1] for earlier, later in itertools.pairwise(seen)]
    assert [number for number, _ in seen] == [1, 2, 3, 4]
    assert all(gap >= 0.9 * wanted for gap, wanted in zip(gaps, (0.2, 0.4, 0.4), strict=True))
    await until_settled(natty, stream)


async def test_messages_that_are_handled_and_that_wait_for_longer_than_ack_wait_come_once(natty, stream, start):
    handler = Handler()
    handler.gate.clear()
    consumption, _ = start(stream, handler, consumer={"ack_wait": ACK_WAIT}, dead_letters=False)
    await until(lambda: "19 waiting" in repr(consumption))
    await until_outlived(consumption, stream, start)
    assert handler.got == [0]
    await end_redeliveries(natty, stream)
    handler.gate.set()
    await until_settled(natty, stream)
    assert handler.got == list(range(20))


async def test_messages_that_wait_while_one_iterates_slowly_come_once(natty, natty_name, stream, start):
    async def iterate(durable):
        got = []
        async for message in (consumption := natty.consume(stream, durable, consumer={"ack_wait": ACK_WAIT})):
            if not got:
                await outlast_ack_wait(stream, start)
            got.append(int(message.data))
            message.ack()
            if len(set(got)) == 20:
                consumption.stop()
        return got, consumption.redelivered

    async def once():  # unless we stood still; what is not kept alive comes again every time
        return await iterate(natty_name("d")) == (list(range(20)), 0)

    await until(once)


async def test_a_message_that_comes_again_while_its_handler_runs_is_not_handled_twice(natty, natty_name, start):
    stream, handler = await fill(natty, natty_name("SLOW"), 3), Handler()
    handler.gate.clear()
    consumption, _ = start(stream, handler, consumer={"ack_wait": ACK_WAIT}, keep_alive=False)
    await until(lambda: consumption.redelivered >= 3)  # the running one and those that wait
    await end_redeliveries(natty, stream)
    handler.gate.set()
    await until_settled(natty, stream)
    assert handler.got == [0, 1, 2]


async def test_no_more_than_max_messages_are_out_with_a_slow_handler(natty, stream, start):
    handler = Handler()
    handler.gate.clear()
    consumption, _ = start(stream, handler, max_messages=5, concurrency=2)
    await until(lambda: len(handler.got) == 2 and "3 waiting" in repr(consumption))
    state = await info(natty, stream)
    assert (state["num_ack_pending"], state["num_waiting"]) == (5, 0)  # 5 are out, and no more are asked for
    handler.gate.set()
    await until(lambda: len(handler.done) == 20)


async def test_stop_lets_the_running_handlers_finish_and_hands_back_the_rest(natty, stream, start):
    first, second = Handler(), Handler()
    first.gate.clear()
    consumption, task = start(stream, first, concurrency=3, consumer=HANDED_BACK, shutdown_timeout=NEVER)
    await until(lambda: len(first.got) == 3)
    consumption.stop()
    asyncio.get_running_loop().call_later(0.1, first.gate.set)
    await task
    assert len(first.done) == len(first.got) == 3  # none was begun after stop
    start(stream, second)
    await until(lambda: len(second.done) == 17)
    assert sorted(first.done + second.done) == list(range(20))


async def test_messages_that_arrive_in_the_moment_of_a_stop_are_handed_back(natty, natty_name, nats_server, start):
    stream, first, second = await fill(natty, natty_name("MOMENT"), 0), Handler(), Handler()
    first.gate.clear()
    consumption, task = start(stream, first, consumer=HANDED_BACK)
    await consumption.ready.wait()

    def stop():  # after the event loop has read what arrives meanwhile
        asyncio.get_running_loop().call_later(0, consumption.stop)
        with blocking.Natty(**PATIENT | nats_server.connect_options()) as client:
            for number in range(20):
                client.publish(f"{stream}.{number}", b"%d" % number)
            while client.consumer_info(stream, "d")["num_pending"]:
                time.sleep(0.01)

    await until(lambda: consumption._pull._credit.asked_messages)
    asyncio.get_running_loop().call_soon(stop)
    asyncio.get_running_loop().call_later(0.1, first.gate.set)
    await task
    start(stream, second)
    await until(lambda: len(second.done) == 20)
    assert not first.got


async def test_cancelling_does_the_same(natty, stream, start):
    first, second = Handler(), Handler()
    first.gate.clear()
    _, task = start(stream, first, concurrency=3, consumer=HANDED_BACK, shutdown_timeout=NEVER)
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
    consumption, task = start(stream, first, concurrency=2, consumer=HANDED_BACK, shutdown_timeout=0.1)
    await until(lambda: len(first.got) == 2)
    consumption.stop()
    await task
    assert first.done == []
    start(stream, second)
    await until(lambda: len(second.done) == 20)


@pytest.mark.parametrize("silent", [False, True])  # a server that does not say what is still on its way
async def test_a_second_cancellation_ends_it_at_once_and_leaves_no_handler_behind(
    natty_proxy, stream, start, monkeypatch, silent
):
    monkeypatch.setattr("natty.pulling.pull.DRAIN_TIMEOUT", NEVER)
    monkeypatch.setattr("natty.consuming.consume.FLUSH_TIMEOUT", 0.1)
    handler = Handler()
    handler.gate.clear()
    async with Natty(**natty_proxy.options, **PATIENT) as far:
        options = {"client": far, "dead_letters": False, "shutdown_timeout": NEVER}
        consumption, task = start(stream, handler, concurrency=2, **options)
        await until(lambda: handler.running == 2)
        if silent:
            natty_proxy.hold()
        task.cancel()
        await until(lambda: "stopping" in repr(consumption) and (silent or not far.connection.observed.parts(PULL)))
        task.cancel()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert handler.running == 0
        natty_proxy.release()


async def test_a_deleted_consumer_is_made_again(natty, stream, start):
    handler = Handler()
    start(stream, handler, consumer={"filter_subjects": [f"{stream}.>"], "max_ack_pending": 77})
    await until(lambda: len(handler.done) == 20)
    await natty.jetstream.request(f"CONSUMER.DELETE.{stream}.d")
    await natty.publish(f"{stream}.20", b"20")
    await until(lambda: 20 in handler.done)
    assert (await info(natty, stream))["config"]["max_ack_pending"] == 77


async def test_a_deleted_stream_ends_the_consumption(natty, stream, start):
    handler = Handler()
    _, task = start(stream, handler)
    await until(lambda: len(handler.done) == 20)
    await natty.jetstream.request(f"STREAM.DELETE.{stream}")
    with pytest.raises(StreamNotFoundError):
        async with asyncio.timeout(PATIENCE):
            await task


async def test_a_link_cut_while_handlers_run_loses_no_message_and_no_ack(natty_proxy, natty, stream, start):
    handler = Handler()
    handler.gate.clear()
    async with Natty(**natty_proxy.options, **PATIENT) as far:
        consumption, task = start(stream, handler, client=far, concurrency=5, consumer=HANDED_BACK, dead_letters=False)
        await until(lambda: handler.running == 5 and "15 waiting" in repr(consumption))
        await natty_proxy.cut()
        await until(lambda: not far.connection.connected)
        handler.gate.set()  # their acks wait for the connection
        await until(lambda: len(handler.done) >= 5)
        await natty_proxy.restore()
        await until_settled(natty, stream)
        assert sorted(handler.done) == list(range(20))
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
    await until_settled(natty, stream)


async def test_leaving_the_loop_hands_back_what_was_not_read(natty, stream, start):
    async for message in natty.consume(stream, "d", consumer=HANDED_BACK):
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
    await until_settled(natty, stream)


async def test_an_existing_consumer_with_other_settings_is_refused_with_the_difference(natty, stream):
    await natty.ensure_consumer(stream, "d", ack_wait=5)
    with pytest.raises(ConsumerExistsError, match="ack_wait is 5 s, wanted 7 s"):
        await natty.consume(stream, "d", Handler(), consumer={"ack_wait": 7.0})


async def test_consuming_without_a_handler_says_how(natty, stream):
    with pytest.raises(TypeError, match="async for"):
        await natty.consume(stream, "d")


async def test_a_consumer_without_single_acks_is_refused(natty, stream):
    with pytest.raises(UnsupportedError, match="ack_policy all: consume settles every message by itself"):
        await natty.consume(stream, "d", Handler(), consumer={"ack_policy": "all"})


async def test_context_variables_of_one_message_do_not_reach_the_next(natty, stream, start):
    seen = []

    async def handle(message):
        seen.append(user.get())
        user.set(message.data)

    user = contextvars.ContextVar("user", default=None)
    start(stream, handle)
    await until_settled(natty, stream)
    assert seen == [None] * 20


async def test_a_handler_that_never_waits_leaves_the_event_loop_its_turns(natty, stream, start):
    turns, seen = 0, []

    async def handle(message):
        time.sleep(0.02)
        seen.append(turns)

    start(stream, handle)
    while len(seen) < 20:
        turns += 1
        await asyncio.sleep(0)
    assert len(set(seen)) > 15


async def test_many_messages_cost_few_tasks(natty, natty_name, start):
    stream, tasks = await fill(natty, natty_name("MANY"), 200), set()

    async def handle(message):
        await until(lambda: "199 waiting" in repr(consumption) or len(tasks))
        tasks.add(asyncio.current_task())

    consumption, _ = start(stream, handle)
    await until_settled(natty, stream)
    assert len(tasks) < 100


async def test_a_time_out_inside_a_handler_cancels_that_handler_alone(natty, stream, start):
    ended = []

    async def handle(message):
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            ended.append(message.data)

    start(stream, handle, concurrency=5)
    await until_settled(natty, stream)
    assert len(ended) == 20


async def test_what_a_handler_settled_itself_is_left_alone(natty, stream, start):
    async def handle(message):
        if message.deliveries == 1:
            message.nak(0.1)
        else:
            seen.append(message.deliveries)

    seen = []
    consumption, _ = start(stream, handle)
    await until_settled(natty, stream)
    assert seen == [2] * 20
    assert (consumption.handled, consumption.failed, consumption.redelivered) == (40, 0, 20)


async def test_a_handler_that_awaits_something_cancelled_has_failed_and_no_more(natty, stream, start):
    async def handle(message):
        if message.data == b"7" and message.deliveries == 1:
            task = asyncio.create_task(asyncio.sleep(60))
            task.cancel()
            await task

    consumption, _ = start(stream, handle, retries=(0.1,))
    await until_settled(natty, stream)
    assert (consumption.handled, consumption.failed, consumption.retried) == (20, 1, 1)


async def test_the_state_is_told(natty, stream, start):
    handler = Handler()
    handler.gate.clear()
    consumption, _ = start(stream, handler)
    await until(lambda: handler.got)
    assert not consumption.stalled
    await until(lambda: "19 waiting, 0 handled, 0 failed, 0 buried" in repr(consumption))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"concurrency": 0}, "concurrency is 0; write a whole number, 1 or more"),
        ({"retries": (), "dead_letters": False}, "retries is"),
        ({"batch": 600}, "batch 600 is over max_messages 500"),
        ({"ordered_by": "subject", "keep_alive": False}, "needs keep_alive"),
    ],
)
def test_options_that_can_not_work_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        ConsumeOptions(**options)


async def test_a_time_out_for_threads_is_refused(natty):
    with pytest.raises(ValueError, match="a thread can't be cancelled"):
        natty.consume("S", "d", lambda message: None, timeout=1.0)
