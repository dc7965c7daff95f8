"""How a candidate that does not lead observes the lease, and decides by its own clock when it may take it over."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from natty.elections.actions import Action, Ask, Seen, WentBack
from natty.elections.options import LONGEST_LEASE, Rules, silence
from natty.elections.record import LAST_TERM, Sight

RANK = 0.01  # seconds that each priority waits longer than the next higher one
NOT_NAMED = 0.05  # seconds that other nodes wait for the named successor


@dataclass
class Follower:
    """The last sight of the lease's key, and the time from which this candidate may take it over."""

    rules: Rules
    id: str
    inc: str
    random: Random
    _seen: Sight | None = field(default=None, init=False)
    _act_at: float = field(default=0.0, init=False)
    _last_lease: float = field(default=0.0, init=False)
    _newest_term: int = field(default=0, init=False)
    _asked: tuple[int, float] = field(default=(0, 0.0), init=False)

    def _observe(self, now: float, sight: Sight, *, decisive: bool) -> list[Action]:
        before = self._seen
        newer = before is None or sight.revision > before.revision
        vanished = before is not None and sight.revision == 0 < before.revision
        if not (newer or vanished or decisive):
            return []
        if before is not None and not newer and not vanished and sight.revision == before.revision:
            self._act_at = max(self._act_at, now + self.rules.retry)  # refused, but the read shows nothing new
            return []
        actions: list[Action] = []
        if before is not None and 0 < sight.revision < before.revision:
            actions.append(WentBack(before.revision, sight.revision))
        self._seen = sight
        if sight.lease is not None:
            if sight.lease.L <= LONGEST_LEASE:  # not a lease that an election can have
                self._last_lease = sight.lease.L
            if sight.lease.term < LAST_TERM:
                self._newest_term = max(self._newest_term, sight.lease.term)
            if sight.kind == "held" and _holder(before) != (sight.lease.inc, sight.lease.term):
                actions.append(Seen(sight.lease))
        self._act_at = now + self._patience(sight) + self._rank()
        return actions + self._ask(now, sight, again=_holder(before))

    def _patience(self, sight: Sight) -> float:
        """Return how many seconds to wait before taking the lease over; if the key is empty, before marking it.

        If the key is marked as deleted, there may still be a leader: see `Mark`.
        """
        if sight.kind == "held":
            assert sight.lease is not None
            return silence(sight.lease.lasts)
        if sight.kind == "released":
            assert sight.lease is not None
            if sight.lease.inc == self.inc:
                return silence(self.rules.lease)
            return NOT_NAMED if sight.lease.to and sight.lease.to != self.id else 0.0
        if sight.kind in ("expired", "absent"):
            return 0.0
        return silence(max(self._last_lease, self.rules.lease))  # deleted, for an unknown reason

    def _rank(self) -> float:
        return self.rules.priority * RANK + self.random.uniform(0, RANK)

    def _ask(self, now: float, sight: Sight, *, again: tuple[str, int] | None) -> list[Action]:
        """Ask a holder of a lower rank to hand over: when it has renewed, at most once in a lease."""
        lease = sight.lease
        if lease is None or sight.kind != "held" or not lease.addr or lease.inc == self.inc:
            return []
        settled = again == (lease.inc, lease.term)
        asked_lately = self._asked[0] == lease.term and now < self._asked[1] + lease.lasts
        if not settled or asked_lately or self.rules.priority >= lease.prio:
            return []
        self._asked = (lease.term, now)
        return [Ask(lease.addr)]


def _holder(sight: Sight | None) -> tuple[str, int] | None:
    return (sight.lease.inc, sight.lease.term) if sight is not None and sight.lease is not None else None
