"""Checks the state of a stream and its consumers in a backup: any program may have written it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from capture.archive.recording import Consumer, Position, Unacked
from capture.archive.sequences import MAXIMUM, WIDEST
from capture.errors import FormatError
from natty.names import BadNameError, check_name

LONGEST_NAME = 255  # bytes of a stream's or a consumer's name on servers

# The fields that a restore relies on; all other fields are kept unchanged.

_Count = Annotated[int, msgspec.Meta(ge=0, le=MAXIMUM)]
_Number = Annotated[int, msgspec.Meta(ge=-1, le=MAXIMUM)]


class _Origin(msgspec.Struct):
    name: str


class _Settings(msgspec.Struct):
    name: str
    subjects: list[str] | None = None
    retention: Literal["limits", "interest", "workqueue"] = "limits"
    storage: Literal["file", "memory"] = "file"
    num_replicas: _Number = 1
    max_age: _Number = 0
    metadata: dict[str, str] | None = None
    mirror: _Origin | None = None
    sources: list[_Origin] | None = None


class _State(msgspec.Struct):
    first_seq: _Count
    last_seq: _Count
    messages: _Count = 0
    bytes: _Count = 0


class _ConsumerSettings(msgspec.Struct):
    name: str = ""
    durable_name: str = ""
    ack_policy: str = ""
    deliver_subject: str = ""
    num_replicas: _Number = 0
    metadata: dict[str, str] | None = None


class _Place(msgspec.Struct):
    consumer_seq: _Count = 0
    stream_seq: _Count = 0


class _Delivery(msgspec.Struct, rename="pascal"):
    sequence: _Count
    timestamp: Annotated[int, msgspec.Meta(ge=-MAXIMUM, le=MAXIMUM)] = 0


class _ConsumerState(msgspec.Struct):
    delivered: _Place = msgspec.field(default_factory=_Place)
    ack_floor: _Place = msgspec.field(default_factory=_Place)
    pending: dict[_Count, _Delivery] | None = None
    redelivered: dict[_Count, _Count] | None = None


class _ConsumerEntry(msgspec.Struct):
    config: _ConsumerSettings
    state: _ConsumerState


def check_settings(config: Mapping[str, Any]) -> None:
    """FormatError unless a stream's configuration has the fields that a restore relies on."""
    try:
        name = msgspec.convert(config, _Settings).name
    except msgspec.ValidationError as error:
        raise FormatError(f"its configuration: {error}") from error
    _check_name("stream", name)


def _check_name(kind: str, name: str) -> str:
    """Return the name. FormatError if servers refuse it."""
    try:
        check_name(kind, name)
    except BadNameError as error:
        raise FormatError(str(error)) from error
    if len(name.encode()) > LONGEST_NAME:
        raise FormatError(f"the {kind}'s name has more than {LONGEST_NAME} bytes, {name[:40]!r}…")
    return name


def check_state(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stream's state with every number that a restore relies on. FormatError."""
    try:
        state = msgspec.convert(told, _State)
    except msgspec.ValidationError as error:
        raise FormatError(f"its state is damaged: {error}") from error
    if state.last_seq - state.first_seq >= WIDEST:
        raise FormatError(
            f"its stream has sequences {state.first_seq:,} to {state.last_seq:,}; an import takes {WIDEST:,} at most"
        )
    return {**told, **msgspec.structs.asdict(state)}


def consumers_of(told: Sequence[Mapping[str, Any]]) -> dict[str, Consumer]:
    """Return the records of the consumers, by name. FormatError."""
    found: dict[str, Consumer] = {}
    for one in told:
        try:
            entry = msgspec.convert(one, _ConsumerEntry, str_keys=True)
        except msgspec.ValidationError as error:
            raise FormatError(f"a consumer in it is damaged: {error}") from error
        name = _check_name("consumer", entry.config.name or entry.config.durable_name)
        if name in found:
            raise FormatError(f"consumer {name} is in it twice: it is damaged")
        found[name] = _consumer(one["config"], entry)
    return found


def _consumer(config: dict[str, Any], entry: _ConsumerEntry) -> Consumer:
    """Return the record of a consumer. Unlike a server, a backup names every unacknowledged message."""
    state = entry.state
    pending = {sequence: Unacked(one.sequence, one.timestamp) for sequence, one in (state.pending or {}).items()}
    return Consumer(
        created="",
        ephemeral=not entry.config.durable_name,
        config=config,
        delivered=Position(state.delivered.consumer_seq, state.delivered.stream_seq),
        ack_floor=Position(state.ack_floor.consumer_seq, state.ack_floor.stream_seq),
        unacked=len(pending),
        pending=pending,
        redelivered=state.redelivered or {},
    )
