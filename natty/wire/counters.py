"""What the parts of a connection have counted, for metrics and readiness.

Hot paths add to integers of their own; metrics read them on demand.
"""

from __future__ import annotations

import threading
from collections import Counter
from operator import attrgetter
from typing import Any, NamedTuple

Labels = tuple[str, ...]


class Kind(NamedTuple):
    """A kind of part: how its labels are named, and its attributes that only grow."""

    labels: Labels
    counts: tuple[str, ...]


PULL = Kind(
    ("stream", "consumer"),
    ("counts.delivered", "counts.delivered_bytes", "counts.redelivered", "counts.requests", "counts.renewals"),
)
FAILURES = ("failed", "timed_out", "undecodable", "retried", "buried", "given_up", "handed_back", "unreported")
HANDLER = Kind(("stream", "consumer"), ("handled", *(f"failures.{count}" for count in FAILURES)))
PUBLISHER = Kind(("stream",), ("stored", "failed", "duplicates"))
ELECTION = Kind(("election",), ("elected", "succeeded", "failed"))
GROUP = Kind(
    ("stream", "group", "member"),
    ("rebalances", "handed_over", "lost", "hand_over_seconds", "work.cut_short", "work.overran"),
)

LAG = Kind(("stream", "group", "member", "partition"), ())


class Observed:
    """The parts that are active now, and the totals of those that have ended. Safe to use from any thread.

    Totals never fall: a part is added when its work begins and retired when that ends, any number of times.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[int, tuple[Any, Kind, Labels]] = {}
        self._retired: dict[tuple[Kind, Labels], Counter[str]] = {}

    def __repr__(self) -> str:
        return f"Observed({len(self._parts)} parts)"

    def add(self, part: object, kind: Kind, *labels: str) -> None:
        """Include this part from now on. A part that was retired before is not counted twice."""
        with self._lock:
            if id(part) not in self._parts:
                self._parts[id(part)] = (part, kind, labels)
                self._retired.setdefault((kind, labels), Counter()).subtract(_count(part, kind))

    def retire(self, part: object) -> None:
        """Keep what the part has counted, and forget it. Idempotent."""
        with self._lock:
            if known := self._parts.pop(id(part), None):
                _, kind, labels = known
                self._retired[kind, labels].update(_count(part, kind))

    def totals(self, kind: Kind) -> dict[Labels, Counter[str]]:
        """Return what parts of a kind have counted, by labels: those with the same labels together."""
        with self._lock:
            totals = {labels: Counter(counted) for (of, labels), counted in self._retired.items() if of is kind}
            for part, of, labels in self._parts.values():
                if of is kind:
                    totals[labels].update(_count(part, kind))
        return totals

    def parts(self, kind: Kind) -> list[tuple[Labels, Any]]:
        """Return the parts of a kind that work now, with their labels."""
        with self._lock:
            return [(labels, part) for part, of, labels in self._parts.values() if of is kind]


def _count(part: Any, kind: Kind) -> dict[str, int]:
    return {name: attrgetter(name)(part) for name in kind.counts}
