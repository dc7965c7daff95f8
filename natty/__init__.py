"""An opinionated NATS JetStream client: durable consume and publish, key-value, leader election, TLS end to end."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `X as X` exports a name
    from natty.client import Natty as Natty, as_leader as as_leader
    from natty.config.settings import Config as Config, ConnectionSettings as ConnectionSettings
    from natty.consuming.handler import BodyError as BodyError
    from natty.consuming.consume import Consumption as Consumption
    from natty.consuming.dead_letters import (
        BadAdvisoryError as BadAdvisoryError,
        BadLetterError as BadLetterError,
        DeadLetterOptions as DeadLetterOptions,
        DeadLetters as DeadLetters,
        Letter as Letter,
        LetterBox as LetterBox,
        LetterFilter as LetterFilter,
        LetterNotFoundError as LetterNotFoundError,
        TerminatedError as TerminatedError,
    )
    from natty.consuming.handler import Handler as Handler, HandlerTimeoutError as HandlerTimeoutError
    from natty.consuming.messaging import (
        CoreMessage as CoreMessage,
        CoreSubscription as CoreSubscription,
        Responder as Responder,
    )
    from natty.consuming.options import ConsumeOptions as ConsumeOptions, ConsumeSettings as ConsumeSettings
    from natty.consuming.reports import (
        HandlerCancelledError as HandlerCancelledError,
        NextStep as NextStep,
        OnError as OnError,
    )
    from natty.elections import (
        Election as Election,
        ElectionOptions as ElectionOptions,
        ElectionSettings as ElectionSettings,
        Leadership as Leadership,
        Term as Term,
    )
    from natty.errors import (
        AuthorizationError as AuthorizationError,
        BadGroupError as BadGroupError,
        BadRecordError as BadRecordError,
        BadSubjectError as BadSubjectError,
        BucketNotFoundError as BucketNotFoundError,
        ConfigError as ConfigError,
        ConnectError as ConnectError,
        ConnectionClosedError as ConnectionClosedError,
        ConsumerExistsError as ConsumerExistsError,
        ConsumerNotFoundError as ConsumerNotFoundError,
        DomainUnreachableError as DomainUnreachableError,
        GroupExistsError as GroupExistsError,
        GroupNotFoundError as GroupNotFoundError,
        JetStreamError as JetStreamError,
        JetStreamNotEnabledError as JetStreamNotEnabledError,
        KeyExistsError as KeyExistsError,
        KeyNotFoundError as KeyNotFoundError,
        LeadershipLostError as LeadershipLostError,
        NattyError as NattyError,
        NoRespondersError as NoRespondersError,
        NotConnectedError as NotConnectedError,
        PayloadTooLargeError as PayloadTooLargeError,
        PublishError as PublishError,
        RequestTimeoutError as RequestTimeoutError,
        RevisionConflictError as RevisionConflictError,
        SessionEndedError as SessionEndedError,
        StaleTokenError as StaleTokenError,
        StreamExistsError as StreamExistsError,
        StreamNotFoundError as StreamNotFoundError,
        TLSClosedError as TLSClosedError,
        TLSError as TLSError,
        TLSHandshakeError as TLSHandshakeError,
        TLSRequiredError as TLSRequiredError,
        UnsupportedError as UnsupportedError,
        ThreadsEndedError as ThreadsEndedError,
        WrongLoopError as WrongLoopError,
        WrongLastSequenceError as WrongLastSequenceError,
    )
    from natty.groups import TooManyDeliveriesError as TooManyDeliveriesError
    from natty.groups.joining import JoinOptions as JoinOptions, JoinSettings as JoinSettings
    from natty.jetstream import JetStream as JetStream, PubAck as PubAck
    from natty.kv import (
        BadKeyError as BadKeyError,
        Bucket as Bucket,
        BucketStatus as BucketStatus,
        Entry as Entry,
        Gone as Gone,
        PictureComplete as PictureComplete,
        Watch as Watch,
        WatchSettings as WatchSettings,
    )
    from natty.names import BadNameError as BadNameError
    from natty.publishing.atomic import AtomicMessage as AtomicMessage
    from natty.publishing.outbox import Outbox as Outbox, OutboxOptions as OutboxOptions
    from natty.publishing.options import PublisherOptions as PublisherOptions, PublisherSettings as PublisherSettings
    from natty.publishing.publisher import Publisher as Publisher
    from natty.pulling.pull import Pull as Pull
    from natty.pulling.requests import PullOptions as PullOptions, PullSettings as PullSettings
    from natty.streams import (
        BucketConfig as BucketConfig,
        ConsumerConfig as ConsumerConfig,
        ConsumerInfo as ConsumerInfo,
        MessageNotFoundError as MessageNotFoundError,
        PurgeRefusedError as PurgeRefusedError,
        ServerConsumerConfig as ServerConsumerConfig,
        ServerStreamConfig as ServerStreamConfig,
        StreamConfig as StreamConfig,
        StreamInfo as StreamInfo,
        StreamState as StreamState,
    )
    from natty.streams.schedules import (
        Schedule as Schedule,
        ScheduleOptions as ScheduleOptions,
        Scheduler as Scheduler,
        ScheduleSettings as ScheduleSettings,
    )
    from natty.streams.mirror import PromotionRefusedError as PromotionRefusedError
    from natty.templates import TemplateNotFoundError as TemplateNotFoundError
    from natty.wire.message import Batch as Batch, Message as Message
else:  # the same names, each imported when it is first used (PEP 562)
    _HOMES = {
        "natty.client": "Natty as_leader",
        "natty.config.settings": "Config ConnectionSettings",
        "natty.consuming.handler": "BodyError Handler HandlerTimeoutError",
        "natty.consuming.consume": "Consumption",
        "natty.consuming.dead_letters": """
            BadAdvisoryError BadLetterError DeadLetterOptions DeadLetters Letter LetterBox LetterFilter
            LetterNotFoundError TerminatedError
        """,
        "natty.consuming.messaging": "CoreMessage CoreSubscription Responder",
        "natty.consuming.options": "ConsumeOptions ConsumeSettings",
        "natty.consuming.reports": "HandlerCancelledError NextStep OnError",
        "natty.elections": "Election ElectionOptions ElectionSettings Leadership Term",
        "natty.errors": """
            AuthorizationError BadGroupError BadRecordError BadSubjectError BucketNotFoundError ConfigError
            ConnectError ConnectionClosedError ConsumerExistsError ConsumerNotFoundError DomainUnreachableError
            GroupExistsError GroupNotFoundError JetStreamError JetStreamNotEnabledError KeyExistsError
            KeyNotFoundError LeadershipLostError NattyError NoRespondersError NotConnectedError
            PayloadTooLargeError PublishError RequestTimeoutError RevisionConflictError SessionEndedError
            StaleTokenError StreamExistsError StreamNotFoundError TLSClosedError TLSError TLSHandshakeError
            TLSRequiredError ThreadsEndedError UnsupportedError WrongLoopError WrongLastSequenceError
        """,
        "natty.groups": "TooManyDeliveriesError",
        "natty.groups.joining": "JoinOptions JoinSettings",
        "natty.jetstream": "JetStream PubAck",
        "natty.kv": "BadKeyError Bucket BucketStatus Entry Gone PictureComplete Watch WatchSettings",
        "natty.names": "BadNameError",
        "natty.publishing.atomic": "AtomicMessage",
        "natty.publishing.options": "PublisherOptions PublisherSettings",
        "natty.publishing.outbox": "Outbox OutboxOptions",
        "natty.publishing.publisher": "Publisher",
        "natty.pulling.pull": "Pull",
        "natty.pulling.requests": "PullOptions PullSettings",
        "natty.streams": """
            BucketConfig ConsumerConfig ConsumerInfo MessageNotFoundError PurgeRefusedError ServerConsumerConfig
            ServerStreamConfig StreamConfig StreamInfo StreamState
        """,
        "natty.streams.mirror": "PromotionRefusedError",
        "natty.streams.schedules": "Schedule ScheduleOptions ScheduleSettings Scheduler",
        "natty.templates": "TemplateNotFoundError",
        "natty.wire.message": "Batch Message",
    }
    _HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
    __all__ = sorted(_HOME_OF)

    def __getattr__(name):
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
