"""`stalled` tells the truth: within two heartbeats of silence, and no longer than that."""

import asyncio
import time

import pytest
from patient import PATIENCE, PATIENT, until

from natty import ConsumerNotFoundError, Natty, Pull, PullOptions, RequestTimeoutError
from natty.pulling import pull as pulling

HEARTBEAT = 0.4  # seconds
QUICK = {"heartbeat": HEARTBEAT, "expires": 1.0}


async def make(natty, name, count=0):
    """Make a stream of `count` messages with the durable "d"."""
    await natty.ensure_stream(name, subjects=[f"{name}.>"])
    await natty.ensure_consumer(name, "d")
    for number in range(count):
        await natty.publish(f"{name}.x", b"%d" % number)
    return name


class Clock:
    """The time as a pull sees it, which passes only when told to."""

    def __init__(self):
        self.now = time.monotonic()
        self.ahead = time.time() - self.now

    def monotonic(self):
        return self.now

    def time(self):
        return self.now + self.ahead


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pulling, "time", clock)
    return clock


class Reading:
    """A task that reads a pull. It takes `hold()` for the reader to stand still in the next batch."""

    def __init__(self, pull):
        self.pull = pull
        self.got = []
        self.stalls = []  # whether it was stalled when a batch was finished
        self.go = asyncio.Event()
        self.go.set()

    def hold(self):
        self.go.clear()

    async def __aenter__(self):
        self.task = asyncio.create_task(self.read())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def read(self):
        async for batch in self.pull:
            self.got += batch.payloads
            await self.go.wait()
            self.pull.finish(len(batch))
            self.stalls.append(self.pull.stalled)

    async def until(self, stalled):
        """Wait for this state; return how long the server has been silent according to the pull."""
        async with asyncio.timeout(PATIENCE):
            while self.pull.stalled is not stalled:
                assert not self.task.done(), self.task
                await asyncio.sleep(0.01)
        since = self.pull.stalled_since
        return time.time() - since if since else None

    async def heard(self):
        """Wait until the server has given a sign of life."""
        before = self.pull._heard
        await until(lambda: self.pull._heard != before)


async def test_a_quiet_stream_is_no_stall(natty, natty_name, clock):
    name = await make(natty, natty_name("QUIET"))
    async with Reading(natty.pull(name, "d", **QUICK | {"expires": 2 * PATIENCE})) as reading:
        await until(lambda: reading.pull.counts.requests)
        for _ in range(4):
            clock.now += 1.9 * HEARTBEAT
            assert not reading.pull.stalled
            await reading.heard()
        assert reading.pull.stalled_since is None
        assert reading.pull.counts.renewals == 0


async def test_a_silent_server_is_a_stall_until_it_is_heard_again(victim, natty_name):
    async with Natty(**PATIENT | victim.connect_options()) as natty:
        name = await make(natty, natty_name("SILENT"))
        began = time.time()
        async with Reading(natty.pull(name, "d", **QUICK)) as reading:
            await reading.heard()
            victim.pause()
            paused = time.time()
            silent = await reading.until(stalled=True)
            print(f"\nstalled {time.time() - paused:.2f} s after the server stopped")
            assert silent >= 2 * HEARTBEAT
            assert reading.pull.stalled_since > began
            assert "stalled" in repr(reading.pull)
            victim.resume()
            await until(lambda: reading.pull.stalled_since is None)
            await until(lambda: "running" in repr(reading.pull))


async def test_an_unreachable_server_is_a_stall_until_it_is_back(natty_proxy, natty, natty_name):
    name = await make(natty, natty_name("AWAY"))
    async with Natty(**PATIENT | natty_proxy.options) as far, Reading(far.pull(name, "d", **QUICK)) as reading:
        await reading.heard()
        await natty_proxy.cut()
        assert await reading.until(stalled=True) >= 2 * HEARTBEAT
        await natty_proxy.restore()
        await reading.until(stalled=False)


async def test_a_server_that_was_never_there_is_a_stall(natty_proxy, natty, natty_name):
    name = await make(natty, natty_name("NEVER"))
    async with Natty(**PATIENT | natty_proxy.options) as far:
        await natty_proxy.cut()
        await until(lambda: not far.connection.connected)
        async with Reading(far.pull(name, "d", **QUICK)) as reading:
            began = time.time()
            await reading.until(stalled=True)
            assert reading.pull.stalled_since >= began - 0.1
            await natty_proxy.restore()
            await reading.until(stalled=False)


async def test_a_missing_consumer_is_a_stall_until_it_is_made(natty, natty_name):
    name = await make(natty, natty_name("MISSING"))

    async def fails():
        raise RequestTimeoutError

    async with Reading(Pull(natty.jetstream, name, "d", PullOptions(**QUICK), recreate=fails)) as reading:
        await reading.heard()
        await natty.jetstream.request(f"CONSUMER.DELETE.{name}.d")
        await reading.until(stalled=True)
        await natty.ensure_consumer(name, "d")
        await reading.until(stalled=False)


async def test_a_reader_that_takes_long_does_not_hide_a_stall_nor_keep_it_from_healing(victim, natty_name):
    async with Natty(**PATIENT | victim.connect_options()) as natty:
        name = await make(natty, natty_name("BUSY"), 1)
        async with Reading(natty.pull(name, "d", **QUICK)) as reading:
            reading.hold()
            await until(lambda: reading.got)
            before = reading.pull.counts.renewals
            victim.pause()
            await reading.until(stalled=True)
            await until(lambda: reading.pull.counts.renewals > before)
            victim.resume()
            await reading.until(stalled=False)
            assert reading.got == [b"0"]


async def test_credit_that_is_used_up_is_no_stall(natty, natty_name, clock):
    name = await make(natty, natty_name("FULL"), 5)
    async with Reading(natty.pull(name, "d", max_messages=2, **QUICK)) as reading:
        reading.hold()
        await until(lambda: reading.pull.counts.delivered == 2)
        clock.now += 100 * HEARTBEAT
        assert not reading.pull.stalled
        reading.go.set()
        await until(lambda: len(reading.got) == 5)
        assert not any(reading.stalls)


async def test_an_unreachable_server_is_a_stall_also_with_the_credit_used_up(natty_proxy, natty, natty_name):
    name = await make(natty, natty_name("BOTH"), 2)
    async with (
        Natty(**PATIENT | natty_proxy.options) as far,
        Reading(far.pull(name, "d", max_messages=2, **QUICK)) as reading,
    ):
        reading.hold()
        await until(lambda: reading.pull.counts.delivered >= 2)
        await natty_proxy.cut()
        await reading.until(stalled=True)
        await natty_proxy.restore()
        await reading.until(stalled=False)


async def test_a_stopped_pull_is_not_stalled(victim, natty_name):
    async with Natty(**PATIENT | victim.connect_options()) as natty:
        name = await make(natty, natty_name("STOP"))
        async with Reading(natty.pull(name, "d", **QUICK)) as reading:
            victim.pause()
            await reading.until(stalled=True)
            reading.pull.stop()
            await asyncio.wait({reading.task}, timeout=PATIENCE)
            assert reading.task.done()
            assert not reading.pull.stalled
        victim.resume()


async def test_a_consumer_that_is_gone_for_good_ends_the_pull_after_what_came_from_it(natty, natty_name):
    name = await make(natty, natty_name("LAST"), 1)
    async with Reading(natty.pull(name, "d", **QUICK)) as reading:
        reading.hold()
        await until(lambda: reading.got)
        for number in (1, 2):
            await natty.publish(f"{name}.x", b"%d" % number)
        await until(lambda: reading.pull.counts.delivered >= 3)
        await natty.jetstream.request(f"CONSUMER.DELETE.{name}.d")
        await until(lambda: not any(task.get_name() == f"natty pull {name}/d" for task in asyncio.all_tasks()))
        reading.go.set()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ConsumerNotFoundError):
                await reading.task
        assert reading.got == [b"0", b"1", b"2"]
