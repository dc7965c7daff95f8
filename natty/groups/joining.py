from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypedDict

from natty.config.units import check_timings
from natty.consuming.dead_letters import DeadLetterOptions
from natty.consuming.options import OrderedBy
from natty.groups.settings import ACK_WAIT
from natty.groups.work import WorkOptions
from natty.streams.conversion import check_consumer_settings

LAG_EVERY = 30.0  # seconds
MAX_ACK_PENDING = 500  # Go's `cg` uses 1: an instance beside it must be given the same


class State(StrEnum):
    """What an instance is doing."""

    JOINING = "joining"
    OUTSIDE = "outside"  # its member is not listed, or has no partition
    WAITING = "waiting"  # for its consumer: a partition is still another member's, or the server does not answer
    STANDBY = "standby"  # another instance of this member is pinned, or nobody is yet
    TAKING_OVER = "taking over"  # pinned, and what its predecessor had begun is not settled yet
    ACTIVE = "active"
    HANDING_OVER = "handing over"  # finishing what runs
    ENDED = "ended"


@dataclass(frozen=True)
class MemberEvent:
    """Something that happened to an instance: `kind` is a `State`, "partitions", "cut short" or "overran"."""

    kind: str
    partitions: tuple[int, ...]
    time: float = field(default_factory=time.time)  # Unix seconds


class JoinSettings(TypedDict, total=False):
    """The options of `join` as keywords: the fields of `JoinOptions`."""

    ordered_by: OrderedBy
    """What orders messages: "partition" or, finer, "subject", "header:NAME", a function. Default "partition"."""
    concurrency: int
    """Calls of the handler at one time. Default 100."""
    retries: Sequence[float]
    """Seconds before each retry of a message that failed; its key waits meanwhile. Default (1.0, 5.0, 30.0)."""
    dead_letters: bool | DeadLetterOptions
    """Where messages go after the last retry; False: the last retry repeats. Default True."""
    max_deliveries: int
    """Deliveries of a message without an outcome before it becomes a dead letter. Default 30."""
    ack_wait: float
    """Seconds until another instance gets a dead one's messages and pin. Default 5.0."""
    max_ack_pending: int
    """Unfinished messages of this member. Default 500."""
    max_bytes: int
    """Bytes of them that are held here. Default 32 MiB."""
    shutdown_timeout: float
    """Seconds that running handlers have to finish when partitions or the pin are handed over. Default 10.0."""
    consumer: dict[str, Any]
    """Other settings of the consumer, by the server's names. Default {}."""
    on_event: Callable[[MemberEvent], None] | None
    """Called on the event loop with each change of this instance. Default None."""
    lag_every: float
    """Seconds between two counts of the messages that wait in its partitions; 0: none. Default 30.0."""


@dataclass(frozen=True, kw_only=True)
class JoinOptions(WorkOptions):
    """How an instance takes part. Instances of one name must agree on `ack_wait`, `max_ack_pending`, `consumer`.

    `ack_wait`: seconds after which a dead instance's messages and its pin go to another one. Handlers may take longer.
    """

    ack_wait: float = ACK_WAIT
    max_ack_pending: int = MAX_ACK_PENDING  # unfinished messages of this member
    max_bytes: int = 32 * 1024 * 1024  # of them, held here
    shutdown_timeout: float = (
        10.0  # seconds that running handlers have to finish when partitions or pin are handed over
    )
    consumer: dict[str, Any] = field(default_factory=dict)  # other settings of the consumer, by the server's names
    on_event: Callable[[MemberEvent], None] | None = None
    lag_every: float = LAG_EVERY  # seconds between two counts of what waits in our partitions, for metrics; 0: none

    def __post_init__(self) -> None:
        super().__post_init__()
        check_timings(self, "ack_wait", "shutdown_timeout", "lag_every")
        check_consumer_settings(self.consumer, "consumer")

    @property
    def settings(self) -> dict[str, Any]:
        """The consumer's settings that are the user's."""
        return {
            "ack_wait": self.ack_wait,
            "max_ack_pending": self.max_ack_pending,
            **check_consumer_settings(self.consumer),
        }
