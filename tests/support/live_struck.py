"""Counts over archive and stream while a node, the leader and the server are killed in turn; for a test and a bench."""

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle

from compacting import compacting
from patient import PATIENCE
from two_tiers import COUNTED

from capture.archive.heads import SWEEP
from capture.archive.identity import list_claimed
from capture.archive.trust import NO_CHECKS
from capture.errors import CaptureError
from capture.reading import duck
from capture.reading.merge import make_look
from capture.reading.tail import list_captured, take_snapshot
from capture.stores import open_store
from natty import NattyError

NODES = ("one", "two")
VICTIMS = ("a node", "the leader", "the server")


class Published:
    """Publishes without end, one message after the other; `acked` counts those that the stream has acknowledged."""

    def __init__(self, natty, stream):
        self.natty, self.stream = natty, stream
        self.begun = self.acked = 0
        self.stopping = False

    async def run(self):
        while not self.stopping:
            self.begun += 1
            subject, message_id = f"{self.stream}.{('eu', 'us', 'asia')[self.begun % 3]}", str(self.begun)
            while True:
                with contextlib.suppress(NattyError):
                    await self.natty.publish(subject, b'{"n": %d}' % self.begun, msg_id=message_id)
                    break
                await asyncio.sleep(0.05)
            self.acked += 1


@dataclass
class Tally:
    """What was seen: answers, refusals, kills, and which answers were wrong."""

    answers: int = 0
    refusals: Counter = field(default_factory=Counter)
    """Sentences instead of answers, while a server was away."""
    kills: Counter = field(default_factory=Counter)
    too_low: list = field(default_factory=list)
    """(count, acknowledged before the query) of answers that left out such a message, or one of an earlier answer."""
    too_high: list = field(default_factory=list)
    """(count, published) of answers with more than was published."""
    repeated: list = field(default_factory=list)
    """(rows, sequences) of answers with a sequence that came twice."""
    gone: list = field(default_factory=list)
    """What was reported as lost, or as missing."""
    compacted: list = field(default_factory=list)
    times: list = field(default_factory=list)
    """Seconds of each answer."""
    longest: float = 0.0
    """Seconds from a question to its answer, when refusals were asked again."""

    @property
    def wrong(self):
        return self.too_low + self.too_high + self.repeated + self.gone


class Struck:
    """Two nodes, a publisher and queries in a loop, while something is killed all the while.

    `start(name)` starts a node as a process. Each victim's turn comes after the other's.
    """

    def __init__(self, server, natty, client, config, start, dice):
        self.server, self.natty, self.client, self.config = server, natty, client, config
        self.tally, self.published = Tally(), Published(natty, config.stream)
        self._start, self._dice = start, dice
        self._nodes = {name: start(name) for name in NODES}

    async def run(self, seconds):
        """Strike and ask for so long; then ask once more, when all is published: the count is that of all messages."""
        async with asyncio.timeout(PATIENCE):
            while not await list_claimed(open_store(self.config.store)):
                await asyncio.sleep(0.05)
        deadline = time.monotonic() + seconds
        publishing = asyncio.create_task(self.published.run())
        others = [
            asyncio.create_task(compacting(self.natty, self.config, self.tally.compacted)),
            asyncio.create_task(self._strike(deadline)),
        ]
        try:
            await self._ask_until(deadline)
            await others[1]
            self.published.stopping = True
            async with asyncio.timeout(PATIENCE):
                await publishing
            rows = await self._answer()
            if rows < self.published.acked:
                self.tally.too_low.append((rows, self.published.acked))
            if rows > self.published.acked:
                self.tally.too_high.append((rows, self.published.acked))
        finally:
            for one in (publishing, *others):
                one.cancel()
            await asyncio.gather(publishing, *others, return_exceptions=True)
        return self.tally

    async def _strike(self, deadline):
        for victim in cycle(VICTIMS):
            await asyncio.sleep(self._dice.uniform(0.5, 2.0))
            if time.monotonic() >= deadline:
                return
            if victim == "the server":
                self.server.kill()
                await asyncio.to_thread(self.server.start)
            else:
                name = await self._find_leader() if victim == "the leader" else self._dice.choice(NODES)
                self._nodes[name].kill()
                self._nodes[name] = self._start(name)
            self.tally.kills[victim] += 1

    async def _find_leader(self):
        """Wait until a node leads the sweep."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(NattyError):
                    if (name := await self.natty.get_leader(SWEEP.election(self.config.name))) in self._nodes:
                        return name
                await asyncio.sleep(0.1)

    async def _ask_until(self, deadline):
        """Ask again and again. Every count has all that was acknowledged before, and all that was counted before."""
        before, tally = 0, self.tally
        while time.monotonic() < deadline or not tally.answers:
            acked, asked = max(self.published.acked, before), time.monotonic()
            count = await self._answer()
            tally.longest = max(tally.longest, time.monotonic() - asked)
            if count < acked:
                tally.too_low.append((count, acked))
            if count > self.published.begun:
                tally.too_high.append((count, self.published.begun))
            before = max(before, count)

    async def _answer(self):
        """Ask until there is an answer; return its number of rows."""
        while True:
            begun = time.monotonic()
            try:
                rows, sequences = await self._ask()
            except (NattyError, CaptureError) as error:  # a server that is down: a sentence, and no answer
                self.tally.refusals[type(error).__name__] += 1
                await asyncio.sleep(0.05)
                continue
            self.tally.answers += 1
            self.tally.times.append(time.monotonic() - begun)
            if rows != sequences:
                self.tally.repeated.append((rows, sequences))
            return rows

    async def _ask(self):
        """Count over archive and stream, as `capture sql --live` does."""
        config, gone = self.config, self.tally.gone
        store = open_store(config.store)
        look = make_look(store, config.stream, natty=self.client, archive=config.name)
        snapshot = await take_snapshot(await list_captured(config, store, self.client, NO_CHECKS), look, gone.append)
        tail = snapshot.read_tails(lambda _, lost: gone.append(lost))
        [[rows, distinct, _]] = (await duck.query(store, snapshot.objects, COUNTED, tail=tail)).rows
        return rows, distinct
