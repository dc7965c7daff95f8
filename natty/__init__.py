"""An opinionated NATS JetStream client: durable consume and publish, key-value, leader election, TLS end to end."""

from natty.client import Natty, as_leader
from natty.config import Config
from natty.consume import ConsumeOptions, Consumption
from natty.errors import (
    AuthorizationError,
    BucketNotFoundError,
    ConfigError,
    ConnectError,
    ConsumerExistsError,
    ConsumerNotFoundError,
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
from natty.kv import Bucket, Entry
from natty.leader import Election, ElectionOptions, Term
from natty.message import Batch, Message
from natty.publish import Publisher, PublisherOptions
from natty.pull import Pull, PullOptions

__all__ = [
    "AuthorizationError",
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
    "Election",
    "ElectionOptions",
    "Entry",
    "JetStream",
    "JetStreamError",
    "JetStreamNotEnabledError",
    "KeyExistsError",
    "KeyNotFoundError",
    "LeadershipLost",
    "Message",
    "Natty",
    "NattyError",
    "NotConnectedError",
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
    "WrongLastSequenceError",
    "as_leader",
]
