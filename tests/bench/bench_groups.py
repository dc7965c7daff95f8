"""Partitioned groups: strict order in parallel, throughput, fail-over, hand-over. Real processes and servers over TLS.

python tests/bench/bench_groups.py [--quick]
"""

import argparse
import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from group_members import start_instance

from natty import ConsumerNotFoundError, Natty, NattyError
from natty.groups import PartitioningFilter
from natty.testing import NatsServer

PARTITIONS, MEMBERS = 10, 4
WORK = 0.001  # seconds
ACK_WAIT = 2.0  # seconds: the pinned TTL
OPTIONS = {"ack_wait": ACK_WAIT, "dead_letters": False}
TTL = 2.0  # seconds, of automatic members
KEYS = 1000


async def fill(natty, name, count, **settings):
    await natty.create_stream(name, subjects=[f"{name}.*"], allow_batched=True, **settings)
    async with natty.publisher(name) as publisher:
        for number in range(count):
            await publisher.publish(f"{name}.k{number % KEYS}", b"k%d %d" % (number % KEYS, number // KEYS))


async def elastic(natty, name, members, partitions=PARTITIONS):
    group = natty.group(name, "g")
    await group.create(partitions, [PartitioningFilter(f"{name}.*", (1,))])
    await group.add(*members)
    return group


async def until(condition):
    while not condition():
        await asyncio.sleep(0.002)


async def one_consumer(server, count):
    """Return messages a second of one consumer with max_ack_pending 1."""
    done = 0

    async def handle(message):
        nonlocal done
        await asyncio.sleep(WORK)
        done += 1

    async with Natty(**server.connect_options()) as natty:
        await fill(natty, "ONE", count)
        options = {"consumer": {"max_ack_pending": 1}, "dead_letters": False, "signals": False}
        consumption = natty.consume("ONE", "d", handle, **options)
        began = time.perf_counter()
        running = asyncio.ensure_future(consumption.run())
        await until(lambda: done == count)
        rate = count / (time.perf_counter() - began)
        consumption.stop()
        await running
    return rate


async def strict(server, count):
    """Return messages a second of four members, one message of a partition at a time."""
    done = 0

    async def handle(message):
        nonlocal done
        await asyncio.sleep(WORK)
        done += 1

    async with Natty(**server.connect_options()) as natty, AsyncExitStack() as stack:
        await fill(natty, "STRICT", count)
        names = [f"m{number}" for number in range(MEMBERS)]
        group = await elastic(natty, "STRICT", names)
        await sourced(natty, group, count)
        began = time.perf_counter()
        for name in names:
            client = await stack.enter_async_context(Natty(**server.connect_options()))
            join = client.group("STRICT", "g").join(name, handle, dead_letters=False)
            await stack.enter_async_context(join)
        await until(lambda: done >= count)
        return count / (time.perf_counter() - began)


async def sourced(natty, group, count):
    """Wait until the server has copied everything; return how many a second."""
    began = time.perf_counter()
    while (await natty.jetstream.request(f"STREAM.INFO.{group.consumed_stream}"))["state"]["last_seq"] < count:
        await asyncio.sleep(0.01)
    return count / (time.perf_counter() - began)


class Nodes:
    """Instances as processes; `--counting` ones only count."""

    def __init__(self, server, folder):
        self.server, self.folder, self.started = server, folder, []

    def count(self, stream, members, *, static):
        """Start a process that reads as these members, with a handler that does nothing."""
        settings = json.dumps([self.server.connect_options(), stream, members, static])
        self.started.append(subprocess.Popen([sys.executable, __file__, "--member", settings], stdout=subprocess.PIPE))

    def until_ready(self):
        """Wait until all that count have joined."""
        for process in self.started:
            assert process.stdout.readline() == b"ready\n"

    def note(self, stream, member, options=OPTIONS):
        """Start an instance that notes what it does; return it and its log."""
        log = self.folder / f"{stream}{len(self.started)}.log"
        self.started.append(start_instance(self.server, stream, member, log, options))
        return self.started[-1], log

    def close(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.started.clear()


async def member(settings):
    options, stream, names, static = json.loads(settings)

    async def handle(message):
        pass

    async with Natty(**options) as natty, AsyncExitStack() as stack:
        group = natty.static_group(stream, "g") if static else natty.group(stream, "g")
        for name in names:
            joined = group.join(name, handle, max_ack_pending=5000, dead_letters=False)
            membership = await stack.enter_async_context(joined)
        print("ready", flush=True)
        await membership.wait_until_ended()


async def throughput(server, nodes, count, partitions, *, static, buffered, apart=False):
    """Return messages a second through two processes without work; `buffered`: the work queue was filled before.

    They are two members, or with `apart` half of the members each, of which every one has one partition.
    """
    stream = f"{'STATIC' if static else 'BUFFERED' if buffered else 'ELASTIC'}{partitions}{'APART' if apart else ''}"
    names = [f"m{number}" for number in range(partitions if apart else 2)]
    async with Natty(**server.connect_options()) as natty:
        if static:
            transform = {
                "src": f"{stream}.*",
                "dest": f"{{{{partition({partitions},1)}}}}.{stream}.{{{{wildcard(1)}}}}",
            }
            await fill(natty, stream, count, subject_transform=transform)
            group = natty.static_group(stream, "g")
            await group.create(partitions, [f"{stream}.*"], members=names)
        else:
            await fill(natty, stream, count)
            group = await elastic(natty, stream, names, partitions)
            if buffered:
                await sourced(natty, group, count)
        for first in range(2):
            nodes.count(stream, names[first::2], static=static)
        await asyncio.to_thread(nodes.until_ready)
        began, left = time.perf_counter(), await unsettled(natty, group, names, count, static=static)
        while await unsettled(natty, group, names, count, static=static):
            await asyncio.sleep(0.02)
        rate = left / (time.perf_counter() - began)
    nodes.close()
    return rate


async def unsettled(natty, group, names, count, *, static):
    """Return how many messages are not acknowledged."""
    if not static:
        state = (await natty.jetstream.request(f"STREAM.INFO.{group.consumed_stream}"))["state"]
        return count - state["last_seq"] + state["messages"]
    with contextlib.suppress(ConsumerNotFoundError):
        ask = [f"CONSUMER.INFO.{group.consumed_stream}.{group.consumer_name(name)}" for name in names]
        infos = [await natty.jetstream.request(one) for one in ask]
        return sum(one["num_pending"] + one["num_ack_pending"] for one in infos)
    return count


def begun(log):
    return [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("S")]


def joined(log):
    return "J" in log.read_text()


async def fail_over(server, nodes, rounds):
    """Return the seconds from the SIGKILL of the pinned process to its standby's first handler."""
    took = []
    async with Natty(**server.connect_options()) as natty:
        await fill(natty, "FAIL", 0)
        await elastic(natty, "FAIL", ["m1"])
        publishing = asyncio.create_task(trickle(natty, "FAIL"))
        active = nodes.note("FAIL", "m1")
        for _ in range(rounds):
            await until(partial(begun, active[1]))
            standby = nodes.note("FAIL", "m1")
            await until(partial(joined, standby[1]))
            await asyncio.sleep(0.5)
            killed = time.monotonic_ns()
            active[0].send_signal(signal.SIGKILL)
            await until(partial(begun, standby[1]))
            took.append((begun(standby[1])[0] - killed) / 1e9)
            active = standby
        publishing.cancel()
    nodes.close()
    return took


async def trickle(natty, stream, every=0.005):
    number = 0
    while True:
        with contextlib.suppress(NattyError):
            await natty.publish(f"{stream}.k{number % 20}", b"k%d %d" % (number % 20, number // 20))
        number += 1
        await asyncio.sleep(every)


async def hand_over(server, rounds):
    """Return the longest time that any of 20 busy keys stood still while a member was added."""
    pauses = []
    async with Natty(**server.connect_options()) as natty, Natty(**server.connect_options()) as other:
        await fill(natty, "HAND", 0)
        group = await elastic(natty, "HAND", ["m1"])
        last, longest = {}, {}

        async def handle(message):
            now = time.monotonic()
            key = message.subject
            longest[key] = max(longest.get(key, 0.0), now - last.get(key, now))
            last[key] = now

        publishing = asyncio.create_task(trickle(natty, "HAND", 0.001))
        options = {"ack_wait": ACK_WAIT, "dead_letters": False}
        async with group.join("m1", handle, **options), other.group("HAND", "g").join("m2", handle, **options) as m2:
            for _ in range(rounds):
                await asyncio.sleep(0.5)
                longest.clear()
                await group.add("m2")
                await until(lambda: m2.state == "active")
                await asyncio.sleep(0.3)
                pauses.append(max(longest.values()))
                await group.drop("m2")
                await until(lambda: m2.state == "outside")
        publishing.cancel()
    return pauses


async def ignore(message):
    pass


@contextlib.asynccontextmanager
async def automatic(server, stream):
    """Yield what tells whether two automatic members have all partitions and read, the group, and their options."""
    options = {"ack_wait": ACK_WAIT, "dead_letters": False, "ttl": TTL}
    async with Natty(**server.connect_options()) as natty:
        await fill(natty, stream, 0)
        group = natty.group(stream, "g")
        await group.create(PARTITIONS, [PartitioningFilter(f"{stream}.*", (1,))])
        publishing = asyncio.create_task(trickle(natty, stream, 0.001))
        async with group.join(handler=ignore, **options) as a, group.join(handler=ignore, **options) as b:

            def whole():
                share = sum(len(one.partitions) for one in (a, b) if one.state == "active")
                return share == PARTITIONS

            await until(whole)
            yield whole, group, options
        publishing.cancel()


async def arrival(server, rounds):
    """Return the seconds from joining until a third automatic member reads its share."""
    took = []
    async with automatic(server, "COME") as (whole, group, options):
        for _ in range(rounds):
            began = time.monotonic()
            async with group.join(handler=ignore, **options) as third:
                await until(lambda third=third: len(third.partitions) == PARTITIONS // 3 and third.state == "active")
                took.append(time.monotonic() - began)
            await until(whole)
    return took


async def death(server, nodes, rounds):
    """Return the seconds from the SIGKILL of a third automatic member until the others read its partitions."""
    took = []
    async with automatic(server, "DIE") as (whole, _, options):
        for _ in range(rounds):
            process, log = nodes.note("DIE", "", options)
            await until(partial(begun, log))
            process.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            await until(whole)
            took.append(time.monotonic() - killed)
    nodes.close()
    return took


def spread(seconds):
    high = quantiles(seconds, n=100, method="inclusive")[98]
    return f"median {median(seconds):.2f} s, 99th percentile {high:.2f} s ({len(seconds)} times)"


async def main(quick):
    size, rounds = (50_000, 5) if quick else (200_000, 30)
    with NatsServer() as server, tempfile.TemporaryDirectory() as folder:
        nodes = Nodes(server, Path(folder))
        try:
            single = await one_consumer(server, 1000)
            print(f"one consumer, max_ack_pending 1, 1 ms of work: {single:,.0f} msg/s")
            four = await strict(server, 10_000)
            goal = 0.9 * MEMBERS
            print(f"{MEMBERS} members, {PARTITIONS} partitions, the same: {four:,.0f} msg/s, {four / single:.1f} times")
            print(f"  goal: {goal:g} times")
            for static, buffered, text in (
                (False, False, "elastic, the server's copying included; goal 15 000"),
                (False, True, "elastic, copied before"),
                (True, False, "static; goal 60 000"),
            ):
                for partitions, apart in ((2, False), (PARTITIONS, False), (PARTITIONS, True)):
                    given = {"static": static, "buffered": buffered, "apart": apart}
                    rate = await throughput(server, nodes, size, partitions, **given)
                    members = f"{partitions if apart else 2} members"
                    print(f"without work, 2 processes, {members}, {partitions} partitions, {text}: {rate:,.0f} msg/s")
            took = await fail_over(server, nodes, rounds)
            print(f"from SIGKILL to the standby's first message, pinned TTL {ACK_WAIT:g} s: {spread(took)}")
            pauses = await hand_over(server, rounds)
            print(f"longest pause of a key while a member is added: {spread(pauses)}")
            took = await arrival(server, rounds)
            print(f"from joining without a name to reading its share, goal 2 s: {spread(took)}")
            took = await death(server, nodes, rounds)
            print(f"from its SIGKILL to its partitions' next reader, goal {TTL + 1:g} s: {spread(took)}")
        finally:
            nodes.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--member")
    given = parser.parse_args()
    asyncio.run(member(given.member) if given.member else main(given.quick))
