"""The server's reports about streams and consumers, in its own terms: durations are nanoseconds, times RFC 3339.

These types describe the JSON documents of nats-server 2.10 to 2.15. Keys without `Required` may be missing.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Required, TypedDict, cast

from natty.jetstream import JetStream
from natty.streams.schema import (
    AckPolicy,
    Compression,
    DeliverPolicy,
    Discard,
    ExternalStream,
    PersistMode,
    Placement,
    PriorityPolicy,
    ReplayPolicy,
    Republish,
    Retention,
    Storage,
    StreamSource,
    SubjectTransform,
)

STALE_FOR = 20.0  # seconds: a leader that was cut off and replaced answered for up to 17.8 s
LOOK_AGAIN = 0.25  # seconds between two requests for an answer of the leader


class ServerConsumerLimits(TypedDict, total=False):
    """The limits of a stream's consumers as the server writes them."""

    inactive_threshold: int  # nanoseconds
    max_ack_pending: int


class ServerStreamConfig(TypedDict, total=False):
    """The configuration of a stream as the server writes it; `StreamConfig` is what a user writes."""

    name: Required[str]
    description: str
    subjects: list[str]  # missing for a mirror
    retention: Required[Retention]
    storage: Required[Storage]
    discard: Required[Discard]
    discard_new_per_subject: bool
    compression: Compression
    num_replicas: Required[int]
    max_msgs: Required[int]  # -1: no limit, as for the other limits
    max_msgs_per_subject: Required[int]
    max_bytes: Required[int]
    max_age: Required[int]  # nanoseconds; 0: no limit
    max_msg_size: int
    max_consumers: Required[int]
    duplicate_window: int  # nanoseconds
    first_seq: int
    allow_direct: bool
    mirror_direct: bool
    allow_atomic: bool
    allow_batched: bool
    allow_msg_counter: bool
    allow_msg_ttl: bool
    allow_msg_schedules: bool
    allow_rollup_hdrs: bool
    deny_delete: bool
    deny_purge: bool
    sealed: bool
    no_ack: bool
    subject_delete_marker_ttl: int  # nanoseconds
    persist_mode: PersistMode
    metadata: dict[str, str]
    placement: Placement
    republish: Republish
    subject_transform: SubjectTransform
    consumer_limits: ServerConsumerLimits
    mirror: StreamSource
    sources: list[StreamSource]


class ServerConsumerConfig(TypedDict, total=False):
    """The configuration of a consumer as the server writes it; `ConsumerConfig` is what a user writes."""

    name: str
    durable_name: str
    description: str
    deliver_policy: Required[DeliverPolicy]
    opt_start_seq: int
    opt_start_time: str
    ack_policy: Required[AckPolicy]
    ack_wait: int  # nanoseconds
    backoff: list[int]  # nanoseconds
    max_deliver: int  # -1: no limit
    max_ack_pending: int  # -1: no limit
    max_waiting: int
    max_batch: int
    max_bytes: int
    max_expires: int  # nanoseconds
    filter_subject: str
    filter_subjects: list[str]
    replay_policy: Required[ReplayPolicy]
    sample_freq: str
    headers_only: bool
    inactive_threshold: int  # nanoseconds
    num_replicas: int  # 0: as many as the stream has
    mem_storage: bool
    priority_groups: list[str]
    priority_policy: PriorityPolicy
    priority_timeout: int  # nanoseconds
    pause_until: str
    metadata: dict[str, str]
    deliver_subject: str  # only for push consumers, like the next ones
    deliver_group: str
    flow_control: bool
    idle_heartbeat: int  # nanoseconds
    rate_limit_bps: int


class Peer(TypedDict, total=False):
    """One follower of a stream or a consumer in a cluster."""

    name: Required[str]
    current: bool
    offline: bool
    active: int  # nanoseconds since the leader heard from it
    lag: int  # operations that it is behind
    peer: str


class ClusterInfo(TypedDict, total=False):
    """Which servers of a cluster hold a stream or a consumer."""

    name: str  # missing on a single server
    raft_group: str
    leader: str  # missing while one is being elected
    leader_since: str
    system_account: bool
    traffic_account: str
    replicas: list[Peer]


class LostStreamData(TypedDict, total=False):
    """The messages that a damaged store has lost."""

    msgs: list[int] | None
    bytes: int


class StreamState(TypedDict, total=False):
    """The content of a stream."""

    messages: Required[int]
    bytes: Required[int]
    first_seq: Required[int]
    first_ts: Required[str]
    last_seq: Required[int]  # 0: the stream has never stored a message
    last_ts: Required[str]
    consumer_count: Required[int]
    num_subjects: int
    subjects: dict[str, int]  # subject → messages, if the request names a filter
    num_deleted: int
    deleted: list[int] | None  # sequences, if the request names `deleted_details`
    lost: LostStreamData | None


class ApiError(TypedDict, total=False):
    """An error of the server's API."""

    code: int
    err_code: int
    description: str


class SourceInfo(TypedDict, total=False):
    """How far a mirror, or a source, has copied its origin."""

    name: Required[str]
    lag: Required[int]  # messages still to copy
    active: Required[int]  # nanoseconds since the origin's last sign of life; -1: none yet
    external: ExternalStream
    filter_subject: str
    subject_transforms: list[SubjectTransform]
    error: ApiError


class StreamInfo(TypedDict, total=False):
    """The answer to STREAM.INFO, and an element of STREAM.LIST."""

    config: Required[ServerStreamConfig]
    created: Required[str]
    state: Required[StreamState]
    cluster: ClusterInfo | None
    mirror: SourceInfo | None
    sources: list[SourceInfo] | None
    ts: str  # when the server answered
    domain: str


class SequencePair(TypedDict, total=False):
    """A position of a consumer, counted by its deliveries and by the stream's sequences."""

    consumer_seq: Required[int]
    stream_seq: Required[int]
    last_active: str


class PriorityGroupState(TypedDict, total=False):
    """The pinned client of a priority group."""

    group: Required[str]
    pinned_client_id: str
    pinned_ts: str


class ConsumerInfo(TypedDict, total=False):
    """The answer to CONSUMER.INFO, and an element of CONSUMER.LIST."""

    stream_name: Required[str]
    name: Required[str]
    created: Required[str]
    config: Required[ServerConsumerConfig]
    delivered: Required[SequencePair]
    ack_floor: Required[SequencePair]
    num_ack_pending: Required[int]
    num_redelivered: Required[int]
    num_waiting: Required[int]
    num_pending: Required[int]
    cluster: ClusterInfo | None
    paused: bool
    pause_remaining: int  # nanoseconds
    push_bound: bool
    priority_groups: list[PriorityGroupState]
    ts: str  # when the server answered


class PauseAnswer(TypedDict, total=False):
    """The answer to CONSUMER.PAUSE."""

    paused: Required[bool]
    pause_until: Required[str]
    pause_remaining: int  # nanoseconds; missing if it is not paused


async def stream_info(jetstream: JetStream, name: str, *, timeout: float | None = None) -> StreamInfo:
    """Return configuration and state of a stream. StreamNotFoundError.

    `cluster` has no `leader` if a follower answers, whose state may be behind: see `led_info`.
    """
    return cast("StreamInfo", await jetstream.request(f"STREAM.INFO.{name}", timeout=timeout))


async def led_info(
    jetstream: JetStream, name: str, *, created: str = "", least: int = 0, timeout: float | None = None
) -> StreamInfo:
    """Return configuration and state of a stream as its leader reports them.

    While a stream has no leader its followers answer, each with what it has: these answers are ignored. A leader that
    was cut off and replaced may report an earlier end than the stream has. So if it ends before `least`, a sequence
    that the stream created at `created` has had, this asks again for STALE_FOR seconds.

    JetStreamError if the stream has no leader for `timeout` seconds, the client's by default; StreamNotFoundError.
    """
    loop = asyncio.get_running_loop()
    stale_until = loop.time() + STALE_FOR
    while True:
        info = cast("StreamInfo", await jetstream.request(f"STREAM.INFO.{name}", timeout=timeout, led=True))
        if info["state"]["last_seq"] >= least or info["created"] != created or loop.time() >= stale_until:
            return info
        await asyncio.sleep(LOOK_AGAIN)


async def consumer_info(
    jetstream: JetStream, stream: str, consumer: str, *, timeout: float | None = None
) -> ConsumerInfo:
    """Return configuration and position of a consumer. ConsumerNotFoundError, StreamNotFoundError."""
    return cast("ConsumerInfo", await jetstream.request(f"CONSUMER.INFO.{stream}.{consumer}", timeout=timeout))


async def subject_counts(jetstream: JetStream, stream: str, pattern: str) -> tuple[dict[str, int], int]:
    """Return the number of messages of each subject that matches, and the last sequence that the stream had meanwhile.

    Reads every page of the leader's answer. StreamNotFoundError.
    """
    counts: dict[str, int] = {}
    seen, last = 0, sys.maxsize
    while True:
        body = {"subjects_filter": pattern, "offset": seen}
        answer = await jetstream.request(f"STREAM.INFO.{stream}", body, led=True)
        page = answer["state"].get("subjects") or {}
        counts |= page
        seen, last = seen + len(page), min(last, answer["state"]["last_seq"])
        if not page or seen >= answer.get("total", 0):
            return counts, last


async def stream_state(jetstream: JetStream, name: str, *, deleted: bool = False, subjects: str = "") -> StreamState:
    """Return the state of a stream as its leader reports it. StreamNotFoundError; JetStreamError if it has none.

    With `deleted`, also the sequences deleted between its first and last message; with `subjects`, a pattern, also the
    number of messages of each subject that matches.
    """
    body = ({"deleted_details": True} if deleted else {}) | ({"subjects_filter": subjects} if subjects else {})
    answer = await jetstream.request(f"STREAM.INFO.{name}", body or None, led=True)
    return cast("StreamState", answer["state"])
