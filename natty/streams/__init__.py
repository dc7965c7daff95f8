"""Streams and consumers as code: compare what is with what is wanted, apply what is safe, refuse the rest."""

from natty.names import BadNameError, check_name
from natty.streams.admin import MessageNotFoundError, PurgeRefusedError, delete_message, message, purge
from natty.streams.ensure import (
    create_consumer,
    create_replicated,
    create_stream,
    delete_consumer,
    delete_stream,
    ensure_consumer,
    ensure_stream,
    plan_consumer,
    plan_stream,
    stream_state,
)
from natty.streams.file import Declared, load_streams
from natty.streams.pause import pause_consumer, resume_consumer
from natty.streams.planning import Change, Plan, Risk, plan
from natty.streams.settings import difference, to_wire

__all__ = [
    "BadNameError",
    "Change",
    "Declared",
    "MessageNotFoundError",
    "Plan",
    "Risk",
    "check_name",
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
    "pause_consumer",
    "message",
    "plan",
    "plan_consumer",
    "plan_stream",
    "resume_consumer",
    "PurgeRefusedError",
    "purge",
    "stream_state",
    "to_wire",
]
