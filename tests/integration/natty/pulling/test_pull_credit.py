"""What a pull holds in memory is bounded by messages and bytes, whatever the reader's speed."""

import asyncio
import gc
from dataclasses import replace
from pathlib import Path

import pytest
from patient import FILLING, NEVER, PATIENCE, PATIENT, until

from natty import Natty
from natty.pulling import pull as pulling
from natty.pulling.pull import size_of

MIB = 1024 * 1024
SLOW = {"heartbeat": NEVER, "expires": 2 * NEVER}  # no session is given up, however long the machine stands still
GROWTH = 40 * MIB  # of this process, while it reads BACKLOG slowly with a credit of CREDIT
BACKLOG = 200  # messages
LARGE = 500_000  # bytes of one of them: 100 MB in all
CREDIT = 4 * MIB


def resident():
    """Return the memory of this process, in bytes."""
    fields = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) * 1024


async def fill(natty, name, sizes, **consumer):
    """Make a stream with a message of each size, and the durable "d"."""
    await natty.ensure_stream(name, subjects=[f"{name}.>"], allow_batched=True, storage="memory")
    await natty.ensure_consumer(name, "d", **{"max_ack_pending": 100_000} | consumer)
    async with natty.publisher(name, **FILLING) as publisher:
        for size in sizes:
            await publisher.publish(f"{name}.x", bytes(size))
    return name


async def read(pull, count, look=lambda batch: None, *, pause=0.0):
    """Read so many messages, finish each batch after a pause, and return their payloads' sizes in order."""
    sizes = []
    async with asyncio.timeout(2 * PATIENCE):
        async for batch in pull:
            look(batch)
            await asyncio.sleep(pause)
            sizes += [len(data) for data in batch.payloads]
            pull.ack(batch.replies)
            pull.finish(len(batch))
            if len(sizes) >= count:
                pull.stop()
    return sizes


async def test_a_slow_reader_of_a_large_backlog_holds_no_more_than_its_credit(natty, natty_name):
    name = await fill(natty, natty_name("SLOW"), [LARGE] * BACKLOG)
    pull, held, grown = natty.pull(name, "d", max_bytes=CREDIT), [], []
    gc.collect()
    before = resident()

    def look(batch):
        credit = pull._credit
        held.append(credit.held_bytes + credit.asked_bytes)
        grown.append(resident() - before)

    assert await read(pull, BACKLOG, look, pause=0.01) == [LARGE] * BACKLOG
    print(
        f"\n{BACKLOG * LARGE / MIB:.0f} MiB read with a credit of 4 MiB: {max(grown) / MIB:.1f} MiB more memory at most"
    )
    assert max(held) <= CREDIT
    assert max(grown) <= GROWTH
    await natty.jetstream.request(f"STREAM.DELETE.{name}")


async def test_the_server_never_has_more_bytes_out_than_the_credit(natty, natty_name):
    name = await fill(natty, natty_name("OUT"), [10_000] * 100)
    pull, sizes = natty.pull(name, "d", max_bytes=305_000), []
    batches = pull.__aiter__()
    while len(sizes) < 30:
        sizes += [size_of([raw]) for raw in (await anext(batches)).raw]
    await asyncio.sleep(0.3)  # nothing is finished: nothing more may come
    info = await natty.jetstream.request(f"CONSUMER.INFO.{name}.d")
    await batches.aclose()
    assert info["num_ack_pending"] == 30
    assert 295_000 < sum(sizes) <= 305_000


@pytest.mark.parametrize("max_bytes", [1, 20_000, 60_000, 120_000, 1_000_000])
async def test_messages_of_all_sizes_come_in_order_whatever_the_credit(natty, natty_name, max_bytes):
    sizes = [100, 90_000, 100, 100, 30_000, 100_000, 0, 5_000, 50_000, 100] * 3
    name = await fill(natty, natty_name("MIXED"), sizes)
    assert await read(natty.pull(name, "d", max_bytes=max_bytes), len(sizes)) == sizes


async def test_a_message_larger_than_the_credit_comes_alone_when_all_others_are_finished(natty, natty_name):
    name = await fill(natty, natty_name("ALONE"), [100, 100, 50_000, 100, 100])
    pull = natty.pull(name, "d", max_bytes=10_000)
    batches = pull.__aiter__()
    async with asyncio.timeout(PATIENCE):
        small = await anext(batches)
        while len(small.raw) < 2:
            small.raw += (await anext(batches)).raw
        waiting = asyncio.create_task(anext(batches))
        pull.finish(1)
        await asyncio.wait({waiting}, timeout=0.5)
        assert not waiting.done()  # the other one is unfinished
        pull.finish(1)
        assert [len(data) for data in (await waiting).payloads] == [50_000]
        pull.finish(1)
        assert await read_on(batches, pull, 2) == [100, 100]
    await batches.aclose()


async def read_on(batches, pull, count):
    sizes = []
    while len(sizes) < count:
        batch = await anext(batches)
        sizes += [len(data) for data in batch.payloads]
        pull.finish(len(batch))
    return sizes


@pytest.mark.parametrize("limits", [{"max_batch": 10}, {"max_batch": 1}, {"max_expires": NEVER}, {"max_bytes": 3000}])
async def test_a_consumers_own_limits_of_a_request_are_learned_and_kept(natty, natty_name, caplog, monkeypatch, limits):
    monkeypatch.setattr(pulling, "LOOK_TIMEOUT", PATIENCE)
    name = await fill(natty, natty_name("LIMIT"), [1000] * 200, **limits)
    pull = natty.pull(name, "d", max_messages=500, **SLOW)
    assert await read(pull, 200) == [1000] * 200
    refused = [record.getMessage() for record in caplog.records if "Exceeded MaxRequest" in record.getMessage()]
    assert 1 <= len(refused) <= 3  # each request of the first session; none after it
    assert pull.counts.renewals == 1


@pytest.mark.parametrize("limits", [{"max_waiting": 1}, {"max_waiting": 2}, {"max_waiting": 1, "max_bytes": 1000}])
async def test_consume_has_no_more_requests_open_than_its_consumer_allows(natty, natty_name, start, limits):
    """The server drops others without a word, so natty would wait for them until heartbeats are missed."""

    async def handle(message):
        pass

    name = await fill(natty, natty_name("WAITING"), [], **limits)
    consumption, _ = start(name, handle, dead_letters=False, max_bytes=30_000)
    consumption._pull.options = replace(consumption._pull.options, **SLOW)
    consumption._pull.respect({})  # takes over these options
    for number in range(30):
        await natty.publish(f"{name}.x", bytes(5000))
        await until(lambda expected=number + 1: consumption.handled == expected)


async def test_messages_larger_than_the_consumer_allows_cost_no_refused_request_each(natty, natty_name):
    name = await fill(natty, natty_name("LARGE"), [5000] * 100, max_bytes=1000)
    pull = natty.pull(name, "d", max_messages=50, **SLOW)
    assert await read(pull, 100) == [5000] * 100
    assert pull.counts.requests < 2 * 100


async def test_the_counts_tell_what_happened(natty, natty_name):
    name = await fill(natty, natty_name("COUNT"), [100] * 30, ack_wait=NEVER)
    pull, total = natty.pull(name, "d", max_messages=10, **SLOW), 0
    async with asyncio.timeout(PATIENCE):
        async for batch in pull:
            total += size_of(batch.raw)
            again = [reply for reply, times in zip(batch.replies, batch.deliveries, strict=True) if times == 1]
            pull.nak(again[:1])
            pull.ack([reply for reply in batch.replies if reply not in again[:1]])
            pull.finish(len(batch), size_of(batch.raw))
            if pull.counts.delivered - pull.counts.redelivered >= 30 and pull.counts.redelivered:
                pull.stop()
    counts = pull.counts
    assert counts.delivered_bytes == total
    assert counts.requests >= counts.delivered // 10
    assert counts.renewals == 0
    assert counts.delivered == 30 + counts.redelivered


async def test_credit_is_given_back_by_size_where_the_size_is_told(natty, natty_name):
    name = await fill(natty, natty_name("SIZED"), [9_000, *[100] * 10])
    pull, seen = natty.pull(name, "d", max_bytes=10_000_000), []
    async with asyncio.timeout(PATIENCE):
        async for batch in pull:
            seen += batch.raw
            if len(seen) == 11:
                break
    pull.finish(10, size_of(seen[1:]))  # the small ones, out of order
    assert pull._credit.held_bytes == size_of(seen[:1])
    pull.finish(1, size_of(seen[:1]))
    assert pull._credit.held_bytes == 0


async def test_what_comes_late_for_a_session_that_was_given_up_fits_into_the_credit(natty_proxy, natty, natty_name):
    name = await fill(natty, natty_name("LATE"), [], ack_wait=20.0)
    async with Natty(**PATIENT | natty_proxy.options) as far:
        pull = far.pull(name, "d", max_messages=100, heartbeat=0.4, expires=20.0)
        batches = pull.__aiter__()
        first = asyncio.create_task(anext(batches))
        async with asyncio.timeout(PATIENCE):
            while not (await natty.jetstream.request(f"CONSUMER.INFO.{name}.d"))["num_waiting"]:
                await asyncio.sleep(0.02)
            natty_proxy.hold()
            for _ in range(200):
                await natty.publish(f"{name}.x", b"")
            await until(lambda: pull.counts.renewals)
            natty_proxy.release()
            seen = set((await first).sequences)
            await asyncio.sleep(0.3)
            assert pull.counts.delivered <= 100  # and not 100 of each session
            pull.finish(len(seen))
            async for batch in batches:
                seen.update(batch.sequences)
                pull.ack(batch.replies)
                pull.finish(len(batch))
                if len(seen) == 200:
                    pull.stop()


async def test_a_pull_across_a_cut_link_holds_no_more_than_its_messages(natty_proxy, natty, natty_name):
    name = await fill(natty, natty_name("CUT"), [100] * 2000, ack_wait=1.0)
    async with Natty(**PATIENT | natty_proxy.options) as far:
        pull, held, seen = far.pull(name, "d", max_messages=100, heartbeat=0.3, expires=1.0), [], set()
        async with asyncio.timeout(PATIENCE):
            async for batch in pull:
                seen.update(batch.sequences)
                held.append(pull._credit.held_messages)
                if len(held) == 3:
                    await natty_proxy.cut()
                    await until(lambda: not far.connection.connected)
                    await natty_proxy.restore()
                    await far.connection.ready()
                    await asyncio.sleep(0.3)
                pull.ack(batch.replies)
                pull.finish(len(batch))
                if len(seen) == 2000:
                    pull.stop()
        assert max(held) <= 100
        assert pull.counts.renewals >= 1
