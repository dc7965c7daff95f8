"""Options of `join`, and the states and events of an instance."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypedDict

from natty.config.options import Count, SecondsOrZero, ServerSeconds
from natty.config.units import NANOSECONDS
from natty.consuming.dead_letters import DeadLetterOptions
from natty.consuming.options import OrderedBy, WorkOptions
from natty.consuming.reports import OnError
from natty.groups.settings import ACK_WAIT
from natty.pulling.requests import PullOptions
from natty.streams import ConsumerConfig
from natty.streams.conversion import check_consumer_settings

PARTITION = "partition"
MAX_DELIVERIES = 30
LAG_EVERY = 30.0  # seconds
MAX_ACK_PENDING = 500  # Go's `cg` uses 1; instances of one member must use the same value
MOST_PAUSED = 0.1  # of ack_wait: what keeps the pin is read later by a pause


class State(StrEnum):
    """What an instance is doing."""

    JOINING = "joining"
    OUTSIDE = "outside"  # its member is not listed, or has no partition
    WAITING = "waiting"  # for its consumer: another member still has a partition, or the server does not answer
    STANDBY = "standby"  # another instance of this member is pinned, or none is yet
    TAKING_OVER = "taking over"  # pinned, but its predecessor's messages are not settled yet
    ACTIVE = "active"
    HANDING_OVER = "handing over"  # finishing running handlers
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
    """Key that orders messages: "partition" or, finer, "subject", "header:NAME", a function. Default "partition"."""
    concurrency: int
    """Calls of the handler at one time. Default 100."""
    retries: Sequence[float]
    """Seconds before each retry of a message that failed; its key waits meanwhile. Default (1.0, 5.0, 30.0)."""
    timeout: float | None
    """Seconds that one call of the handler may take; None: no limit. Default None."""
    dead_letters: bool | DeadLetterOptions
    """Where messages go after the last retry; False: the last retry repeats. Default True."""
    on_error: OnError | None
    """Called with each message that failed, the error, and what happens next. Default None."""
    batch: int
    """Call the handler with a list of up to this many messages of one key; 0: one message. Default 0."""
    batch_wait: float
    """Seconds that the first message of a batch waits for the others. Default 0.1."""
    max_deliveries: int
    """Deliveries of a message without an outcome before it becomes a dead letter. Default 30."""
    ack_wait: float
    """Seconds until another instance gets the messages and the pin of a dead one. Default 5.0."""
    max_ack_pending: int
    """Unfinished messages of this member. Default 500."""
    max_bytes: int
    """Bytes of unfinished messages that this instance holds; more while it takes over. Default 32 MiB."""
    read_pause: float
    """As of `consume`; more than a tenth of the consumer's `ack_wait` counts as that. Default 0.0."""
    shutdown_timeout: float
    """Seconds that running handlers have to finish when partitions or the pin are handed over. Default 10.0."""
    consumer: ConsumerConfig
    """Other settings of the consumer, except its filters and its priority group. Default {}."""
    on_event: Callable[[MemberEvent], None] | None
    """Called on the event loop with each event of this instance. Default None."""
    lag_every: float
    """Seconds between two counts of the messages that wait in its partitions; 0: no counts. Default 30.0."""


@dataclass(frozen=True, kw_only=True)
class JoinOptions(WorkOptions):
    """Options of an instance. Instances of one name must agree on `ack_wait`, `max_ack_pending` and `consumer`.

    `ack_wait`: seconds after which another instance gets a dead one's messages and pin. Handlers may take longer.
    Running handlers have `shutdown_timeout` seconds to finish when partitions or pin are handed over.
    """

    ordered_by: OrderedBy = PARTITION  # or a finer key: "subject", "header:NAME", a function of the message
    concurrency: Count = 100  # calls of the handler at one time
    retries: Sequence[SecondsOrZero] = (
        1.0,
        5.0,
        30.0,
    )  # seconds before each try after a failure; its key waits meanwhile
    max_deliveries: Count = MAX_DELIVERIES  # after this many deliveries without an outcome, a message is a dead letter.
    # The consumer counts, and an elastic member loses it with its last instance; it has no `max_deliver`, as in Go
    ack_wait: ServerSeconds = ACK_WAIT
    max_ack_pending: Count = MAX_ACK_PENDING  # unfinished messages of this member
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)  # other settings of it
    on_event: Callable[[MemberEvent], None] | None = None
    lag_every: SecondsOrZero = LAG_EVERY  # seconds between two counts of waiting messages, for metrics; 0: no counts

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_batch("max_ack_pending", self.max_ack_pending)
        if self.ordered_by is None:
            raise ValueError('a group is there for order: ordered_by is "partition", or a key within the partition')
        check_consumer_settings(self.consumer, "consumer")

    def limit_requests(self, consumer: Mapping[str, Any]) -> PullOptions:
        """Return the limits of requests to a consumer with this configuration, as the server has it."""
        limits = [one for one in (self.max_ack_pending, consumer.get("max_ack_pending", 0)) if one > 0]
        return PullOptions(
            max_messages=min(limits, default=MAX_ACK_PENDING),
            max_bytes=self.max_bytes,
            read_pause=min(self.read_pause, MOST_PAUSED * consumer["ack_wait"] / NANOSECONDS),
        )

    @property
    def settings(self) -> ConsumerConfig:
        """The consumer's settings that the user chooses."""
        return {
            "ack_wait": self.ack_wait,
            "max_ack_pending": self.max_ack_pending,
            **check_consumer_settings(self.consumer),
        }
