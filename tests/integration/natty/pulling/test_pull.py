import asyncio
import contextlib
import time

import pytest
from patient import FILLING, NEVER, PATIENCE, PATIENT, reconfigure, turns, until

from natty import ConsumerNotFoundError, Natty, NotConnectedError, StreamNotFoundError, UnsupportedError
from natty.pulling import pull as pulling
from natty.pulling.requests import PullOptions

QUICK = {"heartbeat": 0.3, "expires": 1.0}
SLOW = {"heartbeat": NEVER, "expires": 2 * NEVER}
LONG = 2 * PATIENCE  # for many messages through faults


async def fill(natty, name, count, *, padding=0, **consumer):
    """Make a stream of `count` messages (their numbers) and the durable "d"; return the stream's name."""
    await natty.ensure_stream(name, subjects=[f"{name}.>"], allow_batched=True)
    await natty.ensure_consumer(name, "d", **{"max_ack_pending": 100_000} | consumer)
    async with natty.publisher(name, **FILLING) as publisher:
        for i in range(count):
            await publisher.publish(f"{name}.{i}", b"%d" % i + bytes(padding))
    return name


@pytest.fixture
async def stream(natty, natty_name):
    """A stream of 1000 messages with the durable "d", which delivers nothing twice by itself."""
    return await fill(natty, natty_name("PULL"), 1000, ack_wait=NEVER)


async def collect(pull, count, *, ack=True, meanwhile=None):
    """Read until `count` different ones are there; return all. `meanwhile` is awaited after the first batch."""
    got = []
    async for batch in pull:
        got += batch.payloads
        if ack:
            with contextlib.suppress(NotConnectedError):  # they come again
                pull.ack(batch.replies)
        pull.finish(len(batch))
        if meanwhile is not None:
            await meanwhile
            meanwhile = None
        if len(got) >= count and len(set(got)) >= count:
            pull.stop()
    return got


async def state(natty, stream):
    return await natty.jetstream.request(f"CONSUMER.INFO.{stream}.d")


async def reaches(natty, stream, **wanted):
    """Wait until the consumer is in this state, as its server tells."""
    async with asyncio.timeout(PATIENCE):
        while not wanted.items() <= (await state(natty, stream)).items():
            await asyncio.sleep(0.02)


async def empty(natty, stream):
    """Wait until everything is delivered and acknowledged."""
    await reaches(natty, stream, num_ack_pending=0, num_pending=0)


@pytest.fixture
def time_to_leave(monkeypatch):
    """A machine that stands still must not use up the time for leaving."""
    monkeypatch.setattr(pulling, "DRAIN_TIMEOUT", PATIENCE)


@pytest.mark.parametrize("max_messages", [1, 7, 4096])
async def test_everything_is_delivered_once_and_in_order(natty, stream, max_messages):
    pull = natty.pull(stream, "d", max_messages=max_messages)
    assert await collect(pull, 1000) == [b"%d" % i for i in range(1000)]
    await reaches(natty, stream, num_ack_pending=0)
    assert repr(pull).startswith(f"Pull({stream}/d, stopping")


async def test_no_more_than_max_messages_are_out_while_they_are_not_finished(natty, stream):
    pull = natty.pull(stream, "d", max_messages=50)
    seen = 0
    async for batch in pull:
        seen += len(batch)
        if seen == 50:
            await asyncio.sleep(0.2)
            assert (await state(natty, stream))["num_ack_pending"] == 50
            pull.finish(20)
            await reaches(natty, stream, num_ack_pending=70)
            await asyncio.sleep(0.2)
            assert (await state(natty, stream))["num_ack_pending"] == 70
            pull.stop()


async def test_an_exhausted_credit_does_not_spin(natty, stream):
    pull = natty.pull(stream, "d", max_messages=2, heartbeat=0.1, expires=0.5)
    batches, got, looks, look_after = pull.__aiter__(), 0, [], pull._look_after
    while got < 2:
        got += len(await anext(batches))
    pull._look_after = lambda now: (looks.append(now), look_after(now))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(batches), 1.0)
    assert len(looks) < 20


async def test_an_idle_pull_costs_next_to_nothing(natty, natty_name):
    name = await fill(natty, natty_name("EMPTY"), 0)
    task = asyncio.create_task(collect(natty.pull(name, "d", **QUICK), 1))
    assert await turns(1.5) < 300
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_new_messages_arrive_long_after_the_last_ones(natty, natty_name):
    name = await fill(natty, natty_name("LATE"), 0)
    pull = natty.pull(name, "d", **QUICK)
    task = asyncio.create_task(collect(pull, 1))
    await until(lambda: pull.counts.requests > 1)  # the first one has ended
    await natty.publish(f"{name}.a", b"late")
    assert await asyncio.wait_for(task, PATIENCE) == [b"late"]


async def test_a_tick_yields_an_empty_batch_in_time(natty, natty_name):
    name = await fill(natty, natty_name("TICK"), 0)
    started = time.monotonic()
    async for batch in (pull := natty.pull(name, "d", tick=0.2)):
        assert len(batch) == 0
        pull.stop()
    assert time.monotonic() - started > 0.15


async def test_a_message_larger_than_the_bytes_asked_for_still_comes(natty, natty_name):
    name = await fill(natty, natty_name("BIG"), 3, padding=100_000)
    got = await asyncio.wait_for(collect(natty.pull(name, "d", max_bytes=10_000), 3), PATIENCE)
    assert [len(data) for data in got] == [100_001] * 3


async def test_a_killed_and_restarted_server_delivers_each_once_that_was_acked(victim, natty_name):
    async with Natty(**PATIENT | victim.connect_options()) as natty:
        name = await fill(natty, natty_name("KILL"), 3000, ack_wait=1.0)

        async def accident():
            await natty.connection.flush()
            await asyncio.sleep(0.3)  # the server writes acks down a moment later
            await asyncio.to_thread(victim.kill)
            await asyncio.to_thread(victim.start)
            await natty.connection.ready()

        pull = natty.pull(name, "d", max_messages=500, **QUICK)
        got = await asyncio.wait_for(collect(pull, 3000, meanwhile=accident()), LONG)
        assert set(got) == {b"%d" % i for i in range(3000)}
        await empty(natty, name)


async def test_a_half_open_link_is_replaced_and_the_rest_is_delivered(natty_proxy, natty, natty_name):
    name = await fill(natty, natty_name("HALF"), 2000, ack_wait=1.0)
    async with Natty(**PATIENT | natty_proxy.options | {"ping_interval": 0.3}) as far:

        async def accident():
            natty_proxy.half_open()
            await until(lambda: not far.connection.connected)
            reconfigure(far, ping_interval=NEVER)
            await natty_proxy.restore()
            await far.connection.ready()

        pull = far.pull(name, "d", max_messages=300, **QUICK)
        got = await asyncio.wait_for(collect(pull, 2000, meanwhile=accident()), LONG)
        assert set(got) == {b"%d" % i for i in range(2000)}


async def test_after_a_reconnect_it_asks_at_once(natty_proxy, natty, natty_name):
    name = await fill(natty, natty_name("AGAIN"), 0)
    async with Natty(**PATIENT | natty_proxy.options) as far:
        task = asyncio.create_task(collect(far.pull(name, "d", **SLOW), 1))
        await reaches(natty, name, num_waiting=1)
        await natty_proxy.cut()
        await natty_proxy.restore()
        async with asyncio.timeout(PATIENCE):
            while not task.done():  # the server may still give the first one to the request that died with its session
                await natty.publish(f"{name}.a", b"x")
                await asyncio.sleep(0.1)
        assert set(await task) == {b"x"}


async def test_missed_heartbeats_lead_to_a_new_request(victim, natty_name):
    """The connection is up, and the requests are gone: as after a lost 409, or a leader that died."""
    async with Natty(**PATIENT | victim.connect_options()) as natty:
        name = await fill(natty, natty_name("BEAT"), 0)
        pull = natty.pull(name, "d", **QUICK | {"expires": 60})
        task = asyncio.create_task(collect(pull, 1))
        await reaches(natty, name, num_waiting=1)
        natty.connection._session.unsubscribe(pull._session.requests.subscription.sid)  # the server drops the request
        await natty.connection.flush()
        await natty.publish(f"{name}.a", b"x")
        assert await asyncio.wait_for(task, PATIENCE) == [b"x"]


async def test_a_deleted_consumer_ends_the_pull(natty, stream):
    task = asyncio.create_task(collect(natty.pull(stream, "d"), 2000))
    await empty(natty, stream)
    await natty.jetstream.request(f"CONSUMER.DELETE.{stream}.d")
    with pytest.raises(ConsumerNotFoundError):
        await asyncio.wait_for(task, PATIENCE)


async def test_a_deleted_stream_ends_the_pull(natty, stream):
    task = asyncio.create_task(collect(natty.pull(stream, "d"), 2000))
    await empty(natty, stream)
    await natty.jetstream.request(f"STREAM.DELETE.{stream}")
    with pytest.raises(StreamNotFoundError):
        await asyncio.wait_for(task, PATIENCE)


async def test_a_consumer_that_never_was_ends_the_pull(natty, stream):
    with pytest.raises(ConsumerNotFoundError):
        await asyncio.wait_for(collect(natty.pull(stream, "no_such"), 1), PATIENCE)


@pytest.mark.usefixtures("time_to_leave")
async def test_what_is_not_read_after_stop_goes_to_the_next_reader_at_once(natty_proxy, natty, stream):
    async with Natty(**PATIENT | natty_proxy.options) as far:
        first = far.pull(stream, "d", max_messages=900)
        got = []
        async for batch in first:
            got += batch.payloads
            first.ack(batch.replies)
            first.finish(len(batch))
            if len(got) < 1000:
                await asyncio.sleep(0)
            first.stop()
        rest = await asyncio.wait_for(collect(natty.pull(stream, "d"), 1000 - len(got)), PATIENCE)
        assert sorted(map(int, got + rest)) == list(range(1000))


@pytest.mark.usefixtures("time_to_leave")
async def test_stopping_in_full_flow_leaves_nothing_that_waits_for_ack_wait(natty, natty_name):
    name, got = await fill(natty, natty_name("FLOW"), 5000, ack_wait=NEVER), []
    for _ in range(8):
        pull = natty.pull(name, "d", max_messages=500)
        async for batch in pull:
            got += batch.sequences
            pull.ack(batch.replies)
            pull.finish(len(batch))
            pull.stop()
    pull = natty.pull(name, "d")
    async with asyncio.timeout(PATIENCE):
        async for batch in pull:
            got += batch.sequences
            pull.ack(batch.replies)
            pull.finish(len(batch))
            if len(set(got)) == 5000:
                pull.stop()
    assert len(got) == 5000


async def test_what_is_in_flight_at_stop_goes_to_the_next_reader_at_once(natty_proxy, natty, natty_name, monkeypatch):
    monkeypatch.setattr(pulling, "DRAIN_TIMEOUT", 0.2)
    name = await fill(natty, natty_name("FLY"), 0, ack_wait=NEVER)
    async with Natty(**PATIENT | natty_proxy.options) as far:
        pull = far.pull(name, "d", **SLOW)
        task = asyncio.create_task(collect(pull, 1))
        await reaches(natty, name, num_waiting=1)
        natty_proxy.hold()
        await natty.publish(f"{name}.a", b"flies")
        await reaches(natty, name, num_ack_pending=1)
        pull.stop()
        assert await task == []
        natty_proxy.release()
        assert await asyncio.wait_for(collect(natty.pull(name, "d"), 1), PATIENCE) == [b"flies"]


async def test_a_batch_that_was_naked_comes_again_after_the_delay(natty, natty_name):
    name = await fill(natty, natty_name("NAK"), 3, ack_wait=NEVER)
    pull = natty.pull(name, "d")
    started, got, replies = time.monotonic(), [], []
    async for batch in pull:
        got += zip(batch.payloads, batch.deliveries, strict=True)
        replies += batch.replies
        if len(got) == 3:
            pull.nak(replies, 0.5)
        pull.finish(len(batch))
        if len(got) >= 6:
            pull.stop()
    assert time.monotonic() - started > 0.45
    assert sorted(got) == sorted([(b"%d" % i, n) for i in range(3) for n in (1, 2)])


async def test_in_progress_restarts_the_clock(natty, natty_name):
    """Of two messages one is kept alive while the other comes again twice; one try without a stall is proof enough."""
    for ack_wait in (0.5, 2.0, 8.0, 30.0):
        name = await fill(natty, natty_name("WPI"), 2, ack_wait=ack_wait)
        pull, replies, deliveries = natty.pull(name, "d", tick=ack_wait / 5), [], []
        async for batch in pull:
            kept = [reply for reply, sequence in zip(batch.replies, batch.sequences, strict=True) if sequence == 1]
            replies += kept
            pull.in_progress(replies)
            deliveries += zip(batch.sequences, batch.deliveries, strict=True)
            if len(replies) > 1 or (2, 3) in deliveries:
                pull.stop()
        if len(replies) == 1:
            return
    raise AssertionError(f"the one kept alive came again, too: {deliveries}")


async def test_a_request_that_the_consumer_refuses_is_told(natty, natty_name, caplog):
    name = await fill(natty, natty_name("LIMIT"), 3, max_batch=10)
    task = asyncio.create_task(collect(natty.pull(name, "d", max_messages=500), 3))
    await until(lambda: "MaxRequestBatch" in caplog.text)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_breaking_reader_leaves_no_subscription_and_no_listener_behind(natty, stream):
    pull = natty.pull(stream, "d")
    batches = pull.__aiter__()
    await anext(batches)
    await batches.aclose()
    await natty.connection.flush()
    assert natty.connection.listeners == []
    assert len(natty.connection._subscriptions) == 1  # the inbox of requests


@pytest.mark.long
async def test_a_cluster_node_that_dies_does_not_stop_the_delivery(nats_cluster, natty_name):
    async with Natty(**PATIENT | nats_cluster.connect_options()) as natty:
        name = natty_name("R3")
        await natty.ensure_stream(name, subjects=[f"{name}.>"], num_replicas=3)
        await fill_more(natty, name, 2000)
        await natty.ensure_consumer(name, "d", ack_wait=2.0)
        leader = ""
        while not leader:  # a machine that stands still may just have cost it its office
            leader = (await state(natty, name)).get("cluster", {}).get("leader")
        node = next(server for server in nats_cluster if server.name == leader)

        async def accident():
            await natty.connection.flush()
            await asyncio.to_thread(node.kill)

        try:
            pull = natty.pull(name, "d", max_messages=200, **QUICK)
            got = await asyncio.wait_for(collect(pull, 2000, meanwhile=accident()), LONG)
            assert set(got) == {b"%d" % i for i in range(2000)}
        finally:
            await asyncio.to_thread(nats_cluster.start)


async def fill_more(natty, name, count):
    async with natty.publisher(name, **FILLING) as publisher:
        for i in range(count):
            await publisher.publish(f"{name}.{i}", b"%d" % i, msg_id=f"{i}")


@pytest.mark.parametrize("credit", [{"max_messages": 0}, {"max_bytes": 0}])
def test_a_credit_of_nothing_is_refused(credit):
    with pytest.raises(ValueError, match="is 0; write a whole number, 1 or more"):
        PullOptions(**credit)


def test_a_heartbeat_over_half_of_expires_is_refused():
    with pytest.raises(UnsupportedError, match=r"heartbeat of 6 s is over half of expires, 10 s"):
        PullOptions(heartbeat=6, expires=10)


async def test_what_deliver_raises_ends_the_run(natty, natty_name):
    name = natty_name("FAULT")
    await natty.create_stream(name, subjects=[f"{name}.*"])
    await natty.create_consumer(name, "d")
    await natty.publish(f"{name}.a", b"x")
    pull = natty.pull(name, "d")
    pull.deliver = lambda messages, again: 1 / 0
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(pull.run(), PATIENCE)


@pytest.mark.parametrize(
    "strange",
    [b"HPUB %b.x 5 10\r\nhelloworld\r\n", b"HPUB %b.x 1 6\r\n\r\nwrld\r\n", b"PUB %b.a\x0bb 5\r\nhello\r\n"],
    ids=["headers without a line", "headers that end in a line break", "a vertical tab"],
)
async def test_what_a_stranger_has_published_does_not_stop_the_reading(natty, natty_name, strange):
    """The server takes any bytes as headers, and any but blanks and line breaks in a subject."""
    name = await fill(natty, natty_name("STRANGE"), 0, ack_wait=NEVER)
    for place in range(600):
        natty.connection._session._write(strange % name.encode())
        if place % 200 == 0:
            natty.connection.send(f"{name}.plain", b"%d" % place)
            await natty.connection.flush()
    natty.connection.send(f"{name}.plain", b"last")
    await natty.connection.flush()
    got, pull = [], natty.pull(name, "d")
    async with asyncio.timeout(PATIENCE):
        async for batch in pull:
            got += batch.payloads
            pull.finish(len(batch))
            if got[-1] == b"last":
                pull.stop()
    assert (len(got), natty.connection.reconnects) == (604, 0)
    assert [one for one in got if one.isdigit()] == [b"0", b"200", b"400"]
