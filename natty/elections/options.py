"""The settings of an election, and the timings that follow from its lease."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, inf
from typing import Annotated, TypedDict

from natty.config.cron import Cron
from natty.config.options import Count, Range, Seconds, check_options, make_options
from natty.config.units import seconds_of
from natty.kv.key_names import check_bucket

DRIFT = 0.02  # how far two clocks' rates may differ
LEASE = 2.0  # seconds until a dead leader is replaced
SHORTEST_LEASE = 0.3  # seconds
LONGEST_LEASE = 3600.0  # seconds: a dead leader is replaced after that, even if a record has a longer lease
MAX_STALL = 10.0  # seconds that the event loop may be busy before its node counts as hung
PULSE = 0.25  # seconds between two signs of life of the event loop
GRACE = 0.2  # of the lease: how long before the deadline the work is cancelled
LONGEST_ATTEMPT = 1.0  # seconds that one write may take
BUCKET = "natty_leaders"
DESCRIPTION = "natty leader elections"
LAST_PRIORITY = 100
LEASE_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")


def default_node_name() -> str:
    """Return the names of this host and process: "host-pid"."""
    return f"{socket.gethostname().split('.')[0]}-{os.getpid()}"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The timings that follow from the lease, all in seconds. docs/election.md has the table."""

    lease: float = LEASE
    grace: float = float("inf")  # the time that the work has to stop, if less than a fifth of the lease
    max_stall: float = MAX_STALL
    priority: int = 0

    @property
    def usable(self) -> float:
        """How long the holder may act after it has sent a renewal."""
        return self.lease * (1 - DRIFT)

    @property
    def renew_every(self) -> float:
        """The interval between sending two renewals."""
        return self.lease / 3

    @property
    def attempt(self) -> float:
        """How long one write may take."""
        return min(self.lease / 4, LONGEST_ATTEMPT)

    @property
    def retry(self) -> float:
        """The pause after a failed write."""
        return min(self.lease / 20, 0.25)

    @property
    def stop_before(self) -> float:
        """How long before the deadline the work is cancelled."""
        return min(GRACE * self.lease, self.grace)

    @property
    def ttl(self) -> int:
        """After how long the server removes a dead holder's lease: whole seconds, never too early."""
        return max(1, ceil(3 * self.lease))


def silence(lease: float) -> float:
    """How long a holder may show no sign of life before other nodes act."""
    return lease * (1 + DRIFT)


class ElectionSettings(TypedDict, total=False):
    """The options of an election as keywords: the fields of `ElectionOptions`, without the name."""

    key: str
    """Key of the lease in the bucket. Default "": the election's name."""
    lease: float
    """Seconds until a dead leader is replaced, from 0.3 to 3600. Default 2.0."""
    bucket: str
    """Bucket of the election. Default "natty_leaders"."""
    node_name: str
    """Name of this node. Default "": host and process."""
    replicas: int | None
    """Replicas of a new bucket. Default None: 3 on a cluster, otherwise 1."""
    description: str
    """Description of a new bucket. Default ""."""
    priority: int
    """0 to 100: a node with a lower number asks the leader to hand over. Default 0."""
    grace: float
    """Seconds that the work has to stop, at most a fifth of the lease. Default inf: that fifth."""
    max_stall: float
    """Seconds that the event loop may be blocked before the lease is no longer renewed. Default 10.0."""
    health: Callable[[], bool] | None
    """Called on the event loop four times a second while leading; False or an error ends the term. Default None."""
    on_elected: Callable[[int], None] | None
    """Called on the event loop with the token when a term begins. Default None."""
    on_lost: Callable[[str], None] | None
    """Called on the event loop with the reason when a term ends. Default None."""
    on_new_leader: Callable[[str], None] | None
    """Called on the event loop with a node's name when it becomes the leader. Default None."""
    on_stop_overrun: Callable[[], None] | None
    """Called on the event loop when the work still runs after it was cancelled. Default None."""
    every: float | str | None
    """Time from the start of a run of the work to the start of the next, while leading: seconds or text ("5m").

    Default None: one run.
    """
    cron: str | None
    """When to run the work while leading: minute, hour, day, month, weekday, or "@daily" and the like. Default None."""
    timezone: str
    """Time zone of `cron`, such as "Europe/Berlin". Default "": UTC."""


@dataclass(frozen=True, kw_only=True)
class ElectionOptions:
    """The options of an election on this node; `ElectionSettings` describes each field. ValueError if one is wrong."""

    name: str
    key: str = ""
    lease: Seconds = LEASE
    bucket: str = BUCKET
    node_name: str = ""
    replicas: Count | None = None
    description: str = ""
    priority: Annotated[int, Range(0, LAST_PRIORITY)] = 0
    grace: Seconds = float("inf")
    max_stall: Seconds = MAX_STALL
    health: Callable[[], bool] | None = None
    on_elected: Callable[[int], None] | None = None
    on_lost: Callable[[str], None] | None = None
    on_new_leader: Callable[[str], None] | None = None
    on_stop_overrun: Callable[[], None] | None = None
    every: Seconds | str | None = None
    cron: str | None = None
    timezone: str = ""

    def __post_init__(self) -> None:
        check_options(self)
        if not self.lease >= SHORTEST_LEASE:
            raise ValueError(
                f"a lease of {self.lease:g} s is too short: renewing takes time; use at least {SHORTEST_LEASE} s"
            )
        if self.lease > LONGEST_LEASE:
            raise ValueError(
                f"a lease of {self.lease:g} s is too long: a dead leader is replaced only after its lease; use"
                f" at most {LONGEST_LEASE:g} s"
            )
        if self.max_stall < 2 * PULSE:
            raise ValueError(f"max_stall of {self.max_stall:g} s is less than two signs of life, {2 * PULSE:g} s")
        if GRACE * self.lease < self.grace < inf:
            raise ValueError(
                f"a grace of {self.grace:g} s is more than a fifth of the lease, {GRACE * self.lease:g} s: shorten it,"
                " or raise the lease"
            )
        check_bucket(self.bucket)
        if not LEASE_KEY.fullmatch(self.lease_key):
            raise ValueError(f"{self.lease_key!r} is not a key: write letters, digits and - / _ = with dots between")
        interval = self.interval
        if self.cron is not None and interval is not None:
            raise ValueError(f"every={interval:g} and cron={self.cron!r} exclude each other; give one of them")
        if self.cron is None and self.timezone:
            raise ValueError(f"timezone={self.timezone!r} has no effect without cron")
        if self.cron is not None:
            Cron(self.cron, self.timezone or "UTC")

    @property
    def interval(self) -> float | None:
        """`every`, in seconds. ValueError if it is text that is not a duration."""
        return seconds_of("every", self.every) if isinstance(self.every, str) else self.every

    @property
    def repeats(self) -> bool:
        """Whether the work runs again and again while this node leads."""
        return self.every is not None or self.cron is not None

    @property
    def rules(self) -> Rules:
        """The timings."""
        return Rules(lease=self.lease, grace=self.grace, max_stall=self.max_stall, priority=self.priority)

    @property
    def lease_key(self) -> str:
        """The key of the lease."""
        return self.key or self.name


def election_options(call: str, name: str, given: Mapping[str, object]) -> ElectionOptions:
    """Return the options of a call for an election. TypeError for an unknown one, and without the election's name."""
    if callable(name):
        raise TypeError(f'{call} needs the name of the election: write @{call}("{getattr(name, "__name__", "name")}")')
    return make_options(ElectionOptions, call, {"name": name, **given})
