"""A world for elections, in virtual time: a stream, a network, clocks and processes that fail as a seed decides.

Every seed is one schedule. The world checks the candidates' actions as they happen against the properties P1 to P6 of
docs/guarantees.md; `World.wrongs` lists the violations.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace
from random import Random

from election_stream import LEASE, ROUGH, Stream, Weather

from natty.elections.actions import HOLDING, Elected, Left, Lost, Mark, Phase, Read, Stop, WentBack, Write
from natty.elections.machine import Candidate
from natty.elections.options import PULSE, Rules
from natty.elections.record import Lease, Sight

EPOCH_2026 = 1_767_225_600.0


class World:
    """Nodes, a stream and the network between them; `run` plays a seed's schedule and checks it."""

    def __init__(self, seed: int, weather: Weather = ROUGH, nodes: int = 3, candidate: type = Candidate) -> None:
        self.random = Random(seed)
        self.weather = weather
        self.candidate = candidate
        self.now = 0.0
        self.wrongs: list[str] = []
        self.alarms = 0
        self.terms: list[tuple[int, str, int]] = []
        self.effects: list[tuple[float, int, str]] = []
        self.lost_tail = False
        self._events: list = []
        self._numbers = itertools.count()
        self.nodes: list[Node] = []
        self.stream = Stream(self)
        for number in range(nodes):
            self.nodes.append(Node(self, f"n{number}"))

    def wrong(self, which: str, text: str) -> None:
        self.wrongs.append(f"{which} at {self.now:.3f}: {text}")

    def at(self, delay: float, what, *arguments) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), what, arguments))

    def advance(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what, arguments = heapq.heappop(self._events)
            what(*arguments)
        self.now = until

    def run(self, seconds: float = 15.0) -> World:
        for node in self.nodes:
            self.at(self.random.uniform(0, 0.5), node.start)
        fair_from = seconds - 6 * LEASE
        self.at(self.random.expovariate(1.0), self.fault, fair_from)
        self.at(fair_from, self.calm)
        return self.finish(seconds)

    def play(self, schedule: list[tuple[float, str, int, float]]) -> World:
        """Play faults (seconds after the last one, kind, number of the node, how long) instead of random ones."""
        for node in self.nodes:
            node.start()
        when = 0.0
        for delay, kind, number, length in schedule:
            when += delay
            self.at(when, self.strike, kind, self.nodes[number], length)
        self.at(when + LEASE, self.calm)
        return self.finish(when + 7 * LEASE)

    def finish(self, seconds: float) -> World:
        """Continue until this time, in fair weather at the end, and check."""
        self.advance(seconds)
        if not any(node.machine and node.machine.phase is Phase.LEADING for node in self.nodes):
            states = [node.machine.phase for node in self.nodes if node.machine]
            self.wrong("P5", f"nobody leads though it has been quiet for long: {states}")
        self.judge()
        for node in self.nodes:
            node.crash(restart=False)
        self.advance(seconds + 4 * LEASE + 1)
        if self.stream.lease.kind == "held":
            self.wrong("GC", "the lease of dead nodes stays for ever")
        return self

    def fault(self, until: float) -> None:
        """Play a fault, and schedule the next one, until this time."""
        if self.now > until:
            return
        weather = self.weather
        kinds = ("pause", "cut", "crash", "stall", "delete", "purge", "roll_back", "outage", "resign", "forge")
        rates = [getattr(weather, kind) for kind in kinds]
        total = sum(rates) or 1e-9
        kind = self.random.choices(kinds, rates)[0] if sum(rates) else "none"
        length = self.random.choice((0.2, 0.5, 1.2, 2.5)) * LEASE
        self.strike(kind, self.random.choice(self.nodes), length)
        self.at(self.random.expovariate(total), self.fault, until)

    def strike(self, kind: str, node: Node, length: float) -> None:
        """Play one fault."""
        if kind in ("pause", "cut", "stall"):
            node.impair(kind, length)
        elif kind == "crash":
            node.crash(restart=True)
        elif kind == "delete":
            self.stream.delete()
        elif kind == "purge":
            self.stream.purge()
        elif kind == "roll_back":
            self.roll_back()
        elif kind == "outage":
            self.stream.down = True
            self.at(min(length, 2 * LEASE), setattr, self.stream, "down", False)
        elif kind == "resign" and node.machine is not None:
            node.feed(node.machine.resign(node.local, "asked"))
        elif kind == "forge":
            self.forge()

    def forge(self) -> None:
        """Let a stranger republish forged leases; it knows all public values, and likely future ones."""
        random, written = self.random, self.stream.lease.lease
        machines = [node.machine for node in self.nodes if node.machine is not None]
        if not machines:
            return
        of = random.choice(machines)
        lease = Lease(
            id=of.id,
            inc=random.choice((of.inc, "stranger")),
            term=of.term + random.choice((0, 1, 2**40)),
            state=random.choice(("held", "released")),
            L=random.choice((LEASE, 0.001, 1e12)),
            nonce=f"{of.inc}-{of._writes + random.choice((0, 1, 2))}",
        )
        revision = self.stream.last + random.choice((0, 1, 2, 1000, 10**15))
        forged = [Sight(revision, lease.state, lease), Sight(revision, "deleted"), Sight(revision, "expired")]
        if written is not None:
            forged.append(Sight(revision, "held", written))
        for node in self.nodes:
            node.hear(random.choice(forged))

    def calm(self) -> None:
        """Stop losses, delays and stale reads from now on."""
        self.weather = replace(self.weather, loss=0, duplicate=0, busy=0, stale_read=0, slow=0)

    def roll_back(self) -> None:
        """Remove the stream's tail: acknowledged writes are lost, and sequences are used again."""
        stream, before = self.stream, self.now - self.random.uniform(0.1, 2) * LEASE
        kept = [sight for when, sight in stream.history if when <= before]
        if not kept:
            return
        self.lost_tail = True
        stream.lease, stream.last = kept[-1], max(kept[-1].revision, stream.last - self.random.randint(1, 20))
        if stream.epoch[0] > stream.last:
            stream.epoch = (0, "", 0)
        if stream.lease.kind == "held":
            self.at(4 * LEASE, stream.expire, stream.lease.revision)

    def judge(self) -> None:
        """Check P1, P2 and P3 over the whole history."""
        tokens = [token for token, _, _ in self.terms]
        terms = [term for _, _, term in self.terms]
        if not self.lost_tail and tokens != sorted(set(tokens)):
            self.wrong("P3", f"tokens repeat or go back: {tokens}")
        if not self.lost_tail and len(terms) != len(set(terms)):
            self.wrong("P3", f"terms repeat: {terms}")
        if self.lost_tail:
            return
        writer_of: dict[int, str] = {}
        for (_, token, inc, _), (_, following, _, _) in itertools.pairwise([*self.stream.commits, (0, 1 << 62, "", 0)]):
            if writer_of.setdefault(token, inc) != inc or following < token:
                self.wrong("P1", f"commits of {token} by {inc} are out of order")
        for (_, token, _), (when, following, inc) in itertools.pairwise(self.effects):
            if following < token:
                self.wrong("P2", f"{inc} acted under {following} at {when:.3f}, after {token} had acted")
                return


class Node:
    """One process: a candidate, its clock, its link, and work that runs while it leads."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        drift = world.weather.drift
        self.rate, self.offset = world.random.uniform(1 - drift, 1 + drift), world.random.uniform(0, 1e6)
        self.machine: Candidate | None = None
        self.life = 0
        self.paused_until = self.cut_until = self.stalled_until = 0.0
        self.work: tuple[int, int] | None = None  # (token, term) while it runs
        self.work_number = 0
        self._answered: set[int] = set()
        self.attempts = 0
        self._tick_number = 0

    @property
    def local(self) -> float:
        return self.offset + self.rate * self.world.now

    def start(self) -> None:
        self.life += 1
        inc = f"{self.name}.{self.life}"
        self.machine = self.world.candidate(
            Rules(lease=LEASE, max_stall=2 * LEASE),
            self.name,
            inc,
            Random(self.world.random.random()),
            wall=EPOCH_2026 + self.world.now - self.local,
        )
        self.work = None
        self.feed(self.machine.campaign(self.local))
        self.mine(PULSE, self.pulse)

    def crash(self, *, restart: bool) -> None:
        if self.machine is None:
            return
        self.life += 1
        self.machine, self.work = None, None
        if restart:
            self.world.at(self.world.random.uniform(0.05, 2) * LEASE, self.start)

    def impair(self, kind: str, seconds: float) -> None:
        if kind == "pause":
            self.paused_until = self.world.now + seconds
        elif kind == "cut":
            self.cut_until = self.world.now + seconds
            self.mine(seconds, lambda: self.feed(self.machine.connected(self.local)))
        else:
            self.stalled_until = self.world.now + seconds

    def mine(self, local_seconds: float, what, *arguments) -> None:
        """Schedule a call in this life of the process, as soon as it is not frozen."""
        self.world.at(max(0.0, local_seconds) / self.rate, self._mine, self.life, what, arguments)

    def _mine(self, life: int, what, arguments) -> None:
        if life != self.life or self.machine is None:
            return
        if self.world.now < self.paused_until:
            self.world.at(self.paused_until - self.world.now + 1e-9, self._mine, life, what, arguments)
        else:
            what(*arguments)

    def pulse(self) -> None:
        if self.world.now >= self.stalled_until:
            self.machine.alive(self.local)
        self.mine(PULSE, self.pulse)

    def feed(self, actions: list) -> None:
        for action in actions:
            self.perform(action)
        self._tick_number += 1
        if self.machine.due < float("inf"):
            self.mine(self.machine.due - self.local + 1e-6, self.tick, self._tick_number)

    def tick(self, number: int) -> None:
        if number == self._tick_number:
            self.feed(self.machine.tick(self.local))

    def perform(self, action) -> None:
        machine, world = self.machine, self.world
        if isinstance(action, Write):
            if self.work and getattr(action.record, "state", "") == "released":
                world.wrong("P4", f"{machine.inc} releases while its work runs")
            self.attempts += 1
            self.send(action, self.attempts, machine.term if machine.phase in HOLDING else 0, machine.deadline)
            self.mine(action.timeout, self.answer, self.attempts, "doubt", action.record.nonce)
        elif isinstance(action, Mark):
            self.attempts += 1
            self.send(action, self.attempts, 0, 0.0)
            self.mine(action.timeout, self.answer, self.attempts, "marked")
        elif isinstance(action, Read):
            self.mine(self.delay(), self.look, action.number)
            self.mine(action.timeout, lambda: self.feed(self.machine.unread(self.local, action.number)))
        elif isinstance(action, Elected):
            world.terms.append((action.token, machine.inc, action.term))
            self.work, self.work_number = (action.token, action.term), self.work_number + 1
            self.mine(0.01, self.step, self.work_number)
        elif isinstance(action, Stop | Lost):
            if isinstance(action, Lost) and action.reason == "superseded" and not self.somebody_else_wrote():
                world.wrong("P7", f"{machine.inc} gave up its office though nobody else wrote")
            stubborn = world.random.random() < world.weather.stubborn
            self.mine(world.random.uniform(0, 2 * LEASE if stubborn else 0.1), self.join, self.work_number)
        elif isinstance(action, WentBack):
            world.alarms += 1
        elif isinstance(action, Left) and self.work:
            world.wrong("P4", f"{machine.inc} left office while its work runs")

    def somebody_else_wrote(self) -> bool:
        machine, stream = self.machine, self.world.stream
        return self.world.lost_tail or any(
            sight.revision == 0 or sight.lease is None or sight.lease.inc != machine.inc
            for _, sight in stream.history
            if sight.revision > machine.revision or sight.revision == 0
        )

    def join(self, number: int) -> None:
        if self.work and number == self.work_number:
            self.work = None
            self.feed(self.machine.joined(self.local))

    def step(self, number: int) -> None:
        """Work: a guarded effect, and sometimes a commit."""
        if not self.work or number != self.work_number:
            return
        token, term = self.work
        if self.world.now >= self.stalled_until and self.guarded():
            self.world.effects.append((self.world.now, token, self.machine.inc))
            if self.world.random.random() < 0.3:
                self.world.at(self.delay(), self.world.stream.commit, token, self.machine.inc, term)
        self.mine(self.world.random.uniform(0.02, 0.08) * LEASE, self.step, number)

    def guarded(self) -> bool:
        return self.machine.phase in HOLDING and self.local < self.machine.deadline

    # The network.

    def delay(self) -> float:
        if self.world.random.random() < self.world.weather.slow:
            return self.world.random.uniform(0.05, 1.5) * LEASE
        return self.world.random.expovariate(1 / 0.003)

    def send(self, write: Write | Mark, attempt: int, term: int, deadline: float) -> None:
        if term and self.local > deadline:
            self.world.wrong("P6", f"{self.name} writes after its deadline: {write.record}")
        random, weather = self.world.random, self.world.weather
        if random.random() < weather.loss:
            return
        wait = max(self.delay(), self.cut_until - self.world.now if random.random() < 0.5 else 0.0)
        if self.world.now < self.cut_until and wait < self.cut_until - self.world.now:
            return
        self.world.at(wait, self.arrive, write, attempt, self.life)  # sent bytes survive the process
        if random.random() < weather.duplicate:
            self.world.at(wait + self.delay(), self.arrive, write, attempt, self.life)

    def arrive(self, write: Write | Mark, attempt: int, life: int) -> None:
        answer = self.world.stream.mark() if isinstance(write, Mark) else self.world.stream.write(write)
        if (
            life == self.life
            and self.world.now >= self.cut_until
            and self.world.random.random() > self.world.weather.loss
        ):
            self.mine(self.delay(), self.answer, attempt, *answer)

    def answer(self, attempt: int, word: str, *arguments) -> None:
        if attempt in self._answered:
            return
        self._answered.add(attempt)
        self.feed(getattr(self.machine, word)(self.local, *arguments))

    def look(self, number: int) -> None:
        if self.world.now < self.cut_until or self.world.stream.down:
            return
        sight = self.world.stream.look()
        self.mine(self.delay(), lambda: self.feed(self.machine.read(self.local, number, sight)))

    def hear(self, sight: Sight) -> None:
        if (
            self.machine is not None
            and self.world.now >= self.cut_until
            and self.world.random.random() > self.world.weather.deaf
        ):
            self.mine(self.delay() / 10, lambda: self.feed(self.machine.saw(self.local, sight)))
