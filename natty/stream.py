from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from natty.errors import (
    ConsumerExistsError,
    ConsumerNotFoundError,
    JetStreamError,
    NattyError,
    StreamExistsError,
    StreamNotFoundError,
    UnsupportedError,
)
from natty.jetstream import STREAM_EXISTS, JetStream

NANOSECONDS = 1_000_000_000
_DURATIONS = {
    "max_age",
    "duplicate_window",
    "ack_wait",
    "inactive_threshold",
    "subject_delete_marker_ttl",
    "max_expires",
}
_LISTS_OF_SECONDS = {"backoff"}
_FORBIDDEN = set(" .*>/\\\t\r\n")


class BadNameError(NattyError):
    """A stream, consumer or bucket name holds a character that is not allowed."""


def check_name(kind: str, name: str) -> str:
    """Return the name if it is one (ADR-6); BadNameError names the character and its place."""
    if not name:
        raise BadNameError(f"the {kind}'s name is empty")
    for place, character in enumerate(name, start=1):
        if character in _FORBIDDEN or not character.isprintable():
            raise BadNameError(f"{kind} name {name!r}: {character!r} at character {place} is not allowed")
    return name


def to_wire(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as the server writes them: durations in seconds become nanoseconds; None values are left out."""
    wire: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None:
            continue
        if name in _DURATIONS:
            value = round(value * NANOSECONDS)
        elif name in _LISTS_OF_SECONDS:
            value = [round(one * NANOSECONDS) for one in value]
        wire[name] = value
    return wire


def difference(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """Return what differs, one readable line a setting; only what is wanted is compared, newer fields are left alone.

    A setting that the server leaves out has its zero value there.
    """
    lines = []
    for name, value in sorted(wanted.items()):
        have = actual.get(name)
        same = have == value or (not value and have in (None, 0, "", False, [], {}, -1))
        if isinstance(value, Mapping) and isinstance(have, Mapping):
            same = not difference(value, have)
        if not same:
            lines.append(f"{name} is {_show(name, have)}, wanted {_show(name, value)}")
    return lines


def _show(name: str, value: Any) -> str:
    if name in _DURATIONS and isinstance(value, int):
        return f"{value / NANOSECONDS:g} s"
    return repr(value)


async def ensure_stream(jetstream: JetStream, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Make the stream if there is none, and return its configuration.

    `settings` are the server's own names (`subjects`, `num_replicas`, `max_age`, …); durations are seconds. One that
    exists is never changed: StreamExistsError with the difference if it has other settings than the ones named.
    """
    wanted = to_wire(settings) | {"name": check_name("stream", name)}
    for _ in range(2):
        try:
            actual = (await jetstream.request(f"STREAM.INFO.{name}"))["config"]
        except StreamNotFoundError:
            try:
                created = await jetstream.request(
                    f"STREAM.CREATE.{name}", {"storage": "file", "retention": "limits"} | wanted
                )
                if ignored := difference(wanted, created["config"]):
                    raise UnsupportedError(
                        f"stream {name} was made, and this server is too old for what was asked: {'; '.join(ignored)}"
                    )
                return dict(created["config"])
            except JetStreamError as error:  # somebody was faster: compare with what they made
                if error.err_code != STREAM_EXISTS:
                    raise
                continue
        if lines := difference(wanted, actual):
            raise StreamExistsError(
                f"stream {name} exists with another configuration: {'; '.join(lines)}."
                " Change it with `nats stream edit`, or ask for what it is"
            )
        return dict(actual)
    raise StreamExistsError(f"stream {name} was made and deleted by somebody else at the same time: try again")


async def ensure_consumer(
    jetstream: JetStream, stream: str, durable: str, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Make the durable pull consumer if there is none, and return its configuration.

    Durations (`ack_wait`, …) are seconds. ConsumerExistsError with the difference if it exists with other settings than
    the ones named; StreamNotFoundError.
    """
    check_name("stream", stream)
    base = {
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "max_ack_pending": 1000,
        "ack_wait": 30.0,
        "max_deliver": -1,
    }
    named = to_wire(settings or {})
    wanted = to_wire(base) | named | {"durable_name": check_name("consumer", durable), "name": durable}
    try:
        actual = (await jetstream.request(f"CONSUMER.INFO.{stream}.{durable}"))["config"]
    except ConsumerNotFoundError:
        body = {"stream_name": stream, "config": wanted, "action": "create"}
        created = await jetstream.request(f"CONSUMER.CREATE.{stream}.{durable}", body)
        return dict(created["config"])
    if lines := difference(named, actual):
        raise ConsumerExistsError(
            f"consumer {durable} of stream {stream} exists with another configuration: {'; '.join(lines)}."
            " Change it with `nats consumer edit`, or ask for what it is"
        )
    return dict(actual)


async def stream_state(jetstream: JetStream, name: str, *, deleted: bool = False) -> dict[str, Any]:
    """Return the stream's state: messages, first_seq, last_seq, …; with `deleted`, the sequences deleted inside it."""
    answer = await jetstream.request(f"STREAM.INFO.{name}", {"deleted_details": True} if deleted else None)
    return dict(answer["state"])
