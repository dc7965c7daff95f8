"""An opinionated NATS JetStream client: durable consume and publish, key-value, leader election, TLS end to end."""

from natty.client import Natty, as_leader
from natty.config.settings import Config
from natty.consuming.bodies import BodyError
from natty.consuming.consume import Consumption
from natty.consuming.dead_letters import (
    BadAdvisoryError,
    BadLetterError,
    DeadLetterOptions,
    DeadLetters,
    Letter,
    LetterBox,
    LetterFilter,
    LetterNotFoundError,
)
from natty.consuming.handler import HandlerTimeoutError
from natty.consuming.options import ConsumeOptions
from natty.elections import Election, ElectionOptions, Leadership, Term
from natty.errors import (
    AuthorizationError,
    BadGroupError,
    BadRecordError,
    BadSubjectError,
    BucketNotFoundError,
    ConfigError,
    ConnectError,
    ConnectionClosedError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    DomainUnreachableError,
    GroupExistsError,
    GroupNotFoundError,
    JetStreamError,
    JetStreamNotEnabledError,
    KeyExistsError,
    KeyNotFoundError,
    LeadershipLostError,
    NattyError,
    NoRespondersError,
    NotConnectedError,
    PayloadTooLargeError,
    PublishError,
    RequestTimeoutError,
    RevisionConflictError,
    SessionEndedError,
    StaleTokenError,
    StreamExistsError,
    StreamNotFoundError,
    TLSClosedError,
    TLSError,
    TLSHandshakeError,
    TLSRequiredError,
    UnsupportedError,
    WrongLastSequenceError,
)
from natty.groups import TooManyDeliveriesError
from natty.jetstream import JetStream, PubAck
from natty.kv import BadKeyError, Bucket, Entry, Gone, PictureComplete, Watch
from natty.names import BadNameError
from natty.publishing.atomic import AtomicMessage
from natty.publishing.outbox import Outbox, OutboxOptions
from natty.publishing.publisher import Publisher
from natty.publishing.window import PublisherOptions
from natty.pulling.pull import Pull
from natty.pulling.requests import PullOptions
from natty.streams import MessageNotFoundError, PurgeRefusedError
from natty.streams.mirror import PromotionRefusedError
from natty.templates import TemplateNotFoundError
from natty.wire.message import Batch, Message

__all__ = [
    "AtomicMessage",
    "AuthorizationError",
    "BadAdvisoryError",
    "BadGroupError",
    "BadKeyError",
    "BadLetterError",
    "BadNameError",
    "BadRecordError",
    "BadSubjectError",
    "Batch",
    "BodyError",
    "Bucket",
    "BucketNotFoundError",
    "Config",
    "ConfigError",
    "ConnectError",
    "ConnectionClosedError",
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
    "HandlerTimeoutError",
    "JetStream",
    "JetStreamError",
    "JetStreamNotEnabledError",
    "KeyExistsError",
    "KeyNotFoundError",
    "Leadership",
    "LeadershipLostError",
    "Letter",
    "LetterBox",
    "LetterFilter",
    "LetterNotFoundError",
    "Message",
    "MessageNotFoundError",
    "Natty",
    "NattyError",
    "NoRespondersError",
    "NotConnectedError",
    "Outbox",
    "OutboxOptions",
    "PayloadTooLargeError",
    "PictureComplete",
    "PromotionRefusedError",
    "PubAck",
    "PublishError",
    "Publisher",
    "PublisherOptions",
    "Pull",
    "PullOptions",
    "PurgeRefusedError",
    "RequestTimeoutError",
    "RevisionConflictError",
    "SessionEndedError",
    "StaleTokenError",
    "StreamExistsError",
    "StreamNotFoundError",
    "TLSClosedError",
    "TLSError",
    "TLSHandshakeError",
    "TLSRequiredError",
    "TemplateNotFoundError",
    "Term",
    "TooManyDeliveriesError",
    "UnsupportedError",
    "Watch",
    "WrongLastSequenceError",
    "as_leader",
]
