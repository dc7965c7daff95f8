"""Every setting of a stream, a consumer and a bucket, declared once: its type, and natty's facts about it.

Python's types, the checks, the plans of changes, the command line's flags and docs/streams.md all read these classes;
the text below a setting is also its help text. A user writes durations in seconds or as text ("30s", "1h30m", "7d"),
sizes in bytes or as text ("512KB", "1GiB"). The server writes nanoseconds and bytes: `info.py` has the types of its
documents. Source: nats-server's API schema (stream and consumer configuration), tested on 2.15.
"""

import ast
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, TypedDict

from natty.streams import changes
from natty.streams.changes import NO_WAY_BACK, OLDER, Judge, destructive, raised

Duration = float | str
"""Seconds, or text: "500ms", "30s", "1h30m", "7d"."""
Size = int | str
"""Bytes, or text: "512KB", "1GiB"; units are powers of 1024."""
Texts = list[str] | tuple[str, ...]
Retention = Literal["limits", "interest", "workqueue"]
Storage = Literal["file", "memory"]
Discard = Literal["old", "new"]
Compression = Literal["none", "s2"]
PersistMode = Literal["default", "async"]
AckPolicy = Literal["explicit", "all", "none"]
DeliverPolicy = Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"]
ReplayPolicy = Literal["instant", "original"]
PriorityPolicy = Literal["none", "overflow", "pinned_client", "prioritized"]


@dataclass(frozen=True)
class Setting:
    """The facts about one setting, besides its name, its type and the text below it."""

    judge: Judge = changes.unknown
    """The judge of its changes."""
    flag: str = ""
    """Its flag, without the dashes; by default its own name."""
    without_flag: str = ""
    """Why it has no flag."""
    unlimited: bool = False
    """Whether 0 and -1 mean no limit."""
    least: int | None = None
    """The smallest number that the command line takes."""
    editable: bool = True
    """Whether `edit` has the flag, too."""
    negated: bool = False
    """Whether the flag says the opposite."""
    metavar: str = ""
    """Name of the value in a help text; by default from its type."""


class Placement(TypedDict, total=False):
    """The servers on which a cluster places the replicas of a stream."""

    # fmt: off
    cluster: Annotated[str, Setting()]
    """Cluster to place the stream in."""
    tags: Annotated[Texts, Setting(flag="tag")]
    """Tags that a server must have to hold the stream."""
    # fmt: on


class SubjectTransform(TypedDict, total=False):
    """A pattern of subjects, and the subject under which its messages are stored."""

    # fmt: off
    src: Annotated[str, Setting(flag="transform-source")]
    """Pattern of the subjects to rename."""
    dest: Annotated[str, Setting(flag="transform-destination")]
    """Subject under which renamed messages are stored."""
    # fmt: on


class Republish(TypedDict, total=False):
    """A pattern of stored subjects, and the subject on which the server publishes their messages again."""

    # fmt: off
    src: Annotated[str, Setting(flag="republish-source")]
    """Pattern of subjects whose stored messages are published again."""
    dest: Annotated[str, Setting(flag="republish-destination")]
    """Subject on which stored messages are published again."""
    headers_only: Annotated[bool, Setting(flag="republish-headers")]
    """Publish only the headers again, without payloads. Default: off."""
    # fmt: on


class ConsumerLimits(TypedDict, total=False):
    """The limits and defaults of the consumers of a stream."""

    # fmt: off
    inactive_threshold: Annotated[Duration, Setting(flag="limit-consumer-inactive", editable=False)]
    """Longest time that a consumer may be inactive, in seconds or as text such as 1h."""
    max_ack_pending: Annotated[int, Setting(flag="limit-consumer-max-pending", unlimited=True, editable=False)]
    """Maximum number of unacknowledged messages of a consumer."""
    # fmt: on


class ExternalStream(TypedDict, total=False):
    """The API of another domain or account."""

    api: str  # prefix of its subjects, such as "$JS.hub.API"
    deliver: str  # prefix of the subjects that its messages arrive on


class StreamSource(TypedDict, total=False):
    """A stream whose messages another one copies, and which of them."""

    name: str
    opt_start_seq: int
    opt_start_time: str  # RFC 3339
    filter_subject: str
    subject_transforms: list[SubjectTransform]
    external: ExternalStream


class StreamConfig(TypedDict, total=False):
    """The settings of a stream, by the server's names. Other settings keep the server's default."""

    # fmt: off
    description: Annotated[str, Setting(changes.always)]
    """Description of the stream."""
    subjects: Annotated[Texts, Setting(changes.subjects)]
    """Subjects to store; wildcards are allowed."""
    retention: Annotated[Retention, Setting(changes.retention)]
    """limits, interest, or workqueue for a work queue. Default: limits."""
    storage: Annotated[Storage, Setting(changes.fixed, editable=False)]
    """file or memory. Default: file."""
    discard: Annotated[Discard, Setting(
        destructive("at a limit, the one deletes the oldest messages and the other refuses new ones"))]
    """At a limit, old to delete the oldest messages or new to refuse new ones. Default: old."""
    discard_new_per_subject: Annotated[bool, Setting(flag="discard-per-subject")]
    """With discard new, refuse new messages of each subject at its limit. Default: off."""
    compression: Annotated[Compression, Setting(changes.always)]
    """none or s2. Default: none."""
    num_replicas: Annotated[int, Setting(
        raised("fewer copies survive the loss of servers", unlimited=False), flag="replicas", least=1)]
    """Number of replicas, 1 to 5. Default: 1."""
    max_msgs: Annotated[int, Setting(raised(OLDER), unlimited=True)]
    """Maximum number of messages. Default: no limit."""
    max_msgs_per_subject: Annotated[int, Setting(raised(OLDER), unlimited=True)]
    """Maximum number of messages per subject. Default: no limit."""
    max_bytes: Annotated[Size, Setting(raised(OLDER), unlimited=True)]
    """Maximum size of all messages, in bytes or as text such as 1GiB. Default: no limit."""
    max_age: Annotated[Duration, Setting(raised(OLDER), unlimited=True)]
    """Maximum age of a message, in seconds or as text such as 7d. Default: no limit."""
    max_msg_size: Annotated[Size, Setting(raised("larger messages would be refused"), unlimited=True)]
    """Maximum size of one message, in bytes or as text such as 64KB. Default: no limit."""
    max_consumers: Annotated[int, Setting(raised("new consumers would be refused"), unlimited=True)]
    """Maximum number of consumers. Default: no limit."""
    duplicate_window: Annotated[Duration, Setting(
        raised("messages repeated after the shorter time would be stored twice", unlimited=False), flag="dupe-window")]
    """How long the server remembers message ids, in seconds or as text such as 2m. Default: 2m."""
    first_seq: Annotated[int, Setting(changes.fixed, flag="first-sequence", least=1, editable=False)]
    """Sequence of the first message. Default: 1."""
    allow_direct: Annotated[bool, Setting(changes.switched_on)]
    """Let every replica answer reads of single messages. Default: off."""
    mirror_direct: Annotated[bool, Setting(changes.switched_on, flag="allow-mirror-direct")]
    """Let mirrors answer reads of single messages. Default: off."""
    allow_atomic: Annotated[bool, Setting(changes.switched_on, flag="allow-batch")]
    """Accept atomic batches: all messages are stored, or none. Needs nats-server 2.12. Default: off."""
    allow_batched: Annotated[bool, Setting(changes.switched_on, flag="allow-fast-ingest")]
    """Accept fast ingest: one ack for many messages. Needs nats-server 2.14. Default: off."""
    allow_msg_counter: Annotated[bool, Setting(changes.fixed, flag="allow-counter")]
    """Make each subject a counter. Needs nats-server 2.12. Default: off."""
    allow_msg_ttl: Annotated[bool, Setting(changes.on_for_ever)]
    """Accept messages with their own time to live. Needs nats-server 2.11. Default: off."""
    allow_msg_schedules: Annotated[bool, Setting(changes.on_for_ever, flag="allow-schedules")]
    """Accept messages that the server publishes later; never switched off. Needs nats-server 2.12. Default: off."""
    allow_rollup_hdrs: Annotated[bool, Setting(
        destructive("it decides whether a publisher can delete what is stored"), flag="allow-rollup")]
    """Accept messages that replace all earlier ones. Default: off."""
    deny_delete: Annotated[bool, Setting(changes.denies(NO_WAY_BACK))]
    """Refuse to delete single messages; cannot be switched off again. Default: off."""
    deny_purge: Annotated[bool, Setting(changes.denies(NO_WAY_BACK))]
    """Refuse to purge; cannot be switched off again. Default: off."""
    sealed: Annotated[bool, Setting(
        changes.denies("nothing can be stored in it any more"),
        without_flag="a new stream cannot be sealed, and a sealed one cannot be opened again")]
    """Refuse all new messages and changes. Default: off."""
    no_ack: Annotated[bool, Setting(flag="ack", negated=True)]
    """Do not acknowledge published messages. Default: off."""
    subject_delete_marker_ttl: Annotated[Duration, Setting(flag="subject-del-markers-ttl")]
    """How long the server keeps a marker where a subject's last message expired, in seconds or as text such as 1m.
    Needs nats-server 2.11. Default: no markers."""
    persist_mode: Annotated[PersistMode, Setting(changes.fixed, editable=False)]
    """default, or async to flush to disk later. Needs nats-server 2.12. Default: default."""
    metadata: Annotated[dict[str, str], Setting(changes.always)]
    """Metadata as name=value."""
    placement: Annotated[Placement, Setting(destructive("its messages move to other servers"))]
    """Placement of its replicas."""
    republish: Annotated[Republish, Setting(destructive("subscribers get messages they do not expect, or miss them"))]
    """Messages that the server publishes again."""
    subject_transform: Annotated[SubjectTransform, Setting(
        destructive("messages are stored on other subjects than today"))]
    """Rule that renames subjects."""
    consumer_limits: Annotated[ConsumerLimits, Setting()]
    """Limits of its consumers."""
    mirror: Annotated[StreamSource, Setting(changes.fixed)]
    """Stream to mirror."""
    sources: Annotated[list[StreamSource], Setting(
        destructive("messages of other streams are added, or no longer added"), flag="source")]
    """Streams whose messages are copied into this one."""
    # fmt: on


class ConsumerConfig(TypedDict, total=False):
    """The settings of a durable pull consumer, by the server's names. Other settings keep natty's default."""

    # fmt: off
    description: Annotated[str, Setting(changes.always)]
    """Description of the consumer."""
    filter_subjects: Annotated[Texts, Setting(
        destructive("messages it has skipped are not delivered later, and filtered ones never"), flag="filter")]
    """Subjects to deliver; wildcards are allowed. Default: all."""
    filter_subject: Annotated[str, Setting(without_flag="--filter takes one subject, too")]
    """Subject to deliver; the same as `filter_subjects` with one. Default: all."""
    ack_policy: Annotated[AckPolicy, Setting(changes.fixed, flag="ack", editable=False)]
    """explicit, all or none. Default: explicit."""
    ack_wait: Annotated[Duration, Setting(
        raised("messages still being handled would be delivered a second time", unlimited=False), flag="wait")]
    """Time after which an unacknowledged message is delivered again, in seconds or as text such as 1m. Default: 30s."""
    backoff: Annotated[list[Duration] | tuple[Duration, ...], Setting(
        destructive("messages still being handled could be delivered a second time"))]
    """Delays before each further delivery, in seconds or as text such as 10s. Default: `ack_wait`, always."""
    max_deliver: Annotated[int, Setting(
        raised("messages would be abandoned after fewer deliveries"), unlimited=True, least=-1)]
    """Maximum number of deliveries of a message; -1: no limit. Default: -1."""
    max_ack_pending: Annotated[int, Setting(raised("fast readers stall"), flag="max-pending", unlimited=True, least=-1)]
    """Maximum number of unacknowledged messages; -1: no limit. Default: 1000."""
    max_waiting: Annotated[int, Setting(changes.fixed, least=1, editable=False)]
    """Maximum number of requests that wait at the same time. Default: 512."""
    max_batch: Annotated[int, Setting(raised("larger requests would be refused"), flag="max-pull-batch", least=1)]
    """Maximum number of messages of one request. Default: no limit."""
    max_bytes: Annotated[Size, Setting(raised("larger requests would be refused"), flag="max-pull-bytes")]
    """Maximum size of one request, in bytes or as text such as 1MB. Default: no limit."""
    max_expires: Annotated[Duration, Setting(raised("longer requests would be refused"), flag="max-pull-expire")]
    """Longest time that a request may wait, in seconds or as text such as 30s. Default: no limit."""
    deliver_policy: Annotated[DeliverPolicy, Setting(changes.fixed, flag="deliver", metavar="START", editable=False)]
    """Position to start at. Default: all."""
    opt_start_seq: Annotated[int, Setting(changes.fixed, without_flag="--deliver names it")]
    """First sequence, with deliver_policy by_start_sequence."""
    opt_start_time: Annotated[str, Setting(changes.fixed, without_flag="--deliver names it")]
    """Time of the first message, RFC 3339, with deliver_policy by_start_time."""
    replay_policy: Annotated[ReplayPolicy, Setting(changes.fixed, flag="replay", editable=False)]
    """instant, or original for the pace at which messages arrived. Default: instant."""
    sample_freq: Annotated[str, Setting(changes.always, flag="sample")]
    """Percentage of acks that the server reports. Default: 0."""
    headers_only: Annotated[bool, Setting(destructive("handlers get unexpected payloads, or none"))]
    """Deliver headers without payloads. Default: off."""
    inactive_threshold: Annotated[Duration, Setting(raised("it would be deleted sooner while it has no readers"))]
    """Delete the consumer after this time without readers, in seconds or as text such as 1h. Default: never."""
    num_replicas: Annotated[int, Setting(
        raised("fewer copies survive the loss of servers", unlimited=False), flag="replicas", least=1)]
    """Number of replicas. Default: the stream's."""
    mem_storage: Annotated[bool, Setting(changes.fixed, flag="memory", editable=False)]
    """Keep its position in memory only. Default: off."""
    priority_groups: Annotated[Texts, Setting(
        without_flag="--pinned-groups, --overflow-groups and --prioritized-groups name them and the policy")]
    """Names of its priority groups (ADR-42). Needs nats-server 2.11."""
    priority_policy: Annotated[PriorityPolicy, Setting(
        without_flag="--pinned-groups, --overflow-groups and --prioritized-groups name them and the policy")]
    """Rule that chooses the client within a priority group. Needs nats-server 2.11. Default: none."""
    priority_timeout: Annotated[Duration, Setting(flag="pinned-ttl", editable=False)]
    """Time after which a silent pinned client is replaced, in seconds or as text such as 2m. Needs nats-server 2.11."""
    metadata: Annotated[dict[str, str], Setting(changes.always)]
    """Metadata as name=value."""
    pause_until: Annotated[str, Setting(flag="pause", metavar="UNTIL", editable=False)]
    """Time until which a new consumer delivers no messages, RFC 3339. Needs nats-server 2.11."""
    # fmt: on


class BucketConfig(StreamConfig, total=False):
    """The settings of a key-value bucket: its own, and those of its stream."""

    # fmt: off
    ttl: Annotated[Duration, Setting()]
    """Time to live of every key, in seconds or as text such as 7d. Default: no limit."""
    history: Annotated[int, Setting(least=1)]
    """Number of values to keep per key, 1 to 64. Default: 1."""
    replicas: Annotated[int, Setting(least=1)]
    """Number of replicas. Default: 3 on a cluster, otherwise 1."""
    marker_ttl: Annotated[Duration, Setting()]
    """How long the marker of an expired key stays, in seconds or as text such as 1m; with history, also the shortest
    TTL of a key. Default: 60s, with history 1s."""
    # fmt: on


def rows(kind: Any) -> Mapping[str, tuple[Any, Setting]]:
    """Return name → (type, setting) of each declared setting of a class here, in the order of declaration."""
    return {
        name: (hint.__origin__, hint.__metadata__[0])
        for name, hint in kind.__annotations__.items()
        if hasattr(hint, "__metadata__")
    }


@cache
def texts(kind: Any) -> Mapping[str, str]:
    """Return name → the text below each setting of a class here, on one line; empty if the source is missing."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[__name__]))
    except OSError:
        return {}
    body = next(one.body for one in tree.body if isinstance(one, ast.ClassDef) and one.name == kind.__name__)
    return {
        field.target.id: " ".join(str(below.value.value).split())
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def with_version(name: str) -> str:
    """Return a setting with the version that it needs, where it is not every version's: "allow_batched (2.14)"."""
    text = texts(StreamConfig).get(name) or texts(ConsumerConfig).get(name, "")
    needed = re.search(r"Needs nats-server ([0-9.]+[0-9])", text)
    return f"{name} ({needed[1]})" if needed else name
