"""Streams and consumers as code: compare actual and wanted settings, apply safe changes, refuse the others."""

from natty.names import BadNameError, check_name
from natty.streams.changes import Risk
from natty.streams.contents import MessageNotFoundError, PurgeRefusedError, delete_message, message, purge
from natty.streams.conversion import to_wire
from natty.streams.ensure import (
    create_consumer,
    create_replicated,
    create_stream,
    delete_consumer,
    delete_stream,
    ensure_consumer,
    ensure_stream,
    pause_consumer,
    plan_consumer,
    plan_stream,
    resume_consumer,
)
from natty.streams.file import Declared, load_streams
from natty.streams.info import (
    ConsumerInfo,
    PauseAnswer,
    ServerConsumerConfig,
    ServerStreamConfig,
    StreamInfo,
    StreamState,
    consumer_info,
    led_info,
    stream_info,
    stream_state,
)
from natty.streams.planning import Change, Plan, difference, plan
from natty.streams.schema import BucketConfig, ConsumerConfig, StreamConfig

__all__ = [
    "BadNameError",
    "BucketConfig",
    "Change",
    "ConsumerConfig",
    "ConsumerInfo",
    "Declared",
    "MessageNotFoundError",
    "PauseAnswer",
    "Plan",
    "PurgeRefusedError",
    "Risk",
    "ServerConsumerConfig",
    "ServerStreamConfig",
    "StreamConfig",
    "StreamInfo",
    "StreamState",
    "check_name",
    "consumer_info",
    "create_consumer",
    "create_replicated",
    "create_stream",
    "delete_consumer",
    "delete_message",
    "delete_stream",
    "difference",
    "ensure_consumer",
    "ensure_stream",
    "load_streams",
    "message",
    "led_info",
    "pause_consumer",
    "plan",
    "plan_consumer",
    "plan_stream",
    "purge",
    "resume_consumer",
    "stream_info",
    "stream_state",
    "to_wire",
]
