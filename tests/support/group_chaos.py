"""Joins, leaves, kills, stops, restarts, edits and purges under a group of real processes; `group_judge` judges.

python tests/support/group_chaos.py --messages 1000000 --keys 1000 [--auto] [--every 1.5] [--folder DIR]
"""

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from group_judge import judge
from group_members import start_instance
from patient import FILLING, PATIENCE, PATIENT

from natty import Natty, NattyError
from natty.groups import PartitioningFilter, key_of, partition_of
from natty.testing import NatsServer

ROOT = Path(__file__).parents[2]
WEIGHTS = {"join": 3, "leave": 3, "kill": 3, "stop": 2, "edit": 3, "purge": 2, "restart": 0.4}
MEMBERS = ("m1", "m2", "m3", "m4", "m5")
PURGED = "purged"  # a key that is not judged
GONE_WITHIN = 120.0  # seconds until a process must have left
DESCRIBED_AFTER = 2.0  # seconds that a process has to write down its state
MOST_SHOWN = 12_000  # characters of what a process wrote


@dataclass(kw_only=True)
class Options:
    messages: int = 6000
    keys: int = 60
    partitions: int = 10
    processes: int = 4
    every: float = 0.7  # seconds between two faults, on the average
    faults: int = 15  # at least
    ack_wait: float = 2.0
    ttl: float = 3.0
    work: float = 0.001
    auto: bool = False
    forgetful: bool = False  # the control: processes that do not send all acks
    rate: float = 0.0  # messages a second; 0: as fast as they can be stored
    weights: dict = field(default_factory=lambda: dict(WEIGHTS))


class Chaos:
    """A stream, a group, its processes, and the faults."""

    def __init__(self, server, folder, name, options, seed=None):
        self.server, self.folder, self.name, self.options = server, folder, name, options
        self.random = random.Random(seed)
        self.faults = Counter()
        self.started, self.ended, self.logs = {}, {}, {}
        self.member_of = {}
        self.listed = []
        self.stopped, self.killed, self.outages = set(), set(), []

    def start(self):
        """Start a process; return its name."""
        options = self.options
        name = f"p{len(self.started)}"
        least = Counter(self.member_of[one] for one in self.alive())
        member = "" if options.auto else min(MEMBERS, key=lambda one: (one not in self.listed, least[one]))
        self.logs[name], self.member_of[name] = self.folder / f"{name}.log", member
        joined = {"ack_wait": options.ack_wait, "dead_letters": False}
        joined |= {"ttl": options.ttl} if options.auto else {}
        with (self.folder / f"{name}.err").open("wb") as output:
            self.started[name] = start_instance(
                *(self.server, self.name, member, self.logs[name], joined),
                work=options.work,
                pause=0.25 * options.ack_wait,
                nats={"ping_interval": 2.0},
                forgetful=options.forgetful,
                stdout=output,
                stderr=output,
                cwd=ROOT,
            )
        return name

    def alive(self):
        return [name for name, process in self.started.items() if process.poll() is None and name not in self.ended]

    async def run(self):
        """Publish, play faults, wait until all messages are handled, and judge."""
        options, connect = self.options, self.server.connect_options() | PATIENT
        async with Natty(**connect) as natty, Natty(**connect) as publishing:  # both before the server is struck
            await natty.create_stream(self.name, subjects=[f"{self.name}.*"], allow_batched=True)
            self.natty, group = natty, natty.group(self.name, "g")
            await group.create(options.partitions, [self._filter()])
            if not options.auto:
                self.listed = list(MEMBERS[:3])
                await group.add(*self.listed)
            for _ in range(options.processes):
                self.start()
            published = asyncio.create_task(self._publish(publishing))
            try:
                await self._strike(group, published)
                await self._settle(group)
                await self._empty(natty)
                await asyncio.gather(*(self.leave(name) for name in self.alive()))
            finally:
                published.cancel()
                await asyncio.gather(published, return_exceptions=True)
                self.close()
        each, more = divmod(options.messages, options.keys)
        counts = {f"k{number}": each + (number < more) for number in range(options.keys)}
        losses = {"killed": self.killed, "outages": self.outages}
        return judge(self.logs, self.ended, counts, options.ack_wait, **losses)

    async def _publish(self, natty):
        options = self.options
        for first in range(0, options.messages, 2000):
            async with natty.publisher(self.name, **FILLING) as publisher:
                for number in range(first, min(first + 2000, options.messages)):
                    key = number % options.keys
                    data = b"k%d %d" % (key, number // options.keys)
                    await publisher.publish(f"{self.name}.k{key}", data, msg_id=str(number))
            if options.rate:
                await asyncio.sleep(2000 / options.rate)

    async def _strike(self, group, published):
        weights = {name: weight for name, weight in self.options.weights.items() if weight}
        while not published.done() or sum(self.faults.values()) < self.options.faults:
            await asyncio.sleep(self.random.expovariate(1 / self.options.every))
            kind = self.random.choices(list(weights), list(weights.values()))[0]
            await getattr(self, kind)(*([group] if kind in ("edit", "purge") else []))
            self.faults[kind] += 1
        await published

    def _some(self):
        """Return a process for a fault, if enough are left."""
        harmless = [name for name in self.alive() if name not in self.stopped]
        return self.random.choice(harmless) if len(harmless) > 1 else None

    async def join(self):
        if len(self.alive()) < self.options.processes + 3:
            self.start()

    async def leave(self, name=None):
        if name := name or self._some():
            self.started[name].send_signal(signal.SIGTERM)
            await asyncio.to_thread(self.started[name].wait, GONE_WITHIN)
            self.ended[name] = time.monotonic_ns()
            if len(self.alive()) < self.options.processes - 1:
                self.start()

    async def kill(self):
        if name := self._some():
            self.killed.add(name)
            self.started[name].kill()
            await asyncio.to_thread(self.started[name].wait)
            self.ended[name] = time.monotonic_ns()
            if len(self.alive()) < self.options.processes:
                self.start()

    async def stop(self):
        """Pause a process for longer than its pin, its consumer and its registration last."""
        if name := self._some():
            self.stopped.add(name)
            self.started[name].send_signal(signal.SIGSTOP)
            longest = max(self.options.ack_wait, self.options.ttl if self.options.auto else 0)
            asyncio.get_running_loop().call_later(self.random.uniform(1.2, 3.0) * longest, self._go_on, name)

    def _go_on(self, name):
        self.stopped.discard(name)
        with contextlib.suppress(ProcessLookupError):
            self.started[name].send_signal(signal.SIGCONT)

    async def edit(self, group):
        if self.options.auto:
            return
        member = self.random.choice(MEMBERS)
        if member not in self.listed:
            self.listed.append(member)
            if all(self.member_of[name] != member for name in self.alive()):
                self.start()
        elif len(self.listed) > 1:
            self.listed.remove(member)
        await self._write(group)

    async def purge(self, group):
        """Purge by subject messages that members may hold: the server may forget other messages that they hold."""
        subject = f"{self.name}.{PURGED}"
        partition = partition_of(key_of(subject, self._filter()), self.options.partitions)
        with contextlib.suppress(NattyError):
            for number in range(10):
                await self.natty.publish(subject, b"%s %d" % (PURGED.encode(), number))
                await asyncio.sleep(self.random.uniform(0, 0.05))
            await self.natty.purge_stream(group.consumed_stream, subject=f"{partition}.{subject}", allow_pending=True)

    def _filter(self):
        return PartitioningFilter(f"{self.name}.*", (1,))

    async def _write(self, group):
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(NattyError):
                    listed = (await group.read()).members
                    if new := [name for name in self.listed if name not in listed]:
                        await group.add(*new)
                    if old := [name for name in listed if name not in self.listed]:
                        await group.drop(*old)
                    return
                await asyncio.sleep(0.1)

    async def restart(self):
        since = time.monotonic_ns()
        await asyncio.to_thread(self.server.restart)
        self.outages.append((since, time.monotonic_ns()))

    async def _settle(self, group):
        """End the faults, and give each listed member a process."""
        while self.stopped:
            await asyncio.sleep(0.05)
        served = {self.member_of[name] for name in self.alive()}
        for _ in range(1 if self.options.auto and not self.alive() else len(set(self.listed) - served)):
            self.start()

    async def _empty(self, natty):
        """Wait until the group has handled all messages, as long as it makes progress."""
        before, since = None, time.monotonic()
        source = await natty.jetstream.request(f"STREAM.INFO.{self.name}")
        while True:
            with contextlib.suppress(NattyError):
                state = (await natty.jetstream.request(f"STREAM.INFO.{self.name}-g"))["state"]
                if not state["messages"] and state["last_seq"] >= source["state"]["last_seq"]:
                    return
                if state != before:
                    before, since = state, time.monotonic()
            if time.monotonic() - since > 2 * PATIENCE:
                raise AssertionError(f"the group stands still: {before}\n{await self._describe(natty)}")
            await asyncio.sleep(0.1)

    async def _describe(self, natty):
        """Return what the server says of the members' consumers, and what each process believes and has logged."""
        answer = await natty.jetstream.request(f"CONSUMER.LIST.{self.name}-g")
        found = [f"listed {self.listed}, faults {dict(self.faults)}, outages {len(self.outages)}"]
        for info in answer["consumers"] or []:
            facts = {name: value for name, value in info.items() if name not in ("config", "stream_name", "cluster")}
            found.append(f"consumer {facts}, filters {info['config'].get('filter_subjects')}")
        for name in self.alive():
            self.started[name].send_signal(signal.SIGUSR1)
        await asyncio.sleep(DESCRIBED_AFTER)
        for name in self.alive():
            text = (self.folder / f"{name}.err").read_text()[-MOST_SHOWN:]
            found.append(f"--- {name}, an instance of {self.member_of[name] or 'an automatic member'}:\n{text}")
        return "\n".join(found)

    def close(self):
        for process in self.started.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def healed(self):
        """Return how often a member created its consumer again because the server had forgotten messages."""
        return sum(path.read_text().count("nats-server forgot") for path in self.folder.glob("*.err"))

    def said(self):
        """Return the complaints of the processes."""
        return "\n".join(text for path in self.folder.glob("*.err") if "Traceback" in (text := path.read_text()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--every", type=float, default=2.0)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--rate", type=float, default=3000)
    parser.add_argument("--work", type=float, default=0.0005)
    parser.add_argument("--auto", action="store_true")
    parser.add_argument("--forgetful", action="store_true", help="the control: processes that do not send all acks")
    parser.add_argument("--seed", type=int)
    given = vars(parser.parse_args())
    seed = given.pop("seed")
    folder = Path(tempfile.mkdtemp(prefix="group-chaos-"))
    with NatsServer() as server:
        chaos = Chaos(server, folder, "CHAOS", Options(**given), seed)
        began = time.monotonic()
        verdict = asyncio.run(chaos.run())
    print(f"{verdict}\n{dict(chaos.faults)}, {chaos.healed()} consumers made again in {time.monotonic() - began:.0f} s")
    print(*verdict.wrongs[:20], chaos.said(), sep="\n")
    if verdict.wrongs:
        print(f"logs in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
