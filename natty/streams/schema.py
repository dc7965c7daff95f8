"""Every setting of a stream, a consumer and a bucket, declared once: its type, and what natty knows about it.

Python's types, the checks, the plans of changes, the command line's flags and docs/streams.md all read these classes.
A user writes durations in seconds or as text ("30s", "1h30m", "7d"), sizes in bytes or as text ("512KB", "1GiB"). The
server writes nanoseconds and bytes: its own documents are the types of `info.py`.
Facts: nats-server's API schema (stream and consumer configuration), tried on 2.15; `since` is the first version that
keeps the setting.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
    """What there is to know of one setting, beside its name and type."""

    help: str
    """A noun phrase, with an example where it has a unit."""
    judge: Judge = changes.unknown
    """What a change of it may break."""
    default: str = ""
    """What the server takes where it is not named; natty's own choice for a consumer's `ack_wait` and limits."""
    flag: str = ""
    """Its flag, without the dashes; its own name by default."""
    without_flag: str = ""
    """Why it has no flag of its own."""
    unlimited: bool = False
    """Whether 0 and -1 mean no limit."""
    least: int | None = None
    """The smallest number that the command line takes."""
    editable: bool = True
    """Whether `edit` has the flag, too."""
    negated: bool = False
    """Whether the flag says the opposite."""
    metavar: str = ""
    """What the value is called in a help text; by its type by default."""
    since: str = ""
    """The first nats-server that keeps it, where that is later than 2.10."""


class Placement(TypedDict, total=False):
    """Where a cluster puts the replicas of a stream."""

    # fmt: off
    cluster: Annotated[str, Setting("Cluster to place the stream in")]
    tags: Annotated[Texts, Setting("Tag that a server must have to hold the stream", flag="tag")]
    # fmt: on


class SubjectTransform(TypedDict, total=False):
    """A pattern of subjects, and the subject under which its messages are stored."""

    # fmt: off
    src: Annotated[str, Setting("Pattern of the subjects to rename", flag="transform-source")]
    dest: Annotated[str, Setting("Subject under which renamed messages are stored", flag="transform-destination")]
    # fmt: on


class Republish(TypedDict, total=False):
    """A pattern of stored subjects, and the subject on which the server publishes their messages again."""

    # fmt: off
    src: Annotated[str, Setting(
        "Pattern of subjects whose stored messages are published again", flag="republish-source")]
    dest: Annotated[str, Setting("Subject on which stored messages are published again", flag="republish-destination")]
    headers_only: Annotated[bool, Setting("Publish only the headers again, without payloads", flag="republish-headers")]
    # fmt: on


class ConsumerLimits(TypedDict, total=False):
    """What the consumers of a stream may ask for at most, and what they get by default."""

    # fmt: off
    inactive_threshold: Annotated[int, Setting(  # nanoseconds
        "Longest time that a consumer may be inactive",
        flag="limit-consumer-inactive", metavar="DURATION", editable=False)]
    max_ack_pending: Annotated[int, Setting(
        "Maximum number of unacknowledged messages of a consumer",
        flag="limit-consumer-max-pending", unlimited=True, editable=False)]
    # fmt: on


class ExternalStream(TypedDict, total=False):
    """How the API of another domain or account is reached."""

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
    """The settings of a stream, by the server's names. What is not named keeps the server's default."""

    # fmt: off
    description: Annotated[str, Setting("Description of the stream", changes.always)]
    subjects: Annotated[Texts, Setting("Subjects to store, separated by commas; wildcards allowed", changes.subjects)]
    retention: Annotated[Retention, Setting(
        "limits, interest, or work for a work queue", changes.retention, default="limits")]
    storage: Annotated[Storage, Setting(
        "file or memory", changes.fixed, editable=False, default="file")]
    discard: Annotated[Discard, Setting(
        "At a limit, old to delete the oldest messages or new to refuse new ones",
        destructive("at a limit, the one deletes the oldest messages and the other refuses new ones"), default="old")]
    discard_new_per_subject: Annotated[bool, Setting(
        "With --discard new, refuse new messages of each subject at its limit", flag="discard-per-subject")]
    compression: Annotated[Compression, Setting("none or s2", changes.always, default="none")]
    num_replicas: Annotated[int, Setting(
        "Number of replicas, 1 to 5",
        raised("fewer copies survive the loss of servers", unlimited=False), flag="replicas", least=1, default="1")]
    max_msgs: Annotated[int, Setting("Maximum number of messages", raised(OLDER), unlimited=True)]
    max_msgs_per_subject: Annotated[int, Setting(
        "Maximum number of messages of each subject", raised(OLDER), unlimited=True)]
    max_bytes: Annotated[Size, Setting("Maximum size of all messages, such as 1GiB", raised(OLDER), unlimited=True)]
    max_age: Annotated[Duration, Setting("Maximum age of a message, such as 7d", raised(OLDER), unlimited=True)]
    max_msg_size: Annotated[Size, Setting(
        "Maximum size of one message, such as 64KB", raised("larger messages would be refused"), unlimited=True)]
    max_consumers: Annotated[int, Setting(
        "Maximum number of consumers", raised("new consumers would be refused"), unlimited=True)]
    duplicate_window: Annotated[Duration, Setting(
        "How long the server remembers message ids, such as 2m",
        raised("repeated messages that come later than it would be stored twice", unlimited=False),
        flag="dupe-window", default="2m")]
    first_seq: Annotated[int, Setting(
        "Sequence of the first message", changes.fixed, flag="first-sequence", least=1, editable=False)]
    allow_direct: Annotated[bool, Setting("Let every replica answer reads of single messages", changes.switched_on)]
    mirror_direct: Annotated[bool, Setting(
        "Let mirrors answer reads of single messages", changes.switched_on, flag="allow-mirror-direct")]
    allow_atomic: Annotated[bool, Setting(
        "Accept atomic batches: all messages are stored, or none",
        changes.switched_on, flag="allow-batch", since="2.12")]
    allow_batched: Annotated[bool, Setting(
        "Accept fast ingest: one ack for many messages", changes.switched_on, flag="allow-fast-ingest", since="2.14")]
    allow_msg_counter: Annotated[bool, Setting(
        "Make each subject a counter", changes.fixed, flag="allow-counter", since="2.12")]
    allow_msg_ttl: Annotated[bool, Setting(
        "Accept messages with a time to live of their own", changes.on_for_ever, since="2.11")]
    allow_msg_schedules: Annotated[bool, Setting(
        "Accept messages that the server publishes later", changes.switched_on, flag="allow-schedules", since="2.12")]
    allow_rollup_hdrs: Annotated[bool, Setting(
        "Accept messages that replace all earlier ones",
        destructive("it decides whether a publisher can delete what is stored"), flag="allow-rollup")]
    deny_delete: Annotated[bool, Setting(
        "Refuse to delete single messages; cannot be switched off again", changes.denies(NO_WAY_BACK))]
    deny_purge: Annotated[bool, Setting("Refuse to purge; cannot be switched off again", changes.denies(NO_WAY_BACK))]
    sealed: Annotated[bool, Setting(
        "Store nothing any more",
        changes.denies("nothing can be stored in it ever again"),
        without_flag="a new stream cannot be sealed, and a sealed one cannot be opened again")]
    no_ack: Annotated[bool, Setting("Acknowledge published messages", flag="ack", negated=True, default="on")]
    subject_delete_marker_ttl: Annotated[Duration, Setting(
        "How long the server keeps a marker where a subject's last message expired, such as 1m",
        flag="subject-del-markers-ttl", since="2.11")]
    persist_mode: Annotated[PersistMode, Setting(
        "default, or async to flush to disk later", changes.fixed, editable=False, since="2.12")]
    metadata: Annotated[dict[str, str], Setting("Metadata as name=value", changes.always)]
    placement: Annotated[Placement, Setting(
        "Where its replicas are", destructive("its messages move to other servers"))]
    republish: Annotated[Republish, Setting(
        "What the server publishes again", destructive("subscribers get messages they do not expect, or miss them"))]
    subject_transform: Annotated[SubjectTransform, Setting(
        "How subjects are renamed", destructive("messages are stored on other subjects than today"))]
    consumer_limits: Annotated[ConsumerLimits, Setting("Limits of its consumers")]
    mirror: Annotated[StreamSource, Setting("Stream of the same account to mirror", changes.fixed)]
    sources: Annotated[list[StreamSource], Setting(
        "Stream whose messages are copied into this one",
        destructive("messages of other streams are added, or stay away"), flag="source")]
    # fmt: on


class ConsumerConfig(TypedDict, total=False):
    """The settings of a durable pull consumer, by the server's names. What is not named keeps natty's default."""

    # fmt: off
    description: Annotated[str, Setting("Description of the consumer", changes.always)]
    filter_subjects: Annotated[Texts, Setting(
        "Subjects to deliver, separated by commas",
        destructive("what it has passed over is not delivered later, and what is filtered out never"), flag="filter")]
    filter_subject: Annotated[str, Setting("Subject to deliver", without_flag="--filter takes one subject, too")]
    ack_policy: Annotated[AckPolicy, Setting(
        "explicit, all or none", changes.fixed, flag="ack", editable=False, default="explicit")]
    ack_wait: Annotated[Duration, Setting(
        "Time after which an unacknowledged message is delivered again",
        raised("messages still being handled would be delivered a second time", unlimited=False),
        flag="wait", default="30s")]
    backoff: Annotated[list[Duration] | tuple[Duration, ...], Setting(
        "Delays before each further delivery: 1s,10s,1m, or linear, or none",
        destructive("messages still being handled could be delivered a second time"))]
    max_deliver: Annotated[int, Setting(
        "Maximum number of deliveries of a message",
        raised("messages would be given up after fewer deliveries"), unlimited=True, least=-1, default="-1")]
    max_ack_pending: Annotated[int, Setting(
        "Maximum number of unacknowledged messages",
        raised("fast readers stall"), flag="max-pending", unlimited=True, least=-1, default="1000")]
    max_waiting: Annotated[int, Setting(
        "Maximum number of requests that wait at the same time", changes.fixed, least=1, editable=False, default="512")]
    max_batch: Annotated[int, Setting(
        "Maximum number of messages of one request",
        raised("larger requests would be refused"), flag="max-pull-batch", least=1)]
    max_bytes: Annotated[Size, Setting(
        "Maximum size of one request, such as 1MB", raised("larger requests would be refused"), flag="max-pull-bytes")]
    max_expires: Annotated[Duration, Setting(
        "Longest time that a request may wait, such as 30s",
        raised("longer requests would be refused"), flag="max-pull-expire")]
    deliver_policy: Annotated[DeliverPolicy, Setting(
        "Where to start: all, new, last, subject, a sequence, 1h, or a time",
        changes.fixed, flag="deliver", metavar="START", editable=False, default="all")]
    opt_start_seq: Annotated[int, Setting("First sequence", changes.fixed, without_flag="--deliver names it")]
    opt_start_time: Annotated[str, Setting(
        "Time of the first message, RFC 3339", changes.fixed, without_flag="--deliver names it")]
    replay_policy: Annotated[ReplayPolicy, Setting(
        "instant, or original for the pace at which messages arrived",
        changes.fixed, flag="replay", editable=False, default="instant")]
    sample_freq: Annotated[str, Setting("Percentage of acks that the server reports", changes.always, flag="sample")]
    headers_only: Annotated[bool, Setting(
        "Deliver headers without payloads", destructive("handlers get payloads, or none, that they do not expect"))]
    inactive_threshold: Annotated[Duration, Setting(
        "Delete the consumer after this time without readers, such as 1h",
        raised("it would be deleted sooner while nobody reads"))]
    num_replicas: Annotated[int, Setting(
        "Number of replicas",
        raised("fewer copies survive the loss of servers", unlimited=False),
        flag="replicas", least=1, default="the stream's")]
    mem_storage: Annotated[bool, Setting(
        "Keep its position in memory only", changes.fixed, flag="memory", editable=False)]
    priority_groups: Annotated[Texts, Setting(
        "Names of its priority groups (ADR-42)",
        without_flag="--pinned-groups, --overflow-groups and --prioritized-groups name them and the policy",
        since="2.11")]
    priority_policy: Annotated[PriorityPolicy, Setting(
        "Who gets messages within a priority group",
        without_flag="--pinned-groups, --overflow-groups and --prioritized-groups name them and the policy",
        since="2.11")]
    priority_timeout: Annotated[Duration, Setting(
        "Time after which a silent pinned client is replaced, such as 2m",
        flag="pinned-ttl", editable=False, since="2.11")]
    metadata: Annotated[dict[str, str], Setting("Metadata as name=value", changes.always)]
    pause_until: Annotated[str, Setting(  # RFC 3339
        "Time until which a new consumer delivers nothing, or a duration such as 1h",
        flag="pause", metavar="UNTIL", editable=False, since="2.11")]
    # fmt: on


class BucketConfig(StreamConfig, total=False):
    """The settings of a key-value bucket: its own, and those of its stream."""

    # fmt: off
    ttl: Annotated[Duration, Setting("Time to live of every key, such as 7d", default="no limit")]
    history: Annotated[int, Setting("Number of values to keep of a key, 1 to 64", least=1, default="1")]
    replicas: Annotated[int, Setting("Number of replicas", least=1, default="3 on a cluster, else 1")]
    marker_ttl: Annotated[Duration, Setting(
        "How long the marker of an expired key stays, and with history the shortest TTL of a key",
        default="60s, with history 1s")]
    # fmt: on


def rows(kind: Any) -> Mapping[str, tuple[Any, Setting]]:
    """Return name → (type, setting) of each declared setting of a class here, in the order of the declaration."""
    return {
        name: (hint.__origin__, hint.__metadata__[0])
        for name, hint in kind.__annotations__.items()
        if hasattr(hint, "__metadata__")
    }
