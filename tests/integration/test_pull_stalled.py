"""`stalled` tells the truth: within two heartbeats of silence, and no longer than that."""

import asyncio
import time

import pytest

from natty import ConsumerNotFoundError, Natty, Pull, PullOptions, RequestTimeoutError
from natty.testing import NatsServer, ServerOptions

PATIENCE = 30.0  # seconds
HEARTBEAT = 0.4  # seconds
QUICK = {"heartbeat": HEARTBEAT, "expires": 1.0}


@pytest.fixture(scope="module")
def own_server(natty_tls, nats_server_binary, tmp_path_factory):
    """A server that the tests of this file may pause."""
    folder = tmp_path_factory.mktemp("stalled")
    with NatsServer(ServerOptions(), folder=folder, tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


@pytest.fixture
def victim(own_server):
    """That server, awake after the test."""
    yield own_server
    own_server.resume()


async def make(natty, name, count=0):
    """Make a stream of `count` messages with the durable "d"."""
    await natty.ensure_stream(name, subjects=[f"{name}.>"])
    await natty.ensure_consumer(name, "d")
    for number in range(count):
        await natty.publish(f"{name}.x", b"%d" % number)
    return name


class Reading:
    """A task that reads a pull. It takes `hold()` for the reader to stand still in the next batch."""

    def __init__(self, pull):
        self.pull = pull
        self.got = []
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
            self.pull.finished(len(batch))

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
        before = self.pull._supply._heard
        async with asyncio.timeout(PATIENCE):
            while self.pull._supply._heard == before:
                await asyncio.sleep(0.01)


async def test_a_quiet_stream_is_no_stall(natty, natty_name):
    name = await make(natty, natty_name("QUIET"))
    async with Reading(natty.pull(name, "d", **QUICK)) as reading:
        for _ in range(10):
            await asyncio.sleep(HEARTBEAT / 3)
            assert not reading.pull.stalled
        assert reading.pull.stalled_since is None
        assert reading.pull.counts.renewals == 0


async def test_a_silent_server_is_a_stall_until_it_is_heard_again(victim, natty_name):
    async with Natty(**victim.connect_options(), ping_interval=60) as natty:
        name = await make(natty, natty_name("SILENT"))
        async with Reading(natty.pull(name, "d", **QUICK)) as reading:
            await reading.heard()
            victim.pause()
            paused = time.time()
            silent = await reading.until(stalled=True)
            print(f"\nstalled {time.time() - paused:.2f} s after the server stopped")
            assert silent >= 2 * HEARTBEAT
            assert reading.pull.stalled_since <= paused + 0.1
            assert "stalled" in repr(reading.pull)
            victim.resume()
            assert await reading.until(stalled=False) is None
            assert "running" in repr(reading.pull)


async def test_an_unreachable_server_is_a_stall_until_it_is_back(natty_proxy, natty, natty_name):
    name = await make(natty, natty_name("AWAY"))
    async with Natty(**natty_proxy.options) as far, Reading(far.pull(name, "d", **QUICK)) as reading:
        await reading.heard()
        await natty_proxy.cut()
        assert await reading.until(stalled=True) >= 2 * HEARTBEAT
        await natty_proxy.restore()
        await reading.until(stalled=False)


async def test_a_server_that_was_never_there_is_a_stall(natty_proxy, natty, natty_name):
    name = await make(natty, natty_name("NEVER"))
    async with Natty(**natty_proxy.options) as far:
        await natty_proxy.cut()
        async with asyncio.timeout(PATIENCE):
            while far.connection.connected:
                await asyncio.sleep(0.01)
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
    async with Natty(**victim.connect_options(), ping_interval=60) as natty:
        name = await make(natty, natty_name("BUSY"), 1)
        async with Reading(natty.pull(name, "d", **QUICK)) as reading:
            reading.hold()
            async with asyncio.timeout(PATIENCE):
                while not reading.got:
                    await asyncio.sleep(0.01)
            victim.pause()
            await reading.until(stalled=True)
            victim.resume()
            await reading.until(stalled=False)
            assert reading.pull.counts.renewals > 0
            assert reading.got == [b"0"]


async def test_credit_that_is_used_up_is_no_stall(natty, natty_name):
    name = await make(natty, natty_name("FULL"), 5)
    async with Reading(natty.pull(name, "d", max_messages=2, **QUICK)) as reading:
        reading.hold()
        async with asyncio.timeout(PATIENCE):
            while not reading.got:
                await asyncio.sleep(0.01)
        for _ in range(10):
            await asyncio.sleep(HEARTBEAT / 3)
            assert not reading.pull.stalled
        reading.go.set()
        async with asyncio.timeout(PATIENCE):
            while len(reading.got) < 5:
                assert not reading.pull.stalled
                await asyncio.sleep(0.01)


async def test_an_unreachable_server_is_a_stall_also_with_the_credit_used_up(natty_proxy, natty, natty_name):
    name = await make(natty, natty_name("BOTH"), 2)
    async with Natty(**natty_proxy.options) as far, Reading(far.pull(name, "d", max_messages=2, **QUICK)) as reading:
        reading.hold()
        async with asyncio.timeout(PATIENCE):
            while reading.pull.counts.delivered < 2:
                await asyncio.sleep(0.01)
        await natty_proxy.cut()
        await reading.until(stalled=True)
        await natty_proxy.restore()
        await reading.until(stalled=False)


async def test_a_stopped_pull_is_not_stalled(victim, natty_name):
    async with Natty(**victim.connect_options(), ping_interval=60) as natty:
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
        async with asyncio.timeout(PATIENCE):
            while not reading.got:
                await asyncio.sleep(0.01)
            for number in (1, 2):
                await natty.publish(f"{name}.x", b"%d" % number)
            while reading.pull.counts.delivered < 3:
                await asyncio.sleep(0.01)
            await natty.jetstream.request(f"CONSUMER.DELETE.{name}.d")
            while any(task.get_name() == f"natty pull {name}/d" for task in asyncio.all_tasks()):
                await asyncio.sleep(0.01)
            reading.go.set()
            with pytest.raises(ConsumerNotFoundError):
                await reading.task
        assert reading.got == [b"0", b"1", b"2"]
