"""One trial for each feature of `natty.servers.NEEDS`: it fails on a server that does not support the feature."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest
from archiving import store_all
from consuming import Handler, fill, info, until, until_settled
from electing import vacated
from forgetting import forgotten, messages_in
from patient import PATIENCE
from restoring import Capturing, dumped, read_some, restored
from scheduling import make_scheduling, published, waiting
from template_streams import drained

from capture import read
from capture.reading.direct_answers import list_sequences
from capture.reading.direct_get import DirectGet
from natty import WrongLastSequenceError
from natty.groups import PartitioningFilter
from natty.streams import stranded as stranded_module
from natty.streams.mirror import Origin, create_mirror, promote

TOKENS, BURSTS, EACH = 4, 2, 600


async def streams(natty, name, folder):
    await fill(natty, name, 20)
    handler = Handler()
    consumption = natty.consume(name, "d", handler)
    task = asyncio.create_task(consumption.run())
    await until_settled(natty, name)
    consumption.stop()
    await task
    assert handler.done == list(range(20))
    await create_mirror(natty.jetstream, f"{name}_M", Origin(stream=name))
    await until(lambda: holds(natty, f"{name}_M", 20))


async def capture(natty, name, folder):
    """Only the nodes' part of capture, without a leader."""
    await fill(natty, name, 20)
    captured = Capturing(natty, name, folder)
    await store_all(natty, captured.config, captured.store)
    found = [(one.sequence, one.subject, one.payload) async for one in read(captured.store, stream=name)]
    assert sorted(found) == [(number + 1, f"{name}.{number}", b"%d" % number) for number in range(20)]
    await natty.ensure_stream(name, allow_direct=True)
    for number in range(5):
        await natty.publish(f"{name}.{number}", b"late")
    live = [one.sequence async for one in read(captured.store, stream=name, natty=natty, live=True)]
    assert live == list(range(1, 26))


async def buckets(natty, name, folder):
    bucket = await natty.create_bucket(name)
    assert await bucket.create("a", b"1")
    await bucket.put("b", b"2")
    await bucket.delete("a")
    assert (await bucket.get("b")).value == b"2"
    seen = {}
    async with asyncio.timeout(PATIENCE):
        async with aclosing(bucket.watch().__aiter__()) as events:
            async for event in events:
                seen[type(event).__name__] = event
                if "b" in repr(event):
                    break
    assert seen


async def ttl_of_message(natty, name, folder):
    await natty.create_stream(name, subjects=[f"{name}.>"], allow_msg_ttl=True)
    await natty.publish(f"{name}.a", b"short", ttl=1.0)
    await natty.publish(f"{name}.b", b"long")
    await until(lambda: holds(natty, name, 1))


async def ttl_of_key(natty, name, folder):
    bucket = await natty.create_bucket(name)
    await bucket.create("a", b"1", ttl=1.0)
    await until(lambda: gone(bucket, "a"))


async def gone(bucket, key):
    return key not in await bucket.keys()


async def pausing(natty, name, folder):
    await fill(natty, name, 2)
    await natty.create_consumer(name, "d")
    await natty.pause_consumer(name, "d", datetime.now(UTC) + timedelta(hours=1))
    assert (await info(natty, name))["paused"]
    await natty.resume_consumer(name, "d")
    assert await read_some(natty, name, "d", 2) == [1, 2]


async def group(natty, name, folder, filters=True):
    await fill(natty, name, 12, subject=lambda number: f"k{number % 3}")
    group = natty.group(name, "g")
    await group.create(4, [PartitioningFilter(f"{name}.*", (1,))] if filters else None)
    await group.add("m1", "m2")
    handler = Handler()
    async with group.join("m1", handler), group.join("m2", handler):
        await until(lambda: len(handler.done) == 12)
    assert sorted(handler.done) == list(range(12))


async def whole_subjects(natty, name, folder):
    await group(natty, name, folder, filters=False)


async def atomic(natty, name, folder):
    await natty.create_stream(name, subjects=[f"{name}.>"], allow_atomic=True)
    await natty.publish_atomic([(f"{name}.a", b"1"), (f"{name}.b", b"2")])
    with pytest.raises(WrongLastSequenceError):
        await natty.publish_atomic([(f"{name}.a", b"3"), (f"{name}.b", b"4")], expect_last_sequence=7)
    assert await messages_in(natty, name) == 2


async def fast(natty, name, folder):
    await natty.create_stream(name, subjects=[f"{name}.>"], allow_batched=True)
    async with natty.publisher(name, path="fast") as publisher:
        for number in range(2000):
            await publisher.publish(f"{name}.a", b"%d" % number)
    assert await messages_in(natty, name) == 2000


async def ack_all(natty, name, folder):
    await fill(natty, name, 6)
    captured = Capturing(natty, name, folder, ack="all")
    await store_all(natty, captured.config, captured.store)
    await natty.publish(f"{name}.6", b"6")
    await store_all(natty, captured.config, captured.store)
    assert sorted([one.sequence async for one in read(captured.store, stream=name)]) == list(range(1, 8))


async def resetting(natty, name, folder):
    await forgotten(natty, name)
    mender = stranded_module.QueueMender(natty.jetstream, name, "d", None)
    assert not await mender.look()
    assert await mender.look()
    assert await read_some(natty, name, "d", 9) == list(range(1, 10))


async def promoting(natty, name, folder):
    await fill(natty, name, 5)
    await create_mirror(natty.jetstream, f"{name}_M", Origin(stream=name))
    await until(lambda: holds(natty, f"{name}_M", 5))
    await natty.delete_stream(name)
    await promote(natty.jetstream, f"{name}_M")
    assert (await natty.publish(f"{name}.new", b"x")).seq == 6


async def election(natty, name, folder):
    bucket = f"{name}_leaders"
    await vacated(natty, name, bucket=bucket)
    async with natty.leader(name, lease=60.0, bucket=bucket) as term:
        await term.commit("position", b"1")
        first = term.token
    async with natty.leader(name, lease=60.0, bucket=bucket) as term:
        assert await term.read("position") == b"1"
        assert term.token > first


async def template(natty, name, folder):
    """Acknowledged messages with new tokens, published in bursts, are in their streams, each once."""
    await natty.stream_templates().add(name, subject=f"{name}.*", stream=f"{name}_{{1}}")
    running = asyncio.create_task(natty.stream_templates().run())
    sent = {b"first"}
    await natty.publish(f"{name}.old", b"first")
    await drained(natty, name)  # from here on the stream of this token takes its messages while others wait
    for burst in range(BURSTS):
        tokens = ["old", *(f"new{burst}{number}" for number in range(TOKENS))]
        messages = [(f"{name}.{token}", f"{token} {one}".encode()) for one in range(EACH) for token in tokens]
        sent |= {b"%d " % burst + data for _, data in messages}
        await asyncio.gather(*(natty.publish(subject, b"%d " % burst + data) for subject, data in messages))
    stored = [data for found in (await drained(natty, name)).values() for data in found]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(stored) == len(sent)
    assert set(stored) == sent


async def exact(natty, name, folder):
    await fill(natty, name, 20)
    captured = Capturing(natty, name, folder)
    await captured.capture()
    before = await dumped(natty, name)
    await natty.delete_stream(name)
    await restored(natty, captured)
    assert await dumped(natty, name) == before


async def later(natty, name, folder):
    """Single messages: published once, replaced, canceled, and kept beyond max_age."""
    await make_scheduling(natty, name, max_age=2, duplicate_window=1, allow_msg_ttl=True)
    for data in (b"old", b"new"):
        await natty.schedule("one", f"{name}.a", data, after=4)
    canceled = await natty.publish(f"{name}.a", b"canceled", after=3)
    assert await natty.scheduler.cancel(name, canceled.schedule)
    assert [one.data for one in await published(natty, name, 1)] == [b"new"]
    assert await waiting(natty, name) == []


async def repeating(natty, name, folder):
    await make_scheduling(natty, name)
    await natty.schedule("every", f"{name}.a", b"1", every=1, source=f"{name}.none")
    await natty.schedule("cron", f"{name}.b", b"2", cron="* * * * * *", timezone="Europe/Berlin")
    for subject in ("a", "b"):
        await published(natty, name, 2, f"{name}.{subject}")


async def holds(natty, stream, count):
    return await messages_in(natty, stream) == count


async def direct_gets(natty, name, folder):
    await natty.create_stream(name, subjects=[f"{name}.>"], allow_direct=True)
    for number in range(5):
        await natty.publish(f"{name}.{number}", b"")
    parts = [list_sequences(rows) async for rows in DirectGet(natty, name, 1, 5)]
    assert [one for part in parts for one in part] == [1, 2, 3, 4, 5]
    assert len(parts) < 5


TRIALS = {
    "streams": streams,
    "capture": capture,
    "a key-value bucket": buckets,
    "a message's ttl": ttl_of_message,
    "a time to live of a single key": ttl_of_key,
    "pausing a consumer": pausing,
    "several direct gets at once": direct_gets,
    "a partitioned group": group,
    "a partition by the whole subject": whole_subjects,
    "an atomic batch": atomic,
    "publishing later": later,
    "a repeating schedule": repeating,
    "fast ingest": fast,
    'ack = "all"': ack_all,
    "resetting a consumer": resetting,
    "promoting a mirror": promoting,
    "leader election": election,
    "a stream template": template,
    "exact restore of streams": exact,
}
