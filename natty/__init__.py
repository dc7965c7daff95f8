"""An opinionated NATS JetStream client: durable consume and publish, key-value, leader election, TLS end to end."""

import natty.nats_py  # noqa: F401  # before the rest, which imports nats-py
from natty.atomic import AtomicMessage
from natty.client import Natty, as_leader
from natty.config import Config
from natty.consume import ConsumeOptions, Consumption
from natty.deadletter import DeadLetterOptions, DeadLetters, Letter, LetterBox, LetterFilter, LetterNotFoundError
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
from natty.leader import Election, ElectionOptions, Leadership, Term
from natty.message import Batch, Message
from natty.outbox import Outbox, OutboxOptions
from natty.publish import Publisher
from natty.pull import Pull, PullOptions
from natty.window import PublisherOptions

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
