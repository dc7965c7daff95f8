"""The stream of a simulated election, and the weather (rates of faults) of its world: see election_world.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from natty.elections.actions import Write
from natty.elections.record import ABSENT, Sight

if TYPE_CHECKING:
    from election_world import World

LEASE = 1.0  # seconds


@dataclass(frozen=True)
class Weather:
    """Frequencies of faults. Probabilities are for one message, rates for one second of the whole world."""

    loss: float = 0.02
    duplicate: float = 0.02
    busy: float = 0.03
    stale_read: float = 0.1
    slow: float = 0.05  # a message that takes up to a lease and a half
    pause: float = 0.4
    cut: float = 0.3
    crash: float = 0.2
    stall: float = 0.2
    delete: float = 0.05
    purge: float = 0.0
    roll_back: float = 0.0
    outage: float = 0.1
    resign: float = 0.2
    drift: float = 0.0195
    deaf: float = 0.01  # a stored message is not delivered
    forge: float = 0.0  # a stranger republishes messages that were never stored
    stubborn: float = 0.1  # work that continues after its cancellation


ROUGH = Weather()


@dataclass
class Stream:
    """The bucket's stream: compare-and-set, expiry, republishing. Sequences are dense, as the server's are."""

    world: World
    last: int = 1000
    lease: Sight = ABSENT
    epoch: tuple[int, str, int] = (0, "", 0)  # (sequence, incarnation, term)
    down: bool = False
    history: list[tuple[float, Sight]] = field(default_factory=list)
    commits: list[tuple[int, int, str, int]] = field(default_factory=list)

    def mark(self) -> tuple[str]:
        busy = self.world.random.random() < self.world.weather.busy
        if self.lease is ABSENT and not self.down and not busy:
            self.delete()
        return ("marked",)

    def write(self, write: Write) -> tuple[str, str] | tuple[str, str, int]:
        nonce = write.record.nonce
        if self.down:
            return "doubt", nonce
        if self.world.random.random() < self.world.weather.busy:
            return "busy", nonce
        if write.expected is not None and self.lease.revision != write.expected:
            return "refused", nonce
        self.last += 1
        if write.key == "epoch":
            holder = self.lease.lease
            if (
                holder is None
                or holder.state != "held"
                or (holder.inc, holder.term) != (write.record.inc, write.record.term)
            ):
                self.world.wrong("P3", f"epoch {self.last} of {write.record.inc} stands under the lease {self.lease}")
            self.epoch = (self.last, write.record.inc, write.record.term)
        else:
            self.put(Sight(self.last, write.record.state, write.record))
            if write.ttl is not None:
                self.world.at(write.ttl * self.world.random.uniform(1.0, 1.02), self.expire, self.lease.revision)
        return "stored", nonce, self.last

    def put(self, sight: Sight) -> None:
        self.lease = sight
        self.history.append((self.world.now, sight))
        for node in self.world.nodes:
            node.hear(sight)

    def expire(self, revision: int) -> None:
        if self.lease.revision == revision:
            self.last += 1
            self.put(Sight(self.last, "expired"))

    def delete(self) -> None:
        self.last += 1
        self.put(Sight(self.last, "deleted"))

    def purge(self) -> None:
        """Remove everything without a marker; sequences continue, as they also do in a bucket that is created again."""
        self.lease, self.epoch = ABSENT, (0, "", 0)
        self.history.append((self.world.now, ABSENT))

    def commit(self, token: int, inc: str, term: int) -> bool:
        if self.down or self.epoch[0] != token:
            return False
        self.last += 1
        self.commits.append((self.last, token, inc, term))
        return True

    def look(self) -> Sight:
        past = [sight for when, sight in self.history[-4:] if when > self.world.now - 2 * LEASE]
        if past and self.world.random.random() < self.world.weather.stale_read:
            return self.world.random.choice(past)
        return self.lease
