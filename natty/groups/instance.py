"""Decides the next step of an instance of a member; `member.py` runs it. Pure: no clock, no socket.

Synadia's pcgroups 0.2 has no coordinator. Every instance works from the group's record and from the server's state of
its member's single consumer; the server decides which instance is pinned on it. These rules keep two of our instances
from handling the same key at the same time:

1. Only the pinned instance deletes a consumer with outdated filters, after its handlers have finished.
2. A dead instance's pin expires; an instance that waited for that waits another ack wait if messages are unfinished.
3. An instance that was not pinned when its consumer disappeared waits an ack wait before it continues.
4. If the server forgot messages of a work queue, the pinned instance deletes its consumer and creates it again.
5. An instance never touches another member's consumer. While it overlaps with ours, the server refuses ours; we retry.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

RETRY = 0.05  # seconds before a refused consumer is tried again; doubles up to the next line
RETRY_MAX = 1.0
POLL = 0.2  # seconds between two looks while we wait for another instance
UNCLAIMED = 0.45  # seconds before an outdated consumer without a pin is replaced: its owner may be about to do so


class Do(StrEnum):
    """The next step."""

    WAIT = "wait"
    CREATE = "create"  # the consumer
    DELETE = "delete"  # the consumer that was seen
    READ = "read"  # from the consumer that was seen
    CLOSE = "close"  # stop reading; no handlers run here
    DRAIN = "drain"  # stop reading, finish running handlers, send the acks to the server, and call `drained`
    FAIL = "fail"  # the consumer can't be used


@dataclass(frozen=True)
class Seen:
    """The member's consumer as the server reported it."""

    created: str  # identifies the incarnation
    filters: tuple[str, ...]
    pinned: str = ""  # id of the pinned instance
    unfinished: int = 0  # messages delivered and not acknowledged
    waiting: int = 0  # open requests of all clients


@dataclass(frozen=True)
class Own:
    """Our own state: the incarnation that we read from, if any, and whether we are pinned on it."""

    reading: str = ""
    pinned: bool = False
    forgot: bool = False  # the server will not deliver some messages again: the consumer must be created again


@dataclass(frozen=True)
class Step:
    """What to do, and the seconds until the next look; None: not before an event."""

    do: Do
    again: float | None = None


class Instance:
    """One instance's view: what its member should read, and what it remembers of earlier consumers."""

    def __init__(self, ack_wait: float, *, elastic: bool, tick: float) -> None:
        self.filters: tuple[str, ...] = ()
        self.refused = False  # the last attempt to create the consumer overlapped with another member's
        self._ack_wait, self._elastic, self.tick = ack_wait, elastic, tick
        self._retry = RETRY
        self._not_before = 0.0  # create nothing and read nothing before this time
        self._finished = ""  # the incarnation that we were pinned on and have drained
        self._outworn: tuple[str, str] | None = None  # an incarnation to be created again, and our pin on it
        self._left = ""  # the incarnation that we read last
        self._old = ("", 0.0)  # an incarnation without a pin and with outdated filters, and since when

    def __repr__(self) -> str:
        return f"Instance({', '.join(self.filters) or 'nothing to read'})"

    def assign(self, filters: Sequence[str]) -> None:
        """Set the member's current filters; none: it is not listed, or has no partition."""
        self.filters = tuple(filters)

    def note_overlap(self, now: float) -> None:
        """Note that the server refused our consumer: another member's still holds a partition of ours."""
        self.refused = True
        self._not_before = max(self._not_before, now + random.uniform(0.5, 1.0) * self._retry)
        self._retry = min(2 * self._retry, RETRY_MAX)

    def note_created(self) -> None:
        """Note that our consumer exists."""
        self.refused, self._retry = False, RETRY

    def note_drained(self, created: str, pin: str = "") -> None:
        """Note that this incarnation has no unfinished message of ours, while we are still pinned on it."""
        self._finished = created
        if self._outworn is not None:
            self._outworn = created, pin

    def decide(self, now: float, seen: Seen | None, own: Own) -> Step:
        """Return the next step; `seen` is None if there is no consumer."""
        if own.reading:
            self._left = own.reading
            return self._decide_reading(now, seen, own)
        if not self.filters:
            return self._decide_outside(seen)
        if seen is None:
            return self._wait_or(now, Do.CREATE)
        if seen.filters != self.filters:
            return self._replace(now, seen)
        outworn, self._outworn = self._outworn, None
        if (seen.created, seen.pinned) == outworn:
            return Step(Do.DELETE, 0.0)
        if seen.pinned:
            self._not_before = 0.0  # a new owner is already working
        return self._wait_or(now, Do.READ)

    def _decide_reading(self, now: float, seen: Seen | None, own: Own) -> Step:
        if seen is None or seen.created != own.reading:
            if not own.pinned:
                self._not_before = max(self._not_before, now + self._ack_wait)
            return Step(Do.CLOSE, 0.0)
        self._outworn = ("", "") if own.forgot and own.pinned else None
        if seen.filters == self.filters and self._outworn is None:
            return Step(Do.WAIT, self.tick)
        return Step(Do.DRAIN if own.pinned else Do.CLOSE, 0.0)

    def _decide_outside(self, seen: Seen | None) -> Step:
        """With nothing to read, delete the consumer that we read last, unless another instance still reads it."""
        if seen is not None and self._elastic:
            if seen.created == self._finished:
                return Step(Do.DELETE)
            if seen.created == self._left and not seen.pinned and not seen.waiting and not seen.unfinished:
                return Step(Do.DELETE)
        return Step(Do.WAIT)

    def _replace(self, now: float, seen: Seen) -> Step:
        """Replace a consumer whose filters differ from ours."""
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
