"""An opinionated NATS JetStream client: durable consume and publish, key-value, leader election, TLS end to end."""

import natty.wire.nats_py  # noqa: F401  # before the rest, which imports nats-py
from natty.client import Natty, as_leader
from natty.config.settings import Config
from natty.consuming.consume import Consumption
from natty.consuming.dead_letters import (
    DeadLetterOptions,
    DeadLetters,
    Letter,
    LetterBox,
    LetterFilter,
    LetterNotFoundError,
)
from natty.consuming.options import ConsumeOptions
from natty.elections import Election, ElectionOptions, Leadership, Term
from natty.errors import (
    AuthorizationError,
    BadGroupError,
    BucketNotFoundError,
    ConfigError,
    ConnectError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    DomainUnreachableError,
    GroupExistsError,
    GroupNotFoundError,
    JetStreamError,
    JetStreamNotEnabledError,
    KeyExistsError,
    KeyNotFoundError,
    LeadershipLost,
    NattyError,
    NotConnectedError,
    PublishError,
    RequestTimeoutError,
    RevisionConflictError,
    StaleToken,
    StreamExistsError,
    StreamNotFoundError,
    TLSError,
    UnsupportedError,
    WrongLastSequenceError,
)
from natty.jetstream import JetStream, PubAck
from natty.kv import Bucket, Entry, Gone, PictureComplete, Watch
from natty.publishing.atomic import AtomicMessage
from natty.publishing.outbox import Outbox, OutboxOptions
from natty.publishing.publisher import Publisher
from natty.publishing.window import PublisherOptions
from natty.pulling.pull import Pull
from natty.pulling.requests import PullOptions
from natty.wire.message import Batch, Message

__all__ = [
    "AtomicMessage",
    "AuthorizationError",
    "BadGroupError",
    "Batch",
    "Bucket",
    "BucketNotFoundError",
    "Config",
    "ConfigError",
    "ConnectError",
    "ConsumeOptions",
    "ConsumerExistsError",
    "ConsumerNotFoundError",
    "Consumption",
    "DeadLetterOptions",
    "DeadLetters",
    "DomainUnreachableError",
    "Election",
    "ElectionOptions",
    "Entry",
    "Gone",
    "GroupExistsError",
    "GroupNotFoundError",
    "JetStream",
    "JetStreamError",
    "JetStreamNotEnabledError",
    "KeyExistsError",
    "KeyNotFoundError",
    "Leadership",
    "LeadershipLost",
    "Letter",
    "LetterBox",
    "LetterFilter",
    "LetterNotFoundError",
    "Message",
    "Natty",
    "NattyError",
    "NotConnectedError",
    "Outbox",
    "OutboxOptions",
    "PictureComplete",
    "PubAck",
    "PublishError",
    "Publisher",
    "PublisherOptions",
    "Pull",
    "PullOptions",
    "RequestTimeoutError",
    "RevisionConflictError",
    "StaleToken",
    "StreamExistsError",
    "StreamNotFoundError",
    "TLSError",
    "Term",
    "UnsupportedError",
    "Watch",
    "WrongLastSequenceError",
    "as_leader",
]
