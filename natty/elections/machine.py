"""The election as a state machine: its input is events with their times, its output actions. No clock, no await.

    IDLE → OBSERVING → ACQUIRING → FENCING → LEADING → STOPPING → RELEASING → OBSERVING
                                                  └────────┴──→ LOST (until the work has ended) → OBSERVING

The `now` arguments of `Candidate` are seconds of one clock of this machine, whose rate is off by `DRIFT` at most.
Modelled on Chubby's sequencers, client-go's leases timed by the observer, and etcd's transactions on the holder's
revision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from natty.elections.actions import HOLDING, IN_OFFICE, Action, Elected, Left, Lost, Mark, Phase, Read, Stop, Write
from natty.elections.follower import Follower
from natty.elections.options import silence
from natty.elections.record import Epoch, Lease, Sight

FORBIDDEN_PAUSE = 30.0  # seconds after which a candidate that may not write the lease tries again


@dataclass(slots=True)
class Round:
    """One record that is being written to the lease's key, in one or more tries. `sent` is the time of the first."""

    record: Lease
    expected: int
    sent: float
    retry_at: float | None = None


@dataclass
class Candidate(Follower):
    """One node's candidacy. Every event returns the actions to perform; `due` is when to call `tick` next."""

    wall: float = 0.0  # added to `now` gives Unix time, which numbers the terms
    addr: str = ""
    phase: Phase = Phase.IDLE
    deadline: float = 0.0
    token: int = 0
    term: int = 0
    revision: int = 0
    _campaigning: bool = False
    _round: Round | None = None
    _writes: int = 0
    _epoch: Epoch | None = None
    _reading: int = 0
    _reads: int = 0
    _decisive: bool = False
    _read_at: float | None = None
    _hinted: int = 0  # the newest revision hinted at since the last read began,
    _checked: int = 0  # and before that, while no read was answered
    _hints_from: float = 0.0  # after a wrong hint: the candidate follows none before this time
    _renew_at: float = 0.0
    _renew_until: float = field(default=float("inf"))
    _alive_at: float = 0.0
    _to: str = ""

    # Events from the driver and from the node itself.

    def campaign(self, now: float) -> list[Action]:
        """Begin to campaign."""
        self._campaigning, self._alive_at = True, now
        if self.phase is not Phase.IDLE:
            return []
        self.phase = Phase.OBSERVING
        return self._look(now)

    def withdraw(self, now: float) -> list[Action]:
        """End the campaign: leave a current term, and reach `IDLE` when no write of ours is in flight."""
        self._campaigning = False
        if self.phase is Phase.OBSERVING:
            self.phase, self._reading = Phase.IDLE, 0
            return [Left(released=False)]
        return self.resign(now, "withdrawn")

    def resign(self, now: float, reason: str, to: str = "") -> list[Action]:
        """Leave office once the work has been joined; then the node `to` goes first. Idempotent."""
        actions = self._expire(now)
        if self.phase is Phase.LEADING:
            self._to = to
            actions += self._stop(now, reason)
        return actions

    def joined(self, now: float) -> list[Action]:
        """The work has ended: the lease may be released."""
        actions = self._expire(now)
        if self.phase is Phase.LOST:
            return actions + self._leave(now, released=False)
        if self.phase in IN_OFFICE:
            self.phase = Phase.RELEASING
            if self._round is None:
                actions += self._release(now)
        return actions

    def alive(self, at: float) -> None:
        """The main side gave a sign of life at the time `at`."""
        self._alive_at = at

    def asked(self, now: float, id: str, priority: int) -> list[Action]:
        """A node of this priority asks for the office."""
        return self.resign(now, "transfer", id) if priority < self.rules.priority else []

    def connected(self, now: float) -> list[Action]:
        """The connection is up again: writes of the meantime were not seen, so read the lease."""
        return self._look(now) if self.phase in (Phase.OBSERVING, Phase.LOST) else []

    # Events from the server.

    def follows(self, revision: int) -> bool:
        """Return whether a hint at this revision is new; the caller need not decode an old one."""
        return self.phase is not Phase.IDLE and revision > self._known

    def saw(self, now: float, hint: Sight) -> list[Action]:
        """The server republished this as stored on the lease's key. A hint, which any client may send: read the key.

        Old hints are ignored, and so is our own write, since its answer follows. Wrong hints cost one read in each
        pause between two tries.
        """
        actions = self._expire(now)
        ours = self._round is not None and hint.lease is not None and hint.lease.nonce == self._round.record.nonce
        if not ours:
            self._hinted = max(self._hinted, hint.revision)
        return actions + self._follow(now)

    def _follow(self, now: float) -> list[Action]:
        """Read the key after a hint: one read at a time, and not before the pause after a wrong hint is over."""
        if self._reading or self._read_at is not None or not self.follows(self._hinted):
            return []
        if now >= self._hints_from:
            return self._look(now)
        self._read_at = self._hints_from
        return []

    def read(self, now: float, number: int, sight: Sight) -> list[Action]:
        """The answer to a `Read`. It may be stale. Its content counts as seen now, not when the read was sent."""
        actions = self._expire(now)
        if number != self._reading:
            return actions
        self._reading = 0
        decisive, self._decisive = self._decisive, False
        checked, self._checked = self._checked, 0
        actions += self._learn(now, sight, decisive=decisive)
        if checked > self._known:  # the hinted revision was never stored, or is gone
            self._hints_from = now + self.rules.retry
        return actions + self._follow(now)

    def unread(self, now: float, number: int) -> list[Action]:
        """A `Read` got no answer."""
        if number == self._reading:
            self._reading, self._read_at = 0, now + self.rules.retry
        return self._expire(now)

    def stored(self, now: float, nonce: str, sequence: int) -> list[Action]:
        """The record of this nonce is stored."""
        actions = self._expire(now)
        if self._round is not None and self._round.record.nonce == nonce:
            return actions + self._settle(now, sequence)
        if self.phase is Phase.FENCING and self._epoch is not None and self._epoch.nonce == nonce:
            return actions + self._take_office(now, sequence)
        return actions

    def refused(self, now: float, nonce: str) -> list[Action]:
        """The lease is not at the expected revision: another node wrote, or an earlier try of ours was stored."""
        actions = self._expire(now)
        waiting = self._round.record if self._round is not None else self._epoch
        if waiting is None or waiting.nonce != nonce:
            return actions
        return actions + self._look(now, decisive=True)

    def marked(self, now: float) -> list[Action]:
        """A `Mark` was answered, or will not be: read the key."""
        return self._look(now) if self.phase is Phase.OBSERVING else []

    def doubt(self, now: float, nonce: str) -> list[Action]:
        """A write got no answer, or an inconclusive one: it may be stored or not."""
        actions = self._expire(now)
        if self._round is not None and self._round.record.nonce == nonce:
            self._round.retry_at = now + self.rules.retry
        elif self._epoch is not None and self._epoch.nonce == nonce:
            self._refence(now)
        return actions

    def forbidden(self, now: float, nonce: str | None) -> list[Action]:
        """The server denies us the write: a holder retries until its deadline, a candidate after a pause.

        `nonce` is the nonce of the record, None for a `Mark`.
        """
        actions = self._expire(now)
        if nonce is None and self.phase is not Phase.OBSERVING:
            return actions
        if nonce is not None:
            if self.phase is not Phase.ACQUIRING or self._round is None or self._round.record.nonce != nonce:
                return actions + self.doubt(now, nonce)
            self._round, self.phase = None, Phase.OBSERVING  # if an earlier try is stored later, we will see it
        self._act_at = max(self._act_at, now + FORBIDDEN_PAUSE)
        return actions + (self._look(now) if self._campaigning else self._leave(now, released=False))

    def busy(self, now: float, nonce: str) -> list[Action]:
        """The server is handling another write of the key: inconclusive."""
        return self.doubt(now, nonce)

    def stale(self, now: float) -> list[Action]:
        """The server refused a commit of this term: there is a later epoch."""
        return self.resign(now, "fenced")

    # Time.

    @property
    def due(self) -> float:
        """The time at which to call `tick` next."""
        times = [self._read_at, self._round.retry_at if self._round else None]
        if self.phase is Phase.OBSERVING and self._seen is not None:
            times.append(self._act_at)
        if self.phase in HOLDING:
            times.append(self.deadline)
        if self.phase is Phase.LEADING:
            times.append(self.deadline - self.rules.stop_before)
        if self.phase in IN_OFFICE | {Phase.FENCING} and self._round is None:
            times.append(self._renew_at)
        return min((time for time in times if time is not None), default=float("inf"))

    def tick(self, now: float) -> list[Action]:
        """Return the actions that are due by time alone."""
        actions = self._expire(now)
        if self._read_at is not None and now >= self._read_at:
            actions += self._look(now)
        if self._round is not None and self._round.retry_at is not None and now >= self._round.retry_at:
            actions += self._try_again(now)
        elif self._round is None and self.phase is Phase.OBSERVING and self._seen and now >= self._act_at:
            actions += self._take_over(now)
        elif self._round is None and self.phase in IN_OFFICE | {Phase.FENCING} and now >= self._renew_at:
            actions += self._renew(now)
        return actions

    def _expire(self, now: float) -> list[Action]:
        """End what the deadline ends. Every event calls it first, so a late answer changes nothing."""
        if self.phase in HOLDING and now >= self.deadline:
            self._round = self._epoch = None
            if self.phase in IN_OFFICE:
                self.phase = Phase.LOST
                return [Lost("deadline")]
            return self._leave(now, released=False)
        if self.phase is Phase.LEADING and now >= self.deadline - self.rules.stop_before:
            return self._stop(now, "deadline")
        return []

    # Writing the lease.

    def _take_over(self, now: float) -> list[Action]:
        """Write over the last sight. If the key is empty, mark it; a lease after the marker was seen, write over it."""
        if self._known == 0:
            self._act_at = now + self.rules.attempt + self.rules.retry  # then again, if no marker was seen
            return [Mark(self.rules.attempt)]
        self.phase = Phase.ACQUIRING
        return self._begin(now, "held", self._known)

    def _begin(self, now: float, state: Literal["held", "released"], expected: int) -> list[Action]:
        self._writes += 1
        record = Lease(
            id=self.id,
            inc=self.inc,
            term=self.term if self.phase is not Phase.ACQUIRING else self._next_term(now),
            state=state,
            L=self.rules.lease,
            nonce=f"{self.inc}-{self._writes}",
            to=self._to if state == "released" else "",
            prio=self.rules.priority,
            addr=self.addr,
        )
        self._round = Round(record, expected, now)
        return self._send(now)

    def _next_term(self, now: float) -> int:
        return max(self._newest_term + 1, int((now + self.wall) * 1000))

    def _send(self, now: float) -> list[Action]:
        assert self._round is not None
        self._round.retry_at = None
        record, limit = self._round.record, self._limit()
        timeout = min(self.rules.attempt, limit - now)
        return [Write("lease", record, self._condition(self._round.expected), self._ttl(record), timeout)]

    def _limit(self) -> float:
        assert self._round is not None
        return self._round.sent + self.rules.usable if self.phase is Phase.ACQUIRING else self.deadline

    def _condition(self, expected: int) -> int | None:
        return expected

    def _ttl(self, record: Lease) -> int | None:
        """Return the TTL of a record: the server removes a dead holder's lease; a released one may stay forever."""
        return self.rules.ttl if record.state == "held" else None

    def _try_again(self, now: float) -> list[Action]:
        if now < self._limit():
            return self._send(now)
        self._round = None  # acquiring took too long: if the write is stored later, we will see it
        self.phase = Phase.OBSERVING
        return self._look(now) if self._campaigning else self._leave(now, released=False)

    def _renew(self, now: float) -> list[Action]:
        if now >= self._renew_until or now > self._alive_at + self.rules.max_stall:
            self._renew_at = now + self.rules.retry
            return []
        return self._begin(now, "held", self.revision)

    def _release(self, now: float) -> list[Action]:
        return self._begin(now, "released", self.revision)

    def _settle(self, now: float, sequence: int) -> list[Action]:
        """Handle the confirmation that the record in flight is the last on the key."""
        done, self._round = self._round, None
        assert done is not None
        self._seen, self.revision = (Sight(sequence, done.record.state, done.record), sequence)
        self._act_at = now + silence(self.rules.lease)  # also after a release: other nodes go first
        if done.record.state == "released":
            return self._leave(now, released=True)
        self.deadline = self._deadline_from(done.sent, now)
        self._renew_at = done.sent + self.rules.renew_every * self.random.uniform(0.9, 1.1)
        if self.phase is Phase.ACQUIRING:
            self.phase, self.term, self._renew_until = (Phase.FENCING, done.record.term, float("inf"))
            self._newest_term = max(self._newest_term, self.term)
        if now >= self.deadline:
            return self._expire(now)
        if self.phase is Phase.FENCING:
            return self._fence(now)
        return self._release(now) if self.phase is Phase.RELEASING else []

    def _deadline_from(self, sent: float, answered: float) -> float:
        return sent + self.rules.usable

    # Fencing: the epoch, on condition that the lease is still ours.

    def _fence(self, now: float) -> list[Action]:
        if not self._campaigning:
            self.phase = Phase.RELEASING
            return self._release(now)
        self._writes += 1
        self._epoch = Epoch(
            id=self.id, inc=self.inc, term=self.term, lease=self.revision, nonce=f"{self.inc}-{self._writes}"
        )
        self._renew_at = max(self._renew_at, now + self.rules.attempt)
        return [Write("epoch", self._epoch, self._condition(self.revision), None, self.rules.attempt)]

    def _refence(self, now: float) -> None:
        """Renew, then write another epoch. The renewal ensures that the epoch in doubt can't be stored later."""
        self._epoch, self._renew_at = None, now + self.rules.retry

    def _take_office(self, now: float, sequence: int) -> list[Action]:
        self._epoch = None
        if not self._campaigning:
            self.phase = Phase.RELEASING
            return self._release(now) if self._round is None else []
        if now >= self.deadline - self.rules.stop_before:
            self._refence(now)
            return []
        self.phase, self.token, self._to = Phase.LEADING, sequence, ""
        return [Elected(sequence, self.term)]

    # Leaving.

    def _stop(self, now: float, reason: str) -> list[Action]:
        self.phase, self._renew_until = Phase.STOPPING, now + self.rules.max_stall
        return [Stop(reason)]

    def _leave(self, now: float, *, released: bool) -> list[Action]:
        self.phase = Phase.OBSERVING if self._campaigning else Phase.IDLE
        self._round = self._epoch = None
        return [Left(released), *(self._look(now) if self._campaigning else [])]

    # Reading the lease.

    @property
    def _known(self) -> int:
        """The newest revision that the server has shown us."""
        return self._seen.revision if self._seen is not None else 0

    def _look(self, now: float, *, decisive: bool = False) -> list[Action]:
        self._read_at, self._hinted, self._checked = None, 0, max(self._checked, self._hinted)
        self._reads += 1
        self._reading, self._decisive = self._reads, self._decisive or decisive
        return [Read(self._reading, max(self.rules.attempt, 0.25))]

    def _learn(self, now: float, sight: Sight, *, decisive: bool) -> list[Action]:
        """Handle a sight of the key; `decisive` after the server said that our revision is not the last."""
        if self._round is not None and sight.lease is not None and sight.lease.nonce == self._round.record.nonce:
            return self._settle(now, sight.revision)
        if self.phase is Phase.ACQUIRING:
            assert self._round is not None
            if not decisive and sight.revision <= self._round.expected:
                return []
            self._round = None
            self.phase = Phase.OBSERVING
            gave_up = [] if self._campaigning else self._leave(now, released=False)
            return gave_up + self._observe(now, sight, decisive=decisive)
        if self.phase in HOLDING:
            return self._answer_challenge(now, sight, decisive=decisive)
        return self._observe(now, sight, decisive=decisive)

    def _answer_challenge(self, now: float, sight: Sight, *, decisive: bool) -> list[Action]:
        gone = decisive and sight.revision == 0
        if sight.revision <= self.revision and not gone:  # an old one: try again, until the deadline
            if decisive and self._round is not None:
                self._round.retry_at = now + self.rules.retry
            elif decisive:
                self._refence(now)
            return []
        self._round = self._epoch = None
        if self.phase in IN_OFFICE:
            self.phase = Phase.LOST
            return [Lost("superseded"), *self._observe(now, sight, decisive=decisive)]
        return self._leave(now, released=False) + self._observe(now, sight, decisive=decisive)
