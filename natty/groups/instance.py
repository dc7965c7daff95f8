"""What an instance of a member does next: decided here, done by `member.py`. Pure: no clock, no socket.

Synadia's pcgroups 0.2 has no coordinator. Every instance works from the group's record and from what the server says
about the one consumer of its member; who is pinned on that consumer is the server's word. The rules that keep two
instances of ours from handling the same key at the same time:

1. Only who is pinned takes a consumer away whose filters are old, and has finished its handlers before.
2. A dead one's pin ends by itself; who waited for that leaves it another ack wait if messages are unfinished.
3. An instance that was not pinned when its consumer vanished lets an ack wait pass before it goes on.
4. A consumer of a work queue whose server forgot messages is taken away, and made again, by who is pinned on it.
5. Another member's consumer is never touched. While it overlaps with ours the server refuses ours, and we try again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

RETRY = 0.05  # seconds before a refused consumer is tried again; doubles up to the next line
RETRY_MAX = 1.0
POLL = 0.2  # seconds between two looks while somebody else has to do something
UNCLAIMED = 0.45  # seconds that an old consumer may be without a pin before it is replaced: its owner may be about to


class Do(StrEnum):
    """What to do next."""

    WAIT = "wait"
    CREATE = "create"  # the consumer
    DELETE = "delete"  # the consumer, which is the one that was seen
    READ = "read"  # from the consumer that was seen
    CLOSE = "close"  # stop reading; nobody's handlers run here
    DRAIN = "drain"  # stop reading, finish what runs, let the server have the acks, and tell `drained`
    FAIL = "fail"  # the consumer can't serve


@dataclass(frozen=True)
class Seen:
    """The member's consumer as the server told of it."""

    created: str  # which incarnation it is
    filters: tuple[str, ...]
    pinned: str = ""  # whose pin it is
    unfinished: int = 0  # messages delivered and not acknowledged
    waiting: int = 0  # requests of anybody


@dataclass(frozen=True)
class Own:
    """Our own part: the incarnation that we read from, if any, and whether we are pinned on it."""

    reading: str = ""
    pinned: bool = False
    forgot: bool = False  # the server will not deliver all of it again: it has to be made anew


@dataclass(frozen=True)
class Step:
    """What to do, and when to look again: seconds, None for not before something happens."""

    do: Do
    again: float | None = None


class Instance:
    """One instance's view: what its member shall read, and what it remembers of the consumers that there were."""

    def __init__(self, ack_wait: float, *, elastic: bool, tick: float) -> None:
        self.filters: tuple[str, ...] = ()
        self.refused = False  # the last try to make the consumer overlapped with another member's
        self._ack_wait, self._elastic, self.tick = ack_wait, elastic, tick
        self._retry = RETRY
        self._not_before = 0.0  # nothing is made or read before
        self._finished = ""  # the incarnation that we were pinned on and have drained
        self._outworn: tuple[str, str] | None = None  # an incarnation to be made again, and the pin that we had on it
        self._left = ""  # the incarnation that we read last
        self._old = ("", 0.0)  # an incarnation without a pin whose filters are old, and since when

    def __repr__(self) -> str:
        return f"Instance({', '.join(self.filters) or 'nothing to read'})"

    def assign(self, filters: Sequence[str]) -> None:
        """Take in the filters that the member has now; none: it is not listed, or has no partition."""
        self.filters = tuple(filters)

    def overlapped(self, now: float) -> None:
        """The server refused our consumer: another member's still holds a partition of ours."""
        self.refused = True
        self._not_before = max(self._not_before, now + random.uniform(0.5, 1.0) * self._retry)
        self._retry = min(2 * self._retry, RETRY_MAX)

    def made(self) -> None:
        """Our consumer is there."""
        self.refused, self._retry = False, RETRY

    def drained(self, created: str, pin: str = "") -> None:
        """Nothing of ours is left on this incarnation, on which we are still pinned."""
        self._finished = created
        if self._outworn is not None:
            self._outworn = created, pin

    def decide(self, now: float, seen: Seen | None, own: Own) -> Step:
        """Return the next step; `seen` is None if there is no consumer."""
        if own.reading:
            self._left = own.reading
            return self._reading(now, seen, own)
        if not self.filters:
            return self._outside(seen)
        if seen is None:
            return self._wait_or(now, Do.CREATE)
        if seen.filters != self.filters:
            return self._replace(now, seen)
        outworn, self._outworn = self._outworn, None
        if (seen.created, seen.pinned) == outworn:
            return Step(Do.DELETE, 0.0)
        if seen.pinned:
            self._not_before = 0.0  # its new owner shows that it goes on
        return self._wait_or(now, Do.READ)

    def _reading(self, now: float, seen: Seen | None, own: Own) -> Step:
        if seen is None or seen.created != own.reading:
            if not own.pinned:
                self._not_before = max(self._not_before, now + self._ack_wait)
            return Step(Do.CLOSE, 0.0)
        self._outworn = ("", "") if own.forgot and own.pinned else None
        if seen.filters == self.filters and self._outworn is None:
            return Step(Do.WAIT, self.tick)
        return Step(Do.DRAIN if own.pinned else Do.CLOSE, 0.0)

    def _outside(self, seen: Seen | None) -> Step:
        """We have nothing to read. What we read last is taken away, unless somebody else still does."""
        if seen is not None and self._elastic:
            if seen.created == self._finished:
                return Step(Do.DELETE)
            if seen.created == self._left and not seen.pinned and not seen.waiting and not seen.unfinished:
                return Step(Do.DELETE)
        return Step(Do.WAIT)

    def _replace(self, now: float, seen: Seen) -> Step:
        """The consumer has other filters than ours."""
        if not self._elastic:
            return Step(Do.FAIL)
        if seen.created == self._finished:
            return Step(Do.DELETE, 0.0)
        if seen.pinned:
            self._old = ("", 0.0)
            return Step(Do.WAIT, POLL)
        if self._old[0] != seen.created:
            self._old = (seen.created, now)
        patience = self._ack_wait if seen.unfinished else UNCLAIMED
        left = self._old[1] + patience - now
        return Step(Do.WAIT, min(left, POLL)) if left > 0 else Step(Do.DELETE, 0.0)

    def _wait_or(self, now: float, do: Do) -> Step:
        left = self._not_before - now
        return Step(do) if left <= 0 else Step(Do.WAIT, min(left, POLL))
