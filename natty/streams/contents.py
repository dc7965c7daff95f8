"""Administration of the messages of a stream: purge, delete one, read one."""

from __future__ import annotations

from typing import Any

from natty.config.options import Count, CountOrZero, check_value
from natty.config.units import write_count
from natty.errors import ConfigError, JetStreamError, NattyError
from natty.jetstream import JetStream, StoredMessage
from natty.names import check_name, covers, overlap
from natty.streams.info import ConsumerInfo, stream_state
from natty.streams.listing import Listing, all_consumers
from natty.wire.servers import FAULTS, Version

_NOT_DELETED = frozenset({10043, 10057})  # there is no such message, or the stream denies deleting


class MessageNotFoundError(NattyError):
    """The stream has no such message."""


class PurgeRefusedError(NattyError):
    """A purge by subject would make consumers lose messages on other subjects; nothing was deleted."""


async def message(jetstream: JetStream, stream: str, *, sequence: int = 0, last_for: str = "") -> StoredMessage:
    """Return the message at a sequence, or the last one on a subject (wildcards allowed), from the stream's leader.

    MessageNotFoundError with the range of sequences; StreamNotFoundError.
    """
    check_value("sequence", sequence, CountOrZero)
    found = await jetstream.read(check_name("stream", stream), sequence=sequence, subject=last_for)
    if found is not None:
        return found
    what = f"on {last_for}" if last_for else f"at sequence {sequence}"
    state = await stream_state(jetstream, stream)
    held = f"{state['first_seq']} to {state['last_seq']}" if state["messages"] else "none"
    raise MessageNotFoundError(f"stream {stream} has no message {what}; it holds {held}")


async def purge(
    jetstream: JetStream, stream: str, *, subject: str = "", below: int = 0, keep: int = 0, allow_pending: bool = False
) -> int:
    """Delete messages of a stream at once and return how many: all, or those that every given limit allows.

    `subject` deletes only messages on it (wildcards allowed), `below` only those before a sequence, and `keep` keeps
    that many of the newest. ConfigError for `below` with `keep`, which the server refuses, before any request.
    StreamNotFoundError; JetStreamError if the stream denies it. PurgeRefusedError, unless `allow_pending`: with a
    subject, the server would forget other messages that consumers hold; see `check_purge`.
    Protocol: ADR-10's STREAM.PURGE.
    """
    for name, number in (("below", below), ("keep", keep)):
        check_value(name, number, CountOrZero)
    if below and keep:
        raise ConfigError("a purge deletes below a sequence, or keeps a number of messages: choose one")
    if subject and not allow_pending:
        await check_purge(jetstream, stream, subject)
    body = {"filter": subject, "seq": below, "keep": keep}
    answer = await jetstream.request(
        f"STREAM.PURGE.{check_name('stream', stream)}", {key: value for key, value in body.items() if value}
    )
    return int(answer["purged"])


async def check_purge(jetstream: JetStream, stream: str, subject: str, *, held: bool = True) -> None:
    """PurgeRefusedError if consumers would lose messages that a purge of this subject leaves in the stream.

    nats-server forgets the messages that they hold unacknowledged (checked if `held`), and before 2.15 also the
    undelivered messages of consumers with several filters. A hint: messages that are delivered between this check and
    the purge are forgotten.
    """
    consumers = await all_consumers(jetstream, check_name("stream", stream))
    hazards = purge_hazards(consumers, subject, jetstream.connection.server_version, held=held)
    if hazards:
        more = f", and {len(hazards) - 3} more" if len(hazards) > 3 else ""
        raise PurgeRefusedError(
            f"stream {stream} was not purged by subject {subject}: {'; '.join(hazards[:3])}{more}. The server would not"
            " deliver those messages again. Wait until they are acknowledged; `natty stream purge --allow-pending`, or"
            " allow_pending=True, purges anyway"
        )


def purge_hazards(consumers: Listing[ConsumerInfo], subject: str, version: Version, *, held: bool = True) -> list[str]:
    """Return a text for each consumer that would lose messages by the purge, or for which no server answers."""
    found = {one["name"]: purge_hazard(one, subject, version, held=held) for one in consumers.found}
    hazards = [f"consumer {name} {why}" for name, why in found.items() if why]
    return hazards + [f"no server answers for consumer {name}" for name in consumers.missing]


def purge_hazard(consumer: ConsumerInfo, subject: str, version: Version, *, held: bool = True) -> str:
    """Return what a consumer (as in CONSUMER.INFO) would lose by a purge of a subject; empty if nothing."""
    config = consumer["config"]
    filters = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
    covered = [covers([subject], one) for one in filters]
    if all(covered) or not any(overlap(subject, one) for one in filters):
        return ""
    if held and consumer["num_ack_pending"]:
        return f"holds {write_count(consumer['num_ack_pending'], 'unacknowledged message')}"
    if FAULTS["purge with several filters"].affects(version) and any(covered) and consumer["num_pending"]:
        return f"has {write_count(consumer['num_pending'], 'undelivered message')}, some of them on its other subjects"
    return ""


async def delete_message(jetstream: JetStream, stream: str, sequence: int, *, erase: bool = True) -> bool:
    """Delete one message, by default overwriting it on the disk; return False if there is none at this sequence.

    Without `erase` it is only marked as deleted, which is faster. StreamNotFoundError; JetStreamError if the stream
    denies deletes.
    """
    check_value("sequence", sequence, Count)
    body: dict[str, Any] = {"seq": sequence} | ({} if erase else {"no_erase": True})
    try:
        await jetstream.request(f"STREAM.MSG.DELETE.{check_name('stream', stream)}", body)
    except JetStreamError as error:
        if error.err_code in _NOT_DELETED and await jetstream.read(stream, sequence=sequence) is None:
            return False
        raise
    return True
