"""Faults for elections of real processes on real servers over TLS, and checks of what the processes did.

python tests/support/election_chaos.py --faults 10000 [--nodes 4] [--lease 0.3] [--cluster]
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from natty import Natty, NattyError
from natty.elections import clock
from natty.elections.record import republish_subject
from natty.testing import NatsCluster, NatsServer, Proxy
from natty.wire.message import parse_headers

NODE = Path(__file__).with_name("election_node.py")
ROOT = NODE.parents[2]
WEIGHTS = {
    "stop": 8,
    "cut": 5,
    "hold": 5,
    "kill": 2,
    "term": 2,
    "stall": 2,
    "hog": 1,
    "delete": 1,
    "purge": 0.3,
    "recreate": 0.3,
    "server": 0.2,
    "step_down": 0.5,
    "roll_back": 0.1,
}
SETTLE = 120.0  # seconds until a node must lead again
CONNECT = 60.0  # seconds for a session: the machine may be busy, and links are held on purpose


@dataclass
class History:
    """The nodes' reports, the server's stored commits, and the problems in them.

    The number of the term identifies the node that acts. For one lease after a store was rolled back, its lease is
    wrong: then only the fence holds.
    """

    lease: float
    lines: list[list] = field(default_factory=list)
    faults: Counter = field(default_factory=Counter)
    stored: list[tuple[int, int, int]] = field(default_factory=list)  # commits as they were republished, see `commits`
    voids: list[list[float]] = field(default_factory=list)  # when the restore of the store began and ended
    lives: int = 1  # of the store, one more each time it was rolled back

    def of(self, event):
        """The lines about one kind of event."""
        return [line for line in self.lines if line[0] == event]

    @property
    def effects(self):
        """(when, who) of every guarded effect, in order of time: CLOCK_BOOTTIME is one for all processes."""
        return sorted((line[1], line[-1]) for line in self.of("effect"))

    def void(self, when):
        """Whether the stream may have shown an expired lease."""
        return any(began <= when <= over + self.lease for began, over in self.voids)

    def overlaps(self):
        """How often a node acted again after another had begun to act."""
        seen, stale, now = set(), 0, None
        for when, who in self.effects:
            if who != now and who in seen and not self.void(when):
                stale += 1
            if who != now:
                seen.add(who)
                now = who
        return stale

    def wrongs(self):
        """The properties that do not hold, in words."""
        found = []
        for (_, before), (when, following) in itertools.pairwise(self.effects):
            if following < before and not self.void(when):
                found.append(f"P2: an effect in term {following} at {when:.3f}, after one in term {before}")
        for (life, _, token), (same, sequence, following) in itertools.pairwise(self.commits()):
            if life == same and following < token:
                found.append(f"P1: commit {sequence} under {following} was accepted after one under {token}")
        elected = self.of("elected")
        for place in (2, 3) if self.lives == 1 else (3,):  # a token may repeat if the store lost it, a term never
            if len({line[place] for line in elected}) < len(elected):
                found.append(f"P3: a {'token' if place == 2 else 'term'} was given out twice")
        ended = {line[-1]: line[1] for line in self.of("ended")}
        late = [line for line in self.of("effect") if line[1] > ended.get(line[-1], float("inf"))]
        return found + [f"P4: {line} after its work had ended" for line in late]

    def commits(self):
        """(life of the store, sequence, token) of the accepted commits, in the stream's order."""
        if self.lives == 1:
            return sorted((1, line[3], line[2]) for line in self.of("committed"))
        return self.stored

    def summary(self):
        """One line for people."""
        words = ", ".join(f"{count} {kind}" for kind, count in self.faults.most_common())
        terms, effects, commits = len(self.of("elected")), len(self.of("effect")), len(self.of("committed"))
        return f"{self.faults.total()} faults ({words}): {terms} terms, {effects} effects, {commits} accepted commits"


class Node:
    """A process behind a proxy, restarted whenever it ends."""

    def __init__(self, chaos, number):
        self.chaos, self.number, self.process = chaos, number, None
        self.proxy = Proxy.to(chaos.servers[number % len(chaos.servers)])

    async def run(self):
        async with self.proxy:
            while True:
                await self.live()

    async def live(self):
        chaos = self.chaos
        options = {"bucket": chaos.bucket, "lease": chaos.lease, "node_name": f"node-{self.number}"}
        arguments = json.dumps([self.proxy.options | {"connect_timeout": CONNECT}, chaos.name, options, chaos.kind])
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(NODE),
            arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        try:
            async for line in self.process.stdout:
                with contextlib.suppress(ValueError):  # half a line of a killed node
                    self.chaos.heard(self, json.loads(line))
        finally:
            self.signal(signal.SIGKILL)
            await self.process.wait()

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)  # not Popen's: that would take the exit status away from asyncio


class Chaos:
    """An election among `nodes` processes, and faults that strike its leader more often than the others."""

    def __init__(self, servers, *, name, bucket, nodes=3, lease=0.3, kind="ours", seed=0, cluster=None):
        self.servers, self.cluster = list(servers), cluster
        self.name, self.bucket, self.lease, self.kind = name, bucket, lease, kind
        self.random = random.Random(seed)
        self.history = History(lease)
        self.leader = None
        self.news = asyncio.Event()
        self.nodes = [Node(self, number) for number in range(nodes)]
        self._healing = set()
        self._operating = asyncio.Lock()  # one server at a time is down

    def heard(self, node, line):
        self.history.lines.append(line)
        if line[0] in ("elected", "effect"):
            self.leader = node
        if line[0] in ("elected", "ready"):
            self.news.set()

    async def __aenter__(self):
        self._running = [asyncio.create_task(node.run()) for node in self.nodes]
        self.natty = await Natty.connect(**self.servers[0].connect_options(), connect_timeout=CONNECT)
        self.natty.connection.subscribe(republish_subject(self.bucket, f"{self.name}.commit.head"), self._stored)
        async with asyncio.timeout(SETTLE):
            while len(self.history.of("ready")) < len(self.nodes) or not self.history.of("effect"):
                self.news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await self.news.wait()
        return self

    def _stored(self, batch):
        for block in batch.header_blocks:
            headers = parse_headers(block)
            sequence, token = int(headers["Nats-Sequence"][0]), int(headers["Natty-Token"][0])
            self.history.stored.append((self.history.lives, sequence, token))

    async def __aexit__(self, *_):
        for task in (*self._healing, *self._running):
            task.cancel()
        await asyncio.gather(*self._healing, *self._running, return_exceptions=True)
        await self.natty.close()

    async def strike(self, faults, weights=WEIGHTS, every=0.15):
        """Play this many faults; some are repaired only after the next ones have begun."""
        kinds = {kind: weight for kind, weight in weights.items() if weight}
        for _ in range(faults):
            kind = self.random.choices(list(kinds), list(kinds.values()))[0]
            node = self.leader if self.leader and self.random.random() < 0.6 else self.random.choice(self.nodes)
            self.history.faults[kind] += 1
            task = asyncio.create_task(getattr(self, f"_{kind}")(node))
            self._healing.add(task)
            task.add_done_callback(self._healing.discard)
            await asyncio.sleep(every * self.random.uniform(0.5, 1.5))

    async def settle(self):
        """Wait until all faults are repaired and a node leads: a later term, or one that continues, had an effect."""
        await asyncio.gather(*self._healing, return_exceptions=True)
        before = len(self.history.of("effect"))
        async with asyncio.timeout(SETTLE):
            while len(self.history.of("effect")) <= before:
                await asyncio.sleep(0.05)

    def _while(self):
        return asyncio.sleep(self.lease * self.random.choice((0.3, 0.8, 1.3, 2.0)))

    async def _stop(self, node):
        node.signal(signal.SIGSTOP)
        await self._while()
        node.signal(signal.SIGCONT)

    async def _cut(self, node):
        await node.proxy.cut()
        await self._while()
        await node.proxy.restore()

    async def _hold(self, node):
        node.proxy.hold()
        await self._while()
        node.proxy.release()

    async def _kill(self, node):
        node.signal(signal.SIGKILL)

    async def _term(self, node):
        node.signal(signal.SIGTERM)

    async def _stall(self, node):
        node.signal(signal.SIGUSR1)

    async def _hog(self, node):
        node.signal(signal.SIGUSR2)

    async def _ask(self, subject):
        with contextlib.suppress(NattyError):
            await self.natty.jetstream.request(subject, timeout=SETTLE)

    async def _delete(self, node):
        with contextlib.suppress(NattyError):
            await self.natty.bucket(self.bucket).delete(self.name)

    async def _purge(self, node):
        await self._ask(f"STREAM.PURGE.KV_{self.bucket}")

    async def _recreate(self, node):
        await self._ask(f"STREAM.DELETE.KV_{self.bucket}")

    async def _step_down(self, node):
        await self._ask(f"STREAM.LEADER.STEPDOWN.KV_{self.bucket}")

    async def _server(self, node):
        server = self.random.choice(self.servers)
        async with self._operating:
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)

    async def _roll_back(self, node):
        """Restore an older copy of the only server's store, so that it loses recent acknowledged writes."""
        (server,) = self.servers
        store, copy = server.folder / "jetstream", server.folder / f"older-{len(self.history.voids)}"
        async with self._operating:
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(shutil.copytree, store, copy)
            await asyncio.to_thread(server.start)
            before = len(self.history.stored)
            async with asyncio.timeout(SETTLE):
                while len(self.history.stored) < before + 3:
                    await asyncio.sleep(0.01)
            void = [clock(), float("inf")]
            self.history.voids.append(void)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(shutil.rmtree, store)
            await asyncio.to_thread(copy.rename, store)
            while self.natty.connection.connected:  # by then we have received all that this life stored
                await asyncio.sleep(0.01)
            self.history.lives += 1
            await asyncio.to_thread(server.start)
            void[1] = clock()


async def long(arguments):
    """Play the long run: more than an hour for ten thousand faults."""
    with NatsCluster() if arguments.cluster else NatsServer() as servers:
        many = list(servers) if arguments.cluster else [servers]
        weights = WEIGHTS | ({"roll_back": 0} if arguments.cluster else {})
        name, options = "chaos", {"nodes": arguments.nodes, "lease": arguments.lease, "seed": arguments.seed}
        async with Chaos(many, name=name, bucket="chaos", kind=arguments.kind, **options) as chaos:
            done = 0
            while done < arguments.faults:
                await chaos.strike(min(100, arguments.faults - done), weights)
                await chaos.settle()
                done += 100
                print(chaos.history.summary(), "wrong:", len(chaos.history.wrongs()), flush=True)
        wrongs = chaos.history.wrongs() if arguments.kind == "ours" else []
        print(*wrongs[:20], f"{chaos.history.overlaps()} overlaps", sep="\n")
        return 1 if wrongs else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--lease", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--kind", choices=("ours", "ancestor"), default="ours")
    sys.exit(asyncio.run(long(parser.parse_args())))
