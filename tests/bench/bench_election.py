"""Measures the time without a leader, from the fault to the next leader's fencing token, and the cost of an election.

    python tests/bench/bench_election.py [--fast 1000] [--slow 200] [--svg docs/failover.svg] [--no-cluster]

Leader and candidates are processes, servers real, with mutual TLS. Times are CLOCK_BOOTTIME, the same for all
processes. A process holds five elections, so its death is five fail-overs. `--fast` is the number of measurements with
a lease of 0.3 s and by release, `--slow` the number of the others.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from natty import Natty  # noqa: E402 - the benchmark runs from a checkout
from natty.elections import clock  # noqa: E402
from natty.testing import NatsCluster, NatsServer  # noqa: E402

NODE = ROOT / "tests" / "support" / "election_node.py"
WITHIN = 60.0  # seconds
TOGETHER = 5  # elections of one process


class Candidate:
    """A candidate's process; `events` brings what it says."""

    def __init__(self, events):
        self.events = events
        self.ready = asyncio.Event()

    async def start(self, options, name, lease, node, kind):
        election = {"bucket": f"bench_{kind}", "lease": lease, "node_name": node}
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(NODE),
            json.dumps([options, name, election, kind]),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        self.reading = asyncio.create_task(self.read())
        async with asyncio.timeout(WITHIN):
            await self.ready.wait()
        return self

    async def read(self):
        async for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                event, when, *rest = json.loads(line)
                if event == "ready":
                    self.ready.set()
                elif event in ("elected", "effect"):
                    self.events.put_nowait((event, when, rest[0], self))

    async def end(self, number=signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        await self.process.wait()
        await asyncio.gather(self.reading, return_exceptions=True)


async def next_leader(events, since, first_of="elected", other_than=None):
    """The next election after a moment: (seconds since then, the candidate)."""
    async with asyncio.timeout(WITHIN):
        while True:
            event, when, _, candidate = await events.get()
            if event == first_of and when > since and candidate is not other_than:
                return when - since, candidate


async def ends(options, lease, count, by=signal.SIGKILL):
    """SIGKILL, or SIGTERM, to the leader's process → the next token of each of its elections."""
    events, times, number = asyncio.Queue(), [], 0
    names = [f"{by.name}-{lease}-{place}" for place in range(TOGETHER)]

    async def start():
        nonlocal number
        number += 1
        return await Candidate(events).start(options, names, lease, f"node-{number}", "many")

    leader = await start()
    async with asyncio.timeout(WITHIN):
        for _ in names:
            await events.get()
    while len(times) < count:
        standby = await start()
        await asyncio.sleep(lease * random.uniform(0.5, 1.5))  # at any moment of a renewal's period
        began = clock()
        await leader.end(by)
        async with asyncio.timeout(WITHIN):
            for _ in names:
                _, when, _, candidate = await events.get()
                assert candidate is standby, "an election went on where it was ended"
                times.append((when - began) * 1000)
        leader = standby
    await leader.end()
    return times


async def ancestors(options, lease, rounds):
    """SIGKILL to the leader of the ancestor's loop → the next one's first act."""
    events, times, number = asyncio.Queue(), [], 2
    living = [await Candidate(events).start(options, "ancestor", lease, f"node-{at}", "ancestor") for at in range(2)]
    _, leader = await next_leader(events, 0.0, "effect")
    for _ in range(rounds):
        await asyncio.sleep(lease * random.uniform(0.5, 1.5))
        began = clock()
        await leader.end()
        living.remove(leader)
        took, leader = await next_leader(events, began, "effect", leader)
        times.append(took * 1000)
        living.append(await Candidate(events).start(options, "ancestor", lease, f"node-{number}", "ancestor"))
        number += 1
    for candidate in living:
        await candidate.end()
    return times


async def releases(options, lease, rounds):
    """The leader is asked to step down → the next token."""
    events, times = asyncio.Queue(), []
    name = f"release-{lease}"
    living = [await Candidate(events).start(options, name, lease, f"node-{number}", "quiet") for number in range(2)]
    async with Natty(**options) as natty:
        await next_leader(events, 0.0)
        for _ in range(rounds):
            await asyncio.sleep(0.05)
            began = clock()
            await natty.step_down(name, bucket="bench_quiet")
            took, _ = await next_leader(events, began)
            times.append(took * 1000)
    for candidate in living:
        await candidate.end()
    return times


async def renewals(servers, lease, seconds):
    """How well a leader keeps its lease, and how a follower hears of it: undisturbed, then over a server's restart."""
    options, name, told = servers.connect_options(), f"renewals-{lease}", []
    async with Natty(**options) as one, Natty(**options) as two, asyncio.TaskGroup() as tasks:
        leading = one.election(name, lease=lease, bucket="bench_renewals")
        elected, seen = asyncio.Event(), asyncio.Event()

        async def work(term):
            elected.set()
            await asyncio.Event().wait()

        running = [tasks.create_task(leading.run(work))]
        await elected.wait()
        following = two.election(name, lease=lease, bucket="bench_renewals", on_new_leader=lambda node: seen.set())
        running.append(tasks.create_task(following.run(work)))
        await seen.wait()
        await asyncio.sleep(seconds)
        ours, theirs = leading.figures, following.figures
        told.append(
            f"renewals, lease {lease:g} s: {ours['writes']} writes in {seconds:g} s,"
            f" least left of {lease * 0.98:g} s {ours['least_left']:.3f} s, slowest {ours['slowest'] * 1000:.1f} ms,"
            f" timers late by {ours['latest'] * 1000:.1f} ms at most, watch gap {theirs['longest_silence']:.3f} s"
        )
        following.driver.longest_silence = 0.0
        await asyncio.to_thread(servers.restart)
        await asyncio.sleep(2 * lease)
        told.append(f"watch gap over a restart of the server: {following.figures['longest_silence']:.3f} s")
        for task in running:
            task.cancel()
    return told


async def cost(options, elections, lease=2.0, seconds=5.0):
    """CPU of one process that leads many elections, in percent of a core."""
    async with Natty(**options) as natty, asyncio.TaskGroup() as tasks:
        led = 0
        all_led, over = asyncio.Event(), asyncio.Event()

        async def work(term):
            nonlocal led
            led += 1
            if led == elections:
                all_led.set()
            await over.wait()

        for number in range(elections):
            tasks.create_task(natty.election(f"many-{number}", lease=lease, bucket="bench_many").run(work))
        await all_led.wait()
        used = resource.getrusage(resource.RUSAGE_SELF)
        await asyncio.sleep(seconds)
        now = resource.getrusage(resource.RUSAGE_SELF)
        over.set()
    cpu = (now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime) / seconds
    return (
        f"{elections} elections, lease {lease:g} s: {3 / lease * elections:.0f} renewals a second, {cpu:.1%} of a core"
    )


def show(label, times):
    times = sorted(times)
    at = lambda share: times[min(len(times) - 1, int(share * len(times)))]  # noqa: E731
    print(
        f"{label:44s} n={len(times):4d}  p50 {at(0.5):7.1f}  p99 {at(0.99):7.1f}  max {times[-1]:7.1f} ms", flush=True
    )


def histogram(series, path):
    """Draw the distributions as small multiples: one row each, on a common logarithmic scale of milliseconds."""
    from math import log10

    width, row, left = 640, 46, 200
    rows = []
    for place, (label, times) in enumerate(series.items()):
        base, bins = place * row + 36, [0] * 120
        for one in times:
            bins[min(119, max(0, int(log10(max(one, 1)) / 4.2 * 120)))] += 1
        bars = "".join(
            f'<rect x="{left + at * 3.6:.1f}" y="{base - 28 * count / max(bins):.1f}" width="3.2"'
            f' height="{28 * count / max(bins):.1f}"/>'
            for at, count in enumerate(bins)
            if count
        )
        rows.append(f'<text x="8" y="{base - 6}">{label}</text><g fill="#2563eb">{bars}</g>')
    bottom = len(series) * row + 24
    ticks = "".join(
        f'<text x="{left + log10(ms) / 4.2 * 432:.0f}" y="{bottom + 14}" text-anchor="middle">{text}</text>'
        for ms, text in ((10, "10 ms"), (100, "100 ms"), (1000, "1 s"), (10_000, "10 s"))
    )
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 24}" font-family="sans-serif"'
        f' font-size="12" fill="#334155"><title>Time without a leader</title>'
        f'<rect width="{width}" height="{bottom + 24}" fill="#ffffff"/>{"".join(rows)}{ticks}</svg>\n'
    )


async def main(arguments):
    series = {}
    with tempfile.TemporaryDirectory() as folder:
        places = [("R1", lambda: NatsServer(folder=Path(folder) / "one"))]
        if arguments.cluster:
            places.append(("R3", lambda: NatsCluster(folder=Path(folder) / "three")))
        for place, make in places:
            with make() as servers:
                options = servers.connect_options()
                for lease, count in ((0.3, arguments.fast), (1.0, arguments.slow), (2.0, arguments.slow)):
                    label = f"SIGKILL, lease {lease:g} s, {place}"
                    series[label] = await ends(options, lease, count)
                    show(label, series[label])
                label = f"release, {place}"
                series[label] = await releases(options, 2.0, arguments.fast)
                show(label, series[label])
                label = f"release by SIGTERM, {place}"
                series[label] = await ends(options, 1.0, arguments.slow, by=signal.SIGTERM)
                show(label, series[label])
                if place == "R1":
                    for lease in (0.3, 2.0):
                        print(*await renewals(servers, lease, arguments.seconds), sep="\n", flush=True)
                    if arguments.ancestor:
                        label = "ancestor, SIGKILL, 10 s"
                        series[label] = await ancestors(options, 10.0, arguments.ancestor)
                        show(label, series[label])
                    for elections in (1, 50, 500):
                        print(await cost(options, elections), flush=True)
    if arguments.svg:
        histogram(series, arguments.svg)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", type=int, default=50, help="fail-overs with a lease of 0.3 s, and by release")
    parser.add_argument("--slow", type=int, default=20, help="fail-overs with leases of 1 and 2 s, and by SIGTERM")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long renewals are watched")
    parser.add_argument("--ancestor", type=int, default=0, help="rounds of the ancestor's loop at its defaults")
    parser.add_argument("--cluster", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--svg", type=Path)
    logging.disable(logging.WARNING)
    asyncio.run(main(parser.parse_args()))
