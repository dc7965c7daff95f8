from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from natty.config.units import check_timings

DRIFT = 0.02  # how far two clocks' rates may differ
LEASE = 2.0  # seconds
SHORTEST_LEASE = 0.3  # seconds
LONGEST_LEASE = 3600.0  # seconds: a dead leader is replaced after that, whatever a record says
MAX_STALL = 10.0  # seconds that the event loop may be busy before its node is taken for hung
PULSE = 0.25  # seconds between two signs of life of the event loop
GRACE = 0.2  # of the lease: how long before the deadline the work is told to stop
LONGEST_ATTEMPT = 1.0  # seconds that one write may take
BUCKET = "natty_leaders"
DESCRIPTION = "natty leader elections"
LAST_PRIORITY = 100
LEASE_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")


def default_node_name() -> str:
    """Host and process."""
    return f"{socket.gethostname().split('.')[0]}-{os.getpid()}"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The timings that follow from the lease, all in seconds; the table of docs/election.md."""

    lease: float = LEASE
    grace: float = float("inf")  # the work's time to stop, when it needs less than the usual fifth of the lease
    max_stall: float = MAX_STALL
    priority: int = 0

    @property
    def usable(self) -> float:
        """How long the holder may act after it sent a renewal."""
        return self.lease * (1 - DRIFT)

    @property
    def renew_every(self) -> float:
        """From send to send."""
        return self.lease / 3

    @property
    def attempt(self) -> float:
        """How long one write may take."""
        return min(self.lease / 4, LONGEST_ATTEMPT)

    @property
    def retry(self) -> float:
        """The pause after a write that failed."""
        return min(self.lease / 20, 0.25)

    @property
    def stop_before(self) -> float:
        """How long before the deadline the work is told to stop."""
        return min(GRACE * self.lease, self.grace)

    @property
    def ttl(self) -> int:
        """When the server collects a dead holder's lease: whole seconds, never too early."""
        return max(1, ceil(3 * self.lease))


def silence(lease: float) -> float:
    """How long nothing may be seen of a holder before others act."""
    return lease * (1 + DRIFT)


@dataclass(frozen=True, kw_only=True)
class ElectionOptions:
    """One election and this node's part in it. Seconds.

    `lease`: how long a dead leader keeps its office (the ancestor's `bucket_ttl` is another name for it).
    `priority`: 0 comes first, as in a mail exchanger's record; a node of a lower number asks the holder to hand over.
    `max_stall`: how long the event loop may be stuck before the lease is no longer renewed.
    `health`: asked on the event loop four times a second while in office; False, or an error, leaves it.
    `on_…`: called on the event loop; `on_stop_overrun` when work goes on after it was told to stop.
    """

    name: str
    key: str = ""
    lease: float | None = None
    bucket: str = BUCKET
    node_name: str = ""
    replicas: int | None = None
    replica_count: int | None = None
    bucket_ttl: float | None = None
    description: str = ""
    priority: int = 0
    grace: float = float("inf")
    max_stall: float = MAX_STALL
    health: Callable[[], bool] | None = None
    on_elected: Callable[[int], None] | None = None
    on_lost: Callable[[str], None] | None = None
    on_new_leader: Callable[[str], None] | None = None
    on_stop_overrun: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        check_timings(self, "lease", "bucket_ttl", "grace", "max_stall")
        for one, other in (("lease", "bucket_ttl"), ("replicas", "replica_count")):
            values = {getattr(self, one), getattr(self, other)} - {None}
            if len(values) > 1:
                raise ValueError(f"{one} and {other} are two names of one setting and contradict each other: {values}")
        if not self.rules.lease >= SHORTEST_LEASE:
            raise ValueError(
                f"a lease of {self.rules.lease:g} s is too short: renewing takes time; take at least {SHORTEST_LEASE} s"
            )
        if self.rules.lease > LONGEST_LEASE:
            raise ValueError(
                f"a lease of {self.rules.lease:g} s is too long: a dead leader is replaced only after its lease; take"
                f" at most {LONGEST_LEASE:g} s"
            )
        if self.max_stall < 2 * PULSE:
            raise ValueError(f"max_stall of {self.max_stall:g} s is less than two signs of life, {2 * PULSE:g} s")
        if self.grace <= 0:
            raise ValueError(f"a grace of {self.grace:g} s would tell the work to stop when it is too late")
        if not 0 <= self.priority <= LAST_PRIORITY:
            raise ValueError(f"priority {self.priority} is not between 0, the first, and {LAST_PRIORITY}, the last")
        if not LEASE_KEY.fullmatch(self.lease_key):
            raise ValueError(f"{self.lease_key!r} is no key of a bucket: letters, digits and - / _ = with dots between")

    @property
    def rules(self) -> Rules:
        """The timings."""
        lease = self.lease if self.lease is not None else self.bucket_ttl if self.bucket_ttl is not None else LEASE
        return Rules(lease=lease, grace=self.grace, max_stall=self.max_stall, priority=self.priority)

    @property
    def lease_key(self) -> str:
        """The key of the lease."""
        return self.key or self.name

    @property
    def copies(self) -> int | None:
        """How many replicas the bucket shall have; None leaves it to the cluster."""
        return self.replicas if self.replicas is not None else self.replica_count
